"""Judges a World: from what the ranks did to findings, root causes first, for live runs and for dumps alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .verdict import judge, so_far
    from .waits import DeadSet, dead_set

__all__ = ["DeadSet", "dead_set", "judge", "so_far"]


def __getattr__(name: str) -> Any:
    # The table of messages is read without the source analysis that the verdict brings: a quarter of a second.
    if name in ("judge", "so_far"):
        from . import verdict

        return getattr(verdict, name)
    if name in ("DeadSet", "dead_set"):
        from . import waits

        return getattr(waits, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
