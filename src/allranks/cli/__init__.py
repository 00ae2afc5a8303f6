"""Door one: the command line. Parses, asks the api, shows the report, sets the exit status."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from .. import __version__
from ..errors import AllranksError
from ..findings import say
from . import speech

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "run": say("watch a training job and prove why it hangs or dies"),
    "check": say("read the source of a training program"),
    "explain": say("read the log or the dumps that a dead job left"),
    "faults": say("list the kinds of fault, or explain one"),
    "demo": say("watch a small job hang, on this machine's CPU"),
}
"""The commands, in the order of the help. Each lives in a module of its name and is imported only when it is used."""


class Doors(speech.Group):
    """The commands of `COMMANDS`, imported when they are asked for: `run` must not pay for `check`'s parser."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section(speech.speak(say("Commands"))):
            formatter.write_dl([(name, speech.speak(text)) for name, text in COMMANDS.items()])


@click.group(cls=Doors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="allranks")
@speech.language_option
def cli() -> None:
    """allranks finds why a multi-process PyTorch training job hangs, crashes or silently trains wrong: which line, on
    which ranks, with the evidence, and how to mend it.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its status; errors that a user can act on are printed once, here."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        speech.choose(argv)
        status = cli.main(argv, prog_name="allranks", standalone_mode=False)
    except AllranksError as error:
        click.echo(f"allranks: {speech.speak(error.message)}", err=True)
        if error.advice:
            click.echo(f"  {speech.speak(error.advice)}", err=True)
        status = error.status
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        status = 130
    except BrokenPipeError:
        # The reader is gone (`| head`): nothing is left to say, and the interpreter must not complain at exit.
        sys.stderr.close()
        status = 141
    gc.freeze()  # the process ends: to look for what could be freed takes a quarter of a check's time
    sys.exit(status if isinstance(status, int) else 0)
