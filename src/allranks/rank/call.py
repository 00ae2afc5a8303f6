"""What the calls of torch.distributed's Python layer tell the kernels below them, per thread."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Call:
    """A call of the Python layer that is recorded as one, whatever it does inside; `serial` is its record."""

    __slots__ = ("serial",)

    def __init__(self, serial: int) -> None:
        self.serial = serial


class _Here(threading.local):
    """`call`: the call that this thread is in, or None. `reduce_op`: the name of the ReduceOp of the operator that
    the thread is about to call, or None."""

    call: Call | None = None
    reduce_op: str | None = None


here = _Here()


def argument(args: Any, kwargs: Any, name: str, place: int | None) -> Any:
    """An argument by name or place; None when it was not given."""
    if name in kwargs:
        return kwargs[name]
    return args[place] if place is not None and place < len(args) else None


def places(function: Any) -> dict[str, int]:
    """The parameters of a function: name -> place; empty where they cannot be told."""
    import inspect

    try:
        return {name: at for at, name in enumerate(inspect.signature(function).parameters)}
    except (TypeError, ValueError):
        return {}
