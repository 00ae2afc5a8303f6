"""All that the rules of the judge look at for one verdict: the world, the deviation, the parting, the dead set."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..findings import Evidence, Location, Text, say
from .waits import DeadSet
from .weigh import Cause, Side

if TYPE_CHECKING:
    from ..source.program import Program
    from ..world import CallKind, Frame, RankState, Site, World
    from .compare import Deviation
    from .failures import Failure
    from .parting import Parting


@dataclass(slots=True)
class Case:
    """The facts of one verdict. Rules read it and never change it."""

    world: World
    program: Program
    dead: DeadSet = field(default_factory=DeadSet)
    deviation: Deviation | None = None
    parting: Parting | None = None
    failures: list[Failure] = field(default_factory=list)
    final: bool = False
    stall_s: float = 60.0

    def place(
        self, frame: Frame, line: int | None = None, *, role: Text | None = None, ranks: tuple[int, ...] = ()
    ) -> Location:
        """The location of a frame, its path relative to the job's folder where it lies below it."""
        return Location(
            self.path(frame.path), line or frame.line, function=frame.function, role=role, ranks=ranks
        )

    def path(self, path: str) -> str:
        """`path` as the user would write it: relative to the folder the job ran in where it lies below it."""
        root = self.world.root
        if root and path.startswith(root.rstrip("/") + "/"):
            return os.path.relpath(path, root)
        return path

    def stack_lines(self, site: Site) -> tuple[str, ...]:
        """A stack as text, outermost first: `train.py:63 main`."""
        return tuple(f"{self.path(f.path)}:{f.line} {f.function}" for f in site)

    def stand(self, side: Side) -> Evidence:
        """Where a side stands: the evidence of a parting."""
        ranks = ranks_text(side.ranks)
        if side.kind is not None:
            title = say("{ranks} called {call}", ranks=ranks, call=describe(side.kind))
        elif side.ended:
            title = say("{ranks} ended", ranks=ranks)
        else:
            title = say("{ranks} was elsewhere", ranks=ranks)
        return Evidence("stack", title, self.stack_lines(side.site), side.ranks)

    def cycle(self) -> Evidence | None:
        """The circle of ranks that wait for each other, or the chain that ends at one that is gone."""
        ranks = self.dead.cycle()
        if len(ranks) < 2:
            return None
        lines = [self._waits((waiter,), peer) for waiter, peer in itertools.pairwise(ranks)]
        outside: dict[tuple[str, int], list[int]] = {}
        told = set(ranks)
        for edge in self.dead.edges:
            if edge.peer in ranks and edge.waiter not in told:
                told.add(edge.waiter)
                outside.setdefault((self._inside(edge.waiter), edge.peer), []).append(edge.waiter)
        lines += [self._waits(tuple(waiters), peer) for (_, peer), waiters in outside.items()]
        return Evidence("cycle", say("who waits for whom"), tuple(lines), tuple(dict.fromkeys(ranks)))

    def _waits(self, waiters: tuple[int, ...], peer: int) -> str:
        gone = " (gone)" if peer in self.dead.gone else ""
        return f"{ranks_text(waiters)} in {self._inside(waiters[0])} -> rank {peer}{gone}"

    def _inside(self, rank: int) -> str:
        """What a blocked rank waits in."""
        wait = self.world.ranks[rank].wait
        if wait is None:
            return "?"
        kind = self.world.kind(wait.call)
        return describe(kind) if kind is not None else wait.detail or wait.kind

    def calls(self, rank: int, count: int = 5) -> Evidence | None:
        """The last calls of one rank before the deviation."""
        if self.deviation is None:
            return None
        history = self.world.ranks[rank].histories.get(self.deviation.group.name)
        if history is None:
            return None
        first = max(history.start, self.deviation.position - count + 1)
        lines = []
        for position in range(first, min(history.end, self.deviation.position + 1)):
            kind = self.world.kind(history.at(position))
            if kind is not None:
                where = f"{self.path(kind.site[-1].path)}:{kind.site[-1].line}" if kind.site else "?"
                lines.append(f"#{position} {describe(kind)} at {where}")
        return Evidence("calls", say("the last calls of rank {rank}", rank=rank), tuple(lines), (rank,))


def side_of(world: World, ranks: tuple[int, ...], call: int | None) -> Side:
    """Where `ranks`, which stand together, are: at the call with id `call`, or wherever the first of them is."""
    kind = world.kind(call)
    if kind is not None:
        return Side(ranks, kind.site, kind)
    state = world.ranks[ranks[0]]
    return Side(ranks, whereabouts(world, state), _blocked_in(world, state), ended=state.state == "exited")


def _blocked_in(world: World, state: RankState) -> CallKind | None:
    return world.kind(state.wait.call) if state.state == "blocked" and state.wait is not None else None


def whereabouts(world: World, state: RankState) -> Site:
    """The user frames at which a rank stands or ended, outermost first; empty where it ran to its end unseen."""
    if state.exit is not None and state.exit.exception is not None:
        return user_frames(state.exit.exception.frames)
    blocked = _blocked_in(world, state)
    if blocked is not None:
        return blocked.site
    if state.state == "exited":
        if state.facts.get("exit_site"):
            return user_frames(tuple(state.facts["exit_site"]))
        setup = state.histories.get("0/setup")
        last = world.kind(setup.kinds[-1]) if setup is not None and setup.kinds else None
        return last.site if last is not None and last.signature.op == "destroy_process_group" else ()
    if state.stack_is_old():
        last = world.kind(state.last_call())
        return last.site if last is not None else ()
    return user_frames(state.stack)


def user_frames(frames: tuple[Frame, ...]) -> Site:
    """The frames of user code, or all of them when none is."""
    return tuple(f for f in frames if f.user) or frames


def describe(kind: CallKind, *, reduction: bool = False) -> str:
    """A call in a few words: `all_reduce of float32 [10]`, `DDP.backward (all_reduce of float32 [641])`. The ReduceOp
    is told where it is not the default, or where `reduction` asks for it."""
    signature = kind.signature
    words = signature.op
    if signature.reduce_op and (reduction or signature.reduce_op != "SUM"):
        words += f" ({signature.reduce_op})"
    if signature.dtype or signature.shape:
        shape = " ".join(str(list(s)) for s in (signature.shape or ())[:3])
        words += f" of {signature.dtype or '?'} {shape}".rstrip()
    if signature.root is not None:
        words += (
            f" from rank {signature.root}" if signature.op == "broadcast" else f" at rank {signature.root}"
        )
    if signature.peer is not None:
        words += f" {'to' if signature.op == 'send' else 'from'} rank {signature.peer}"
    if signature.tag:
        words += f" with tag {signature.tag}"
    return f"{kind.inside} ({words})" if kind.hidden and kind.inside else words


def ranks_text(ranks: tuple[int, ...]) -> Text:
    """Ranks in words: "rank 2", "ranks 0, 1", "ranks 0-7 and 9"."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return say("rank {rank}", rank=ordered[0])
    runs: list[str] = []
    start = previous = ordered[0] if ordered else 0
    for rank in [*ordered[1:], None]:
        if rank is not None and rank == previous + 1:
            previous = rank
            continue
        runs.append(
            str(start)
            if start == previous
            else f"{start}, {previous}"
            if previous == start + 1
            else f"{start}-{previous}"
        )
        if rank is not None:
            start = previous = rank
    return say("ranks {ranks}", ranks=", ".join(runs))


def at_fault(case: Case) -> tuple[int, ...]:
    """The ranks that deviated. Whoever left, skipped or swallowed; for a call inside a branch on the rank those
    inside; for a test on data the smaller side, since most ranks did what the program usually does. Ranks that made
    the very call before and now did not have skipped it."""
    parting = case.parting
    assert parting is not None
    inner, outer = parting.inner.ranks, parting.outer.ranks
    if parting.cause in (Cause.ESCAPE, Cause.HANDLER, Cause.LOOP):
        return outer
    skipped = _made_before(case, outer[0])
    if parting.cause is Cause.RANK_BRANCH:
        return outer if skipped else inner
    if len(inner) != len(outer):
        return min(inner, outer, key=len)
    if parting.cause is Cause.DATA_BRANCH:
        return outer if skipped or parting.escape == "continue" else inner
    return (*inner, *outer)  # two that disagree: neither is the rule


def _made_before(case: Case, rank: int) -> bool:
    """True when the outer side's `rank` made the inner side's call, from the same place, earlier in the run."""
    parting, deviation = case.parting, case.deviation
    if parting is None or deviation is None or parting.inner.kind is None:
        return False
    history = case.world.ranks[rank].histories.get(deviation.group.name)
    if history is None:
        return False
    earlier = history.kinds[: max(0, deviation.position - history.start)]
    return any(case.world.kinds[call] == parting.inner.kind for call in set(earlier))
