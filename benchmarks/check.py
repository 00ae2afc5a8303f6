"""How fast `allranks check` reads source on one core, against TorchFix and pylint on the same files in the same run.

    python benchmarks/check.py FOLDER                        # FOLDER holds checkouts of repositories, one a folder
    python benchmarks/check.py FOLDER --peers /path/to/bin   # where torchfix and pylint are installed

Each tool goes through the repositories one after the other, a fresh process each, bound to one core. Printed are
lines of Python per second with a cold cache and start-up included, the same without start-up, the time with a warm
cache as a part of the cold one, the largest resident size, and how many times slower each peer is. TorchFix is asked
for all of its rules, pylint for its usual ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECK = [sys.executable, "-m", "allranks", "check", "--quiet", "--exit-zero"]
PEERS = {
    "torchfix": ["torchfix", "--select=ALL", "."],
    "pylint": ["pylint", "--jobs=1", "--recursive=y", "--exit-zero", "--score=n", "."],
}


def repositories(folder: Path) -> list[tuple[Path, int]]:
    """Each repository below `folder` with Python in it, with its number of lines."""
    found = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        lines = sum(path.read_bytes().count(b"\n") for path in place.rglob("*.py") if path.is_file())
        if lines:
            found.append((place, lines))
    return found


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Compiled code is kept, as it is where a tool is installed."""


def timed(command: list[str], folder: Path) -> tuple[float, int]:
    """(seconds, KiB at the largest) of a command."""
    begin = time.perf_counter()
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=nothing, stderr=nothing, stdin=nothing
    ) as job:
        _, _, usage = os.wait4(job.pid, 0)
        job.returncode = 0
    return time.perf_counter() - begin, usage.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--peers", type=Path, help="the folder of the peers' commands; by default those on PATH"
    )
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found = repositories(options.folder.resolve())
    total = sum(lines for _, lines in found)
    print(f"{len(found)} repositories, {total:,} lines")
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "nothing.py").write_text("")
        start = min(timed([*CHECK, "--no-cache", "."], Path(empty))[0] for _ in range(5))
        cold = warm = 0.0
        largest = 0
        for place, lines in found:
            kept = ["--cache-dir", cache, "."]
            once, memory = timed([*CHECK, *kept], place)
            again, _ = timed([*CHECK, *kept], place)
            cold, warm, largest = cold + once, warm + again, max(largest, memory)
            print(f"  {place.name:44}{lines:8,} lines{once:8.2f} s{memory / 1024:8.0f} MiB")
    working = cold - start * len(found)
    print(
        f"allranks check   {cold:8.2f} s   {total / cold:10,.0f} lines/s, start-up of {start:.2f} s included"
    )
    print(f"                 {working:8.2f} s   {total / working:10,.0f} lines/s without it")
    print(f"warm cache       {warm:8.2f} s   {warm / cold:10.2f} of the cold time")
    print(f"largest          {largest / 1024:8.0f} MiB")
    for name, command in PEERS.items():
        program = shutil.which(command[0], path=str(options.peers) if options.peers else None)
        if program is None:
            print(f"{name:17}not installed")
            continue
        seconds = sum(timed([program, *command[1:]], place)[0] for place, _ in found)
        print(
            f"{name:17}{seconds:8.2f} s   {total / seconds:10,.0f} lines/s, {seconds / cold:.1f} times as long"
        )


if __name__ == "__main__":
    main()
