"""`allranks run`: watches a launch, shows the verdict, writes the report."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import api
from ..config import FAIL_ON, load, severity_at_or_above
from ..errors import AllranksError
from ..findings import Finding, Report, say
from ..report import as_json, terminal
from ..report.live import FootLine
from ..report.text import console
from . import speech

if TYPE_CHECKING:
    from ..world import World


def share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """`1%`, `0.5 %` or `0.01` as a number between 0 and 1."""
    text = text.strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{text!r}: 1%, 0.01", context, parameter)
    return value


@click.command(cls=speech.Command, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option(
    "--report", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Write report.json into this folder, also when the job is killed or interrupted.",
)  # fmt: skip
@click.option(
    "--on-deadlock", type=click.Choice(["kill", "report"]), default="kill", show_default=True,
    help="What to do with a job that is proved dead: end it, or only say so.",
)  # fmt: skip
@click.option(
    "--stall", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS",
    help="Report a rank that keeps the others waiting for so long.",
)  # fmt: skip
@click.option(
    "--overhead", callback=share, default="1%", show_default=True, metavar="SHARE",
    help="How much of the job's time comparing the ranks' gradients and parameters may take.",
)  # fmt: skip
@click.option(
    "--every", type=click.IntRange(min=0), default=0, metavar="STEPS",
    help="Compare after every so many steps instead, whatever that takes.",
)  # fmt: skip
@click.option("--deep", is_flag=True, help="Compare after every step.")
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), default=None,
    help="End with status 1 when a job that succeeded has findings from this severity on; default: error.",
)  # fmt: skip
@click.option("--no-live", is_flag=True, help="No line at the foot of the terminal while the job runs.")
@click.option("-v", "--verbose", is_flag=True, help="Show all evidence: stacks, last calls, exceptions.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
@speech.language_option
def run(
    command: tuple[str, ...], folder: Path | None, on_deadlock: api.OnDeadlock, stall: float, overhead: float,
    every: int, deep: bool, fail_on: str | None, no_live: bool, verbose: bool, quiet: bool,
) -> int:  # fmt: skip
    """Run COMMAND as it is and watch every rank of it.

    \b
    allranks run -- torchrun --nproc-per-node=4 train.py
    allranks run --report out -- python train.py

    Exit status: the command's own when it is not 0; 4 when the job was proved dead and ended; 1 when it
    succeeded but findings from --fail-on on were made; else 0.
    """
    words = list(command[1:] if command[0] == "--" else command)
    chosen = fail_on or _configured() or "error"
    if folder is not None:
        _writable(folder)
    foot = FootLine(sys.stderr)
    live = not no_live and not quiet and foot.active

    shown: list[Report] = []

    def sink(report: Report) -> None:
        if folder is not None:
            write(report, folder)
        if report.statistics.get("dead") and report.loud and not shown:
            # Said at once: to end the job can take its launcher seconds, and what that prints comes after.
            foot.close()
            shown.append(report)
            terminal.show_run(report, console(sys.stderr), speech.language(), verbose=verbose)

    def news(finding: Finding) -> None:
        foot.close()
        terminal.show_news(finding, console(sys.stderr), speech.language())

    def draw(world: World) -> None:
        foot.show(status_line(world))

    try:
        report, status = api.run(
            words,
            on_deadlock=on_deadlock,
            stall_s=stall,
            overhead=overhead,
            every=every,
            deep=deep,
            live=draw if live else None,
            sink=sink,
            news=news,
        )
    finally:
        foot.close()
    if shown:
        terminal.show_ended(report, console(sys.stderr), speech.language(), killed=on_deadlock == "kill")
    elif report.loud or not quiet:
        terminal.show_run(report, console(sys.stderr), speech.language(), verbose=verbose)
    if status == 0 and severity_at_or_above(report.worst(), chosen):
        status = 1
    return status


def status_line(world: World) -> str:
    """The job in a line: ranks by state, the furthest call, who is late."""
    states = Counter(state.state for state in world.ranks.values())
    calls = [sum(h.end for h in state.histories.values()) for state in world.ranks.values()]
    words = {
        "running": say("running"), "blocked": say("waiting"), "exited": say("exited"),
        "starting": say("starting"), "silent": say("never heard from"),
    }  # fmt: skip
    shown = ", ".join(f"{count} {speech.speak(words[s])}" for s, count in states.items() if s in words)
    text = speech.speak(say("allranks: {count} ranks: {states}", count=len(world.ranks), states=shown))
    if calls:
        text += speech.speak(say("; call {calls}", calls=max(calls)))
    waiting = [r for r, state in world.ranks.items() if state.state == "blocked"]
    late = [r for r, state in world.ranks.items() if state.state == "running"]
    if waiting and late:
        state = world.ranks[late[0]]
        frame = next((f for f in reversed(state.stack) if f.user), None)
        where = f" {os.path.basename(frame.path)}:{frame.line}" if frame else ""
        text += speech.speak(say("; rank {rank} is late{where}", rank=late[0], where=where))
    return text


def _configured() -> str | None:
    """`fail-on` of the configuration; none where the working folder is gone: the job may not mind."""
    try:
        return load(Path.cwd()).fail_on
    except FileNotFoundError:
        return None


def _writable(folder: Path) -> None:
    """Fails now rather than after hours when the report cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise AllranksError(
            "report-unwritable",
            say(
                "the report cannot be written to {folder}: {error}",
                folder=folder,
                error=error.strerror or error,
            ),
            say("choose another folder with --report"),
        ) from error


def write(report: Report, folder: Path) -> None:
    """Writes report.json into `folder` atomically. A disk that is full by now is said and does not end the job."""
    temporary = folder / f".report.json.{os.getpid()}"
    try:
        temporary.write_text(as_json.dumps(report, speech.language()), "utf-8")
        temporary.replace(folder / "report.json")
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        message = say("the report could not be written: {error}", error=error.strerror or error)
        click.echo(f"allranks: {speech.speak(message)}", err=True)
