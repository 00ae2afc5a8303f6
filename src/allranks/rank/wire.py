"""The one language between guest and host: messages over a Unix socket, and records in shared memory.

A message is a tuple of plain values, marshalled (version 2, which every Python writes and reads) behind its
length. A record is one line of the ring, a black box that outlives the process that wrote it.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENDED = "ended"
"""A file of this name beside the socket says that the host ends the job."""

PROTOCOL = 1
"""Both sides say it in the hello; a host ignores guests that speak another."""

LENGTH = struct.Struct("<I")
LIMIT = 1 << 24
"""No message is larger; a longer length is not from a guest."""

RECORD = struct.Struct("<QIIHBBxxxxQ")
"""time_ns, position, number (of the kind or loader), group, state, what, serial. The serial comes last: a record
whose serial is the expected one is whole."""
STATE_AT = 18
"""Offset of `state` in a record; it alone is written again later."""
SERIAL_AT = 24
SLOTS = 8192
"""A power of two, as is the size of a record: the hot path shifts and masks."""
RING_BYTES = SLOTS * RECORD.size

ENTERED, ISSUED, DONE, RAISED = 1, 2, 3, 4
"""States of a call: inside it; issued and not known to be complete; complete; ended by an exception."""

CALL, DRAW = 0, 1
"""What a record is: a call in a group, or a batch drawn from a loader (`position` counts draws, `state` DONE for a
batch, ISSUED for the end of the loader, RAISED for an exception)."""


def encode(message: tuple[Any, ...]) -> bytes:
    """The bytes of one message, length first."""
    body = marshal.dumps(message, 2)
    return LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages completed by `data`. Raises ValueError, EOFError or TypeError when they are not messages."""
        self._buffer += data
        found = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > LIMIT:
                raise ValueError("not a message")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                break
            message = marshal.loads(bytes(self._buffer[LENGTH.size : end]))
            del self._buffer[:end]
            if not isinstance(message, tuple) or not message or not isinstance(message[0], str):
                raise ValueError("not a message")
            found.append(message)
        return found
