"""What could have parted two ranks, weighed: the statements around a call and the ways past it.

A candidate is weighed by how its test can differ between ranks (source analysis) and by what the run itself showed:
exceptions that were handled, loaders that ran dry, batches without a call, the line at which a rank left.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..source import flow
from ..source.files import read
from ..source.interest import NOT_FINITE
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
class Candidate:
    """One statement that could have parted `inner`, who made the call, from `outer`, who passed it by. The fields are
    those of a `Parting`; scores order candidates and mean nothing else."""

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


@dataclass(slots=True)
class Weigher:
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
            seen = flow.variation(self.program, self.frame.path, node.lineno)
            kind = flow.Kind.DATA if _of_tensors(node, seen) else seen.kind
        except Exception:  # strange source must not cost the verdict: it is then only less sure
            kind = flow.Kind.UNKNOWN
        if kind is flow.Kind.UNKNOWN and _names_rank(node):
            return flow.Kind.RANK, False
        return kind, kind is not flow.Kind.UNKNOWN

    def _made(
        self, score: int, cause: Cause, node: ast.stmt | ast.ExceptHandler, **more: object
    ) -> Candidate:
        return Candidate(score, cause, self.frame, node, self.inner, self.outer, **more)  # type: ignore[arg-type]

    def control(self, control: Control, wrapper: bool) -> Iterator[Candidate]:
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

    def _loop(self, node: ast.stmt) -> Iterator[Candidate]:
        cause = Cause.LOOP if places.is_step_loop(node) else Cause.DATA_BRANCH
        turns = loop_turns(self.world, self.frame.path, node.lineno, (*self.inner.ranks, *self.outer.ranks))
        short = self._ran_short(turns)
        if short is None:
            kind, known = self._kind(node)
            if known and kind in _BY_RANK:
                cause = Cause.LOOP  # as many turns as the rank says, whatever is in them
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

    def _guard(self, node: ast.Try) -> Iterator[Candidate]:
        handler = next(filter(_catches_errors, filter(places.swallows, node.handlers)), None)
        if handler is not None:
            yield self._made(75 if self._same_turns() else 45, Cause.HANDLER, handler)

    def swallowed(self, node: ast.Try) -> Iterator[Candidate]:
        """The candidate of a try in whose body the outer side met errors that the inner side did not meet."""
        seen = [e for r in self.outer.ranks for e in self._met(r, node)]
        if len(seen) <= max((len(self._met(r, node)) for r in self.inner.ranks), default=0):
            return
        handler = next(filter(places.swallows, node.handlers))
        yield self._made(100, Cause.HANDLER, handler, certain=True, exception=seen[-1])

    def _met(self, rank: int, node: ast.Try) -> list[ExceptionInfo]:
        """The exceptions that a rank met in the body of this try and did not die of."""
        state = self.world.ranks[rank]
        last = state.exit.exception if state.exit is not None else None
        return [
            exception
            for exception in state.exceptions
            if exception is not last
            and any(
                f.path == self.frame.path and node.lineno <= f.line < node.handlers[0].lineno
                for f in exception.frames
            )
        ]

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

    def escape(self, escape: Escape, controls: list[Control]) -> Iterator[Candidate]:
        """Candidates that a way past the call gives: the outer side took it."""
        if self.shared and escape.kind in ("return", "raise", "exit") and not self.outer.ended:
            return  # the outer side is still in this function
        if escape.kind == "raise" and not self.outer.ended:
            return  # an error on its way to a handler: `_guard` weighs that
        if escape.handler is not None:
            yield from self._handler(escape, controls)
            return
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
        elif escape.kind == "continue" or (escape.kind == "return" and self._skips_a_turn(controls)):
            yield self._made(score - 8, Cause.DATA_BRANCH, escape.branch or escape.node, escape="continue")
        else:
            yield self._made(
                score, Cause.ESCAPE, escape.node, escape=escape.kind, by_rank=known and kind in _BY_RANK
            )

    def _handler(self, escape: Escape, controls: list[Control]) -> Iterator[Candidate]:
        """A way out of an except clause: the end of an iterator, or a swallowed error."""
        assert escape.handler is not None
        loop = next((c.node for c in reversed(controls) if c.is_loop), None)
        if _catches_errors(escape.handler):
            yield self._made(73 if self._same_turns() else 43, Cause.HANDLER, escape.handler)
        elif loop is not None and "StopIteration" in ast.unparse(escape.handler.type or ast.Constant(None)):
            ranks = (*self.inner.ranks, *self.outer.ranks)
            turns = loop_turns(self.world, self.frame.path, None, ranks, self.frame.function)
            short = self._ran_short(turns)
            counts = {rank: rows[-1][0] for rank, rows in turns.items()} if short else {}
            yield self._made(85 if short else 55, Cause.LOOP, loop, certain=bool(short), turns=counts)

    def _left_at(self, escape: Escape) -> bool:
        """True when the outer side was last seen at this very statement."""
        return any(
            frame.path == self.frame.path
            and escape.node.lineno <= frame.line <= (escape.node.end_lineno or 0)
            for frame in self.outer.site
        )

    def _skips_a_turn(self, controls: list[Control]) -> bool:
        """True when a return from this function leaves no loop in it, and a caller goes on with its next turn."""
        if self.outer.ended or any(control.is_loop for control in controls):
            return False
        callers = self.inner.site[: self.inner.site.index(self.frame)]
        trees = ((frame, read(frame.path).tree) for frame in callers)
        return any(
            control.is_loop
            for frame, tree in trees
            if tree is not None
            for control in places.chain(places.function_of(tree, frame), frame.line)
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


def _of_tensors(node: ast.stmt, seen: flow.Variation) -> bool:
    """True when the test of an if reads values of a tensor that differs because each rank computes on its own data,
    where all that the source shows is that the rank chose the data (a seed, a shard)."""
    if (
        not isinstance(node, ast.If)
        or seen.kind not in _BY_RANK
        or seen.ranks is not None
        or _names_rank(node)
    ):
        return False
    text = ast.unparse(node.test)
    return bool(NOT_FINITE.search(text)) or ".item()" in text


def _catches_errors(handler: ast.ExceptHandler) -> bool:
    """False for handlers of what is not an error of a step: an interrupt, the end of an iterator."""
    names = ast.unparse(handler.type) if handler.type is not None else ""
    return not names or any(
        name.strip(" ()").rpartition(".")[2]
        not in ("KeyboardInterrupt", "SystemExit", "StopIteration", "ImportError")
        for name in names.split(",")
    )


def loop_turns(
    world: World, path: str, line: int | None, ranks: tuple[int, ...], function: str = ""
) -> dict[int, list[tuple[int, bool]]]:
    """Turns of the loop whose iterable is drawn at `path`:`line` (None: anywhere in `function`), for each rank that
    the run counted them for: for each time that the loop was begun (batches drawn, True when it ran dry)."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for rank in ranks:
        state = world.ranks.get(rank)
        rows = [
            (int(row["drawn"]), bool(row["exhausted"]))
            for row in (state.facts.get("loaders", ()) if state else ())
            if any(
                frame.path == path
                and (frame.line == line if line is not None else frame.function == function)
                for frame in row["site"][-1:]
            )
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
