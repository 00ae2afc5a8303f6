"""From a pickled dump to columns, at a fraction of a microsecond to a few an entry.

A job makes the same calls over and over, so the bytes of one entry are those of an earlier one but for some numbers:
times, sequence numbers, memo indexes. What the pickle machine has read once is recognised the next time
(`shapes`), single entries and whole runs of them, in the same file and in those of the other ranks. What no shape
fits goes through the machine.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from ...findings import say
from .columns import Calls, RankTrace, Table, call_of
from .shapes import VARIES, Block, Fields, Next, Shape, join, learn, with_sizes
from .unpickle import CutOffError, RefusedError, Unpickler

MAX_SHAPES = 4096
"""Shapes and blocks held at a time, some 5 KB each."""
RUN, SHORTEST_RUN = 64, 8
"""Entries in a block."""
ENOUGH = 256
"""Entries after which a file must have been recognised more often than not, or it is read by the machine alone."""
_EMPTY_DICT, _SETITEMS = 0x7D, 0x75


class _AgainError(Exception):
    """An entry refers to a part of an earlier one that was recognised without being read."""


class Book:
    """The shapes that the files of a job have in common, and the table of their calls."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.shapes: dict[tuple[int, tuple[bytes, ...]], Shape] = {}
        self.blocks = 0
        self.files = 0
        self.first = Next()
        """What files begin with."""

    def add(self, shape: Shape) -> Shape:
        """The shape of this book that is equal to `shape`, or `shape` itself."""
        if len(self.shapes) >= MAX_SHAPES:
            self.shapes.clear()
            self.first.shapes.clear()
            self.first.blocks.clear()
            self.blocks = 0
        key = (shape.size, shape.constants)
        known = self.shapes.get(key)
        if known is None or known.gets != shape.gets or known.group != shape.group:
            known = self.shapes[key] = shape
        return known


class EntryReader(Unpickler):
    """Reads one dump into a `RankTrace`. `read` returns the rest of the dump: version, groups, status."""

    def __init__(self, data: bytes, trace: RankTrace, book: Book) -> None:
        super().__init__(data)
        self.trace = trace
        self.book = book
        book.files += 1
        self.file = book.files
        self.next = book.first
        self.mine: list[Shape] = []
        """The shapes that occurred in this file."""
        self.single: list[tuple[Shape, int]] = []
        """The run of entries that were recognised one by one."""
        self.run_start: tuple[Next, int, int] = (book.first, 0, 0)
        """What that run came after, where it begins, and the size of the memo there."""
        self.begun: int | None = None
        """Where the entry begins that the machine is reading."""
        self.base = 0
        """Objects memoized before that entry."""
        self.malformed_entries = 0
        self.plain = False
        """True when no entry is to be recognised by its bytes: the file is not made that way."""
        self.read_by_machine = 0
        self.recognised = 0

    def read(self) -> dict[str, Any]:
        """Runs the dump through. Never raises: what is wrong with it becomes `trace.problem`."""
        try:
            return self._read()
        finally:
            for shape in self.mine:  # a shape may live longer than what is known of this file
                shape.calls = Calls()

    def _read(self) -> dict[str, Any]:
        try:
            dump = self.load()
        except _AgainError:
            self.trace.calls.clear()
            self.trace.p2p.clear()
            again = EntryReader(self.data[: self.end], self.trace, self.book)
            again.plain = True
            return again.read()
        except CutOffError:
            self.trace.problem = say("cut off at byte {offset}", offset=self.end)
            dump = self._unfinished()
        except RefusedError as error:
            self.trace.problem = error.reason
            self.trace.readable = False
            return {}
        if isinstance(dump, list):  # torch 2.2.0 wrote the entries alone
            dump = {"entries": dump}
        if not isinstance(dump, dict):
            self.trace.problem, self.trace.readable = say("not a flight-recorder dump"), False
            return {}
        left = dump.pop("entries", None)
        for entry in left if isinstance(left, list) else ():
            self.take(entry)
        return dump

    def _unfinished(self) -> dict[Any, Any]:
        """The part of the outermost dictionary that came before the end."""
        if not self.stack or type(self.stack[0]) is not dict or not self.marks:
            return {}
        until = self.marks[1] if len(self.marks) > 1 else len(self.stack)
        items = self.stack[1:until]
        return {
            k: v for k, v in zip(items[::2], items[1::2], strict=False) if type(k) is str and k != "entries"
        }

    def take(self, entry: Any) -> bool:
        """Adds an entry to the trace; False when it is none."""
        try:
            if not isinstance(entry, Mapping):
                raise ValueError(entry)
            self.trace.take(entry, self.book.table)
        except ValueError:
            self.malformed_entries += 1
            return False
        return True

    def in_entries(self) -> bool:
        """True when the next value is an entry of the dump: nothing above the mark of the outermost list."""
        stack, marks = self.stack, self.marks
        if self.plain or not marks or marks[-1] != len(stack) or type(stack[-1]) is not list:
            return False
        return (len(marks) == 2 and marks[0] == 1 and stack[-2] == "entries") or (
            len(marks) == 1 and len(stack) == 1
        )

    def finish(self, pos: int) -> None:
        """The machine has read an entry, which ends at `pos`: take it, and remember its shape."""
        entry, begun, self.begun = self.stack.pop(), self.begun, None
        assert begun is not None
        if any(value is VARIES or (type(value) is list and VARIES in value) for value in entry.values()):
            raise _AgainError
        shape = learn(self, entry, begun, pos) if self.take(entry) else None
        self.single.clear()
        self.read_by_machine += 1
        if self.read_by_machine > ENOUGH and self.recognised < self.read_by_machine:
            self.plain = True
        if shape is not None:
            shape = self.book.add(shape)
            self._bind(shape)
            self.next.note(shape)
            self.next = shape.next

    def recognise(self, pos: int) -> int:
        """Takes the entries from `pos` on whose shape is known; returns the position after them."""
        data, memo, end = self.data, self.memo, self.end
        self.single.clear()  # between the last one and `pos` there may be other opcodes
        while True:
            if self.next.blocks:
                after = self._take_block(pos)
                if after != pos:
                    pos = after
                    continue
            for shape in self.next.shapes:
                try:
                    fields = shape.unpack(data, pos)
                except struct.error:
                    continue
                if fields[::2] == shape.constants and (shape.bound == self.file or self._bind(shape)):
                    break
            else:
                found = self._search(pos)
                if found is None:
                    return pos
                shape, fields = found
            if pos + shape.size > end:
                return pos
            first = len(memo)
            if shape.put is not None and fields[shape.put_field] != first:
                return pos
            if shape.own and any(fields[at] != first + which for at, which in shape.own):
                return pos
            memo.extend(shape.objects)
            pos = self._take_one(shape, fields, pos)

    def _take_one(self, shape: Shape, fields: Fields, pos: int) -> int:
        sizes = shape.sizes(fields)
        kind = shape.kinds.get(sizes)
        if kind is None:
            dims = list(sizes) if type(sizes) is tuple else [] if sizes is None else [sizes]
            kind = shape.kinds[sizes] = self.book.table.number(call_of(with_sizes(shape.entry, dims)))
        shape.calls.add(fields[shape.seq_field], kind, fields[shape.time_field] * shape.scale, shape.done)
        if not self.single or shape.deepest >= self.run_start[2]:
            self.single.clear()
            self.run_start = (self.next, pos, len(self.memo) - len(shape.objects))
        self.single.append((shape, kind))
        self.recognised += 1
        self.next = shape.next
        pos += shape.size
        if len(self.single) == RUN:
            self._close_run(pos)
        return pos

    def _close_run(self, pos: int) -> None:
        """Makes a block of the entries that were recognised one by one up to `pos`."""
        before, start, _ = self.run_start
        if len(self.single) >= SHORTEST_RUN and self.book.blocks < MAX_SHAPES:
            block = join(self.single, self.data, start)
            before.blocks.append(block)
            before.blocks.sort(key=lambda b: -b.size)
            del before.blocks[4:]
            self.book.blocks += 1
            block.next.shapes.extend(self.next.shapes)
            block.next.blocks.extend(self.next.blocks)
            self.next = block.next
        self.single.clear()

    def _take_block(self, pos: int) -> int:
        for block in self.next.blocks:
            if pos + block.size <= self.end and block.fits(self.data, pos) and self._bind_all(block):
                fields = block.unpack(self.data, pos)
                first = len(self.memo)
                if block.put_field is not None and fields[block.put_field] != first:
                    continue
                if any(fields[at] != first + which for at, which in block.own):
                    continue
                self.memo.extend(block.objects)
                for lane in block.lanes:
                    calls, scale = lane.shape.calls, lane.shape.scale
                    calls.seqs.extend(lane.seqs(fields))
                    times = lane.times(fields)
                    calls.times_ns.extend(times if scale == 1 else [time * scale for time in times])
                    calls.kinds.extend(lane.kinds)
                    calls.done += lane.done
                self._close_run(pos)
                self.recognised += RUN
                self.next = block.next
                return pos + block.size
        return pos

    def _search(self, pos: int) -> tuple[Shape, Fields] | None:
        """Any shape that occurred in this file and fits at `pos`."""
        for shape in self.mine:
            try:
                fields = shape.unpack(self.data, pos)
            except struct.error:
                continue
            if fields[::2] == shape.constants:
                self.next.note(shape)
                return shape, fields
        return None

    def _bind_all(self, block: Block) -> bool:
        return all(shape.bound == self.file or self._bind(shape) for shape in block.shapes)

    def _bind(self, shape: Shape) -> bool:
        """Finds the columns for this shape's entries; False when in this file its bytes mean something else."""
        memo = self.memo
        if shape.refused == self.file or shape.deepest >= len(memo):
            return False
        shape.refused = self.file
        if any(memo[index] != value for index, value in shape.gets):
            return False
        name: Any = shape.facts.group
        if shape.group is not None:
            name = memo[shape.group]
        if type(name) is not str:
            return False
        shape.bound, shape.calls = self.file, self.trace.lane(name, shape.facts.p2p)
        shape.refused = 0
        self.mine.append(shape)
        return True


def _begin(machine: Unpickler, pos: int) -> int:
    assert isinstance(machine, EntryReader)
    if machine.in_entries():
        after = machine.recognise(pos - 1)
        if after != pos - 1:
            return after
        machine.begun, machine.base = pos - 1, len(machine.memo)
    return Unpickler.handlers[_EMPTY_DICT](machine, pos)


def _end(machine: Unpickler, pos: int) -> int:
    assert isinstance(machine, EntryReader)
    pos = Unpickler.handlers[_SETITEMS](machine, pos)
    if (
        machine.begun is not None
        and 0 < len(machine.marks) <= 2
        and len(machine.stack) == machine.marks[-1] + 1
    ):
        machine.finish(pos)
    return pos


EntryReader.handlers = list(Unpickler.handlers)
EntryReader.handlers[_EMPTY_DICT] = _begin
EntryReader.handlers[_SETITEMS] = _end
