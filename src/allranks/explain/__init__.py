"""What a dead job left behind, explained: logs in any mixture, error files, dumps, reports of an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import explain

__all__ = ["explain"]


def __getattr__(name: str) -> Any:
    # Dumps are read without the engine of logs, and without the source analysis that it brings: half a second.
    if name == "explain":
        from .engine import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
