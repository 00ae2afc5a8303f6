"""SARIF: valid against the 2.1.0 schema, and nothing of a finding lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from allranks.findings import Confidence, Finding, Location, Report, Severity, say
from allranks.report import sarif

from .samples import full_report

SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0.schema.json").read_text())


def valid(report: Report, language: str = "en") -> Any:
    """The only run of the SARIF form of `report`, checked against the schema."""
    log = json.loads(sarif.dumps(report, language))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_the_schema_here_refuses_what_is_not_sarif() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate({"version": "2.1.0", "runs": [{"results": []}]})


@pytest.mark.parametrize("language", ["en", "zh"])
def test_everything_of_a_finding_has_its_place(language: str) -> None:
    run = valid(full_report(), language)
    first, second, hidden = run["results"]
    assert first["ruleId"] == "rank-conditional-collective"
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"]
    assert first["level"] == "error"
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py"},
        "region": {"startLine": 12, "startColumn": 5, "endLine": 13},
    }
    flow = first["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["physicalLocation"]["region"]["startLine"] for step in flow] == [40, 12]
    (change,) = first["fixes"][0]["artifactChanges"]
    assert change["replacements"][0] == {
        "deletedRegion": {"startLine": 12, "startColumn": 1, "endLine": 14, "endColumn": 1},
        "insertedContent": {"text": "pass\n"},
    }
    assert "locations" not in second
    assert second["level"] == "note"
    assert hidden["suppressions"] == [{"kind": "inSource", "justification": "seen"}]
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["descriptor"]["id"] == "rank-silent"


def test_related_places_keep_their_role_and_a_notebook_cell_is_no_line() -> None:
    (related,) = valid(full_report())["results"][0]["relatedLocations"]
    assert related["message"]["text"] == "the others wait here"
    assert related["logicalLocations"][0]["name"] == "cell 4, line 3"
    assert "region" not in related["physicalLocation"]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/ü#1.py", "a%20b/%C3%BC%231.py"),
        ("c:x.py", "./c:x.py"),
        ("bad\udcff.py", "bad%FF.py"),
        ("/abs/train.py", "/abs/train.py"),
    ],
)
def test_strange_paths_are_uris(path: str, uri: str) -> None:
    message = say("in {path}", path=path)
    finding = Finding("early-exit", Severity.WARNING, Confidence.INFERRED, message, Location(path, 1))
    (result,) = valid(Report("check", [finding]))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_a_fingerprint_outlives_moved_lines() -> None:
    def fingerprint(line: int, function: str) -> str:
        finding = Finding(
            "early-exit",
            Severity.WARNING,
            Confidence.INFERRED,
            say("left at line {line}", line=line),
            Location("train.py", line, 1, function),
        )
        (result,) = valid(Report("check", [finding]))["results"]
        return str(result["partialFingerprints"]["allranks/v1"])

    assert fingerprint(3, "main") == fingerprint(40, "main")
    assert fingerprint(3, "main") != fingerprint(3, "train")


def test_an_empty_report_is_valid() -> None:
    assert valid(Report("check"))["results"] == []
