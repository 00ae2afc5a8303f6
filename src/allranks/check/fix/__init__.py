"""Mends what is safe to mend: from a finding to edits, and from edits to a changed text.

    @mends("load-on-one-device")
    def map_to_processor(file: File, finding: Finding) -> cst.Module | None:
        '''What it writes, and when it declines.'''

A mender sees one file and one finding, and declines (None) whenever the text is not of the plain form that it
knows. Whether a mend was right is not its word: `mend` keeps one only if the check agrees.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import libcst as cst

from ...findings import Edit, Finding
from .file import File

Mender = Callable[[File, Finding], "cst.Module | None"]

_MENDERS: dict[str, Mender] = {}


def mends(*faults: str) -> Callable[[Mender], Mender]:
    """Registers the decorated function as what mends `faults`."""

    def register(mender: Mender) -> Mender:
        for fault in faults:
            _MENDERS[fault] = mender
        return mender

    return register


def mendable() -> dict[str, Mender]:
    """What mends each fault."""
    # Not at the top: each of them imports this module for `mends`.
    from . import calls, guards, order  # noqa: F401

    return _MENDERS


def propose(finding: Finding, text: str) -> Finding:
    """`finding` with the edits that mend it in `text`, the content of its file; without, where nothing is sure."""
    mender = mendable().get(finding.fault)
    if mender is None or finding.location is None or finding.location.line is None:
        return finding
    file = _parsed(text)
    if file is None:
        return finding
    changed = mender(file, finding)
    if changed is None or changed.code == text:
        return finding
    return replace(finding, edits=tuple(_edits(finding.location.path, text, changed.code)))


@lru_cache(maxsize=8)
def _parsed(text: str) -> File | None:
    try:
        return File(text)
    except (cst.ParserSyntaxError, RecursionError, UnicodeError):
        return None


def _edits(path: str, before: str, after: str) -> list[Edit]:
    """The lines that differ, as edits; an insertion takes the line before or after it along."""
    old, new = _lines(before), _lines(after)
    edits = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if i == j:
            # Nothing is replaced: the line that follows, or else the last, is written again beside what is new.
            if i < len(old):
                edits.append(Edit(path, i + 1, i + 1, "".join(new[k:m]) + old[i]))
            else:
                last = old[-1] if old else ""
                edits.append(Edit(path, max(i, 1), max(i, 1), _ended(last) + "".join(new[k:m])))
        else:
            edits.append(Edit(path, i + 1, j, "".join(new[k:m])))
    return edits


def _lines(text: str) -> list[str]:
    """The lines of `text` with their ends, as Python counts them: a form feed ends none."""
    return list(io.StringIO(text, newline="\n"))


def _ended(line: str) -> str:
    return line if line.endswith("\n") or not line else line + "\n"


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with `edits`, none of which touches the lines of another.

    Lines are kept with their ends, so that what no edit touches stays as it was, byte for byte.
    """
    lines = _lines(text)
    for edit in sorted(edits, key=lambda e: e.start_line, reverse=True):
        lines[edit.start_line - 1 : edit.end_line] = [edit.text]
    return "".join(lines)
