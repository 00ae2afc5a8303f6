"""From paths to a Report: reads the programs, asks every rule, sorts out what the rules say."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import BlindSpot, Edit, Evidence, Finding, Location, Report, say
from ..source.files import collector_at_rest, text_of
from ..source.program import Program
from . import suppressions
from .cache import Cache, key
from .discovery import python_files, shown
from .notebooks import Notebook, convert
from .rules import Rule, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..config import Config

    Progress = Callable[[int, int], None]

_DEPTH = 10_000
"""Python's recursion limit while rules run: generated code nests deeper than the usual 1000."""


def check(
    paths: Sequence[Path],
    config: Config,
    *,
    progress: Progress | None = None,
    texts: Mapping[Path, str] | None = None,
    cache: Path | None = None,
    edits: bool = False,
) -> Report:
    """What is wrong with the programs in `paths`, scripts, notebooks and folders, and what was not seen.

    `texts` stand for the content of files that lie on no disk (yet); `-` among the paths means all of them.
    `cache` is the folder of kept reports, if there is to be one; with `edits` findings carry the changes that
    mend them. `progress` is called with how much of how much is done. Raises AllranksError `path-missing` for
    a path that does not exist.
    """
    files = [
        Path(os.path.abspath(file)) for file in python_files([p for p in paths if str(p) != "-"], config)
    ]
    given = {Path(os.path.abspath(path)): text for path, text in (texts or {}).items()}
    if any(str(path) == "-" for path in paths):
        files += [path for path in given if path not in files]
    root = _root([*(path for path in paths if str(path) != "-"), *given])
    store = Cache(cache) if cache is not None else None
    name = key([repr(_decisive(config)), str(root), str(edits)], files, given) if store else ""
    report = store.get(name) if store else None
    if report is None:
        run = _Run(files, config, root, given)
        report = _unbounded(run, progress, edits)
        if store:
            store.put(name, report, run.read)
    return report


def _decisive(config: Config) -> Config:
    """`config` without what changes only how a report is shown."""
    return replace(config, fail_on=None, output_format=None, lang=None)


def _unbounded(run: _Run, progress: Progress | None, edits: bool) -> Report:
    """Judges and reports with room for deeply nested code."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        with collector_at_rest():
            run.judge(progress)
            return run.report(edits)
    finally:
        sys.setrecursionlimit(limit)


def _root(places: Sequence[Path]) -> Path:
    """The folder from which modules are looked for: the working folder where everything lies below it."""
    folders = [os.path.abspath(path if path.is_dir() else path.parent) for path in places]
    here = Path.cwd()
    below = all(Path(folder).is_relative_to(here) for folder in folders)
    # `allranks check src/train.py` sees what lies beside src; `allranks check src` is about src alone.
    if below and not any(path.is_dir() for path in places):
        return here
    try:
        return Path(os.path.commonpath(folders))
    except ValueError:  # different drives
        return here


class _Run:
    """One check: the program, and what has been found of it so far."""

    def __init__(self, files: list[Path], config: Config, root: Path, texts: Mapping[Path, str]) -> None:
        self.config = config
        self.files = files
        self.blind_spots: list[BlindSpot] = []
        self.found: list[Finding] = []
        self.notebooks: dict[Path, Notebook] = {}
        self.program = Program(root, files)
        for path, text in texts.items():
            self.program.provide(path, text)
        for file in self.files:
            if file.suffix == ".ipynb":
                self._open_notebook(file, texts)

    def _open_notebook(self, file: Path, texts: Mapping[Path, str]) -> None:
        text, error = (texts[file], None) if file in texts else text_of(file)
        try:
            notebook = convert(text)
        except (ValueError, RecursionError):
            self._note("unreadable-file", file, error or "not a notebook")
            notebook = Notebook("", ())
        self.notebooks[file] = notebook
        self.program.provide(file, notebook.text)

    def judge(self, progress: Progress | None) -> None:
        """Asks every rule that can find what is wanted; one that fails is a blind spot, the others go on."""
        wanted = [rule for rule in registered() if any(map(self.config.wants, rule.faults))]
        for done, rule in enumerate(wanted):
            if progress is not None:
                progress(done, len(wanted))
            self.found += self._ask(rule)

    def _ask(self, rule: Rule) -> list[Finding]:
        try:
            return list(rule.judge(self.program))
        except Exception as error:
            sentence = say(
                "the rule {rule} failed ({error}): nothing is known of {faults}; please report this",
                rule=rule.name,
                error=f"{type(error).__name__}: {error}"[:200],
                faults=", ".join(rule.faults),
            )
            self.blind_spots.append(BlindSpot("rule-failed", sentence))
            return []

    def report(self, edits: bool) -> Report:
        """What was found, each place once, in the order of files and lines; with the `edits` that mend it."""
        wanted = [finding for finding in _once(self.found) if self._wanted(finding)]
        comments = {
            str(path): suppressions.parse(self.program.read(path).text)
            for path in {*self.files, *(Path(f.location.path) for f in wanted if f.location)}
        }
        kept, hidden = suppressions.apply(wanted, comments)
        self._note_broken()
        spots = list(self.blind_spots)
        for path, marks in sorted(comments.items()):
            spots += suppressions.notes(shown(Path(path)), marks, self.config)
        return Report(
            "check",
            findings=[self._placed(self._mended(finding) if edits else finding) for finding in kept],
            blind_spots=spots,
            statistics={"files": len(self.files), "entries": len(self.program.entries)},
            suppressed=[self._placed(finding) for finding in hidden],
        )

    def _wanted(self, finding: Finding) -> bool:
        if finding.location is None:
            return self.config.wants(finding.fault)
        path = Path(finding.location.path)
        if not self.config.wants(finding.fault, path):
            return False
        return path in self.files or not any(map(self.config.excludes, _within(path, self.program.root)))

    @property
    def read(self) -> list[Path]:
        """What was read of the programs beside the files that were asked for."""
        parts = {path for entry in self.program.entries for path in self.program.closure(entry.path)}
        documents: dict[Path, object] = self.program.kept.get("commands", {})
        return sorted({*parts, *documents} - set(self.files))

    def _mended(self, finding: Finding) -> Finding:
        path = Path(finding.location.path) if finding.location else None
        if path is None or path in self.notebooks:
            return finding
        from .fix import propose  # LibCST takes longer to import than a script to check

        return propose(finding, self.program.read(path).text)

    def _note_broken(self) -> None:
        """Notes the files of the programs that could not be read as Python 3."""
        named = self.files if len(self.files) == 1 else []
        parts = {path for entry in self.program.entries for path in self.program.closure(entry.path)}
        for path in sorted({*parts, *named}):
            source = self.program.read(path)
            if source.tree is None:
                self._note("unreadable-file", path, source.error or "")

    def _note(self, slug: str, path: Path, error: str) -> None:
        sentence = say("{path} is passed over: {error}", path=shown(path), error=error)
        self.blind_spots.append(BlindSpot(slug, sentence))

    def _placed(self, finding: Finding) -> Finding:
        """`finding` with the paths that the user knows, and cells in notebooks."""

        def place(location: Location) -> Location:
            path = Path(location.path)
            notebook = self.notebooks.get(path)
            if notebook is None or location.line is None:
                return replace(location, path=shown(path))
            cell, line = notebook.place(location.line)
            return replace(location, path=shown(path), cell=cell, line=line, end_line=None)

        def evidence(item: Evidence) -> Evidence:
            return replace(item, location=place(item.location) if item.location else None)

        def edit(change: Edit) -> Edit:
            return replace(change, path=shown(Path(change.path)))

        return replace(
            finding,
            location=place(finding.location) if finding.location else None,
            related=tuple(map(place, finding.related)),
            call_path=tuple(map(place, finding.call_path)),
            evidence=tuple(map(evidence, finding.evidence)),
            edits=tuple(edit(change) for change in finding.edits if Path(change.path) not in self.notebooks),
        )


def _within(path: Path, root: Path) -> Iterator[Path]:
    """`path` and the folders that it lies in, below `root`."""
    yield path
    for folder in path.parents:
        if folder == root or not folder.is_relative_to(root):
            return
        yield folder


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each fault and line, the worst and surest, sorted by place."""
    best: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        place = finding.location
        key = (place.path if place else "", finding.fault, (place.line or 0) if place else 0)
        before = best.get(key)
        if before is None or _rank(finding) < _rank(before):
            best[key] = finding
    return sorted(best.values(), key=_order)


def _rank(finding: Finding) -> tuple[int, int, int]:
    """Smaller is better to show: worse, surer, reached by a shorter path."""
    confidence = ("proved", "measured", "inferred").index(finding.confidence.value)
    return -finding.severity.weight, confidence, len(finding.call_path)


def _order(finding: Finding) -> tuple[str, int, int, int, str]:
    place = finding.location
    if place is None:
        return "", 0, 0, -finding.severity.weight, finding.fault
    return place.path, place.line or 0, place.column or 0, -finding.severity.weight, finding.fault
