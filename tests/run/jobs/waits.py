"""Jobs that end in one way or another: `waits.py CASE`."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

CASE = sys.argv[1]
if CASE == "exec" and len(sys.argv) == 2:
    os.execv(sys.executable, [sys.executable, __file__, CASE, "again"])
if CASE == "restart" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    # Before any rank has left its address in the store: with torch 2.13 gloo of the next round may dial the old one.
    if os.environ["RANK"] == "1":
        raise RuntimeError("first round")
    time.sleep(60)

dist.init_process_group("gloo", timeout=timedelta(seconds=4 if CASE == "timeout" else 600))
rank = dist.get_rank()
t = torch.ones(3)
dist.all_reduce(t)
if CASE in ("mismatch", "timeout"):
    dist.barrier() if rank == 0 else dist.all_reduce(t)
elif CASE == "exit" and rank == 1:
    sys.exit(0)
elif CASE == "work":
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        work.wait()
    else:
        dist.recv(t, src=0)
elif CASE == "store":
    dist.distributed_c10d._get_default_store().get(f"from-{1 - rank}")
elif CASE == "group" and rank == 0:
    dist.new_group([0, 1])
elif CASE == "sleep" and rank == 1:
    time.sleep(2)
elif CASE == "compute" and rank == 1:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        sum(range(1000))
elif CASE == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
elif CASE == "fork":
    pid = os.fork()
    if pid == 0:
        dist.is_initialized()
        os._exit(0)
    os.waitpid(pid, 0)
dist.all_reduce(t)
dist.destroy_process_group()
