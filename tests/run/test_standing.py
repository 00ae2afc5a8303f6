"""What an answer of a guest means: which call the main thread waits for, and for whom."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.rank import wire
from allranks.run.guest import Guest, Kinds
from allranks.run.standing import Standing, absent_from
from allranks.world import SETUP, RankState, Wait, World

SITE = [("/job/train.py", 5, "main", 1, True)]


class Rank:
    """A guest whose messages and records are written by hand."""

    def __init__(self, world: World, rank: int = 0, kinds: Kinds | None = None) -> None:
        fd = os.memfd_create("test")
        os.ftruncate(fd, wire.RING_BYTES)
        self.map = mmap.mmap(fd, wire.RING_BYTES)
        connection: Any = SimpleNamespace(pid=os.getpid(), fd=fd)
        self.guest = Guest(connection, {"tid": os.getpid()}, kinds or Kinds(world.kinds))
        self.guest.rank = rank
        self.world = world
        self.serial = 0
        self.guest.heard(("group", 1, SETUP, [], "", "", None))
        self.guest.heard(("group", 2, "0", [0, 1, 2], "", "gloo", None))
        self.guest.heard(("site", 1, SITE))
        self.numbers: dict[Any, int] = {}
        self.positions: dict[Any, int] = {}

    def call(
        self, op: str, *, group: int = 2, root: int | None = None, peer: int | None = None, inside: str = "",
        detail: str | None = None, state: int = wire.ISSUED,
    ) -> int:  # fmt: skip
        key = (op, root, peer, inside, detail)
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers) + 1
            shape = [[2]] if group == 2 else None
            self.guest.heard(
                (
                    "kind",
                    self.numbers[key],
                    op,
                    None,
                    root,
                    peer,
                    None,
                    "torch.float32",
                    shape,
                    detail,
                    1,
                    inside,
                )
            )
        lane = (group, peer is not None or op == "recv_any")
        position = self.positions.get(lane, 0)
        self.positions[lane] = position + 1
        self.serial += 1
        at = self.serial % wire.SLOTS * wire.RECORD.size
        wire.RECORD.pack_into(
            self.map, at, 100 + self.serial, position, self.numbers[key], group, state, wire.CALL, self.serial
        )
        self.guest.read()
        return self.serial

    def wait(
        self, inner: str = "", detail: Any = None, pending: tuple[int, ...] = (), top: str = "/torch/x.py"
    ) -> Wait | None:
        answer = {
            "stack": SITE, "in": inner, "detail": detail, "pending": list(pending), "instruction": 1,
            "top": 1 if "/torch/" in top else 0, "top_path": top, "top_function": "f",
        }  # fmt: skip
        return Standing(self.guest)._wait(answer, self.world)[0]


@pytest.fixture
def rank() -> Rank:
    return Rank(World(size=3))


def test_records_keep_their_order_while_a_description_is_on_its_way(rank: Rank) -> None:
    first = rank.call("allreduce")
    for number, position in ((9, 1), (1, 2)):  # a kind that nobody has described yet, then a known one
        rank.serial += 1
        at = rank.serial % wire.SLOTS * wire.RECORD.size
        wire.RECORD.pack_into(rank.map, at, 200, position, number, 2, wire.ISSUED, wire.CALL, rank.serial)
    rank.guest.read()
    assert (rank.guest.histories["0"].start, len(rank.guest.histories["0"].kinds), first) == (0, 1, 1)
    rank.guest.heard(("kind", 9, "barrier", None, None, None, None, None, None, None, 1, ""))
    rank.guest.read()
    history = rank.guest.histories["0"]
    assert (history.start, [rank.world.kinds[k].signature.op for k in history.kinds]) == (
        0,
        ["allreduce", "barrier", "allreduce"],
    )


def test_a_collective_waits_for_every_other_member(rank: Rank) -> None:
    rank.call("allreduce", state=wire.DONE)
    serial = rank.call("allreduce")
    wait = rank.wait("work", [serial], (serial,))
    assert wait is not None
    assert (wait.kind, wait.group, wait.position, wait.peers, wait.since_ns) == (
        "collective",
        "0",
        1,
        (1, 2),
        102,
    )


def test_who_receives_a_broadcast_waits_for_its_root_alone(rank: Rank) -> None:
    serial = rank.call("broadcast", root=2)
    own = rank.call("broadcast", root=0)
    received, sent = rank.wait("work", [serial], (serial,)), rank.wait("work", [own], (own,))
    assert received is not None
    assert sent is not None
    assert (received.peers, sent.peers) == ((2,), (1, 2))


def test_an_earlier_unfinished_collective_of_the_group_comes_first(rank: Rank) -> None:
    first = rank.call("allreduce")
    second = rank.call("barrier")
    wait = rank.wait("work", [second], (first, second))
    assert wait is not None
    assert wait.position == 0


def test_point_to_point_calls_do_not_hold_each_other_up(rank: Rank) -> None:
    sent = rank.call("send", peer=1)
    received = rank.call("recv", peer=2)
    wait = rank.wait("work", [received], (sent, received))
    assert wait is not None
    assert (wait.kind, wait.peers, wait.position) == ("p2p", (2,), 1)


def test_a_receive_from_anyone_waits_for_any(rank: Rank) -> None:
    serial = rank.call("recv_any")
    wait = rank.wait("work", [serial], (serial,))
    assert wait is not None
    assert (wait.kind, wait.peers, wait.detail) == ("p2p", (1, 2), "any")


def test_in_backward_torch_waits_for_its_own_call(rank: Rank) -> None:
    other = rank.call("send", peer=1)
    bucket = rank.call("allreduce", inside="DDP.backward")
    wait = rank.wait("", None, (other, bucket))
    assert wait is not None
    assert (wait.kind, wait.position) == ("collective", 0)


@pytest.mark.parametrize("top", ["/job/train.py", "/lib/torch/utils/data/dataloader.py"])
def test_who_computes_or_loads_data_does_not_wait(rank: Rank, top: str) -> None:
    assert rank.wait("", None, (rank.call("allreduce"),), top) is None


def test_without_pending_calls_nobody_waits(rank: Rank) -> None:
    rank.call("allreduce", state=wire.DONE)
    assert rank.wait("", None, ()) is None


def test_groups_meet_by_number() -> None:
    world = World(size=3)
    kinds = Kinds(world.kinds)
    ranks = [Rank(world, n, kinds) for n in range(3)]
    for one in ranks:
        one.call("init_process_group", group=1, state=wire.DONE)
    for one in ranks[:2]:
        one.call("new_group", group=1, detail="[0, 1]", state=wire.DONE)
    serials = [one.call("new_group", group=1, detail="all") for one in ranks]
    for number, one in enumerate(ranks):
        world.ranks[number] = RankState(number, histories=one.guest.histories)
    waits = [one.wait("call", [serial]) for one, serial in zip(ranks, serials, strict=True)]
    absent = [absent_from(w, world.ranks[n], world) for n, w in enumerate(waits) if w is not None]
    # Ranks 0 and 1 make their second group, rank 2 its first: they wait for each other for ever.
    assert absent == [(2,), (2,), (0, 1)]


def test_init_waits_for_ranks_that_have_not_come_to_the_same_address() -> None:
    world = World(size=3)
    kinds = Kinds(world.kinds)
    ranks = [Rank(world, n, kinds) for n in range(3)]
    for number, one in enumerate(ranks[:2]):
        given = {"init_method": f"tcp://127.0.0.1:{4000 + number}"}
        one.guest.heard(("init", number, 3, given, {}, 1))
        one.call("init_process_group", group=1)
        world.ranks[number] = RankState(number, histories=one.guest.histories, facts=one.guest.facts)
    wait = ranks[0].wait("call", [1])
    assert wait is not None
    assert (wait.kind, absent_from(wait, world.ranks[0], world)) == ("init", (1, 2))
