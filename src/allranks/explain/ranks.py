"""Which ranks an incident belongs to, as far as the log tells, and how they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Text, say

if TYPE_CHECKING:
    from collections.abc import Collection

    from .launcher import Launch
    from .match import Incident


def ranks_of(incident: Incident, launch: Launch) -> tuple[int, ...]:
    """The ranks on which it happened. Where the lines bear no rank, the launcher's table names them when it leaves
    no choice: one process failed by itself, or as many as printed this."""
    if incident.ranks:
        return tuple(sorted(incident.ranks))
    if incident.locals and (launch.nodes or 1) == 1 and not incident.nodes:
        return tuple(sorted(incident.locals))
    failed = sorted(
        {one.rank for one in launch.exits if one.rank is not None and one.status and not one.ended}
    )
    if incident.unknown and (len(failed) == 1 or len(failed) == incident.count):
        return tuple(failed)
    return ()


def named(ranks: Collection[int]) -> Text:
    """ "rank 3", "ranks 0-3, 7", or "a rank" where it is not known which."""
    ordered = sorted(ranks)
    if not ordered:
        return say("a rank")
    if len(ordered) == 1:
        return say("rank {rank}", rank=ordered[0])
    return say("ranks {ranks}", ranks=spans(ordered))


def spans(ordered: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    parts: list[list[int]] = []
    for rank in ordered:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(
        str(first) if first == last else f"{first}-{last}" if last > first + 1 else f"{first}, {last}"
        for first, last in parts
    )
