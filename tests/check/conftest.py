"""Shared by the tests of `check`."""

from __future__ import annotations

from allranks.check.rules import registered

# All rules, before a test puts others in their place: a module registers its rules once, when it is imported.
RULES = tuple(registered())
