"""A verdict in findings: what happened, the log's own lines, what follows from it, what else is possible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..faults import catalogue
from ..findings import Confidence, Evidence, Finding, Location, Severity, Text, say
from .ranks import named, ranks_of

if TYPE_CHECKING:
    from ..world import Frame
    from .logs import Line
    from .match import Incident, Story
    from .narrow import Narrowed

_LONGEST_LINE = 400
_EVIDENCE = 8
_CONSEQUENCES = 4


@dataclass(slots=True)
class Verdict:
    """A fault with everything that goes into its finding."""

    fault: str
    message: Text
    ranks: tuple[int, ...] = ()
    frame: Frame | None = None
    fix: Text | None = None
    lines: list[Line] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    others: list[tuple[str, Text]] = field(default_factory=list)
    """Other possibilities: fault and how to tell."""
    sure: bool = False
    narrowed: Narrowed | None = None
    """The statement at fault, where the source is at hand."""
    severity: Severity | None = None


def findings_of(verdict: Verdict, story: Story) -> list[Finding]:
    """The verdict first, then other possibilities, then what follows from it."""
    possible = [_possibility(verdict, fault, how) for fault, how in verdict.others]
    return [_finding(verdict, story), *possible, *_consequences(verdict, story)]


def _finding(verdict: Verdict, story: Story) -> Finding:
    place, message = _location(verdict.frame), verdict.message
    related: tuple[Location, ...] = ()
    if verdict.narrowed is not None:
        waits_here = _location(verdict.frame, say("the others wait here"))
        if verdict.fault == "collective-order":
            there = verdict.narrowed.location
            same = place is not None and (place.path, place.line) == (there.path, there.line)
            related = () if same else (there,)
        else:
            place, related = verdict.narrowed.location, (waits_here,) if waits_here else ()
            message = say("{what}: {how}", what=message, how=verdict.narrowed.how)
    return Finding(
        fault=verdict.fault,
        severity=verdict.severity or catalogue()[verdict.fault].severity,
        confidence=Confidence.MEASURED if verdict.sure else Confidence.INFERRED,
        message=message,
        location=place,
        related=related,
        ranks=verdict.ranks,
        evidence=tuple(_evidence(verdict, story)),
        fix=verdict.fix,
    )


def _location(frame: Frame | None, role: Text | None = None) -> Location | None:
    return Location(frame.path, frame.line, function=frame.function or None, role=role) if frame else None


def _evidence(verdict: Verdict, story: Story) -> list[Evidence]:
    found = [Evidence("log", say("what the log says"), quoted(verdict.lines, story), verdict.ranks)]
    named_in_it = {
        key: value
        for one in verdict.incidents[:1]
        for reading in one.readings[:1]
        for key, value in reading.captures.items()
    }
    if named_in_it:
        lines = tuple(f"{key}: {value[:_LONGEST_LINE]}" for key, value in sorted(named_in_it.items()))
        found.append(Evidence("log", say("what it names"), lines, verdict.ranks))
    exits = [one.line for one in story.launch.exits if one.first][:1]
    if exits and not set(exits) & set(verdict.lines):
        found.append(Evidence("log", say("the launcher saw this process die first"), quoted(exits, story)))
    return [item for item in found if item.lines]


def _possibility(verdict: Verdict, fault: str, how: Text) -> Finding:
    return Finding(
        fault=fault,
        severity=Severity.INFO,
        confidence=Confidence.INFERRED,
        message=say("less likely, but the log does not rule this out"),
        fix=how,
        location=_location(verdict.frame),
        ranks=verdict.ranks,
    )


def _consequences(verdict: Verdict, story: Story) -> list[Finding]:
    """What follows from the verdict: victims, and failures of other ranks that came later."""
    later = [incident for incident in story.of("victim", "cause") if incident not in verdict.incidents]
    found = []
    for incident in later[:_CONSEQUENCES]:
        if incident.fault == verdict.fault and incident.role == "cause":
            continue
        ranks = ranks_of(incident, story.launch)
        if incident.readings:
            what = incident.readings[0].message
            message = say("follows from it: {what} ({ranks})", what=what, ranks=named(ranks))
        else:
            message = say("came later: {error} ({ranks})", error=brief(incident.text), ranks=named(ranks))
        found.append(
            Finding(
                fault=verdict.fault,
                severity=Severity.INFO,
                confidence=Confidence.INFERRED,
                message=message,
                location=_location(incident.frame),
                ranks=ranks,
                evidence=(
                    Evidence("log", say("what the log says"), quoted(incident.lines[-1:], story), ranks),
                ),
                consequence_of=0,
            )
        )
    return found


def note(incident: Incident, story: Story) -> Finding:
    """A warning that is no failure, as a finding of severity info."""
    reading = incident.readings[0]
    ranks = ranks_of(incident, story.launch)
    return Finding(
        fault=reading.fault,
        severity=Severity.INFO,
        confidence=Confidence.INFERRED,
        message=reading.message,
        location=_location(incident.frame),
        ranks=ranks,
        evidence=(Evidence("log", say("what the log says"), quoted(incident.lines[:2], story), ranks),),
        fix=reading.advice,
    )


def follows(note: Incident) -> bool:
    """A group that is not destroyed is no news of a job that died."""
    return note.signature == "group-not-destroyed"


def quoted(lines: list[Line] | tuple[Line, ...], story: Story) -> tuple[str, ...]:
    """Lines of the log with their numbers, in order, each once; with the file's name where there are several."""
    several = len(story.files) > 1
    shown = []
    for line in sorted(set(lines), key=lambda one: (one.origin.file, one.number))[:_EVIDENCE]:
        text = line.raw if len(line.raw) <= _LONGEST_LINE else f"{line.raw[:_LONGEST_LINE]} ..."
        shown.append(f"{line.origin.file}:{line.number}: {text}" if several else f"{line.number}: {text}")
    return tuple(shown)


def brief(text: str) -> str:
    """The first line of an exception's text, cut to a readable length."""
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= 200 else f"{first[:200]} ..."
