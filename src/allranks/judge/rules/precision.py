"""Mixed precision and the way of the gradients from backward to the step: scaled, cleared, clipped, not finite."""

from __future__ import annotations

from . import Rules

RULES = Rules()
