"""A Report as SARIF 2.1.0, the form that code hosts and editors read.

Faults are the rules, call paths are code flows, safe edits are fixes, suppressed findings are kept with their
reason, blind spots are notifications. https://docs.oasis-open.org/sarif/sarif/v2.1.0/
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import __version__
from ..faults import catalogue, page
from ..findings import Finding, Location, Report, Severity, Text
from ..messages import render

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def dumps(report: Report, language: str = "en") -> str:
    """`report` as SARIF text, sentences in `language`; findings without a place have no locations."""
    shown = [*report.findings, *report.suppressed]
    rules = sorted({finding.fault for finding in shown})
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "allranks",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(fault, language) for fault in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, rules, language) for finding in shown],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "level": "note",
                        "message": _message(spot.message, language),
                        "descriptor": {"id": spot.slug},
                    }
                    for spot in report.blind_spots
                ],
            }
        ],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    text = json.dumps(log, indent=2, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text) + "\n"


def _rule(fault: str, language: str) -> dict[str, Any]:
    known = catalogue().get(fault)
    rule: dict[str, Any] = {"id": fault}
    if known is not None:
        rule["shortDescription"] = {"text": known.title(language)}
        rule["defaultConfiguration"] = {"level": _LEVELS[known.severity]}
        rule["properties"] = {"tags": ["distributed", known.group]}
        try:
            markdown = page(fault, language)
        except KeyError:
            markdown = ""
        if markdown:
            rule["help"] = {"text": markdown, "markdown": markdown}
    return rule


def _result(finding: Finding, rules: list[str], language: str) -> dict[str, Any]:
    text = render(finding.message, language)
    extra = [finding.condition, finding.fix]
    sentences = [text, *(render(sentence, language) for sentence in extra if sentence is not None)]
    result: dict[str, Any] = {
        "ruleId": finding.fault,
        "ruleIndex": rules.index(finding.fault),
        "level": _LEVELS[finding.severity],
        "message": {"text": "\n".join(sentences)},
        "partialFingerprints": {"allranks/v1": _fingerprint(finding)},
        "properties": {"confidence": finding.confidence.value, "ranks": list(finding.ranks)},
    }
    if finding.location is not None:
        result["locations"] = [_location(finding.location, language)]
    if finding.related:
        result["relatedLocations"] = [
            _location(place, language) | {"id": number} for number, place in enumerate(finding.related, 1)
        ]
    if finding.call_path:
        result["codeFlows"] = [_code_flow(finding.call_path, language)]
    if finding.edits:
        result["fixes"] = [_fix(finding, language)]
    if finding.suppression is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.suppression or "-"}]
    return result


def _fingerprint(finding: Finding) -> str:
    """What stays equal when lines move: the fault, file, function and sentence without its numbers."""
    place = finding.location
    parts = (
        finding.fault,
        place.path if place else "",
        (place.function or "") if place else "",
        re.sub(r"\d+", "#", str(finding.message)),
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def _location(place: Location, language: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.path)}}
    # A line within a notebook's cell is no line of the file that the host shows.
    if place.line is not None and place.cell is None:
        region = {"startLine": max(place.line, 1)}
        if place.column is not None:
            region["startColumn"] = max(place.column, 1)
        if place.end_line is not None and place.end_line >= place.line:
            region["endLine"] = place.end_line
        physical["region"] = region
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.cell is not None:
        location["logicalLocations"] = [{"name": f"cell {place.cell}, line {place.line}", "kind": "member"}]
    elif place.function is not None:
        location["logicalLocations"] = [{"name": place.function, "kind": "function"}]
    if place.role is not None:
        location["message"] = _message(place.role, language)
    return location


def _code_flow(places: Iterable[Location], language: str) -> dict[str, Any]:
    steps = [{"location": _location(place, language)} for place in places]
    return {"threadFlows": [{"locations": steps}]}


def _fix(finding: Finding, language: str) -> dict[str, Any]:
    fix: dict[str, Any] = {
        "artifactChanges": [
            {
                "artifactLocation": {"uri": _uri(edit.path)},
                "replacements": [
                    {
                        "deletedRegion": {
                            "startLine": edit.start_line,
                            "startColumn": 1,
                            "endLine": edit.end_line + 1,
                            "endColumn": 1,
                        },
                        "insertedContent": {"text": edit.text},
                    }
                ],
            }
            for edit in finding.edits
        ]
    }
    if finding.fix is not None:
        fix["description"] = _message(finding.fix, language)
    return fix


def _message(text: Text, language: str) -> dict[str, str]:
    return {"text": render(text, language)}


def _uri(path: str) -> str:
    """A path as a URI reference; file names that are no UTF-8 keep their bytes."""
    uri = quote(path.replace("\\", "/").encode("utf-8", "surrogateescape"), safe="/:@!$&'()*+,;=~")
    # A colon in the first part would read as a scheme.
    return f"./{uri}" if ":" in uri.split("/", 1)[0] else uri
