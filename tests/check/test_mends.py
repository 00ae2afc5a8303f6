"""`--fix` on programs: `mends/<fault>.md` says what changes, to the letter, and the mended programs are run."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.check import engine
from allranks.check.mend import mend
from allranks.config import Config

from .book import Program, programs

ALL = programs("mends")
MENDED = [program for program in ALL if not program.title.startswith("declined")]
RUN = [program for program in MENDED if not program.title.endswith("(not run)")]
RUNNER = """\
import os, runpy, sys, traceback
import torch
import torch._dynamo, torch.distributed as dist, torch.nn.parallel, torch.utils.data  # what programs import late

# The last reducer would take gloo's threads down while it holds the lock that they wait for.
kept, build = [], torch.nn.parallel.DistributedDataParallel.__init__
torch.nn.parallel.DistributedDataParallel.__init__ = lambda self, *a, **k: (kept.append(self), build(self, *a, **k))[1]


def run(rank, pipe):
    status, sys.argv = 1, ["train.py"]
    try:
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(pipe[1], str(store.port).encode())
        port = str(store.port) if rank == 0 else os.read(pipe[0], 8).decode()
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
        )
        runpy.run_path("train.py", run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


for number in range(int(sys.argv[1])):
    os.chdir(str(number))
    pipe = os.pipe()
    ranks = [os.fork() or run(rank, pipe) for rank in range(2)]
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    os.chdir("..")
    print("ran", number, *ended, flush=True)
"""
"""Runs programs one after the other on two ranks, as torchrun would, but with torch imported only once."""


def named(program: Program) -> str:
    return f"{program.fault}: {program.title}"


def mended(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--fix` changes in a program's files on disk, as a diff without line numbers."""
    monkeypatch.chdir(folder)
    for name, code in program.files.items():
        Path(name).write_text(code, "utf-8")
    found = mend([Path("train.py")], Config(root=folder), write=True)
    diff: list[str] = []
    for change in found.changes:
        before, after = change.before.splitlines(True), change.after.splitlines(True)
        diff += list(difflib.unified_diff(before, after, n=1))[2:]
    return "".join("@@\n" if line.startswith("@@") else line for line in diff)


@pytest.mark.parametrize("program", ALL, ids=named)
def test_what_changes_is_what_the_book_says(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mended(program, tmp_path, monkeypatch) == program.blocks.get("mended", "")


@pytest.mark.parametrize("program", MENDED, ids=named)
def test_a_mended_program_passes_its_own_check(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended(program, tmp_path, monkeypatch)
    assert engine.check([Path("train.py")], Config(root=tmp_path)).findings == []


@pytest.mark.parametrize("program", [program for program in ALL if program not in MENDED], ids=named)
def test_what_is_declined_is_found_still(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended(program, tmp_path, monkeypatch)
    found = engine.check([Path("train.py")], Config(root=tmp_path)).findings
    assert [finding.fault for finding in found] == [program.fault]


@pytest.mark.torch
def test_mended_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that start processes by themselves alone, all others on two ranks."""
    spawning = [program for program in RUN if "mp.spawn(" in program.files["train.py"]]
    launched = [program for program in RUN if program not in spawning]
    for number, program in enumerate(launched + spawning):
        (tmp_path / str(number)).mkdir()
        mended(program, tmp_path / str(number), monkeypatch)
    (tmp_path / "runner.py").write_text(RUNNER)
    out = _run([sys.executable, "runner.py", str(len(launched))], tmp_path)
    for number, program in enumerate(launched):
        assert f"ran {number} 0 0\n" in out, f"{named(program)}\n{out}"
    for number, _ in enumerate(spawning, len(launched)):
        _run([sys.executable, "train.py"], tmp_path / str(number))


def _run(command: list[str], folder: Path) -> str:
    """What a job prints; it ends with status 0, or is ended with all that it started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as job:  # fmt: skip
        try:
            out, _ = job.communicate(timeout=90)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, out
    return out
