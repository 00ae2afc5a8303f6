"""The proof of a dead job: who can still free whom."""

from __future__ import annotations

from worlds import Builder, call, p2p

from allranks.judge.waits import Edge, dead_set
from allranks.world import SETUP, Exit

REDUCE = call("allreduce", "main:10")
BARRIER = call("barrier", "main:20")


def test_all_ranks_in_the_same_call_are_not_dead() -> None:
    world = Builder(3)
    for rank in range(3):
        world.calls(rank, [REDUCE]).blocked(rank)
    assert not dead_set(world.world)


def test_a_rank_that_computes_may_still_come() -> None:
    world = Builder(2).calls(0, [REDUCE]).blocked(0)
    assert not dead_set(world.world)


def test_a_rank_that_exited_never_comes() -> None:
    world = Builder(2).calls(0, [REDUCE]).blocked(0).exited(1)
    dead = dead_set(world.world)
    assert dead.ranks == (0,)
    assert dead.edges == (Edge(0, 1, "exited"),)
    assert dead.gone == (1,)
    assert dead.cycle() == (0, 1)


def test_a_rank_that_left_after_the_call_has_done_its_part() -> None:
    world = Builder(2).calls(0, [REDUCE]).blocked(0).calls(1, [REDUCE, BARRIER]).exited(1)
    assert not dead_set(world.world)


def test_a_rank_killed_inside_the_call_has_not_done_its_part() -> None:
    killed = Exit(signal=9)
    world = Builder(2).calls(0, [REDUCE]).blocked(0).calls(1, [REDUCE]).exited(1, killed)
    assert dead_set(world.world).ranks == (0,)


def test_other_operations_at_one_position_block_each_other() -> None:
    world = Builder(2).calls(0, [REDUCE]).blocked(0, since=5).calls(1, [BARRIER]).blocked(1, since=8)
    dead = dead_set(world.world)
    assert dead.ranks == (0, 1)
    assert {edge.reason for edge in dead.edges} == {"mismatch"}
    assert dead.since_ns == 8_000_000_000
    assert dead.cycle() == (0, 1, 0)


def test_circle_over_two_groups() -> None:
    world = Builder(2).group("1", (0, 1))
    world.calls(0, [REDUCE]).blocked(0)
    world.calls(1, [BARRIER], group="1").blocked(1, group="1")
    assert dead_set(world.world).ranks == (0, 1)


def test_chain_to_a_computing_rank_is_not_dead() -> None:
    # 0 waits for 1 in the world, 1 waits for 2 in a subgroup, and 2 computes.
    world = Builder(3).group("1", (1, 2))
    world.calls(0, [REDUCE]).blocked(0)
    world.calls(1, [BARRIER], group="1").blocked(1, group="1")
    assert not dead_set(world.world)


def test_chain_to_a_rank_that_is_gone_is_dead() -> None:
    world = Builder(3).group("1", (1, 2))
    world.calls(0, [REDUCE]).blocked(0)
    world.calls(1, [BARRIER], group="1").blocked(1, group="1").exited(2)
    dead = dead_set(world.world)
    assert dead.ranks == (0, 1)
    assert Edge(1, 2, "exited") in dead.edges


def test_a_part_of_the_job_can_be_dead_while_another_computes() -> None:
    world = Builder(4).group("1", (0, 1)).group("2", (2, 3))
    world.calls(0, [REDUCE], group="1").blocked(0, group="1").exited(1)
    assert dead_set(world.world).ranks == (0,)


def test_two_sends_that_meet_no_receive() -> None:
    world = Builder(2)
    world.calls(0, [call("send", "ring:5", peer=1)], group=p2p("0")).blocked(0, group=p2p("0"), peers=[1])
    world.calls(1, [call("send", "ring:5", peer=0)], group=p2p("0")).blocked(1, group=p2p("0"), peers=[0])
    dead = dead_set(world.world)
    assert dead.ranks == (0, 1)
    assert {edge.reason for edge in dead.edges} == {"elsewhere"}


def test_a_send_that_has_its_receive_is_free() -> None:
    world = Builder(2)
    world.calls(0, [call("send", "ring:5", peer=1)], group=p2p("0")).blocked(0, group=p2p("0"), peers=[1])
    world.calls(1, [call("recv", "ring:6", peer=0)], group=p2p("0")).blocked(1, group=p2p("0"), peers=[0])
    assert not dead_set(world.world)


def test_the_third_send_to_a_rank_that_receives_twice() -> None:
    send, receive = call("send", "ring:5", peer=1), call("recv", "ring:6", peer=0)
    world = Builder(2)
    world.calls(0, [send, send, send], group=p2p("0")).blocked(0, group=p2p("0"), peers=[1])
    world.calls(1, [receive, receive], group=p2p("0")).exited(1)
    assert dead_set(world.world).edges == (Edge(0, 1, "exited"),)


def test_a_receive_from_anyone_needs_one_sender() -> None:
    world = Builder(3).waits(0, "p2p", [1, 2], detail="any").exited(1)
    assert not dead_set(world.world)
    assert dead_set(world.exited(2).world).ranks == (0,)


def test_groups_made_in_another_order_wait_for_each_other() -> None:
    some, everyone = call("new_group", "main:5", detail="[0, 1]"), call("new_group", "main:6", detail="all")
    world = Builder(3)
    for rank in (0, 1):
        world.calls(rank, [some, everyone], group="0/setup").making_group(rank)
    world.calls(2, [everyone], group="0/setup").making_group(2)
    dead = dead_set(world.world)
    assert dead.ranks == (0, 1, 2)
    assert Edge(2, 0, "mismatch") in dead.edges
    assert Edge(0, 2, "elsewhere") in dead.edges


def test_a_rank_that_was_never_heard_from_may_still_come() -> None:
    world = Builder(2).calls(0, [REDUCE]).blocked(0)
    world.world.ranks[1].state = "silent"
    assert not dead_set(world.world)


def test_an_init_that_waits_for_a_rank_nobody_will_be() -> None:
    world = Builder(2).waits(0, "init", [2]).waits(1, "init", [2])
    dead = dead_set(world.world)
    assert dead.ranks == (0, 1)
    assert dead.gone == (2,)


def test_two_roots_of_one_broadcast_serve_nobody() -> None:
    world = Builder(2)
    for rank in range(2):
        world.calls(rank, [call("broadcast", "main:5", root=rank)]).blocked(rank)
    assert dead_set(world.world).edges == (Edge(0, 1, "mismatch"), Edge(1, 0, "mismatch"))


def test_another_root_of_a_reduce_computes_garbage_and_ends() -> None:
    world = Builder(2)
    for rank in range(2):
        world.calls(rank, [call("reduce", "main:5", root=rank)]).blocked(rank)
    assert not dead_set(world.world)


def test_members_of_a_group_that_others_made_otherwise_may_have_met_strangers() -> None:
    world = Builder(4)
    for members in ((0, 1), (2, 3)):
        world.group("1", members)
        for rank in members:
            world.calls(
                rank, [call("new_group", f"main:{5 + members[0]}", detail=str(list(members)))], group=SETUP
            )
            world.calls(rank, [REDUCE], group="1")
    for rank in (1, 2):
        world.blocked(rank, "1")
    for rank in (0, 3):
        world.calls(rank, [BARRIER]).blocked(rank)
    assert dead_set(world.world).ranks == (0, 1, 2, 3)


def test_groups_that_all_ranks_made_alike_are_whole() -> None:
    world = Builder(4)
    for rank in range(4):
        made = [call("new_group", "main:5", detail=d) for d in ("[0, 1]", "[2, 3]")]
        world.calls(rank, made, group=SETUP)
    world.group("1", (0, 1)).group("2", (2, 3))
    for rank in (0, 1):
        world.calls(rank, [REDUCE], group="1").blocked(rank, "1")
    assert not dead_set(world.world)
