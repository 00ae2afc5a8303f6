"""Stacks that Python's faulthandler prints when native code crashes, or after a time: the innermost frame first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..world import Frame
from .raised import Raised, Traceback, is_user

if TYPE_CHECKING:
    from .logs import Line

_FATAL = re.compile(r"(?P<type>Fatal Python error): (?P<what>.*)")
_TIMEOUT = re.compile(r"(?P<type>Timeout) \((?P<what>\d[\d:.]*)\)!")
_THREAD = re.compile(r"(?P<which>Current thread|Thread) 0x[0-9a-fA-F]+ .*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line (?P<line>\d{1,9}) in (?P<function>.+)')
_MOST_FRAMES = 400


class NativeStacks:
    """Collects such stacks into `done`. Of a crash the current thread counts, of a timeout the last one printed,
    which is the main thread."""

    def __init__(self, done: list[Traceback]) -> None:
        self._done = done
        self._raised: Raised | None = None
        self._lines: list[Line] = []
        self._reading = False

    def feed(self, line: Line) -> bool:
        """Takes one line; True when it is part of such a stack."""
        text = line.text
        if match := _FATAL.match(text) or _TIMEOUT.match(text):
            self.close()
            self._raised = Raised(match["type"], match["what"], first=line.number, end=line.number)
            self._lines = [line]
            return True
        if self._raised is None:
            return False
        if match := _THREAD.match(text):
            self._reading = match["which"] == "Current thread" or self._raised.type == "Timeout"
            if self._reading:
                self._raised.frames.clear()
                self._raised.code.clear()
        elif match := _FRAME.match(text):
            if self._reading and len(self._raised.frames) < _MOST_FRAMES:
                path = match["path"]
                self._raised.frames.insert(
                    0, Frame(path, int(match["line"]), match["function"], user=is_user(path))
                )
                self._raised.code.insert(0, text)
                self._lines.append(line)
        elif text.strip():
            self.close()
            return False
        else:
            self._reading = False
        return True

    def close(self) -> None:
        """Nothing more belongs to the stack that is being read."""
        if self._raised is not None:
            self._done.append(Traceback([self._raised], self._lines))
        self._raised, self._lines, self._reading = None, [], False
