"""Trains in several ways and writes a digest of the parameters after each. Run as `python trains.py RANK FOLDER`."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(way: str) -> nn.Module:
    torch.manual_seed(dist.get_rank())
    model: nn.Module = DDP(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1)))
    inner = model.module
    if way == "compile":
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=way == "fp16")
    for turn in range(24):
        last = way != "accumulation" or turn % 3 == 2
        cast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(way)
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cpu", dtype=cast) if cast else nullcontext():
                loss = model(torch.randn(8, 6)).float().square().mean()
            scaler.scale(loss).backward()
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return inner


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for way in ("plain", "accumulation", "bf16", "fp16", "compile"):
        digest = hashlib.sha256()
        for tensor in train(way).state_dict().values():
            digest.update(tensor.numpy().tobytes())
        found[way] = digest.hexdigest()
    (folder / f"digests{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
