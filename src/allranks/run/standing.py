"""Whether a rank runs or is blocked, and in what: from its ring, two samples of its stack, and its CPU time.

A rank is blocked when it has written no record for a while, two samples of its main thread stand on the same
instruction inside a call that waits, the thread used no CPU time between them, and the call is not complete.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..rank import wire
from ..world import SETUP, Frame, RankState, Signature, Wait, World
from . import process

if TYPE_CHECKING:
    from .guest import Guest

QUIET_S = 0.1
"""A rank that has written a record more recently than this is running."""
APART_S = 0.08
"""The least time between the two samples."""
IDLE_CPU_NS = 4_000_000
"""More CPU time than this between two samples is work."""
AGAIN_S = 0.5
"""How often a rank that is quiet, blocked or computing, is looked at again."""
DEVICE_S = 1.0
"""On an accelerator the thread that waits may stand in the user's own line; then it must stand this long."""

USER, TORCH, LIBRARY = 0, 1, 2


@dataclass(slots=True)
class Sample:
    """One answer of a guest."""

    at: float
    time_ns: int
    instruction: int
    wait: Wait | None
    serial: int | None
    cpu_ns: int | None


class Standing:
    """Follows one guest. `wait` is set while it is blocked."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.wait: Wait | None = None
        self.stack: tuple[Frame, ...] = ()
        self.stack_since_ns = 0
        self.asked: int | None = None
        self._asked_at = 0.0
        self._active_at = time.monotonic()
        self._sample: Sample | None = None
        self._instruction: int | None = None
        self._seen = 0

    def moved(self) -> bool:
        """Looks at the ring and at the call that is waited for; True when the rank made progress."""
        calls = self.guest.ring.position if self.guest.ring is not None else 0
        progress = calls != self._seen
        self._seen = calls
        if self.wait is not None and self._sample is not None and not progress:
            progress = self._finished(self._sample.serial)
        if progress:
            self.active()
        return progress

    def active(self) -> None:
        """The rank runs."""
        self._active_at = time.monotonic()
        self.wait = self._sample = None

    def active_s(self) -> float:
        """For how long no progress has been seen."""
        return time.monotonic() - self._active_at

    def due(self) -> bool:
        """True when the guest should be asked where it stands."""
        if not self.guest.connected or self.asked is not None or self.active_s() < QUIET_S:
            return False
        first = self._sample is not None and self.wait is None and self._sample.wait is not None
        return time.monotonic() - self._asked_at >= (
            APART_S if first else AGAIN_S if self._sample is not None else 0
        )

    def ask(self, number: int) -> None:
        """Asks the guest where it stands."""
        if self.guest.connection.ask(number, "standing"):
            self.asked, self._asked_at = number, time.monotonic()

    def unresponsive_s(self) -> float:
        """For how long a question has gone without an answer."""
        return time.monotonic() - self._asked_at if self.asked is not None else 0.0

    def answered(self, answer: dict[str, Any], world: World) -> None:
        """Takes an answer in."""
        self.asked = None
        self.stack = self.guest.kinds.site(answer["stack"])
        instruction = answer["instruction"]
        if instruction != self._instruction:
            self._instruction, self.stack_since_ns = instruction, time.time_ns()
        wait, serial = self._wait(answer, world)
        cpu = process.cpu_ns(self.guest.pid, int(self.guest.hello.get("tid") or self.guest.pid))
        sample = Sample(time.monotonic(), time.time_ns(), instruction, wait, serial, cpu)
        before, self._sample = self._sample, sample
        if wait is None or self._finished(serial):
            self.wait = None
        elif before is not None and self._same(before, sample):
            self.wait = self.wait or wait
            if self.wait != wait and (self.wait.group, self.wait.position) != (wait.group, wait.position):
                self.wait = wait
        elif before is not None and before.instruction != instruction:
            self.wait = None

    def _same(self, before: Sample, sample: Sample) -> bool:
        apart = sample.at - before.at
        if before.instruction != sample.instruction or before.wait is None:
            return False
        if (
            sample.cpu_ns is not None
            and before.cpu_ns is not None
            and sample.cpu_ns - before.cpu_ns > IDLE_CPU_NS
        ):
            return False
        return apart >= APART_S * 0.9

    def _finished(self, serial: int | None) -> bool:
        """True when the call that was waited for is complete."""
        if serial is None or self.guest.ring is None:
            return False
        return self.guest.ring.state(serial) in (wire.DONE, wire.RAISED)

    # What an answer means

    def _wait(self, answer: dict[str, Any], world: World) -> tuple[Wait | None, int | None]:
        """What the main thread waits for at this moment, if it is inside something that waits."""
        inner, detail, pending = answer["in"], answer["detail"], list(answer["pending"])
        if inner == "store":
            return self._store_wait(detail), None
        if inner == "call" and detail and self._makes_group(detail[0]):
            return self._setup_wait(detail[0]), detail[0]
        if inner in ("call", "work"):
            serials = list(detail or ()) or pending[:1]
            if inner == "work" and detail:
                serials = detail
            return self._call_wait(serials[-1], pending) if serials else (None, None)
        if pending and answer["top"] == TORCH and "torch/utils/data/" not in answer["top_path"]:
            return self._call_wait(self._inner(pending), pending)
        return None, None

    def _inner(self, pending: list[int]) -> int:
        """Which of the pending calls torch itself waits for: the first that it made itself, else the first."""
        for serial in pending:
            found = self.guest.call_of(serial)
            if found is not None and self.guest.kinds.kinds[found[2]].hidden:
                return serial
        return pending[0]

    def _call_wait(self, serial: int, pending: list[int]) -> tuple[Wait | None, int | None]:
        found = self.guest.call_of(serial)
        if found is None:
            return None, None
        record, name, kind = found
        if not self.guest.kinds.kinds[kind].signature.is_p2p:
            for (
                earlier
            ) in pending:  # collectives of a group complete in order: the first unfinished one holds it up
                other = self.guest.call_of(earlier)
                if other is not None and other[1] == name and other[0].position < record.position:
                    serial, (record, name, kind) = earlier, other
                    break
        signature = self.guest.kinds.kinds[kind].signature
        group = name.removesuffix("/p2p")
        members = self.guest.groups[group].ranks if group in self.guest.groups else ()
        me = self.guest.rank
        if signature.is_p2p:
            peers = (signature.peer,) if signature.peer is not None else tuple(r for r in members if r != me)
            detail = "any" if signature.peer is None else ""
            return Wait("p2p", group, record.position, kind, peers, record.time_ns, detail), serial
        peers = tuple(r for r in members if r != me)
        if signature.op in ("broadcast", "scatter") and signature.root is not None and signature.root != me:
            peers = (signature.root,)
        return Wait("collective", group, record.position, kind, peers, record.time_ns), serial

    def _makes_group(self, serial: int) -> bool:
        found = self.guest.call_of(serial)
        return found is not None and found[1] == SETUP

    def _setup_wait(self, serial: int) -> Wait | None:
        found = self.guest.call_of(serial)
        if found is None:
            return None
        record, _, kind = found
        signature = self.guest.kinds.kinds[kind].signature
        if signature.op == "init_process_group":
            return Wait("init", SETUP, record.position, kind, (), record.time_ns, self._address())
        if signature.op in ("new_group", "split_group"):
            return Wait("store", SETUP, record.position, kind, (), record.time_ns, signature.op)
        return None

    def _store_wait(self, detail: dict[str, Any]) -> Wait | None:
        keys = ", ".join(detail.get("keys", ()))
        return Wait("store", None, None, None, (), time.time_ns(), keys)

    def _address(self) -> str:
        return str(self.guest.facts.get("init_arguments", {}).get("address", ""))


def absent_from(wait: Wait, state: RankState, world: World) -> tuple[int, ...]:
    """The ranks that a rank waits for while groups are made: those that have not come to the same call."""
    kind = world.kind(wait.call)
    if wait.kind == "init":
        size = state.facts.get("init_arguments", {}).get("world_size") or world.size
        everyone = range(size) if isinstance(size, int) else world.ranks
        address = wait.detail
        return tuple(r for r in everyone if r != state.rank and not _joins(world.ranks.get(r), address))
    if kind is not None and kind.signature.detail is not None:
        members = _members(kind.signature.detail, world)
        return tuple(
            r for r in members if r != state.rank and not _made(world, world.ranks.get(r), state, wait)
        )
    return ()


def _joins(other: RankState | None, address: str) -> bool:
    """True when the other rank has come to init_process_group at the same address, or is past it."""
    if other is None or "init_arguments" not in other.facts:
        return False
    if other.state == "exited" and "backend" not in other.facts:
        return False  # it came, and failed before the group was there
    return bool(other.facts["init_arguments"].get("address") == address)


def _members(detail: str, world: World) -> tuple[int, ...]:
    words = "".join(c if c.isdigit() else " " for c in detail).split()
    return tuple(sorted({int(word) for word in words})) or tuple(world.ranks)


def _made(world: World, other: RankState | None, state: RankState, wait: Wait) -> bool:
    """True when the other rank has made the same call to make a group.

    PyTorch names a group after the number of groups made before it, so the n-th call of one rank meets the n-th of
    another; with local synchronisation the name comes from the ranks.
    """
    if other is None or wait.call is None or wait.position is None:
        return False
    signature = world.kinds[wait.call].signature
    local = (signature.detail or "").endswith(" local")
    mine = _groups_made(world, state, local, wait.position + 1)
    theirs = _groups_made(world, other, local, None)
    if local:
        return theirs.count(signature) >= mine.count(signature)
    return len(theirs) >= len(mine) and theirs[len(mine) - 1] == signature


def _groups_made(world: World, state: RankState, local: bool, end: int | None) -> list[Signature]:
    """The calls that made groups since the default group was made, before position `end` of the setup history."""
    history = state.histories.get(SETUP)
    found: list[Signature] = []
    for call in history.kinds[:end] if history is not None else ():
        signature = world.kinds[call].signature
        if signature.op == "init_process_group":
            found = []
        elif (
            signature.op in ("new_group", "split_group")
            and (signature.detail or "").endswith(" local") == local
        ):
            found.append(signature)
    return found
