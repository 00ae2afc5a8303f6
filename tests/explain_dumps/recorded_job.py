"""The job whose dumps stand in `recorded/`: four ranks on gloo, one of which leaves, deviates, or comes late.

    torchrun --standalone --nproc-per-node=4 recorded_job.py OUT KIND

KIND is healthy, left, other, skipped, extra, or timed-out. Recorded with torch 2.13.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

OUT, KIND = sys.argv[1:]
RANK = int(os.environ["RANK"])


def dump() -> None:
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    for name, data in ((f"trace_{RANK}", _dump_fr_trace()), (f"trace_{RANK}.json", _dump_fr_trace_json())):
        with open(os.path.join(OUT, name), "wb") as file:
            file.write(data)


def train() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([2, 3], group_desc="pair")]
    for step in range(6):
        dist.all_reduce(torch.ones(16))
        if KIND in ("left", "timed-out") and step == 4 and RANK == 2:
            return
        dist.all_reduce(torch.ones(4), group=pairs[RANK // 2])
        if KIND == "other" and step == 4 and RANK == 2:
            dist.broadcast(torch.ones(16), 2)
        else:
            dist.all_reduce(torch.ones(16))
        if KIND == "skipped" and step == 2 and RANK == 1:
            continue
        dist.all_reduce(torch.ones(16))
    if KIND == "extra" and RANK == 0:
        dist.barrier()


if KIND == "timed-out":
    try:
        train()
    except RuntimeError:
        pass
    dump()
else:
    threading.Thread(target=train, daemon=True).start()
    time.sleep(4)
    dump()
    time.sleep(1)
os._exit(0)
