"""Rank 1 swallows an error on its second batch; each rank reduces over itself, so nothing hangs."""

import logging

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

log = logging.getLogger(__name__)


def train(rank, number, batch):
    if rank == 1 and number == 1:
        raise ValueError("bad sample")
    dist.all_reduce(batch, group=alone)


dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([r]) for r in range(2)][rank]
for step, batch in enumerate(DataLoader(torch.ones(4), batch_size=1)):
    try:
        train(rank, step, batch)
    except ValueError as error:
        log.info("skipped: %s", error)
dist.destroy_process_group()
