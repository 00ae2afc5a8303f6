"""Wrappers of torch.distributed's Python layer: what an operator cannot see.

They tell the kernels the name of the ReduceOp and that a call is synchronous, make an object collective one call,
and see exceptions leave. Their frames are found on a stack (`answer`), so that nothing else need be written down.
"""

from __future__ import annotations

import functools
import sys

from . import wire
from .call import Call, argument, here, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "_all_gather_base",
    "_reduce_scatter_base", "send", "recv", "isend", "irecv", "batch_isend_irecv",
)  # fmt: skip
ASYNC = ("isend", "irecv", "batch_isend_irecv")
OBJECTS = {
    "all_gather_object": "", "gather_object": "dst", "broadcast_object_list": "src", "scatter_object_list": "src",
    "send_object_list": "dst", "recv_object_list": "src",
}  # fmt: skip
"""Object collectives, and the parameter that names the root or the other rank."""
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def wrap(guest: Any, torch: Any, c10d: Any) -> None:
    """Replaces the functions of distributed_c10d; `torch.distributed` copies the names when this is done.

    torch itself is still being imported at this moment: nothing of it may be used before the first call.
    """
    names = {id(getattr(c10d.ReduceOp, n)): n for n in REDUCE_OPS if hasattr(c10d.ReduceOp, n)}
    for name in COLLECTIVES:
        function = getattr(c10d, name, None)
        if function is not None:
            setattr(c10d, name, _watched(guest, torch, c10d, names, name, function))
    for name, other in OBJECTS.items():
        function = getattr(c10d, name, None)
        if function is not None:
            setattr(c10d, name, _folded(guest, torch, c10d, name, function, other))
    c10d.Work.wait = _waiting(guest, c10d.Work.wait)


def _watched(guest: Any, torch: Any, c10d: Any, names: dict[int, str], name: str, function: Any) -> Any:
    """A collective whose operator is seen by the kernels."""
    recorder, outside = guest.recorder, c10d.GroupMember.NON_GROUP_MEMBER
    place = places(function)
    async_at, op_at, group_at = place.get("async_op"), place.get("op"), place.get("group")
    reduces, always_async = op_at is not None, name in ASYNC

    @functools.wraps(function)
    def watched_call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.call is not None or guest.off:
            return function(*args, **kwargs)
        op = None
        if reduces:
            op = argument(args, kwargs, "op", op_at)
            op = "SUM" if op is None else names.get(id(op)) or _reduce_name(op)
        waits = not (always_async or (async_at is not None and argument(args, kwargs, "async_op", async_at)))
        call = here.call = Call(waits, False, op)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            here.call = None
            for serial in call.serials:
                recorder.mark(serial, wire.RAISED)
            guest.passing(error)
            raise
        here.call = None
        if waits and not recorder.pending:
            for serial in call.serials:
                recorder.mark(serial, wire.DONE)
        elif waits:
            recorder.complete(call.serials)
        if not call.serials and argument(args, kwargs, "group", group_at) is outside:
            guest.outsider(name, sys._getframe(1))
        return result

    return watched_call


def _folded(guest: Any, torch: Any, c10d: Any, name: str, function: Any, other: str) -> Any:
    """An object collective: one call, whatever it does inside."""
    recorder, outside = guest.recorder, c10d.GroupMember.NON_GROUP_MEMBER
    place = places(function)
    p2p = name in ("send_object_list", "recv_object_list")

    def enter(args: Any, kwargs: Any, frame: Any) -> int:
        group = argument(args, kwargs, "group", place.get("group"))
        if group is outside:
            guest.outsider(name, frame.f_back)
            return 0
        if not c10d.is_initialized():
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

    @functools.wraps(function)
    def folded_call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.call is not None or guest.off:
            return function(*args, **kwargs)
        call = Call(True, True)
        try:
            call.serials.append(enter(args, kwargs, sys._getframe()))
        except Exception as error:
            guest.failed(error)
        here.call = call
        state = wire.RAISED
        try:
            result = function(*args, **kwargs)
            state = wire.DONE
            return result
        except BaseException as error:
            guest.passing(error)
            raise
        finally:
            here.call = None
            for serial in call.serials:
                recorder.mark(serial, state)

    return folded_call


def _waiting(guest: Any, original: Any) -> Any:
    """`Work.wait` with a Python frame of its own, on which a stack shows what is waited for."""

    @functools.wraps(original)
    def waiting_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            guest.passing(error)
            raise

    return waiting_call


def _reduce_name(op: Any) -> str:
    kind = getattr(op, "op", op)  # a ReduceOp that carries a factor
    return str(getattr(kind, "name", kind)).rsplit(".", 1)[-1][:40]
