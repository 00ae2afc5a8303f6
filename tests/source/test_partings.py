"""What ranks call is compared as sequences: the shapes that look like faults and are none, and those that are."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from allranks.source.trace import Branch, Exit
from allranks.source.values import Kind

Follow = Callable[..., Any]

HEAD = """
import contextlib
import functools
import os
import random
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
x = torch.zeros(1)
"""

IN_STEP = {
    "both branches make the same call": """
        if rank == 0:
            dist.broadcast(x, src=0)
        else:
            dist.broadcast(x, src=0)
    """,
    "both branches through different wrappers": """
        def send(value):
            dist.broadcast(value, src=0)
        def receive(value):
            value.zero_()
            dist.broadcast(value, src=0)
            return value
        send(x) if rank == 0 else receive(x)
    """,
    "both branches loop over the same buffers": """
        model = torch.nn.BatchNorm1d(3)
        if rank == 0:
            for b in model.buffers():
                dist.broadcast(b, src=0)
        else:
            for b in model.buffers():
                b.zero_()
                dist.broadcast(b, src=0)
    """,
    "a barrier in each of two opposite branches": """
        if rank != 0:
            dist.barrier()
        open("x")
        if rank == 0:
            dist.barrier()
    """,
    "a context in which rank 0 goes first": """
        @contextlib.contextmanager
        def first(local_rank):
            if local_rank not in [-1, 0]:
                dist.barrier()
            yield
            if local_rank == 0:
                dist.barrier()
        with first(rank):
            data = open("x").read()
    """,
    "two yields, one of them on each rank": """
        @contextlib.contextmanager
        def first():
            if rank == 0:
                yield
            dist.barrier()
            if rank > 0:
                yield
            dist.barrier()
        with first():
            data = open("x").read()
    """,
    "contexts in a stack": """
        @contextlib.contextmanager
        def first():
            if rank != 0:
                dist.barrier()
            yield 1
            if rank == 0:
                dist.barrier()
        with contextlib.ExitStack() as stack:
            stack.enter_context(first())
            data = open("x").read()
        dist.all_reduce(x)
    """,
    "a constant that switches the barrier off": """
        @contextlib.contextmanager
        def first(local_rank):
            if local_rank not in [-1, 0]:
                dist.barrier()
            yield
            if local_rank == 0:
                dist.barrier()
        def make_loader(path, rank=-1):
            with first(rank):
                return open(path)
        if rank in [-1, 0]:
            make_loader("val")
    """,
    "the sentinel of the undistributed run": """
        if rank != -1:
            dist.all_reduce(x)
    """,
    "a flag parameter that is off": """
        def save(path, sync=False):
            if sync:
                dist.barrier()
            open(path, "w")
        if rank == 0:
            save("x")
    """,
    "one flag tested twice": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--everywhere", action="store_true")
        args = parser.parse_args()
        def load(path):
            if not args.everywhere and rank != 0:
                return None
            state = open(path)
            if args.everywhere:
                dist.barrier()
            return state
        load("x")
    """,
    "an early return in a helper": """
        def log(text):
            if rank != 0:
                return
            print(text)
        log("x")
        dist.barrier()
    """,
    "a decorator that runs on rank 0 only": """
        def main_only(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                if dist.get_rank() == 0:
                    return function(*args, **kwargs)
                return None
            return wrapper
        @main_only
        def save(path):
            open(path, "w")
        save("x")
        dist.barrier()
    """,
    "the name of a collective on something else": """
        class Meter:
            def barrier(self):
                return 1
            def all_reduce(self, x):
                return x
        meter = Meter()
        if rank == 0:
            meter.barrier()
            meter.all_reduce(1)
    """,
    "a reduced value decides": """
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if loss.item() > 1:
            sys.exit(1)
        dist.barrier()
    """,
    "a broadcast object decides": """
        box = [None]
        if rank == 0:
            box = [random.random() > 0.5]
        dist.broadcast_object_list(box, src=0)
        if box[0]:
            dist.barrier()
    """,
    "a gathered list decides": """
        flags = [None] * world_size
        dist.all_gather_object(flags, random.random() > 0.5)
        while any(flags):
            dist.barrier()
    """,
    "the members of a group call in it": """
        group = dist.new_group([0, 1])
        if rank in [0, 1]:
            dist.all_reduce(x, group=group)
    """,
    "a group that is not known": """
        groups = [dist.new_group([r]) for r in range(world_size)]
        mine = groups[rank]
        if rank == 0:
            dist.all_reduce(x, group=mine)
    """,
    "what is raised ends the job": """
        if random.random() > 0.5:
            raise ValueError("bad input")
        dist.barrier()
    """,
    "an import that fails everywhere": """
        try:
            import apex
            dist.barrier()
        except ImportError:
            apex = None
    """,
    "DDP forward without buffers": """
        model = DDP(torch.nn.Linear(3, 3))
        if rank == 0:
            model(x)
    """,
    "DDP forward that does not broadcast": """
        model = DDP(torch.nn.BatchNorm1d(3), broadcast_buffers=False)
        if rank == 0:
            model(x)
    """,
    "the inner model": """
        model = DDP(torch.nn.BatchNorm1d(3))
        if rank == 0:
            model.module(x)
    """,
    "a copy of the inner model": """
        import copy
        model = torch.nn.BatchNorm1d(3)
        ema = copy.deepcopy(model)
        model = DDP(model)
        if rank == 0:
            ema(x)
    """,
    "SyncBatchNorm in evaluation": """
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(3))
        model.eval()
        if rank == 0:
            model(x)
    """,
}


@pytest.mark.parametrize("body", IN_STEP.values(), ids=IN_STEP)
def test_ranks_that_stay_in_step(follow: Follow, body: str) -> None:
    program = follow(HEAD + textwrap.dedent(body) + "dist.destroy_process_group()\n")
    assert program.run.initialised
    assert [(p.site.line, p.kind, [e.operation for e in p.made]) for p in program.partings] == []


OUT_OF_STEP = {
    "a branch on the rank": (
        """
        if rank == 0:  # here
            dist.all_reduce(x)
        """,
        ["all_reduce"],
    ),
    "the right side of an and": (
        """
        def agreed():
            dist.all_reduce(x)
            return x > 0
        ok = (rank == 0 and  # here
              agreed())
        """,
        ["all_reduce"],
    ),
    "through three calls and a method": (
        """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
            @property
            def main(self):
                return self.rank == 0
            def finish(self):
                if self.main:  # here
                    self.report()
            def report(self):
                self.mean(x)
            def mean(self, value):
                dist.all_reduce(value)
        Trainer().finish()
        """,
        ["all_reduce"],
    ),
    "an early return and a barrier behind it": (
        """
        def save(path):
            if rank != 0:
                return  # here
            open(path, "w")
            dist.barrier()
        save("x")
        """,
        ["barrier"],
    ),
    "a loop that one rank leaves": (
        """
        for step in range(100):
            if rank == 0 and os.path.exists("stop"):
                break  # here
            dist.all_reduce(x)
        """,
        ["all_reduce"],
    ),
    "a local loss that stops a rank": (
        """
        model = DDP(torch.nn.Linear(3, 3))
        for batch in DataLoader([1]):
            loss = model(batch).sum()
            if not torch.isfinite(loss):
                sys.exit(1)  # here
            loss.backward()
        """,
        ["ddp.backward"],
    ),
    "the forward of a model with buffers": (
        """
        model = DDP(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
        def evaluate(net):
            return net(x)
        if rank == 0:  # here
            evaluate(model)
        """,
        ["ddp.forward"],
    ),
    "a collective inside the context in which rank 0 goes first": (
        """
        @contextlib.contextmanager
        def first():
            if rank != 0:  # here
                dist.barrier()
            yield
            if rank == 0:
                dist.barrier()
        with first():
            dist.all_reduce(x)
        """,
        ["all_reduce"],
    ),
    "a collective in a part that rank 0 goes through first": (
        """
        @contextlib.contextmanager
        def first():
            if rank == 0:  # here
                yield
            dist.barrier()
            if rank > 0:
                yield
            dist.barrier()
        with first():
            dist.all_reduce(x)
        """,
        ["all_reduce"],
    ),
    "one call more on one side": (
        """
        if rank == 0:  # here
            dist.broadcast(x, src=0)
            dist.barrier()
        else:
            dist.broadcast(x, src=0)
        """,
        ["barrier"],
    ),
    "a condition on each rank's own batch": (
        """
        for images, targets in DataLoader([1]):
            if (targets > 0).any():  # here
                dist.all_reduce(x)
        """,
        ["all_reduce"],
    ),
    "a group made by its members only": (
        """
        if rank in (0, 1):  # here
            group = dist.new_group([0, 1])
        """,
        ["new_group"],
    ),
}


@pytest.mark.parametrize(("body", "made"), OUT_OF_STEP.values(), ids=OUT_OF_STEP)
def test_ranks_that_part(follow: Follow, body: str, made: list[str]) -> None:
    program = follow(HEAD + textwrap.dedent(body) + "dist.destroy_process_group()\n")
    found = [(p.site.line, sorted({e.operation for e in p.made})) for p in program.partings]
    assert found == [(program.line("here"), made)]


def test_a_parting_knows_who_makes_the_call_and_why(follow: Follow) -> None:
    program = follow(HEAD + "if rank == 0:\n    dist.all_reduce(x)\ndist.barrier()\n")
    (parting,) = program.partings
    assert isinstance(parting.cause, Branch)
    assert parting.kind is Kind.RANK
    assert parting.ranks is not None
    assert parting.ranks.only_zero
    assert parting.worlds == {0, 1, 2}
    assert parting.waiting is not None
    assert parting.waiting.operation == "barrier"


def test_a_parting_on_the_local_rank_bites_with_several_nodes_only(follow: Follow) -> None:
    program = follow(
        HEAD + "if rank == 0 and int(os.environ['LOCAL_RANK']) == 0 or rank == 2:\n    dist.barrier()\n"
    )
    (parting,) = program.partings
    assert parting.ranks is not None
    assert parting.ranks.known == frozenset({0, 2})


def test_members_of_a_group_are_all_ranks_of_a_small_world(follow: Follow) -> None:
    program = follow(HEAD + "if rank in [0, 1]:\n    dist.barrier()\n")
    (parting,) = program.partings
    assert parting.worlds == {1, 2}  # not with two processes


def test_an_exit_names_how_it_leaves(follow: Follow) -> None:
    program = follow(HEAD + "if rank == 1:\n    sys.exit(1)\ndist.barrier()\n")
    (parting,) = program.partings
    assert isinstance(parting.cause, Exit)
    assert parting.cause.how == "exit"
