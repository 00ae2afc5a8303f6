"""Reads what it is given by what it holds, not by its name, and asks the right reader for the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import BlindSpot, Report, say
from .kinds import sort_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def explain(paths: Sequence[Path | str], *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Logs, folders of logs, error files, stacks, flight-recorder dumps and "-" (standard input), in any mixture ->
    why the job died. `progress` is called with the number of files read and of all. Raises AllranksError when a
    path cannot be read."""
    found = sort_out(map(Path, paths))
    report: Report | None = None
    # Reading logs and reading dumps share little: each is imported only for what is there.
    if found.logs or found.errors or found.stacks or not found.dumps:
        from .stories import explain_logs

        report = explain_logs(found, progress)
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
