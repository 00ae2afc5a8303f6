"""`allranks explain`: from what a dead job left behind to the reason why it died."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import api
from ..config import FAIL_ON, FORMATS, load, severity_at_or_above
from ..errors import AllranksError
from ..findings import Report, say
from . import speech

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_S = 0.7
"""No progress is shown for what is done sooner."""


@click.command(cls=speech.Command)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    help="Severity from which the exit status is 1.  [default: warning]",
)
@click.option("--exit-zero", is_flag=True, help="Exit with status 0 whatever is found.")
@click.option("--output-format", type=click.Choice(FORMATS), help="Form of the report.  [default: text]")
@click.option(
    "--output-file",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to this file.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Read the dumps on the dask cluster whose scheduler has this address, for more than one machine holds.",
)
@click.option("--quiet", "-q", is_flag=True, help="One line a finding, nothing else.")
@speech.language_option
def explain(
    paths: tuple[Path, ...],
    fail_on: str | None,
    exit_zero: bool,
    output_format: str | None,
    output_file: Path | None,
    cluster: str | None,
    quiet: bool,
) -> int:
    """Explain why a job died, from what it left behind.

    PATHS are logs (also packed with gzip, zstd, xz or bzip2), folders of logs, error files of torchrun,
    flight-recorder dumps, stacks from py-spy, report folders of `allranks run`, in any mixture; `-` is standard
    input.

    \b
    allranks explain slurm-1234.out
    allranks explain logs/ dumps/
    kubectl logs job/train --all-containers --prefix | allranks explain -

    Exit status: 0 the logs show no failure, 1 findings at or above --fail-on, 2 nothing could be read.
    """
    config = load(Path.cwd())
    report = _saved(paths)
    if report is None:
        with _progress(enabled=not quiet) as progress:
            report = api.explain(paths, progress=progress, cluster=cluster)
    _show(report, output_format or config.output_format or "text", output_file, quiet=quiet)
    failed = severity_at_or_above(report.worst(), fail_on or config.fail_on or "warning")
    return 1 if failed and not exit_zero else 0


def _saved(paths: tuple[Path, ...]) -> Report | None:
    """The report that an earlier run wrote, when that is all that is asked for."""
    if len(paths) != 1 or str(paths[0]) == "-":
        return None
    file = paths[0] / "report.json" if paths[0].is_dir() else paths[0]
    if not file.is_file() or file.suffix != ".json":
        return None
    from ..report import as_json

    with file.open("rb") as stream:
        head = stream.read(4096)
    if b'"findings"' not in head or b'"format"' not in head:
        return None
    return as_json.load(file.read_bytes())


def _show(report: Report, form: str, target: Path | None, *, quiet: bool) -> None:
    language = speech.language()
    if form != "text":
        from ..report import as_json, github, sarif

        text = {"json": as_json, "sarif": sarif, "github": github}[form].dumps(report, language)
        _write(text, target)
        return
    shown = ""
    if report.findings or report.blind_spots:
        from io import StringIO

        from ..report import text as as_text

        buffer = StringIO()
        colour = target is None and sys.stdout.isatty()
        as_text.show(report, as_text.console(buffer, colour=colour), language, quiet=quiet)
        shown = buffer.getvalue()
    if not report.loud and not quiet and (report.findings or not report.blind_spots):
        healthy = say("No sign of a failure. Lines read: {lines}.", lines=report.statistics.get("lines", 0))
        shown += f"{speech.speak(healthy)}\n"
    _write(shown, target)


def _write(text: str, target: Path | None) -> None:
    """`text` as UTF-8, whatever the locale."""
    data = text.encode("utf-8", "replace")
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        sentence = say("{path} cannot be written: {error}", path=target, error=error.strerror or error)
        raise AllranksError(
            "output-unwritable", sentence, say("choose another file with --output-file")
        ) from error


@contextmanager
def _progress(*, enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A callback (done, total) that draws a bar on standard error, once the work takes its time."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("allranks explain")
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        if time.monotonic() - began > _PATIENCE_S:
            bar.start()
            bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        bar.stop()
