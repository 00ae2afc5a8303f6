"""The questions that rules and the judge ask: what differs between ranks at a line, what a line communicates.

Nothing here raises on strange input: what cannot be told is `Kind.UNKNOWN` or an empty tuple.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import Location, say
from . import execution
from .decisions import mask_under
from .files import blocks, first_line
from .lanes import RankSet
from .trace import Test, events
from .values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from .files import SourceFile
    from .machine import Run
    from .program import Program

__all__ = ["Communication", "Enclosure", "Kind", "Variation", "communicates", "enclosing", "variation"]


@dataclass(frozen=True, slots=True)
class Variation:
    """How a value may differ between ranks. `ranks` are those on which a test holds, as far as small worlds
    show them ({0} for `rank == 0`); `described` says it in words ("every rank but 0"); `reason` is where
    the value began to differ."""

    kind: Kind
    ranks: frozenset[int] | None = None
    described: str = ""
    reason: Location | None = None
    cause: str = ""
    """"rank", "batch", "loss", "random", "time", "file", "error", "shard", or empty."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective that a line may make. `hidden` says what makes it where the line's own text does not
    name it ("DDP forward", "SyncBatchNorm", ...); `location` is the call that communicates; `path` the
    calls on the way."""

    operation: str
    hidden: str | None
    location: Location
    path: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A statement around a line. `kind` is if, else, elif, for, while, try, except, finally, with or match;
    `test` is the source of its condition, iterable, exception types, context managers or subject."""

    kind: str
    line: int
    end_line: int
    test: str
    node: ast.AST


def enclosing(program: Program, path: str | Path, line: int) -> tuple[Enclosure, ...]:
    """The statements around `line` inside its function (or module level), innermost first."""
    kept: dict[tuple[str | Path, int], tuple[Enclosure, ...]] = program.kept.setdefault("enclosing", {})
    if (path, line) not in kept:
        kept[path, line] = _enclosing(program.module(path).source, line)
    return kept[path, line]


def _enclosing(source: SourceFile, line: int) -> tuple[Enclosure, ...]:
    found: list[Enclosure] = []
    chained = False
    block: list[ast.stmt] = list(source.tree.body) if source.tree else []
    while block:
        inner = next((s for s in block if first_line(s) <= line <= (s.end_lineno or s.lineno)), None)
        if inner is None:
            break
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.clear()
            block = inner.body
            continue
        parts = [b for b in blocks(inner) if b and first_line(b[0]) <= line <= (b[-1].end_lineno or 0)]
        handlers = [h for h in getattr(inner, "handlers", ()) if h.lineno <= line <= (h.end_lineno or 0)]
        if not parts and not handlers:
            break
        handler = handlers[0] if handlers else None
        arm = handler.body if handler else parts[0]
        enclosure = _enclosure(inner, arm, handler, source.segment)
        if enclosure is not None:
            found.append(replace(enclosure, kind="elif") if chained else enclosure)
        chained = enclosure is None
        block = arm
    return tuple(reversed(found))


def _enclosure(
    inner: ast.stmt,
    arm: list[ast.stmt],
    handler: ast.ExceptHandler | None,
    text: Callable[[ast.AST], str],
) -> Enclosure | None:
    """The enclosure that `arm` of `inner` is; None for the outer test of an elif, which stands for itself."""
    node: ast.AST = inner
    test: list[ast.AST] = []
    if isinstance(inner, ast.If):
        kind, test = "if", [inner.test]
        if arm is inner.orelse:
            kind = "else"
            if len(arm) == 1 and isinstance(arm[0], ast.If) and arm[0].col_offset == inner.col_offset:
                return None
    elif isinstance(inner, ast.For | ast.AsyncFor):
        kind, test = "for", [inner.iter]
    elif isinstance(inner, ast.While):
        kind, test = "while", [inner.test]
    elif isinstance(inner, ast.With | ast.AsyncWith):
        kind, test = "with", [item.context_expr for item in inner.items]
    elif handler is not None:
        kind, node, test = "except", handler, [handler.type] if handler.type else []
    elif isinstance(inner, ast.Match):
        kind, test = "match", [inner.subject]
    else:
        kind = "finally" if arm is getattr(inner, "finalbody", None) else "try"
    line, end = getattr(node, "lineno", inner.lineno), getattr(node, "end_lineno", inner.end_lineno)
    return Enclosure(kind, line, end or line, ", ".join(text(t) for t in test), node)


def variation(program: Program, path: str | Path, line: int) -> Variation:
    """How the test (of an if, while, assert or conditional expression) or the iterable (of a for) at `line` may
    differ between ranks."""
    try:
        seen = _tests(program, Path(os.path.abspath(path)), line)
    except RecursionError:
        return Variation(Kind.UNKNOWN)
    if not seen:
        return Variation(Kind.UNKNOWN)
    worst = max(seen, key=lambda test: test.kind)
    reason = None
    if worst.origin is not None:
        reason = Location(worst.origin.path, worst.origin.line, role=say("the value begins to differ here"))
    cause = worst.origin.cause if worst.origin is not None else ""
    if worst.kind is Kind.UNKNOWN and cause == "file":
        # Mostly a shared disk, so nothing to warn of; but it may be what parted two ranks.
        return Variation(Kind.DATA, None, "", reason, cause)
    mask = mask_under(worst.passed, lambda _: True)
    if worst.kind in (Kind.NODE, Kind.RANK) and mask > 0:
        ranks = RankSet(mask)
        return Variation(worst.kind, ranks.known, str(ranks), reason, cause or "rank")
    return Variation(worst.kind, None, "", reason, cause)


def _tests(program: Program, path: Path, line: int) -> list[Test]:
    """What was seen of the tests at a line, in the runs that come to it; else in its function alone."""
    statement = program.module(path).source.statement_at(line)
    lines = [line, *([statement.lineno] if statement is not None and statement.lineno != line else [])]
    for entry in execution.entries_with(program, path):
        run = execution.run_of(program, entry)
        for number in lines:
            if (path, number) in run.tests:
                return run.tests[path, number]
    function = program.function_at(path, line)
    if function is not None:
        run = execution.run_alone(program, function)
        for number in lines:
            if (path, number) in run.tests:
                return run.tests[path, number]
    return []


def communicates(program: Program, path: str | Path, line: int) -> tuple[Communication, ...]:
    """The collectives that the calls on `line` may make, themselves or through what they call."""
    path = Path(os.path.abspath(path))
    try:
        for entry in execution.entries_with(program, path):
            found = _communications(execution.run_of(program, entry), path, line)
            if found:
                return found
        function = program.function_at(path, line)
        return (
            _communications(execution.run_alone(program, function), path, line)
            if function is not None
            else ()
        )
    except RecursionError:
        return ()


def _communications(run: Run, path: Path, line: int) -> tuple[Communication, ...]:
    found: dict[tuple[str, int, str], Communication] = {}
    for event in events(run.items):
        if not event.communicates:
            continue
        chain = event.site.chain()
        at = next((i for i, s in enumerate(chain) if s.path == path and _spans(s.node, line)), None)
        if at is None:
            continue
        place = event.site
        hidden = event.hidden or None
        key = (str(place.path), place.line, event.operation)
        found.setdefault(
            key,
            Communication(
                event.operation, hidden, place.location(), tuple(s.location() for s in chain[at:-1])
            ),
        )
    return tuple(found.values())


def _spans(node: ast.AST, line: int) -> bool:
    begin = getattr(node, "lineno", 0)
    return begin <= line <= (getattr(node, "end_lineno", None) or begin)
