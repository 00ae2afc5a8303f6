"""A small DDP training with accumulation, buffers and compiled code; writes a digest of all it trained."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
sampler = DistributedSampler(data, seed=1)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
        loss = nn.functional.mse_loss(model(x), y)
        if step % 2 == 0:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean)
state = b"".join(v.numpy().tobytes() for v in model.module.state_dict().values())
with open(f"{sys.argv[1]}-{rank}", "w") as file:
    file.write(
        f"{hashlib.sha256(state).hexdigest()} {hashlib.sha256(torch.stack(losses).numpy().tobytes()).hexdigest()}"
    )
dist.destroy_process_group()
