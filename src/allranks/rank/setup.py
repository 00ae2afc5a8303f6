"""Process groups made and ended: pseudo calls in the history "0/setup", and what was asked for."""

from __future__ import annotations

import functools
import os
import sys

from . import stack, wire
from .hook import _argument, _parameters, _place, here

ENVIRONMENT = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS",
    "SLURM_NODEID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK", "PMI_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_BUFFER_SIZE",
    "OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "ACCELERATE_USE_FSDP", "LOCAL_WORLD_RANK",
)  # fmt: skip
"""Variables that say how a rank was launched; nothing else of the environment leaves the process."""


def environment() -> dict:
    """The launch variables that are set."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def wrap(guest, c10d) -> None:
    """Replaces the functions that make and end groups."""
    c10d.init_process_group = _initialising(guest, c10d, c10d.init_process_group)
    for name in ("new_group", "split_group"):
        function = getattr(c10d, name, None)
        if function is not None:
            setattr(c10d, name, _grouping(guest, name, function))
    c10d.destroy_process_group = _ending(guest, c10d, c10d.destroy_process_group)


def _initialising(guest, c10d, function):
    parameters = _parameters(function)
    names = [
        p
        for p in parameters
        if p in ("backend", "init_method", "world_size", "rank", "timeout", "device_id", "store")
    ]
    places = {name: _place(parameters, name) for name in names}

    @functools.wraps(function)
    def setup_call(*args, **kwargs):
        serial = 0
        try:
            given = {name: _argument(args, kwargs, name, place) for name, place in places.items()}
            guest.connect()  # a forked child, or a host that came late
            guest.listen()
            guest.hooks.register()
            rank, size = _who(given)
            site = guest.recorder.site(stack.user_rows(stack.walk(sys._getframe(1))))
            shown = {n: _shown(v) for n, v in given.items() if v is not None}
            guest.send("init", rank, size, shown, environment(), site)
            signature = ("init_process_group", None, None, None, None, None, None, None)
            serial = guest.recorder.enter(guest.recorder.setup, signature, sys._getframe())
        except Exception as error:
            guest.failed(error)
        here.call = _FOLDED
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            guest.recorder.mark(serial, wire.RAISED)
            guest.passing(error)
            raise
        finally:
            here.call = None
        guest.recorder.mark(serial, wire.DONE)
        try:
            guest.recorder.group(c10d.GroupMember.WORLD, c10d)
            guest.send("ready", c10d.get_rank(), c10d.get_world_size(), c10d.get_backend())
            guest.destroyed = False
        except Exception as error:
            guest.failed(error)
        return result

    return setup_call


class _Folded:
    """Stands for a call in progress whose operators are not calls of the user."""

    folded = True
    waits = True


_FOLDED = _Folded()


def _shown(value):
    if isinstance(value, (int, str)):
        return value
    seconds = getattr(value, "total_seconds", None)
    return (
        seconds()
        if seconds is not None
        else type(value).__name__
        if type(value).__module__.startswith("torch._C")
        else str(value)[:200]
    )


def _who(given: dict):
    """Rank and world size as init_process_group will take them: arguments, then the address, then the environment."""
    found = []
    for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        value = given.get(name)
        if not isinstance(value, int) or value < 0:
            value = None
            query = str(given.get("init_method") or "").partition("?")[2]
            for pair in query.split("&"):
                key, _, text = pair.partition("=")
                if key == name and text.isdigit():
                    value = int(text)
            if value is None:
                text = os.environ.get(variable, "")
                value = int(text) if text.isdigit() else None
        found.append(value)
    return found


def _grouping(guest, name: str, function):
    parameters = _parameters(function)
    ranks_at, local_at, split_at = (
        _place(parameters, p) for p in ("ranks", "use_local_synchronization", "split_ranks")
    )

    @functools.wraps(function)
    def setup_call(*args, **kwargs):
        if here.call is not None or guest.off:
            return function(*args, **kwargs)
        serial = 0
        try:
            ranks = _argument(args, kwargs, "ranks", ranks_at) if name == "new_group" else None
            if name == "split_group":
                ranks = _argument(args, kwargs, "split_ranks", split_at)
            local = bool(_argument(args, kwargs, "use_local_synchronization", local_at))
            detail = "all" if ranks is None else repr(sorted(ranks) if name == "new_group" else ranks)
            signature = (name, None, None, None, None, None, None, detail + (" local" if local else ""))
            serial = guest.recorder.enter(guest.recorder.setup, signature, sys._getframe())
        except Exception as error:
            guest.failed(error)
        here.call = _FOLDED
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            guest.recorder.mark(serial, wire.RAISED)
            guest.passing(error)
            raise
        finally:
            here.call = None
        guest.recorder.mark(serial, wire.DONE)
        try:
            if hasattr(result, "rank") and hasattr(result, "size"):
                guest.recorder.group(result, guest.c10d)
        except Exception as error:
            guest.failed(error)
        return result

    return setup_call


def _ending(guest, c10d, function):
    @functools.wraps(function)
    def setup_call(*args, **kwargs):
        serial = 0
        try:
            signature = ("destroy_process_group", None, None, None, None, None, None, None)
            serial = guest.recorder.enter(guest.recorder.setup, signature, sys._getframe())
            guest.recorder.forget_groups()
        except Exception as error:
            guest.failed(error)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            guest.recorder.mark(serial, wire.RAISED)
            guest.passing(error)
            raise
        guest.recorder.mark(serial, wire.DONE)
        if not c10d.is_initialized():
            guest.destroyed = True
        return result

    return setup_call


def wrap_stores(store_type) -> None:
    """Gives `Store.get` and `Store.wait` a Python frame, on which a stack shows the keys that are waited for."""
    for name in ("get", "wait"):
        original = getattr(store_type, name, None)
        if original is not None:
            setattr(store_type, name, _storing(original))


def _storing(original):
    @functools.wraps(original)
    def store_call(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    return store_call
