"""Digests of replicas compared: the first step, the parameter and the ranks that differ.

Only equal steps of the same part of an optimizer are compared, and only between ranks that all sampled it. Samples
that agree are dropped as soon as all ranks have told theirs, so that a long run costs the host nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..world import World

Sample = tuple[Any, ...]
GRADIENTS, VALUES, EACH_GRADIENT, EACH_VALUE, PATTERN = range(5)
"""Places in a sample: see `digests` in run/collect.py."""
KEEP = 16
"""Differing samples of one part that are kept: the first ones tell the cause."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One sample in which ranks do not agree. `what` is "gradients" or "parameters"; step 0 is before the first."""

    key: str
    step: int
    what: str
    ranks: tuple[int, ...]
    """Ranks that differ from most; all of them where no majority is right."""
    places: tuple[int, ...] = ()
    """Positions of the tensors that differ, where they are known."""


def ranks_of(world: World, key: str) -> tuple[int, ...]:
    """The ranks that have told samples of a part."""
    return tuple(sorted(r for r, s in world.ranks.items() if key in s.facts.get("digests", {})))


def keys(world: World) -> list[str]:
    """The parts that more than one rank has, in the order in which they came."""
    found = [key for state in world.ranks.values() for key in state.facts.get("digests", {})]
    return [key for key, count in Counter(found).items() if count > 1]


def settle(world: World) -> None:
    """Drops the samples that agree, and keeps the count."""
    for key in keys(world):
        members = [world.ranks[r].facts["digests"][key] for r in ranks_of(world, key)]
        shared = sorted(set(members[0]).intersection(*members[1:]))
        if not shared:
            continue
        apart = 0
        for step in shared:
            samples = [member[step] for member in members]
            if len({sample[VALUES] for sample in samples}) == 1 and step:
                _agreed(world, key, step)
            if len({sample[:2] for sample in samples}) > 1:
                apart += 1
                if apart <= KEEP:
                    continue
            for member in members:
                del member[step]
        for member in members:  # sampled by some only, and the others are past it
            for step in [step for step in member if step < shared[-1] and step not in shared]:
                del member[step]


def _agreed(world: World, key: str, step: int) -> None:
    for rank in ranks_of(world, key):
        world.ranks[rank].facts.setdefault("agreed", {})[key] = step


def differences(world: World, key: str, among: tuple[int, ...] = ()) -> list[Difference]:
    """All differing samples of a part that are held, by step, gradients before parameters; `among` these ranks."""
    ranks = [r for r in ranks_of(world, key) if not among or r in among]
    members = {r: world.ranks[r].facts["digests"][key] for r in ranks}
    found = []
    for step in sorted(set.intersection(*map(set, members.values()))) if members else ():
        samples = {rank: member[step] for rank, member in members.items()}
        for what, total, each in (
            ("gradients", GRADIENTS, EACH_GRADIENT),
            ("parameters", VALUES, EACH_VALUE),
        ):
            if len({sample[total] for sample in samples.values()}) > 1:
                found.append(Difference(key, step, what, *_apart(samples, total, each)))
    return found


def agreed(world: World, key: str) -> int:
    """The last step after which all ranks had the same parameters; 0 for none."""
    return max((s.facts.get("agreed", {}).get(key, 0) for s in world.ranks.values()), default=0)


def _apart(samples: dict[int, Sample], total: int, each: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ranks that differ from most, positions of the tensors that differ)."""
    votes = Counter(sample[total] for sample in samples.values())
    common, count = votes.most_common(1)[0]
    ranks = tuple(sorted(r for r, sample in samples.items() if sample[total] != common))
    if count * 2 <= len(samples):
        ranks = tuple(sorted(samples))
    details = [sample[each] for sample in samples.values()]
    if any(detail is None for detail in details):
        return ranks, ()
    return ranks, tuple(i for i, row in enumerate(zip(*details, strict=False)) if len(set(row)) > 1)
