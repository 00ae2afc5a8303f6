"""Where a rank stands while the others wait for it: stacks of one that comes last again and again, some a second."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..world import WORLD_GROUP

if TYPE_CHECKING:
    from ..world import World
    from .guest import Guest

FIRST = 1 << 40
"""Numbers of these questions; other questions have smaller ones."""
STEPS = 24
"""Calls that are looked back at."""
MOSTLY = 0.6
LATE_NS = 1_000_000
LOOK_S, SAMPLE_S = 0.25, 0.25
SAMPLES = 1000


class Lateness:
    """Finds the rank that is late, and asks where it stands. The answers are its fact "late_stacks"."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self._look_at = self._sample_at = 0.0
        self._asked: dict[int, int] = {}
        self._number = FIRST

    def sample(self, world: World, guests: dict[int, Guest]) -> None:
        """Asks the late rank where it stands, when it is time to."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.rank = late(world)
        guest = guests.get(self.rank) if self.rank is not None else None
        if guest is None or now < self._sample_at or not guest.connected:
            return
        if len(guest.facts.get("late_stacks", ())) < SAMPLES and len(self._asked) < 2:
            self._sample_at = now + SAMPLE_S
            self._number += 1
            if guest.connection.ask(self._number, "standing"):
                self._asked[self._number] = time.time_ns()

    def answered(self, guest: Guest, number: int, answer: dict[str, Any]) -> bool:
        """Takes an answer in; False for one to another's question. A stack stands for the middle of the time between
        question and answer."""
        if number < FIRST:
            return False
        asked_ns = self._asked.pop(number, 0)
        if asked_ns and "stack" in answer:
            site = guest.kinds.site([row for row in answer["stack"] if row[4]])
            guest.facts.setdefault("late_stacks", []).append(((asked_ns + time.time_ns()) // 2, site))
        return True


def late(world: World) -> int | None:
    """The rank that came last to nearly all of the last calls of the whole group."""
    histories = {r: s.histories.get(WORLD_GROUP) for r, s in world.ranks.items() if s.state != "exited"}
    known = {r: h for r, h in histories.items() if h is not None and h.times_ns}
    if len(known) < 2 or len(known) < len(world.ranks):
        return None
    end = min(h.end for h in known.values())
    last: Counter[int] = Counter()
    for position in range(max(0, end - STEPS), end):
        if any(position < h.start for h in known.values()):
            continue
        times = sorted((h.times_ns[position - h.start], r) for r, h in known.items())
        if times[-1][0] - times[-2][0] >= LATE_NS:
            last[times[-1][1]] += 1
    rank, count = last.most_common(1)[0] if last else (0, 0)
    return rank if count >= MOSTLY * STEPS else None
