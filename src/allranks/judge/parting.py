"""The statement at which two ranks parted, from where they last agreed and where they stand now.

Both sides made the same calls up to some position; then one made a call that the other did not. The stacks of
that moment share their outer frames. In the deepest shared function, and in the functions that only one side is
in, each control statement around the call, and each way past it, is a candidate. A candidate is weighed by how
its test can differ between ranks (source analysis) and by what the run itself showed: an exception that was
handled, loaders that ran dry, the line at which a rank left.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..source import flow
from ..source.files import read
from . import places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..source.program import Program
    from ..world import CallKind, ExceptionInfo, Frame, RankState, Site, World
    from .places import Control, Escape


class Cause(Enum):
    """What kind of statement parted the ranks."""

    RANK_BRANCH = auto()
    """A branch on the rank; the ranks inside made a call that the others did not."""
    DATA_BRANCH = auto()
    """A branch (or an inner loop) whose outcome depends on each rank's data."""
    ARMS = auto()
    """The two sides are in different arms of one branch, and both communicate."""
    LOOP = auto()
    """A loop that had fewer turns on one side."""
    ESCAPE = auto()
    """A break, return, raise or exit that only one side took."""
    HANDLER = auto()
    """An except clause that swallowed an error on one side."""
    SAME_LINE = auto()
    """Both sides made the call from the same line: they agree on what, not on its arguments."""
    UNKNOWN = auto()
    """No statement could be named."""


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that stand at the same place: the site of their next call, or of where they are or ended."""

    ranks: tuple[int, ...]
    site: Site
    kind: CallKind | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Parting:
    """The answer: `inner` are the ranks that made the call at stake, `outer` those that passed it by."""

    cause: Cause
    inner: Side
    outer: Side
    frame: Frame | None = None
    """The function that holds the statement."""
    node: ast.stmt | ast.ExceptHandler | None = None
    escape: str = ""
    """For ESCAPE the kind of statement: break, return, raise, exit, continue."""
    by_rank: bool = False
    """True when the test is on the rank."""
    certain: bool = False
    """True when the run itself showed it, False when it is read off the source."""
    wrapper: bool = False
    """True when the branch stands in a decorator's wrapper and the decorated function communicates."""
    exception: ExceptionInfo | None = None
    turns: dict[int, int] = field(default_factory=dict)
    """Turns of the loop by rank, where they are known."""

    @property
    def line(self) -> int | None:
        """The line of the statement."""
        return self.node.lineno if self.node is not None else (self.frame.line if self.frame else None)


@dataclass(frozen=True, slots=True)
class _Candidate:
    score: int
    cause: Cause
    frame: Frame
    node: ast.stmt | ast.ExceptHandler
    inner: Side
    outer: Side
    escape: str = ""
    by_rank: bool = False
    certain: bool = False
    wrapper: bool = False
    exception: ExceptionInfo | None = None
    turns: dict[int, int] = field(default_factory=dict)


def part(world: World, program: Program, one: Side, other: Side, before: Site = ()) -> Parting:
    """The statement that parted `one` and `other`; `before` is the site of the last call on which they agreed."""
    depth = _shared_depth(one.site, other.site)
    found: list[_Candidate] = []
    if depth >= 0:
        arms = _opposite_arms(one, other, depth)
        if arms is not None:
            return arms
        if one.site == other.site:
            frame = one.site[-1]
            return Parting(Cause.SAME_LINE, one, other, frame, _statement(frame), certain=True)
    near = _nearer(one, other, depth, before)
    for inner, outer in ((one, other), (other, one)):
        if inner.site and (near is None or near is inner):
            found += _candidates(world, program, inner, outer, depth)
    best = max(found, key=lambda c: c.score, default=None)
    if best is None or best.score <= 0:
        inner, outer = (one, other) if near is not other else (other, one)
        at = inner.site[max(depth, 0)] if inner.site else None
        return Parting(Cause.UNKNOWN, inner, outer, at, _statement(at) if at else None)
    return Parting(
        best.cause, best.inner, best.outer, best.frame, best.node, best.escape, best.by_rank, best.certain,
        best.wrapper, best.exception, best.turns,
    )  # fmt: skip


def _shared_depth(one: Site, other: Site) -> int:
    """The index of the deepest frame in which both sides run the same invocation of the same function, or -1."""
    depth = -1
    for a, b in zip(one, other, strict=False):
        if (a.path, a.function, a.first_line) != (b.path, b.function, b.first_line):
            break
        depth += 1
        if a.line != b.line:
            break
    return depth


def _function(frame: Frame) -> places.Function | None:
    tree = read(frame.path).tree
    return places.function_of(tree, frame) if tree is not None else None


def _statement(frame: Frame) -> ast.stmt | None:
    function = _function(frame)
    return places.statement_at(function, frame.line) if function is not None else None


def _chain(frame: Frame) -> list[Control]:
    function = _function(frame)
    return places.chain(function, frame.line) if function is not None else []


def _opposite_arms(one: Side, other: Side, depth: int) -> Parting | None:
    """The branch whose two arms hold the two sides, or the handler in which one of them is."""
    frame = one.site[depth]
    for a, b in zip(_chain(frame), _chain(other.site[depth]), strict=False):
        if a.node is not b.node:
            return None
        if a.arm == b.arm and a.handler is b.handler:
            continue
        if a.is_branch and one.kind is not None and other.kind is not None:
            return Parting(Cause.ARMS, one, other, frame, a.node, certain=True)
        if a.handler is not None and b.arm == "body":
            return Parting(Cause.HANDLER, other, one, frame, a.handler, certain=True)
        if b.handler is not None and a.arm == "body":
            return Parting(Cause.HANDLER, one, other, frame, b.handler, certain=True)
        return None
    return None


def _nearer(one: Side, other: Side, depth: int, before: Site) -> Side | None:
    """The side whose call comes first in program order after the last agreed call: the other side passed it by.
    None when that cannot be told."""
    if not one.site or not other.site:
        return one if one.site else other
    if depth < 0:
        return None
    a, b = one.site[depth], other.site[depth]
    loop = _common_loop(_chain(a), _chain(b))
    if a.line == b.line:
        return None
    if loop is None:
        return one if a.line < b.line else other
    if _shared_depth(before, one.site) < depth and _shared_depth(before, other.site) < depth:
        return one if a.line < b.line else other
    last = before[depth].line
    # Lines after the last agreed call come in this turn of the loop, the rest in the next one.
    return min((one, other), key=lambda side: _distance(side.site, before, depth, last, loop))


def _distance(site: Site, before: Site, depth: int, last: int, loop: ast.stmt) -> tuple[int, int]:
    line = site[depth].line
    inner = _common_loop(_chain(before[depth]), _chain(site[depth]))
    this_turn = (
        line > last
        or (line == last and _continues(before, site, depth))
        or (inner is not None and inner is not loop)  # one more turn of a loop inside
    )
    return (0 if this_turn else 1, line)


def _continues(before: Site, site: Site, depth: int) -> bool:
    """True when `site` can follow `before` within one call of the statement at `depth`, so without a new turn."""
    for a, b in zip(before[depth + 1 :], site[depth + 1 :], strict=False):
        if (a.path, a.function) != (b.path, b.function):
            return False
        if b.line > a.line:
            return True
        if _common_loop(_chain(a), _chain(b)) is not None:
            return True
        if b.line < a.line:
            return False
    return False


def _common_loop(one: list[Control], other: list[Control]) -> ast.stmt | None:
    found = None
    for a, b in zip(one, other, strict=False):
        if a.node is not b.node or a.arm != b.arm:
            break
        if a.is_loop:
            found = a.node
    return found


def _candidates(world: World, program: Program, inner: Side, outer: Side, depth: int) -> Iterator[_Candidate]:
    """Everything around the inner side's call that could have kept the outer side from making it."""
    shared = _chain(outer.site[depth]) if depth >= 0 else []
    for index in range(max(depth, 0), len(inner.site)):
        frame = inner.site[index]
        tree, function = read(frame.path).tree, _function(frame)
        if tree is None or function is None:
            continue
        controls = places.chain(function, frame.line)
        outside = controls
        if index == depth:
            same = [c for c, d in zip(controls, shared, strict=False) if c.node is d.node and c.arm == d.arm]
            outside = controls[len(same) :]
        weigh = _Weigher(world, program, inner, outer, frame, index == depth)
        for control in outside:
            yield from weigh.control(control, places.is_wrapper(tree, function, frame.line))
        for escape in places.escapes(function, frame.line):
            yield from weigh.escape(escape, controls)


@dataclass(slots=True)
class _Weigher:
    """Weighs the candidates of one frame. Scores order candidates; only their order has a meaning: what the run
    showed beats a test on the rank, which beats a test on data, which beats what is not known."""

    world: World
    program: Program
    inner: Side
    outer: Side
    frame: Frame
    shared: bool

    def _kind(self, node: ast.stmt) -> tuple[flow.Kind, bool]:
        """How the test or iterable of `node` differs between ranks, and whether the source shows it: where it cannot
        be followed, its names may still say that it is about the rank."""
        try:
            kind = flow.variation(self.program, self.frame.path, node.lineno).kind
        except Exception:  # strange source must not cost the verdict: it is then only less sure
            kind = flow.Kind.UNKNOWN
        if kind is flow.Kind.UNKNOWN and _names_rank(node):
            return flow.Kind.RANK, False
        return kind, kind is not flow.Kind.UNKNOWN

    def _made(
        self, score: int, cause: Cause, node: ast.stmt | ast.ExceptHandler, **more: object
    ) -> _Candidate:
        return _Candidate(score, cause, self.frame, node, self.inner, self.outer, **more)  # type: ignore[arg-type]

    def control(self, control: Control, wrapper: bool) -> Iterator[_Candidate]:
        """Candidates that a statement around the call gives."""
        if control.is_branch:
            kind, known = self._kind(control.node)
            if kind in _BY_RANK:
                score = 90 if known else 66
                yield self._made(score, Cause.RANK_BRANCH, control.node, by_rank=known, wrapper=wrapper)
            else:
                yield self._made(_WEIGHT[kind], Cause.DATA_BRANCH, control.node)
        elif control.is_loop:
            yield from self._loop(control.node)
        elif control.guards and isinstance(control.node, ast.Try):
            yield from self._guard(control.node)

    def _loop(self, node: ast.stmt) -> Iterator[_Candidate]:
        cause = Cause.LOOP if places.is_step_loop(node) else Cause.DATA_BRANCH
        turns = loop_turns(self.world, self.frame.path, node.lineno, (*self.inner.ranks, *self.outer.ranks))
        short = self._ran_short(turns)
        if short is None:
            kind, known = self._kind(node)
            yield self._made(_WEIGHT[kind] - 4, cause, node, by_rank=known and kind in _BY_RANK)
        elif short:
            last = min(len(rows) for rows in turns.values()) - 1
            counts = {rank: rows[last][0] for rank, rows in turns.items()}
            yield self._made(85, cause, node, certain=True, turns=counts)

    def _ran_short(self, turns: dict[int, list[tuple[int, bool]]]) -> bool | None:
        """True when the loop ended by itself on the outer side with fewer turns than the inner side made; None when
        the turns of both sides are not known."""
        mine = [turns[r] for r in self.inner.ranks if r in turns]
        theirs = [turns[r] for r in self.outer.ranks if r in turns]
        if not mine or not theirs:
            return None
        return all(
            any(dry and count < made for (count, dry), (made, _) in zip(rows, mine[0], strict=False))
            for rows in theirs
        )

    def _guard(self, node: ast.Try) -> Iterator[_Candidate]:
        for handler in filter(_catches_errors, filter(places.swallows, node.handlers)):
            seen = self._handled(node)
            if seen is not None:
                yield self._made(100, Cause.HANDLER, handler, certain=True, exception=seen)
            else:
                yield self._made(75 if self._same_turns() else 45, Cause.HANDLER, handler)
            return

    def _handled(self, node: ast.Try) -> ExceptionInfo | None:
        """An exception that the outer side met in the body of this try."""
        for rank in self.outer.ranks:
            for exception in reversed(self.world.ranks[rank].exceptions):
                for frame in exception.frames:
                    if frame.path == self.frame.path and node.lineno <= frame.line < node.handlers[0].lineno:
                        return exception
        return None

    def _same_turns(self) -> bool:
        """True when the outer side drew a batch for which it made no call, or as much as the inner side from every
        loader they share: no loop ran short, so a turn was skipped."""
        if any(
            _idle(self.world.ranks[r]) - _idle(self.world.ranks[i])
            for r in self.outer.ranks
            for i in self.inner.ranks
        ):
            return True
        drawn = [
            _drawn(self.world.ranks[r])
            for r in (*self.inner.ranks, *self.outer.ranks)
            if r in self.world.ranks
        ]
        return bool(drawn) and bool(drawn[0]) and all(d == drawn[0] for d in drawn)

    def escape(self, escape: Escape, controls: list[Control]) -> Iterator[_Candidate]:
        """Candidates that a way past the call gives: the outer side took it."""
        if self.shared and escape.kind in ("return", "raise", "exit") and not self.outer.ended:
            return  # the outer side is still in this function
        if escape.kind == "raise" and not self.outer.ended:
            return  # an error on its way to a handler: `_guard` weighs that
        if self._left_at(escape):
            yield self._made(100, Cause.ESCAPE, escape.node, escape=escape.kind, certain=True)
            return
        kind, known = self._kind(escape.branch) if escape.branch is not None else (flow.Kind.UNIFORM, True)
        score = _WEIGHT[kind] + (10 if known else 2)
        if escape.kind in ("break", "return") and self._ran_dry(controls):
            score -= 60
        if kind in _BY_RANK and (
            escape.kind == "continue" or (escape.kind == "return" and not self.outer.ended)
        ):
            # `if rank != 0: return` above a call is the same branch as `if rank == 0:` around it.
            yield self._made(score + 8, Cause.RANK_BRANCH, escape.branch or escape.node, by_rank=known)
        elif escape.kind == "continue":
            yield self._made(score - 8, Cause.DATA_BRANCH, escape.branch or escape.node, escape="continue")
        else:
            yield self._made(
                score, Cause.ESCAPE, escape.node, escape=escape.kind, by_rank=known and kind in _BY_RANK
            )

    def _left_at(self, escape: Escape) -> bool:
        """True when the outer side was last seen at this very statement."""
        return any(
            frame.path == self.frame.path
            and escape.node.lineno <= frame.line <= (escape.node.end_lineno or 0)
            for frame in self.outer.site
        )

    def _ran_dry(self, controls: list[Control]) -> bool:
        """True when a loop around the call ended by itself on the outer side, so that nothing had to leave it."""
        ranks = (*self.inner.ranks, *self.outer.ranks)
        return any(
            self._ran_short(loop_turns(self.world, self.frame.path, control.line, ranks))
            for control in controls
            if control.is_loop
        )


_BY_RANK = frozenset({flow.Kind.RANK, flow.Kind.NODE, flow.Kind.GROUP})
_WEIGHT = {
    flow.Kind.RANK: 72,
    flow.Kind.NODE: 72,
    flow.Kind.GROUP: 72,
    flow.Kind.DATA: 60,
    flow.Kind.UNKNOWN: 30,
    flow.Kind.UNIFORM: 4,
}


_RANK_NAMES = re.compile(
    r"(^|_)(rank|main|master|primary|chief|leader)(_|$|\d)|rank0|rank_?zero", re.IGNORECASE
)


def _names_rank(node: ast.stmt) -> bool:
    """True when the test of an if names a rank or the main process."""
    if not isinstance(node, ast.If):
        return False
    names = [n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)]
    names += [n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute)]
    return any(_RANK_NAMES.search(name) for name in names)


def _catches_errors(handler: ast.ExceptHandler) -> bool:
    """False for handlers of what is not an error of a step: an interrupt, the end of an iterator."""
    names = ast.unparse(handler.type) if handler.type is not None else ""
    return not names or any(
        name.strip(" ()").rpartition(".")[2]
        not in ("KeyboardInterrupt", "SystemExit", "StopIteration", "ImportError")
        for name in names.split(",")
    )


def loop_turns(
    world: World, path: str, line: int, ranks: tuple[int, ...]
) -> dict[int, list[tuple[int, bool]]]:
    """Turns of the loop whose iterable is drawn at `path`:`line`, for each rank that the run counted them for: for
    each time that the loop was begun (batches drawn, True when it ran dry)."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for rank in ranks:
        state = world.ranks.get(rank)
        rows = [
            (int(row["drawn"]), bool(row["exhausted"]))
            for row in (state.facts.get("loaders", ()) if state else ())
            if any(frame.path == path and frame.line == line for frame in row["site"][-1:])
        ]
        if rows:
            found[rank] = rows
    return found


def _idle(state: RankState) -> frozenset[tuple[str, int]]:
    """The lines that draw batches, some of which were followed by no call at all before the next was drawn."""
    return frozenset(
        (frame.path, frame.line)
        for row in state.facts.get("loaders", ())
        if row.get("without_calls")
        for frame in row["site"][-1:]
    )


def _drawn(state: RankState) -> dict[tuple[str, int], list[int]]:
    """What a rank drew from its loaders each time, by the line that iterates."""
    drawn: dict[tuple[str, int], list[int]] = {}
    for row in state.facts.get("loaders", ()):
        for frame in row["site"][-1:]:
            drawn.setdefault((frame.path, frame.line), []).append(int(row["drawn"]))
    return drawn
