"""What a report says of the ranks as a whole."""

from __future__ import annotations

from typing import Any

from allranks.run.summary import compared
from allranks.world import RankState, World


def rank(number: int, sampled: list[int], steps: int = 0) -> RankState:
    rows = [{"optimizer": 1, "step": step, "total": step} for step in sampled]
    facts: dict[str, Any] = {"observed": {"sample": rows}}
    if steps:
        facts["steps"] = steps
    return RankState(number, facts=facts)


def test_only_steps_that_every_rank_sampled_count_as_compared() -> None:
    world = World(ranks={0: rank(0, [1, 2, 3, 4, 8, 16], steps=18), 1: rank(1, [1, 2, 3, 4, 16])})
    assert compared(world) == {"steps": 18, "compared": 5}


def test_a_job_without_optimizers_has_nothing_to_compare() -> None:
    assert compared(World(ranks={0: RankState(0)})) is None
