"""Faults of a job that goes on or has ended well and is wrong all the same: the findings of all rules that see them.

A rule says nothing where another fault explains what it sees; so several findings may stand beside each other,
errors before warnings before notes, and within one severity in the order of the groups and their rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faults import catalogue
from ..findings import Severity
from .rules import buffers, data, gradients, outputs, precision, randomness, waste

if TYPE_CHECKING:
    from ..findings import Finding
    from .case import Case
    from .rules import Rule

GROUPS = (
    gradients.RULES,
    data.RULES,
    randomness.RULES,
    outputs.RULES,
    precision.RULES,
    buffers.RULES,
    waste.RULES,
)
REST = "replicas-diverged"
"""What is said of replicas that differ when no other error on gradients or precision says why."""


def findings(case: Case, root: Finding | None = None) -> list[Finding]:
    """What the hooks of the ranks saw go wrong without a word, the worst first.

    Beside a `root` that ended the job, or would have, only errors are told: the rest waits for a run that gets through.
    """
    found = [finding for rules in GROUPS for rule in rules if (finding := _asked(rule, case)) is not None]
    if any(f.severity is Severity.ERROR and f.fault != REST and _moves(f) for f in found):
        found = [f for f in found if f.fault != REST]
    if root is not None and root.severity is Severity.ERROR:
        told = {root.fault, REST} if _moves(root) else {root.fault}
        found = [f for f in found if f.severity is Severity.ERROR and f.fault not in told]
    return sorted(found, key=lambda finding: -finding.severity.weight)


def refined(case: Case, root: Finding) -> Finding:
    """What ended the job, by the cause that the ranks' hooks saw, where there is one behind it."""
    if root.fault == "unused-parameters":
        return gradients.changed(case, root) or root
    if root.fault == "sync-batch-norm-misplaced":
        return buffers.converted(case, root) or root
    if root.fault == "child-failed-first":
        return outputs.unwhole(case, root) or root
    return root


def _asked(rule: Rule, case: Case) -> Finding | None:
    """A rule's answer; none where what a rank told has not the form that the rule knows: guests may be newer."""
    try:
        return rule.judge(case)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _moves(finding: Finding) -> bool:
    """True for a fault that can part replicas."""
    return catalogue()[finding.fault].group in ("gradients", "precision")
