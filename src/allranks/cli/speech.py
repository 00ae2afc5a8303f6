"""The language of the command line: chosen once, before click shows anything, and used for help and errors too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ..errors import AllranksError
from ..findings import Text, say
from ..messages import LANGUAGES, pick_language, render

if TYPE_CHECKING:
    from collections.abc import Sequence

_chosen = "en"


def choose(arguments: Sequence[str]) -> str:
    """Picks the language from `--lang` in `arguments` (before a `--`), else from the locale. Raises AllranksError."""
    global _chosen
    asked = None
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith("--lang="):
            asked = argument.partition("=")[2]
        elif argument == "--lang" and index + 1 < len(arguments):
            asked = arguments[index + 1]
    try:
        _chosen = pick_language(asked, os.environ)
    except ValueError as error:
        raise AllranksError(
            "language-unknown",
            say("there is no language {language}", language=error),
            say("choose from {known}", known=", ".join(LANGUAGES)),
        ) from None
    _translate_click()
    return _chosen


def language() -> str:
    """The chosen language, "en" or "zh"."""
    return _chosen


def speak(text: Text | str) -> str:
    """`text` in the chosen language."""
    return render(text, _chosen)


def _translate_click() -> None:
    """Click's own words ("Usage", "No such option") go through the name `_` in each of its modules."""
    import click.core
    import click.decorators
    import click.exceptions
    import click.formatting
    import click.types

    for module in (click.core, click.decorators, click.exceptions, click.formatting, click.types):
        if hasattr(module, "_"):
            module._ = speak  # type: ignore[attr-defined]


class Command(click.Command):
    """A command whose help is shown in the chosen language; help texts are English message ids."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The description, translated by paragraph."""
        with formatter.indentation():
            for paragraph in (self.help or "").split("\n\n"):
                verbatim = paragraph.strip().startswith("\b")
                text = (
                    paragraph.strip().removeprefix("\b").strip("\n")
                    if verbatim
                    else " ".join(paragraph.split())
                )
                formatter.write_paragraph()
                if verbatim:
                    for line in text.splitlines():
                        formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")
                else:
                    formatter.write_text(speak(text))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, translated."""
        kept = {parameter: parameter.help for parameter in self.params if isinstance(parameter, click.Option)}
        try:
            for parameter, text in kept.items():
                parameter.help = speak(text) if text else text
            super().format_options(ctx, formatter)
        finally:
            for parameter, text in kept.items():
                parameter.help = text


class Group(Command, click.Group):
    """A group whose help is shown in the chosen language."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the commands."""
        Command.format_options(self, ctx, formatter)


def language_option(function: Any) -> Any:
    """`--lang en|zh`, on the group and on each command; read by `choose` before click parses."""
    return click.option(
        "--lang",
        type=click.Choice(LANGUAGES),
        expose_value=False,
        help="Speak English (en) or Chinese (zh); default: the locale's language.",
    )(function)
