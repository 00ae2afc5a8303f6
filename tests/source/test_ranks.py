"""Where the rank comes from, and how conditions on it are written: the ranks that pass a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allranks.source.flow import Kind
from allranks.source.lanes import LANES, RANK_ZERO, RankSet, even, per_local_rank

Follow = Callable[..., Any]

HEAD = """
    import argparse
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
"""


@pytest.mark.parametrize(
    "made",
    [
        "rank = dist.get_rank()",
        "rank = torch.distributed.get_rank()",
        "rank = int(os.environ['RANK'])",
        "rank = int(os.environ.get('RANK', -1))",
        "rank = int(os.getenv('RANK', '0'))",
        "rank = int(os.environ['SLURM_PROCID'])",
        "rank = {name: int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE')}['RANK']",
        "rank, world = dist.get_rank(), dist.get_world_size()",
        "options = {'rank': dist.get_rank()}\n    rank = options['rank']",
        "box = [dist.get_rank()]\n    rank = box[0]",
        "rank = dist.get_rank() if dist.is_initialized() else 0",
        "node = int(os.environ['NODE_RANK'])\n"
        "    rank = node * torch.cuda.device_count() + int(os.environ['LOCAL_RANK'])",
    ],
)
def test_a_rank_is_known_however_it_was_asked_for(follow: Follow, made: str) -> None:
    found = follow(f"{HEAD}\n    {made}\n    if rank == 0:  # here\n        print()\n").variation("here")
    assert (found.kind, found.ranks, found.described) == (Kind.RANK, frozenset({0}), "rank 0")


@pytest.mark.parametrize(
    ("test", "described"),
    [
        ("rank == 0", "rank 0"),
        ("0 == rank", "rank 0"),
        ("not rank", "rank 0"),
        ("rank < 1", "rank 0"),
        ("rank in (-1, 0)", "rank 0"),
        ("rank in {-1, 0}", "rank 0"),
        ("not rank > 0", "rank 0"),
        ("rank is not None and rank == 0", "rank 0"),
        ("world > 1 and rank == 0", "rank 0"),
        ("rank == 0 or rank == -1", "rank 0"),
        ("str(rank) == '0'", "rank 0"),
        ("rank", "every rank but 0"),
        ("rank != 0", "every rank but 0"),
        ("rank > 0", "every rank but 0"),
        ("rank not in [-1, 0]", "every rank but 0"),
    ],
)
def test_conditions_on_the_rank(follow: Follow, test: str, described: str) -> None:
    program = follow(
        f"{HEAD}\n    rank, world = dist.get_rank(), dist.get_world_size()\n    if {test}:  # here\n        print()\n"
    )
    found = program.variation("here")
    assert (found.kind, found.described) == (Kind.RANK, described)


@pytest.mark.parametrize(
    "test",
    [
        "rank != -1",
        "rank >= 0",
        "rank == -1",
        "world > 1",
        "world == 1",
        "world == 8",
        "rank < world",
        "rank is None",
    ],
)
def test_what_all_ranks_agree_on(follow: Follow, test: str) -> None:
    program = follow(
        f"{HEAD}\n    rank, world = dist.get_rank(), dist.get_world_size()\n    if {test}:  # here\n        print()\n"
    )
    assert program.variation("here").kind is Kind.UNIFORM


@pytest.mark.parametrize(
    "test",
    [
        "int(os.environ['LOCAL_RANK']) == 0",
        "dist.get_rank() % torch.cuda.device_count() == 0",
        "args.local_rank == 0",
        "dist.get_node_local_rank() == 0",
    ],
)
def test_one_rank_of_each_node(follow: Follow, test: str) -> None:
    program = follow(
        f"""
        {HEAD}
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        args = parser.parse_args()
        if {test}:  # here
            print()
        """.replace("\n        ", "\n    ")
    )
    found = program.variation("here")
    assert (found.kind, found.described) == (Kind.NODE, "local rank 0 of each node")


def test_a_value_that_only_one_rank_has_is_a_test_on_the_rank(follow: Follow) -> None:
    program = follow(
        """
        import torch.distributed as dist
        from torch.utils.tensorboard import SummaryWriter
        dist.init_process_group("gloo")
        writer = SummaryWriter() if dist.get_rank() == 0 else None
        log = None
        if dist.get_rank() == 0:
            log = open("log.txt", "a")
        if writer is not None:  # writer
            writer.add_scalar("loss", 0.0)
        if log:  # log
            log.write("x")
        """
    )
    assert program.variation("writer").ranks == frozenset({0})
    assert program.variation("log").ranks == frozenset({0})


def test_a_spawned_function_gets_its_local_rank_first(follow: Follow) -> None:
    program = follow(
        """
        import argparse
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp

        def worker(gpu, ngpus, args):
            args.rank = args.rank * ngpus + gpu
            dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
            if args.rank == 0:  # rank
                print()
            if gpu == 0:  # local
                print()

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--rank", type=int, default=0)
            args = parser.parse_args()
            ngpus = torch.cuda.device_count()
            args.world_size = ngpus * args.nodes
            mp.spawn(worker, nprocs=ngpus, args=(ngpus, args))

        if __name__ == "__main__":
            main()
        """
    )
    assert program.variation("rank").described == "rank 0"
    assert program.variation("local").described == "local rank 0 of each node"


def test_what_is_passed_as_the_rank_is_the_rank(follow: Follow) -> None:
    program = follow(
        """
        import torch.distributed as dist
        import config

        def main(settings):
            dist.init_process_group("nccl", rank=settings.id, world_size=settings.count)
            if settings.id == 0:  # here
                print()

        main(config.read())
        """
    )
    assert program.variation("here").ranks == frozenset({0})


def test_masks_of_lanes() -> None:
    assert RankSet(RANK_ZERO).only_zero
    assert not even(RANK_ZERO)
    firsts = sum(1 << i for i, lane in enumerate(LANES) if lane.local_rank == 0)
    assert per_local_rank(firsts)
    assert not per_local_rank(RANK_ZERO)
    assert RankSet(firsts).by_node
    assert RankSet(sum(1 << i for i, lane in enumerate(LANES) if lane.rank == 2)).known == frozenset({2})
