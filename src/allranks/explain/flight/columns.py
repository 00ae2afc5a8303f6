"""Flight-recorder entries as columns: what one rank called in each group, eight to twenty bytes a call.

The recorder writes a dictionary per call. Its fields differ between versions (`seq_id` and `time_created_us` in the
first, `process_group` and `p2p_seq_id` later) and between backends (gloo never says "completed", only `retired`);
here they become one form. Distinct calls are interned: a column holds their numbers in a `Table`.
Source of the field names: torch/csrc/distributed/c10d, TraceUtils.h (torch 2.2-2.4), FlightRecorder.hpp (2.5-2.14).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ...findings import Text

COMPLETED, RETIRED = 1, 2
_STATES = (0, RETIRED, COMPLETED)
_ENDED, _ENDED_UNSAID = bytes.maketrans(b"\2", b"\0"), bytes.maketrans(b"\2", b"\1")
Sizes = tuple[tuple[int, ...], ...]
UNKNOWN = 0
"""The number of a call that was made but is not in the dump."""
MAX_TENSORS = 65_536
"""Tensors of one call, and dimensions of all of them together: more is not believable, and would take the memory."""
MAX_FRAMES = 512
TIMES_KEPT = 256
"""Positions of a group, counted from the end, of which the times are kept."""


class CodeLine(NamedTuple):
    """A stack frame as the recorder writes it."""

    path: str
    line: int
    function: str


class Call(NamedTuple):
    """One distinct call: what was called with which tensors, from where (`frames`, innermost first)."""

    op: str
    backend: str = ""
    input_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: Sizes = ()
    output_dtypes: tuple[str, ...] = ()
    frames: tuple[CodeLine, ...] = ()
    parts: tuple[Call, ...] = ()
    """The calls that were launched as one (`op` is then "coalesced")."""


class Table:
    """Calls by number; number 0 is a call that the dumps do not tell."""

    def __init__(self, calls: Iterable[Call] = (Call("?"),)) -> None:
        self.calls = list(calls)
        self.numbers = {call: number for number, call in enumerate(self.calls)}

    def number(self, call: Call) -> int:
        """The number of `call`, a new one if it has none yet."""
        found = self.numbers.get(call)
        if found is None:
            found = self.numbers[call] = len(self.calls)
            self.calls.append(call)
        return found


@dataclass(slots=True)
class Calls:
    """The calls of one rank in one group, in order. After `fold`, position `start + i` is `kinds[i]`."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("I"))
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    """Unix time of the call in ns, 0 where it is not known."""
    done: bytearray = field(default_factory=bytearray)
    """1 for a call that has ended, 0 for one that has not; `RETIRED` in the entries of a dump."""
    ends_unsaid: bool = False
    """True where the recorder never says "completed" (gloo): a call that failed or timed out looks like one that
    ended well."""
    start: int = 0
    times_start: int = 0
    """The position of the first time: only the latest times are kept."""

    def add(self, seq: int, kind: int, time_ns: int, done: int) -> None:
        """One more entry, as it stands in the dump."""
        self.seqs.append(seq)
        self.kinds.append(kind)
        self.times_ns.append(time_ns)
        self.done.append(done)

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.kinds)

    def at(self, position: int) -> int | None:
        """The number of the call at `position`, None where it was not made or is no longer held."""
        index = position - self.start
        return self.kinds[index] if 0 <= index < len(self.kinds) else None

    def time_at(self, position: int) -> int:
        """When the call at `position` was made, Unix time in ns; 0 where that is not known."""
        index = position - self.times_start
        return self.times_ns[index] if 0 <= index < len(self.times_ns) else 0

    def pending(self) -> int | None:
        """The first position that has not ended, or None."""
        index = self.done.find(0)
        return None if index < 0 else self.start + index

    def fold(self, table: Table) -> None:
        """Makes entries into positions: entries with one sequence number are one call (they were launched together),
        numbers that are missing between become calls that the dump does not tell. Old times are dropped."""
        seqs, self.seqs = self.seqs, array("q")
        if seqs:
            self.start = seqs[0]
            if seqs != array("q", range(seqs[0], seqs[0] + len(seqs))):
                self._fold_unordered(seqs, table)
        # Where "completed" is known, a call that was retired without it has timed out.
        self.ends_unsaid = RETIRED in self.done and COMPLETED not in self.done
        self.done = self.done.translate(_ENDED_UNSAID if self.ends_unsaid else _ENDED)
        self.trim()

    def trim(self) -> None:
        """Drops all but the latest times."""
        del self.times_ns[:-TIMES_KEPT]
        self.times_start = self.end - len(self.times_ns)

    def _fold_unordered(self, seqs: array[int], table: Table) -> None:
        entries: dict[int, list[int]] = {}
        for index, seq in enumerate(seqs):
            entries.setdefault(seq, []).append(index)
        last = max(entries)
        # A dump of active calls only can have one that began long before the others: the end is what counts.
        self.start = max(min(entries), last - 4 * len(entries))
        kinds, times, done = self.kinds, self.times_ns, self.done
        self.kinds, self.times_ns, self.done = array("I"), array("q"), bytearray()
        for seq in range(self.start, last + 1):
            at = entries.get(seq, [])
            self.kinds.append(_together(table, [kinds[i] for i in at]))
            self.times_ns.append(times[at[0]] if at else 0)
            self.done.append(min((done[i] for i in at), key=_STATES.index, default=COMPLETED))


def _together(table: Table, kinds: list[int]) -> int:
    if not kinds:
        return UNKNOWN
    if len(kinds) == 1:
        return kinds[0]
    parts = tuple(table.calls[kind] for kind in kinds)
    return table.number(Call("coalesced", parts[0].backend, frames=parts[0].frames, parts=parts))


class GroupConfig(NamedTuple):
    """A process group as a rank's dump describes it; `ranks` is None where the dump does not say (gloo)."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None


@dataclass(slots=True)
class RankTrace:
    """The dump of one rank."""

    rank: int
    path: str = ""
    written_ns: int = 0
    """When the file was written, Unix time in ns."""
    version: str = ""
    comm_lib_version: str = ""
    calls: dict[str, Calls] = field(default_factory=dict)
    """Collectives by group name."""
    p2p: dict[str, Calls] = field(default_factory=dict)
    """Point-to-point calls by group name, in the order in which they were made."""
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    enqueued: dict[str, int] = field(default_factory=dict)
    """The last sequence number by the rank's own id of the group (`pg_status`)."""
    problem: Text | None = None
    """Why the dump is not whole, None when it is."""
    readable: bool = True
    """False when nothing of the dump could be used."""
    oldest_ns: int = 0
    """When the oldest call was made that the dump still holds."""
    overflowed: bool = False
    """True when the recorder's buffer was full, so that older calls are gone."""

    def take(self, entry: Mapping[str, Any], table: Table) -> None:
        """Adds one entry of the dump; ValueError when it is none."""
        facts = Facts.of(entry)
        lane = self.lane(facts.group, facts.p2p)
        lane.add(facts.seq(entry), table.number(call_of(entry)), facts.time_ns(entry), facts.done)

    def lane(self, group: str, p2p: bool) -> Calls:
        """The columns of a group."""
        lanes = self.p2p if p2p else self.calls
        found = lanes.get(group)
        if found is None:
            found = lanes[group] = Calls()
        return found

    def fold(self, table: Table) -> None:
        """Makes the entries of every group into positions."""
        held = [calls for calls in (*self.calls.values(), *self.p2p.values()) if calls.seqs]
        self.overflowed = any(calls.seqs[0] > 1 for calls in held)
        self.oldest_ns = min((calls.times_ns[0] for calls in held), default=0)
        for calls in self.p2p.values():
            calls.seqs = array("q", range(len(calls.kinds)))
        for calls in held:
            calls.fold(table)

    def numbered_apart(self, group: str) -> bool:
        """False where sends and receives may have taken numbers of the collectives (before format 2)."""
        return group not in self.p2p or self.version >= "2"


@dataclass(frozen=True, slots=True)
class Facts:
    """What an entry says beside its call: where it belongs, whether it ended, and under which keys its numbers are."""

    group: str
    p2p: bool
    done: int
    seq_key: str
    time_key: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Facts:
        """Reads them from an entry of any version; ValueError when it has no name or number."""
        op = _op_name(entry)[0]
        recorded = entry.get("is_p2p")
        p2p = bool(recorded) if recorded is not None else op in ("send", "recv", "coalesced")
        keys = ("p2p_seq_id", "collective_seq_id", "seq_id") if p2p else ("collective_seq_id", "seq_id")
        seq_key = next((key for key in keys if type(entry.get(key)) is int), None)
        if seq_key is None:
            raise ValueError(entry)
        return cls(
            group=_group_name(entry),
            p2p=p2p,
            done=COMPLETED
            if entry.get("state") == "completed"
            else RETIRED
            if entry.get("retired") is True
            else 0,
            seq_key=seq_key,
            time_key="time_created_ns" if "time_created_ns" in entry else "time_created_us",
        )

    def seq(self, entry: Mapping[str, Any]) -> int:
        """The entry's sequence number in its group."""
        return _number(entry.get(self.seq_key))

    def time_ns(self, entry: Mapping[str, Any]) -> int:
        """When the call was made, Unix time in ns."""
        return _number(_number(entry.get(self.time_key)) * self.time_scale)

    @property
    def time_scale(self) -> int:
        """Nanoseconds in one unit of the entry's time."""
        return 1 if self.time_key == "time_created_ns" else 1000


def _number(value: Any) -> int:
    return value if type(value) is int and -(2**63) <= value < 2**63 else 0


def _group_name(entry: Mapping[str, Any]) -> str:
    name = entry.get("process_group", entry.get("pg_name"))
    if isinstance(name, tuple | list):
        name = name[0] if name else None
    return name if type(name) is str else str(_number(entry.get("pg_id")))


def _op_name(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """("all_reduce", "nccl", "") of `nccl:all_reduce`, ("send", "nccl", "0->1") of `nccl:send 0->1`."""
    name = entry.get("profiling_name")
    if type(name) is not str:
        raise ValueError(entry)
    backend, colon, rest = name.partition(":")
    op, _, peers = (rest if colon else name).partition(" ")
    return op, backend if colon else "", peers


def call_of(entry: Mapping[str, Any]) -> Call:
    """The call of an entry. ValueError when the entry is malformed."""
    op, backend, peers = _op_name(entry)
    return Call(
        op=clean(f"{op} {peers}" if peers else op),
        backend=clean(backend),
        input_sizes=sizes(entry.get("input_sizes")),
        input_dtypes=_words(entry.get("input_dtypes")),
        output_sizes=sizes(entry.get("output_sizes")),
        output_dtypes=_words(entry.get("output_dtypes")),
        frames=_frames(entry.get("frames")),
    )


def clean(text: str) -> str:
    """`text` without control characters, which a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def sizes(value: Any) -> Sizes:
    """Shapes as tuples; what is not a list of lists of integers is left out."""
    if not isinstance(value, list | tuple) or len(value) > MAX_TENSORS:
        return ()
    room = MAX_TENSORS
    found = []
    for shape in value:
        if not isinstance(shape, list | tuple) or len(shape) > room:
            return ()
        room -= len(shape)
        found.append(tuple(d for d in shape if type(d) is int))
    return tuple(found)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_TENSORS:
        return ()
    return tuple(clean(word) for word in value if type(word) is str)


def _frames(value: Any) -> tuple[CodeLine, ...]:
    if not isinstance(value, list | tuple):
        return ()
    found = []
    for frame in value[:MAX_FRAMES]:
        if isinstance(frame, Mapping):
            path, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
            if type(path) is str and type(line) is int:
                found.append(CodeLine(clean(path), line, clean(name) if type(name) is str else "?"))
    return tuple(found)
