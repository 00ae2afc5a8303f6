"""Reads what it is given by what it holds, not by its name, and asks the right reader for the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import BlindSpot, Report, say
from .match import Story, read
from .streams import Stream
from .verdict import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def explain(paths: Sequence[Path | str], *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Files, folders and "-" (standard input) -> why the job died. Raises AllranksError when a path cannot be read."""
    story = Story()
    for path in map(Path, paths):
        read(Stream(None if str(path) == "-" else path), story)
    return _report(story)


def _report(story: Story) -> Report:
    report = Report("explain", findings=findings(story))
    report.world = {"size": story.launch.size}
    report.statistics = {"files": len(story.files), "lines": story.lines, "bytes": story.size}
    for name in story.cut:
        report.blind_spots.append(
            BlindSpot("log-cut", say("{path} is damaged or cut off; the rest was not read", path=name))
        )
    return report
