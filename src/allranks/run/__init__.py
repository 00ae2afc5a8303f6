"""Runs a command under watch: launches it, collects what its ranks say, and judges while it runs."""

from .watch import DEAD, watch

__all__ = ["DEAD", "watch"]
