"""Microseconds that `allranks run` adds to one collective: 1 rank, gloo, all_reduce of 4 bytes, against a plain run.

    python benchmarks/collective.py [--pairs 5]

Runs plain and watched runs in turn, and prints the median over blocks of each, and the median of the differences
of the pairs. A block is 200 calls; the median over blocks is robust against other load on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

JOB = """
import os, statistics, time
os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
tensor = torch.zeros(1)
blocks = []
for _ in range(60):
    start = time.perf_counter_ns()
    for _ in range(200):
        dist.all_reduce(tensor)
    blocks.append((time.perf_counter_ns() - start) / 200 / 1000)
print("us", statistics.median(blocks), min(blocks))
dist.destroy_process_group()
"""


def run(watched: bool) -> tuple[float, float]:
    """(median, least) microseconds per call of one run."""
    command = [sys.executable, "-c", JOB]
    if watched:
        command = [sys.executable, "-m", "allranks", "run", "--", *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout
    words = next(line.split() for line in out.splitlines() if line.startswith("us "))
    return float(words[1]), float(words[2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    pairs = [(run(False), run(True)) for _ in range(parser.parse_args().pairs)]
    for name, at in (("median", 0), ("least", 1)):
        plain, watched = ([pair[side][at] for pair in pairs] for side in (0, 1))
        added = statistics.median(w - p for p, w in zip(plain, watched, strict=True))
        before, after = statistics.median(plain), statistics.median(watched)
        print(f"{name:7} of blocks: plain {before:7.2f} us, watched {after:7.2f} us, added {added:6.2f} us")


if __name__ == "__main__":
    main()
