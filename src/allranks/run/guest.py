"""One process that has a guest: what it said and what its ring holds, turned into the nouns of `world`."""

from __future__ import annotations

import os
import signal as signals
import time
from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..rank import wire
from ..world import SETUP, CallKind, ExceptionInfo, Exit, Frame, Group, History, Signature, Site, p2p
from . import process
from .ring import Record, Ring

if TYPE_CHECKING:
    from .server import Connection, Message

KEEP = 1 << 20
"""Calls of one group that are held; older ones are forgotten, and `History.start` moves."""

OBSERVED = 20_000
"""Rows of one topic of observations that are held; of later ones only the number is known."""

SCHEDULE_NS = 40_000_000
SCHEDULES = 20_000
"""How often, and how many times, it is looked whether a rank runs or waits for a processor."""

Row = tuple[str, int, str, int, bool]


class Kinds:
    """Interns calls over all ranks of a job: equal calls have one id."""

    def __init__(self, kinds: dict[int, CallKind]) -> None:
        self.kinds = kinds
        self._ids: dict[CallKind, int] = {}
        self._frames: dict[Frame, Frame] = {}

    def id(self, kind: CallKind) -> int:
        """The id of a call, given out in order from 1."""
        found = self._ids.get(kind)
        if found is None:
            found = self._ids[kind] = len(self._ids) + 1
            self.kinds[found] = kind
        return found

    def site(self, rows: list[Row]) -> Site:
        """Rows of a guest as frames; equal frames are one object."""
        frames = (
            Frame(str(p), int(line), str(f), int(first), bool(user)) for p, line, f, first, user in rows
        )
        return tuple(self._frames.setdefault(frame, frame) for frame in frames)


@dataclass(slots=True)
class Loader:
    """One iterator over a DataLoader."""

    site: Site
    drawn: int = 0
    exhausted: bool = False
    failed: bool = False
    last: tuple[int, int] = (0, 0)
    """Calls made in the whole process when the last batch was drawn, and that batch's number."""
    without_calls: list[int] = field(default_factory=list)
    """Numbers of batches after which no call came before the next was drawn; the first 20."""


class Guest:
    """The host's view of one process. `rank` is None until it is known."""

    def __init__(self, connection: Connection, hello: dict[str, Any], kinds: Kinds) -> None:
        self.connection = connection
        self.kinds = kinds
        self.hello = hello
        self.pid = connection.pid
        self.ring = Ring(connection.fd) if connection.fd is not None else None
        self.heard_ns = time.time_ns()
        self.rank: int | None = None
        self.ready = False
        self.torch = ""
        self.environment: dict[str, str] = dict(hello.get("environment") or {})
        self.facts: dict[str, Any] = {}
        script = _no_script(hello)
        if script:
            self.facts["no_script"] = script
        self.groups: dict[str, Group] = {}
        self.histories: dict[str, History] = {}
        self.exceptions: list[ExceptionInfo] = []
        self.loaders: dict[int, Loader] = {}
        self.broken: list[str] = []
        self.blind: list[tuple[str, str]] = []
        self.connected = True
        self.status: int | None = None
        self.signalled_by: int | None = None
        self.ended_ns = 0
        self.read_out = False
        """Ended, and nothing of it is still on the way."""
        self.ended_by_host = False
        self.calls = 0
        self.uncaught: int | None = None
        self._numbers: dict[int, int] = {}
        self._kind_ids: dict[int, int] = {}
        self._group_names: dict[int, str] = {}
        self._sites: dict[int, Site] = {}
        self._goodbye_ns = 0
        self._late: list[Record] = []
        self._passing: set[int] = set()  # exceptions that left a call, and may yet be handled

    # What the guest says

    def heard(self, message: Message) -> None:
        """Takes one message in. A message of unknown form is ignored: guests may be newer."""
        handler = getattr(self, f"_on_{message[0]}", None)
        if handler is not None:
            try:
                handler(*message[1:])
            except (TypeError, ValueError, KeyError, IndexError) as error:
                self.broken.append(f"{message[0]}: {error}")

    def _on_torch(self, version: str) -> None:
        self.torch = self.facts["torch_version"] = str(version)

    def _on_site(self, number: int, rows: list[Row]) -> None:
        self._sites[number] = self.kinds.site(rows)

    def _on_group(
        self,
        number: int,
        name: str,
        ranks: list[int],
        description: str,
        backend: str,
        timeout_s: float | None,
    ) -> None:
        self._group_names[number] = name
        if name != SETUP:
            self.groups[name] = Group(name, tuple(ranks), description, backend, timeout_s)

    def _on_kind(
        self, number: int, op: str, reduce_op: str | None, root: int | None, peer: int | None, tag: int | None,
        dtype: str | None, shapes: list[list[int]] | None, detail: str | None, site: int, inside: str,
    ) -> None:  # fmt: skip
        shape = tuple(tuple(int(n) for n in row) for row in shapes) if shapes is not None else None
        name = dtype.removeprefix("torch.") if dtype else None
        signature = Signature(op, reduce_op, root, peer, tag, name, shape, detail)
        kind = CallKind(signature, self._sites.get(site, ()), bool(inside), inside)
        self._kind_ids[number] = self.kinds.id(kind)

    def _on_init(
        self,
        rank: int | None,
        size: int | None,
        given: dict[str, Any],
        environment: dict[str, str],
        site: int,
    ) -> None:
        self.rank = rank
        self.environment = dict(environment)
        method = str(given.get("init_method") or "")
        address = method.partition("?")[0] if method and method != "env://" else ""
        if not address and "store" not in given:
            address = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}".strip(":")
        self.facts["init_arguments"] = {
            **{n: v for n, v in given.items() if v is not None}, "rank": rank, "world_size": size, "address": address,
        }  # fmt: skip
        self.facts["init_site"] = self._sites.get(site, ())
        self.facts["destroyed"] = False

    def _on_ready(self, rank: int, size: int, backend: str, device: int | None) -> None:
        self.rank, self.ready = rank, True
        self.facts["device"] = device
        self.facts["world_size"] = size
        self.facts["backend"] = backend

    def _on_loader(self, number: int, site: int) -> None:
        self.loaders[number] = Loader(self._sites.get(site, ()))

    def _on_exception(
        self,
        number: int,
        how: str,
        time_ns: int,
        kind: str,
        message: str,
        rows: list[Row],
        cause: str,
        main: bool,
    ) -> None:
        handled = how in ("logged", "handled")
        info = ExceptionInfo(kind, message, self.kinds.site(rows), time_ns, handled)
        self._numbers[number] = len(self.exceptions)
        if how == "passing":
            self._passing.add(len(self.exceptions))
        self.exceptions.append(info)
        if cause:
            self.facts.setdefault("causes", {})[len(self.exceptions) - 1] = cause
        if how == "uncaught" and main:
            self.uncaught = len(self.exceptions) - 1
        elif how == "thread":
            self.facts.setdefault("thread_exceptions", []).append(len(self.exceptions) - 1)

    def _on_again(self, number: int, how: str) -> None:
        index = self._numbers[number]
        info = self.exceptions[index]
        handled = how in ("logged", "handled")
        if how == "uncaught":
            self.uncaught = index
        self._passing.discard(index)
        self.exceptions[index] = replace(info, handled=handled)

    def _on_fact(self, name: str, *values: Any) -> None:
        if name == "exit_call":
            how, status, text, rows = values
            site = self.kinds.site(rows)
            if site:
                self.facts["exit_site"] = site
            self.facts["exit_call"] = {"how": how, "status": status, "text": text, "site": site}
        elif name == "argparse":
            self.facts["argparse"] = {"message": values[0], "site": self.kinds.site(values[1])}
        elif name == "outsider":
            calls = self.facts.setdefault("outsider_calls", [])
            if len(calls) < 50:
                calls.append({"op": values[0], "site": self.kinds.site(values[1])})
        else:
            self.facts[name] = values[0] if len(values) == 1 else list(values)

    def _on_observed(self, topic: str, row: Any) -> None:
        rows = self.facts.setdefault("observed", {}).setdefault(topic, [])
        if len(rows) >= OBSERVED:
            lost = self.facts.setdefault("observed_beyond", {})
            lost[topic] = lost.get(topic, 0) + 1
            return
        if isinstance(row, dict):
            for key in [k for k in row if k == "site" or k.endswith("_site")]:
                row[key] = self._sites.get(row[key], ())
        rows.append(row)

    def _on_digest(
        self, key: str, step: int, pattern: int, gradients: int | None, values: int,
        each_gradient: list[int | None] | None, each_value: list[int | None] | None,
    ) -> None:  # fmt: skip
        samples = self.facts.setdefault("digests", {}).setdefault(key, {})
        samples[step] = (gradients, values, each_gradient, each_value, pattern)

    def _on_goodbye(self, last: dict[str, Any]) -> None:
        self.facts["clean"] = True
        self._goodbye_ns = time.time_ns()
        self.facts["destroyed"] = bool(last.get("destroyed"))
        self.facts["group_alive"] = bool(last.get("group_alive"))
        if last.get("steps"):
            self.facts["steps"] = int(last["steps"])

    def _on_blind(self, what: str, why: str) -> None:
        self.blind.append((what, why))

    def _on_broken(self, error: str, place: str, off: bool) -> None:
        self.broken.append(f"{error} ({place}){' and stopped recording' if off else ''}")

    def schedule(self) -> None:
        """Notes for how long the main thread has run and has waited for a processor, some times a second."""
        rows: list[tuple[int, int, int]] = self.facts.setdefault("scheduled", [])
        now = time.time_ns()
        if rows and now - rows[-1][0] < SCHEDULE_NS:
            return
        seen = process.scheduled(self.pid, int(self.hello.get("tid") or self.pid))
        if seen is not None:
            rows.append((now, *seen))
            if len(rows) > SCHEDULES:
                del rows[: SCHEDULES // 2 : 2]  # what is old is kept more coarsely

    # What the ring holds

    def read(self) -> int:
        """Takes the new records of the ring into the histories; gives how many there were."""
        if self.ring is None:
            return 0
        records = self.ring.read()
        waiting, self._late = [*self._late, *records], []
        for index, record in enumerate(waiting):
            if record.what == wire.DRAW:
                self._draw(record)
            elif record.number in self._kind_ids and record.group in self._group_names:
                self._call(record)
            elif (
                self.connected
            ):  # its description is still on the way; what follows keeps its place behind it
                self._late = waiting[index:]
                break
        if self.ring.lost:
            self.facts["records_lost"] = self.ring.lost
        return len(records)

    def _call(self, record: Record) -> None:
        name = self._group_names[record.group]
        kind = self._kind_ids[record.number]
        signature = self.kinds.kinds[kind].signature
        if signature.is_p2p:
            name = p2p(name)
        history = self.histories.setdefault(name, History())
        if record.position > history.end:  # lost on the way: what is older cannot be told from it
            history.start, history.kinds, history.times_ns = record.position, array("Q"), array("Q")
        if record.position < history.end:
            return
        history.kinds.append(kind)
        history.times_ns.append(record.time_ns)
        if name != SETUP:
            self.calls += 1
            for index in [i for i in self._passing if self.exceptions[i].time_ns < record.time_ns]:
                self._passing.discard(index)  # the rank went on to another call
                self.exceptions[index] = replace(self.exceptions[index], handled=True)
        if len(history.kinds) > KEEP:
            cut = KEEP // 2
            history.start += cut
            del history.kinds[:cut]
            del history.times_ns[:cut]

    def _draw(self, record: Record) -> None:
        loader = self.loaders.get(record.number)
        if loader is None:
            return
        if record.state == wire.DONE:
            calls, number = loader.last
            if number and calls == self.calls and len(loader.without_calls) < 20:
                loader.without_calls.append(number)
            loader.last = (self.calls, record.position)
        loader.drawn = record.position
        loader.exhausted = record.state == wire.ISSUED
        loader.failed = record.state == wire.RAISED

    def call_of(self, serial: int) -> tuple[Record, str, int] | None:
        """(record, history name, kind) of a call that the ring still holds."""
        record = self.ring.record(serial) if self.ring is not None else None
        if record is None or record.number not in self._kind_ids or record.group not in self._group_names:
            return None
        kind = self._kind_ids[record.number]
        name = self._group_names[record.group]
        return record, p2p(name) if self.kinds.kinds[kind].signature.is_p2p else name, kind

    # How it ended

    def ended(self, status: int | None, *, by: int | None = None) -> None:
        """The process is gone; `status` as subprocess has it (negative: a signal), if known."""
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
        if status is not None and self.status is None:
            self.status = status
        if by is not None:
            self.signalled_by = by

    def exit(self) -> Exit | None:
        """How the process ended, or None while it runs."""
        clean = bool(self.facts.get("clean"))
        if not self.ended_ns and not clean:
            return None
        status, signal = self.status, None
        if status is not None and status < 0:
            signal = -status
            status = None
        exception = self.exceptions[self.uncaught] if self.uncaught is not None else None
        victim = self.ended_by_host or (
            self.signalled_by is not None and signal in (signals.SIGTERM, signals.SIGKILL, signals.SIGINT)
        )
        return Exit(self._goodbye_ns or self.ended_ns, status, signal, exception, clean, victim)

    def loader_facts(self) -> list[dict[str, Any]]:
        """The loaders as facts, oldest first, at most 256."""
        return [
            {
                "site": loader.site, "drawn": loader.drawn, "exhausted": loader.exhausted, "exception": loader.failed,
                "without_calls": list(loader.without_calls),
            }
            for loader in list(self.loaders.values())[-256:]
        ]  # fmt: skip


def _no_script(hello: dict[str, Any]) -> str:
    """The script that this Python was started with, if there is no such file."""
    words = [str(word) for word in hello.get("argv", ())][1:]
    while words and words[0] in ("-u", "-O", "-B", "-E", "-s"):
        del words[0]
    if not words or words[0].startswith("-"):
        return ""
    return "" if os.path.exists(os.path.join(str(hello.get("cwd", "")), words[0])) else words[0]
