"""Passes over loaders as the ranks made them, and the same pass on several ranks side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .observed import everywhere, rows

if TYPE_CHECKING:
    from ..world import RankState, Site
    from .case import Case

Place = tuple[tuple[str, int], ...]

VARIED = 4
"""Different values that a tensor must show before its equality on two ranks says anything."""


@dataclass(slots=True)
class Turn:
    """One pass of one rank over one loader, as far as it came."""

    rank: int
    number: int
    made: dict[str, Any]
    """The loader: class and length of its data set, its sampler, its workers, the split it reads."""
    drawn: int = 0
    samples: int = 0
    backwards: int = 0
    ended: bool = False
    digest: int = 0
    indices: list[Any] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    content: list[dict[str, Any]] = field(default_factory=list)
    seed: int | None = None
    draws_inside: list[int] = field(default_factory=list)
    site: Site = ()
    times: tuple[int, int] = (0, 0)
    """When the first and the last of its rows came, in ns."""

    @property
    def training(self) -> bool:
        """True when backward ran between its batches."""
        return self.backwards >= 1 and self.backwards * 2 >= self.drawn - 1

    @property
    def made_site(self) -> Site:
        """Where the loader was made."""
        return tuple(self.made.get("site", ()))

    @property
    def batch(self) -> int:
        """Samples in a batch."""
        return max(1, self.samples // max(1, self.drawn)) if self.samples else 0


def place_of(site: Site) -> Place:
    """A site as a key that is equal on all ranks."""
    return tuple((frame.path, frame.line) for frame in site)


def turns(state: RankState) -> list[Turn]:
    """The passes of one rank, oldest first."""
    loaders = {row["loader"]: row for row in rows(state, "loader")}
    found: dict[tuple[int, int], Turn] = {}
    for row in rows(state, "turn"):
        key = (row["loader"], row["turn"])
        turn = found.get(key)
        if turn is None:
            turn = found[key] = Turn(state.rank, row["turn"], loaders.get(row["loader"], {}))
            turn.times = (row["time"], row["time"])
            turn.site = row.get("site", ())
        for name in ("drawn", "samples", "backwards", "ended", "digest", "epochs", "seed", "draws_inside"):
            setattr(turn, name, row[name])
        turn.indices = row["indices"] or turn.indices
        turn.content = row["content"] or turn.content
        turn.times = (turn.times[0], row["time"])
    return list(found.values())


def paired(case: Case) -> list[dict[int, Turn]]:
    """Passes that are the same one on several ranks: the n-th over loaders made and gone through at equal lines."""
    found: dict[Any, dict[int, Turn]] = {}
    for rank, state in sorted(case.world.ranks.items()):
        count: Counter[Any] = Counter()
        for turn in turns(state):
            key = (place_of(turn.made_site), place_of(turn.site))
            found.setdefault((key, count[key]), {})[rank] = turn
            count[key] += 1
    return [group for group in found.values() if len(group) > 1]


def chances(case: Case) -> dict[tuple[int, int, int, int, str], dict[str, Any]]:
    """(rank, loader, turn, batch, where) -> generator: (state, place in it, numbers drawn)."""
    found = {}
    for rank, state in case.world.ranks.items():
        for row in rows(state, "chance"):
            found[rank, row["loader"], row["turn"], row["batch"], row["where"]] = row["drawn"]
    return found


def informative(content: list[dict[str, Any]]) -> list[int]:
    """The leaves of batches that say something: many values, and not the same ones in every batch."""
    leaves = [batch["leaves"] for batch in content]
    if not leaves:
        return []
    width = min(len(row) for row in leaves)
    return [
        i
        for i in range(width)
        if all(row[i][1] >= VARIED for row in leaves)
        and (len(leaves) == 1 or len({row[i][0] for row in leaves}) > 1)
    ]


def same_data(one: Turn, other: Turn) -> bool:
    """True when two ranks surely drew the same samples, batch for batch."""
    count = min(len(one.content), len(other.content))
    if not count or (count == 1 and min(one.drawn, other.drawn) > 1):
        return False
    mine, theirs = one.content[:count], other.content[:count]
    telling = sorted(set(informative(mine)) & set(informative(theirs)))
    equal = [
        i
        for i in telling
        if all(a["leaves"][i][0] == b["leaves"][i][0] for a, b in zip(mine, theirs, strict=True))
    ]
    if one.indices and other.indices:
        return bool(equal) and one.indices == other.indices
    return bool(equal) and equal == telling


def contents_by_index(turn: Turn) -> dict[Any, int]:
    """Index of a sample -> checksum of what was drawn for it."""
    return {index: digest for batch in turn.content for index, digest in batch["samples"]}


def data_parallel(case: Case) -> bool:
    """True when the ranks average what they learn, and no smaller groups share the work in other ways."""
    world = case.world
    inside = {kind.inside.split(".")[0] for kind in world.kinds.values() if kind.inside}
    if "DTensor" in inside or "pipeline" in inside:
        return False
    size = world.size or len(world.ranks)
    smaller = any(
        1 < len(group.ranks) < size and group.name in state.histories
        for state in world.ranks.values()
        for group in state.groups.values()
    )
    if smaller:
        return False
    reduced = any(rows(s, "reduced") or rows(s, "event", what="reduce") for s in world.ranks.values())
    return reduced or any(name in ("DDP", "FSDP", "ZeroRedundancyOptimizer") for name in inside)


# What is around the passes


def made_samplers(case: Case) -> list[dict[int, dict[str, Any]]]:
    """DistributedSamplers that are the same one on several ranks: the n-th made at equal lines."""
    groups: dict[Any, dict[int, dict[str, Any]]] = {}
    for rank, state in sorted(case.world.ranks.items()):
        count: dict[Any, int] = {}
        for row in rows(state, "sampler"):
            key = place_of(row.get("site", ()))
            groups.setdefault((key, count.get(key, 0)), {})[rank] = row
            count[key] = count.get(key, 0) + 1
    return list(groups.values())


def sampler_of(state: RankState, turn: Turn) -> dict[str, Any] | None:
    """The DistributedSampler that a pass draws from, if it does."""
    numbers = [one["sampler"] for one in turn.epochs if one["sampler"]]
    return next((row for row in rows(state, "sampler") if row["sampler"] in numbers), None)


def inputs(case: Case) -> dict[int, list[dict[str, Any]]]:
    """What the ranks gave their first wrapped model, in the first steps."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rank, row in everywhere(case, "input"):
        before = found.setdefault(rank, [])
        if row["number"] == len(before):
            before.append(row)
    return {rank: given for rank, given in found.items() if len(given) >= 3}


def seeded(case: Case, rank: int, kind: str) -> list[dict[str, Any]]:
    """Where the user's program seeded a generator, in order."""
    found = rows(case.world.ranks[rank], "seed", of=kind)
    return [row for row in found if row.get("site") and row["site"][-1].user]
