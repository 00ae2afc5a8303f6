"""`allranks check`: findings from the source alone."""

from __future__ import annotations

import difflib
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .. import api
from .. import config as configuration
from ..config import FAIL_ON, FORMATS, Config, severity_at_or_above
from ..errors import AllranksError
from ..findings import Report, say
from ..messages import render
from . import speech

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_PATIENCE_S = 0.7
"""No progress is shown for what is done sooner."""


def _split(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Values given by repeating an option and by commas alike; None when it was not given."""
    parts = tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    return parts if values else None


@click.command(cls=speech.Command)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--select", multiple=True, callback=_split, metavar="FAULT,...", help="Faults or groups to look for."
)
@click.option(
    "--ignore", multiple=True, callback=_split, metavar="FAULT,...", help="Faults or groups to leave out."
)
@click.option(
    "--exclude",
    multiple=True,
    callback=_split,
    metavar="PATTERN,...",
    help="Files and folders to pass over, in place of the usual ones.",
)
@click.option(
    "--extend-exclude",
    multiple=True,
    callback=_split,
    metavar="PATTERN,...",
    help="Like --exclude, beside the usual ones.",
)
@click.option("--fix", is_flag=True, help="Mend what is safe to mend, in place.")
@click.option("--diff", is_flag=True, help="Show what --fix would change; write nothing.")
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
@click.option("--statistics", is_flag=True, help="Count findings by kind instead of listing them.")
@click.option("--quiet", "-q", is_flag=True, help="One line a finding, nothing else.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked, and stop.")
@click.option(
    "--stdin-filename",
    type=click.Path(path_type=Path),
    help="What to call the source that `-` reads from standard input.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="This pyproject.toml or allranks.toml instead of the nearest.",
)
@click.option("--isolated", is_flag=True, help="Ignore configuration files.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache.")
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="ALLRANKS_CACHE_DIR",
    help="Where the cache lies.",
)
@speech.language_option
def check(paths: tuple[Path, ...], **options: Any) -> int:
    """Find faults in the source of training programs, without running them.

    PATHS are scripts, notebooks or folders; the working folder by default, `-` for standard input. Local
    modules that a script imports are read too. `allranks faults FAULT` explains a kind of fault, and a
    comment `# allranks: ignore[FAULT] reason` hides one.

    Exit status: 0 nothing found, 1 findings at or above --fail-on, 2 the check could not be done.
    """
    return _check(paths or (Path("."),), **options)


def _check(
    paths: tuple[Path, ...], *, show_files: bool, fix: bool, diff: bool, exit_zero: bool, **options: Any
) -> int:
    """Does the work; the exit status."""
    try:
        Path.cwd()
    except OSError as error:
        sentence = say("the working folder is gone")
        raise AllranksError("folder-gone", sentence, say("change to one that exists: cd")) from error
    config = _config(paths, options)
    language = _language(config)
    if show_files:
        _write("".join(f"{name}\n" for name in api.files(paths, config)))
        return 0
    stdin = _stdin(paths, options["stdin_filename"])
    texts = dict([stdin]) if stdin else {}
    cache = None if options["no_cache"] else options["cache_dir"] or api.cache_folder()
    form = config.output_format or "text"
    with _progress(enabled=not options["quiet"]) as progress:
        if fix or diff:
            mended = api.mend(paths, config, texts=texts, write=fix and not diff, progress=progress)
            report, changes = mended.report, mended.changes
        else:
            edits = form in ("json", "sarif")
            report = api.check(paths, config, texts=texts, cache=cache, edits=edits, progress=progress)
            changes = []
    if diff:
        _write(
            "".join(line for change in changes for line in _diff(change.path, change.before, change.after))
        )
        return 1 if changes and not exit_zero else 0
    if stdin is not None and fix:
        _write(changes[0].after if changes else stdin[1])
    else:
        _show(report, form, language, stdin, options)
    if fix and changes and not options["quiet"]:
        done = say("Mended {edits} (files: {files}).", edits=mended.gone, files=len(changes))
        click.echo(render(done, language), err=True)
    failed = severity_at_or_above(report.worst(), config.fail_on or "warning")
    return 1 if failed and not exit_zero else 0


def _config(paths: tuple[Path, ...], options: dict[str, Any]) -> Config:
    first = Path.cwd() if str(paths[0]) == "-" else paths[0]
    if options["isolated"]:
        found = Config()
    elif options["config_file"]:
        found = configuration.read(options["config_file"])
    else:
        found = configuration.load(first)
    names = ("select", "ignore", "exclude", "extend_exclude", "fail_on", "output_format")
    return found.with_flags(**{name: options[name] for name in names})


def _language(config: Config) -> str:
    """What `--lang` says, else the configuration, else the locale."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source("lang") is ParameterSource.COMMANDLINE:
            return speech.language()
        context = context.parent
    return config.lang or speech.language()


def _stdin(paths: tuple[Path, ...], name: Path | None) -> tuple[Path, str] | None:
    """(file name, source) from standard input when `-` was given."""
    if all(str(path) != "-" for path in paths):
        return None
    if len(paths) > 1:
        raise AllranksError(
            "stdin-alone",
            say("`-` cannot be given together with other paths"),
            say("give the source on standard input alone, or paths alone"),
        )
    return name or Path("stdin.py"), sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _show(
    report: Report, form: str, language: str, stdin: tuple[Path, str] | None, options: dict[str, Any]
) -> None:
    """Writes the report in its form, to the file or standard output."""
    target: Path | None = options["output_file"]
    if form != "text":
        from ..report import as_json, github, sarif

        text = {"json": as_json, "sarif": sarif, "github": github}[form].dumps(report, language)
        _write(text, target)
        return
    from ..report import text as as_text
    from ..report.code import Sources

    given = Sources({api.shown(stdin[0]): stdin[1]} if stdin else None)

    def show(out: Console) -> None:
        as_text.show(
            report, out, language, sources=given, quiet=options["quiet"], statistics=options["statistics"]
        )

    if target is None:
        show(as_text.console(sys.stdout))
        sys.stdout.flush()
    else:
        with _opened(target) as stream:
            show(as_text.console(stream, colour=False))


@contextmanager
def _opened(target: Path) -> Iterator[Any]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8", newline="\n", errors="replace") as stream:
            yield stream
    except OSError as error:
        sentence = say("{path} cannot be written: {error}", path=target, error=error.strerror or error)
        raise AllranksError(
            "output-unwritable", sentence, say("choose another file with --output-file")
        ) from error


def _write(text: str, target: Path | None = None) -> None:
    """`text` as UTF-8, whatever the locale: JSON and SARIF are UTF-8 by definition."""
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    else:
        with _opened(target) as stream:
            stream.write(text)


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), path, path
    )
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


@contextmanager
def _progress(*, enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A callback (done, total) that draws a bar on standard error, once the work takes its time."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("allranks check")
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        if time.monotonic() - began > _PATIENCE_S:
            bar.start()
            bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        bar.stop()
