"""Rank 0 starts rank 1 itself, as Lightning does, and is in init_process_group long before it."""

import os
import subprocess
import sys
import time

if "LOCAL_RANK" in os.environ:
    time.sleep(3)
    other = None
else:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], WORLD_SIZE="2")
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
    os.environ["LOCAL_RANK"] = "0"

import torch.distributed as dist

dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
dist.barrier()
dist.destroy_process_group()
if other is not None:
    sys.exit(other.wait())
