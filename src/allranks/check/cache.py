"""Reports kept by content: the same program under the same configuration and version is not read twice.

A file a report, under the hash of everything that it was made from. Many processes may use one folder: a
report is written aside and moved into place, and one that cannot be understood counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs

from .. import __version__
from ..findings import BlindSpot, Evidence, Finding, Location, Report, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TELLING = re.compile(r"(?i)\.(py|md|sh|bash|slurm|sbatch|rst|txt|ya?ml|job)$|^[^.]+$")
"""Names that can change what is found: modules, packages, and documents that say how a script is started."""

LIMIT_BYTES = 64 * 1024 * 1024
"""The oldest reports go when the folder grows beyond this."""

_SUFFIX = ".report"


class Entry(msgspec.Struct):
    """A file of the cache: the report, and the files beside those asked for that it was made from."""

    report: Report
    read: dict[str, str]


def default_folder() -> Path:
    """The folder of the cache where the user named none."""
    return Path(platformdirs.user_cache_dir("allranks", appauthor=False)) / "check"


def digest(data: bytes) -> str:
    """The hash by which contents are told apart."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def content(path: str | Path) -> str:
    """The digest of a file's content; of nothing where it cannot be read, which is a content too."""
    try:
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _tool() -> str:
    """What tells this allranks from others: version, Python, and its own files, for those who change them."""
    package = Path(__file__).parent.parent
    files = sorted(p for p in package.rglob("*") if p.suffix in (".py", ".toml"))
    stamps = [f"{p}:{(s := p.stat()).st_mtime_ns}:{s.st_size}" for p in files]
    return digest("\n".join([__version__, sys.version, *stamps]).encode("utf-8", "surrogateescape"))


def key(question: Iterable[str], files: Iterable[Path], texts: Mapping[Path, str]) -> str:
    """The name of a report: what was asked, of which files, with which content (`texts` first).

    The names of the modules beside them are part of it: a new one can change what they import.
    """
    parts = [_tool(), os.getcwd(), *question]
    folders = set()
    for file in files:
        folders.add(file.parent)
        text = texts.get(file)
        same = content(file) if text is None else digest(text.encode("utf-8", "surrogateescape"))
        parts.append(f"{file}\0{same}")
    for folder in sorted(folders):
        with contextlib.suppress(OSError):
            parts += sorted(name for name in os.listdir(folder) if _TELLING.search(name))
    return digest("\n".join(parts).encode("utf-8", "surrogateescape"))


class Cache:
    """A folder of reports. Nothing that goes wrong with it stops a check."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> Report | None:
        """The report kept as `name`, if every other file that it was made from is still the same."""
        path = self._folder / f"{name}{_SUFFIX}"
        try:
            entry = msgspec.msgpack.decode(path.read_bytes(), type=Entry)
            if any(content(file) != same for file, same in entry.read.items()):
                return None
            with contextlib.suppress(OSError):
                os.utime(path)  # the clean-up spares what was of use lately
            return _revived(entry.report)
        except (OSError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return None

    def put(self, name: str, report: Report, read: Iterable[Path]) -> None:
        """Keeps `report` as `name`; `read` are the files, beside those in the name, that it was made from."""
        entry = Entry(report, {str(path): content(path) for path in read})
        temporary = ""
        try:
            data = msgspec.msgpack.encode(entry, enc_hook=str)
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".new")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self._folder / f"{name}{_SUFFIX}")
            self._clean()
        except (OSError, msgspec.MsgspecError, ValueError, TypeError, UnicodeError):
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _clean(self) -> None:
        """Removes the reports least lately of use until the folder is within its limit."""
        kept = []
        with os.scandir(self._folder) as entries:
            for item in entries:
                if item.name.endswith((_SUFFIX, ".new")):
                    with contextlib.suppress(OSError):
                        status = item.stat()
                        kept.append((status.st_mtime_ns, status.st_size, item.path))
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= LIMIT_BYTES:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= size


def _revived(report: Report) -> Report:
    """`report` with the sentences inside sentences, which the form on disk does not tell from tables."""

    def text(sentence: Text | None) -> Any:
        return sentence and Text(sentence.template, {k: value(v) for k, v in sentence.values.items()})

    def value(held: Any) -> Any:
        if isinstance(held, dict) and held.keys() == {"template", "values"}:
            return text(Text(held["template"], held["values"]))
        return tuple(held) if isinstance(held, list) else held

    def place(location: Location) -> Location:
        return replace(location, role=text(location.role))

    def evidence(item: Evidence) -> Evidence:
        return replace(item, title=text(item.title), location=item.location and place(item.location))

    def finding(one: Finding) -> Finding:
        return replace(
            one,
            message=text(one.message),
            fix=text(one.fix),
            condition=text(one.condition),
            location=one.location and place(one.location),
            related=tuple(map(place, one.related)),
            call_path=tuple(map(place, one.call_path)),
            evidence=tuple(map(evidence, one.evidence)),
        )

    def blind_spot(spot: BlindSpot) -> BlindSpot:
        return replace(spot, message=text(spot.message))

    report.findings = list(map(finding, report.findings))
    report.suppressed = list(map(finding, report.suppressed))
    report.blind_spots = list(map(blind_spot, report.blind_spots))
    return report
