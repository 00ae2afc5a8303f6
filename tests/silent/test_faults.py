"""Each program and what is said about it: the fault, its line and, where it matters, the ranks; nothing about twins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks.findings import Severity

from .conftest import marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from allranks.findings import Finding

pytestmark = pytest.mark.torch
FAULTS = {
    "ddp-bypassed": ("bypass_attribute", "bypass_kept_inner", "bypass_method"),
    "accumulation-unsynced": ("never_synced", "last_window_short", "flag_left_off"),
    "model-not-wrapped": ("all_alone", "loss_with_weights", "unseeded_alone"),
    "changed-after-wrap": ("unfrozen", "new_head", "adapter_added"),
    "moved-after-wrap": ("cast", "cast_inner", "cast_back"),
    "unregistered-parameter": ("plain_dict", "loose_tensor"),
    "optimizer-mismatch": ("old_parameters", "left_out", "head_exchanged"),
    "reduced-twice-or-unscaled": ("twice", "summed", "summing_hook"),
    "clip-before-sync": (
        "clamp_hook",
        "clip_then_reduce",
        "clip_in_window",
        "clip_in_comm_hook",
        "norm_hook",
    ),
    "gradients-cleared": (
        "cleared",
        "cleared_to_zero",
        "cleared_by_model",
        "cleared_in_window",
        "cleared_in_window_by_model",
        "never_cleared",
    ),
    "clip-scaled": ("clip_scaled",),
    "scaler-order": ("step_scaled", "updated_between", "other_scales", "backward_unscaled"),
    "non-finite": ("nan_on_one", "root_of_zero", "root_of_negative"),
    "replicas-diverged": (
        "loaded_on_first",
        "other_rate",
        "edited_on_one",
        "steps_on_first",
        "drawn_after_wrapping",
        "noise_of_its_own",
        "state_on_first",
        "averaged_but_never_equal",
        "noise_on_gradients",
    ),
    "local-batch-norm": ("few_samples", "convolutions"),
    "sync-batch-norm-misplaced": ("converted_late",),
    "needless-unused-search": ("needless_search",),
}
RIGHT = (
    "through_wrapper", "accumulates", "averaged_by_hand", "local_sgd", "wrapped_again", "moved_nowhere",
    "hidden_teacher", "head_only", "summed_loss", "mask_hook", "cleared_by_hand", "closure", "gan", "scaled",
    "skips_bad", "average_kept", "clip_after_window", "clip_in_comm_hook_after", "updated_once",
    "scaled_in_turn", "averaging_hook", "search", "many_samples", "scaled_and_kept", "two_optimizers",
    "other_head_trained", "frozen_statistics", "useful_search",
)  # fmt: skip
RANKS = {"nan_on_one": (1,), "root_of_negative": (0,), "loaded_on_first": (0,), "steps_on_first": (1,)}


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, names in FAULTS.items() for name in names]
)
def test_a_fault_is_named_with_its_line(
    fault: str, name: str, findings: Callable[[str], list[Finding]]
) -> None:
    said = findings(name)
    assert [f.fault for f in said] == [fault], [str(f.message) for f in said]
    location = said[0].location
    assert location is not None
    assert (location.path, location.line) == ("programs.py", marked(name))
    if name in RANKS:
        assert said[0].ranks == RANKS[name]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(name: str, findings: Callable[[str], list[Finding]]) -> None:
    assert [(f.fault, str(f.message)) for f in findings(name)] == []


@pytest.mark.parametrize("name", ["own_statistics", "own_statistics_by_hand"])
def test_statistics_that_nobody_exchanges_are_noted(name: str, notes: Callable[[str], list[Finding]]) -> None:
    (said,) = notes(name)
    assert (said.fault, said.severity, said.ranks) == ("replicas-diverged", Severity.INFO, (0, 1))
    assert said.location is not None
    assert said.location.line == marked(name)


@pytest.mark.parametrize(
    "name",
    [
        "statistics_of_rank_0",
        "statistics_averaged",
        "statistics_without_training_together",
        "buffers_of_its_own",
    ],
)
def test_statistics_that_are_exchanged_and_other_buffers_are_not(
    name: str, notes: Callable[[str], list[Finding]]
) -> None:
    assert [f for f in notes(name) if f.severity is Severity.INFO] == []
