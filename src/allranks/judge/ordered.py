"""What a call that all ranks make puts in order: whether one rank's act surely came before another's."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ..world import SETUP

if TYPE_CHECKING:
    from ..world import World


def before(world: World, rank: int, ended_ns: int, other: int, began_ns: int) -> bool:
    """True when a collective lies between the end of what `rank` did and the beginning of what `other` did: `rank`
    entered it afterwards, and `other` before."""
    mine, theirs = world.ranks[rank], world.ranks[other]
    for name, history in mine.histories.items():
        opposite = theirs.histories.get(name)
        if name == SETUP or opposite is None or not history.times_ns or not opposite.times_ns:
            continue
        position = history.start + bisect_left(history.times_ns, ended_ns)
        if name.endswith("/p2p"):
            if history.times_ns[-1] >= ended_ns and bisect_left(opposite.times_ns, began_ns):
                return True
            continue
        index = position - opposite.start
        if (
            position < history.end
            and 0 <= index < len(opposite.times_ns)
            and opposite.times_ns[index] <= began_ns
        ):
            return True
    return False


def apart(world: World, one: int, one_ns: tuple[int, int], other: int, other_ns: tuple[int, int]) -> bool:
    """True when something orders two acts, each given by its beginning and end."""
    return before(world, one, one_ns[1], other, other_ns[0]) or before(
        world, other, other_ns[1], one, one_ns[0]
    )
