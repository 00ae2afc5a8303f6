"""Ranks by mp.spawn, numbered from 0: `spawned.py PROCESSES WORLD_SIZE`."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank, size, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(main, args=(int(sys.argv[2]), port), nprocs=int(sys.argv[1]))
