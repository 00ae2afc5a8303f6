"""What the bytes of dump entries have in common: which are constant, and where the numbers stand.

A `Shape` is learned from one entry that the pickle machine has read, a `Block` from a run of entries whose shapes
are known. Both are then recognised by comparing bytes, and their numbers are read with `struct`.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .columns import Calls, Facts
from .unpickle import Unpickler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .entries import EntryReader

_VARYING = (
    "record_id", "collective_seq_id", "p2p_seq_id", "seq_id", "op_id", "time_created_ns", "time_created_us",
    "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms",
)  # fmt: skip
_RANKS_OWN = ("thread_id", "thread_name")

_BYTES = {"B": 1, "H": 2, "i": 4, "I": 4, "q": 8, "8s": 8}

Fields = tuple[Any, ...]


class Slot(int):
    """A number, and where in the entry it stands: the offset of its bytes and their `struct` format."""

    offset: int
    format: str
    after: int
    """The offset after its bytes."""

    @classmethod
    def at(cls, value: int, offset: int, format: str) -> Slot:
        """`value`, found at `offset`."""
        slot = cls(value)
        slot.offset, slot.format, slot.after = offset, format, offset + _BYTES[format]
        return slot


@dataclass(slots=True)
class Next:
    """What came after an entry (or at the beginning of a file), the latest first."""

    shapes: list[Shape] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def note(self, shape: Shape) -> None:
        """`shape` came: try it first the next time."""
        if shape in self.shapes:
            self.shapes.remove(shape)
        self.shapes.insert(0, shape)
        del self.shapes[4:]


@dataclass(eq=False, slots=True)
class Shape:
    """The bytes that entries of one kind share."""

    size: int
    """Bytes of an entry."""
    unpack: Callable[[bytes, int], Fields]
    """The constant parts (at even places) and the numbers (at odd places) of the bytes at a position."""
    constants: tuple[bytes, ...]
    mask: bytes
    """Ones, and zeros for the bytes of every number that differs from entry to entry, but not the sizes."""
    wanted: list[Slot]
    """The numbers that are read from a block: the sequence number, the time, uses of what it memoized itself."""
    seq: Slot
    time: Slot
    seq_field: int
    time_field: int
    sizes: Callable[[Fields], Any]
    """Picks the sizes of the tensors."""
    objects: list[Any]
    """What the entry memoizes, in order."""
    put: Slot | None
    """The first memo index that it writes (the others follow); None when it memoizes without or nothing."""
    put_field: int
    own: list[tuple[int, Slot]]
    """Fields that are memo indexes of what the entry itself memoized, and which object that is."""
    gets: list[tuple[int, Any]]
    """What the entry takes from the memo, which must be the same in another file."""
    deepest: int
    """The largest memo index that it takes."""
    group: int | None
    """The memo index of the group's name, None when the name is part of the bytes."""
    facts: Facts
    entry: dict[str, Any]
    """The entry from which it was learned."""
    done: int
    scale: int
    """Nanoseconds in a unit of its time."""
    kinds: dict[Any, int] = field(default_factory=dict)
    """Numbers of calls by their sizes."""
    next: Next = field(default_factory=Next)
    bound: int = 0
    """The number of the file for which `calls` are the columns of the entry's group."""
    refused: int = 0
    """The number of the file in which these bytes mean something else."""
    calls: Calls = field(default_factory=Calls)


@dataclass(eq=False, slots=True)
class Lane:
    """The part of a block that belongs to one group."""

    shape: Shape
    """One of the shapes of this group; `shape.calls` are the columns."""
    seqs: Callable[[Fields], Fields]
    times: Callable[[Fields], Fields]
    kinds: array[int]
    done: bytes


@dataclass(eq=False, slots=True)
class Block:
    """The bytes that runs of entries share."""

    size: int
    mask: int
    value: int
    """The bytes as a number, with zeros where they vary."""
    unpack: Callable[[bytes, int], Fields]
    objects: list[Any]
    put_field: int | None
    own: list[tuple[int, int]]
    shapes: list[Shape]
    lanes: list[Lane]
    next: Next = field(default_factory=Next)

    def fits(self, data: bytes, pos: int) -> bool:
        """True when the bytes at `pos` are such a run."""
        return int.from_bytes(data[pos : pos + self.size], "little") & self.mask == self.value


class _Tracer(Unpickler):
    """Runs one entry again, with a `Slot` for every number and a note of every use of the memo."""

    get = -1

    def __init__(self, reader: EntryReader, begun: int, end: int) -> None:
        super().__init__(reader.data[begun:end] + b".")
        self.known = reader.memo
        self.base = reader.base
        self.puts: list[Slot] = []
        """The memo indexes that the entry writes; none where it memoizes without (protocol 4)."""
        self.got: list[int] = []
        """The memo indexes of earlier objects that it uses."""
        self.own: list[Slot] = []
        """Uses of what it memoized itself: which, counted from its first."""


def _number(code: int, offset: int, format: str) -> None:
    handler = Unpickler.handlers[code]

    def with_place(machine: Unpickler, pos: int) -> int:
        after = handler(machine, pos)
        value = machine.stack[-1]
        slot = Slot.at(value if type(value) is int else 0, pos + offset, format)
        if slot.after == after:
            machine.stack[-1] = slot
        return after

    _Tracer.handlers[code] = with_place


def _put(code: int, format: str) -> None:
    def with_place(machine: Unpickler, pos: int) -> int:
        assert isinstance(machine, _Tracer)
        slot = Slot.at(0, pos, format)
        machine.puts.append(slot)
        machine.memo.append(machine.stack[-1])
        return slot.after

    _Tracer.handlers[code] = with_place


def _get(code: int, format: str) -> None:
    def with_place(machine: Unpickler, pos: int) -> int:
        assert isinstance(machine, _Tracer)
        slot = Slot.at(0, pos, format)
        index = int.from_bytes(machine.data[pos : slot.after], "little")
        if index < machine.base:
            machine.got.append(index)
            machine.stack.append(machine.known[index])
        else:
            machine.own.append(Slot.at(index - machine.base, pos, format))
            machine.stack.append(machine.memo[index - machine.base])
        return slot.after

    _Tracer.handlers[code] = with_place


_Tracer.handlers = list(Unpickler.handlers)
for _code, _offset, _format in (
    (0x4B, 0, "B"),
    (0x4D, 0, "H"),
    (0x4A, 0, "i"),
    (0x8A, 1, "q"),
    (0x47, 0, "8s"),
):
    _number(_code, _offset, _format)  # BININT1, BININT2, BININT, LONG1, BINFLOAT
for _code, _format in ((0x71, "B"), (0x72, "I")):
    _put(_code, _format)  # BINPUT, LONG_BINPUT
for _code, _format in ((0x68, "B"), (0x6A, "I")):
    _get(_code, _format)  # BINGET, LONG_BINGET


class Varies:
    """Stands in the memo for an object of a recognised entry that is not the same in every such entry."""


VARIES = Varies()


def learn(reader: EntryReader, entry: dict[str, Any], begun: int, end: int) -> Shape | None:
    """The shape of the entry that the reader has just read, None when its like cannot be told by bytes alone."""
    tracer = _Tracer(reader, begun, end)
    traced = tracer.load()
    facts = Facts.of(entry)
    seq, time, dims = traced.get(facts.seq_key), traced.get(facts.time_key), _dims(traced)
    if any(type(number) is not Slot for number in (seq, time, *dims)):
        return None
    if tracer.puts and len(tracer.puts) != len(tracer.memo):
        return None
    varying = [traced[key] for key in _VARYING if type(traced.get(key)) is Slot]
    every = sorted((*varying, *dims, *tracer.puts, *tracer.own), key=lambda slot: slot.offset)
    slots = {slot.offset: slot for slot in every}
    place = {offset: 2 * index + 1 for index, offset in enumerate(slots)}
    layout = struct.Struct(_layout([(slot.offset, slot.format) for slot in slots.values()], end - begun, "s"))
    own_strings, group = _own_strings(reader, entry, tracer.got)
    sizes_at = {slot.offset for slot in dims}
    return Shape(
        size=end - begun,
        unpack=layout.unpack_from,
        constants=layout.unpack_from(reader.data, begun)[::2],
        mask=_mask(end - begun, [slot for slot in slots.values() if slot.offset not in sizes_at]),
        wanted=sorted({s.offset: s for s in (seq, time, *tracer.own)}.values(), key=lambda slot: slot.offset),
        seq=seq,
        time=time,
        seq_field=place[seq.offset],
        time_field=place[time.offset],
        sizes=itemgetter(*(place[slot.offset] for slot in dims)) if dims else _nothing,
        objects=_objects(reader.memo[reader.base :], entry),
        put=tracer.puts[0] if tracer.puts else None,
        put_field=place[tracer.puts[0].offset] if tracer.puts else 0,
        own=[(place[slot.offset], slot) for slot in tracer.own],
        gets=[(index, reader.memo[index]) for index in dict.fromkeys(tracer.got) if index not in own_strings],
        deepest=max(tracer.got, default=-1),
        group=group,
        facts=facts,
        entry=entry,
        done=facts.done,
        scale=facts.time_scale,
    )


def _objects(memoized: list[Any], entry: dict[str, Any]) -> list[Any]:
    """What entries of this shape memoize; what holds numbers that differ is not known before it is read."""
    differ = {id(entry)}
    for key in ("input_sizes", "output_sizes"):
        sizes = entry.get(key)
        if type(sizes) is list:
            differ |= {id(sizes), *map(id, sizes)}
    return [VARIES if id(value) in differ else value for value in memoized]


def _mask(size: int, slots: list[Slot]) -> bytes:
    mask = bytearray(b"\xff" * size)
    for slot in slots:
        mask[slot.offset : slot.after] = bytes(slot.after - slot.offset)
    return bytes(mask)


def join(run: list[tuple[Shape, int]], data: bytes, begun: int) -> Block:
    """The block of a run of entries, (shape, number of the call) each, that begin at `begun`."""
    read: list[tuple[int, str]] = []
    starts, at, memoized = [], 0, 0
    put: int | None = None
    own: list[tuple[int, int]] = []
    by_group: dict[tuple[int | None, str, bool], list[int]] = {}
    for index, (shape, _) in enumerate(run):
        starts.append(at)
        read += [(at + slot.offset, slot.format) for slot in shape.wanted]
        if shape.put is not None and put is None:
            put = at + shape.put.offset
            read.append((put, shape.put.format))
        own += [(at + slot.offset, memoized + slot) for _, slot in shape.own]
        group = "" if shape.group is not None else shape.facts.group
        by_group.setdefault((shape.group, group, shape.facts.p2p), []).append(index)
        at += shape.size
        memoized += len(shape.objects)
    read.sort()
    place = {offset: index for index, (offset, _) in enumerate(read)}
    mask = int.from_bytes(b"".join(shape.mask for shape, _ in run), "little")
    return Block(
        size=at,
        mask=mask,
        value=int.from_bytes(data[begun : begun + at], "little") & mask,
        unpack=struct.Struct(_layout(read, at, "x")).unpack_from,
        objects=[value for shape, _ in run for value in shape.objects],
        put_field=None if put is None else place[put],
        own=[(place[offset], which) for offset, which in own],
        shapes=list(dict.fromkeys(shape for shape, _ in run)),
        lanes=[_lane(run, starts, place, indexes) for indexes in by_group.values()],
    )


def _lane(run: list[tuple[Shape, int]], starts: list[int], place: dict[int, int], indexes: list[int]) -> Lane:
    return Lane(
        shape=run[indexes[0]][0],
        seqs=_pick([place[starts[i] + run[i][0].seq.offset] for i in indexes]),
        times=_pick([place[starts[i] + run[i][0].time.offset] for i in indexes]),
        kinds=array("I", [run[i][1] for i in indexes]),
        done=bytes(run[i][0].done for i in indexes),
    )


def _pick(places: list[int]) -> Callable[[Fields], Fields]:
    only = places[0]
    return itemgetter(*places) if len(places) > 1 else lambda fields: (fields[only],)


def _nothing(fields: Fields) -> None:
    return None


def _layout(numbers: list[tuple[int, str]], size: int, constant: str) -> str:
    """The `struct` format of bytes that are constant but for `numbers`, (offset, format) each."""
    parts, at = ["<"], 0
    for offset, format in numbers:
        parts.append(f"{offset - at}{constant}{format}")
        at = offset + _BYTES[format]
    return "".join(parts) + f"{size - at}{constant}"


def _dims(entry: Mapping[str, Any]) -> list[Any]:
    """The sizes of an entry's tensors, one after the other."""
    lists = [entry.get(key) for key in ("input_sizes", "output_sizes")]
    return [
        d for sizes in lists if type(sizes) is list for shape in sizes if type(shape) is list for d in shape
    ]


def with_sizes(entry: dict[str, Any], dims: list[int]) -> dict[str, Any]:
    """`entry` with other sizes."""
    rest = iter(dims)
    changed = dict(entry)
    for key in ("input_sizes", "output_sizes"):
        sizes = entry.get(key)
        if type(sizes) is list:
            changed[key] = [[next(rest) for _ in shape] if type(shape) is list else shape for shape in sizes]
    return changed


def _own_strings(reader: EntryReader, entry: dict[str, Any], got: list[int]) -> tuple[set[int], int | None]:
    """The memo indexes of strings that may differ from rank to rank without changing what the bytes mean, and that
    of the group's name. A string that the entry uses for something else as well is not among them."""
    name = entry.get("process_group")
    words = [entry.get(key) for key in _RANKS_OWN] + (list(name) if type(name) is tuple else [])
    once = {index for index in got if got.count(index) == 1}
    own = {index for index in once for word in words if word is reader.memo[index]}
    group = next((i for i in own if type(name) is tuple and name and name[0] is reader.memo[i]), None)
    return own, group
