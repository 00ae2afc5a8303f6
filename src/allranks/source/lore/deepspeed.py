"""DeepSpeed."""

from __future__ import annotations

from .effect import Effect
from .torch import NAMES as _TORCH

NAMES: dict[str, Effect] = {
    "deepspeed.add_config_arguments": Effect("pass", "", ("parser",), target="parser"),
    "deepspeed.init_distributed": Effect("initialise", "init", operation="init_distributed"),
    "deepspeed.initialize": Effect("engine", "wrap", ("args", "model", "optimizer"), make="ds_engine",
                                   hidden="DeepSpeed initialisation", operation="deepspeed.initialize"),
    "deepspeed.zero.Init": Effect("make", "collective", make="context", hidden="DeepSpeed ZeRO partitioning",
                                  operation="zero.Init"),
    "deepspeed.zero.GatheredParameters": Effect("make", "collective", make="context",
                                                hidden="DeepSpeed parameters gathered", operation="GatheredParameters"),
}  # fmt: skip
NAMES |= {
    name.replace("torch.distributed.", "deepspeed.comm."): effect
    for name, effect in _TORCH.items()
    if name.startswith("torch.distributed.") and name.count(".") == 2
}

METHODS: dict[tuple[str, str], Effect] = {
    ("ds_engine", "backward"): Effect("backward", "backward", ("loss",), target="loss"),
    ("ds_engine", "step"): Effect("value", "step", hidden="DeepSpeed step", operation="engine.step"),
    ("ds_engine", "save_checkpoint"): Effect("value", "collective", hidden="DeepSpeed checkpoint",
                                               operation="save_checkpoint"),
    ("ds_engine", "load_checkpoint"): Effect("value", "collective", hidden="DeepSpeed checkpoint",
                                               operation="load_checkpoint"),
    ("ds_engine", "save_16bit_model"): Effect("value", "collective", hidden="DeepSpeed checkpoint",
                                               operation="save_16bit_model"),
}  # fmt: skip

ATTRIBUTES: dict[tuple[str, str], Effect] = {
    ("ds_engine", "module"): Effect("field", target="module"),
    ("ds_engine", "local_rank"): Effect("lanes", lane="local_rank"),
    ("ds_engine", "global_rank"): Effect("lanes", lane="rank"),
}
