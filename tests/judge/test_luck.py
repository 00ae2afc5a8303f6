"""Calls that pair by luck: what the calls behind a difference of statements say of it."""

from __future__ import annotations

import pytest
from worlds import Builder, call

from allranks.judge.compare import first_deviation
from allranks.judge.luck import Luck, luck

STEP, LOG, LAST, END = (
    call("allreduce", f"main:{line}", dtype="float32", shape=((1,),)) for line in (7, 8, 9, 10)
)


@pytest.mark.parametrize(
    ("one", "other", "meaning"),
    [
        ([STEP, LOG, *[STEP] * 4, END], [*[STEP] * 5, END, END], Luck.SKIPPED),
        ([STEP, LOG, *[STEP] * 3, END], [*[STEP] * 4, LAST, END], Luck.SKIPPED),  # one more in its turn
        ([STEP, LOG, *[STEP] * 4], [*[STEP] * 6], Luck.SKIPPED),
        ([STEP, LOG, END, STEP, STEP, STEP], [STEP, END, LOG, STEP, STEP, STEP], Luck.SWAPPED),
        (
            [STEP, LOG, STEP, END, STEP, END, *[END] * 12],
            [STEP, LAST, STEP, END, STEP, END, *[END] * 12],
            Luck.HARMLESS,
        ),
        ([STEP, LOG, STEP], [STEP, STEP, STEP], Luck.OPEN),
    ],
)
def test_what_follows_tells(one: list[object], other: list[object], meaning: Luck) -> None:
    world = Builder(2).calls(0, one).calls(1, other).world  # type: ignore[arg-type]
    deviation = first_deviation(world)
    assert deviation is not None
    assert (deviation.position, deviation.mismatch) == (1, "site")
    assert luck(world, deviation) is meaning
