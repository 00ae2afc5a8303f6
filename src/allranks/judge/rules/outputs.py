"""Outputs: files that several ranks write, checkpoints and their keys, lines that every rank prints."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, say
from ..case import Case, ranks_text
from ..observed import everywhere
from ..ordered import apart, before
from ..turns import place_of
from . import Rules, found

if TYPE_CHECKING:
    from ...world import Site

RULES = Rules()

_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar")
_LASTING = ("events",)
"""Writers that keep their file open: no later call puts them in order."""
_MISSING = re.compile(
    r"FileNotFoundError|No such file|EOFError|PytorchStreamReader|UnpicklingError|BadZipFile|JSONDecodeError|"
    r"Ran out of input|file_size|not a ZIP archive|HeaderTooLarge|SafetensorError|invalid load key|No columns to parse"
)
"""What reading a file that is not there yet, or not whole, ends in."""

Rows = list[tuple[int, dict[str, Any]]]


def _place(case: Case, site: Site) -> Location | None:
    return case.place(site[-1]) if site else None


def _user(row: dict[str, Any]) -> bool:
    site = row.get("site")
    return bool(site and site[-1].user)


def _span(row: dict[str, Any]) -> tuple[int, int]:
    return row["time"], row.get("end") or row["time"]


def _written(case: Case) -> dict[str, Rows]:
    """Path -> who wrote it, of paths that several ranks of one node wrote."""
    paths: dict[str, Rows] = {}
    for rank, row in everywhere(case, "write"):
        if _user(row) and "x" not in row["mode"] and "r" not in row["mode"]:
            paths.setdefault(_log(row), []).append((rank, row))
    world = case.world
    return {
        path: writes
        for path, writes in paths.items()
        if len({rank for rank, _ in writes}) > 1 and len({world.ranks[rank].node for rank, _ in writes}) == 1
    }


def _log(row: dict[str, Any]) -> str:
    """What is one log: a file, or the folder of event files; one whose name is the moment it was made in counts as
    its folder."""
    if row["via"] == "events" and not row.get("given"):
        return os.path.dirname(str(row["path"]))
    return str(row["path"])


def _together(case: Case, writes: Rows) -> Rows:
    """The writes of different ranks that nothing puts in order, the first of each rank."""
    found: dict[int, dict[str, Any]] = {}
    for rank, row in writes:
        for other, theirs in writes:
            lasting = row["via"] in _LASTING
            if other != rank and (lasting or not apart(case.world, rank, _span(row), other, _span(theirs))):
                found.setdefault(rank, row)
                break
    return sorted(found.items())


def _is_checkpoint(writes: Rows) -> bool:
    return any(
        row["via"] in ("torch.save", "safetensors") or row["path"].endswith(_CHECKPOINTS) for _, row in writes
    )


def _conflicts(case: Case, checkpoints: bool) -> list[tuple[str, Rows]]:
    found = []
    for path, writes in _written(case).items():
        if _is_checkpoint(writes) is checkpoints:
            together = _together(case, writes)
            if len({rank for rank, _ in together}) > 1:
                found.append((path, together))
    return found


def _writers(case: Case, together: Rows) -> Evidence:
    lines = tuple(
        f"rank {rank}: {row['via']} at {' > '.join(case.stack_lines(row['site']))}" for rank, row in together
    )
    return Evidence("stack", say("who wrote it"), lines, tuple(rank for rank, _ in together))


def _others(case: Case, together: Rows) -> tuple[Location, ...]:
    places = {place_of(row["site"]): (rank, row) for rank, row in together[1:]}
    places.pop(place_of(together[0][1]["site"]), None)
    return tuple(
        case.place(row["site"][-1], role=say("rank {rank} writes it here", rank=rank))
        for rank, row in places.values()
    )


@RULES.finds("checkpoint-race")
def checkpoint_by_all(case: Case) -> Finding | None:
    """Several ranks write one checkpoint at the same time."""
    for path, together in _conflicts(case, True):
        ranks = tuple(rank for rank, _ in together)
        return found(
            "checkpoint-race",
            say("{ranks} write {path} at the same time: what is left may be torn",
                ranks=ranks_text(ranks), path=case.path(path)),
            _place(case, _site_of_save(together)), ranks=ranks, related=_others(case, together),
            evidence=(_writers(case, together),),
            fix=say("save on rank 0 only, and let the others wait at a barrier before they load it"),
        )  # fmt: skip
    return None


def _site_of_save(together: Rows) -> Site:
    """The line that saves: torch.save rather than the open before it."""
    row = next((row for _, row in together if row["via"] != "open"), together[0][1])
    return tuple(row["site"])


@RULES.finds("checkpoint-race")
def read_too_early(case: Case) -> Finding | None:
    """A rank reads a file while, or before, another writes it, and nothing puts them in order."""
    race = _early_read(case)
    return _race(case, *race) if race is not None else None


def _early_read(case: Case) -> tuple[str, tuple[int, dict[str, Any]], tuple[int, dict[str, Any]]] | None:
    """(path, (rank, write), (rank, read)) of the first such pair."""
    writes: dict[str, Rows] = {}
    for rank, row in everywhere(case, "write"):
        if _user(row) and row["via"] != "events":
            writes.setdefault(row["path"], []).append((rank, row))
    for reader, read in sorted(everywhere(case, "read"), key=lambda item: item[1]["via"] == "open"):
        written = writes.get(read["path"], [])
        if not _user(read) or any(rank == reader for rank, _ in written):
            continue
        for writer, write in written:
            world = case.world
            same = world.ranks[writer].node == world.ranks[reader].node
            if same and not apart(world, writer, _span(write), reader, _span(read)):
                return read["path"], (writer, write), (reader, read)
    return None


def _race(
    case: Case, path: str, writer: tuple[int, dict[str, Any]], reader: tuple[int, dict[str, Any]]
) -> Finding:
    (rank, write), (other, read) = writer, reader
    return found(
        "checkpoint-race",
        say("rank {other} reads {path}, which rank {rank} writes, and no call of all ranks stands between: it may "
            "not be there, or not be whole", other=other, path=case.path(path), rank=rank),
        _place(case, read["site"]), ranks=(other,),
        related=(case.place(write["site"][-1], role=say("rank {rank} writes it here", rank=rank)),),
        fix=say("let all ranks pass a barrier after the file is written and before it is read"),
    )  # fmt: skip


def unwhole(case: Case, died: Finding) -> Finding | None:
    """The cause of a rank that died of reading a file which another rank had not written yet."""
    states = case.world.ranks
    errors = [
        (rank, error)
        for rank in died.ranks
        if rank in states
        for error in states[rank].exceptions
        if not error.handled and _MISSING.search(f"{error.type}: {error.message}")
    ]
    if not errors:
        return None
    torn = checkpoint_by_all(case)
    if torn is not None and any(
        os.path.basename(path) in error.message for path, _ in _conflicts(case, True) for _, error in errors
    ):
        return torn  # one rank renames the file that all of them have just written
    race = _early_read(case)
    if race is not None and race[2][0] in died.ranks:
        return _race(case, *race)
    for rank, error in errors:
        text = error.message
        for other, row in everywhere(case, "write"):
            if (
                other == rank
                or not _user(row)
                or os.path.basename(row["path"]) not in text
                or not error.frames
            ):
                continue
            if before(case.world, other, _span(row)[1], rank, error.time_ns):
                continue
            read = {"site": tuple(f for f in error.frames if f.user) or error.frames, "time": error.time_ns}
            return _race(case, row["path"], (other, row), (rank, read))
    return None


@RULES.finds("load-on-one-device")
def load_on_one_device(case: Case) -> Finding | None:
    """Ranks on other accelerators load a checkpoint to the one that it was saved from."""
    loads: dict[tuple[str, tuple[int, ...]], Rows] = {}
    for rank, row in everywhere(case, "read", via="torch.load"):
        if not row["mapped"] and row["devices"] and row["device"] is not None:
            loads.setdefault((row["path"], tuple(row["devices"])), []).append((rank, row))
    for (path, devices), by in loads.items():
        wrong = tuple(sorted({rank for rank, row in by if row["device"] not in devices}))
        if wrong and len(devices) == 1:
            site = by[0][1].get("site", ())
            return found(
                "load-on-one-device",
                say("{ranks} load {path} onto device {device}, which belongs to another rank",
                    ranks=ranks_text(wrong), path=case.path(path), device=devices[0]),
                _place(case, site), ranks=wrong,
                fix=say('torch.load(path, map_location="cpu"), or the rank\'s own device'),
            )  # fmt: skip
    return None


@RULES.finds("state-dict-prefix")
def state_dict_prefix(case: Case) -> Finding | None:
    """A load that is not strict left out keys that differ from the model's by a prefix only."""
    for _rank, row in everywhere(case, "keys"):
        ranks = tuple(r for r, other in everywhere(case, "keys") if other["prefix"] == row["prefix"])
        message = (
            say("{count} of the model's keys stand in the file with the prefix {prefix}, and were not loaded: "
                "strict=False hides it", count=row["count"], prefix=repr(row["prefix"]))
            if row["in"] == "file"
            else say("{count} of the file's keys lack the model's prefix {prefix}, and were not loaded: strict=False "
                     "hides it", count=row["count"], prefix=repr(row["prefix"]))
        )  # fmt: skip
        return found(
            "state-dict-prefix", message, _place(case, row.get("site", ())), ranks=ranks,
            confidence=Confidence.PROVED, severity=Severity.ERROR,
            fix=say("save model.module.state_dict(), and load it into the model that is inside"),
        )  # fmt: skip
    return None


@RULES.finds("duplicate-writer")
def duplicate_writer(case: Case) -> Finding | None:
    """Several ranks write one log, event or result file."""
    for path, together in _conflicts(case, False):
        ranks = tuple(rank for rank, _ in together)
        folder = together[0][1]["via"] == "events"
        message = (
            say("{ranks} write event files into {path}: each is shown as one curve over the other",
                ranks=ranks_text(ranks), path=case.path(path))
            if folder
            else say("{ranks} write {path}: their lines mix, or the last one wins",
                     ranks=ranks_text(ranks), path=case.path(path))
        )  # fmt: skip
        return found(
            "duplicate-writer", message, _place(case, tuple(together[0][1]["site"])), ranks=ranks,
            related=_others(case, together), evidence=(_writers(case, together),),
            fix=say("write on rank 0 only, or give each rank a file of its own"),
        )  # fmt: skip
    return None


# Lines


_NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+")
_WORD = re.compile(r"[^\W\d_]{2,}")


@RULES.finds("output-from-every-rank")
def output_from_every_rank(case: Case) -> Finding | None:
    """One line of the program prints the same again and again on every rank, and does not say on which."""
    if len(case.world.ranks) < 2:
        return None
    places: dict[Any, dict[int, dict[str, Any]]] = {}
    for rank, row in everywhere(case, "line"):
        if _user(row):
            seen = places.setdefault((place_of(row["site"]), row["stream"]), {})
            if rank not in seen or seen[rank]["count"] < row["count"]:
                seen[rank] = row
    alike = [
        by
        for by in places.values()
        if len(by) == len(case.world.ranks) and _same_words(by) and not _labelled(case, by)
    ]
    if not alike:
        return None
    by = max(alike, key=lambda seen: min(row["count"] for row in seen.values()))
    count = min(row["count"] for row in by.values())
    row = by[min(by)]
    lines = tuple(f"rank {rank}: {text}" for rank, row in sorted(by.items()) for text in row["texts"][-2:])
    return found(
        "output-from-every-rank",
        say("each of {size} ranks prints this, {count} times and more", size=len(by), count=count),
        _place(case, row["site"]), ranks=tuple(by),
        related=_more(case, alike, by),
        evidence=(Evidence("log", say("what they print"), lines, tuple(by)),),
        fix=say("print on rank 0 only, or begin the line with the rank"),
    )  # fmt: skip


def _more(case: Case, alike: list[dict[int, dict[str, Any]]], chosen: Any) -> tuple[Location, ...]:
    rest = [by[min(by)]["site"] for by in alike if by is not chosen]
    return tuple(case.place(site[-1], role=say("and this")) for site in rest[:3])


def _same_words(by: dict[int, dict[str, Any]]) -> bool:
    words = [{tuple(_WORD.findall(text)) for text in row["texts"]} for row in by.values()]
    return bool(set.intersection(*words))


def _labelled(case: Case, by: dict[int, dict[str, Any]]) -> bool:
    """True when a number in the line tells the ranks apart: the rank, a device, a process id."""
    steady: list[dict[int, str]] = []
    for row in by.values():
        numbers = [_NUMBER.findall(text) for text in row["texts"]]
        width = min(map(len, numbers))
        steady.append(
            {
                i: numbers[0][i]
                for i in range(width)
                if len({n[i] for n in numbers}) == 1 and "." not in numbers[0][i]
            }
        )
    common = set.intersection(*(set(one) for one in steady))
    return any(len({one[i] for one in steady}) == len(steady) for i in common)
