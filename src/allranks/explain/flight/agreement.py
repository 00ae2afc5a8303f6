"""What the ranks of a group must agree on for a call to pair, and what a user would call it and where it stands."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .columns import Call, CodeLine, Sizes

_SAME_TENSORS = {
    "all_reduce", "broadcast", "_broadcast_oop", "allreduce_coalesced", "all_reduce_barrier", "_all_gather_base",
    "all_gather_single", "all_gather_into_tensor_coalesced", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced",
}  # fmt: skip
_SAME_INPUTS = {"reduce", "_reduce_oop", "gather", "reduce_scatter", "reduce_scatter_v"}
"""Only the root has outputs, or ranks may receive parts of different size."""
_SAME_OUTPUTS = {"scatter", "all_gather", "all_gather_v"}
"""Only the root has inputs, or ranks may contribute parts of different size."""
_SAME_TYPES = {"all_to_all", "all_to_all_single", "all_to_all_v_single", "alltoall", "alltoall_base"}
"""Each pair of ranks has a size of its own."""

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python\d[\d.]*|lib64/python\d[\d.]*)/"
    r"|(^|/)torch/(distributed|nn|autograd|optim|utils|_dynamo|_inductor|_functorch|csrc|ao|fx|_tensor|_ops)(/|\.)"
    r"|^<frozen |^\?\?|\.(cpp|cc|cu|h|hpp|so|pyx|c)$"
)
_INSIDE = (
    (re.compile(r"torch/nn/parallel/distributed\.py$"), "DDP"),
    (re.compile(r"torch/distributed/(fsdp|_composable)/|torch/distributed/fsdp\.py$"), "FSDP"),
    (re.compile(r"torch/nn/modules/_functions\.py$|torch/nn/modules/batchnorm\.py$"), "SyncBatchNorm"),
    (re.compile(r"torch/distributed/tensor/"), "DTensor"),
    (re.compile(r"torch/distributed/checkpoint/"), "torch.distributed.checkpoint"),
    (re.compile(r"torch/(_tensor|autograd/__init__|autograd/graph)\.py$"), "backward"),
)


def agreed(call: Call) -> Hashable:
    """What must be equal on all ranks of the group: the operation, and of sizes and types what this operation needs.
    Of an operation that is not known here only the name: silence is better than a false alarm."""
    if call.parts:
        return (call.op, *(agreed(part) for part in call.parts))
    op = call.op.partition(" ")[0]
    if op in _SAME_TENSORS:
        types = (frozenset(call.input_dtypes), frozenset(call.output_dtypes))
        return (op, elements(call.input_sizes), elements(call.output_sizes), *types)
    if op in _SAME_INPUTS:
        return (op, elements(call.input_sizes), frozenset(call.input_dtypes))
    if op in _SAME_OUTPUTS:
        return (op, elements(call.output_sizes), frozenset(call.output_dtypes))
    if op in _SAME_TYPES:
        return (op, frozenset(call.input_dtypes))
    return (op,)


def elements(sizes: Sizes) -> tuple[int, ...]:
    """The number of elements of each tensor: [4, 2] and [8] go together."""
    return tuple(math.prod(size) for size in sizes)


def operation(call: Call) -> str:
    """The name of the operation without its peers."""
    return call.op.partition(" ")[0]


def user_lines(call: Call) -> tuple[CodeLine, ...]:
    """The frames of the user's own code, innermost first; without any, the innermost outside torch."""
    own = tuple(frame for frame in call.frames if not _LIBRARY.search(frame.path))
    if own:
        return own
    return tuple(frame for frame in call.frames if "/torch/" not in frame.path and frame.path.endswith(".py"))


def apart(call: Call, other: Call | None) -> CodeLine | None:
    """The user's line that tells `call` from `other`: the innermost, unless both make their call in the same helper;
    then the line from which they came to differ. None where the dump has no frames."""
    lines = user_lines(call)
    if not lines:
        return None
    if other is not None:
        for mine, theirs in zip(reversed(lines), reversed(user_lines(other)), strict=False):
            if mine != theirs:
                same_helper = lines[0] == user_lines(other)[0]
                return mine if same_helper else lines[0]
    return lines[0]


def inside(call: Call) -> str:
    """What communicates where the user's line does not name a collective ("DDP", "backward", "FSDP"); else ""."""
    for pattern, name in _INSIDE:
        for frame in call.frames:
            if pattern.search(frame.path):
                return name
    return ""


def place(call: Call) -> Hashable:
    """Where a call stands, equal on ranks that run the same program from different folders."""
    lines = user_lines(call) or tuple(line for part in call.parts for line in user_lines(part))
    return tuple((line.path.rpartition("/")[2], line.line, line.function) for line in lines)


def described(call: Call) -> str:
    """A call in a few words: `all_reduce of Float [1024]`, `DDP (all_reduce of Float [641])`."""
    if call.parts:
        words = f"{len(call.parts)} calls at once: " + ", ".join(described(part) for part in call.parts[:3])
        return words + (", ..." if len(call.parts) > 3 else "")
    sizes, types = (
        (call.input_sizes, call.input_dtypes) if call.input_sizes else (call.output_sizes, call.output_dtypes)
    )
    words = call.op
    if sizes:
        shapes = " ".join(str(list(size)) for size in sizes[:3]) + (" ..." if len(sizes) > 3 else "")
        words += f" of {' '.join(dict.fromkeys(types[:3]))} {shapes}".replace("  ", " ")
    within = inside(call)
    return f"{within} ({words})" if within else words
