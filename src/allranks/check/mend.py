"""`--fix` and `--diff`: edits made again and again, until a check finds nothing more that it can mend."""

from __future__ import annotations

import io
import os
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AllranksError
from ..findings import Edit, Finding, Report, say
from ..source.files import text_of
from .discovery import shown
from .engine import check
from .fix import apply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    """What was changed, how many findings are gone by it, and the report of what is left."""

    report: Report
    changes: list[Change] = field(default_factory=list)
    gone: int = 0


def mend(
    paths: Sequence[Path],
    config: Config,
    *,
    write: bool,
    progress: Progress | None = None,
    texts: Mapping[Path, str] | None = None,
) -> Mended:
    """Mends what is safe to mend in `paths`; files change on disk only with `write`, those in `texts` never.

    A mend stays only if a check of the mended program agrees: what was found is gone, and nothing came in its
    place. Raises AllranksError `file-unwritable` when a file cannot be written, after those before it have been.
    """
    bench = _Bench(paths, config, {os.path.abspath(path): text for path, text in (texts or {}).items()})
    report = check(paths, config, progress=progress, texts=texts, edits=True)
    for _ in range(_ROUNDS):
        open_ = [f for f in report.findings if f.edits and _key(f) not in bench.refused]
        if not open_:
            break
        after = bench.attempt(report, open_)
        if after is None and len(open_) > 1:
            # Together they did not agree; each for itself may.
            for finding in open_:
                after = bench.attempt(report, [finding])
                if after is not None:
                    break
                bench.refused.add(_key(finding))
        if after is None:
            bench.refused.update(map(_key, open_))
        else:
            report = after
    changed = [name for name in sorted(bench.now) if bench.now[name] != bench.before[name]]
    if write:
        for name in changed:
            if name not in bench.given:
                _write(Path(name), bench.now[name])
    changes = [Change(shown(Path(name)), bench.before[name], bench.now[name]) for name in changed]
    return Mended(report, changes, bench.gone)


class _Bench:
    """The files that are being mended: as they were, and as they are now."""

    def __init__(self, paths: Sequence[Path], config: Config, given: dict[str, str]) -> None:
        self.paths = paths
        self.config = config
        self.given = given
        self.before: dict[str, str] = dict(given)
        self.now: dict[str, str] = dict(given)
        self.refused: set[tuple[str, str, str]] = set()
        self.gone = 0

    def attempt(self, report: Report, findings: Sequence[Finding]) -> Report | None:
        """Makes the edits of `findings`; the report afterwards, or None when it is no better: then they are undone."""
        trial = dict(self.now)
        for name, edits in _by_file(findings).items():
            if name not in trial:
                text, error = text_of(Path(name))
                if error is not None:
                    return None
                self.before[name] = self.now[name] = trial[name] = text
            trial[name] = apply(trial[name], edits)
        texts = {Path(name): text for name, text in trial.items()}
        after = check(self.paths, self.config, texts=texts, edits=True)
        if not _better(report, after):
            return None
        self.now = trial
        self.gone += len(report.findings) - len(after.findings)
        return after


def _key(finding: Finding) -> tuple[str, str, str]:
    """What a finding is known by when lines have moved."""
    place = finding.location
    return finding.fault, place.path if place else "", str(finding.message)


def _better(before: Report, after: Report) -> bool:
    """True when less is found than before, and nothing that was not there, unless it can be mended in turn."""
    if len(after.blind_spots) > len(before.blind_spots):
        return False
    old, new = (Counter(_key(f)[:2] for f in report.findings) for report in (before, after))
    came = new - old
    mendable = Counter(_key(f)[:2] for f in after.findings if f.edits)
    return bool(old - new) and not came - mendable


def _by_file(findings: Iterable[Finding]) -> dict[str, list[Edit]]:
    """The edits of findings by the absolute path of their file: of those that touch the same lines in two ways, the
    first finding's, and all of a finding or none."""
    edits: dict[str, list[Edit]] = {}
    for finding in findings:
        taken = {edit for held in edits.values() for edit in held}
        if any(_collides(edit, other) for edit in finding.edits for other in taken):
            continue
        for edit in finding.edits:
            if edit not in taken:
                edits.setdefault(os.path.abspath(edit.path), []).append(edit)
    return edits


def _collides(one: Edit, other: Edit) -> bool:
    same = one.path == other.path and one.start_line <= other.end_line and other.start_line <= one.end_line
    return same and one != other


def _write(path: Path, after: str) -> None:
    """Writes `after` with the encoding and line ends that the file has."""
    try:
        data = path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = after.replace("\n", "\r\n") if b"\r\n" in data else after
        path.write_bytes(text.encode(encoding))
    except (OSError, UnicodeError, SyntaxError) as error:
        sentence = say("{path} cannot be written: {error}", path=shown(path), error=error)
        raise AllranksError(
            "file-unwritable", sentence, say("make it writable, or look at the edits with --diff")
        ) from error
