"""Where the calls are seen: kernels for the c10d operators, and thin wrappers of the Python layer.

The kernels see every collective, also those of C++ (DDP's reducer). The wrappers add what an operator cannot see:
the name of the ReduceOp, that a call is synchronous, that an object collective is one call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading

from . import wire


class _Here(threading.local):
    """The wrapped call that this thread is in, or None."""

    call = None


class Call:
    """A call of the Python layer in progress."""

    __slots__ = ("folded", "reduce_op", "serials", "waits")

    def __init__(self, waits: bool, folded: bool = False, reduce_op=None) -> None:
        self.waits = waits
        self.folded = folded
        self.reduce_op = reduce_op
        self.serials = []


here = _Here()

COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "_all_gather_base",
    "_reduce_scatter_base", "send", "recv", "isend", "irecv", "batch_isend_irecv",
)  # fmt: skip
ASYNC = ("isend", "irecv", "batch_isend_irecv")
OBJECTS = {
    "all_gather_object": None, "gather_object": "dst", "broadcast_object_list": "src", "scatter_object_list": "src",
    "send_object_list": "dst", "recv_object_list": "src",
}  # fmt: skip
"""Object collectives, and the parameter that names the other or root rank."""

NAMES = {"_allgather_base_": "allgather_into", "_reduce_scatter_base_": "reduce_scatter", "recv_any_source_": "recv_any",
         "alltoall_base_": "alltoall", "allgather_into_tensor_coalesced_": "allgather_into",
         "reduce_scatter_tensor_coalesced_": "reduce_scatter"}  # fmt: skip
"""Names of operators that mean the same call as another; the rest lose their underscores."""


class Hooks:
    """The hooks of one process. `guest` gives the recorder and takes errors of ours."""

    def __init__(self, guest, c10d) -> None:
        self.guest = guest
        self.c10d = c10d
        self.torch = sys.modules["torch"]  # still being imported: use nothing of it yet
        self.recorder = guest.recorder
        self.reduce_names = {}
        for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
            value = getattr(c10d.ReduceOp, name, None)
            if value is not None:
                self.reduce_names[id(value)] = name
        self.outside = c10d.GroupMember.NON_GROUP_MEMBER
        self.library = None

    # Kernels

    def register(self) -> None:
        """Puts a kernel before each c10d operator that takes a process group; once, when torch is there."""
        if self.library is not None:
            return
        torch = self.torch
        self.library = torch.library.Library("c10d", "IMPL")
        for name in sorted(torch._C._dispatch_get_all_op_names()):
            if not name.startswith("c10d::"):
                continue
            name, _, overload = name[6:].partition(".")
            operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
            arguments = [a.name for a in operator._schema.arguments]
            if "process_group" in arguments:
                self.library.impl(
                    name, self.kernel(name, operator, arguments), "BackendSelect", with_keyset=True
                )

    def kernel(self, name: str, operator, arguments: list):
        """The kernel of one operator: tells the recorder before and after, and passes the call on."""
        redispatch, torch = operator.redispatch, self.torch
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        unbox_work = self.c10d.Work.unbox
        unbox_group = self.c10d.ProcessGroup.unbox
        recorder, guest, c10d, getframe = self.recorder, self.guest, self.c10d, sys._getframe
        describe = _describer(name, arguments)
        at = arguments.index("process_group")
        p2p = name in ("send", "recv_", "recv_any_source_")

        def kernel(keyset, *args):
            call = here.call
            if guest.off or (call is not None and call.folded):
                return redispatch(keyset & below, *args)
            serial = 0
            try:
                group = recorder.group(unbox_group(args[at]), c10d)
                signature = describe(group, args, call.reduce_op if call is not None else None)
                serial = recorder.enter(group, signature, getframe(), p2p)
            except Exception as error:
                guest.failed(error)
            try:
                result = redispatch(keyset & below, *args)
            except BaseException:
                recorder.mark(serial, wire.RAISED)
                raise
            try:
                if call is not None and call.waits:
                    call.serials.append(serial)
                elif result is None:
                    recorder.mark(serial, wire.DONE)
                else:
                    recorder.issued(serial, unbox_work(result[-1] if type(result) is tuple else result))
            except Exception as error:
                guest.failed(error)
            return result

        return kernel

    # Wrappers of the Python layer

    def wrap_all(self) -> None:
        """Replaces the functions of distributed_c10d; `torch.distributed` copies the names afterwards."""
        for name in COLLECTIVES:
            function = getattr(self.c10d, name, None)
            if function is not None:
                setattr(self.c10d, name, self.watched(name, function))
        for name, other in OBJECTS.items():
            function = getattr(self.c10d, name, None)
            if function is not None:
                setattr(self.c10d, name, self.folded(name, function, other))
        work = self.c10d.Work
        work.wait = _waiting(work.wait, self.guest)

    def watched(self, name: str, function):
        """A collective whose operator is seen by the kernels."""
        torch, guest, recorder, outside = self.torch, self.guest, self.recorder, self.outside
        reduce_names = self.reduce_names
        always_async = name in ASYNC
        parameters = _parameters(function)
        async_at, op_at, group_at = (_place(parameters, p) for p in ("async_op", "op", "group"))
        reduces = op_at is not None and name not in ASYNC

        @functools.wraps(function)
        def watched_call(*args, **kwargs):
            if torch.compiler.is_compiling() or here.call is not None or guest.off:
                return function(*args, **kwargs)
            op = None
            if reduces:
                op = _argument(args, kwargs, "op", op_at)
                op = "SUM" if op is None else reduce_names.get(id(op)) or _reduce_name(op)
            waits = not (
                always_async or (async_at is not None and _argument(args, kwargs, "async_op", async_at))
            )
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
            for serial in call.serials:
                recorder.mark(serial, wire.DONE)
            if not call.serials and _argument(args, kwargs, "group", group_at) is outside:
                guest.outsider(name, sys._getframe(1))
            return result

        return watched_call

    def folded(self, name: str, function, other):
        """An object collective: one call, whatever it does inside."""
        torch, guest, recorder, outside, c10d = self.torch, self.guest, self.recorder, self.outside, self.c10d
        parameters = _parameters(function)
        group_at, other_at = _place(parameters, "group"), _place(parameters, other)
        p2p = name in ("send_object_list", "recv_object_list")

        @functools.wraps(function)
        def folded_call(*args, **kwargs):
            if torch.compiler.is_compiling() or here.call is not None or guest.off:
                return function(*args, **kwargs)
            serial = 0
            call = Call(True, True)
            try:
                group = _argument(args, kwargs, "group", group_at)
                if group is outside:
                    guest.outsider(name, sys._getframe(1))
                elif c10d.is_initialized():
                    found = recorder.group(group or c10d._get_default_group(), c10d)
                    signature = _object_signature(name, other, found, args, kwargs, other_at, p2p)
                    serial = recorder.enter(found, signature, sys._getframe(), p2p)
                    call.serials.append(serial)
            except Exception as error:
                guest.failed(error)
            here.call = call
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                recorder.mark(serial, wire.RAISED)
                guest.passing(error)
                raise
            finally:
                here.call = None
            recorder.mark(serial, wire.DONE)
            return result

        return folded_call


def _waiting(original, guest):
    """`Work.wait` with a Python frame of its own, on which a stack shows what is waited for."""

    @functools.wraps(original)
    def waiting_call(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            guest.passing(error)
            raise

    return waiting_call


def _parameters(function) -> list:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _place(parameters: list, name):
    return parameters.index(name) if name in parameters else None


def _argument(args, kwargs, name: str, place):
    if name in kwargs:
        return kwargs[name]
    return args[place] if place is not None and place < len(args) else None


def _reduce_name(op) -> str:
    kind = getattr(op, "op", op)  # a ReduceOp that carries a factor
    return str(getattr(kind, "name", kind)).rsplit(".", 1)[-1][:40]


def _object_signature(name: str, other, group, args, kwargs, place, p2p: bool) -> tuple:
    rank = _argument(args, kwargs, other, place) if other else None
    if rank is None and other:
        in_group = kwargs.get("group_" + other)
        rank = group.global_rank(in_group) if in_group is not None else 0
    if p2p:
        op = "send_object" if name.startswith("send") else "recv_object"
        return (op, None, None, rank, None, None, None, None)
    return (name, None, rank, None, None, None, None, None)


def _describer(name: str, arguments: list):
    """A function (group, operator arguments, ReduceOp name) -> signature, for one operator."""
    op = NAMES.get(name, name.strip("_"))
    place = {argument: index for index, argument in enumerate(arguments)}
    root_at, tag_at = place.get("root_rank"), place.get("tag")
    peer_at = place.get("src", place.get("dst"))
    shapes = _shapes(name, place)

    def describe(group, args, reduce_op):
        dtype, shape = shapes(args)
        root = group.global_rank(args[root_at]) if root_at is not None else None
        peer = group.global_rank(args[peer_at]) if peer_at is not None else None
        tag = args[tag_at] if tag_at is not None else None
        return (op, reduce_op, root, peer, tag, dtype, shape, None)

    return describe


def _shapes(name: str, place: dict):
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

    def plain(args):
        tensors = args[at]
        if type(tensors) is not list:
            return tensors.dtype, (tensors.shape,)
        if len(tensors) == 1 and type(tensors[0]) is not list:
            tensor = tensors[0]
            return tensor.dtype, (tensor.shape,)
        flat = tensors[0] if tensors and type(tensors[0]) is list else tensors
        return flat[0].dtype if flat else None, tuple(t.shape for t in flat[:64])

    return plain


def _gathered(args):
    """all_gather: the inputs must be of one size, or else the lists of outputs must be alike."""
    outputs, tensor = args[0][0], args[1][0]
    shape = tensor.shape
    if all(o.shape == shape for o in outputs[:64]):
        return tensor.dtype, (shape,)
    return tensor.dtype, tuple(o.shape for o in outputs[:64])


def _first(value):
    while type(value) in (list, tuple):
        value = value[0]
    return value
