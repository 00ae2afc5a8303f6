"""Hugging Face accelerate."""

from __future__ import annotations

from ..values import Kind
from .effect import Effect

_A = "accelerate."


def _together(name: str, kind: Kind = Kind.UNIFORM) -> Effect:
    return Effect("exchange", "collective", ("tensor",), kind=kind, operation=name)


NAMES: dict[str, Effect] = {
    _A + "Accelerator": Effect("initialise", "init", make="accelerator", operation="Accelerator"),
    _A + "PartialState": Effect("initialise", "init", make="accelerator", operation="PartialState"),
    _A + "state.PartialState": Effect("initialise", "init", make="accelerator", operation="PartialState"),
    _A + "state.AcceleratorState": Effect(
        "initialise", "init", make="accelerator", operation="AcceleratorState"
    ),
    _A + "utils.set_seed": Effect("seed", "seed", ("seed", "device_specific")),
    _A + "logging.get_logger": Effect("make", make="quiet_logger"),
    _A + "notebook_launcher": Effect("spawn", "spawn", ("function", "args", "num_processes")),
    _A + "utils.wait_for_everyone": Effect("value", "collective", operation="wait_for_everyone"),
}
for _name in (
    "gather",
    "reduce",
    "broadcast",
    "gather_object",
    "broadcast_object_list",
    "pad_across_processes",
):
    NAMES[f"{_A}utils.{_name}"] = _together(_name)
    NAMES[f"{_A}utils.operations.{_name}"] = _together(_name)

ALIASES = [("accelerate.accelerator.Accelerator", "accelerate.Accelerator")]

METHODS: dict[tuple[str, str], Effect] = {
    ("accelerator", "prepare"): Effect("prepare", "prepare", operation="prepare", hidden="DDP construction"),
    ("accelerator", "prepare_model"): Effect("prepare", "prepare", operation="prepare", hidden="DDP construction"),
    ("accelerator", "prepare_data_loader"): Effect("prepare", "prepare"),
    ("accelerator", "backward"): Effect("backward", "backward", ("loss",), target="loss"),
    ("accelerator", "gather"): _together("gather"),
    ("accelerator", "gather_for_metrics"): _together("gather_for_metrics"),
    ("accelerator", "reduce"): _together("reduce"),
    ("accelerator", "pad_across_processes"): _together("pad_across_processes"),
    ("accelerator", "wait_for_everyone"): Effect("value", "collective", operation="wait_for_everyone"),
    ("accelerator", "save_state"): Effect("value", "collective", operation="save_state",
                                           hidden="saving the state of all ranks"),
    ("accelerator", "load_state"): Effect("value", "collective", operation="load_state",
                                           hidden="loading the state of all ranks"),
    ("accelerator", "check_trigger"): Effect("value", "collective", operation="check_trigger",
                                              hidden="a flag that is reduced"),
    ("accelerator", "unwrap_model"): Effect("unwrap", params=("model",), target="model"),
    ("accelerator", "get_state_dict"): Effect("value", params=("model",)),
    ("accelerator", "accumulate"): Effect("make", make="accumulate"),
    ("accelerator", "no_sync"): Effect("make", make="no_sync"),
    ("accelerator", "join_uneven_inputs"): Effect("make", make="join"),
    ("accelerator", "autocast"): Effect("make", make="autocast"),
    ("accelerator", "main_process_first"): Effect("make", make="rank_first"),
    ("accelerator", "local_main_process_first"): Effect("make", make="rank_first"),
    ("accelerator", "on_main_process"): Effect("mark", make="rank_zero", target="0"),
    ("accelerator", "on_local_main_process"): Effect("mark", make="local_zero", target="0"),
    ("accelerator", "clip_grad_norm_"): Effect("value", "clip"),
    ("accelerator", "print"): Effect("value"),
    ("accelerator", "log"): Effect("value"),
    ("accelerator", "save"): Effect("value"),
    ("accelerator", "save_model"): Effect("value"),
    ("accelerator", "init_trackers"): Effect("value"),
    ("accelerator", "end_training"): Effect("value", "destroy"),
    ("accelerator", "free_memory"): Effect("value"),
    ("accelerator", "split_between_processes"): Effect("make", make="split_context"),
}  # fmt: skip

ATTRIBUTES: dict[tuple[str, str], Effect] = {
    ("accelerator", "is_main_process"): Effect("lane_test", lane="rank"),
    ("accelerator", "is_local_main_process"): Effect("lane_test", lane="local_rank"),
    ("accelerator", "is_last_process"): Effect("value", kind=Kind.RANK, cause="rank"),
    ("accelerator", "process_index"): Effect("lanes", lane="rank"),
    ("accelerator", "local_process_index"): Effect("lanes", lane="local_rank"),
    ("accelerator", "num_processes"): Effect("lanes", lane="world_size"),
    ("accelerator", "use_distributed"): Effect("true"),
    ("accelerator", "state"): Effect("self"),
}
