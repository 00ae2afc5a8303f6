"""Kernels before the c10d operators: they see every collective, also those of C++ (DDP's reducer).

A kernel at dispatch key BackendSelect runs before the backend's own, in whatever thread makes the call, and passes
the call on unchanged. It gets the process group, and the Work that tells when the call is complete.
"""

from __future__ import annotations

import sys

from . import wire
from .call import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

NAMES = {
    "_allgather_base_": "allgather_into",
    "_reduce_scatter_base_": "reduce_scatter",
    "recv_any_source_": "recv_any",
    "alltoall_base_": "alltoall",
    "allgather_into_tensor_coalesced_": "allgather_into",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
}
"""Operators that mean the same call as another; the names of the rest lose their underscores."""

P2P = ("send", "recv_", "recv_any_source_")
MANY = 64
"""Shapes of one call that are told apart."""


def register(guest: Any, torch: Any, c10d: Any) -> Any:
    """Puts a kernel before each c10d operator that takes a process group; gives the library that holds them."""
    library = torch.library.Library("c10d", "IMPL")
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("c10d::"):
            continue
        name, _, overload = name[6:].partition(".")
        operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
        arguments = [a.name for a in operator._schema.arguments]
        if "process_group" in arguments:
            kernel = _kernel(guest, torch, c10d, name, operator, arguments)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
    return library


def _kernel(guest: Any, torch: Any, c10d: Any, name: str, operator: Any, arguments: list[str]) -> Any:
    redispatch = operator.redispatch
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    unbox_group, unbox_work = c10d.ProcessGroup.unbox, c10d.Work.unbox
    recorder, groups, getframe = guest.recorder, guest.recorder.groups, sys._getframe
    describe = describer(name, arguments)
    at = arguments.index("process_group")
    p2p = name in P2P

    def kernel(keyset: Any, *args: Any) -> Any:
        if here.call is not None or guest.off:
            return redispatch(keyset & below, *args)
        serial = 0
        try:
            pg = unbox_group(args[at])
            group = groups.get(id(pg))
            if group is None or group.ref() is not pg:
                group = recorder.group(pg, c10d)
            serial = recorder.enter(group, describe(group, args, here.reduce_op), getframe(), p2p)
        except Exception as error:
            guest.failed(error)
        try:
            result = redispatch(keyset & below, *args)
        except BaseException:
            recorder.mark(serial, wire.RAISED)
            raise
        try:
            if result is None:
                recorder.mark(serial, wire.DONE)
            elif serial:
                recorder.issued(serial, unbox_work(result[-1] if type(result) is tuple else result))
        except Exception as error:
            guest.failed(error)
        return result

    return kernel


def describer(name: str, arguments: list[str]) -> Callable[..., tuple[Any, ...]]:
    """A function (group, operator arguments, ReduceOp name) -> signature, for one operator."""
    op = NAMES.get(name, name.strip("_"))
    place = {argument: index for index, argument in enumerate(arguments)}
    root_at, tag_at = place.get("root_rank"), place.get("tag")
    peer_at = place.get("src", place.get("dst"))
    shapes = _shapes(name, place)

    if root_at is None and peer_at is None:

        def describe_alike(group: Any, args: Any, reduce_op: Any) -> tuple[Any, ...]:
            dtype, shape = shapes(args)
            return (op, reduce_op, None, None, None, dtype, shape, None)

        return describe_alike

    def describe(group: Any, args: Any, reduce_op: Any) -> tuple[Any, ...]:
        dtype, shape = shapes(args)
        root = group.global_rank(args[root_at]) if root_at is not None else None
        peer = group.global_rank(args[peer_at]) if peer_at is not None else None
        tag = args[tag_at] if tag_at is not None else None
        return (op, reduce_op, root, peer, tag, dtype, shape, None)

    return describe


def _shapes(name: str, place: dict[str, int]) -> Callable[[Any], tuple[Any, Any]]:
    """A function (operator arguments) -> (dtype, shapes that the ranks must agree on)."""
    if name in ("barrier", "monitored_barrier_"):
        return lambda args: (None, None)
    if name == "allgather_":
        return _gathered
    if name in ("alltoall_", "alltoall_base_"):  # pieces may differ from rank to rank
        return lambda args: (_first(args[1]).dtype, None)
    at = 0
    for key in ("input_tensors", "input_tensor", "inputs", "input_list"):
        at = place.get(key, at)
    if name == "scatter_":  # only the root has inputs
        at = place["output_tensors"]

    def plain(args: Any) -> tuple[Any, Any]:
        tensors = args[at]
        if type(tensors) is not list:
            return tensors.dtype, (tensors.shape,)
        if len(tensors) == 1 and type(tensors[0]) is not list:
            tensor = tensors[0]
            return tensor.dtype, (tensor.shape,)
        flat = tensors[0] if tensors and type(tensors[0]) is list else tensors
        return flat[0].dtype if flat else None, tuple([t.shape for t in flat[:MANY]])

    return plain


def _gathered(args: Any) -> tuple[Any, Any]:
    """all_gather: the inputs must be of one size, or else the lists of outputs must be alike."""
    outputs, tensor = args[0][0], args[1][0]
    shape = tensor.shape
    for output in outputs[:MANY]:
        if output.shape != shape:
            return tensor.dtype, tuple([o.shape for o in outputs[:MANY]])
    return tensor.dtype, (shape,)


def _first(value: Any) -> Any:
    while type(value) in (list, tuple):
        value = value[0]
    return value
