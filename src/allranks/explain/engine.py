"""Reads what it is given by what it holds, not by its name, and asks the right reader for the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import BlindSpot, Report, say
from .kinds import Found, error_text, sort_out
from .logs import origins_of_files
from .match import Story, read
from .ranks import ranks_of
from .stacks import read_stacks
from .streams import Stream
from .verdict import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def explain(paths: Sequence[Path | str], *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Logs, folders of logs, error files, stacks, flight-recorder dumps and "-" (standard input), in any mixture ->
    why the job died. `progress` is called with the number of files read and of all. Raises AllranksError when a
    path cannot be read."""
    found = sort_out(map(Path, paths))
    report = (
        _of_logs(found, progress) if found.logs or found.errors or found.stacks or not found.dumps else None
    )
    if found.dumps:
        from .dumps import explain_dumps

        dumped = explain_dumps(found.dumps, progress=progress)
        report = dumped if report is None else _joined(report, dumped)
    assert report is not None
    for path in found.unread:
        report.blind_spots.append(
            BlindSpot("not-text", say("{path} holds no text, and nothing else known here", path=path))
        )
    return report


def _of_logs(found: Found, progress: Callable[[int, int], None] | None) -> Report:
    story = Story()
    total = len(found.logs) + len(found.errors) + len(found.stacks)
    origins = origins_of_files(map(str, [*found.logs, *found.errors, *found.stacks]))
    for done, path in enumerate(found.logs, 1):
        read(Stream(None if str(path) == "-" else path), story, origins[str(path)])
        if progress is not None:
            progress(done, total)
    for path in found.errors:
        text, time = error_text(path)
        if text:
            read(Stream(path, text), story, origins[str(path)], time)
    for path in found.stacks:
        read_stacks(path, story, origins[str(path)])
    if progress is not None:
        progress(total, total)
    return _report(story)


def _report(story: Story) -> Report:
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


def _joined(logs: Report, dumps: Report) -> Report:
    """One report of both. A failure of a rank's own in the logs comes first; else the dumps know more of who waits."""
    own = bool(logs.loud) and logs.loud[0].fault not in _WAITS
    first, second = (logs, dumps) if own else (dumps, logs)
    offset = len(first.findings)
    moved = [
        replace(one, consequence_of=one.consequence_of + offset) if one.consequence_of is not None else one
        for one in second.findings
    ]
    return Report(
        "explain",
        findings=[*first.findings, *moved],
        blind_spots=[*logs.blind_spots, *dumps.blind_spots],
        world={**logs.world, **dumps.world},
        statistics={**logs.statistics, **dumps.statistics},
    )


_WAITS = frozenset(
    ["slow-rank", "early-exit", "collective-order", "collective-shape", "unmatched-p2p", "group-membership"]
)
