"""What a dead job left behind, explained: logs in any mixture, error files, dumps, reports of an earlier run."""

from __future__ import annotations

from .engine import explain

__all__ = ["explain"]
