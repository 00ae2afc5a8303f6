"""Python frames: whose they are, what stands on them, and which call sites have been seen.

Frames are walked, never formatted: a code object is described once and from then on known by a number.
"""

from __future__ import annotations

import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

USER, TORCH, LIBRARY, GUEST = 0, 1, 2, 3
"""Whose code a frame runs."""

KEY_DEPTH = 32
"""How many frames tell two call sites apart; what lies further out is taken from the first that came."""
SITE_DEPTH = 200

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = (
    "/site-packages/",
    "/dist-packages/",
    "/torchinductor_",
    os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "\0",
)
_CWD = os.getcwd()
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_BIN = os.path.join(sys.prefix, "bin") + os.sep


class Code:
    """What is known of one code object. It holds the object, so that its id stays its own."""

    __slots__ = ("code", "first_line", "function", "owner", "path")

    def __init__(self, code: Any) -> None:
        self.code = code
        path: str = code.co_filename
        if not path.startswith("<"):
            path = os.path.abspath(os.path.join(_CWD, path))
        self.path = path
        self.function: str = getattr(code, "co_qualname", code.co_name)
        self.first_line: int = code.co_firstlineno
        self.owner = _owner(path)


def _owner(path: str) -> int:
    if path.startswith(_HERE):
        return GUEST
    if path.startswith("<"):  # <string>, <frozen importlib>; but notebooks and consoles are the user's
        return USER if path.startswith(("<stdin", "<ipython")) else LIBRARY
    if path.startswith(_torch_folder()):
        return TORCH
    if path.startswith((_STDLIB, _BIN)) or any(mark in path for mark in _INSTALLED):
        return LIBRARY
    return USER


def _torch_folder() -> str:
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    return os.path.dirname(os.path.abspath(file)) + os.sep if file else "\0"


_UNCOUNTED = _HERE + "importlib_bootstrap"
"""`warnings` counts no frame of a file whose name has both these words in it: those of the import system."""


def uncounted(function: F) -> F:
    """The function, whose frames are not counted when a warning raised below it looks for the line it is about."""
    function.__code__ = function.__code__.replace(co_filename=_UNCOUNTED)
    return function


def wraps(original: Any) -> Callable[[F], F]:
    """`functools.wraps`, for what stands in front of a function that may warn."""

    def decorate(wrapper: F) -> F:
        functools.update_wrapper(wrapper, original)
        return uncounted(wrapper)

    return decorate


_codes: dict[int, Code] = {}


def describe(code: Any) -> Code:
    """The description of a code object, made once."""
    found = _codes.get(id(code))
    if found is None or found.code is not code:
        found = _codes[id(code)] = Code(code)
    return found


def site_key(frame: Any, depth: int) -> int:
    """A number that tells call sites apart: code and instruction of the innermost `depth` frames."""
    key: list[int] = []
    add = key.append
    while frame is not None and depth:
        add(id(frame.f_code))
        add(frame.f_lasti)
        frame = frame.f_back
        depth -= 1
    return hash(tuple(key))


def walk(frame: Any) -> list[Any]:
    """The frames from `frame` outwards as (Code, line), innermost first, the guest's own left out."""
    found: list[tuple[Code, int]] = []
    while frame is not None and len(found) < SITE_DEPTH:
        code = describe(frame.f_code)
        if code.owner != GUEST:
            found.append((code, frame.f_lineno or code.first_line))
        frame = frame.f_back
    return found


def rows(walked: list[Any]) -> list[Any]:
    """Walked frames as the host reads them, outermost first: (path, line, function, first line, is the user's)."""
    return [(c.path, line, c.function, c.first_line, c.owner == USER) for c, line in reversed(walked)]


def user_rows(walked: list[Any]) -> list[Any]:
    """The user's frames of a stack, outermost first; the nearest frame where there are none."""
    mine = [pair for pair in walked if pair[0].owner == USER]
    if not mine:
        mine = [
            pair
            for pair in walked
            if pair[0].owner == LIBRARY and not pair[0].path.startswith(("<", _STDLIB))
        ][:1]
    return rows(mine or walked[:1])


_PLAIN = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/nn/functional.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/device_mesh.py",
    "/typing_extensions.py",  # `deprecated` wraps some of them
    # What runs compiled code, and the code itself.
    "torch/_dynamo/",
    "torch/_inductor/",
    "torch/_functorch/",
    "torch/_higher_order_ops/",
    "torch/_ops.py",
    "torch/fx/",
    "torch/nn/modules/module.py",
    "<eval_with_key>",
    "/torchinductor_",
)
"""Files whose functions are collectives by name, or pass a call on: who calls them knows that he communicates."""

_INSIDE = (
    ("SyncBatchNorm", ("torch/nn/modules/_functions.py", "torch/nn/modules/batchnorm.py")),
    ("FSDP", ("torch/distributed/fsdp/", "torch/distributed/_composable/fsdp/")),
    ("DTensor", ("torch/distributed/tensor/", "torch/distributed/_tensor/")),
    ("checkpoint", ("torch/distributed/checkpoint/",)),
    ("ZeroRedundancyOptimizer", ("torch/distributed/optim/",)),
    ("Join", ("torch/distributed/algorithms/join.py",)),
    ("pipeline", ("torch/distributed/pipelining/",)),
)
_DDP = "torch/nn/parallel/distributed.py"
_BACKWARD = ("torch/_tensor.py", "torch/autograd/__init__.py", "torch/autograd/graph.py")


def inside(walked: list[Any]) -> str:
    """What communicates on the user's behalf at this stack: "DDP.forward", "SyncBatchNorm", ..., the name of a
    package in site-packages; "" where the user's line names the collective itself."""
    between: list[Code] = []
    for code, _ in walked:
        if code.owner == USER:
            break
        if not any(mark in code.path for mark in _PLAIN):
            between.append(code)
    if not between:
        return ""
    for name, marks in _INSIDE:
        if any(mark in code.path for code in between for mark in marks):
            return name
    backward = any(code.path.endswith(_BACKWARD) for code in between)
    methods = [code.function.rsplit(".", 1)[-1] for code in between if code.path.endswith(_DDP)]
    if methods:
        return "DDP.__init__" if "__init__" in methods else "DDP.backward" if backward else "DDP.forward"
    for code in between:
        if code.owner == LIBRARY and "-packages/" in code.path and not code.path.startswith("<"):
            return code.path.split("-packages/", 1)[1].split("/", 1)[0].split(".", 1)[0]
    return "DDP.backward" if backward else between[-1].function


_SIMPLE = (int, bool, float, str, type(None))


def simple_locals(frame: Any) -> dict[str, Any]:
    """A frame's variables of simple type, and `len(x)` of lists, tuples, dicts and sets; never calls user code."""
    values = frame.f_locals
    found = {}
    for name, value in list(values.items())[:200]:
        kind = type(value)
        if kind in _SIMPLE:
            found[name] = value if kind is not str else value[:80]
        elif kind in (list, tuple, dict, set):
            found["len(%s)" % name] = len(value)
    release(frame, values)
    return found


def release(frame: Any, values: Any) -> None:
    """Empties the snapshot that reading `f_locals` left on a function's frame before Python 3.13: it would keep the
    user's tensors alive. Module frames have no snapshot, their locals are the real ones."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & 0x1:  # CO_OPTIMIZED
        values.clear()
