"""Replicas that do not stay equal, and gradients that are not what the optimizer should get."""

from __future__ import annotations

from . import Rules

RULES = Rules()
