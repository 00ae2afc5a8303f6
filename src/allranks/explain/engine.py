"""Reads what it is given by what it holds, not by its name, and asks the right reader for the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AllranksError
from ..findings import BlindSpot, Report, say
from .kinds import sort_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kinds import Found


def explain(
    paths: Sequence[Path | str],
    *,
    progress: Callable[[int, int], None] | None = None,
    cluster: str | None = None,
) -> Report:
    """Logs, folders of logs, error files, stacks, flight-recorder dumps and "-" (standard input), in any mixture ->
    why the job died. `progress` is called with how much of how much is done: bytes of logs, or files of dumps.
    `cluster` is the address of a dask scheduler on which dumps are read. Raises AllranksError when a path cannot be
    read, and when there is nothing to read in any of them."""
    found = sort_out(map(Path, paths))
    _programs(found)
    report: Report | None = None
    # Reading logs and reading dumps share little: each is imported only for what is there.
    if found.logs or found.errors or found.stacks or not found.dumps:
        from .stories import explain_logs

        report = explain_logs(found, progress)
    if found.dumps:
        from .dumps import explain_dumps

        dumped = explain_dumps(found.dumps, progress=progress, cluster=cluster)
        report = dumped if report is None else _joined(report, dumped)
    assert report is not None
    if not (found.dumps or found.stacks or found.errors or report.statistics["bytes"]):
        raise _nothing(paths, found)
    report.blind_spots += [
        BlindSpot("not-text", say("{path} holds no text, and nothing else known here", path=path))
        for path in found.unread
    ]
    report.blind_spots += [
        BlindSpot("program", say("{path} is a program, not a log: it was not read", path=path))
        for path in found.programs
    ]
    return report


def _programs(found: Found) -> None:
    """A program among logs is passed over; a program alone is a mistake, and another command is meant."""
    if found.programs and not (found.logs or found.errors or found.stacks or found.dumps):
        raise AllranksError(
            "input-program",
            say("{path} is a program, not a log", path=found.programs[0]),
            say("`allranks check {path}` reads programs", path=found.programs[0]),
        )


def _nothing(paths: Sequence[Path | str], found: Found) -> AllranksError:
    """The error for what is empty, or holds nothing that is known here."""
    if found.unread:
        sentence = say("{path} holds no text, and nothing else known here", path=found.unread[0])
    elif list(map(str, paths)) == ["-"]:
        sentence = say("nothing came from standard input")
    else:
        sentence = say("there is nothing to read in {paths}", paths=", ".join(map(str, paths)))
    return AllranksError(
        "input-empty", sentence, say("give the job's log, a folder of logs, or its flight-recorder dumps")
    )


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
