"""What is found: a Finding with its place and evidence, and the Report that holds all of one command.

A `Report` is the one object between finding and showing. It can be saved, loaded and shown again in
every form and language without another run.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the cache of `check` evaluates annotations
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

FORMAT = 1
"""Version of the public JSON form of a report."""


class Severity(str, Enum):
    """How bad: `error` (the result is wrong or the job dies), `warning` (it will under some condition), `info`."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def weight(self) -> int:
        """2 for error, 1 for warning, 0 for info: larger is worse."""
        return {"error": 2, "warning": 1, "info": 0}[self.value]

    @property
    def loud(self) -> bool:
        """True for errors and warnings: what a user must look at."""
        return self is not Severity.INFO


class Confidence(str, Enum):
    """How sure: `proved` by logic, `measured` in the run, `inferred` from source or text."""

    PROVED = "proved"
    MEASURED = "measured"
    INFERRED = "inferred"


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence in English with named holes, and what fills them; translated when it is shown.

    `template` is the gettext message id, in `str.format` form ("rank {rank} left the loop").
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return fill(self.template, self.values)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """`template` with its holes filled; nested `Text` values are filled too. Never raises on a missing value."""
    if not values:
        return template
    try:
        return template.format_map({key: str(value) for key, value in values.items()})
    except (KeyError, IndexError, ValueError):
        return template


def say(template: str, /, **values: Any) -> Text:
    """The sentence `template` with `values` in its holes; the marker by which gettext extracts messages."""
    return Text(template, values)


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file: 1-based `line` and `column`, the function it stands in, and its role if it is not
    the primary place ("the others wait here"). In a notebook `cell` is the 1-based number of the cell, and
    lines are counted within it."""

    path: str
    line: int | None = None
    column: int | None = None
    function: str | None = None
    end_line: int | None = None
    role: Text | None = None
    ranks: tuple[int, ...] = ()
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a sceptic would ask to see.

    `kind` is one of stack, cycle, calls, digest, log, source, exit, environment, counts; `title` says what it
    is; `lines` is the text as it was observed (never translated); `ranks` whom it concerns.
    """

    kind: str
    title: Text
    lines: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A safe change of one file: the text of `start_line`..`end_line` (1-based, inclusive) becomes `text`."""

    path: str
    start_line: int
    end_line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One instance of a fault. `fault` is a slug of the catalogue; `condition` says when it bites, if not always."""

    fault: str
    severity: Severity
    confidence: Confidence
    message: Text
    location: Location | None = None
    related: tuple[Location, ...] = ()
    ranks: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    fix: Text | None = None
    edits: tuple[Edit, ...] = ()
    call_path: tuple[Location, ...] = ()
    condition: Text | None = None
    consequence_of: int | None = None
    """Index in `Report.findings` of the finding this one follows from; None for a root cause."""
    suppression: str | None = None
    """The reason that a comment in the source gives for hiding it ("" for none); see `Report.suppressed`."""


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """Something that was not seen, and why: silence would look like health."""

    slug: str
    message: Text
    ranks: tuple[int, ...] = ()
    count: int = 1


Command = Literal["run", "check", "explain"]


@dataclass(slots=True)
class Report:
    """All that one command found, root causes first; `world` is a summary of the ranks (`run`, `explain`)."""

    command: Command
    findings: list[Finding] = field(default_factory=list)
    blind_spots: list[BlindSpot] = field(default_factory=list)
    world: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    suppressed: list[Finding] = field(default_factory=list)
    """Findings that a comment in the source hides: counted nowhere, kept by forms that know suppressions."""

    @property
    def loud(self) -> list[Finding]:
        """The findings that a user must look at, in order."""
        return [finding for finding in self.findings if finding.severity.loud]

    def worst(self) -> Severity | None:
        """The worst severity found, or None."""
        return max((f.severity for f in self.findings), key=lambda s: s.weight, default=None)
