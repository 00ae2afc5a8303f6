"""What a rank did: calls interned once and told to the host, one line in the ring per call.

The hot path is `enter`, a few microseconds: walk the frames to a number, look the kind up, write 32 bytes.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections import deque

from . import stack, wire

MAX_KINDS = 16384
"""Distinct calls that are told apart. Beyond, sites are told apart by their innermost frames alone."""


class Group:
    """A process group as this rank knows it. Positions go on when a group of the same name is made again."""

    __slots__ = ("calls", "name", "number", "p2p", "ranks", "ref")

    def __init__(self, number: int, name: str, ranks: tuple, calls, p2p) -> None:
        self.number, self.name, self.ranks = number, name, ranks
        self.calls, self.p2p = calls, p2p
        self.ref = None

    def global_rank(self, rank: int):
        """The global rank of a group rank, or None."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else None


class Recorder:
    """The memory of one process. `send` tells the host; `ring` is None where there is no shared memory."""

    def __init__(self, send, ring) -> None:
        self.send = send
        self.restart(ring)

    def restart(self, ring) -> None:
        """Begins from nothing: in a new process, or in a forked child for a host that knows nothing of it yet."""
        self.ring = ring
        self.pending = deque()  # (serial, Work) of calls not known to be complete, oldest first
        self._last = 0
        self._serials = itertools.count(1)
        self._kinds = {}
        self._sites = {}
        self._groups = {}
        self._counters = {}
        self._numbers = itertools.count(1)
        self._held = []  # code objects of interned sites, so that ids in keys stay theirs
        self._lock = threading.RLock()
        self._main = threading.main_thread().ident
        self.setup = self._new_group("0/setup", ())

    # Groups

    def group(self, pg, c10d) -> Group:
        """The group of a ProcessGroup object; told to the host when it is new."""
        found = self._groups.get(id(pg))
        if found is not None and found.ref() is pg:
            return found
        with self._lock:
            name, ranks = _name(pg, c10d), _ranks(pg, c10d)
            made = self._new_group(
                name, ranks, str(getattr(pg, "group_desc", "") or ""), _backend(pg, c10d), _timeout(pg)
            )
            made.ref = weakref.ref(pg)
            self._groups[id(pg)] = made
            return made

    def _new_group(
        self, name: str, ranks: tuple, description: str = "", backend: str = "", timeout=None
    ) -> Group:
        counters = self._counters.setdefault(name, (itertools.count(), itertools.count()))
        group = Group(next(self._numbers), name, ranks, *counters)
        self.send("group", group.number, name, list(ranks), description, backend, timeout)
        return group

    def forget_groups(self) -> None:
        """After destroy_process_group: objects may be made anew at the same addresses."""
        self._groups.clear()
        self.pending.clear()

    # Calls

    def enter(self, group: Group, signature: tuple, frame, p2p: bool = False) -> int:
        """Records the start of a call and gives its serial.

        `signature` is (op, reduce_op, root, peer, tag, dtype, shapes, detail), hashable; `frame` where the walk to
        the call site begins.
        """
        if (
            frame is None or frame.f_back is None
        ):  # an autograd thread: what it does, the main thread asked for
            frame = sys._current_frames().get(self._main, frame)
        depth = stack.KEY_DEPTH if len(self._kinds) < MAX_KINDS else 6
        key = (signature, stack.site_key(frame, depth))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new_kind(key, signature, frame)
        position = next(group.p2p if p2p else group.calls)
        return self.write(position, kind, group.number, wire.ENTERED, wire.CALL)

    def write(self, position: int, number: int, group: int, state: int, what: int) -> int:
        """One record in the ring; gives its serial."""
        serial = self._last = next(self._serials)
        if self.ring is not None:
            wire.RECORD.pack_into(
                self.ring, serial % wire.SLOTS * wire.RECORD.size,
                time.time_ns(), position, number, group, state, what, serial,
            )  # fmt: skip
        return serial

    def mark(self, serial: int, state: int) -> None:
        """Changes the state of a record that the ring still holds."""
        if self.ring is not None and self._last - serial < wire.SLOTS:
            self.ring[serial % wire.SLOTS * wire.RECORD.size + wire.STATE_AT] = state

    def _new_kind(self, key: tuple, signature: tuple, frame) -> int:
        with self._lock:
            known = self._kinds.get(key)
            if known is not None:
                return known
            kind = len(self._kinds) + 1
            walked = stack.walk(frame)
            within = stack.inside(walked)
            self.send(
                "kind", kind, *(_plain(v) for v in signature), self.site(stack.user_rows(walked)), within
            )
            while frame is not None and len(self._held) < 100000:
                self._held.append(frame.f_code)
                frame = frame.f_back
            self._kinds[key] = kind
            return kind

    def site(self, rows: list) -> int:
        """The number of a call site; told to the host when it is new."""
        rows = tuple(rows)
        found = self._sites.get(rows)
        if found is None:
            found = self._sites[rows] = len(self._sites) + 1
            self.send("site", found, list(rows))
        return found

    # Completion

    def issued(self, serial: int, work) -> None:
        """A call whose Work tells when it is complete."""
        self.mark(serial, wire.ISSUED)
        self.pending.append((serial, work))
        if len(self.pending) > 1:
            self.prune()

    def prune(self) -> None:
        """Lets go of completed works from the oldest on: a Work holds the call's tensors."""
        pending = self.pending
        try:
            while pending:
                serial, work = pending[0]
                if not work.is_completed():
                    break
                self.mark(serial, wire.DONE)
                pending.popleft()
        except IndexError:  # another thread pruned as well
            pass

    def prune_all(self) -> None:
        """As `prune`, also behind a work that is not complete."""
        for pair in list(self.pending):
            if pair[1].is_completed():
                try:
                    self.pending.remove(pair)
                except (ValueError, IndexError):  # the thread that runs the calls was faster
                    continue
                self.mark(pair[0], wire.DONE)


def _plain(value):
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (int, str)) else str(value)


def _name(pg, c10d) -> str:
    if pg is c10d.GroupMember.WORLD:
        return "0"
    return str(getattr(pg, "group_name", "") or "") or "unnamed-%d" % id(pg)


def _ranks(pg, c10d) -> tuple:
    try:
        return tuple(sorted(c10d._world.pg_group_ranks[pg], key=c10d._world.pg_group_ranks[pg].get))
    except Exception:
        return tuple(range(pg.size())) if pg is c10d.GroupMember.WORLD else ()


def _backend(pg, c10d) -> str:
    try:
        return str(c10d._world.pg_map[pg][0])
    except Exception:
        return str(pg.name()) if hasattr(pg, "name") else ""


def _timeout(pg):
    try:
        return pg._get_backend(pg._device_types[0]).options._timeout.total_seconds()
    except Exception:
        return None
