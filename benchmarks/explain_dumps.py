"""allranks on flight-recorder dumps, against torchfrtrace on the same files in the same run, and growth with the ranks.

    python benchmarks/explain_dumps.py                       # 64 ranks x 2000 calls, against torchfrtrace
    python benchmarks/explain_dumps.py --ranks 512           # the peer takes most of a minute
    python benchmarks/explain_dumps.py --grow 16384          # 256, 1024, 4096, 16384 ranks; the peer is left out

Both are run as the command that a user gives. CPU seconds and peak memory are those of the whole process, start and
imports included; of several runs the best counts.
The files are written to a folder in memory where there is one. For growth only one file in 64 is written and the
others are links to it: what grows is the work, not the disk. torchfrtrace comes with torch; it is told nothing of
the culprit's line, which allranks names.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OURS = [sys.executable, "-m", "allranks", "explain", "--quiet", "--lang", "en"]
"""The command that a user gives; its one line says what happened, on which rank and line."""
T0 = 1_700_000_000_000_000_000
SIZES = [1 << n for n in range(10, 17)]
OPERATIONS = [("all_reduce", 41), ("all_reduce", 44), ("_all_gather_base", 52), ("_reduce_scatter_base", 57)]


def stack(operation: str, line: int) -> list[dict[str, Any]]:
    """The frames of a call, innermost first."""
    torch = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    inner = [{"name": operation, "filename": torch, "line": 3245}]
    layers = [
        {"name": "forward", "filename": f"/home/me/model/layer_{i}.py", "line": 100 + i} for i in range(6)
    ]
    return [*inner, *layers, {"name": "step", "filename": "/home/me/train.py", "line": line}]


def dump(rank: int, ranks: int, calls: int, culprit: int) -> bytes:
    """The dump of one rank: all but the culprit wait in the last call, which the culprit did not make."""
    chance = random.Random(rank)
    stacks = [stack(*operation) for operation in OPERATIONS]
    thread = str(140_000_000_000_000 + rank)
    entries = []
    for number in range(calls - (rank == culprit)):
        (operation, _), size = OPERATIONS[number % 4], SIZES[number % 7]
        inputs = [[size * (ranks if operation.startswith("_reduce_scatter") else 1)]]
        outputs = [[size * (ranks if operation.startswith("_all_gather") else 1)]]
        time, done = T0 + number * 2_000_000 + chance.randrange(400_000), number < calls - 1
        entries.append(
            {
                "frames": stacks[number % 4], "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"),
                "thread_name": "pt_main", "thread_id": thread, "collective_seq_id": number + 1,
                "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": f"nccl:{operation}", "time_created_ns": time,
                "duration_ms": 0.5, "input_sizes": inputs, "input_dtypes": ["Float"], "output_sizes": outputs,
                "output_dtypes": ["Float"], "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None, "time_discovered_completed_ns": time + 900_000 if done else None,
                "retired": done, "timeout_ms": 600_000, "is_p2p": False,
            }
        )  # fmt: skip
    everyone = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    status = {"0": {"last_enqueued_collective": len(entries), "last_completed_collective": calls - 1}}
    whole = {
        "version": "2.10",
        "pg_config": {"0": everyone},
        "comm_lib_version": "2.27.5",
        "pg_status": status,
    }
    return pickle.dumps(whole | {"entries": entries}, 2)


def write(folder: Path, ranks: int, calls: int, distinct: int) -> int:
    """Writes the dumps of `ranks` ranks, `distinct` different ones and links to them; returns the culprit."""
    culprit = ranks // 3
    for rank in range(ranks):
        path = folder / f"rank_{rank}"
        original = folder / f"rank_{rank % distinct}"
        if rank < distinct or rank == culprit:
            path.write_bytes(dump(rank, ranks, calls, culprit))
        else:
            os.link(original, path)
    return culprit


def measured(command: list[str], times: int) -> dict[str, Any]:
    """CPU seconds, wall seconds and peak MiB of a command, the best of some runs, and what it printed."""
    script = (
        "import json, resource, subprocess, sys, time\n"
        "begin = time.perf_counter()\n"
        "ran = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps({'cpu': used.ru_utime + used.ru_stime, 'wall': time.perf_counter() - begin,\n"
        "                  'peak': used.ru_maxrss / 1024, 'said': ran.stdout}))\n"
    )
    runs = []
    for _ in range(times):
        ran = subprocess.run(
            [sys.executable, "-c", script, *command],
            capture_output=True,
            text=True,
            check=True,
            # As installed: with bytecode that an earlier run left.
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        )
        runs.append(json.loads(ran.stdout))
    best = min(runs, key=lambda run: run["cpu"])
    return best | {"peak": min(run["peak"] for run in runs), "wall": min(run["wall"] for run in runs)}


def against_torchfrtrace(ranks: int, calls: int, times: int, scratch: Path) -> None:
    culprit = write(scratch, ranks, calls, ranks)
    size = sum(path.stat().st_size for path in scratch.iterdir()) >> 20
    line = OPERATIONS[(calls - 2) % 4][1]
    print(f"{ranks} ranks x {calls} calls, {size} MiB; culprit: rank {culprit}, train.py line {line}")
    ours = measured([*OURS, str(scratch)], times)
    trace = Path(sys.executable).with_name("torchfrtrace")
    theirs = measured([str(trace), str(scratch)], 1 if ranks > 128 else times)
    for name, run in (("allranks", ours), ("torchfrtrace", theirs)):
        print(f"{name:14} CPU {run['cpu']:7.2f} s   wall {run['wall']:7.2f} s   peak {run['peak']:7.0f} MiB")
    print(f"{'ratio':14} CPU {theirs['cpu'] / ours['cpu']:7.1f}     wall {theirs['wall'] / ours['wall']:7.1f}     "
          f"peak {theirs['peak'] / ours['peak']:7.1f}")  # fmt: skip
    print("allranks says:", ours["said"].strip())
    missing = [line for line in theirs["said"].splitlines() if "missing ranks" in line]
    print("torchfrtrace says:", missing[0].strip() if missing else theirs["said"].strip()[-200:])


def growth(most: int, calls: int, scratch: Path) -> None:
    print("ranks      CPU s   CPU ms a rank   peak MiB   finding")
    ranks = min(256, most)
    while ranks <= most:
        folder = scratch / str(ranks)
        folder.mkdir()
        write(folder, ranks, calls, max(64, ranks // 64))
        run = measured([*OURS, str(folder)], 1)
        shutil.rmtree(folder)
        said = run["said"].strip()[:90]
        print(f"{ranks:6} {run['cpu']:9.2f} {1000 * run['cpu'] / ranks:15.2f} {run['peak']:10.0f}   {said}")
        ranks *= 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument(
        "--grow", type=int, metavar="RANKS", help="measure growth up to this many ranks instead"
    )
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        if options.grow:
            growth(options.grow, options.calls, Path(scratch))
        else:
            against_torchfrtrace(options.ranks, options.calls, options.times, Path(scratch))


if __name__ == "__main__":
    main()
