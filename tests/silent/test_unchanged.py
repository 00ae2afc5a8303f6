"""A job computes bit for bit what it computes without allranks: also with accumulation, autocast and torch.compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.run import watch

pytestmark = pytest.mark.torch
JOB = Path(__file__).parent / "trains.py"


def command(folder: Path) -> list[str]:
    folder.mkdir()
    ranks = " & ".join(f"{sys.executable} {JOB} {rank} {folder}" for rank in (1, 0))
    return ["sh", "-c", f"{ranks}; wait"]


def digests(folder: Path) -> list[Any]:
    return [json.loads((folder / f"digests{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.timeout(400)
def test_parameters_are_the_same_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    subprocess.run(command(tmp_path / "without"), check=True, timeout=300, env=dict(os.environ))
    report, status = watch(command(tmp_path / "with"), variables={"ALLRANKS_DEEP": "1"})
    assert status == 0
    assert [(f.fault, str(f.message)) for f in report.loud] == []
    assert [(spot.slug, str(spot.message)) for spot in report.blind_spots] == []
    assert digests(tmp_path / "with") == digests(tmp_path / "without")
