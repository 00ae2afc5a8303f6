"""Annotations for GitHub: one line each, whatever the message holds."""

from __future__ import annotations

from allranks.findings import Confidence, Finding, Location, Report, Severity, say
from allranks.report import github

from .samples import full_report


def test_each_finding_is_one_command() -> None:
    assert github.dumps(full_report()).splitlines() == [
        "::error file=train.py,line=12,col=5,endLine=13,title=allranks%3A rank-conditional-collective"
        "::rank 1 left, the loss said so%0Awith several nodes%0Acall it on every rank",
        "::notice title=allranks%3A early-exit::plain",
        "::notice title=allranks::rank 2 was never heard",
    ]


def test_separators_in_names_and_messages_are_escaped() -> None:
    finding = Finding(
        "early-exit",
        Severity.WARNING,
        Confidence.INFERRED,
        say("100%\nof {what}", what="a::b"),
        Location("a,b:c.ipynb", 2, 1, cell=3),
    )
    assert github.dumps(Report("check", [finding])) == (
        "::warning file=a%2Cb%3Ac.ipynb,title=allranks%3A early-exit (cell 3%2C line 2)::100%25%0Aof a::b\n"
    )
