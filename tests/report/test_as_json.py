"""A report survives the way to JSON and back, in both languages, whatever stands in it."""

from __future__ import annotations

import json

import pytest

from allranks.errors import AllranksError
from allranks.findings import Confidence, Finding, Report, Severity, say
from allranks.messages import render
from allranks.report import as_json

from .samples import full_report


def test_nothing_is_lost() -> None:
    report = full_report()
    assert as_json.load(as_json.dumps(report)) == report
    assert as_json.load(as_json.dumps(report, "zh")) == report


def test_the_form_that_scripts_read() -> None:
    form = json.loads(as_json.dumps(full_report()))
    assert form["format"] == 1
    assert form["command"] == "check"
    first, second = form["findings"]
    assert first["message"] == "rank 1 left, the loss said so"
    assert first["location"] == {
        "path": "train.py",
        "line": 12,
        "column": 5,
        "end_line": 13,
        "function": "main",
    }
    assert first["ranks"] == [1, 3]
    assert first["condition"] == "with several nodes"
    assert first["fix"] == "call it on every rank"
    assert first["related"][0]["role"] == "the others wait here"
    assert [step["line"] for step in first["call_path"]] == [40, 12]
    assert first["evidence"][0]["lines"] == ["a", "b {c}"]
    assert second["consequence_of"] == 0
    assert second["location"] is None
    assert form["blind_spots"][0] | {"texts": 0} == {
        "slug": "rank-silent",
        "message": "rank 2 was never heard",
        "ranks": [2],
        "count": 4,
        "texts": 0,
    }


def test_strange_values_are_shown_as_they_were() -> None:
    message = say("{path} took {time} s of {things}", path="caf\udce9.py", time=float("inf"), things=(1, "x"))
    report = Report("run", [Finding("non-finite", Severity.ERROR, Confidence.MEASURED, message)])
    text = as_json.dumps(report)
    assert text.encode("utf-8")
    (loaded,) = as_json.load(text).findings
    assert render(loaded.message) == render(message)


def test_a_report_made_elsewhere_needs_only_the_public_fields() -> None:
    finding = {"fault": "early-exit", "severity": "error", "confidence": "inferred", "message": "gone at {x}"}
    text = json.dumps({"format": 1, "command": "explain", "findings": [finding]})
    (loaded,) = as_json.load(text).findings
    assert render(loaded.message) == "gone at {x}"
    assert loaded.location is None
    assert loaded.ranks == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"format": 1}',
        '{"format": "1"}',
        '{"format": 1, "command": "run", "findings": [3]}',
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(AllranksError) as caught:
        as_json.load(text)
    assert caught.value.slug == "report-unreadable"


def test_a_later_format_is_refused_with_its_number() -> None:
    with pytest.raises(AllranksError, match="of format 99; this version of allranks reads format 1"):
        as_json.load('{"format": 99, "command": "run", "findings": []}')
