"""Barriers and stragglers, in worlds with the times of calls."""

from __future__ import annotations

from typing import Any

import pytest
from observations import BACKWARD, Seen, verdicts
from worlds import call, site

from allranks.judge.rules import waste

BARRIER = call("barrier", "main:31")
MILLISECOND = 1_000_000


def steps(count: int, calls: list[Any]) -> Seen:
    seen = Seen(ddp=False)
    for rank in seen.everyone:
        seen.calls(rank, calls * count)
    return seen


def test_a_barrier_in_every_step() -> None:
    found = steps(20, [BACKWARD, BARRIER]).found(waste.RULES)
    assert verdicts(found) == [("needless-barrier", 31, (0, 1))]


def test_a_barrier_between_reductions_by_hand() -> None:
    found = steps(20, [BARRIER, *[call("allreduce", "main:33", shape=((3,),))] * 2]).found(waste.RULES)
    assert verdicts(found) == [("needless-barrier", 31, (0, 1))]


def test_a_barrier_in_every_epoch() -> None:
    assert steps(10, [*[BACKWARD] * 30, BARRIER]).found(waste.RULES) == []


def test_a_few_barriers() -> None:
    assert steps(4, [BACKWARD, BARRIER]).found(waste.RULES) == []


def test_barriers_without_training() -> None:
    assert steps(20, [call("broadcast", "main:9"), BARRIER]).found(waste.RULES) == []


def test_barriers_around_files() -> None:
    seen = steps(20, [BACKWARD, BARRIER])
    for step in range(20):
        seen.saw(0, "write", "main:32", path=f"/c/{step}.pt", mode="w", via="torch.save", time=2 * step + 2.5)
    assert seen.found(waste.RULES) == []


def timed(lateness: list[int], *, step_ms: int = 20, ranks: int = 2) -> Seen:
    """Steps of 20 ms, in which the last rank comes later than the others by so many ms: it sleeps."""
    seen = Seen(ranks, ddp=False)
    now = 1_000 * MILLISECOND
    for rank in seen.everyone:
        seen.calls(rank, [BACKWARD] * len(lateness))
        times = seen.world.ranks[rank].histories["0"].times_ns
        for index, late in enumerate(lateness):
            times[index] = (
                now + index * step_ms * MILLISECOND + (late * MILLISECOND if rank == ranks - 1 else 0)
            )
    scheduled(seen, *[(100, 20)] * ranks)
    return seen


def scheduled(seen: Seen, *took: tuple[int, int], until_ms: int = 1_900) -> None:
    """For how many ms the main thread of each rank has run, and has waited for a processor."""
    for rank, (run, waited) in enumerate(took):
        rows = [(900 * MILLISECOND, 0, 0), (until_ms * MILLISECOND, run * MILLISECOND, waited * MILLISECOND)]
        seen.world.ranks[rank].facts["scheduled"] = rows


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_is_late_in_every_step(ranks: int) -> None:
    found = timed([10] * 40, ranks=ranks).found(waste.RULES)
    assert [(f.fault, f.ranks) for f in found] == [("straggler", (ranks - 1,))]


@pytest.mark.parametrize(
    "lateness",
    [[2] * 40, [10, -10] * 20, [10] * 12, [0] * 39 + [15]],
    ids=["little", "in turn", "few steps", "once"],
)
def test_waits_that_are_no_straggler(lateness: list[int]) -> None:
    assert timed(lateness).found(waste.RULES) == []


@pytest.mark.parametrize(("ran", "faults"), [(5, []), (300, ["straggler"])])
def test_a_rank_that_others_keep_from_its_processor(ran: int, faults: list[str]) -> None:
    seen = timed([10] * 40)
    scheduled(seen, (100, 20), (100 + ran, 420))
    assert [f.fault for f in seen.found(waste.RULES)] == faults


@pytest.mark.parametrize(("ran", "faults"), [(100, []), (180, ["straggler"])])
def test_a_short_job_in_which_one_rank_works_more(ran: int, faults: list[str]) -> None:
    seen = timed([3] * 40, step_ms=8)
    scheduled(seen, (100, 0), (ran, 0), until_ms=1_400)
    assert [f.fault for f in seen.found(waste.RULES)] == faults


def test_nothing_is_known_of_what_the_machine_gave() -> None:
    seen = timed([10] * 40)
    del seen.world.ranks[1].facts["scheduled"]
    assert seen.found(waste.RULES) == []


def test_calls_of_few_steps() -> None:
    seen = timed([10] * 40)
    seen.world.ranks[0].facts["steps"] = 18
    assert seen.found(waste.RULES) == []


@pytest.mark.parametrize(("workers", "faults"), [(2, []), (0, ["straggler"])])
def test_workers_of_a_loader_on_a_busy_machine(workers: int, faults: list[str]) -> None:
    seen = timed([10] * 40)
    scheduled(seen, (100, 200), (100, 200))
    seen.loader(1, workers=workers)
    assert [f.fault for f in seen.found(waste.RULES)] == faults


def test_barriers_around_one_file_that_is_written_again_and_again() -> None:
    seen = steps(20, [BACKWARD, BARRIER])
    for count in (1, 2, 3, 4, 8, 16):
        seen.saw(
            0,
            "write",
            "main:32",
            path="/c/last.pt",
            mode="w",
            via="torch.save",
            time=2 * count + 0.5,
            count=count,
        )
    assert seen.found(waste.RULES) == []


def test_the_line_that_only_the_late_rank_runs() -> None:
    seen = timed([10] * 40)
    for step in range(9):
        seen.saw(1, "write", "main:40", "draw:7", path=f"/img/{step}", mode="w", via="open")
    assert verdicts(seen.found(waste.RULES)) == [("straggler", 7, (1,))]


def test_where_the_late_rank_stood_while_the_others_waited() -> None:
    seen = timed([10] * 40)
    start = 1_000 * MILLISECOND
    stacks = []
    for step in range(5, 25):
        came = start + step * 20 * MILLISECOND
        stacks.append(
            (came + 5 * MILLISECOND, site("main:40", "plot:9"))
        )  # the other rank is there, this one is not
        stacks += [(came + 15 * MILLISECOND, site("main:22"))] * 3  # both are past the call
    seen.world.ranks[1].facts["late_stacks"] = stacks
    assert verdicts(seen.found(waste.RULES)) == [("straggler", 9, (1,))]
