"""Wall time and memory of a small DDP training under `allranks run`, against a plain run.

    python benchmarks/training.py [--pairs 5] [--steps 300]

2 ranks, gloo, a 3-layer perceptron whose step takes about 10 ms. Plain and watched runs take turns; the loop alone
is timed, after 20 steps of warming up, and the medians over pairs are printed: seconds, ratio, and the peak memory
(VmHWM) of rank 0. TORCH_DISTRIBUTED_DEBUG=DETAIL, the debugging mode of PyTorch itself, runs beside them where it
does not crash, which it does with DDP on gloo in torch 2.13 and 2.14.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = """
import os, re, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 512), torch.randint(0, 10, (128,))
for step in range(20 + int(sys.argv[1])):
    if step == 20:
        start = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
seconds = time.perf_counter() - start
if dist.get_rank() == 0:
    peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
    print("measured", seconds, peak, flush=True)
dist.destroy_process_group()
"""


def run(
    script: Path, steps: int, *, watched: bool = False, detail: bool = False
) -> tuple[float, float] | None:
    """(seconds of the loop, peak MiB of rank 0), or None where the run failed."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
        str(steps),
    ]
    if watched:
        command = [sys.executable, "-m", "allranks", "run", "--", *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if detail:
        env["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    for line in done.stdout.splitlines():
        if "measured" in line and done.returncode in (0, 1):
            words = line.split()
            return float(words[-2]), float(words[-1])
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        pairs = []
        for number in range(options.pairs):
            # The order alternates, so that a machine that grows slower favours neither.
            results = {
                w: run(script, options.steps, watched=w)
                for w in ((False, True) if number % 2 else (True, False))
            }
            plain, watched = results[False], results[True]
            if plain is None or watched is None:
                sys.exit("a run failed")
            pairs.append((plain, watched))
            print(
                f"plain {plain[0]:6.2f} s {plain[1]:6.1f} MiB, watched {watched[0]:6.2f} s {watched[1]:6.1f} MiB"
            )
        detail = run(script, options.steps, detail=True)
    seconds = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
    ratio = statistics.median(watched[0] / plain[0] for plain, watched in pairs)
    memory = statistics.median(watched[1] - plain[1] for plain, watched in pairs)
    print(f"plain {seconds[0]:.2f} s, watched {seconds[1]:.2f} s, ratio {ratio:.3f}, {memory:+.1f} MiB")
    print(f"DETAIL: {detail[0]:.2f} s" if detail is not None else "DETAIL: crashed")


if __name__ == "__main__":
    main()
