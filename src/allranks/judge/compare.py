"""Where the ranks of a group stopped making the same calls: the first position at which their histories differ.

Symptoms lie (gloo aborts the innocent rank, a launcher names whoever died first), so a verdict starts from the
first deviation between ranks and never from the first corpse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..world import SETUP, Group, History, Signature, World

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_SIZED = frozenset({"allreduce", "broadcast", "reduce", "allgather", "allgather_into", "reduce_scatter"})
"""Operations that need equal element counts on every rank (c10d documentation). gather and scatter hold lists on
the root only, all_to_all may split unevenly, objects carry their own sizes."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first position of one group at which its members differ.

    `calls` maps each member to the id of its call there; members that never made a call at this position are in
    `missing`. `mismatch` says what does not pair ("op", "reduce_op", "root", "dtype", "shape", "detail", "site") or
    is None when the only difference is that some ranks are missing. `time_ns` is when the first rank arrived.
    """

    group: Group
    position: int
    calls: dict[int, int]
    missing: tuple[int, ...]
    mismatch: str | None
    time_ns: int


def mismatch(one: Signature, other: Signature) -> str | None:
    """The first thing on which two calls do not pair, or None when they do. What is not known never differs."""
    if one.op != other.op:
        return "op"
    for name in ("reduce_op", "root", "dtype", "detail"):
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None and a != b:
            return name
    if one.op in _SIZED and one.shape is not None and other.shape is not None:
        return None if _elements(one.shape) == _elements(other.shape) else "shape"
    return None


def _elements(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    counts = []
    for shape in shapes:
        count = 1
        for size in shape:
            count *= size
        counts.append(count)
    return counts


def shared_groups(world: World) -> Iterator[Group]:
    """The groups on whose members every member agrees; a name that means different groups to different ranks is
    left to the group-membership rule."""
    by_name: dict[str, Group] = {}
    disputed: set[str] = set()
    for state in world.ranks.values():
        for name, group in state.groups.items():
            known = by_name.setdefault(name, group)
            if known.ranks != group.ranks:
                disputed.add(name)
    for name, group in by_name.items():
        if name not in disputed and len(group.ranks) > 1:
            yield group


def first_deviation(
    world: World, *, sites: bool = True, harmless: Container[frozenset[int]] = frozenset()
) -> Deviation | None:
    """The earliest deviation over all groups, by the time at which the first rank arrived there.

    With `sites`, calls that pair but were made by different statements count too ("site"), unless their ids stand
    in `harmless`: two calls swapped or one skipped pair by luck, and PyTorch computes garbage without a word.
    Positions that agree are noted in `world.compared` and not looked at again.
    """
    look = _Look(world, sites, harmless)
    found = [
        d for group in (*shared_groups(world), _setup(world)) if (d := look.deviation(group)) is not None
    ]
    return min(found, key=lambda d: (d.time_ns, d.group.name), default=None)


def _setup(world: World) -> Group:
    """The calls that make groups, as a group of all ranks: every rank must make every group."""
    return Group(SETUP, tuple(sorted(world.ranks)))


@dataclass(frozen=True, slots=True)
class _Look:
    world: World
    sites: bool
    harmless: Container[frozenset[int]]

    def deviation(self, group: Group) -> Deviation | None:
        """The first deviation of one group."""
        world = self.world
        seen = [r for r in group.ranks if r in world.ranks and world.ranks[r].seen()]
        members = {r: world.ranks[r].histories.get(group.name, History()) for r in seen}
        if not members:
            return None
        begin = max(world.compared.get(group.name, 0), *(history.start for history in members.values()))
        furthest = max(history.end for history in members.values())
        position = _first_difference(list(members.values()), begin, furthest)
        while position < furthest:
            if self.sites:
                world.compared[group.name] = position
            calls = {
                rank: kind for rank, history in members.items() if (kind := history.at(position)) is not None
            }
            missing = tuple(rank for rank in group.ranks if rank in members and rank not in calls)
            what = self._mismatch(list(calls.values()))
            if (what is not None or missing) and self._counts(group, calls):
                times = [
                    h.times_ns[position - h.start] for r, h in members.items() if r in calls and h.times_ns
                ]
                return Deviation(group, position, calls, missing, what, min(times, default=0))
            position = _first_difference(list(members.values()), position + 1, furthest)
        return None

    def _counts(self, group: Group, calls: dict[int, int]) -> bool:
        """Of the set-up calls only those that make a group must be made by all: ranks may end theirs one by one, and
        with use_local_synchronization only the members make a group."""
        if group.name != SETUP:
            return True
        made = [self.world.kinds[call].signature for call in calls.values()]
        return any(s.op in ("new_group", "split_group") for s in made) and not any(
            (s.detail or "").endswith("local") for s in made
        )

    def _mismatch(self, ids: list[int]) -> str | None:
        """What differs among the calls at one position; a signature that does not pair outweighs another statement."""
        distinct = list(dict.fromkeys(ids))
        kinds = [self.world.kinds[i] for i in distinct]
        for other in kinds[1:]:
            what = mismatch(kinds[0].signature, other.signature)
            if what is not None:
                return what
        differ = self.sites and len({kind.site for kind in kinds}) > 1
        return "site" if differ and frozenset(distinct) not in self.harmless else None


def _first_difference(histories: list[History], start: int, furthest: int) -> int:
    """The first position in start..furthest at which not all ids are equal (memory comparison of slices first)."""
    lead, rest = histories[0], histories[1:]
    shared = min(history.end for history in histories)
    low = start
    # Halving on equal slices finds the first difference with memcmp instead of a loop over calls.
    high = shared
    if all(
        h.kinds[low - h.start : high - h.start] == lead.kinds[low - lead.start : high - lead.start]
        for h in rest
    ):
        return max(start, min(shared, furthest))
    while high - low > 1:
        middle = (low + high) // 2
        same = all(
            h.kinds[low - h.start : middle - h.start] == lead.kinds[low - lead.start : middle - lead.start]
            for h in rest
        )
        low, high = (middle, high) if same else (low, middle)
    return low
