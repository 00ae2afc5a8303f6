"""Programs in Markdown: a section each, its code blocks the slots of one training script, or whole files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
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


@dataclass(frozen=True)
class Program:
    """One section: its files by name, and its blocks by theirs."""

    fault: str
    title: str
    files: dict[str, str]
    blocks: dict[str, str]


def script(blocks: dict[str, str]) -> str:
    """The training script with the slots of a section."""
    slots = {name: blocks.get(name, DEFAULTS[name]) for name in ("top", *SLOTS)}
    body = "".join(slots[name] for name in SLOTS)
    indented = "".join(f"    {line}" if line.strip() else line for line in body.splitlines(keepends=True))
    return f'{HEAD}{slots["top"]}\n\ndef main():\n{indented}\n\nif __name__ == "__main__":\n    main()\n'


def blocks_of(text: str) -> dict[str, str]:
    return dict(_BLOCK.findall(text))


DEFAULTS = blocks_of((HERE / "programs" / "README.md").read_text("utf-8"))


def programs(folder: str) -> list[Program]:
    """The programs of a folder of this one."""
    found = []
    for file in sorted((HERE / folder).glob("*.md")):
        text = file.read_text("utf-8")
        sections = [part.partition("\n") for part in text.split("\n## ")[1:]]
        for title, _, section in sections or [("the script itself", "", "")]:
            blocks = blocks_of(section)
            files = {name: code for name, code in blocks.items() if "." in name}
            files.setdefault("train.py", script(blocks))
            found.append(Program(file.stem, title, files, blocks))
    return found
