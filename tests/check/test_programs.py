"""The rules on programs: `programs/<fault>.md` says what must be found on which line, and that nothing else is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from allranks.check import engine
from allranks.config import Config
from allranks.faults import catalogue
from allranks.findings import Severity

PROGRAMS = Path(__file__).with_name("programs")
SLOTS = ("setup", "data", "model", "loop", "end")

HEAD = """\
import argparse
import json
import logging
import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, random_split


def make_data(n):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(n, 8, generator=g)
    return TensorDataset(x, (x.sum(1) > 0).long())


def make_net():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


"""

_BLOCK = re.compile(r"```\w+ ([\w./-]+)\n(.*?)```", re.DOTALL)
_MARK = re.compile(r"#(?P<mark>[!?])\s*(?P<faults>[\w, -]+)")


@dataclass(frozen=True)
class Program:
    """One section: its files by name."""

    fault: str
    title: str
    files: dict[str, str]


def script(blocks: dict[str, str]) -> str:
    """The training script with the slots of a section."""
    slots = {name: blocks.get(name, DEFAULTS[name]) for name in ("top", *SLOTS)}
    body = "".join(slots[name] for name in SLOTS)
    indented = "".join(f"    {line}" if line.strip() else line for line in body.splitlines(keepends=True))
    return f'{HEAD}{slots["top"]}\n\ndef main():\n{indented}\n\nif __name__ == "__main__":\n    main()\n'


def blocks_of(text: str) -> dict[str, str]:
    return dict(_BLOCK.findall(text))


DEFAULTS = blocks_of((PROGRAMS / "README.md").read_text("utf-8"))


def programs() -> list[Program]:
    found = []
    for file in sorted(PROGRAMS.glob("*.md")):
        text = file.read_text("utf-8")
        sections = [part.partition("\n") for part in text.split("\n## ")[1:]]
        for title, _, section in sections or [("the script itself", "", "")]:
            blocks = blocks_of(section)
            files = {name: code for name, code in blocks.items() if "." in name}
            files.setdefault("train.py", script(blocks))
            found.append(Program(file.stem, title, files))
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda p: f"{p.fault}: {p.title}")
def test_what_is_found_is_what_the_marks_say(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected: dict[str, set[tuple[str, int, str]]] = {"!": set(), "?": set()}
    for name, code in program.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, "utf-8")
        for number, line in enumerate(code.splitlines(), 1):
            for mark in _MARK.finditer(line):
                faults = [fault.strip() for fault in mark["faults"].split(",")]
                assert set(faults) <= set(catalogue()), f"{name}:{number}: {faults}"
                expected[mark["mark"]] |= {(name, number, fault) for fault in faults}
    report = engine.check([Path("train.py")], Config(root=tmp_path))
    assert not report.blind_spots, [str(spot.message) for spot in report.blind_spots]
    loud, infos = set(), set()
    for finding in report.findings:
        assert finding.location is not None
        place = (finding.location.path, finding.location.line or 0, finding.fault)
        (infos if finding.severity is Severity.INFO else loud).add(place)
    assert loud == expected["!"]
    assert expected["?"] <= infos
