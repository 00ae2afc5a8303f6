"""Batch normalisation and other buffers."""

from __future__ import annotations

from . import Rules

RULES = Rules()
