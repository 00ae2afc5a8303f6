"""Wrappers of torch.distributed's Python layer: what neither an operator nor a method of ProcessGroup can see.

An object collective becomes one call, a Work that is waited for is found on the stack (`answer`), and a collective
on a group that the rank is not in, which PyTorch makes a no-op, is told.
"""

from __future__ import annotations

import sys

from . import stack, wire
from .call import Call, argument, here, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OBJECTS = {
    "all_gather_object": "", "gather_object": "dst", "broadcast_object_list": "src", "scatter_object_list": "src",
    "send_object_list": "dst", "recv_object_list": "src",
}  # fmt: skip
"""Object collectives, and the parameter that names the root or the other rank."""
QUERIES = (
    "get_rank",
    "get_world_size",
    "destroy_process_group",
    "get_backend",
    "get_backend_config",
    "_abort_process_group",
)
"""Functions that ask whether this rank is in a group and communicate nothing."""


def wrap(guest: Any, c10d: Any) -> None:
    """Replaces functions of distributed_c10d; `torch.distributed` copies the names when this is done."""
    for name, other in OBJECTS.items():
        function = getattr(c10d, name, None)
        if function is not None:
            setattr(c10d, name, _folded(guest, c10d, name, function, other))
    c10d._rank_not_in_group = _asking(guest, c10d._rank_not_in_group)
    c10d.Work.wait = _waiting(guest, c10d.Work.wait)


def _folded(guest: Any, c10d: Any, name: str, function: Any, other: str) -> Any:
    """An object collective: one call, whatever it does inside."""
    recorder, outside = guest.recorder, c10d.GroupMember.NON_GROUP_MEMBER
    place = places(function)
    p2p = name in ("send_object_list", "recv_object_list")

    def enter(args: Any, kwargs: Any, frame: Any) -> int:
        group = argument(args, kwargs, "group", place.get("group"))
        if group is outside or not c10d.is_initialized():
            return 0
        found = recorder.group(group or c10d._get_default_group(), c10d)
        rank = argument(args, kwargs, other, place.get(other)) if other else None
        if rank is None and other:
            inner = argument(args, kwargs, "group_" + other, place.get("group_" + other))
            rank = found.global_rank(inner) if inner is not None else None if p2p else 0
        if p2p:
            op = "send_object" if name.startswith("send") else "recv_object"
            return int(recorder.enter(found, (op, None, None, rank, None, None, None, None), frame, True))
        return int(recorder.enter(found, (name, None, rank, None, None, None, None, None), frame))

    @stack.wraps(function)
    def folded_call(*args: Any, **kwargs: Any) -> Any:
        if guest.compiling() or here.call is not None or guest.off:
            return function(*args, **kwargs)
        serial = 0
        try:
            serial = enter(args, kwargs, sys._getframe())
        except Exception as error:
            guest.failed(error)
        return recorded(guest, function, args, kwargs, serial)

    return folded_call


@stack.uncounted
def recorded(guest: Any, function: Any, args: Any, kwargs: Any, serial: int) -> Any:
    """Runs `function` as one call, recorded under `serial`, whatever it does inside."""
    outer, here.call = here.call, Call(serial)
    state = wire.RAISED
    try:
        result = function(*args, **kwargs)
        state = wire.DONE
        return result
    except BaseException as error:
        guest.passing(error)
        raise
    finally:
        here.call = outer
        guest.recorder.mark_old(serial, state)


def _waiting(guest: Any, original: Any) -> Any:
    """`Work.wait` with a Python frame of its own, on which a stack shows what is waited for."""

    @stack.wraps(original)
    def waiting_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            guest.passing(error)
            raise

    return waiting_call


def _asking(guest: Any, original: Any) -> Any:
    """The test by which every collective of the Python layer finds out that the rank is not in the group."""

    @stack.wraps(original)
    def asking_call(group: Any) -> Any:
        outside = original(group)
        if outside and not guest.compiling():
            frame = sys._getframe(1)
            if frame.f_code.co_name not in QUERIES:
                guest.outsider(frame.f_code.co_name, frame)
        return outside

    return asking_call
