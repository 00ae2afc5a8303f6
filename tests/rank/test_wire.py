from __future__ import annotations

import marshal
import mmap
import os

import pytest

from allranks.rank import wire
from allranks.run.ring import Ring


def test_messages_survive_any_cut() -> None:
    messages = [
        ("hello", {"pid": 1, "argv": ["python", "träin.py"]}),
        ("kind", 1, None, [[2, 3], []]),
        ("x",),
    ]
    data = b"".join(wire.encode(message) for message in messages)
    for size in (1, 2, 3, 7, len(data)):
        decoder = wire.Decoder()
        found = [m for at in range(0, len(data), size) for m in decoder.feed(data[at : at + size])]
        assert found == messages


def test_text_that_is_no_utf8_survives() -> None:
    path = b"tr\xff.py".decode("utf-8", "surrogateescape")
    assert wire.Decoder().feed(wire.encode(("site", path))) == [("site", path)]


@pytest.mark.parametrize(
    "data",
    [
        wire.LENGTH.pack(wire.LIMIT + 1) + b"x",
        wire.LENGTH.pack(5) + b"\x00\x01\x02\x03\x04",
        wire.LENGTH.pack(len(marshal.dumps([1], 2))) + marshal.dumps([1], 2),
        wire.LENGTH.pack(len(marshal.dumps((1,), 2))) + marshal.dumps((1,), 2),
    ],
    ids=["too long", "no marshal", "a list", "no name"],
)
def test_other_speech_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, EOFError, TypeError)):
        wire.Decoder().feed(data)


def test_the_record_is_what_the_hot_path_assumes() -> None:
    assert wire.SLOTS & (wire.SLOTS - 1) == 0
    assert wire.RECORD.size & (wire.RECORD.size - 1) == 0
    packed = wire.RECORD.pack(1, 2, 3, 4, 5, 6, 7)
    assert packed[wire.STATE_AT] == 5
    assert int.from_bytes(packed[wire.SERIAL_AT : wire.SERIAL_AT + 8], "little") == 7


class Writer:
    """Writes records as a guest does."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("test")
        os.ftruncate(self.fd, wire.RING_BYTES)
        self.map = mmap.mmap(self.fd, wire.RING_BYTES)

    def write(self, *serials: int) -> None:
        for serial in serials:
            at = serial % wire.SLOTS * wire.RECORD.size
            wire.RECORD.pack_into(
                self.map, at, serial * 10, serial - 1, 1, 1, wire.ENTERED, wire.CALL, serial
            )

    def mark(self, serial: int, state: int) -> None:
        self.map[serial % wire.SLOTS * wire.RECORD.size + wire.STATE_AT] = state


def test_a_ring_gives_each_record_once_and_in_order() -> None:
    writer = Writer()
    ring = Ring(os.dup(writer.fd))
    assert ring.read() == []
    writer.write(1, 2)
    assert [r.serial for r in ring.read()] == [1, 2]
    writer.write(3)
    assert [(r.serial, r.position, r.time_ns) for r in ring.read()] == [(3, 2, 30)]
    assert ring.read() == []
    writer.mark(2, wire.DONE)
    assert (ring.state(2), ring.state(3), ring.state(4)) == (wire.DONE, wire.ENTERED, None)


def test_a_ring_that_was_lapped_goes_on_with_what_it_holds() -> None:
    writer = Writer()
    ring = Ring(os.dup(writer.fd))
    last = 3 * wire.SLOTS
    writer.write(*range(1, last + 1))
    found = ring.read()
    assert found[-1].serial == last
    assert [r.serial for r in found] == list(range(found[0].serial, last + 1))
    assert ring.lost == found[0].serial - 1 > 0


def test_a_record_that_never_came_is_given_up() -> None:
    writer = Writer()
    ring = Ring(os.dup(writer.fd))
    writer.write(2, 3)
    reads = [[r.serial for r in ring.read()] for _ in range(25)]
    assert [serials for serials in reads if serials] == [[2, 3]]
