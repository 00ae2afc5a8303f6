"""Mends what is safe to mend: from a finding to edits, and from edits to a changed text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..findings import Edit, Finding


def propose(finding: Finding) -> Finding:
    """`finding` with the edits that mend it, where there is a mender that is sure."""
    return finding


def apply(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """`text` with `edits`, and how many were made: of two that touch the same lines only the first is.

    Lines are kept with their ends, so that what no edit touches stays as it was, byte for byte.
    """
    lines = text.splitlines(keepends=True)
    made = 0
    before = len(lines) + 1
    for edit in sorted(set(edits), key=lambda e: (e.start_line, e.end_line), reverse=True):
        if edit.end_line >= before or edit.start_line < 1:
            continue
        lines[edit.start_line - 1 : edit.end_line] = [edit.text]
        before = edit.start_line
        made += 1
    return "".join(lines), made
