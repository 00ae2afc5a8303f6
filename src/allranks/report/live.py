"""The line at the foot of the terminal while a job runs: ranks in step, calls made, who is late.

The job writes to the terminal itself, untouched, so the line must not be in its way: the last row is taken out of
the scrolling region (DECSTBM, as package managers do for their progress bar) and drawn with the cursor saved.
Nothing is written when the stream is not a terminal.
"""

from __future__ import annotations

import os
from typing import IO

from rich.cells import set_cell_size


class FootLine:
    """One reserved row at the bottom of `stream`; `show` draws it, `close` gives the row back."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.size: os.terminal_size | None = None
        self.active = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        """Draws `text` in the reserved row, cut to the width of the terminal."""
        if not self.active:
            return
        try:
            size = os.get_terminal_size(self.stream.fileno())
            if size.lines < 4:
                return
            reserve = ""
            if size != self.size:
                # A line feed first: the row may hold text of the job, which scrolls up instead of being lost.
                reserve = f"\n\x1b7\x1b[1;{size.lines - 1}r\x1b8\x1b[A"
                self.size = size
            row = set_cell_size(text, size.columns)
            self._write(f"{reserve}\x1b7\x1b[{size.lines};1H\x1b[7m{row}\x1b[0m\x1b8")
        except (OSError, ValueError):
            self.active = False

    def close(self) -> None:
        """Gives the row back to the scrolling region and clears it."""
        if self.active and self.size is not None:
            try:
                self._write(f"\x1b7\x1b[r\x1b[{self.size.lines};1H\x1b[2K\x1b8")
            except (OSError, ValueError):
                pass
            self.size = None

    def _write(self, text: str) -> None:
        # One write: the job writes to the same terminal at the same time.
        os.write(self.stream.fileno(), text.encode("utf-8", "replace"))
