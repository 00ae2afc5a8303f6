"""Seconds from the last rank's blocking to the verdict, beside PyTorch's own in the same run.

    python benchmarks/verdict.py [--runs 5] [--timeout 20]

Each job hangs in another way. Its ranks write down when they enter the call that never returns. Under allranks the
verdict's time is that of report.json; plain, PyTorch speaks when the group's timeout is over, which the benchmark
sets to `--timeout` seconds (PyTorch's defaults are 1800 with gloo and 600 with NCCL). Needs torch and torchrun in the
environment that runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = """\
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
rank, x = dist.get_rank(), torch.ones(8)
for step in range(20):
    dist.all_reduce(x)
def mark():
    open(f"blocked{rank}", "w").write(repr(time.time()))
"""
JOBS = {
    "other operation": "mark()\ndist.barrier() if rank == 0 else dist.all_reduce(x)\n",
    "both send first": "mark()\ndist.send(x, 1 - rank)\ndist.recv(x, 1 - rank)\n",
    "a group made by its members": (
        "mark()\ngroup = dist.new_group([0]) if rank == 0 else None\n"
        "dist.new_group() if rank == 0 else dist.all_reduce(x)\n"
    ),
}


def run(program: str, watched: bool, timeout: float, folder: Path) -> float | None:
    """Seconds from the last mark to the first word about the hang, or None when none came."""
    (folder / "job.py").write_text(HEAD + program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"]
    command = [*launch, str(3600 if watched else timeout)]
    if watched:
        command = [sys.executable, "-m", "allranks", "run", "--report", "out", "--", *command]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = None
    assert process.stderr is not None
    for line in process.stderr:
        if said is None and ("Timed out" in line or "allranks:" in line):
            said = time.time()
    process.wait()
    marks = [float(path.read_text()) for path in folder.glob("blocked*")]
    if watched:
        report = json.loads((folder / "out/report.json").read_text())
        assert report["findings"], "no verdict"
    return said - max(marks) if said is not None and marks else None


def main() -> None:
    """Prints a row per job: medians of allranks and of PyTorch, and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=20.0)
    options = parser.parse_args()
    print(f"{'job':30} {'allranks s':>11} {'PyTorch s':>10} {'ratio':>7}")
    for name, program in JOBS.items():
        ours, theirs = [], []
        for _ in range(options.runs):
            for watched, found in ((True, ours), (False, theirs)):
                with tempfile.TemporaryDirectory() as folder:
                    seconds = run(program, watched, options.timeout, Path(folder))
                if seconds is not None:
                    found.append(seconds)
        mine = statistics.median(ours) if ours else float("nan")
        peer = statistics.median(theirs) if theirs else float("nan")
        print(f"{name:30} {mine:11.2f} {peer:10.2f} {mine / peer:7.3f}")


if __name__ == "__main__":
    main()
