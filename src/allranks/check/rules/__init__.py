"""The registry of rules: pure functions from a program to findings, one file per group of the catalogue.

    @finds("epoch-not-set")
    def epoch_not_set(program: Program) -> Iterator[Finding]:
        '''What it looks for, and what it must not be misled by.'''
        ...
        yield found("epoch-not-set", place, say("..."), fix=say("..."))

A rule keeps no state and prints nothing. What two rules share goes down into `source`, never sideways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ...faults import catalogue
from ...findings import Confidence, Edit, Evidence, Finding, Location, Severity, Text

if TYPE_CHECKING:
    from ...source.program import Program

MODULES = (
    "launch",
    "devices",
    "step",
    "wrapping",
    "gradients",
    "accumulation",
    "data",
    "outputs",
    "precision",
    "buffers",
    "waste",
)
"""The files of this package, in the order of the catalogue's groups; large groups have several."""

Judge = Callable[["Program"], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule: the faults that it can find and the function that does."""

    faults: tuple[str, ...]
    judge: Judge

    @property
    def name(self) -> str:
        """The function's name, for a report of its failure."""
        return self.judge.__name__


_RULES: list[Rule] = []


def finds(*faults: str) -> Callable[[Judge], Judge]:
    """Registers the decorated function as the rule for `faults`, which must stand in the catalogue."""
    for fault in faults:
        assert fault in catalogue(), fault

    def register(judge: Judge) -> Judge:
        _RULES.append(Rule(faults, judge))
        return judge

    return register


def registered() -> Iterator[Rule]:
    """Every rule, in the order of the groups' files."""
    # Not at the top: each of them imports this module for `finds`.
    for module in MODULES:
        import_module(f"{__name__}.{module}")
    yield from _RULES


def found(
    fault: str,
    location: Location,
    message: Text,
    *,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.INFERRED,
    condition: Text | None = None,
    fix: Text | None = None,
    related: Iterable[Location] = (),
    call_path: Iterable[Location] = (),
    evidence: Iterable[Evidence] = (),
    edits: Iterable[Edit] = (),
    ranks: Iterable[int] = (),
) -> Finding:
    """A finding of `fault`, which needs a place; its severity is the catalogue's unless another is given."""
    return Finding(
        fault=fault,
        severity=severity or catalogue()[fault].severity,
        confidence=confidence,
        message=message,
        location=location,
        related=tuple(related),
        ranks=tuple(ranks),
        evidence=tuple(evidence),
        fix=fix,
        edits=tuple(edits),
        call_path=tuple(call_path),
        condition=condition,
    )
