"""ray.train: the training function runs on every worker."""

from __future__ import annotations

from .effect import Effect

NAMES: dict[str, Effect] = {
    "ray.train.torch.prepare_model": Effect("wrap", "wrap", ("module",), make="ddp", hidden="DDP construction",
                                            operation="prepare_model"),
    "ray.train.torch.prepare_data_loader": Effect("pass", params=("data_loader",), target="data_loader"),
    "ray.train.report": Effect("value", "collective", operation="train.report", hidden="a report of all workers"),
    "ray.train.get_context": Effect("make", make="ray_context"),
    "ray.train.torch.TorchTrainer": Effect("launch", "spawn", ("train_loop_per_worker",)),
}  # fmt: skip

METHODS: dict[tuple[str, str], Effect] = {
    ("ray_context", "get_world_rank"): Effect("lanes", lane="rank"),
    ("ray_context", "get_local_rank"): Effect("lanes", lane="local_rank"),
    ("ray_context", "get_world_size"): Effect("lanes", lane="world_size"),
}

ATTRIBUTES: dict[tuple[str, str], Effect] = {}
