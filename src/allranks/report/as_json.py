"""A Report as the public JSON form, format 1, and back again.

Every sentence stands twice: filled and translated under its own key (`message`, `fix`, `role`...), and as
`texts` with the template and the values it was filled with. So a script reads the plain string, and a saved
report can be loaded and shown in the other language without another run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from .. import __version__
from ..errors import AllranksError
from ..findings import (
    FORMAT,
    BlindSpot,
    Confidence,
    Edit,
    Evidence,
    Finding,
    Location,
    Report,
    Severity,
    Text,
    say,
)
from ..messages import render

Show = Callable[[Text], str]


def dumps(report: Report, language: str = "en") -> str:
    """`report` as indented JSON text, sentences in `language`; the text can always be encoded as UTF-8."""

    def show(text: Text) -> str:
        return render(text, language)

    form = {
        "format": FORMAT,
        "tool": {"name": "allranks", "version": __version__},
        "command": report.command,
        "language": language,
        "findings": [_finding(finding, show) for finding in report.findings],
        "blind_spots": [_blind_spot(spot, show) for spot in report.blind_spots],
        "world": _plain(report.world),
        "statistics": _plain(report.statistics),
        "suppressed": [_finding(finding, show) for finding in report.suppressed],
    }
    text = json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name that is not valid UTF-8 reaches us with lone surrogates, which no encoder takes.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def load(text: str | bytes) -> Report:
    """The report that `dumps` wrote. Raises AllranksError `report-unreadable` for anything else."""
    try:
        form = json.loads(text)
        version = form["format"]
        if not isinstance(version, int) or version > FORMAT:
            raise AllranksError(
                "report-unreadable",
                say(
                    "the report is of format {format}; this version of allranks reads format {known}",
                    format=version,
                    known=FORMAT,
                ),
                say("update allranks, or make the report again"),
            )
        return Report(
            command=form["command"],
            findings=[_load_finding(row) for row in form["findings"]],
            blind_spots=[
                BlindSpot(row["slug"], _load_text(row, "message"), _ranks(row), row.get("count", 1))
                for row in form.get("blind_spots", [])
            ],
            world=form.get("world") or {},
            statistics=form.get("statistics") or {},
            suppressed=[_load_finding(row) for row in form.get("suppressed", [])],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AllranksError(
            "report-unreadable",
            say("this is not a report of allranks: {error}", error=f"{type(error).__name__}: {error}"),
            say("give a report.json, or what --output-format json printed"),
        ) from error


def _finding(finding: Finding, show: Show) -> dict[str, Any]:
    row: dict[str, Any] = {
        "fault": finding.fault,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "message": show(finding.message),
        "condition": show(finding.condition) if finding.condition else None,
        "fix": show(finding.fix) if finding.fix else None,
        "location": _location(finding.location, show),
        "related": [_location(place, show) for place in finding.related],
        "call_path": [_location(place, show) for place in finding.call_path],
        "ranks": list(finding.ranks),
        "evidence": [_evidence(item, show) for item in finding.evidence],
        "edits": [
            {"path": e.path, "start_line": e.start_line, "end_line": e.end_line, "text": e.text}
            for e in finding.edits
        ],
        "consequence_of": finding.consequence_of,
    }
    if finding.suppression is not None:
        row["suppression"] = finding.suppression
    return row | _texts(message=finding.message, condition=finding.condition, fix=finding.fix)


def _location(place: Location | None, show: Show) -> dict[str, Any] | None:
    if place is None:
        return None
    row: dict[str, Any] = {"path": place.path, "line": place.line, "column": place.column}
    if place.end_line is not None:
        row["end_line"] = place.end_line
    if place.cell is not None:
        row["cell"] = place.cell
    if place.function is not None:
        row["function"] = place.function
    if place.ranks:
        row["ranks"] = list(place.ranks)
    if place.role is not None:
        row["role"] = show(place.role)
        row |= _texts(role=place.role)
    return row


def _evidence(item: Evidence, show: Show) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": item.kind,
        "title": show(item.title),
        "lines": list(item.lines),
        "ranks": list(item.ranks),
        "location": _location(item.location, show),
    }
    return row | _texts(title=item.title)


def _blind_spot(spot: BlindSpot, show: Show) -> dict[str, Any]:
    row: dict[str, Any] = {
        "slug": spot.slug,
        "message": show(spot.message),
        "ranks": list(spot.ranks),
        "count": spot.count,
    }
    return row | _texts(message=spot.message)


def _texts(**texts: Text | None) -> dict[str, Any]:
    return {"texts": {name: _template(text) for name, text in texts.items() if text is not None}}


def _template(text: Text) -> dict[str, Any]:
    return {"template": text.template, "values": _plain(text.values)}


def _plain(value: Any) -> Any:
    """`value` as JSON knows it: nested sentences keep their template, anything else becomes its string."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Text):
        return _template(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(item) for item in items]
    return str(value)


def _load_finding(row: dict[str, Any]) -> Finding:
    place = row.get("location")
    return Finding(
        fault=row["fault"],
        severity=Severity(row["severity"]),
        confidence=Confidence(row["confidence"]),
        message=_load_text(row, "message"),
        location=_load_location(place) if place else None,
        related=tuple(_load_location(item) for item in row.get("related", ())),
        ranks=_ranks(row),
        evidence=tuple(_load_evidence(item) for item in row.get("evidence", ())),
        fix=_load_optional(row, "fix"),
        edits=tuple(Edit(**item) for item in row.get("edits", ())),
        call_path=tuple(_load_location(item) for item in row.get("call_path", ())),
        condition=_load_optional(row, "condition"),
        consequence_of=row.get("consequence_of"),
        suppression=row.get("suppression"),
    )


def _load_location(row: dict[str, Any]) -> Location:
    return Location(
        path=row["path"],
        line=row.get("line"),
        column=row.get("column"),
        function=row.get("function"),
        end_line=row.get("end_line"),
        cell=row.get("cell"),
        role=_load_optional(row, "role"),
        ranks=_ranks(row),
    )


def _load_evidence(row: dict[str, Any]) -> Evidence:
    place = row.get("location")
    return Evidence(
        kind=row["kind"],
        title=_load_text(row, "title"),
        lines=tuple(row.get("lines", ())),
        ranks=_ranks(row),
        location=_load_location(place) if place else None,
    )


def _ranks(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row.get("ranks", ()))


def _load_optional(row: dict[str, Any], name: str) -> Text | None:
    return _load_text(row, name) if row.get(name) else None


def _load_text(row: dict[str, Any], name: str) -> Text:
    """The sentence `name` of `row`: its template where the report kept it, else what stood there."""
    kept = row.get("texts", {}).get(name)
    return _load_template(kept) if kept else Text(row[name])


def _load_template(form: dict[str, Any]) -> Text:
    values = {
        key: _load_template(value)
        if isinstance(value, dict) and value.keys() == {"template", "values"}
        else tuple(value)
        if isinstance(value, list)
        else value
        for key, value in form["values"].items()
    }
    return Text(form["template"], values)
