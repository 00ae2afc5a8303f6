"""What a rank did: calls interned once and told to the host, one line in the ring per call.

The hot path is `enter`, a few microseconds: walk the frames to a number, look the kind up, write 32 bytes.
"""

from __future__ import annotations

import itertools
import struct
import sys
import threading
import time
import weakref
from collections import deque

from . import stack, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MAX_KINDS = 16384
"""Distinct calls that are told apart. Beyond, sites are told apart by their innermost frames alone."""
SHALLOW = 6
_MASK, _SHIFT, _STATE_AT, _SERIAL_AT = (
    wire.SLOTS - 1,
    wire.RECORD.size.bit_length() - 1,
    wire.STATE_AT,
    wire.SERIAL_AT,
)
_SERIAL = struct.Struct("<Q")
_pack, _time_ns = wire.RECORD.pack_into, time.time_ns
_NOWHERE = bytearray(wire.RING_BYTES)
"""What is written to where there is no shared memory; nobody reads it."""
DIRECT = ("gloo",)
"""Backends on the CPU whose operators do nothing but call them."""


class Group:
    """A process group as this rank knows it. Positions go on when a group of the same name is made again."""

    __slots__ = ("calls", "direct", "name", "number", "p2p", "ranks", "ref")

    def __init__(self, number: int, name: str, ranks: tuple[int, ...], calls: Any, p2p: Any) -> None:
        self.number, self.name, self.ranks = number, name, ranks
        self.calls, self.p2p = calls, p2p
        self.ref: Any = None
        """Weak reference to the ProcessGroup: a strong one would keep the group's threads alive."""
        self.direct: Any = None
        """The backend, where calls may be handed to it directly (`method`); let go in `forget_groups`."""

    def global_rank(self, rank: int) -> int | None:
        """The global rank of a group rank, or None."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else None


class Recorder:
    """The memory of one process. `send` tells the host; `ring` is None where there is no shared memory."""

    def __init__(self, send: Callable[..., None], ring: Any) -> None:
        self.send = send
        self.groups: dict[int, Group] = {}
        """By id of the ProcessGroup."""
        self.watched = False
        """True once the operators are watched."""
        self.restart(ring)

    def restart(self, ring: Any) -> None:
        """Begins from nothing: in a new process, or in a forked child for a host that knows nothing of it yet."""
        self.ring = ring if ring is not None else _NOWHERE
        self.pending: deque[tuple[int, Any]] = deque()
        """(serial, Work) of calls not known to be complete, oldest first."""
        self.groups.clear()
        self.depth = stack.KEY_DEPTH
        """How many frames tell two call sites apart now."""
        self._serials = itertools.count(1)
        self._kinds: dict[Any, int] = {}
        self._sites: dict[Any, int] = {}
        self._counters: dict[str, tuple[Any, Any]] = {}
        self._numbers = itertools.count(1)
        self._held: list[Any] = []  # code objects of interned sites, so that ids in keys stay theirs
        self._lock = threading.RLock()
        self._main = threading.main_thread().ident or 0
        self.setup = self._new_group("0/setup", ())

    # Groups

    def group(self, pg: Any, c10d: Any) -> Group:
        """The group of a ProcessGroup object; told to the host when it is new."""
        found = self.groups.get(id(pg))
        if found is not None and found.ref() is pg:
            return found
        with self._lock:
            backend = _backend(pg, c10d)
            made = self._new_group(
                _name(pg, c10d),
                _ranks(pg, c10d),
                str(getattr(pg, "group_desc", "") or ""),
                backend,
                _timeout(pg),
            )
            made.ref = weakref.ref(pg)
            if self.watched and backend in DIRECT and made.ranks:
                made.direct = pg._get_backend(sys.modules["torch"].device("cpu"))
            self.groups[id(pg)] = made
            return made

    def _new_group(
        self, name: str, ranks: tuple[int, ...], description: str = "", backend: str = "", timeout: Any = None
    ) -> Group:
        counters = self._counters.setdefault(name, (itertools.count(), itertools.count()))
        group = Group(next(self._numbers), name, ranks, *counters)
        self.send("group", group.number, name, list(ranks), description, backend, timeout)
        return group

    def forget_groups(self) -> None:
        """After destroy_process_group: objects may be made anew at the same addresses."""
        self.groups.clear()
        self.pending.clear()

    # Calls

    def enter(self, group: Group, signature: tuple[Any, ...], frame: Any, p2p: bool = False) -> int:
        """Records the start of a call and gives its serial.

        `signature` is (op, reduce_op, root, peer, tag, dtype, shapes, detail), hashable; `frame` where the walk to
        the call site begins.
        """
        if frame.f_back is None:  # an autograd thread: what it does, the main thread asked for
            frame = sys._current_frames().get(self._main, frame)
        key = (signature, stack.site_key(frame, self.depth))
        kind = self._kinds.get(key) or self._new_kind(key, signature, frame)
        serial = next(self._serials)
        _pack(
            self.ring, (serial & _MASK) << _SHIFT,
            _time_ns(), next(group.p2p if p2p else group.calls), kind, group.number, wire.ENTERED, wire.CALL, serial,
        )  # fmt: skip
        return serial

    def write(self, position: int, number: int, group: int, state: int, what: int) -> int:
        """One record in the ring; gives its serial."""
        serial = next(self._serials)
        _pack(self.ring, (serial & _MASK) << _SHIFT, _time_ns(), position, number, group, state, what, serial)
        return serial

    def mark(self, serial: int, state: int) -> None:
        """Changes the state of a record that the ring surely holds; serial 0 is a call that was not recorded."""
        if serial:
            self.ring[((serial & _MASK) << _SHIFT) + _STATE_AT] = state

    def mark_old(self, serial: int, state: int) -> None:
        """Changes the state of a record if the ring still holds it."""
        if serial and _SERIAL.unpack_from(self.ring, ((serial & _MASK) << _SHIFT) + _SERIAL_AT)[0] == serial:
            self.mark(serial, state)

    def _new_kind(self, key: tuple[Any, ...], signature: tuple[Any, ...], frame: Any) -> int:
        with self._lock:
            known = self._kinds.get(key)
            if known is not None:
                return known
            kind = len(self._kinds) + 1
            walked = stack.walk(frame)
            site = self.site(stack.user_rows(walked))
            self.send("kind", kind, *(_plain(v) for v in signature), site, stack.inside(walked))
            while frame is not None and len(self._held) < 100000:
                self._held.append(frame.f_code)
                frame = frame.f_back
            self._kinds[key] = kind
            if kind == MAX_KINDS:
                self.depth = SHALLOW
            return kind

    def site(self, rows: list[Any]) -> int:
        """The number of a call site; told to the host when it is new."""
        key = tuple(rows)
        with self._lock:
            found = self._sites.get(key)
            if found is None:
                found = self._sites[key] = len(self._sites) + 1
                self.send("site", found, rows)
            return found

    # Completion

    def issued(self, serial: int, work: Any) -> None:
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
                self.mark_old(serial, wire.DONE)
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
                self.mark_old(pair[0], wire.DONE)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (int, str)) else str(value)


def _name(pg: Any, c10d: Any) -> str:
    if pg is c10d.GroupMember.WORLD:
        return "0"
    return str(getattr(pg, "group_name", "") or "") or "unnamed-%d" % id(pg)


def _ranks(pg: Any, c10d: Any) -> tuple[int, ...]:
    try:
        ranks = c10d._world.pg_group_ranks[pg]
        return tuple(sorted(ranks, key=ranks.get))
    except Exception:
        return tuple(range(pg.size())) if pg is c10d.GroupMember.WORLD else ()


def _backend(pg: Any, c10d: Any) -> str:
    try:
        return str(c10d._world.pg_map[pg][0])
    except Exception:
        return str(pg.name()) if hasattr(pg, "name") else ""


def _timeout(pg: Any) -> float | None:
    try:
        return float(pg._get_backend(pg._device_types[0]).options._timeout.total_seconds())
    except Exception:
        return None
