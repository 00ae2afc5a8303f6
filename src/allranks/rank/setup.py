"""Process groups made and ended: pseudo calls in the history "0/setup", and what was asked for."""

from __future__ import annotations

import os
import sys

from . import stack
from .call import argument, here, places
from .hook import recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS",
    "SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_BUFFER_SIZE", "OMP_NUM_THREADS", "VIRTUAL_ENV",
    "CONDA_DEFAULT_ENV", "ACCELERATE_USE_FSDP",
)  # fmt: skip
"""Variables that say how a rank was launched; nothing else of the environment leaves the process."""
ASKED = ("backend", "init_method", "world_size", "rank", "timeout", "device_id", "store")


def environment() -> dict[str, str]:
    """The launch variables that are set."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def wrap(guest: Any, c10d: Any) -> None:
    """Replaces the functions that make and end groups, and gives the store's a frame."""
    c10d.init_process_group = _initialising(guest, c10d, c10d.init_process_group)
    for name in ("new_group", "split_group"):
        function = getattr(c10d, name, None)
        if function is not None:
            setattr(c10d, name, _grouping(guest, c10d, name, function))
    c10d.destroy_process_group = _ending(guest, c10d, c10d.destroy_process_group)
    for name in ("get", "wait"):
        original = getattr(c10d.Store, name, None)
        if original is not None:
            setattr(c10d.Store, name, _storing(original))


def _initialising(guest: Any, c10d: Any, function: Any) -> Any:
    place = places(function)

    def announce(args: Any, kwargs: Any, frame: Any) -> int:
        guest.joins()
        given = {name: argument(args, kwargs, name, place.get(name)) for name in ASKED}
        rank, size = _who(given)
        shown = {name: _shown(value) for name, value in given.items() if value is not None}
        site = guest.recorder.site(stack.user_rows(stack.walk(frame)))
        guest.send("init", rank, size, shown, environment(), site)
        return _enter(guest, "init_process_group", None, frame)

    @stack.wraps(function)
    def setup_call(*args: Any, **kwargs: Any) -> Any:
        serial = 0
        try:
            serial = announce(args, kwargs, sys._getframe())
        except Exception as error:
            guest.failed(error)
        result = recorded(guest, function, args, kwargs, serial)
        try:
            guest.recorder.group(c10d.GroupMember.WORLD, c10d)
            guest.send("ready", c10d.get_rank(), c10d.get_world_size(), str(c10d.get_backend()), _device())
            guest.destroyed = False
        except Exception as error:
            guest.failed(error)
        return result

    return setup_call


def _enter(guest: Any, op: str, detail: str | None, frame: Any) -> int:
    return int(
        guest.recorder.enter(guest.recorder.setup, (op, None, None, None, None, None, None, detail), frame)
    )


def _shown(value: Any) -> Any:
    if isinstance(value, (int, str)):
        return value
    if hasattr(value, "total_seconds"):
        return float(value.total_seconds())
    return type(value).__name__ if hasattr(value, "set_timeout") else str(value)[:200]  # a store, or a device


def _who(given: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rank and world size as init_process_group will take them: arguments, then the address, then the environment."""
    found = []
    query = str(given.get("init_method") or "").partition("?")[2]
    inquired = dict(pair.partition("=")[::2] for pair in query.split("&"))
    for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        value = given.get(name)
        if not isinstance(value, int) or value < 0:
            text = inquired.get(name) or os.environ.get(variable, "")
            value = int(text) if text.isdigit() else None
        found.append(value)
    return found[0], found[1]


def _device() -> int | None:
    """The current CUDA device, where the program has initialised CUDA itself."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "_initialized", False):
        return None
    return int(cuda.current_device())


def _grouping(guest: Any, c10d: Any, name: str, function: Any) -> Any:
    place = places(function)
    key = "ranks" if name == "new_group" else "split_ranks"

    def announce(args: Any, kwargs: Any, frame: Any) -> int:
        ranks = argument(args, kwargs, key, place.get(key))
        local = argument(args, kwargs, "use_local_synchronization", place.get("use_local_synchronization"))
        detail = "all" if ranks is None else str(sorted(ranks) if name == "new_group" else list(ranks))
        return _enter(guest, name, detail + (" local" if local else ""), frame)

    @stack.wraps(function)
    def setup_call(*args: Any, **kwargs: Any) -> Any:
        if here.call is not None or guest.off:
            return function(*args, **kwargs)
        serial = 0
        try:
            serial = announce(args, kwargs, sys._getframe())
        except Exception as error:
            guest.failed(error)
        result = recorded(guest, function, args, kwargs, serial)
        try:
            if hasattr(result, "rank") and hasattr(result, "size"):
                guest.recorder.group(result, c10d)
        except Exception as error:
            guest.failed(error)
        return result

    return setup_call


def _ending(guest: Any, c10d: Any, function: Any) -> Any:
    @stack.wraps(function)
    def setup_call(*args: Any, **kwargs: Any) -> Any:
        serial = 0
        try:
            serial = _enter(guest, "destroy_process_group", None, sys._getframe())
            guest.recorder.forget_groups()
        except Exception as error:
            guest.failed(error)
        result = recorded(guest, function, args, kwargs, serial)
        if not c10d.is_initialized():
            guest.destroyed = True
        return result

    return setup_call


def _storing(original: Any) -> Any:
    """A store's blocking method with a Python frame, on which a stack shows the keys that are waited for."""

    @stack.wraps(original)
    def store_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)  # torch retries these: an exception here says nothing yet

    return store_call
