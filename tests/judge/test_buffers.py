"""SyncBatchNorm that ended a job, in worlds in which the hooks saw where the layers were exchanged."""

from __future__ import annotations

import pytest
from observations import Seen, verdicts

from allranks.findings import Confidence, Finding, Location, Severity, say
from allranks.judge.rules import buffers
from allranks.judge.silent import refined


@pytest.mark.parametrize("wrap", [0, 1])
def test_the_line_that_exchanged_the_layers(wrap: int) -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.saw(rank, "converted", "main:36", wrap=wrap)
    forward = Location("train.py", 22, function="forward")
    died = Finding(
        "sync-batch-norm-misplaced", Severity.ERROR, Confidence.PROVED, say("died"), forward, ranks=(0,)
    )
    finding = refined(seen.case(), died)
    assert verdicts([finding]) == [("sync-batch-norm-misplaced", 36, (0,))]
    assert [place.line for place in finding.related] == [22]


def test_layers_that_were_made_so() -> None:
    forward = Location("train.py", 22, function="forward")
    died = Finding(
        "sync-batch-norm-misplaced", Severity.ERROR, Confidence.PROVED, say("died"), forward, ranks=(0,)
    )
    assert refined(Seen().case(), died) is died


def test_a_conversion_before_the_wrap_is_right() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.saw(rank, "converted", "main:36", wrap=0)
    assert seen.found(buffers.RULES) == []
