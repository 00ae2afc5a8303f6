"""`--fix` and `--diff`: edits made again and again, until a check finds nothing more that it can mend."""

from __future__ import annotations

import io
import os
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AllranksError
from ..findings import Edit, Report, say
from ..source.files import text_of
from .discovery import shown
from .engine import check
from .fix import apply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..config import Config
    from .engine import Progress

_ROUNDS = 10
"""One mend can make room for the next; more rounds than this would be a circle."""


@dataclass(frozen=True, slots=True)
class Change:
    """The text of a file before and after; `path` as a report names it."""

    path: str
    before: str
    after: str


@dataclass(slots=True)
class Mended:
    """What was changed, in how many places, and the report of what is left."""

    report: Report
    changes: list[Change] = field(default_factory=list)
    edits: int = 0


def mend(
    paths: Sequence[Path],
    config: Config,
    *,
    write: bool,
    progress: Progress | None = None,
    texts: Mapping[Path, str] | None = None,
) -> Mended:
    """Mends what is safe to mend in `paths`; files change on disk only with `write`, those in `texts` never.

    Raises AllranksError `file-unwritable` when a file cannot be written, after those before it have been.
    """
    given = {os.path.abspath(path): text for path, text in (texts or {}).items()}
    before: dict[str, str] = dict(given)
    now: dict[str, str] = dict(given)
    total = 0
    report = check(paths, config, progress=progress, texts=texts, edits=True)
    for _ in range(_ROUNDS):
        made = 0
        for name, edits in _by_file(report).items():
            if name not in now:
                text, error = text_of(Path(name))
                if error is not None:
                    continue
                before[name] = now[name] = text
            now[name], count = apply(now[name], edits)
            made += count
        if not made:
            break
        total += made
        report = check(paths, config, texts={Path(name): text for name, text in now.items()}, edits=True)
    changed = [name for name in sorted(now) if now[name] != before[name]]
    if write:
        for name in changed:
            if name not in given:
                _write(Path(name), now[name])
    return Mended(report, [Change(shown(Path(name)), before[name], now[name]) for name in changed], total)


def _by_file(report: Report) -> dict[str, list[Edit]]:
    """The edits of all findings by the absolute path of their file."""
    edits: dict[str, list[Edit]] = {}
    for finding in report.findings:
        for edit in finding.edits:
            edits.setdefault(os.path.abspath(edit.path), []).append(edit)
    return edits


def _write(path: Path, after: str) -> None:
    """Writes `after` with the encoding and line ends that the file has."""
    try:
        data = path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = after.replace("\n", "\r\n") if b"\r\n" in data else after
        path.write_bytes(text.encode(encoding))
    except (OSError, UnicodeError, SyntaxError) as error:
        sentence = say("{path} cannot be written: {error}", path=shown(path), error=error)
        raise AllranksError("file-unwritable", sentence) from error
