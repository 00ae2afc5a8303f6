"""How findings on dumps name ranks, groups, calls and places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...findings import Evidence, Location, Text, say
from .agreement import apart, described, user_lines
from .columns import clean

if TYPE_CHECKING:
    from pathlib import Path

    from .columns import Call
    from .job import GroupTrace, JobTrace

SHOWN = 5
"""Calls, sides or circle members that one piece of evidence lists."""

Show = Callable[[str], str]
"""A path as the user would write it."""


def ranks_text(ranks: tuple[int, ...]) -> Text:
    """Ranks in words: "rank 2", "ranks 0-7, 9"."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return say("rank {rank}", rank=ordered[0])
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    words = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    if len(words) > 2 * SHOWN:
        return say("{count} ranks ({ranks}, ...)", count=len(ordered), ranks=", ".join(words[: 2 * SHOWN]))
    return say("ranks {ranks}", ranks=", ".join(words))


def group_text(group: GroupTrace) -> Text:
    """A process group in words."""
    name = clean(group.name)
    if group.description in ("", "undefined", name):
        return say("process group {name}", name=name)
    return say("process group {name} ({description})", name=name, description=group.description)


class Words:
    """Calls and places of one job in words; paths below `root` are relative to it."""

    def __init__(self, job: JobTrace, root: Path) -> None:
        self.job = job
        self.root = root

    def path(self, path: str) -> str:
        """A path as the user would write it."""
        prefix = str(self.root).rstrip("/") + "/"
        return path[len(prefix) :] if path.startswith(prefix) else path

    def call(self, kind: int) -> Call:
        """The call with this number."""
        return self.job.table.calls[kind]

    def call_at(self, group: GroupTrace, ranks: Iterable[int], position: int) -> Call:
        """The call of the first of `ranks` that tells it."""
        for rank in ranks:
            kind = group.calls[rank].at(position) if rank in group.calls else None
            if kind:
                return self.call(kind)
        return self.call(0)

    def place(self, call: Call, other: Call | None = None) -> str:
        """`train.py:41`, or "?" where the dump has no frames."""
        line = apart(call, other)
        return f"{self.path(line.path)}:{line.line}" if line is not None else "?"

    def location(self, call: Call | None, other: Call | None = None) -> Location | None:
        """The user's line that made the call and tells it from `other`."""
        line = apart(call, other) if call is not None else None
        return Location(self.path(line.path), line.line, function=line.function) if line is not None else None

    def related(
        self, call: Call | None, ranks: tuple[int, ...], role: Text | None = None, other: Call | None = None
    ) -> tuple[Location, ...]:
        """The line at which others are."""
        line = apart(call, other) if call is not None else None
        if line is None:
            return ()
        role = role or say("{ranks}: here", ranks=ranks_text(ranks))
        return (Location(self.path(line.path), line.line, function=line.function, role=role, ranks=ranks),)

    def stack(self, title: Text, call: Call, ranks: tuple[int, ...]) -> Evidence:
        """The user's frames of a call, outermost first."""
        lines = (f"{self.path(f.path)}:{f.line} {f.function}" for f in reversed(user_lines(call)[:32]))
        return Evidence("stack", title, tuple(lines), ranks, self.location(call))

    def histories(self, group: GroupTrace, ranks: list[int], until: int) -> tuple[Evidence, ...]:
        """The calls of some ranks in a group before position `until`."""
        found = []
        for rank in ranks:
            calls = group.calls.get(rank) or group.partial.get(rank)
            if calls is None or not calls.kinds:
                continue
            lines = []
            before: Call | None = None
            for position in range(max(calls.start, min(until, calls.end) - SHOWN), min(until, calls.end)):
                call = self.call(calls.at(position) or 0)
                lines.append(f"#{position} {described(call)} at {self.place(call, before)}")
                before = call
            title = say("the calls of rank {rank}", rank=rank)
            found.append(Evidence("calls", title, tuple(lines), (rank,)))
        return tuple(found)

    def counts(self, group: GroupTrace) -> Evidence:
        """How many calls each rank made in a group."""
        by_count: dict[int, list[int]] = {}
        for rank, calls in group.calls.items():
            by_count.setdefault(calls.end - 1, []).append(rank)
        lines = [f"{ranks_text(tuple(ranks))}: {count}" for count, ranks in sorted(by_count.items())]
        title = say("calls made in {group}", group=group_text(group))
        return Evidence("counts", title, tuple(lines[: 2 * SHOWN]))
