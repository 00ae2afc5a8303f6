"""Lines of text that a rank writes to its standard output and error, by the place that writes them."""

from __future__ import annotations

import sys

from . import stack
from .observe import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLACES = 300
"""Places that are told apart."""
TEXTS = 6
"""Lines of one place that are told word for word."""
WIDTH = 160
TROUBLE = ("warnings", "traceback")
"""Modules whose lines are nobody's progress."""


class Place:
    """A place that writes: how often it did, and what at first."""

    __slots__ = ("count", "number", "texts")

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.texts: list[str] = []


class Lines:
    """The writes of one process."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self.places: dict[int, Place] = {}
        self.partial: dict[str, str] = {}
        self.busy = False

    def wrote(self, text: Any, stream: str, frame: Any) -> None:
        """Something was written to a standard stream: a line, a piece of one (print writes it in pieces), or a bar
        that begins by going back to the start of the line."""
        if type(text) is not str or not text or self.busy or frame.f_globals.get("__name__") in TROUBLE:
            return
        self.busy = True
        try:
            whole = self.partial.pop(stream, "") + text
            if text[-1] == "\n" or text[0] == "\r":
                if whole.strip():
                    self.line(whole.strip(), stream, frame)
            else:
                self.partial[stream] = whole[: WIDTH * 2]  # the rank stands at the beginning
        finally:
            self.busy = False

    def line(self, text: str, stream: str, frame: Any) -> None:
        """Counts one line at its place, and tells of the first few and then ever rarer."""
        key = stack.site_key(frame, 8)
        place = self.places.get(key)
        if place is None:
            if len(self.places) >= PLACES:
                return
            place = self.places[key] = Place(len(self.places) + 1)
        place.count += 1
        if len(place.texts) < TEXTS:
            place.texts.append(text[:WIDTH])
        elif place.count & (place.count - 1):
            return
        if place.count > 1:
            row = {"place": place.number, "count": place.count, "texts": place.texts, "stream": stream}
            tell(self.guest, "line", frame, row)


def watch(guest: Any) -> None:
    """Looks at what is written to sys.stdout and sys.stderr from now on."""
    if getattr(guest, "lines", None) is not None:
        return
    lines = guest.lines = Lines(guest)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is None:
            continue
        try:
            stream.write = _writing(guest, lines, name, stream.write)
        except (AttributeError, TypeError):  # a stream that cannot be watched
            continue


def _writing(guest: Any, lines: Lines, name: str, original: Any) -> Any:
    def write(text: Any) -> Any:
        if guest.sink is not None and not guest.off:
            try:
                lines.wrote(text, name, sys._getframe(1))
            except (
                ValueError
            ):  # written by no Python code: the interpreter itself, or a thread of native code
                pass
            except Exception as error:
                guest.failed(error)
        return original(text)

    return write
