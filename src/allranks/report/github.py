"""A Report as GitHub workflow commands: annotations on the lines of a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Finding, Report, Severity
from ..messages import render

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def dumps(report: Report, language: str = "en") -> str:
    """One command a finding, sentences in `language`; what was not seen follows without a place."""
    lines = [_command(finding, language) for finding in report.findings]
    lines += [
        f"::notice title=allranks::{_data(render(spot.message, language))}" for spot in report.blind_spots
    ]
    return "".join(f"{line}\n" for line in lines)


def _command(finding: Finding, language: str) -> str:
    text = render(finding.message, language)
    for sentence in (finding.condition, finding.fix):
        if sentence is not None:
            text += "\n" + render(sentence, language)
    properties = ",".join(f"{key}={_property(value)}" for key, value in _properties(finding))
    return f"::{_COMMANDS[finding.severity]} {properties}::{_data(text)}"


def _properties(finding: Finding) -> Iterator[tuple[str, str]]:
    place = finding.location
    title = f"allranks: {finding.fault}"
    if place is not None:
        yield "file", place.path
        if place.cell is not None:
            title += f" (cell {place.cell}, line {place.line})"
        elif place.line is not None:
            yield "line", str(place.line)
            if place.column is not None:
                yield "col", str(place.column)
            if place.end_line is not None and place.end_line > place.line:
                yield "endLine", str(place.end_line)
    yield "title", title


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
