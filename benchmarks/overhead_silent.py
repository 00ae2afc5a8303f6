"""What watching for silent faults costs: paired runs of training jobs, and the cost of digests by size.

    python benchmarks/overhead_silent.py [--pairs 3] [--only mlp|resnet|transformer|digest]

Each job is two ranks on gloo, one thread each. Plain and watched runs take turns; a step's time is the median over
the steps of rank 0, in processor time as well as by the clock, since other load disturbs the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """
import os, statistics, sys, time, resource
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

kind, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def block(i, o, stride=1):
    first = [nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(o, o, 3, 1, 1), nn.ReLU())

def resnet():
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    body = [block(i, o, 1 + (i != o)) for i, o in zip(widths, widths[1:])]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

def transformer():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 14, enable_nested_tensor=False)

def mlp():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

model, shape, steps = {
    "mlp": (mlp, (128, 256), 300),
    "resnet": (resnet, (8, 3, 64, 64), 60),
    "transformer": (transformer, (1, 32, 768), 100),
}[kind]
model = DDP(model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
clock, processor = [], []
begin = time.perf_counter(), time.process_time()
for step in range(steps):
    a, b = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    model(torch.randn(shape)).square().mean().backward()
    optimizer.step()
    clock.append(time.perf_counter() - a)
    processor.append(time.process_time() - b)
whole = (time.perf_counter() - begin[0]) / steps, (time.process_time() - begin[1]) / steps
if rank == 0:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("result", statistics.median(clock), whole[0], statistics.median(processor), whole[1], peak)
dist.destroy_process_group()
"""


def run(kind: str, watched: bool) -> list[float]:
    """Seconds per step of one run: median and mean by the clock, median and mean of the processor; peak MiB."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(JOB)
        ranks = " & ".join(f"{sys.executable} {job} {kind} {rank} {folder}" for rank in (1, 0))
        command = ["sh", "-c", f"{ranks}; wait"]
        if watched:
            command = [sys.executable, "-m", "allranks", "run", "--quiet", "--", *command]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        out = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900).stdout
        words = next(line.split() for line in out.splitlines() if line.startswith("result "))
        return [float(word) for word in words[1:]]


def jobs(kind: str, pairs: int) -> None:
    """Prints the ratios of one job."""
    found = [(run(kind, False), run(kind, True)) for _ in range(pairs)]
    names = ("median step", "mean step", "median step, processor", "mean step, processor")
    for at, name in enumerate(names):
        plain = statistics.median(p[at] for p, _ in found)
        ratio = statistics.median(w[at] / p[at] for p, w in found)
        print(f"{kind:12} {name:24} plain {plain * 1000:9.2f} ms  watched / plain {ratio:6.3f}", flush=True)
    print(
        f"{kind:12} peak memory added {statistics.median(w[4] - p[4] for p, w in found):.1f} MiB", flush=True
    )


def digests() -> None:
    """Prints the cost of a digest of 100 million parameters, beside reading them once."""
    import torch

    from allranks.rank.digest import Digester

    torch.set_num_threads(1)
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        tensors = [torch.randn(1_000_000, device=device) for _ in range(100)]
        digester = Digester(torch)

        def timed(function: object) -> float:
            took = []
            for _ in range(5):
                start = time.perf_counter()
                function()  # type: ignore[operator]
                took.append(time.perf_counter() - start)
            return min(took) * 1000

        digest = timed(lambda tensors=tensors, digester=digester: digester.digests(tensors))
        read = timed(lambda tensors=tensors: torch.stack([t.sum() for t in tensors]).tolist())
        print(
            f"digest of 100 M float32 on {device}: {digest:.1f} ms; one sum over them {read:.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=("mlp", "resnet", "transformer", "digest"))
    options = parser.parse_args()
    if options.only in (None, "digest"):
        digests()
    for kind in ("mlp", "resnet", "transformer"):
        if options.only in (None, kind):
            jobs(kind, options.pairs)


if __name__ == "__main__":
    main()
