"""`allranks demo`: the main job, shown on a small training that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from .. import api
from ..errors import AllranksError
from ..findings import say
from ..report import terminal
from ..report.text import console
from . import speech


@click.command(cls=speech.Command)
@click.option(
    "--nproc", type=click.IntRange(2, 8), default=2, show_default=True, help="Processes of the job."
)
@speech.language_option
def demo(nproc: int) -> int:
    """Watch a small training with two processes hang on this machine's CPU, and see the verdict.

    Needs torch in the environment of allranks; takes some ten seconds.
    """
    if subprocess.run([sys.executable, "-c", "import torch.distributed"], capture_output=True).returncode:
        raise AllranksError(
            "torch-missing",
            say("the demo needs torch, which this Python does not have"),
            say("pip install torch"),
        )
    program = files("allranks.demo").joinpath("train.py").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program, "utf-8")
        launch = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}", "train.py",
        ]  # fmt: skip
        click.secho(f"$ allranks run -- torchrun --nproc-per-node={nproc} train.py", bold=True, err=True)
        previous = Path.cwd()
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.chdir(folder)
        try:
            report, _ = api.run(launch)
            terminal.show_run(report, console(sys.stderr), speech.language())
        finally:
            os.chdir(previous)
    if not report.loud:
        raise AllranksError(
            "demo-failed",
            say("the job ended without a verdict; that should not happen"),
            say("please report it with what stands above"),
        )
    return 0
