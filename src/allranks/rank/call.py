"""The call of the Python layer that a thread is in, which the kernels below it consult."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Call:
    """A call in progress. `waits`: it returns when it is complete; `folded`: the operators it makes are not calls of
    their own; `serials`: the records of those it made."""

    __slots__ = ("folded", "reduce_op", "serials", "waits")

    def __init__(self, waits: bool, folded: bool, reduce_op: str | None = None) -> None:
        self.waits = waits
        self.folded = folded
        self.reduce_op = reduce_op
        self.serials: list[int] = []


class _Here(threading.local):
    """`call` is the call that this thread is in, or None."""

    call: Call | None = None


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
