"""The dumps of a job together: the traces of its ranks, and its process groups.

A `JobTrace` of some ranks and one of others merge into that of all, in any order: so a job of any size can be read
in parts (`partition`). Columns that are equal on several ranks, as most are, are held once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...world import WORLD_GROUP
from .columns import Calls, RankTrace, Table

if TYPE_CHECKING:
    from ...findings import BlindSpot


@dataclass(slots=True)
class JobTrace:
    """What the dumps of some ranks of a job tell."""

    table: Table = field(default_factory=Table)
    ranks: dict[int, RankTrace] = field(default_factory=dict)
    blind_spots: list[BlindSpot] = field(default_factory=list)
    columns: dict[bytes, array[int]] = field(default_factory=dict)
    """Columns of calls by their bytes: most are those of several ranks."""
    endings: dict[bytes, bytearray] = field(default_factory=dict)
    """The same for which calls have ended."""

    def add(self, trace: RankTrace) -> None:
        """Adds a rank whose calls are numbered by this job's table."""
        for calls in (*trace.calls.values(), *trace.p2p.values()):
            calls.kinds = self.columns.setdefault(calls.kinds.tobytes(), calls.kinds)
            calls.done = self.endings.setdefault(bytes(calls.done), calls.done)
        self.ranks[trace.rank] = trace

    def merge(self, other: JobTrace) -> JobTrace:
        """Takes the ranks of `other` in; returns self. `other` is not to be used afterwards."""
        numbers = [self.table.number(call) for call in other.table.calls]
        renumbered: dict[int, array[int]] = {}
        for trace in other.ranks.values():
            for calls in (*trace.calls.values(), *trace.p2p.values()):
                old = calls.kinds
                new = renumbered.get(id(old))
                if new is None:
                    new = renumbered[id(old)] = array("I", [numbers[kind] for kind in old])
                calls.kinds = new
        for trace in other.ranks.values():
            self.add(trace)
        self.blind_spots += other.blind_spots
        return self


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """A process group, and the calls of those of its members whose dumps are at hand."""

    name: str
    description: str
    members: tuple[int, ...]
    known: bool
    """True when the dumps say who the members are, False when they were inferred from who made calls."""
    calls: dict[int, Calls]
    """The columns of every member whose dump is whole."""
    partial: dict[int, Calls]
    """The columns of members whose dump is cut off: what they called until then."""

    @property
    def unseen(self) -> tuple[int, ...]:
        """Members of whom the dumps do not tell how far they came."""
        return tuple(rank for rank in self.members if rank not in self.calls)


def world_size(job: JobTrace) -> int:
    """The number of ranks of the job, as far as the dumps tell."""
    listed = [max(g.ranks) for t in job.ranks.values() for g in t.groups.values() if g.ranks]
    return max([*listed, *job.ranks, _gathered(job)], default=-1) + 1


def _gathered(job: JobTrace) -> int:
    """The largest rank by the output of an all_gather in the default group, which holds a part of every rank."""
    largest = 0
    seen: set[int] = set()
    for trace in job.ranks.values():
        calls = trace.calls.get(WORLD_GROUP)
        if calls is None or id(calls.kinds) in seen:
            continue
        seen.add(id(calls.kinds))
        for kind in set(calls.kinds):
            call = job.table.calls[kind]
            if (
                call.op == "all_gather"
                and call.backend == "gloo"
                and len(call.output_sizes) == 1
                and call.output_sizes[0]
            ):
                largest = max(largest, call.output_sizes[0][0])
    return largest - 1


def groups(job: JobTrace) -> list[GroupTrace]:
    """The process groups of the job, the default group first."""
    members: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    descriptions: dict[str, str] = {}
    inferred: dict[str, list[int]] = {}
    for rank, trace in job.ranks.items():
        for name, config in trace.groups.items():
            descriptions.setdefault(name, config.description)
            if config.ranks and rank in config.ranks:
                members.setdefault((name, config.ranks), []).append(rank)
        for name in trace.calls.keys() | trace.p2p.keys():
            listed = trace.groups.get(name)
            if listed is None or listed.ranks is None or rank not in listed.ranks:
                inferred.setdefault(name, []).append(rank)
    found = [_group(job, name, descriptions.get(name, ""), ranks, True) for name, ranks in members]
    for name, ranks in inferred.items():
        if any(known == name for known, _ in members):
            continue  # some dumps tell its members and this one does not: nothing can be said of the difference
        everyone = range(world_size(job)) if name == WORLD_GROUP else sorted(ranks)
        found.append(_group(job, name, descriptions.get(name, ""), tuple(everyone), False))
    return sorted(found, key=lambda g: (g.name != WORLD_GROUP, -len(g.members), g.name, g.members))


def _group(job: JobTrace, name: str, description: str, members: tuple[int, ...], known: bool) -> GroupTrace:
    whole: dict[int, Calls] = {}
    partial: dict[int, Calls] = {}
    without: list[RankTrace] = []
    for rank in members:
        trace = job.ranks.get(rank)
        if trace is None or not trace.readable or not trace.numbered_apart(name):
            continue
        calls = trace.calls.get(name)
        if trace.problem is not None:
            if calls is not None:
                partial[rank] = calls
        elif calls is not None:
            whole[rank] = calls
        else:
            without.append(trace)
    held = [calls for calls in whole.values() if calls.times_ns]
    whole |= {trace.rank: _none_held(trace, name, held) for trace in without}
    return GroupTrace(name, description, members, known, whole, partial)


def _none_held(trace: RankTrace, name: str, others: list[Calls]) -> Calls:
    """The columns of a rank that holds no call of a group: it made none; or they have left its full buffer, which
    holds all of later times; or it dumped only calls that had not ended, and the status tells the last number."""
    last = trace.enqueued.get(name, 0) if not trace.p2p else 0
    if trace.overflowed:
        for calls in others:
            made = sum(1 for time in calls.times_ns if time <= trace.oldest_ns)
            last = max(last, calls.times_start + made - 1)
    return Calls(start=last + 1, times_start=last + 1)
