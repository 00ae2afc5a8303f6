"""Where the ranks stand at the end of their dumps: who waits in which call, and who is not in it.

A rank waits in the earliest of its calls that has not ended. Of a collective that some members wait in and others
have not made, the latter are what it waits for; if they wait elsewhere themselves, that is the cause, and so on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .columns import Calls
    from .job import GroupTrace, JobTrace

_PEERS = re.compile(r"^(send|recv) (\d+)(->|<-)(\d+)$")
LATE_NS = 1_000_000_000
"""How much later than the others a rank must come to a call, for the lateness to be worth a word."""
_ENOUGH = 8
"""Positions that it takes to know a rank's usual distance from the others."""
_TYPICAL = 64
"""Positions before a call that tell a rank's usual distance from the others, which includes that of its clock."""


@dataclass(slots=True)
class Gathering:
    """A collective that ranks wait in: the first in its group that has not ended for some rank."""

    group: GroupTrace
    position: int
    waiting: tuple[int, ...]
    lacking: tuple[int, ...] = ()
    """Members that have not made the call, by dumps that are whole."""
    unseen: tuple[int, ...] = ()
    """Members of whom the dumps do not tell."""
    ended: bool = False
    """True where nobody waits any more: the call ended for those who made it, well or by an error (gloo)."""
    late: dict[int, int] = field(default_factory=dict)
    """Where all are in the call: by how many ns a rank came later than it uses to, if that is much."""
    causes: set[int] = field(default_factory=set)
    """Indexes of the standstills in which the lacking ranks wait themselves, where all of them do."""
    stopped: tuple[int, ...] = ()
    """The lacking ranks that wait nowhere."""

    @property
    def needed(self) -> tuple[int, ...]:
        """The ranks that must act."""
        return self.lacking


@dataclass(slots=True)
class Exchange:
    """A point-to-point call that `rank` waits in, and that `peer` has not answered."""

    group: GroupTrace
    rank: int
    peer: int
    sending: bool
    kind: int
    mismatched: int | None = None
    """The call with which the peer answered, of another size."""
    late: dict[int, int] = field(default_factory=dict)
    causes: set[int] = field(default_factory=set)
    stopped: tuple[int, ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        """The rank that waits."""
        return (self.rank,)

    @property
    def needed(self) -> tuple[int, ...]:
        """The rank that must act."""
        return (self.peer,)


Standstill = Gathering | Exchange


def standstills(job: JobTrace, groups: list[GroupTrace]) -> list[Standstill]:
    """Everything that ranks wait for, with what causes what."""
    found: list[Standstill] = [g for group in groups if (g := _gathering(group)) is not None]
    found += _exchanges(job, groups)
    where: dict[int, set[int]] = {}
    for index, still in enumerate(found):
        for rank in still.waiting:
            where.setdefault(rank, set()).add(index)
    first = {rank: min(at, key=lambda i: _since(job, found[i], rank)) for rank, at in where.items()}
    for index, still in enumerate(found):
        still.stopped = tuple(rank for rank in still.needed if rank not in first)
        # A rank that waits nowhere has stopped by itself: then this is a beginning, whatever the others wait for.
        if not still.stopped:
            still.causes = {first[rank] for rank in still.needed} - {index}
    return found


def since(job: JobTrace, still: Standstill) -> int:
    """When the first rank began to wait, Unix time in ns."""
    return min((_since(job, still, rank) for rank in still.waiting), default=0)


def circle(found: list[Standstill], start: int) -> list[int]:
    """The indexes on a circle of causes that `start` leads to; empty when it leads to a beginning."""
    path: list[int] = []
    index = start
    while index not in path:
        path.append(index)
        if not found[index].causes:
            return []
        index = min(found[index].causes)
    return path[path.index(index) :]


def _since(job: JobTrace, still: Standstill, rank: int) -> int:
    lanes = job.ranks[rank].p2p if isinstance(still, Exchange) else job.ranks[rank].calls
    calls = lanes.get(still.group.name)
    pending = calls.pending() if calls is not None else None
    return calls.time_at(pending) if calls is not None and pending is not None else 0


def _gathering(group: GroupTrace) -> Gathering | None:
    pending: dict[int, list[int]] = {}
    for rank, calls in group.calls.items():
        position = calls.pending()
        if position is not None:
            pending.setdefault(position, []).append(rank)
    for position in sorted(pending):
        lacking = tuple(rank for rank, calls in group.calls.items() if calls.end <= position)
        waiting = tuple(
            rank for rank, calls in group.calls.items() if calls.end > position and rank not in lacking
        )
        over = any(calls.end > position and _ended(calls, position) for calls in group.calls.values())
        if lacking:
            return Gathering(group, position, waiting, lacking, _unseen(group, position))
        if over:
            continue  # it ended for others, so all have been in it: these have not noticed yet
        unseen = _unseen(group, position)
        late = {} if unseen else _late(group, position)
        return Gathering(group, position, waiting, (), unseen, late=late)
    return all_ended(group)


def _ended(calls: Calls, position: int) -> bool:
    index = position - calls.start
    return index < 0 or bool(calls.done[index])


def all_ended(group: GroupTrace) -> Gathering | None:
    """On gloo a call that timed out looks like one that ended well. If some ranks have made one or two more calls
    than others, that is what a hang looks like once it is over."""
    ends = {rank: calls.end for rank, calls in group.calls.items()}
    if not ends or not any(calls.ends_unsaid for calls in group.calls.values()):
        return None
    position, front = min(ends.values()), max(ends.values())
    if not 0 < front - position <= 2:
        return None
    lacking = tuple(rank for rank, end in ends.items() if end == position)
    waiting = tuple(rank for rank, end in ends.items() if end > position)
    return Gathering(group, position, waiting, lacking, _unseen(group, position), ended=True)


def _unseen(group: GroupTrace, position: int) -> tuple[int, ...]:
    return tuple(r for r in group.unseen if r not in group.partial or group.partial[r].end <= position)


def skewed(group: GroupTrace) -> bool:
    """True when all calls of a group have ended well and yet some ranks made fewer: their dumps are older."""
    ends = {calls.end for calls in group.calls.values()}
    return len(ends) > 1 and all(calls.pending() is None for calls in group.calls.values())


def _late(group: GroupTrace, position: int) -> dict[int, int]:
    """By how much each rank came later to the call at `position` than it uses to, where that is much."""
    late = lateness(group.calls, position)
    most = max(late.values(), default=0)
    return (
        {rank: ns for rank, ns in late.items() if most >= LATE_NS and 2 * ns >= most} if len(late) > 1 else {}
    )


def lateness(members: dict[int, Calls], position: int) -> dict[int, int]:
    """How much later than the others, compared with what it was before, each rank made the call at `position`, in ns.
    Comparing takes out a clock that is set differently. Empty where times are not known."""
    begin = max((calls.times_start for calls in members.values()), default=position)
    before = range(max(begin, position - _TYPICAL), position)
    middles = {p: _middle(members, p) for p in (*before, position)}
    found = {}
    for rank, calls in members.items():
        usual = [calls.time_at(p) - middles[p] for p in before if calls.time_at(p) and middles[p]]
        if not calls.time_at(position) or not middles[position]:
            continue
        found[rank] = calls.time_at(position) - middles[position] - int(median(usual) if usual else 0)
    return found


def stragglers(group: GroupTrace) -> tuple[int, dict[int, int]]:
    """The position to which ranks came latest, of those whose times are kept, and by how many ns; nobody when no one
    was late. The lateness of a rank is compared with its own usual distance from the others."""
    members = {rank: calls for rank, calls in group.calls.items() if calls.times_ns}
    begin = max((calls.times_start for calls in members.values()), default=0)
    end = min((calls.end for calls in members.values()), default=0)
    positions = range(begin, end)
    if len(members) < 2 or len(positions) < _ENOUGH:
        return 0, {}
    middles = [_middle(members, position) for position in positions]
    worst: dict[int, tuple[int, int]] = {}
    for rank, calls in members.items():
        times = calls.times_ns[begin - calls.times_start : end - calls.times_start]
        apart = [time - middle if time else 0 for time, middle in zip(times, middles, strict=True)]
        usual = int(median(apart))
        late = max(apart)
        worst[rank] = (late - usual, positions[apart.index(late)])
    most, position = max(worst.values())
    if most < LATE_NS:
        return 0, {}
    return position, {rank: ns for rank, (ns, at) in worst.items() if at == position and 2 * ns >= most}


def _middle(members: dict[int, Calls], position: int) -> int:
    times = [time for calls in members.values() if (time := calls.time_at(position))]
    return int(median(times)) if times else 0


def _exchanges(job: JobTrace, groups: Iterable[GroupTrace]) -> list[Standstill]:
    """Point-to-point calls that have not ended and that the peer has not answered, one for each pair of ranks."""
    found: list[Standstill] = []
    for group in groups:
        open_calls = {rank: _open_calls(job, group, rank) for rank in group.members if rank in job.ranks}
        for rank, mine in open_calls.items():
            for (sending, peer), kinds in mine.items():
                theirs = open_calls.get(peer, {}).get((not sending, rank), [])
                if len(kinds) > len(theirs):
                    found.append(Exchange(group, rank, peer, sending, kinds[len(theirs)]))
                elif sending and (odd := _other_size(job, kinds, theirs)) is not None:
                    found.append(Exchange(group, rank, peer, sending, kinds[odd], theirs[odd]))
    return found


def _open_calls(job: JobTrace, group: GroupTrace, rank: int) -> dict[tuple[bool, int], list[int]]:
    """The sends and receives of a rank that have not ended, by (is it a send, the other rank)."""
    found: dict[tuple[bool, int], list[int]] = {}
    calls = job.ranks[rank].p2p.get(group.name)
    if calls is None:
        return found
    for index in range(len(calls.kinds)):
        if calls.done[index]:
            continue
        peers = _PEERS.match(job.table.calls[calls.kinds[index]].op)
        if peers is not None:
            other = int(peers[4])  # "send 0->1" of rank 0, "recv 1<-0" of rank 1: ranks in the group
            peer = group.members[other] if group.known and other < len(group.members) else other
            found.setdefault((peers[1] == "send", peer), []).append(calls.kinds[index])
    return found


def _other_size(job: JobTrace, sends: list[int], receives: list[int]) -> int | None:
    for index, (send, receive) in enumerate(zip(sends, receives, strict=False)):
        one, other = job.table.calls[send], job.table.calls[receive]
        if (
            one.input_sizes
            and other.output_sizes
            and (one.input_sizes, one.input_dtypes)
            != (
                other.output_sizes,
                other.output_dtypes,
            )
        ):
            return index
    return None
