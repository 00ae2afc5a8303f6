"""Dumps that torch 2.13 wrote on gloo (`recorded_job.py`), with and without the program's source at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.explain.dumps import explain_dumps

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
PROGRAM = HERE / "recorded_job.py"


def line_with(text: str) -> int:
    """The line of the recorded program that holds `text`."""
    return next(i for i, line in enumerate(PROGRAM.read_text().splitlines(), 1) if text in line)


FIRST, PAIR = line_with("dist.all_reduce(torch.ones(16))"), line_with("group=pairs")
LEFT, OTHER = line_with("            return"), line_with("dist.broadcast")
BARRIER, LAST = line_with("dist.barrier()"), line_with("continue") + 1


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder without the program."""
    return tmp_path


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder that holds the program under the name with which it was recorded (/srv/job/train.py)."""
    shutil.copy(PROGRAM, tmp_path / "train.py")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "fault", "ranks", "line", "loud"),
    [
        ("left", "early-exit", (2,), FIRST, True),
        ("timed-out", "early-exit", (2,), FIRST, True),
        ("other", "collective-order", (2,), OTHER, True),
        ("skipped", "collective-order", (1,), FIRST, True),
        ("extra", "rank-conditional-collective", (0,), BARRIER, True),
    ],
)
def test_the_culprit_by_the_dumps_alone(
    elsewhere: Path, kind: str, fault: str, ranks: tuple[int, ...], line: int, loud: bool
) -> None:
    report = explain_dumps([RECORDED / kind], root=elsewhere)
    assert [(f.fault, f.ranks, f.severity.loud) for f in report.findings] == [(fault, ranks, loud)]
    assert report.findings[0].location is not None
    assert (report.findings[0].location.path, report.findings[0].location.line) == ("/srv/job/train.py", line)


@pytest.mark.parametrize(
    ("kind", "fault", "ranks", "lines"),
    [
        ("left", "early-exit", (2,), (LEFT - 1, LEFT)),
        ("timed-out", "early-exit", (2,), (LEFT - 1, LEFT)),
        ("other", "collective-order", (2,), (OTHER - 1, OTHER)),
        ("extra", "rank-conditional-collective", (0,), (BARRIER - 1, BARRIER)),
    ],
)
def test_with_the_source_the_statement_that_parted_the_ranks(
    beside: Path, kind: str, fault: str, ranks: tuple[int, ...], lines: tuple[int, ...]
) -> None:
    report = explain_dumps([RECORDED / kind], root=beside)
    assert [(f.fault, f.ranks) for f in report.findings] == [(fault, ranks)]
    location = report.findings[0].location
    assert location is not None
    assert location.path == "train.py"
    assert location.line in lines


def test_a_healthy_run_says_nothing(beside: Path) -> None:
    report = explain_dumps([RECORDED / "healthy"], root=beside)
    assert report.loud == []
    assert report.blind_spots == []
    assert report.world["calls"] == 4 * (6 * 3 + 6)


def test_the_json_of_the_same_run_tells_who_is_missing(elsewhere: Path) -> None:
    report = explain_dumps([RECORDED / "left-json"], root=elsewhere)
    assert [(f.fault, f.ranks, f.location) for f in report.findings] == [("early-exit", (2,), None)]


@pytest.mark.torch
def test_a_job_that_runs_now(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    shutil.copy(PROGRAM, script)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    subprocess.run(
        [*command, str(script), str(out), "left"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=90,
        check=True,
        capture_output=True,
    )
    report = explain_dumps([out], root=tmp_path)
    assert [(f.fault, f.ranks) for f in report.findings] == [("early-exit", (2,))]
    assert report.findings[0].location is not None
    assert report.findings[0].location.line in (LEFT - 1, LEFT)
