"""Waste: ranks that wait for one of theirs in every step, and barriers that order nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ...findings import Evidence, Finding, Location, say
from ...world import SETUP
from ..case import Case, describe, ranks_text
from ..observed import everywhere, rows
from ..turns import place_of
from . import Rules, found

if TYPE_CHECKING:
    from ...world import CallKind, History, RankState, Site

RULES = Rules()

OFTEN = 8
"""Fewer barriers than this say nothing."""
STEPS = 20
"""Fewer steps than this do not make a straggler."""
MOSTLY = 0.65
"""The share of the steps in which a straggler is the last."""
OTHERS = 0.25
"""What all other ranks may be late by, as a share of what the straggler is."""
SHARE = 0.25
"""The share of the time that the others must lose."""
LATE_NS = 1_000_000
LOST_NS = 150_000_000
"""Less than this, in a step and in all, is noise."""
LOADED = 0.1
"""The share of the time that the ranks wait for a processor on a machine that is busy with other programs too."""
WORKED_NS = 50_000_000
"""And less than this in all where the late rank is seen to do more than the others."""


@RULES.finds("needless-barrier")
def needless_barrier(case: Case) -> Finding | None:
    """A barrier in every step, with no file written or read around it on any rank."""
    for rank, state in sorted(case.world.ranks.items()):
        for name, history in state.histories.items():
            if "/" in name:
                continue
            barriers = _barriers(case, history)
            for site, positions in barriers.items():
                steps = _steps_between(case, history, positions)
                if (
                    len(positions) < OFTEN
                    or steps < 0.8 * (len(positions) - 1)
                    or _orders(case, history, positions)
                ):
                    continue
                if _steps(case, history) > 1.5 * len(positions):
                    continue
                return found(
                    "needless-barrier",
                    say("a barrier in every step ({count} so far): the reduction of the gradients makes the ranks wait "
                        "for each other already", count=len(positions)),
                    _location(case, site), ranks=tuple(case.world.ranks),
                    evidence=(Evidence("calls", say("calls of rank {rank} around the last barrier", rank=rank),
                                       _around(case, history, positions[-2]), (rank,)),),
                    fix=say("leave it out"),
                )  # fmt: skip
        break
    return None


def _location(case: Case, site: Site) -> Location | None:
    return case.place(site[-1]) if site else None


def _barriers(case: Case, history: History) -> dict[Site, list[int]]:
    """Positions of barriers by the line that calls them."""
    found: dict[Site, list[int]] = {}
    kinds = {call: case.world.kinds[call] for call in set(history.kinds)}
    wanted = {c: k.site for c, k in kinds.items() if "barrier" in k.signature.op and not k.hidden and k.site}
    for index, call in enumerate(history.kinds if wanted else ()):
        if call in wanted:
            found.setdefault(wanted[call], []).append(history.start + index)
    return found


def _learns(kind: CallKind) -> bool:
    """True for calls that carry gradients."""
    return kind.inside in ("DDP.backward", "FSDP") or (
        not kind.hidden and kind.signature.op.startswith("allreduce")
    )


def _steps_between(case: Case, history: History, positions: list[int]) -> int:
    """Between how many neighbouring barriers gradients were reduced."""
    count = 0
    for one, other in pairwise(positions):
        calls = set(history.kinds[one - history.start : other - history.start])
        count += any(_learns(case.world.kinds[call]) for call in calls)
    return count


def _steps(case: Case, history: History) -> int:
    """Roughly how many steps were made: how often the rarest of the usual reductions ran."""
    counts = Counter(history.kinds)
    usual = [n for call, n in counts.items() if case.world.kinds[call].inside in ("DDP.backward", "FSDP")]
    return min((n for n in usual if n * 2 >= max(usual)), default=0)


def _orders(case: Case, history: History, positions: list[int]) -> bool:
    """True when files were written or read between barriers about as often as there are barriers."""
    times = [
        history.times_ns[p - history.start] for p in positions if p - history.start < len(history.times_ns)
    ]
    if not times:
        return True
    acts: Counter[tuple[object, ...]] = Counter()
    for topic in ("write", "read"):
        for rank, row in everywhere(case, topic):
            if times[0] <= row["time"] <= times[-1]:  # told ever more rarely, with how often it was by then
                key = (rank, topic, row["path"], row["via"], place_of(row.get("site", ())))
                acts[key] = max(acts[key], row.get("count", 1))
    # The last few of many writes to one file are not told: at least half of them are.
    return sum(n * 2 if n > 2 else n for n in acts.values()) * 3 >= len(times)


def _around(case: Case, history: History, position: int) -> tuple[str, ...]:
    lines = []
    for at in range(max(history.start, position - 2), min(history.end, position + 3)):
        kind = case.world.kind(history.at(at))
        if kind is not None:
            where = f"{case.path(kind.site[-1].path)}:{kind.site[-1].line}" if kind.site else "?"
            lines.append(f"#{at} {describe(kind)} at {where}")
    return tuple(lines)


@RULES.finds("straggler")
def straggler(case: Case) -> Finding | None:
    """One rank comes last to the same call in nearly every step, and the others lose a good part of their time."""
    world = case.world
    ranks = sorted(world.ranks)
    if len(ranks) < 2:
        return None
    names = set.intersection(*(set(world.ranks[r].histories) for r in ranks))
    worst: tuple[float, int, CallKind, list[int], str, list[int]] | None = None
    for name in sorted(names):
        if "/" in name or name == SETUP:
            continue
        for call, positions in _often(world.ranks[ranks[0]].histories[name]).items():
            late = _late(case, name, ranks, positions)
            if late is not None and (worst is None or late[0] > worst[0]):
                worst = (late[0], late[1], world.kinds[call], late[2], name, positions)
    if worst is None:
        return None
    share, rank, kind, gaps, name, positions = worst
    site = _busy(case, name, rank, positions)
    lines = tuple(f"step {i}: {gap / 1e6:.1f} ms late" for i, gap in enumerate(gaps[:8]))
    return found(
        "straggler",
        say("{rank} was the last to come to {call} in {often} of {count} steps, {late} ms late in the middle: the "
            "others wait for {share} % of the time", rank=ranks_text((rank,)), call=describe(kind),
            often=sum(g >= LATE_NS for g in gaps), count=len(positions), late=f"{median(gaps) / 1e6:.1f}",
            share=f"{share * 100:.0f}"),
        _location(case, site), ranks=(rank,),
        related=(case.place(kind.site[-1], role=say("the others wait here")),) if kind.site else (),
        evidence=(
            Evidence("counts", say("how late it came"), lines, (rank,)),
            Evidence("stack", say("where it is while they wait"), case.stack_lines(site), (rank,)) if site else None,
        ),
        fix=say("find what only this rank does in each step (logging, plotting, saving, more data, a slower device), "
                "and do it more rarely, outside the step, or on all ranks in turn"),
    )  # fmt: skip


def _often(history: History) -> dict[int, list[int]]:
    """Calls that were made again and again -> their positions, the first few left out: those warm up."""
    counts = Counter(history.kinds)
    wanted = {call for call, n in counts.items() if n >= STEPS + 2}
    found: dict[int, list[int]] = {call: [] for call in wanted}
    for index, call in enumerate(history.kinds):
        if call in wanted:
            found[call].append(history.start + index)
    return {call: positions[2:] for call, positions in found.items()}


def _late(
    case: Case, name: str, ranks: list[int], positions: list[int]
) -> tuple[float, int, list[int]] | None:
    """(share of the time lost, the rank that is last, by how much in each step) if one rank always is."""
    histories = [case.world.ranks[r].histories[name] for r in ranks]
    last: Counter[int] = Counter()
    gaps: dict[int, list[int]] = {}
    first_ns = last_ns = 0
    for position in positions[-2000:]:
        if any(not 0 <= position - h.start < len(h.times_ns) for h in histories):
            continue
        times = [h.times_ns[position - h.start] for h in histories]
        order = sorted(times)
        late = ranks[times.index(order[-1])]
        gap = order[-1] - order[-2] if len(order) > 2 else order[1] - order[0]
        gaps.setdefault(late, []).append(gap)
        last[late] += gap >= LATE_NS
        first_ns, last_ns = first_ns or order[0], order[-1]
    if not last or last_ns <= first_ns:
        return None
    rank, often = last.most_common(1)[0]
    lost = sum(gaps[rank])
    share = lost / (last_ns - first_ns)
    if sum(sum(late) for other, late in gaps.items() if other != rank) > OTHERS * lost:
        return None
    if often < max(STEPS, MOSTLY * len(positions[-2000:])) or share < SHARE or lost < WORKED_NS:
        return None
    return (share, rank, gaps[rank]) if _own_doing(case, rank, lost, first_ns, last_ns) else None


def _own_doing(case: Case, rank: int, lost_ns: int, first_ns: int, last_ns: int) -> bool:
    """True when the late rank computes more than the others, or stands still by itself: reads, writes, sleeps. False
    where a machine that is busy with other programs gives it less, and where nothing is known of that."""
    states = case.world.ranks
    if not all(state.facts.get("scheduled") for state in states.values()):
        return False
    if any(0 < state.facts.get("steps", STEPS) < STEPS for state in states.values()):
        return False
    ran = {r: _took(state, 1, first_ns, last_ns) for r, state in states.items()}
    starved = {r: _took(state, 2, first_ns, last_ns) for r, state in states.items()}
    loaded = sum(starved.values()) > LOADED * (last_ns - first_ns) * len(states)
    more, starving = ran.pop(rank), starved.pop(rank)
    usual = median(ran.values())
    more, starving = max(0.0, more - usual), max(0.0, starving - median(starved.values()))
    if more * (1 if loaded else 3) > usual and more * 10 > lost_ns:
        return True  # who asks for more also waits more for a processor
    if loaded and any(row["workers"] for state in states.values() for row in rows(state, "loader")):
        return False  # it may wait for workers of its loader that get no processor
    return lost_ns >= LOST_NS and (lost_ns - more - starving) * 2 >= lost_ns


def _took(state: RankState, column: int, first_ns: int, last_ns: int) -> float:
    seen: list[tuple[int, int, int]] = state.facts.get("scheduled", [])
    if not seen:
        return 0.0
    times = [row[0] for row in seen]
    return _at(seen, times, last_ns, column) - _at(seen, times, first_ns, column)


def _at(seen: list[tuple[int, int, int]], times: list[int], now_ns: int, column: int) -> float:
    """The value at a moment between two looks."""
    index = bisect_left(times, now_ns)
    if index == 0 or index == len(seen):
        return seen[min(index, len(seen) - 1)][column]
    low, high = seen[index - 1], seen[index]
    return low[column] + (high[column] - low[column]) * (now_ns - low[0]) / max(1, high[0] - low[0])


def _busy(case: Case, name: str, rank: int, positions: list[int]) -> Site:
    """Where the late rank stood most often while the others waited for it; else the file that it alone opens most."""
    stood: Counter[Site] = Counter()
    for moment, site in case.world.ranks[rank].facts.get("late_stacks", ()):
        if site and _awaited(case, name, rank, positions, moment):
            stood[site] += 1
    if stood:
        lines = Counter({site[-1]: 0 for site in stood})
        for site, count in stood.items():
            lines[site[-1]] += count
        line = lines.most_common(1)[0][0]
        return next(site for site in stood if site[-1] == line)
    others = {row["site"] for r, row in everywhere(case, "write") if r != rank and row.get("site")}
    mine = Counter(row["site"] for row in rows(case.world.ranks[rank], "write") if row.get("site"))
    alone = [(n, site) for site, n in mine.items() if site not in others and n >= OFTEN and site[-1].user]
    return max(alone, key=lambda pair: pair[0])[1] if alone else ()


def _awaited(case: Case, name: str, rank: int, positions: list[int], moment: int) -> bool:
    """True when the others were at a call of these then, and the rank was not."""
    times = case.world.ranks[rank].histories[name]
    at = [times.times_ns[p - times.start] for p in positions if 0 <= p - times.start < len(times.times_ns)]
    index = bisect_left(at, moment)
    if index == len(at):
        return False
    position = positions[len(positions) - len(at) + index]
    others = [s.histories[name] for r, s in case.world.ranks.items() if r != rank]
    return all(
        0 <= position - h.start < len(h.times_ns) and h.times_ns[position - h.start] < moment for h in others
    )
