"""The verdict of a run in the terminal: what happened, the code, the ranks, the proof, what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text as Line

from ..faults import catalogue
from ..findings import Evidence, Finding, Location, Report, say
from ..messages import render
from .code import Sources
from .text import SEVERITY, STYLES, headline, spot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_AROUND = 1
"""Lines of code shown before and after each place of a frame."""
_TABLE_RANKS = 16
"""Rows of the table of ranks; a larger job shows the ranks at fault and says how many are left out."""
_EVIDENCE = 12


def show_run(
    report: Report,
    out: Console,
    language: str = "en",
    *,
    sources: Sources | None = None,
    verbose: bool = False,
) -> None:
    """Prints the verdict of `allranks run`, the first loud finding as the headline and the rest in a line each.

    `verbose` adds the evidence of every finding (the stacks, the last calls). Prints nothing but blind spots
    when nothing loud was found, and where the ranks stood when the job was interrupted.
    """
    speak = _Speaker(out, language, sources or Sources())
    loud = report.loud
    if loud:
        speak.verdict(loud[0], report, verbose)
    elif report.statistics.get("interrupted"):
        speak.interrupted(report)
    for finding in [*loud[1:], *(f for f in report.findings if not f.severity.loud)]:
        speak.brief(finding)
    for blind in report.blind_spots:
        out.print(
            Line.assemble((render(say("not seen: "), language), "bold blue"), render(blind.message, language))
        )
    seen = report.statistics.get("optimizer_steps")
    if verbose and seen:
        text = say("gradients and parameters were compared at {compared} of {steps} optimizer steps", **seen)
        out.print(Line(render(text, language), "dim"))
    if report.findings:
        advice = say("more: allranks faults {fault}", fault=(loud or report.findings)[0].fault)
        out.print(Line(render(advice, language), "dim"))


def show_news(finding: Finding, out: Console, language: str = "en") -> None:
    """One line on an error that a running job goes on with."""
    said = render(say("so far: "), language)
    out.print(Line.assemble(("allranks: ", "bold"), said, headline(finding, language)))


def show_ended(report: Report, out: Console, language: str = "en", *, killed: bool) -> None:
    """The last line after a verdict that was shown while the job lived: what launchers print at their end has come
    in between."""
    finding = report.loud[0]
    place = spot(finding.location) if finding.location is not None else finding.fault
    if killed:
        text = say(
            "the job was proved dead and ended: {fault} at {place}, see above",
            fault=finding.fault,
            place=place,
        )
    else:
        text = say("the job was proved dead: {fault} at {place}, see above", fault=finding.fault, place=place)
    out.print(Line.assemble(("allranks: ", "bold"), (render(text, language), STYLES[finding.severity])))


class _Speaker:
    def __init__(self, out: Console, language: str, sources: Sources) -> None:
        self.out, self.language, self.sources = out, language, sources

    def say(self, template: str, /, **values: Any) -> str:
        return render(say(template, **values), self.language)

    def verdict(self, finding: Finding, report: Report, verbose: bool) -> None:
        """The whole verdict of one finding."""
        title = catalogue()[finding.fault].title(self.language)
        style = STYLES[finding.severity]
        self.out.print()
        severity = render(SEVERITY[finding.severity], self.language)
        self.out.print(
            Line.assemble(("allranks: ", "bold"), (severity, style), (f" [{finding.fault}] {title}", "bold"))
        )
        self.out.print(Line(render(finding.message, self.language)))
        self.out.print()
        for line in self.code(finding):
            self.out.print(line)
        self.table(finding.ranks, report)
        self.proof(finding, report)
        if verbose:
            for item in finding.evidence:
                if item.kind != "cycle":
                    self.evidence(item)
        if finding.fix is not None:
            self.out.print(
                Line.assemble((self.say("mend: "), "bold green"), render(finding.fix, self.language))
            )

    def code(self, finding: Finding) -> Iterator[Line]:
        """The code of the cause, with the places where the ranks wait, file by file."""
        places = [p for p in (finding.location, *finding.related) if p is not None and p.line is not None]
        for path in dict.fromkeys(place.path for place in places):
            yield from self._file(path, [place for place in places if place.path == path], finding.location)

    def _file(self, path: str, places: list[Location], cause: Location | None) -> Iterator[Line]:
        lines = self.sources.lines(path)
        notes: dict[int, list[str]] = {}
        for place in places:
            assert place.line is not None
            if place is not cause:
                notes.setdefault(place.line, []).append(
                    render(place.role, self.language) if place.role else ""
                )
        shown = sorted(
            {n for p in places for n in range((p.line or 1) - _AROUND, (p.line or 1) + _AROUND + 1)}
        )
        shown = [n for n in shown if 1 <= n <= len(lines)]
        if not shown:
            for place in places:
                yield Line.assemble(
                    (spot(place), "bold"), f"  {render(place.role, self.language) if place.role else ''}"
                )
            return
        yield Line(spot(cause) if cause is not None and cause.path == path else path, "bold")
        width = len(str(shown[-1]))
        previous = shown[0] - 1
        for number in shown:
            if number != previous + 1:
                yield Line(f"  {'':>{width}} ⋮", "blue")
            previous = number
            is_cause = cause is not None and cause.path == path and number == cause.line
            line = Line.assemble(
                ("> " if is_cause else "  ", "bold red"), (f"{number:>{width}} │ ", "blue"),
                (lines[number - 1].expandtabs(4).rstrip(), "bold" if is_cause else ""),
            )  # fmt: skip
            if notes.get(number):
                between = "；" if self.language == "zh" else "; "
                line.append(f"   ← {between.join(filter(None, notes[number]))}", "yellow")
            yield line
        yield Line()

    def interrupted(self, report: Report) -> None:
        """Where the ranks were when somebody lost patience."""
        if report.world.get("ranks"):
            self.out.print()
            self.out.print(
                Line.assemble(
                    ("allranks: ", "bold"), self.say("interrupted; nothing is proved. The ranks stood here:")
                )
            )
            self.table((), report)

    def table(self, at_fault: tuple[int, ...], report: Report) -> None:
        """The ranks: who is where. Of many ranks, those at fault and some of the others."""
        rows: list[dict[str, Any]] = list(report.world.get("ranks", ()))
        if not rows:
            return
        rows.sort(key=lambda row: (row["rank"] not in at_fault, row["rank"]))
        left_out = len(rows) - _TABLE_RANKS
        shown = sorted(rows[:_TABLE_RANKS], key=lambda row: row["rank"])
        table = Table(box=None, pad_edge=False, header_style="dim")
        for header in (say("rank"), say("state"), say("where"), say("in"), say("calls")):
            table.add_column(render(header, self.language), overflow="fold")
        for row in shown:
            style = "bold red" if row["rank"] in at_fault else ""
            table.add_row(
                str(row["rank"]), self._state(row), _where(row), _inside(row),
                str(row.get("calls", "")), style=style,
            )  # fmt: skip
        self.out.print(table)
        if left_out > 0:
            self.out.print(
                Line(self.say("and {count} more ranks (--report has them all)", count=left_out), "dim")
            )
        self.out.print()

    def _state(self, row: dict[str, Any]) -> str:
        words = {
            "starting": say("starting"), "running": say("running"), "blocked": say("blocked"),
            "exited": say("exited"), "silent": say("never heard from"),
        }  # fmt: skip
        state = render(words.get(row["state"], say("unknown")), self.language)
        ended = row.get("exit") or {}
        how = (ended.get("signal") and f"signal {ended['signal']}") or ended.get("status")
        return f"{state} ({how})" if how else state

    def proof(self, finding: Finding, report: Report) -> None:
        """The circle of waiting ranks and how quickly it was seen."""
        for item in finding.evidence:
            if item.kind == "cycle":
                self.evidence(item)
        latency = report.statistics.get("verdict_latency_s")
        if latency is not None:
            text = self.say("proved {seconds} s after the last rank blocked", seconds=f"{latency:.2f}")
            self.out.print(Line(text, "dim"))

    def evidence(self, item: Evidence) -> None:
        """One piece of evidence, its lines indented."""
        self.out.print(Line(render(item.title, self.language), "bold"))
        for line in item.lines[:_EVIDENCE]:
            self.out.print(Line(f"  {line}", "dim"))

    def brief(self, finding: Finding) -> None:
        """A finding in one line."""
        self.out.print(headline(finding, self.language))


def _where(row: dict[str, Any]) -> str:
    """The line at which a rank stands, or made its last call."""
    site = row.get("site")
    return f"{os.path.basename(site['path'])}:{site['line']} {site['function']}" if site else ""


def _inside(row: dict[str, Any]) -> str:
    """What a blocked rank waits in."""
    wait = row.get("wait")
    if not wait:
        return ""
    return " ".join(str(word) for word in (wait.get("inside"), wait.get("op") or wait.get("kind")) if word)
