"""Nothing crashes on strange input: a small draw of what `tools/fuzz_check.py` does at length."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allranks.check import engine
from allranks.config import Config
from allranks.source.machine import Machine

from .book import programs
from .mutants import FAR, LOOP, mutants

SOURCES = [program.files["train.py"].encode() for program in programs("programs")]


def failures(name: str, data: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went wrong inside while a file was checked."""
    failed: list[str] = []
    missed = Machine.missed

    def heard(self: Machine, what: str) -> None:
        if what == "failure":
            failed.append("a program could not be followed to its end")
        missed(self, what)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(Machine, "missed", heard)
    Path(name).write_bytes(data)
    report = engine.check([Path(name)], Config(root=folder), edits=True)
    os.unlink(name)
    return failed + [str(spot.message) for spot in report.blind_spots if spot.slug == "rule-failed"]


@pytest.mark.parametrize("seed", range(8))
def test_mutants_are_checked_without_failure(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in mutants(seed, 25, SOURCES):
        assert failures(name, data, tmp_path, monkeypatch) == [], data


@pytest.mark.parametrize("construction", FAR)
def test_constructions_that_go_far(
    construction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 10, 200):
        text = LOOP + FAR[construction](size) + "\n"
        assert failures("train.py", text.encode(), tmp_path, monkeypatch) == [], size
