"""A Report as lines for a terminal or a file: one finding a block, with the code that it is about."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as Line

from ..findings import BlindSpot, Evidence, Finding, Location, Report, Severity, Text, say
from ..messages import render
from .code import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}

_BEFORE, _AFTER = 2, 1
"""Lines of code shown around a place."""
_EVIDENCE_LINES = 20


def console(stream: IO[str], *, colour: bool | None = None) -> Console:
    """A console that never wraps, and colours only where `colour` or the stream asks for it."""
    return Console(
        file=stream,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=colour,
        legacy_windows=False,
    )


def show(
    report: Report,
    out: Console,
    language: str = "en",
    *,
    sources: Sources | None = None,
    quiet: bool = False,
    statistics: bool = False,
) -> None:
    """Prints `report` to `out`, sentences in `language`; files that cannot be read are shown without code.

    `quiet` leaves out code, advice and the closing lines; `statistics` prints counts instead of findings.
    """
    if statistics:
        _print(out, _statistics(report.findings, language))
    else:
        for finding in report.findings:
            _print(out, [headline(finding, language)])
            if not quiet:
                _print(out, _body(finding, sources or Sources(), language))
    if not quiet:
        _print(out, _closing(report, language))


def _print(out: Console, lines: Iterable[Line]) -> None:
    for line in lines:
        out.print(line)


def headline(finding: Finding, language: str) -> Line:
    """place: severity [fault] message."""
    line = Line()
    if finding.location is not None:
        line.append(spot(finding.location), "bold")
        line.append(": ")
    line.append(render(SEVERITY[finding.severity], language), STYLES[finding.severity])
    line.append(f" [{finding.fault}] ", "bold")
    line.append(render(finding.message, language))
    return line


def spot(place: Location) -> str:
    """path:line:column, as editors and terminals make links of it; path:cell N:line:column in a notebook."""
    cell = [f"cell {place.cell}"] if place.cell is not None else []
    numbers = [str(number) for number in (place.line, place.column) if number is not None]
    return ":".join([place.path, *cell, *numbers])


def _body(finding: Finding, sources: Sources, language: str) -> Iterator[Line]:
    width = 3
    if finding.location is not None:
        frame = list(_frame(finding.location, sources))
        yield from frame
        width = max((cell_len(line.plain.partition("|")[0]) for line in frame), default=width)
    margin = " " * (width - 1)
    for label, text in _remarks(finding, language):
        yield Line.assemble((f"{margin} = ", "blue"), (f"{label}: ", "bold"), text)
    for item in finding.evidence:
        yield from _evidence(item, margin, language)
    yield Line()


def _remarks(finding: Finding, language: str) -> Iterator[tuple[str, str]]:
    """(label, text) of everything that is said beside the message."""

    def label(text: Text) -> str:
        return render(text, language)

    if finding.condition is not None:
        yield label(say("when")), render(finding.condition, language)
    for place in finding.related:
        role = render(place.role, language) if place.role else ""
        yield label(say("see")), f"{spot(place)} {role}".rstrip()
    for place in finding.call_path:
        inside = render(say("in {function}", function=place.function), language) if place.function else ""
        yield label(say("path")), f"{spot(place)} {inside}".rstrip()
    if finding.fix is not None:
        yield label(say("fix")), render(finding.fix, language)


def _evidence(item: Evidence, margin: str, language: str) -> Iterator[Line]:
    yield Line.assemble((f"{margin} = ", "blue"), render(item.title, language))
    for line in item.lines[:_EVIDENCE_LINES]:
        yield Line(f"{margin}     {line}", "dim")
    if len(item.lines) > _EVIDENCE_LINES:
        yield Line(f"{margin}     ...", "dim")


def _frame(place: Location, sources: Sources) -> Iterator[Line]:
    """The code around `place`, its line marked; nothing when the file cannot be read."""
    if place.line is None:
        return
    lines = sources.lines(place.path, place.cell)
    if not 1 <= place.line <= len(lines):
        return
    first, last = max(place.line - _BEFORE, 1), min(place.line + _AFTER, len(lines))
    width = len(str(last))
    for number in range(first, last + 1):
        code = lines[number - 1].expandtabs(4)
        yield Line.assemble((f"{number:>{width}} | ", "blue"), code.rstrip())
        if number == place.line:
            start, length = _mark(lines[number - 1], place.column)
            yield Line.assemble((f"{'':>{width}} | ", "blue"), (" " * start + "^" * length, "bold red"))


def _mark(line: str, column: int | None) -> tuple[int, int]:
    """Where the mark under `line` begins, and how long it is, in cells of a terminal."""
    begin = column - 1 if column else len(line) - len(line.lstrip())
    begin = min(begin, len(line))
    code = line[begin:].split("  #")[0].rstrip()
    return cell_len(line[:begin].expandtabs(4)), max(cell_len(code.expandtabs(4)), 1)


def _statistics(findings: Iterable[Finding], language: str) -> Iterator[Line]:
    """Findings by kind, the commonest first."""
    counts = Counter((finding.fault, finding.severity) for finding in findings)
    width = len(str(max(counts.values(), default=0)))
    for (fault, severity), count in counts.most_common():
        style = STYLES[severity]
        yield Line.assemble(f"{count:>{width}} ", (render(SEVERITY[severity], language), style), f" {fault}")


def _closing(report: Report, language: str) -> Iterator[Line]:
    for blind_spot in _merged(report.blind_spots):
        times = f" (x{blind_spot.count})" if blind_spot.count > 1 else ""
        title = render(say("note"), language)
        yield Line.assemble((f"{title}: ", "bold blue"), render(blind_spot.message, language), times)
    counts = Counter(finding.severity for finding in report.findings)
    total = len(report.findings)
    if total:
        summary = say(
            "Found {total} (error: {errors}, warning: {warnings}, info: {infos}).",
            total=total,
            errors=counts[Severity.ERROR],
            warnings=counts[Severity.WARNING],
            infos=counts[Severity.INFO],
        )
        yield Line(render(summary, language), "bold")
        worst = max(report.findings, key=lambda finding: finding.severity.weight)
        advice = say("`allranks faults {fault}` explains a kind of fault.", fault=worst.fault)
        yield Line(render(advice, language), "dim")
    else:
        yield Line(render(say("Nothing found."), language), "bold green")


def _merged(spots: Iterable[BlindSpot]) -> Iterator[BlindSpot]:
    """Equal blind spots as one with their number."""
    merged: dict[str, BlindSpot] = {}
    for blind_spot in spots:
        key = str(blind_spot.message)
        before = merged.get(key)
        count = blind_spot.count + (before.count if before else 0)
        merged[key] = BlindSpot(blind_spot.slug, blind_spot.message, blind_spot.ranks, count)
    yield from merged.values()


SEVERITY = {
    Severity.ERROR: say("error"),
    Severity.WARNING: say("warning"),
    Severity.INFO: say("info"),
}
