"""A training job for two CPU processes that hangs: a mistake seen in many real programs, shown by `allranks demo`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader):
    """Mean loss over the validation set, averaged over the ranks."""
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.mse_loss(model(x), y) for x, y in loader) / len(loader)
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    """Train a line, and evaluate it on rank 0 only."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: validation loss {evaluate(model.module, loader):.4f}", flush=True)
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
