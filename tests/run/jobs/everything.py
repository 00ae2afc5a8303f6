"""Every kind of call once."""

import contextlib

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(2, 3)
dist.all_reduce(t, op=dist.ReduceOp.MAX)
dist.all_reduce(t, dist.ReduceOp.MIN, async_op=True).wait()
dist.broadcast(t, src=1)
dist.reduce(t, dst=1, op=dist.ReduceOp.PRODUCT)
dist.all_gather([torch.zeros(2, 3) for _ in range(2)], t)
dist.all_gather_into_tensor(torch.zeros(4, 3), t)
dist.gather(t, [torch.zeros(2, 3) for _ in range(2)] if rank == 0 else None, dst=0)
dist.scatter(t, [torch.zeros(2, 3) for _ in range(2)] if rank == 0 else None, src=0)
dist.reduce_scatter_tensor(torch.zeros(1, 3), t)
dist.all_to_all_single(torch.zeros(2, 3), t)
dist.barrier()
dist.monitored_barrier()
dist.all_gather_object([None, None], rank)
dist.broadcast_object_list([rank], src=1)
dist.gather_object(rank, [None, None] if rank == 0 else None, dst=0)
functional.all_reduce(t, "sum", [0, 1]).sum()
with torch.inference_mode():
    dist.all_reduce(torch.ones(1))
group = dist.new_group([1])
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1), group=group)
if rank == 0:
    with contextlib.suppress(ValueError):
        dist.get_backend(group)  # a question, no collective
dist.broadcast(torch.ones(5), src=1, group=pair)
if rank == 0:
    dist.send(t, dst=1, tag=7)
    dist.irecv(t, src=1).wait()
else:
    dist.recv(t, src=0, tag=7)
    dist.isend(t, dst=0).wait()
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, torch.zeros(2, 3), 1 - rank)]
):
    work.wait()
model = DDP(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
model(t).sum().backward()
dist.destroy_process_group()
