"""Where the log names code that lies here: the statement because of which a rank did not come to a call.

The source is read, never run. It counts only where the lines that the log quotes are the lines of the file.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import Location, Text, say
from ..judge.parting import part
from ..judge.weigh import Cause, Side
from ..source import flow
from ..source.files import blocks
from ..source.program import Program
from ..world import CallKind, Frame, Signature, World
from .ranks import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .match import Incident
    from .raised import Raised

_LARGEST = 2_000_000
_LIKELY = (Cause.RANK_BRANCH, Cause.ESCAPE, Cause.ARMS, Cause.HANDLER, Cause.LOOP)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The statement at fault, and how it parts the ranks."""

    location: Location
    how: Text


class Sources:
    """The files of a log's frames as they are found here: under their own path, or by the path's last parts below the
    working folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = Program(folder, ())
        self._found: dict[str, Path | None] = {}
        self._named: dict[str, str] = {}
        """Paths of the log by those of the files here."""

    def find(self, path: str) -> Path | None:
        """The file here for a path of the log, or None."""
        if path not in self._found:
            self._found[path] = self._find(path)
        return self._found[path]

    def _find(self, path: str) -> Path | None:
        parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "..")]
        candidates = [Path(path), *(self.folder.joinpath(*parts[start:]) for start in range(len(parts)))]
        for candidate in candidates:
            try:
                if candidate.suffix == ".py" and candidate.is_file() and candidate.stat().st_size <= _LARGEST:
                    return candidate
            except (OSError, ValueError):
                continue
        return None

    def site(self, raised: Raised) -> tuple[Frame, ...]:
        """The user's frames with paths of files here; empty where one is missing, or differs from what the log
        quotes: another version of the code says nothing about this job."""
        found = []
        for frame in raised.frames:
            if not frame.user:
                continue
            path = self.find(frame.path)
            if path is None or not self._same(path, frame, raised.code):
                return ()
            self._named[str(path)] = frame.path
            found.append(replace(frame, path=str(path)))
        # The stack's own files: the outermost is the program, and the modules it imports are found from there.
        self.program = Program(self.folder, dict.fromkeys(Path(frame.path) for frame in found))
        return tuple(found)

    def at(self, frame: Frame, line: int, role: Text) -> Location:
        """A place with the path that the log uses."""
        path = self._named.get(frame.path, frame.path)
        return Location(path, line, function=frame.function or None, role=role)

    def _same(self, path: Path, frame: Frame, code: Sequence[str]) -> bool:
        lines = self.program.read(path).lines
        if not 1 <= frame.line <= len(lines):
            return False
        quoted = _quoted(frame, code)
        return quoted is None or quoted in lines[frame.line - 1]


def _quoted(frame: Frame, code: Sequence[str]) -> str | None:
    """The source line that a traceback shows below a frame, or None."""
    for at, text in enumerate(code[:-1]):
        if frame.path in text and f"line {frame.line}" in text:
            below = code[at + 1].strip()
            return below if below and not below.startswith("File ") else None
    return None


def narrow(
    waiting: Sequence[Incident], missing: tuple[int, ...], *, ended: bool, folder: Path
) -> Narrowed | None:
    """Why `missing` did not come to the call in which `waiting` stand; None where the source does not say."""
    sources = Sources(folder)
    for incident in waiting:
        site = sources.site(incident.error) if incident.error is not None else ()
        if not site:
            continue
        try:
            found = _branch(sources, site, incident, missing) or _work_before(sources, site, missing)
            return found or _way_out(sources, site, incident, missing, ended=ended)
        except Exception:  # strange source must not cost the verdict
            return None
    return None


def narrow_apart(one: Incident, other: Incident, folder: Path) -> Narrowed | None:
    """The statement at which two ranks parted that stand in different calls; None where the source does not say."""
    sources = Sources(folder)
    sides = []
    for incident in (one, other):
        site = sources.site(incident.error) if incident.error is not None else ()
        call = CallKind(Signature(incident.call or "collective"), site)
        sides.append(Side(tuple(sorted(incident.ranks)), site, call))
    if not all(side.site for side in sides):
        return None
    try:
        parting = part(World(root=str(folder)), sources.program, sides[0], sides[1])
    except Exception:  # strange source must not cost the verdict
        return None
    if parting.cause not in _LIKELY or parting.frame is None or parting.line is None:
        return None
    how = say("here the ranks may part")
    return Narrowed(sources.at(parting.frame, parting.line, how), how)


def _branch(
    sources: Sources, site: tuple[Frame, ...], incident: Incident, missing: tuple[int, ...]
) -> Narrowed | None:
    """A branch on the rank around the call that leaves the missing ranks out."""
    for frame in reversed(site):
        for around in flow.enclosing(sources.program, frame.path, frame.line):
            if around.kind not in ("if", "elif", "else", "while"):
                continue
            differs = flow.variation(sources.program, frame.path, around.line)
            if differs.ranks is None or not missing:
                continue
            come, stay = set(incident.ranks), set(missing)
            if around.kind == "else":
                come, stay = stay, come
            if come <= differs.ranks and stay.isdisjoint(differs.ranks):
                how = say(
                    "the branch `{test}` leaves {ranks} out of the call",
                    test=around.test,
                    ranks=named(missing),
                )
                return Narrowed(sources.at(frame, around.line, how), how)
    return None


def _work_before(sources: Sources, site: tuple[Frame, ...], missing: tuple[int, ...]) -> Narrowed | None:
    """Work before the call that only the missing ranks do."""
    frame = site[-1]
    if not missing:
        return None
    for branch in reversed(_branches_before(sources, frame)):
        differs = flow.variation(sources.program, frame.path, branch.lineno)
        only = differs.ranks == frozenset(missing)
        if differs.ranks is None and differs.cause == "rank" and len(missing) == 1:
            only = _asks_for(branch, missing[0])
        if only and not _communicates(sources, frame, branch):
            how = say("before the call stands work for {ranks} only", ranks=named(missing))
            return Narrowed(sources.at(frame, branch.lineno, how), how)
    return None


def _branches_before(sources: Sources, frame: Frame) -> list[ast.If]:
    """The branches that a rank has passed on its way to a line, in its function, in order."""
    function = sources.program.function_at(frame.path, frame.line)
    tree = sources.program.read(Path(frame.path)).tree
    block: list[ast.stmt] = list(getattr(function.node if function is not None else tree, "body", []))
    passed: list[ast.If] = []
    while block:
        passed += [
            one for one in block if isinstance(one, ast.If) and (one.end_lineno or one.lineno) < frame.line
        ]
        around = next(
            (one for one in block if one.lineno <= frame.line <= (one.end_lineno or one.lineno)), None
        )
        inner = [part for part in (blocks(around) if around is not None else []) if part]
        block = next(
            (part for part in inner if part[0].lineno <= frame.line <= (part[-1].end_lineno or 0)), []
        )
    return passed


def _communicates(sources: Sources, frame: Frame, branch: ast.stmt) -> bool:
    """True when a collective stands in the branch itself."""
    inside = range(branch.lineno, (branch.end_lineno or branch.lineno) + 1)
    made = (one for line in inside for one in flow.communicates(sources.program, frame.path, line))
    return any(one.location.path == frame.path and one.location.line in inside for one in made)


def _asks_for(branch: ast.If, rank: int) -> bool:
    """True for `if rank == N and ...`: the branch is for this rank, under more conditions that are not known."""
    test = branch.test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ast.Eq)
        and any(
            isinstance(side, ast.Constant) and side.value == rank for side in (part.left, *part.comparators)
        )
        for part in parts
    )


def _way_out(
    sources: Sources, site: tuple[Frame, ...], incident: Incident, missing: tuple[int, ...], *, ended: bool
) -> Narrowed | None:
    """A statement before or around the call by which some ranks pass it: a return, a break, a shorter loop."""
    call = CallKind(Signature(incident.call or "collective"), site)
    inner = Side(tuple(sorted(incident.ranks)), site, call)
    parting = part(World(root=str(sources.folder)), sources.program, inner, Side(missing, (), ended=ended))
    if parting.cause not in _LIKELY or parting.frame is None or parting.line is None:
        return None
    if parting.cause is Cause.LOOP and not parting.by_rank:
        return None
    how = say("a rank that takes this way does not come to the call")
    return Narrowed(sources.at(parting.frame, parting.line, how), how)
