"""What a real job's calls look like in the world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.world import SETUP, p2p

from .conftest import JOBS, Run

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def line_of(job: str, text: str) -> int:
    lines = (JOBS / job).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module")
def seen(torchrun: Callable[..., Run]) -> Run:
    return torchrun("everything.py")


def test_every_call_of_every_rank_is_seen(seen: Run) -> None:
    assert seen.status == 0
    assert seen.slugs() == []
    direct = [
        ("allreduce", "op=dist.ReduceOp.MAX"), ("allreduce", "dist.ReduceOp.MIN"),
        ("broadcast", "dist.broadcast(t, src=1)"),
        ("reduce", "dist.reduce("), ("allgather", "dist.all_gather("), ("allgather_into", "all_gather_into_tensor"),
        ("gather", "dist.gather("), ("scatter", "dist.scatter("), ("reduce_scatter", "reduce_scatter_tensor"),
        ("alltoall", "all_to_all_single"), ("barrier", "dist.barrier"), ("monitored_barrier", "monitored_barrier"),
        ("all_gather_object", "all_gather_object"), ("broadcast_object_list", "broadcast_object_list"),
        ("gather_object", "dist.gather_object"), ("allreduce", "functional.all_reduce"),
        ("allreduce", "(torch.ones(1))"),
    ]  # fmt: skip
    expected = [(op, line_of("everything.py", text)) for op, text in direct]
    for rank in (0, 1):
        calls = seen.ops(rank)
        assert calls[: len(expected)] == expected
        hidden = [seen.world.kinds[k] for k in seen.world.ranks[rank].histories["0"].kinds[len(expected) :]]
        assert {k.inside for k in hidden} == {"DDP.__init__", "DDP.forward", "DDP.backward"}
        assert all(k.hidden for k in hidden)
        assert {k.site[-1].line for k in hidden if k.inside == "DDP.__init__"} == {
            line_of("everything.py", "model = DDP")
        }
        assert {k.site[-1].line for k in hidden if k.inside == "DDP.backward"} == {
            line_of("everything.py", "backward()")
        }
    assert list(seen.world.ranks[0].histories["0"].kinds) == list(seen.world.ranks[1].histories["0"].kinds)


def test_signatures_say_all_that_must_agree(seen: Run) -> None:
    kinds = [seen.world.kinds[k].signature for k in seen.world.ranks[0].histories["0"].kinds]
    assert [(k.op, k.reduce_op) for k in kinds if k.reduce_op][:4] == [
        ("allreduce", "MAX"), ("allreduce", "MIN"), ("reduce", "PRODUCT"), ("reduce_scatter", "SUM"),
    ]  # fmt: skip
    first = kinds[0]
    assert (first.dtype, first.shape, first.root) == ("float32", ((2, 3),), None)
    roots = {k.op: k.root for k in kinds}
    assert {op: roots[op] for op in ("reduce", "gather", "scatter", "broadcast_object_list", "gather_object")} == {
        "reduce": 1, "gather": 0, "scatter": 0, "broadcast_object_list": 1, "gather_object": 0,
    }  # fmt: skip
    # In a subgroup roots and peers are still global ranks.
    (pair,) = [name for name, group in seen.world.ranks[0].groups.items() if name != "0"]
    assert seen.world.ranks[0].groups[pair].ranks == (0, 1)
    assert seen.call(0, "broadcast", pair).signature.root == 1
    sent = [seen.world.kinds[k].signature for k in seen.world.ranks[0].histories[p2p("0")].kinds]
    assert [(s.op, s.peer, s.tag) for s in sent] == [
        ("send", 1, 7),
        ("recv", 1, 0),
        ("send", 1, 0),
        ("recv", 1, 0),
    ]


def test_groups_and_their_making(seen: Run) -> None:
    ops = [op for op, _ in seen.ops(0, SETUP)]
    assert ops == ["init_process_group", "new_group", "new_group", "destroy_process_group"]
    details = [seen.world.kinds[k].signature.detail for k in seen.world.ranks[0].histories[SETUP].kinds]
    assert details == [None, "[1]", "[0, 1]", None]
    # Rank 0 is not in group [1]: its all_reduce there is a no-op that nobody would notice.
    (call,) = seen.world.ranks[0].facts["outsider_calls"]
    assert call["op"] == "all_reduce"
    assert call["site"][-1].line == line_of("everything.py", "group=group")
    assert "outsider_calls" not in seen.world.ranks[1].facts
    assert seen.world.size == 2
    for rank in (0, 1):
        state = seen.world.ranks[rank]
        assert state.exit is not None
        assert (state.state, state.exit.status, state.exit.clean) == ("exited", 0, True)
        assert (state.facts["destroyed"], state.facts["group_alive"], state.facts["backend"]) == (
            True,
            False,
            "gloo",
        )


def test_loaders_and_what_was_swallowed(torchrun: Callable[..., Run]) -> None:
    seen = torchrun("swallows.py")
    assert seen.status == 0
    good, bad = seen.world.ranks[0], seen.world.ranks[1]
    (row,) = good.facts["loaders"]
    assert (row["drawn"], row["exhausted"], row["exception"], row["without_calls"]) == (4, True, False, [])
    assert row["site"][-1].line == line_of("swallows.py", "for step")
    assert bad.facts["loaders"][0]["without_calls"] == [2]
    assert good.exceptions == []
    (swallowed,) = bad.exceptions
    assert (swallowed.type, swallowed.message, swallowed.handled) == ("ValueError", "bad sample", True)
    assert swallowed.frames[-1].line == line_of("swallows.py", "raise ValueError")
    assert Path(swallowed.frames[-1].path).name == "swallows.py"


def test_without_operators_what_python_calls_is_still_seen(torchrun: Callable[..., Run]) -> None:
    seen = torchrun("unwatched.py")
    assert (seen.status, seen.slugs()) == (0, ["no-operators", "no-operators"])
    ops = [op for op, _ in seen.ops(0)]
    assert ops == ["allreduce", "broadcast", "allgather", "all_gather_object", "barrier"]
    first = seen.call(0, "allreduce").signature
    assert (first.reduce_op, first.dtype, first.shape) == ("MAX", "float32", ((2, 3),))
    assert seen.call(0, "broadcast").signature.root == 1
    sent, received = (seen.call(rank, op, p2p("0")).signature for rank, op in ((0, "send"), (1, "recv")))
    assert ((sent.peer, sent.tag), (received.peer, received.tag)) == ((1, 7), (0, 7))
