"""Finds flight-recorder dumps among files and reads them into a `JobTrace`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...findings import BlindSpot, say
from ...world import WORLD_GROUP
from .columns import GroupConfig, RankTrace, clean
from .entries import Book, EntryReader
from .job import JobTrace

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 256 * 1024 * 1024
"""The largest file that is read as a dump: 100 times that of a full default buffer with stacks."""
MAX_RANKS = 1_000_000
"""A rank that is larger is no rank."""
_TOO_SHORT = 64
"""Bytes within which torch's own dumps have not come to a word that tells them."""
_KEYS = (
    b"pg_config",
    b"pg_status",
    b"profiling_name",
    b"collective_seq_id",
    b"comm_lib_version",
    b"nccl_comm_state",
)
_RANK = re.compile(r"(?:rank|trace|dump|fr)[-_.]?(\d+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_NO_DUMP = re.compile(
    r"\.(log|out|err|txt|py|toml|yaml|yml|csv|pt|pth|bin|safetensors|npy|npz)$", re.IGNORECASE
)

Progress = Callable[[int, int], None]
"""Called with the number of files read so far, and of all."""


def is_dump(path: Path) -> bool:
    """True when a file looks like a flight-recorder dump, by its first bytes; or, when it has too few of them, by its
    name (a rank that dies while it dumps leaves an empty file)."""
    try:
        with open(path, "rb") as file:
            head = file.read(65_536)
    except OSError:
        return False
    pickled = head[:1] == b"\x80" and head[1:2] <= b"\x05"
    if not head.strip(b"\0") or (pickled and len(head) < _TOO_SHORT):
        named = _RANK.search(path.name)
        return named is not None and not _NO_DUMP.search(path.name) and named.end() == len(path.name)
    if pickled:
        return any(key in head[:8192] for key in _KEYS)
    return head.lstrip()[:1] in (b"{", b"[") and any(b'"%b"' % key in head for key in _KEYS)


def find_dumps(paths: Iterable[Path]) -> list[Path]:
    """The dumps among `paths` and below the folders among them."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [p for p in sorted(path.rglob("*")) if p.is_file() and is_dump(p)]
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def rank_of(path: Path) -> int | None:
    """The rank in a dump's name (`nccl_trace_rank_7`, `trace7.json`, `comm_lib_trace_rank_7_1699`), None without."""
    named = _RANK.search(path.name)
    if named is not None:
        return int(named[1])
    digits = _DIGITS.findall(path.name)
    return int(digits[-1]) if digits else None


def with_ranks(paths: list[Path]) -> tuple[list[tuple[int, Path]], list[BlindSpot]]:
    """The files by rank, and what was passed over. Of several dumps of one rank the newest counts: a dump is written
    again at every timeout."""
    newest: dict[int, Path] = {}
    spots: list[BlindSpot] = []
    older = 0
    for path in paths:
        rank = rank_of(path)
        if rank is None or rank >= MAX_RANKS:
            spots.append(BlindSpot("dump-without-rank", say("{path}: no rank in the file's name", path=path)))
            continue
        other = newest.setdefault(rank, path)
        if other is not path:
            older += 1
            newest[rank] = max(other, path, key=_age)
    if older:
        message = say("{count} older dumps of ranks that dumped several times were passed over", count=older)
        spots.append(BlindSpot("dump-repeated", message, count=older))
    return sorted(newest.items()), spots


def _age(path: Path) -> tuple[float, bool]:
    """The minute in which a file was written; of one minute, pickles after JSON, which has no frames."""
    try:
        with open(path, "rb") as file:
            return path.stat().st_mtime // 60, file.read(1) == b"\x80"
    except OSError:
        return 0.0, False


def read_part(files: list[tuple[int, Path]], progress: Progress | None = None, total: int = 0) -> JobTrace:
    """The trace of the ranks in `files`: what is done to one part of a job, wherever it runs."""
    job = JobTrace()
    book = Book(job.table)
    ranks: dict[str, tuple[int, ...] | None] = {}
    for count, (rank, path) in enumerate(files, 1):
        trace = RankTrace(rank, str(path))
        _read_file(trace, path, book, ranks)
        trace.fold(job.table)
        job.add(trace)
        if progress is not None and (count % 64 == 0 or count == len(files)):
            progress(count, total or len(files))
    return job


def _read_file(trace: RankTrace, path: Path, book: Book, ranks: dict[str, tuple[int, ...] | None]) -> None:
    try:
        status = path.stat()
        trace.written_ns = status.st_mtime_ns
        if status.st_size > MAX_BYTES:
            raise OSError(f"larger than {MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        trace.problem, trace.readable = say("cannot be read: {error}", error=error), False
        return
    if not data.strip(b"\0"):
        trace.problem, trace.readable = say("empty"), False
    elif data[:1] == b"\x80":
        _describe(trace, EntryReader(data, trace, book).read(), ranks)
    else:
        from .json_dump import read_json  # only where there is JSON: it makes a decoder

        _describe(trace, read_json(data, trace, book.table), ranks)


def _describe(trace: RankTrace, dump: dict[str, Any], ranks: dict[str, tuple[int, ...] | None]) -> None:
    """Takes over what a dump says beside its entries."""
    trace.version = _short(dump.get("version"))
    trace.comm_lib_version = _short(dump.get("comm_lib_version"))
    config = dump.get("pg_config")
    for key, value in config.items() if isinstance(config, dict) else ():
        described = value if isinstance(value, dict) else {"ranks": value}
        name = _short(described.get("name", key))
        if name:  # gloo writes one group without a name
            members = _ranks(described.get("ranks"), ranks)
            trace.groups[name] = GroupConfig(name, _short(described.get("desc")), members)
    status = dump.get("pg_status")
    for key, value in status.items() if isinstance(status, dict) else ():
        last = value.get("last_enqueued_collective") if isinstance(value, dict) else None
        # The key is the rank's own count of groups. Only the first is sure to be the same group everywhere.
        if _short(key) == WORLD_GROUP and re.fullmatch(r"\d{1,18}", _short(last)):
            trace.enqueued[WORLD_GROUP] = int(_short(last))


def _short(value: Any) -> str:
    """A name or number as text. Nothing else has one: the text of nested lists that share parts has no bound."""
    return clean(str(value)[:200]) if type(value) is str or type(value) is int else ""


def _ranks(value: Any, known: dict[str, tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The ranks of a group, written as a list or as the text of one; None for none."""
    if isinstance(value, list):
        value = " ".join(str(rank) for rank in value[:MAX_RANKS] if type(rank) is int)
    if not isinstance(value, str):
        return None
    if value not in known:
        numbers = [int(number[:9]) for number in _DIGITS.findall(value[: 8 * MAX_RANKS])]
        believable = all(number < MAX_RANKS for number in numbers)
        known[value] = (tuple(dict.fromkeys(numbers)) or None) if believable else None
    return known[value]
