"""What decides whether differing replicas are a fault: which ranks are compared, and what may still make them equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from allranks.judge import judge
from allranks.judge.digests import KEEP, differences, settle
from allranks.world import CallKind, Exit, Frame, Group, History, RankState, Signature, World

if TYPE_CHECKING:
    from allranks.findings import Finding

STEP = (Frame("train.py", 30, "main"),)
MADE = (Frame("train.py", 10, "main"),)
KEY = "1 SGD 0 2 100"


def sample(gradients: int, values: int) -> tuple[Any, ...]:
    return (gradients, values, [gradients, 1], [values, 1], 1)


def world(*ranks: dict[int, tuple[Any, ...]], wrap: int = 0, groups: list[list[int]] | None = None) -> World:
    """Ranks with the samples of one optimizer by step."""
    made = World(size=len(ranks))
    for rank, samples in enumerate(ranks):
        state = made.ranks[rank] = RankState(rank, state="exited", exit=Exit(status=0, clean=True))
        state.groups["0"], state.histories["0"] = Group("0", tuple(range(len(ranks)))), History()
        part = {
            "key": KEY, "optimizer": 1, "wrap": wrap, "names": ["weight", "bias"], "owner": "Net",
            "bare": 0, "sharded": 0,
        }  # fmt: skip
        observed: dict[str, Any] = {
            "part": [part], "optimizer": [{"number": 1, "name": "SGD", "site": MADE}],
            "event": [{"number": 1, "what": "step", "of": 1, "flag": "", "site": STEP}],
            "pattern": [{"number": 1, "optimizer": 1, "step": 1, "events": [1]}],
            "sample": [{"optimizer": 1, "step": 1}],
        }  # fmt: skip
        if groups is not None:
            group = next(g for g in groups if rank in g)
            observed["wrap"] = [
                {"number": wrap, "ranks": group, "site": MADE, "find_unused": False, "static": False}
            ]
        state.facts.update(digests={KEY: dict(samples)}, observed=observed, clean=True, destroyed=True)
    settle(made)
    return made


def call(
    made: World, inside: str = "", shape: tuple[tuple[int, ...], ...] = ((100,),), history: str = "0"
) -> None:
    """Both ranks make one more call."""
    kind = CallKind(Signature("allreduce", "SUM", shape=shape), STEP, bool(inside), inside)
    made.kinds[len(made.kinds) + 1] = kind
    for state in made.ranks.values():
        state.histories.setdefault(history, History()).kinds.append(len(made.kinds))


def faults(made: World) -> list[str]:
    return [f.fault for f in loud(made)]


def loud(made: World) -> list[Finding]:
    return [f for f in judge(made, final=True) if f.severity.loud]


APART = ({0: sample(0, 5), 1: sample(1, 6)}, {0: sample(0, 5), 1: sample(2, 7)})


def test_a_model_that_every_rank_trains_for_itself() -> None:
    said = loud(world(*APART))
    assert [f.fault for f in said] == ["model-not-wrapped"]
    assert said[0].location is not None
    assert said[0].location.line == 10


@pytest.mark.parametrize(("inside", "shape"), [("", ((100,),)), ("horovod", ((4,),)), ("FSDP", ((4,),))])
def test_a_call_that_may_carry_the_model_keeps_the_judge_quiet(
    inside: str, shape: tuple[tuple[int, ...], ...]
) -> None:
    made = world(*APART)
    call(made, inside, shape)
    assert faults(made) == []


def test_metrics_and_the_reductions_of_another_model_carry_nothing() -> None:
    made = world(*APART)
    call(made, shape=((2,),))
    call(made, "DDP.backward", ((5000,),))
    assert faults(made) == ["model-not-wrapped"]


def test_stages_of_a_pipeline_are_no_replicas() -> None:
    made = world(*APART)
    call(made, history="0/p2p")
    assert faults(made) == []


def test_parameters_that_were_equal_after_any_step_are_averaged_by_hand() -> None:
    again = {8: sample(1, 9)}
    assert faults(world({**APART[0], **again}, {**APART[1], 8: sample(2, 9)})) == []


def test_replicas_are_compared_inside_their_process_group() -> None:
    one, two = {1: sample(1, 6)}, {1: sample(2, 7)}
    assert faults(world(one, one, two, two, wrap=1, groups=[[0, 1], [2, 3]])) == []
    assert faults(world(one, two, one, two, wrap=1, groups=[[0, 1], [2, 3]])) == ["replicas-diverged"]


def test_the_rank_that_differs_from_most_is_named() -> None:
    one, two = {1: sample(1, 6)}, {1: sample(1, 7)}
    said = loud(world(one, one, two, wrap=1, groups=[[0, 1, 2]]))
    assert [(f.fault, f.ranks) for f in said] == [("replicas-diverged", (2,))]
    assert "weight" in str(said[0].message)


def test_samples_that_agree_and_those_of_one_rank_alone_are_dropped() -> None:
    same = {step: sample(step, step) for step in range(1, 50)}
    made = world({**same, 60: sample(1, 1)}, {k: v for k, v in same.items() if k % 2} | {60: sample(1, 1)})
    assert all(state.facts["digests"][KEY] == {} for state in made.ranks.values())
    assert made.ranks[0].facts["agreed"] == {KEY: 60}


def test_of_samples_that_differ_the_first_are_kept() -> None:
    many = [{step: sample(step, rank * 1000 + step) for step in range(1, 100)} for rank in (0, 1)]
    made = world(*many)
    assert sorted(made.ranks[1].facts["digests"][KEY]) == list(range(1, KEEP + 1))
    first = differences(made, KEY)[0]
    assert (first.step, first.what, first.ranks, first.places) == (1, "parameters", (0, 1), (0,))


def test_rows_of_an_unknown_form_are_no_verdict_and_no_error() -> None:
    made = world(*APART)
    for state in made.ranks.values():
        state.facts["observed"]["moved"] = [{"surprise": 1}]
        state.facts["observed"]["optimizer"] = [{"number": 1}]
    assert faults(made) == []
