"""The statement at which two ranks parted, from where they last agreed and where they stand now.

Both sides made the same calls up to some position; then one made a call that the other did not. The stacks of
that moment share their outer frames. In the deepest shared function, and in the functions that only one side is
in, each control statement around the call, and each way past it, is a candidate. A candidate is weighed by how
its test can differ between ranks (source analysis) and by what the run itself showed: an exception that was
handled, loaders that ran dry, the line at which a rank left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..source.files import read
from . import places
from .weigh import Candidate, Cause, Side, Weigher, loop_turns

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from ..source.program import Program
    from ..world import ExceptionInfo, Frame, Site, World
    from .places import Control


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


def part(world: World, program: Program, one: Side, other: Side, before: Site = ()) -> Parting:
    """The statement that parted `one` and `other`; `before` is the site of the last call on which they agreed."""
    depth = _shared_depth(one.site, other.site)
    found: list[Candidate] = []
    if depth >= 0:
        arms = _opposite_arms(one, other, depth)
        if arms is not None:
            return arms
        if one.site == other.site:
            frame = one.site[-1]
            return Parting(Cause.SAME_LINE, one, other, frame, _statement(frame), certain=True)
    near = _nearer(world, one, other, depth, before)
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


def _nearer(world: World, one: Side, other: Side, depth: int, before: Site) -> Side | None:
    """The side whose call comes first in program order after the last agreed call: the other side passed it by.
    None when that cannot be told."""
    for side, rest in ((one, other), (other, one)):
        if side.ended and side.kind is None:
            return rest  # it left: that is what it did instead of the other side's call
        if not side.site:
            return rest
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
    for side, rest in ((one, other), (other, one)):
        inner = _common_loop(_chain(before[depth]), _chain(side.site[depth]))
        if inner is not None and inner is not loop:
            return _of_inner_loop(world, side, rest, side.site[depth].path, inner.lineno)
    # Lines after the last agreed call come in this turn of the loop, the rest in the next one.
    return min((one, other), key=lambda side: _distance(side.site, before, depth))


def _of_inner_loop(world: World, side: Side, rest: Side, path: str, line: int) -> Side | None:
    """`side` is in a loop inside the shared one, as both were at the last agreed call. Either it makes one more turn
    of it than `rest`, or it has begun it anew and `rest` has made an extra call in between."""
    turns = loop_turns(world, path, line, (*side.ranks, *rest.ranks))
    mine = [len(turns[r]) for r in side.ranks if r in turns]
    theirs = [len(turns[r]) for r in rest.ranks if r in turns]
    if not mine or not theirs:
        return None
    return rest if max(mine) > max(theirs) else side


def _distance(site: Site, before: Site, depth: int) -> tuple[int, int]:
    line, last = site[depth].line, before[depth].line
    this_turn = line > last or (line == last and _continues(before, site, depth))
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


def _candidates(world: World, program: Program, inner: Side, outer: Side, depth: int) -> Iterator[Candidate]:
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
        weigh = Weigher(world, program, inner, outer, frame, index == depth)
        for control in outside:
            yield from weigh.control(control, places.is_wrapper(tree, function, frame.line))
        for escape in places.escapes(function, frame.line):
            yield from weigh.escape(escape, controls)
        for node in places.tries(function, frame.line):
            yield from weigh.swallowed(node)
