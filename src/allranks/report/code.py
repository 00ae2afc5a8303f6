"""The lines of the files that a report speaks of, for showing them; a file that is gone has none."""

from __future__ import annotations

import io
import json
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Sources:
    """Reads each file once. `given` holds texts that lie in no file, by path (from standard input)."""

    def __init__(self, given: Mapping[str, str] | None = None, root: Path | None = None) -> None:
        self._texts = dict(given or {})
        self._root = root or Path()

    def lines(self, path: str, cell: int | None = None) -> list[str]:
        """The lines of the file `path`, or of one cell of a notebook; empty when it cannot be read."""
        if path not in self._texts:
            self._texts[path] = _read(self._root / path)
        text = self._texts[path]
        return text.splitlines() if cell is None else _cell(text, cell)


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding, "replace")
    except (OSError, SyntaxError, LookupError, ValueError):
        return ""


def _cell(text: str, cell: int) -> list[str]:
    try:
        source = json.loads(text)["cells"][cell - 1]["source"]
    except (ValueError, KeyError, IndexError, TypeError):
        return []
    return "".join(source).splitlines() if isinstance(source, list) else str(source).splitlines()
