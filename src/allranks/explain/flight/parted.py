"""Which statement parted the ranks, where the program's source is at hand.

The dumps tell at which call the ranks part; a few ranks of each side and their last calls make a `World`, and the
judge of live runs reads the source around the two places. Thousands of ranks are not needed for that.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...findings import Confidence, Evidence, Finding, say
from ...world import CallKind, Frame, Group, History, RankState, Signature, Wait, World
from .agreement import inside, operation, user_lines

if TYPE_CHECKING:
    from .columns import Call, Calls, CodeLine
    from .job import GroupTrace, JobTrace

_RANKS = 3
"""Ranks of each side that stand for all."""
_LARGEST_SOURCE = 4 * 1024 * 1024
_CALLS = 256
"""Calls before the deviation that the judge sees."""
_OUT_OF_STEP = frozenset(
    {
        "rank-conditional-collective", "hidden-collective", "early-exit", "swallowed-exception",
        "data-dependent-collective", "uneven-iterations", "backward-rank-conditional", "collective-order",
        "collective-shape",
    }
)  # fmt: skip
_OPERATIONS = {
    "all_reduce": "allreduce", "all_reduce_barrier": "barrier", "_all_gather_base": "allgather_into",
    "all_gather_into_tensor_coalesced": "allgather_into", "all_gather_single": "allgather_into",
    "all_gather": "allgather", "_reduce_scatter_base": "reduce_scatter", "all_to_all": "alltoall",
    "_broadcast_oop": "broadcast", "_reduce_oop": "reduce",
}  # fmt: skip
"""The recorder's names and c10d's, which the judge knows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks part: `sides` did different things at `position`, those in `stopped` made no call there."""

    group: GroupTrace
    position: int
    sides: tuple[tuple[int, ...], ...]
    stopped: tuple[int, ...] = ()


def sharpened(job: JobTrace, finding: Finding, place: Place, root: Path) -> Finding:
    """`finding` with the statement that parted the ranks, where the source is at hand and tells."""
    found = _parted(job, place, root)
    if found is None:
        return finding
    few = 2 * len(place.stopped) < len(place.group.calls)
    if place.stopped and few and not set(found.ranks) <= set(place.stopped):
        # A few ranks stopped for good, and the source suggests a branch that the many took: a hint, no more.
        title = say("the source suggests: {message}", message=found.message)
        hint = Evidence("source", title, (), found.ranks, found.location)
        return replace(finding, evidence=(*finding.evidence, hint))
    return replace(found, severity=finding.severity, evidence=finding.evidence + found.evidence)


def _parted(job: JobTrace, place: Place, root: Path) -> Finding | None:
    chosen = [side[:_RANKS] for side in place.sides if side]
    calls = {rank: place.group.calls[rank] for side in chosen for rank in side if rank in place.group.calls}
    files = _Files(root)
    world = _world(job, place, calls, files)
    if not files.found or len(calls) < 2:
        return None
    from ...judge import judge  # it reads and analyses source: not needed where there is none

    try:
        found = next((f for f in judge(world, final=True) if f.location is not None), None)
    except Exception:
        return None  # a verdict from the dumps stands with or without the source
    if found is None or found.fault not in _OUT_OF_STEP or not found.severity.loud:
        return None
    ranks = {rank for side in place.sides if not set(found.ranks).isdisjoint(side) for rank in side}
    return replace(found, ranks=tuple(sorted(ranks)), confidence=Confidence.INFERRED)


def last_call(job: JobTrace, rank: int) -> Call | None:
    """What a rank called last, in whatever group; None when its dump holds no call."""
    trace = job.ranks.get(rank)
    held = [c for c in (*trace.calls.values(), *trace.p2p.values()) if c.kinds] if trace is not None else []
    latest = max(held, key=lambda calls: calls.time_at(calls.end - 1), default=None)
    return job.table.calls[latest.kinds[-1]] if latest is not None else None


class _Files:
    """Finds the source of a frame: where it was recorded, or below the root by the end of its path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[str, str | None] = {}

    @property
    def found(self) -> bool:
        """True when any source is at hand."""
        return any(self.known.values())

    def path(self, line: CodeLine) -> str:
        """The path to read for a recorded one: itself where there is no such file."""
        if line.path not in self.known:
            self.known[line.path] = self._search(line)
        return self.known[line.path] or line.path

    def _search(self, line: CodeLine) -> str | None:
        recorded = Path(line.path)
        if recorded.suffix != ".py":
            return None
        below = [self.root.joinpath(*recorded.parts[first:]) for first in range(1, len(recorded.parts))]
        return next((str(path) for path in (recorded, *below) if _fits(path, line)), None)


def _fits(path: Path, line: CodeLine) -> bool:
    """True when the file can be the one that ran: it has such a line, and a function of that name."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return False
        text = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return text.count("\n") + 1 >= line.line and (
        not line.function.isidentifier() or f"def {line.function}" in text
    )


def _world(job: JobTrace, place: Place, calls: dict[int, Calls], files: _Files) -> World:
    group, position, stopped = place.group, place.position, place.stopped
    members = tuple(sorted(calls))
    world = World(size=len(members), root=str(files.root))
    # What a rank that stopped did last may have been in another group: that, then, is where the ranks still agreed.
    last = last_call(job, stopped[0]) if stopped else None
    before = job.table.numbers.get(last) if last is not None else None
    known = Group(group.name, members, group.description)
    for rank in members:
        column = calls[rank]
        begin = max(column.start, position - _CALLS)
        end = max(begin, min(column.end, position + 1))
        kinds = [column.at(p) or 0 for p in range(begin, end)]
        if before is not None and begin < position <= column.end:
            kinds[position - 1 - begin] = before
        for kind in kinds:
            if kind not in world.kinds:
                world.kinds[kind] = _kind(job.table.calls[kind], files)
        history = History(
            begin, array("Q", kinds), array("Q", [max(0, column.time_at(p)) for p in range(begin, end)])
        )
        state = RankState(rank, state="exited", groups={group.name: known}, histories={group.name: history})
        if rank not in stopped and kinds:
            peers = tuple(other for other in members if other != rank)
            state.state = "blocked"
            state.wait = Wait(
                "collective", group.name, position, kinds[-1], peers, max(0, column.time_at(position))
            )
            state.stack = world.kinds[kinds[-1]].site
        world.ranks[rank] = state
    return world


def _kind(call: Call, files: _Files) -> CallKind:
    frames = tuple(Frame(files.path(line), line.line, line.function) for line in reversed(user_lines(call)))
    sizes, types = (
        (call.input_sizes, call.input_dtypes) if call.input_sizes else (call.output_sizes, call.output_dtypes)
    )
    op = operation(call)
    signature = Signature(_OPERATIONS.get(op, op), dtype=types[0] if types else None, shape=sizes or None)
    within = inside(call)
    return CallKind(signature, frames, hidden=bool(within), inside=within)
