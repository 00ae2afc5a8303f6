"""Notebooks as Python: the code cells of an .ipynb one after the other, and the way back to cell and line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_MAGIC = re.compile(r"^(\s*)(?:[%!?]|[\w.]+\?\??\s*$)")
_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w.,\s]+=\s*)[%!].*$")
_TRANSPARENT = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cell magics whose cell is still Python of this notebook."""


@dataclass(frozen=True, slots=True)
class Notebook:
    """`text` is Python; line n of it is line `places[n - 1][1]` of cell `places[n - 1][0]` (both 1-based)."""

    text: str
    places: tuple[tuple[int, int], ...]

    def place(self, line: int) -> tuple[int, int]:
        """(cell, line in the cell) of a line of `text`."""
        return self.places[min(max(line, 1), len(self.places)) - 1] if self.places else (1, line)


def convert(text: str) -> Notebook:
    """The Python of a notebook of format 3 or 4. ValueError when `text` is not a notebook.

    Magics and shell lines become `pass`, so that every line keeps its place; cells in other languages are
    left out.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a notebook")
    if "cells" in document:
        cells = document["cells"]
    else:
        sheets = document.get("worksheets")
        cells = (
            [cell for sheet in sheets for cell in sheet.get("cells", [])]
            if isinstance(sheets, list)
            else None
        )
    if not isinstance(cells, list):
        raise ValueError("not a notebook")
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        for line, code in enumerate(_code(cell), 1):
            lines.append(code)
            places.append((number, line))
    return Notebook("\n".join(lines) + "\n", tuple(places))


def _code(cell: Any) -> list[str]:
    """The lines of a code cell as Python."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return []
    source = cell.get("source", cell.get("input", ""))
    text = "".join(str(part) for part in source) if isinstance(source, list) else str(source)
    lines = re.split(r"\r\n|\r|\n", text)
    first = lines[0].strip()
    if first.startswith("%%") and not first.startswith(_TRANSPARENT):
        return ["pass"]
    return _without_magics(lines)


def _without_magics(lines: list[str]) -> list[str]:
    out = []
    open_string = continued = False
    for line in lines:
        if open_string or continued:
            kept = line
        elif _MAGIC.match(line):
            indent = line[: len(line) - len(line.lstrip())]
            kept = f"{indent}pass"
        else:
            kept = _ASSIGNED_MAGIC.sub(r"\1None", line)
        # Inside a triple-quoted string or after a backslash a % is no magic; counting marks is near enough.
        if (line.count('"""') + line.count("'''")) % 2:
            open_string = not open_string
        continued = kept.rstrip().endswith(("\\", "(", ",", "[", "{")) and not kept.lstrip().startswith("#")
        out.append(kept)
    return out
