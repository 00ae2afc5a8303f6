"""How the files beside a script start it: shell scripts, Slurm files, Makefiles and READMEs that name it."""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..source.program import Program

_DOCUMENTS = re.compile(r"(?i)(\.(md|sh|bash|slurm|sbatch|rst|txt|yml|yaml|job)|^makefile|^readme[^.]*)$")
_LARGEST = 1 << 20
_MANY = 200


class Launcher(Enum):
    """What starts the processes of a script."""

    LAUNCH = "torch.distributed.launch"
    TORCHRUN = "torchrun"
    OTHER = "other"


def launchers_of(program: Program, script: Path) -> set[Launcher]:
    """The launchers that documents of the program use for `script`, by its file name."""
    kept: dict[Path, set[Launcher]] = program.kept.setdefault("launchers", {})
    if script not in kept:
        name = re.compile(rf"(?<![\w.-]){re.escape(script.name)}\b")
        kept[script] = {
            launcher
            for command in _commands(program, script)
            if name.search(command)
            for launcher in _launcher(command)
        }
    return kept[script]


def documents(program: Program, script: Path) -> list[Path]:
    """The documents in the script's folder, those above it as far as the root, and in `scripts` beside them."""
    found: dict[Path, None] = {}
    folder = script.parent
    folders = [folder, folder / "scripts"]
    while folder != program.root and folder.is_relative_to(program.root):
        folder = folder.parent
        folders += [folder, folder / "scripts"]
    for place in folders:
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        for name in names[: 10 * _MANY]:
            if _DOCUMENTS.search(name):
                found[place / name] = None
    return list(found)[:_MANY]


def _commands(program: Program, script: Path) -> Iterator[str]:
    """Every line of the documents that may be a command, continued lines joined."""
    kept: dict[Path, list[str]] = program.kept.setdefault("commands", {})
    for path in documents(program, script):
        if path not in kept:
            kept[path] = _lines(path)
        yield from kept[path]


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LARGEST:
            return []
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return []
    joined = re.sub(r"\\\s*\n\s*", " ", text)
    return [line for line in joined.split("\n") if ".py" in line]


def _launcher(command: str) -> Iterator[Launcher]:
    # The old launcher is a module to run: its bare name in a sentence starts nothing.
    if re.search(r"-m[\s\"',]*torch\.distributed\.launch\b|torch/distributed/launch", command):
        yield Launcher.TORCHRUN if re.search(r"--use[_-]env\b", command) else Launcher.LAUNCH
    elif re.search(r"torchrun\b|torch\.distributed\.run\b", command):
        yield Launcher.TORCHRUN
    elif re.search(r"\b(accelerate launch|deepspeed|horovodrun|mpirun|srun|ray )", command):
        yield Launcher.OTHER
