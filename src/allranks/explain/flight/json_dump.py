"""Dumps as JSON (`_dump_fr_trace_json`): the same entries without frames, times 0 instead of none."""

from __future__ import annotations

from typing import Any

import msgspec

from ...findings import say
from .columns import Facts, RankTrace, Table, call_of


class Frame(msgspec.Struct, frozen=True):
    """A frame of an entry: only converted pickles have them."""

    filename: str = ""
    line: int = 0
    name: str = ""


class Entry(msgspec.Struct):
    """The fields that are used; all versions of the format."""

    profiling_name: str
    process_group: tuple[str, ...] | str | None = None
    pg_name: str | None = None
    pg_id: int = 0
    is_p2p: bool | None = None
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    seq_id: int | None = None
    time_created_ns: int | None = None
    time_created_us: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str | None = None
    retired: bool | None = None
    frames: tuple[Frame, ...] = ()

    def key(self) -> tuple[Any, ...]:
        """All but the numbers that differ from call to call."""
        return (
            self.profiling_name, self.process_group, self.pg_name, self.pg_id, self.is_p2p, self.input_sizes,
            self.input_dtypes, self.output_sizes, self.output_dtypes, self.state, self.retired, self.frames,
        )  # fmt: skip


class Dump(msgspec.Struct):
    """A dump of one rank."""

    version: str = ""
    comm_lib_version: str = ""
    pg_config: dict[str, Any] = {}
    pg_status: dict[str, Any] = {}
    entries: tuple[Entry, ...] = ()


_decoder = msgspec.json.Decoder(Dump | list[Entry])


def read_json(data: bytes, trace: RankTrace, table: Table) -> dict[str, Any]:
    """Reads a JSON dump into `trace`; returns what is beside the entries. Never raises: what is wrong with the dump
    becomes `trace.problem`."""
    dump: Dump | list[Entry] | None
    try:
        dump = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        dump = _without_end(data)
        trace.problem = say("cut off at byte {offset}", offset=len(data))
        if dump is None:
            trace.problem = say("not the JSON of a flight recorder: {error}", error=str(error)[:200])
            trace.readable = False
            return {}
    _take(dump.entries if isinstance(dump, Dump) else dump, trace, table)
    return msgspec.structs.asdict(dump) | {"entries": None} if isinstance(dump, Dump) else {}


def _without_end(data: bytes) -> Dump | list[Entry] | None:
    """A dump whose end is missing, up to its last whole entry."""
    end = data.rfind(b"},")
    for closing in (b"}]}", b"}]"):
        try:
            dump = _decoder.decode(data[:end] + closing) if end >= 0 else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return dump
    return None


def _take(entries: list[Entry] | tuple[Entry, ...], trace: RankTrace, table: Table) -> None:
    known: dict[tuple[Any, ...], tuple[Facts, int]] = {}
    for entry in entries:
        key = entry.key()
        found = known.get(key)
        if found is None:
            fields = {
                name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None
            }
            fields["frames"] = [msgspec.structs.asdict(frame) for frame in entry.frames]
            try:
                found = known[key] = Facts.of(fields), table.number(call_of(fields))
            except ValueError:
                continue
        facts, kind = found
        seq = getattr(entry, facts.seq_key) or 0
        time = (getattr(entry, facts.time_key) or 0) * facts.time_scale
        if -(2**63) <= seq < 2**63 and -(2**63) <= time < 2**63:
            trace.lane(facts.group, facts.p2p).add(seq, kind, time, facts.done)
