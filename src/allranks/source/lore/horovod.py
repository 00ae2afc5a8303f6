"""Horovod and MPI."""

from __future__ import annotations

from ..values import Kind
from .effect import Effect

_H = "horovod.torch."
_W = "mpi4py.MPI.COMM_WORLD."


def _together(name: str, kind: Kind = Kind.UNIFORM) -> Effect:
    return Effect("exchange", "collective", ("tensor",), kind=kind, operation=name)


NAMES: dict[str, Effect] = {
    _H + "init": Effect("initialise", "init", operation="hvd.init"),
    _H + "rank": Effect("lanes", lane="rank"),
    _H + "local_rank": Effect("lanes", lane="local_rank"),
    _H + "size": Effect("lanes", lane="world_size"),
    _H + "local_size": Effect("lanes", lane="local_size"),
    _H + "broadcast_parameters": Effect("value", "collective", operation="broadcast_parameters"),
    _H + "broadcast_optimizer_state": Effect("value", "collective", operation="broadcast_optimizer_state"),
    _H + "DistributedOptimizer": Effect("make", "optimizer", ("params",), make="optimizer", hidden="horovod optimizer"),
    _W + "Get_rank": Effect("lanes", lane="rank"),
    _W + "Get_size": Effect("lanes", lane="world_size"),
    _W + "rank": Effect("lanes", lane="rank"),
    _W + "size": Effect("lanes", lane="world_size"),
    _W + "Barrier": Effect("value", "collective", operation="MPI.Barrier"),
    _W + "barrier": Effect("value", "collective", operation="MPI.barrier"),
    _W + "gather": _together("MPI.gather", Kind.RANK),
    _W + "scatter": _together("MPI.scatter", Kind.RANK),
    _W + "reduce": _together("MPI.reduce", Kind.RANK),
    _W + "Split": Effect("make", make="mpi_group"),
}  # fmt: skip
for _name in (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "allreduce_",
    "broadcast_",
    "broadcast_object",
    "allgather_object",
):
    NAMES[_H + _name] = _together(f"hvd.{_name}")
for _name in ("bcast", "Bcast", "allreduce", "Allreduce", "allgather", "Allgather", "alltoall"):
    NAMES[_W + _name] = _together(f"MPI.{_name}")

METHODS: dict[tuple[str, str], Effect] = {}

ATTRIBUTES: dict[tuple[str, str], Effect] = {
    ("name", _W + "rank"): Effect("lanes", lane="rank"),
    ("name", _W + "size"): Effect("lanes", lane="world_size"),
}
