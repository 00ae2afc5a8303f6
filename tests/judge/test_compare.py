"""The first position at which the ranks of a group differ."""

from __future__ import annotations

import pytest
from worlds import Builder, call

from allranks.judge.compare import first_deviation, mismatch
from allranks.world import Group, Signature

A = call("allreduce", "main:10", dtype="float32", shape=((4,),))
B = call("allreduce", "main:11", dtype="float32", shape=((4,),))
C = call("barrier", "main:12")


def test_equal_histories_have_no_deviation() -> None:
    world = Builder(2).calls(0, [A, B, C] * 50).calls(1, [A, B, C] * 50)
    assert first_deviation(world.world) is None


def test_a_rank_that_stopped_is_missing() -> None:
    world = Builder(3).calls(0, [A, B, C]).calls(1, [A, B]).calls(2, [A, B, C])
    found = first_deviation(world.world)
    assert found is not None
    assert (found.position, found.missing, found.mismatch) == (2, (1,), None)
    assert sorted(found.calls) == [0, 2]
    assert found.time_ns == 3_000_000_000


@pytest.mark.parametrize("position", [0, 1, 37, 98, 99])
def test_the_first_of_many_positions(position: int) -> None:
    calls = [A] * 100
    others = [*calls[:position], C, *calls[position + 1 :]]
    found = first_deviation(Builder(2).calls(0, calls).calls(1, others).world)
    assert found is not None
    assert (found.position, found.mismatch) == (position, "op")


def test_calls_that_pair_by_luck_differ_by_their_statement() -> None:
    world = Builder(2).calls(0, [A, B]).calls(1, [B, A])
    found = first_deviation(world.world)
    assert found is not None
    assert (found.position, found.mismatch) == (0, "site")
    swapped = frozenset(found.calls.values())
    assert first_deviation(world.world, harmless={swapped}) is None
    assert first_deviation(world.world, sites=False) is None


def test_a_call_that_does_not_pair_is_found_behind_one_that_does() -> None:
    world = Builder(2).calls(0, [A, C]).calls(1, [B, A])
    found = first_deviation(world.world, sites=False)
    assert found is not None
    assert (found.position, found.mismatch) == (1, "op")


def test_the_earliest_group_wins() -> None:
    world = Builder(2).group("1", (0, 1))
    world.calls(0, [A], at=50).calls(1, [C], at=50)
    world.calls(0, [C], group="1", at=20).calls(1, [A], group="1", at=20)
    found = first_deviation(world.world)
    assert found is not None
    assert found.group.name == "1"


def test_histories_that_lost_their_beginning_are_compared_from_where_all_are_held() -> None:
    world = Builder(2).calls(0, [A, B, C]).calls(1, [B, A])
    world.world.ranks[1].histories["0"].start = 1
    found = first_deviation(world.world)
    assert found is not None
    assert (found.position, found.mismatch) == (2, "op")


def test_a_name_that_means_two_groups_is_left_alone() -> None:
    world = Builder(3).calls(0, [A])
    for rank in range(3):
        world.calls(rank, [A] if rank else [])
    world.world.ranks[0].groups["1"] = Group("1", (0, 1))
    world.world.ranks[2].groups["1"] = Group("1", (0, 1, 2))
    world.calls(0, [A], group="1").calls(2, [C], group="1")
    assert first_deviation(world.world) is None


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (Signature("allreduce", "SUM"), Signature("allreduce", "MAX"), "reduce_op"),
        (Signature("broadcast", root=0), Signature("broadcast", root=1), "root"),
        (Signature("allreduce", dtype="float32"), Signature("allreduce", dtype="int32"), "dtype"),
        (Signature("allreduce", shape=((2, 3),)), Signature("allreduce", shape=((6,),)), None),
        (Signature("allreduce", shape=((2, 3),)), Signature("allreduce", shape=((5,),)), "shape"),
        (Signature("gather", shape=((2,),)), Signature("gather", shape=((3,),)), None),
        (Signature("allreduce", "SUM"), Signature("allreduce"), None),
        (Signature("allreduce"), Signature("barrier"), "op"),
    ],
)
def test_what_does_not_pair(one: Signature, other: Signature, what: str | None) -> None:
    assert mismatch(one, other) == what


def test_what_agreed_once_is_not_compared_again() -> None:
    world = Builder(2).calls(0, [A] * 10).calls(1, [A] * 8)
    found = first_deviation(world.world)
    assert found is not None
    assert world.world.compared == {"0": 8}
    world.calls(1, [A, C])
    found = first_deviation(world.world)
    assert found is not None
    assert (found.position, found.mismatch) == (9, "op")
    assert world.world.compared == {"0": 9}


def test_ranks_may_end_their_groups_one_by_one_but_must_make_them_together() -> None:
    init, end = call("init_process_group", "main:1"), call("destroy_process_group", "main:30")
    world = Builder(2).calls(0, [init, end], group="0/setup").calls(1, [init], group="0/setup")
    assert first_deviation(world.world) is None
    make = call("new_group", "main:5", detail="[0, 1]")
    world = Builder(2).calls(0, [init, make], group="0/setup").calls(1, [init], group="0/setup")
    found = first_deviation(world.world)
    assert found is not None
    assert (found.group.name, found.position, found.missing) == ("0/setup", 1, (1,))


def test_a_group_with_local_synchronization_is_its_members_affair() -> None:
    make = call("new_group", "main:5", detail="[0, 1] local")
    world = Builder(3).calls(0, [make], group="0/setup").calls(1, [make], group="0/setup")
    assert first_deviation(world.world) is None
