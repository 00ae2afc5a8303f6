"""What a file is, by its content: a log, a flight-recorder dump, an error file of torchrun, stacks from py-spy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..errors import AllranksError
from ..findings import say
from .streams import peek

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MOST_FILES = 200_000
_LARGEST_ERROR_FILE = 16 * 1024 * 1024
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_STACKS = re.compile(rb"^Process \d+: .*\n(?:Python v.*\n)?", re.MULTILINE)
_THREAD = re.compile(rb"^Thread (?:0x)?[0-9A-Fa-f]+ \((?:active|idle)[^)]*\)", re.MULTILINE)
_PROGRAMS = frozenset([".py", ".ipynb"])
_SKIPPED = frozenset([".git", "__pycache__", "node_modules", ".venv"])
_NO_LOG = re.compile(
    r"\.(?:py|pyc|toml|ya?ml|cfg|ini|sh|md|rst|csv|tsv|parquet|arrow|npy|npz|pth?|bin|ckpt|safetensors|png|jpe?g|gif"
    r"|svg|pdf|html?|css|js|so|whl|zip|tar|tgz|jsonl|lock|ipynb|tfevents.*|wandb)$",
    re.IGNORECASE,
)
"""Names that no log bears; they count in folders only, a file that is named is read whatever its name."""


@dataclass(slots=True)
class Found:
    """Files by what they are; `programs` and `unread` were named by the user, the latter hold nothing that is known."""

    logs: list[Path] = field(default_factory=list)
    stacks: list[Path] = field(default_factory=list)
    errors: list[Path] = field(default_factory=list)
    dumps: list[Path] = field(default_factory=list)
    programs: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)


def sort_out(paths: Iterable[Path]) -> Found:
    """The files among `paths` and in the folders among them. Raises AllranksError for one that does not exist."""
    found = Found()
    for path in paths:
        if str(path) == "-":
            found.logs.append(path)
        elif path.is_dir():
            for file in _files(path):
                _place(file, found, named=False)
        elif path.exists():
            _place(path, found, named=True)
        else:
            raise AllranksError(
                "input-missing",
                say("there is no {path}", path=path),
                say("give a log, a folder of logs or dumps, or `-` for standard input"),
            )
    return found


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for path in sorted(folder.rglob("*"), key=_natural):
        if _SKIPPED.isdisjoint(path.parts) and not _NO_LOG.search(path.name) and path.is_file():
            count += 1
            if count > _MOST_FILES:
                return
            yield path


def _natural(path: Path) -> list[tuple[int, str | int]]:
    """rank_2 before rank_10."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d{1,12})", str(path))]


def _place(path: Path, found: Found, *, named: bool) -> None:
    if path.suffix in _PROGRAMS:
        found.programs.append(path)
        return
    if path.is_fifo():
        # A shell's <(command): what is read to look at it would be lost.
        found.logs.append(path)
        return
    head = peek(path)
    if _may_be_dump(path, head):
        found.dumps.append(path)
    elif is_error_file(path, head):
        found.errors.append(path)
    elif _THREAD.search(head) or (_STACKS.search(head) and b"Python v" in head):
        found.stacks.append(path)
    elif b"\0" in head and not head.startswith(_UTF16):
        if named:
            found.unread.append(path)
    elif head or named:
        found.logs.append(path)


def _may_be_dump(path: Path, head: bytes) -> bool:
    if head.strip(b"\0") and head.lstrip()[:1] not in (b"\x80", b"{", b"["):
        return False
    from .dumps import is_dump

    return is_dump(path)


def is_error_file(path: Path, head: bytes) -> bool:
    """True for the error.json that torch.distributed.elastic.multiprocessing.errors.record writes."""
    return (
        head.lstrip().startswith(b"{")
        and b'"message"' in head
        and (b'"extraInfo"' in head or "error" in path.name)
    )


def error_text(path: Path) -> tuple[str, float | None]:
    """The traceback or message in an error file, and when it was written (seconds since the year began, UTC).
    Empty when the file is damaged."""
    try:
        if path.stat().st_size > _LARGEST_ERROR_FILE:
            return "", None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return "", None
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return message, None
    if not isinstance(message, dict):
        return "", None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    return str(stack or message.get("message") or ""), _since_new_year(extra.get("timestamp"))


def _since_new_year(timestamp: object) -> float | None:
    try:
        moment = datetime.fromtimestamp(float(str(timestamp)), timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    clock = moment.hour * 3600 + moment.minute * 60 + moment.second
    return float(((moment.month - 1) * 31 + moment.day - 1) * 86_400 + clock)
