"""Lightning: Trainer and LightningModule call back on all ranks; Fabric."""

from __future__ import annotations

from ..values import Kind
from .effect import Effect

NAMES: dict[str, Effect] = {}
METHODS: dict[tuple[str, str], Effect] = {}
ATTRIBUTES: dict[tuple[str, str], Effect] = {}

for _root in (
    "lightning.",
    "lightning.pytorch.",
    "pytorch_lightning.",
    "lightning.fabric.",
    "lightning_fabric.",
):
    NAMES |= {
        _root + "Trainer": Effect("make", "trainer", make="lightning_trainer"),
        _root + "Fabric": Effect("initialise", "init", make="fabric", operation="Fabric"),
        _root + "fabric.Fabric": Effect("initialise", "init", make="fabric", operation="Fabric"),
        _root + "seed_everything": Effect("seed", "seed", ("seed",)),
        _root + "LightningModule": Effect("make", make="module"),
        _root + "LightningDataModule": Effect("make", make="datamodule"),
        _root + "utilities.rank_zero_only": Effect("mark", make="rank_zero", target="0"),
        _root + "utilities.rank_zero.rank_zero_only": Effect("mark", make="rank_zero", target="0"),
        _root + "utilities.distributed.rank_zero_only": Effect("mark", make="rank_zero", target="0"),
        _root + "utilities.rank_zero_info": Effect("value"),
    }

for _name in ("all_gather", "all_reduce", "broadcast"):
    METHODS["fabric", _name] = Effect(
        "exchange", "collective", ("tensor",), kind=Kind.UNIFORM, operation=f"fabric.{_name}"
    )
METHODS |= {
    ("fabric", "barrier"): Effect("value", "collective", operation="fabric.barrier"),
    ("fabric", "save"): Effect("value", "collective", operation="fabric.save", hidden="saving together"),
    ("fabric", "load"): Effect("value", "collective", operation="fabric.load", hidden="loading together"),
    ("fabric", "setup"): Effect("prepare", "prepare", operation="setup", hidden="DDP construction"),
    ("fabric", "setup_module"): Effect("prepare", "prepare", operation="setup", hidden="DDP construction"),
    ("fabric", "setup_dataloaders"): Effect("prepare", "prepare"),
    ("fabric", "setup_optimizers"): Effect("prepare", "prepare"),
    ("fabric", "backward"): Effect("backward", "backward", ("loss",), target="loss"),
    ("fabric", "launch"): Effect("value"),
    ("fabric", "print"): Effect("value"),
    ("fabric", "log"): Effect("value"),
    ("fabric", "log_dict"): Effect("value"),
    ("fabric", "no_backward_sync"): Effect("make", make="no_sync"),
    ("fabric", "rank_zero_first"): Effect("make", make="rank_first"),
    ("lightning_trainer", "fit"): Effect("value", "collective", operation="Trainer.fit", hidden="training together"),
    ("lightning_trainer", "validate"): Effect("value", "collective", operation="Trainer.validate",
                                              hidden="evaluating together"),
    ("lightning_trainer", "test"): Effect("value", "collective", operation="Trainer.test",
                                              hidden="evaluating together"),
    ("lightning_trainer", "predict"): Effect("value", "collective", operation="Trainer.predict",
                                             hidden="predicting together"),
    ("lightning_trainer", "save_checkpoint"): Effect(
        "value", "collective", operation="Trainer.save_checkpoint", hidden="saving together"
    ),
}  # fmt: skip
ATTRIBUTES |= {
    ("fabric", "is_global_zero"): Effect("lane_test", lane="rank"),
    ("fabric", "global_rank"): Effect("lanes", lane="rank"),
    ("fabric", "local_rank"): Effect("lanes", lane="local_rank"),
    ("fabric", "node_rank"): Effect("lanes", lane="node_rank"),
    ("fabric", "world_size"): Effect("lanes", lane="world_size"),
    ("lightning_trainer", "is_global_zero"): Effect("lane_test", lane="rank"),
    ("lightning_trainer", "global_rank"): Effect("lanes", lane="rank"),
    ("lightning_trainer", "local_rank"): Effect("lanes", lane="local_rank"),
    ("lightning_trainer", "world_size"): Effect("lanes", lane="world_size"),
    ("lightning_module", "global_rank"): Effect("lanes", lane="rank"),
    ("lightning_module", "local_rank"): Effect("lanes", lane="local_rank"),
}
