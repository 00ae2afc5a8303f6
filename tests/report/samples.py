"""One report with everything in it that a form can be asked to show."""

from __future__ import annotations

from dataclasses import replace

from allranks.findings import (
    BlindSpot,
    Confidence,
    Edit,
    Evidence,
    Finding,
    Location,
    Report,
    Severity,
    say,
)


def full_report() -> Report:
    place = Location("train.py", 12, 5, "main", end_line=13)
    finding = Finding(
        fault="rank-conditional-collective",
        severity=Severity.ERROR,
        confidence=Confidence.PROVED,
        message=say("rank {rank} left, {why}", rank=1, why=say("the {name} said so", name="loss")),
        location=place,
        related=(Location("utils.py", 3, 1, role=say("the others wait here"), ranks=(0, 2), cell=4),),
        ranks=(1, 3),
        evidence=(
            Evidence(
                "stack", say("stack of rank {rank}", rank=1), ("a", "b {c}"), (1,), Location("utils.py", 3)
            ),
        ),
        fix=say("call it on every rank"),
        edits=(Edit("train.py", 12, 13, "pass\n"),),
        call_path=(Location("train.py", 40, 1, "train"), place),
        condition=say("with several nodes"),
    )
    follower = Finding("early-exit", Severity.INFO, Confidence.MEASURED, say("plain"), consequence_of=0)
    return Report(
        "check",
        [finding, follower],
        [BlindSpot("rank-silent", say("rank {rank} was never heard", rank=2), (2,), 4)],
        {"size": 4, "ranks": [{"rank": 0}]},
        {"files": 3},
        [replace(follower, suppression="seen")],
    )
