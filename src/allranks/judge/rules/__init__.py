"""The registry of the judge's rules: pure functions from a case to a finding, one file per group of the catalogue.

    @finds("early-exit")
    def early_exit(case: Case) -> Finding | None:
        ...

Rules of one group are tried in the order in which they stand; the first that answers gives the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...faults import catalogue
from ...findings import Confidence, Evidence, Finding, Location, Severity, Text
from ..case import Case

Judge = Callable[[Case], "Finding | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule: the fault it finds and the function that does."""

    fault: str
    judge: Judge


class Rules(list[Rule]):
    """The rules of one group, in order."""

    def finds(self, fault: str) -> Callable[[Judge], Judge]:
        """Registers the decorated function as a rule for `fault`, which must stand in the catalogue."""
        assert fault in catalogue(), fault

        def register(judge: Judge) -> Judge:
            self.append(Rule(fault, judge))
            return judge

        return register

    def first(self, case: Case) -> Finding | None:
        """The answer of the first rule that has one."""
        for rule in self:
            finding = rule.judge(case)
            if finding is not None:
                return finding
        return None


def found(
    fault: str,
    message: Text,
    location: Location | None,
    *,
    ranks: tuple[int, ...] = (),
    confidence: Confidence = Confidence.MEASURED,
    severity: Severity | None = None,
    related: tuple[Location, ...] = (),
    evidence: tuple[Evidence | None, ...] = (),
    fix: Text | None = None,
) -> Finding:
    """A finding of `fault` with the catalogue's severity unless another is given; evidence that is None is left out."""
    return Finding(
        fault=fault,
        severity=severity or catalogue()[fault].severity,
        confidence=confidence,
        message=message,
        location=location,
        related=related,
        ranks=tuple(sorted(ranks)),
        evidence=tuple(e for e in evidence if e is not None),
        fix=fix,
    )
