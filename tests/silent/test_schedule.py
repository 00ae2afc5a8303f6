"""Which steps are sampled: decided by the step's number, within a budget, the same ones on all ranks."""

from __future__ import annotations

from allranks.rank.steps import OCTAVE, Schedule


def sampled(schedule: Schedule, steps: int) -> list[int]:
    return [step for step in range(1, steps + 1) if schedule.due(step)]


def test_powers_of_two_are_sampled_while_that_is_cheap() -> None:
    schedule = Schedule({})
    schedule.took(0.08, 0.0001)
    assert sampled(schedule, 1000) == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512]


def test_only_two_steps_are_sampled_whatever_they_cost() -> None:
    schedule = Schedule({})
    schedule.took(1.0, 0.5)  # half a percent of the time from step 400 on: the power of two after that
    assert sampled(schedule, 1030) == [1, 2, 512, 1024]


def test_the_gap_keeps_the_cost_within_half_the_budget() -> None:
    schedule = Schedule({"ALLRANKS_OVERHEAD": "0.02"})
    schedule.took(0.0015, 0.01)  # 1.5 ms a sample, 10 ms a step: 1 % is a sample every 15 steps
    assert schedule.gap == 16
    assert Schedule({}).budget == 0.01


def test_a_step_that_is_slower_after_a_sample_counts_with_it() -> None:
    schedule = Schedule({})
    schedule.took(0.001, 0.1)
    assert schedule.gap == 2
    for _ in range(100):
        schedule.followed(0.107)
    assert schedule.gap == 16  # with at most four times its own: 5 ms, every 10 steps
    for _ in range(100):
        schedule.followed(0.01)
    assert schedule.gap == 2


def test_what_comes_before_the_first_step_counts_among_the_cheap_samples() -> None:
    schedule = Schedule({})
    schedule.took(0.001, 0.1)
    assert schedule.due(3)
    schedule.spent(0.2)
    assert not schedule.due(3)


def test_cheap_samples_are_taken_at_every_step() -> None:
    schedule = Schedule({})
    schedule.took(0.0001, 0.1)
    assert schedule.gap == 1
    assert sampled(schedule, 100) == list(range(1, 101))


def test_the_steps_of_a_slow_rank_are_sampled_by_the_fast_ones_too() -> None:
    fast, slow = Schedule({}), Schedule({})
    fast.took(0.001, 0.05)
    slow.took(0.1, 0.05)
    assert fast.gap < slow.gap
    assert set(sampled(slow, 5000)) <= set(sampled(fast, 5000))


def test_samples_grow_with_the_logarithm_of_a_long_run() -> None:
    schedule = Schedule({})
    counts = [sum(schedule.due(s) for s in range(1 << n, 2 << n)) for n in (12, 15, 17)]
    assert counts == [1 << OCTAVE] * 3


def test_every_and_deep_are_taken_at_their_word() -> None:
    every = Schedule({"ALLRANKS_EVERY": "10"})
    every.took(10.0, 0.001)
    assert sampled(every, 40) == [1, 2, 3, 4, 10, 20, 30, 40]
    deep = Schedule({"ALLRANKS_DEEP": "1"})
    deep.took(10.0, 0.001)
    assert sampled(deep, 50) == list(range(1, 51))


def test_settings_that_are_no_numbers_are_ignored() -> None:
    assert Schedule({"ALLRANKS_OVERHEAD": "much", "ALLRANKS_EVERY": ""}).budget == 0.01
