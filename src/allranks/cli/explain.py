"""`allranks explain`: from what a dead job left behind to the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .. import api
from ..config import FAIL_ON, FORMATS, severity_at_or_above
from . import speech


@click.command(cls=speech.Command)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--output-format", type=click.Choice(FORMATS), default="text", help="Form of the report.")
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default="warning",
    help="Severity from which the exit status is 1.",
)
@speech.language_option
def explain(paths: tuple[Path, ...], output_format: str, fail_on: str, **options: Any) -> int:
    """Explain why a job died."""
    report = api.explain(paths)
    language = speech.language()
    if output_format != "text":
        from ..report import as_json, github, sarif

        text = {"json": as_json, "sarif": sarif, "github": github}[output_format].dumps(report, language)
        sys.stdout.write(text)
    else:
        from ..report import text as as_text

        as_text.show(report, as_text.console(sys.stdout), language)
    return 1 if severity_at_or_above(report.worst(), fail_on) else 0
