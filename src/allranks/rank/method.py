"""The methods of ProcessGroup that the Python layer calls, which name the ReduceOp as an operator cannot.

The two that programs call most, allreduce and broadcast, are recorded here and handed to the backend directly,
which is all that the operator between them does: a kernel of ours (`kernel`) need not run. That is only done where
nothing else could be watching the operator, and no autograd is involved; all else goes through the kernels.
"""

from __future__ import annotations

import sys

from . import kernel, stack, wire
from .call import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REDUCING = (
    "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_single_coalesced",
)  # fmt: skip
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def wrap(guest: Any, torch: Any, c10d: Any) -> None:
    """Replaces the methods on the class. Nothing of torch may be used before the first call: it is being imported."""
    group, names = c10d.ProcessGroup, _reduce_names(c10d)
    for name in REDUCING:
        if hasattr(group, name):
            setattr(group, name, _naming(names, getattr(group, name)))
    backend = getattr(sys.modules.get("torch._C._distributed_c10d"), "Backend", None)
    if backend is not None:
        group.allreduce = _direct(
            guest, torch, group.allreduce, backend.allreduce, c10d.AllreduceOptions, names
        )
        group.broadcast = _direct(
            guest, torch, group.broadcast, backend.broadcast, c10d.BroadcastOptions, None
        )


METHODS = {
    "allreduce": "allreduce_", "allreduce_coalesced": "allreduce_coalesced_", "broadcast": "broadcast_",
    "reduce": "reduce_", "allgather": "allgather_", "_allgather_base": "_allgather_base_", "gather": "gather_",
    "scatter": "scatter_", "reduce_scatter": "reduce_scatter_", "_reduce_scatter_base": "_reduce_scatter_base_",
    "alltoall": "alltoall_", "alltoall_base": "alltoall_base_", "barrier": "barrier",
    "monitored_barrier": "monitored_barrier_", "send": "send", "recv": "recv_", "recv_anysource": "recv_any_source_",
}  # fmt: skip
"""Methods of ProcessGroup -> the operators they call."""


def record(guest: Any, c10d: Any) -> None:
    """Records calls at the methods of ProcessGroup, where the operators cannot be watched: what Python calls is seen,
    what C++ calls (DDP's reducer) is not."""
    names = _reduce_names(c10d)
    for name, operator in METHODS.items():
        if hasattr(c10d.ProcessGroup, name):
            setattr(
                c10d.ProcessGroup,
                name,
                _recorded(guest, c10d, names, operator, getattr(c10d.ProcessGroup, name)),
            )


def _recorded(guest: Any, c10d: Any, names: dict[int, str], operator: str, original: Any) -> Any:
    recorder = guest.recorder

    @stack.wraps(original)
    def recorded_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if here.call is not None or guest.off:
            return original(self, *args, **kwargs)
        serial = 0
        try:
            group = recorder.group(self, c10d)
            signature = _signature(operator, group, names, args, kwargs)
            serial = recorder.enter(group, signature, sys._getframe(1), operator in kernel.P2P)
        except Exception as error:
            guest.failed(error)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            recorder.mark_old(serial, wire.RAISED)
            raise
        if serial and hasattr(result, "is_completed"):
            recorder.issued(serial, result)
        else:
            recorder.mark_old(serial, wire.DONE)
        return result

    return recorded_call


def _signature(operator: str, group: Any, names: dict[int, str], args: Any, kwargs: Any) -> tuple[Any, ...]:
    opts = kwargs.get("opts", args[-1] if args else None)
    root = getattr(opts, "rootRank", None)
    reduce_op = getattr(opts, "reduceOp", None)
    peer = group.global_rank(args[1]) if operator in ("send", "recv_") and len(args) > 1 else None
    tag = args[-1] if operator in kernel.P2P and len(args) > 1 else None
    tensors: Any = args[1] if "gather" in operator and len(args) > 1 else args[0] if args else None
    while isinstance(tensors, (list, tuple)) and tensors:
        tensors = tensors[0]
    known = hasattr(tensors, "dtype") and operator not in ("alltoall_", "alltoall_base_", "scatter_")
    return (
        kernel.NAMES.get(operator, operator.strip("_")),
        _reduce_name(names, reduce_op) if reduce_op is not None else None,
        group.global_rank(root) if root is not None else None,
        peer, tag, tensors.dtype if known else None, (tensors.shape,) if known else None, None,
    )  # fmt: skip


def _reduce_names(c10d: Any) -> dict[int, str]:
    """hash of a ReduceOp -> its name, but for those that carry a factor."""
    ops = ((name, getattr(c10d.ReduceOp, name)) for name in REDUCE_OPS if hasattr(c10d.ReduceOp, name))
    return {hash(c10d.ReduceOp(op)): name for name, op in ops}


def _reduce_name(names: dict[int, str], op: Any) -> str:
    return names.get(hash(op)) or str(getattr(getattr(op, "op", op), "name", op))[:40]


def _naming(names: dict[int, str], original: Any) -> Any:
    """A method whose options carry a ReduceOp."""

    @stack.wraps(original)
    def naming_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            op = getattr(kwargs.get("opts", args[-1] if args else None), "reduceOp", None)
            here.reduce_op = _reduce_name(names, op) if op is not None else None
        except Exception:
            here.reduce_op = None
        try:
            return original(self, *args, **kwargs)
        finally:
            here.reduce_op = None

    return naming_call


def _direct(guest: Any, torch: Any, original: Any, method: Any, options: Any, names: Any) -> Any:
    """allreduce or broadcast of one plain tensor over a backend on the CPU; all others as `_naming`."""
    recorder, getframe = guest.recorder, sys._getframe
    otherwise = _naming(names, original) if names is not None else original
    op = method.__name__

    @stack.wraps(original)
    def direct_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 2 or guest.off or here.call is not None:
            return otherwise(self, *args, **kwargs)
        backend, serial = None, 0
        try:
            tensors, opts = args
            group = recorder.groups.get(id(self))
            if group is not None and group.direct is not None and group.ref() is self and len(tensors) == 1:
                tensor = tensors[0]
                if (
                    type(tensor) is torch.Tensor
                    and type(opts) is options
                    and tensor.layout is torch.strided
                    and not tensor.requires_grad
                    and tensor.is_cpu
                    and not torch._C._len_torch_dispatch_stack()
                    and not torch._C._autograd._profiler_enabled()
                ):
                    backend = group.direct
            if backend is not None:
                root = reduce_op = None
                if names is None:
                    root = group.ranks[opts.rootRank]
                else:
                    reduce_op = names.get(hash(opts.reduceOp))
                signature = (op, reduce_op, root, None, None, tensor.dtype, (tensor.shape,), None)
                serial = recorder.enter(group, signature, getframe(1))
        except Exception as error:
            guest.failed(error)
        if not serial:
            return otherwise(self, *args, **kwargs)
        try:
            work = method(backend, tensors, opts)
        except BaseException:
            recorder.mark(serial, wire.RAISED)
            raise
        try:
            recorder.issued(serial, work)
        except Exception as error:
            guest.failed(error)
        return work

    return direct_call
