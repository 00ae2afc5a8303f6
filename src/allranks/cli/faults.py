"""`allranks faults`: the catalogue, a line a kind, or the page of one."""

from __future__ import annotations

import difflib

import click
from rich.console import Console
from rich.markdown import Markdown

from ..errors import AllranksError
from ..faults import GROUPS, catalogue, page
from ..findings import say
from . import speech


@click.command(cls=speech.Command)
@click.argument("slug", required=False)
@speech.language_option
def faults(slug: str | None) -> None:
    """List every kind of fault, or show the page of one: what happens, why, an example and its mended form."""
    language = speech.language()
    if slug is not None:
        _show_page(slug, language)
        return
    width = max(map(len, catalogue()))
    for group in GROUPS:
        click.secho(f"\n[{group}]", bold=True)
        for fault in catalogue().values():
            if fault.group == group:
                click.echo(f"  {fault.slug:<{width}}  {fault.title(language)}")


def _show_page(slug: str, language: str) -> None:
    try:
        text = page(slug, language)
    except KeyError:
        wanted = slug.lower().replace("_", "-")
        near = [known for known in catalogue() if known.startswith(wanted)]
        near = near or difflib.get_close_matches(wanted, catalogue(), 1, 0.5)
        raise AllranksError(
            "fault-unknown",
            say('there is no fault "{slug}"', slug=slug),
            say('did you mean "{name}"?', name=near[0])
            if near
            else say("see `allranks faults` for their names"),
        ) from None
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text)
