"""The way through for logs: files that were sorted out become a story, and the story a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import BlindSpot, Report, say
from .kinds import error_text
from .logs import origins_of_files
from .match import Story, read
from .ranks import ranks_of
from .stacks import read_stacks
from .streams import Stream
from .verdict import findings

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kinds import Found


def explain_logs(found: Found, progress: Callable[[int, int], None] | None) -> Report:
    """The report on the logs, error files and stacks among `found`; `progress` is called with bytes."""
    story = Story()
    origins = origins_of_files(map(str, [*found.logs, *found.errors, *found.stacks]))
    sizes = [0 if str(path) == "-" else path.stat().st_size for path in found.logs]
    total, before = sum(sizes), 0

    def heard(position: int) -> None:
        if progress is not None:
            progress(before + position, total)

    for path, size in zip(found.logs, sizes, strict=True):
        read(Stream(None if str(path) == "-" else path, heard=heard), story, origins[str(path)])
        before += size
    for path in found.errors:
        text, time = error_text(path)
        if text:
            read(Stream(path, text), story, origins[str(path)], time)
    for path in found.stacks:
        read_stacks(path, story, origins[str(path)])
    heard(0)
    return report_on(story)


def report_on(story: Story) -> Report:
    """The report on a story that has been read."""
    report = Report("explain", findings=findings(story))
    report.world = {"size": story.launch.size, "ranks": _ranks(story)}
    report.statistics = {"files": len(story.files), "lines": story.lines, "bytes": story.size}
    for name in story.cut:
        sentence = say("{path} is damaged or cut off; the rest was not read", path=name)
        report.blind_spots.append(BlindSpot("log-cut", sentence))
    if story.skipped:
        sentence = say(
            "there was more of failures than fits in memory: the first and the last of it was read"
        )
        report.blind_spots.append(BlindSpot("log-skipped", sentence))
    return report


def _ranks(story: Story) -> list[dict[str, object]]:
    """How each rank ended, as far as the logs tell."""
    ends: dict[int, dict[str, object]] = {}
    for incident in story.of("cause", "victim", "stopped"):
        for rank in ranks_of(incident, story.launch):
            where = f"{incident.frame.path}:{incident.frame.line}" if incident.frame else ""
            ends.setdefault(
                rank,
                {
                    "rank": rank,
                    "state": "exited",
                    "where": where,
                    "call": incident.call,
                    "role": incident.role,
                },
            )
    for one in story.launch.exits:
        if one.rank is not None:
            ends.setdefault(one.rank, {"rank": one.rank, "state": "exited"})["status"] = one.status
    return [ends[rank] for rank in sorted(ends)]
