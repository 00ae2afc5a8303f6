"""The ranks on which a program is followed, all at once.

A program is followed as if three small worlds ran it side by side: one node with two processes, two nodes
with two, one node with three. Every process is a lane; a value that depends on the rank holds one value for
each lane, and a set of lanes is a bit mask. What differs between worlds but not inside one (the world size)
is not a difference between ranks, and what goes wrong in one world only says under which condition it
bites.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """One process of one world."""

    world: int
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_size: int
    nodes: int


SHAPES = ((1, 2), (2, 2), (1, 3))
"""(nodes, processes on each) of the worlds. The second tells ranks from local ranks, the third `rank != 0`
from `rank == 1`."""

LANES = tuple(
    Lane(world, node * size + local, local, node, nodes * size, size, nodes)
    for world, (nodes, size) in enumerate(SHAPES)
    for node in range(nodes)
    for local in range(size)
)
WORLDS = tuple(sum(1 << i for i, lane in enumerate(LANES) if lane.world == w) for w in range(len(SHAPES)))
"""The mask of each world."""
ALL = (1 << len(LANES)) - 1
"""The mask of every lane."""

MANY_NODES = WORLDS[1]
RANK_ZERO = sum(1 << i for i, lane in enumerate(LANES) if lane.rank == 0)
LOCAL_ZERO = sum(1 << i for i, lane in enumerate(LANES) if lane.local_rank == 0)


def indices(mask: int) -> list[int]:
    """The lanes in `mask`."""
    return [i for i in range(len(LANES)) if mask >> i & 1]


def even(mask: int, among: int = ALL) -> bool:
    """True when in every world all lanes of `among` are in `mask`, or none."""
    return all((part := mask & among & world) == 0 or part == among & world for world in WORLDS)


def per_local_rank(mask: int) -> bool:
    """True when `mask` selects processes by their local rank alone, the same ones on each node."""
    chosen = {(lane.world, lane.local_rank) for i, lane in enumerate(LANES) if mask >> i & 1}
    return all(
        bool(mask >> i & 1) == ((lane.world, lane.local_rank) in chosen) for i, lane in enumerate(LANES)
    )


@dataclass(frozen=True, slots=True)
class RankSet:
    """The ranks that a mask of lanes stands for."""

    mask: int

    def in_world(self, world: int) -> frozenset[int]:
        """The ranks of one of the worlds that are in the set."""
        return frozenset(
            lane.rank for i, lane in enumerate(LANES) if self.mask >> i & 1 and lane.world == world
        )

    @property
    def everyone(self) -> bool:
        """True for all ranks."""
        return self.mask == ALL

    @property
    def nobody(self) -> bool:
        """True for no rank."""
        return self.mask == 0

    @property
    def only_zero(self) -> bool:
        """True for rank 0 alone."""
        return self.mask == RANK_ZERO

    @property
    def all_but_zero(self) -> bool:
        """True for every rank except 0."""
        return self.mask == ALL & ~RANK_ZERO

    @property
    def by_node(self) -> bool:
        """True when it is chosen by local rank: one process, or some, of each node."""
        return 0 < self.mask < ALL and per_local_rank(self.mask)

    @property
    def known(self) -> frozenset[int]:
        """The ranks themselves, as far as the small worlds show them: {0} for `rank == 0`."""
        return frozenset().union(*(self.in_world(w) for w in range(len(SHAPES))))

    def __str__(self) -> str:
        if self.everyone:
            return "every rank"
        if self.only_zero:
            return "rank 0"
        if self.all_but_zero:
            return "every rank but 0"
        if self.by_node:
            first = self.mask == LOCAL_ZERO
            return "local rank 0 of each node" if first else "some local ranks of each node"
        return "ranks " + ", ".join(map(str, sorted(self.known))) if self.mask else "no rank"
