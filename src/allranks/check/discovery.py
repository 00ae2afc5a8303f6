"""Which files to check: those named, and the Python below the folders named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AllranksError
from ..findings import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..config import Config

SUFFIXES = (".py", ".ipynb")


def python_files(paths: Iterable[Path], config: Config) -> list[Path]:
    """The files to check, sorted, each once: those named whatever they are called, and what folders hold.

    Folders and files that `config` excludes are passed over, except when they are named themselves. Raises
    AllranksError `path-missing` for a path that does not exist, `path-unreadable` for one that may not be read.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        try:
            os.stat(path)
        except FileNotFoundError as error:
            sentence = say("{path} does not exist", path=path)
            raise AllranksError(
                "path-missing", sentence, say("give a script, a notebook or a folder")
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            sentence = say("{path} cannot be read: {error}", path=path, error=reason)
            raise AllranksError(
                "path-unreadable",
                sentence,
                say("look at its permissions, or copy it to where you may read it"),
            ) from error
        for file in _below(path, config) if path.is_dir() else (path,):
            found.setdefault(_absolute(file), file)
    return sorted(found.values(), key=_absolute)


def _below(folder: Path, config: Config) -> Iterator[Path]:
    """Python files below `folder`; links to folders are not followed, so that no circle can hold us."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        full = _absolute(here)
        folders[:] = sorted(name for name in folders if not config.excludes(full / name))
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not config.excludes(full / name):
                file = here / name
                if file.is_file():  # a dangling link or a pipe is none
                    yield file


def _absolute(path: Path) -> Path:
    # Not `resolve`: a link is checked under the name by which it is imported.
    return Path(os.path.abspath(path))


def shown(path: Path) -> str:
    """`path` as a report names it: from the working folder where it lies below it, with forward slashes."""
    full = _absolute(path)
    here = Path.cwd()
    return (full.relative_to(here) if full.is_relative_to(here) else full).as_posix()
