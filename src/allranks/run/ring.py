"""Reads a guest's ring: the records that are new, and the present state of one that is known."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from ..rank import wire


class Record(NamedTuple):
    """One record of `rank/wire.py`."""

    time_ns: int
    position: int
    number: int
    group: int
    state: int
    what: int
    serial: int


PATIENCE = 20
"""Reads after which a record that never came is given up: its writer was interrupted between number and write."""


class Ring:
    """The shared memory of one guest; it stays readable after the process is gone."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, wire.RING_BYTES, access=mmap.ACCESS_READ)
        os.close(fd)
        self._next = 1
        self._waited = 0
        self.lost = 0
        """Records overwritten before they were read."""

    @property
    def position(self) -> int:
        """The serial of the record that is awaited next."""
        return self._next

    def read(self) -> list[Record]:
        """The whole records written since the last call, in order."""
        found: list[Record] = []
        while len(found) < wire.SLOTS:
            record = self._slot(self._next)
            if record.serial == self._next:
                found.append(record)
                self._next += 1
                self._waited = 0
            elif record.serial > self._next:
                self._skip_to(record.serial - wire.SLOTS + wire.SLOTS // 4)
            elif not self._gap():
                break
        return found

    def state(self, serial: int) -> int | None:
        """The state of a record now, or None when it is no longer held."""
        record = self._slot(serial)
        return record.state if record.serial == serial else None

    def record(self, serial: int) -> Record | None:
        """A record by its serial, or None when it is no longer held."""
        record = self._slot(serial)
        return record if record.serial == serial else None

    def close(self) -> None:
        """Unmaps the ring."""
        self._map.close()

    def _slot(self, serial: int) -> Record:
        return Record._make(wire.RECORD.unpack_from(self._map, serial % wire.SLOTS * wire.RECORD.size))

    def _skip_to(self, serial: int) -> None:
        serial = max(serial, self._next + 1)
        self.lost += serial - self._next
        self._next = serial

    def _gap(self) -> bool:
        """True when the next record was given up: later ones have been there for a while."""
        if not any(self._slot(self._next + ahead).serial == self._next + ahead for ahead in range(1, 9)):
            return False
        self._waited += 1
        if self._waited < PATIENCE:
            return False
        self._waited = 0
        self._next += 1
        return True
