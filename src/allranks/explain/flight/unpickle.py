"""A pickle machine that builds plain data and nothing else.

Flight-recorder dumps are pickles, and a pickle is a program: the standard library's `pickle.load` runs whatever a
file asks for. This machine knows only the opcodes that make None, booleans, numbers, strings, bytes, lists, tuples
and dictionaries. It has no code for an opcode that imports, calls or extends, so such a file is refused where it
asks. It never allocates by a size that a file announces, and it says apart a file that is cut off from one that
is malformed.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from ...findings import Text, say

MAX_CONTAINERS = 8_000_000
"""Lists, dictionaries, tuples and marks in one file: some 600,000 entries of a flight recorder. More is an attack."""

_PADDING = bytes(16)
_GET = 0x68  # BINGET, three in four opcodes of a dump: handled in the loop itself
_STOP = 0x2E
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_RUNS_CODE = frozenset(
    {
        "GLOBAL",
        "STACK_GLOBAL",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "REDUCE",
        "BUILD",
        "EXT1",
        "EXT2",
        "EXT4",
    }
    | {"PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)


class RefusedError(Exception):
    """The bytes are no plain pickle: they ask to run code, or are malformed. `reason` says what was met where."""

    def __init__(self, reason: Text) -> None:
        super().__init__(str(reason))
        self.reason = reason


class CutOffError(Exception):
    """The bytes end before the pickle does: the writer died, or the copy is incomplete."""


Handler = Callable[["Unpickler", int], int]
"""An opcode's function: takes the position after the opcode, returns the position after its argument."""


class Unpickler:
    """Runs one pickle of protocol 2 to 5. The stack, marks and memo are open to a subclass that knows the data."""

    handlers: list[Handler]
    get = _GET
    """The opcode that is handled without a call; -1 for none."""

    def __init__(self, data: bytes) -> None:
        data = data.rstrip(b"\0")  # a pickle ends with a full stop: these are blocks that were never written
        self.end = len(data)
        self.data = (
            data + _PADDING
        )  # zero is no opcode: a read past the end stops there, not in an IndexError
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers = 0

    def load(self) -> Any:
        """The value of the pickle. Raises `RefusedError` or `CutOffError`; what was built by then is on the stack."""
        self.run(0)
        if len(self.stack) != 1 or self.marks:
            raise self.malformed(self.end)
        return self.stack.pop()

    def run(self, pos: int) -> int:
        """Runs opcodes from `pos` until STOP; returns the position after it."""
        data, stack, memo, handlers, get = self.data, self.stack, self.memo, self.handlers, self.get
        try:
            while True:
                code = data[pos]
                if code == get:
                    stack.append(memo[data[pos + 1]])
                    pos += 2
                elif code == _STOP:
                    return pos + 1
                else:
                    pos = handlers[code](self, pos + 1)
        except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error):
            if pos + 1 >= self.end:
                raise CutOffError from None
            raise self.malformed(pos) from None

    def malformed(self, pos: int) -> RefusedError:
        """The error for bytes that are no pickle."""
        return RefusedError(say("malformed pickle at byte {offset}", offset=pos))

    def since_mark(self) -> list[Any]:
        """Takes off the stack what stands above the topmost mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def made(self, pos: int) -> int:
        """Counts one more container; returns `pos`."""
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise RefusedError(say("more than {limit} objects in one file", limit=MAX_CONTAINERS))
        return pos

    def need(self, pos: int, size: int) -> int:
        """The end of an argument of `size` bytes at `pos`; `CutOffError` when the file has not that many."""
        if pos + size > self.end:
            raise CutOffError
        return pos + size

    def put(self, index: int) -> None:
        """Memoizes the top of the stack. Every pickler numbers what it memoizes in order."""
        if index != len(self.memo):
            raise ValueError(index)
        self.memo.append(self.stack[-1])


def opcode(*codes: int) -> Callable[[Handler], Handler]:
    """Registers the handler of these opcodes."""

    def register(handler: Handler) -> Handler:
        for code in codes:
            _HANDLERS[code] = handler
        return handler

    return register


def _unknown(machine: Unpickler, pos: int) -> int:
    code, offset = machine.data[pos - 1], pos - 1
    if offset >= machine.end:
        raise CutOffError
    name = _NAMES.get(code)
    if name in _RUNS_CODE:
        raise RefusedError(say("byte {offset} asks to run code ({opcode})", offset=offset, opcode=name))
    if name is not None:
        raise RefusedError(say("byte {offset} has {opcode}, which no dump uses", offset=offset, opcode=name))
    raise machine.malformed(offset)


_HANDLERS: list[Handler] = [_unknown] * 256
Unpickler.handlers = _HANDLERS


@opcode(0x80)  # PROTO
def _proto(machine: Unpickler, pos: int) -> int:
    if machine.data[pos] > 5:
        raise machine.malformed(pos)
    return pos + 1


@opcode(0x95)  # FRAME: the length of the next part, of use to a streaming reader only
def _frame(machine: Unpickler, pos: int) -> int:
    return machine.need(pos, 8)


@opcode(0x28)  # MARK
def _mark(machine: Unpickler, pos: int) -> int:
    machine.marks.append(len(machine.stack))
    return machine.made(pos)


@opcode(0x30)  # POP
def _pop(machine: Unpickler, pos: int) -> int:
    machine.stack.pop()
    return pos


@opcode(0x4E, 0x88, 0x89)  # NONE, NEWTRUE, NEWFALSE
def _constant(machine: Unpickler, pos: int) -> int:
    machine.stack.append({0x4E: None, 0x88: True, 0x89: False}[machine.data[pos - 1]])
    return pos


@opcode(0x4B)  # BININT1
def _binint1(machine: Unpickler, pos: int) -> int:
    machine.stack.append(machine.data[pos])
    return pos + 1


@opcode(0x4D)  # BININT2
def _binint2(machine: Unpickler, pos: int) -> int:
    machine.stack.append(machine.data[pos] | machine.data[pos + 1] << 8)
    return pos + 2


@opcode(0x4A)  # BININT
def _binint(machine: Unpickler, pos: int) -> int:
    machine.stack.append(int.from_bytes(machine.data[pos : pos + 4], "little", signed=True))
    return pos + 4


@opcode(0x8A)  # LONG1
def _long1(machine: Unpickler, pos: int) -> int:
    end = machine.need(pos + 1, machine.data[pos])
    machine.stack.append(int.from_bytes(machine.data[pos + 1 : end], "little", signed=True))
    return end


@opcode(0x47)  # BINFLOAT
def _binfloat(machine: Unpickler, pos: int) -> int:
    machine.stack.append(struct.unpack_from(">d", machine.data, pos)[0])
    return pos + 8


_LENGTH_BYTES = {0x58: 4, 0x8C: 1, 0x8D: 8, 0x54: 4, 0x55: 1, 0x42: 4, 0x43: 1, 0x8E: 8}


def _counted(machine: Unpickler, pos: int) -> tuple[bytes, int]:
    start = pos + _LENGTH_BYTES[machine.data[pos - 1]]
    end = machine.need(start, int.from_bytes(machine.data[pos:start], "little"))
    return machine.data[start:end], end


@opcode(0x58, 0x8C, 0x8D)  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
def _text(machine: Unpickler, pos: int) -> int:
    raw, end = _counted(machine, pos)
    machine.stack.append(raw.decode("utf-8", "backslashreplace"))
    return end


@opcode(0x54, 0x55)  # BINSTRING, SHORT_BINSTRING
def _byte_text(machine: Unpickler, pos: int) -> int:
    raw, end = _counted(machine, pos)
    machine.stack.append(raw.decode("latin-1"))
    return end


@opcode(0x42, 0x43, 0x8E)  # BINBYTES, SHORT_BINBYTES, BINBYTES8
def _bytes(machine: Unpickler, pos: int) -> int:
    raw, end = _counted(machine, pos)
    machine.stack.append(raw)
    return end


@opcode(0x5D, 0x7D)  # EMPTY_LIST, EMPTY_DICT
def _empty(machine: Unpickler, pos: int) -> int:
    machine.stack.append([] if machine.data[pos - 1] == 0x5D else {})
    return machine.made(pos)


@opcode(0x29, 0x85, 0x86, 0x87)  # EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3
def _small_tuple(machine: Unpickler, pos: int) -> int:
    code = machine.data[pos - 1]
    size = 0 if code == 0x29 else code - 0x84
    if size > len(machine.stack):
        raise machine.malformed(pos)
    first = len(machine.stack) - size
    machine.stack[first:] = [tuple(machine.stack[first:])]
    return machine.made(pos)


@opcode(0x74)  # TUPLE
def _tuple(machine: Unpickler, pos: int) -> int:
    machine.stack.append(tuple(machine.since_mark()))
    return machine.made(pos)


@opcode(0x61)  # APPEND
def _append(machine: Unpickler, pos: int) -> int:
    value = machine.stack.pop()
    _as(machine.stack[-1], list).append(value)
    return pos


@opcode(0x65)  # APPENDS
def _appends(machine: Unpickler, pos: int) -> int:
    items = machine.since_mark()
    _as(machine.stack[-1], list).extend(items)
    return pos


@opcode(0x73)  # SETITEM
def _setitem(machine: Unpickler, pos: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    _as(machine.stack[-1], dict).update(_pairs([key, value]))
    return pos


@opcode(0x75)  # SETITEMS
def _setitems(machine: Unpickler, pos: int) -> int:
    items = machine.since_mark()
    _as(machine.stack[-1], dict).update(_pairs(items))
    return pos


def _as(value: Any, kind: type) -> Any:
    # Exactly these types: anything else would be a pickle that calls a method.
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # Keys are strings and integers only: hashing nested tuples that share parts can take exponential time.
    if len(items) % 2 or not {str, int}.issuperset(map(type, items[::2])):
        raise ValueError(items)
    return dict(zip(items[::2], items[1::2], strict=True))


@opcode(_GET)  # BINGET
def _get(machine: Unpickler, pos: int) -> int:
    machine.stack.append(machine.memo[machine.data[pos]])
    return machine.need(pos, 1)


@opcode(0x6A)  # LONG_BINGET
def _long_get(machine: Unpickler, pos: int) -> int:
    after = machine.need(pos, 4)
    machine.stack.append(machine.memo[int.from_bytes(machine.data[pos:after], "little")])
    return after


@opcode(0x71)  # BINPUT
def _put(machine: Unpickler, pos: int) -> int:
    after = machine.need(pos, 1)
    machine.put(machine.data[pos])
    return after


@opcode(0x72)  # LONG_BINPUT
def _long_put(machine: Unpickler, pos: int) -> int:
    after = machine.need(pos, 4)
    machine.put(int.from_bytes(machine.data[pos:after], "little"))
    return after


@opcode(0x94)  # MEMOIZE
def _memoize(machine: Unpickler, pos: int) -> int:
    machine.put(len(machine.memo))
    return pos
