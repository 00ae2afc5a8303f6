"""From the lines of a job's logs to incidents: what failed where, on which ranks, read by the table of messages."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..judge.signatures import Match, fragment_pattern, match, speaks
from . import scan
from .launcher import Launch, Reader
from .logs import Origin, lines, plain
from .tracebacks import Assembler
from .watchdog import Watchdogs

if TYPE_CHECKING:
    from ..world import Frame
    from .logs import Line
    from .raised import Raised, Traceback
    from .streams import Stream

_MOST = 4000
"""Incidents that are kept apart; of more only the counts of known ones grow."""
_EVIDENCE = 12
_TEXT_LINES = 40
_LAST_LINES = 40
_TOLD = 3
_PENDING = 64
_CALLSTACK = '"py_callstack": '

_LAUNCHERS = re.compile(
    r"(?:ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|RayTaskError(?:\(\w+\))?"
    r"|TrainingFailedError|RayActorError|MPIExecutionError)$"
)
"""Exceptions of a parent process: they tell that a child failed, not why."""
_STOPPED = re.compile(r"(?:KeyboardInterrupt|^Timeout|SignalException|SIGTERMException|GracefulExit)$")
"""Exceptions by which a process is stopped from outside. Their stacks show where it stood."""
_LAUNCHER_FILES = re.compile(r"torch[/\\]distributed[/\\](?:launcher[/\\]api|launch)\.py$")
"""Where launchers raise that a child failed, whatever is left of the exception's name."""
_QUIET = re.compile(r"(?:SystemExit|GeneratorExit|StopIteration)$")
_TEARDOWN = re.compile(
    r"(?:ConnectionResetError|BrokenPipeError|EOFError|ConnectionRefusedError|FileNotFoundError)$"
)
_STRAY = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::|$)")

_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\](?!torch[/\\]|torch\w*\.py)")

_COLLECTIVES = re.compile(
    r"(?:all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|scatter|gather|reduce|barrier|monitored_barrier"
    r"|i?send|i?recv|batch_isend_irecv)\w*$"
)
_SETUP = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "init_device_mesh": "new_group",
}


@dataclass(slots=True)
class Incident:
    """Something that failed, or a warning; equal ones of several ranks are one.

    `role` is "cause", "victim", "note", "stopped" (ended from outside) or "stray" (an exception's line without its
    traceback). `call` is the communicating call it stands in, as its stack tells.
    """

    role: str
    readings: list[Match]
    type: str
    text: str
    frame: Frame | None
    first: Line
    call: str = ""
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    locals: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    """Indices of the devices that the texts name."""
    unknown: int = 0
    """How many times it was printed by a rank that the log does not name."""
    anonymous: bool = False
    """True when several ranks may have printed it into each other: its lines bear no prefix."""
    lines: list[Line] = field(default_factory=list)
    last: int = 0
    """Number of the last line of its last occurrence."""
    error: Raised | None = None
    """The exception with its whole stack, of the first occurrence; None for lines without a traceback."""
    time: float | None = None

    @property
    def fault(self) -> str:
        """The likeliest fault; an exception that the table does not know is the rank's own."""
        return self.readings[0].fault if self.readings else "child-failed-first"

    @property
    def signature(self) -> str:
        """The name of the table's row, or ""."""
        return self.readings[0].signature if self.readings else ""

    @property
    def raised(self) -> bool:
        """True when it has a traceback."""
        return self.error is not None

    @property
    def order(self) -> tuple[str, int]:
        """Where it first stands."""
        return self.first.origin.file, self.first.number


@dataclass(slots=True)
class Story:
    """All that the logs of one job tell."""

    incidents: dict[tuple[object, ...], Incident] = field(default_factory=dict)
    launch: Launch = field(default_factory=Launch)
    watchdogs: Watchdogs = field(default_factory=Watchdogs)
    last: deque[Line] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    files: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    skipped: bool = False
    distributed: bool = False
    """True once a line speaks of a multi-process job."""

    def of(self, *roles: str) -> list[Incident]:
        """The incidents with one of these roles, in the order in which they happened."""
        found = [incident for incident in self.incidents.values() if incident.role in roles]
        return in_order(found)


def in_order(incidents: list[Incident]) -> list[Incident]:
    """The incidents as they happened: by time where all of several files bear one, else by file and line."""
    several = len({incident.first.origin.file for incident in incidents}) > 1
    if several and all(incident.time is not None for incident in incidents):
        return sorted(incidents, key=lambda incident: (incident.time or 0.0, incident.order))
    return sorted(incidents, key=lambda incident: incident.order)


def read(stream: Stream, story: Story, origin: Origin | None = None, time: float | None = None) -> None:
    """Reads one log into `story`. Memory stays bounded however long the log is. `origin` is what its path tells of
    who wrote it, `time` that of its first line where it is known from elsewhere."""
    name = stream.name
    story.files.append(name)
    count = scan.Count()
    reading = _Reading(story)
    if time is not None:
        reading.stamps.append((0, time))
    for line in lines(scan.windows(stream, count), name, origin):
        if line is None:
            reading.gap()
        else:
            reading.feed(line)
    reading.gap()
    story.lines += count.lines
    story.size += count.size
    story.skipped |= count.skipped
    if stream.cut:
        story.cut.append(name)


@dataclass(slots=True)
class _Text:
    """A line that the table may know, with the indented lines below it."""

    lines: list[Line]

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


@dataclass(slots=True)
class _Writer:
    """Whoever prints under one prefix: a rank, a node's launcher, or all ranks into each other."""

    origin: Origin
    assembler: Assembler = field(default_factory=Assembler)
    text: _Text | None = None


class _Reading:
    """The state of reading one file."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.launcher = Reader(story.launch)
        self.writers: dict[int, _Writer] = {}
        self.interesting = fragment_pattern()
        self.stamps: list[tuple[int, float]] = []
        self.table_rank: dict[int, int] = {}

    def feed(self, line: Line) -> None:
        """Takes one line, and the traceback that a line of torch's error handler holds as a JSON string."""
        self._feed(line)
        if _CALLSTACK in line.text:
            start = line.text.index(_CALLSTACK) + len(_CALLSTACK)
            for text in _unquoted(line.text[start:]).splitlines():
                self._feed(replace(line, text=plain(text)))

    def _feed(self, line: Line) -> None:
        story, origin, text = self.story, line.origin, line.text
        if line.time is not None and (not self.stamps or self.stamps[-1][1] != line.time):
            self.stamps.append((line.number, line.time))
        if text.strip():
            story.last.append(line)
        told = self.launcher.feed(line)
        if "NCCL" in text or "collective #" in text or story.watchdogs.torn is not None:
            story.watchdogs.feed(line)
        if "traceback : " in text and self.launcher.row is not None and self.launcher.row.rank is not None:
            self.table_rank[line.number] = self.launcher.row.rank
        writer = self.writers.get(id(origin))
        if writer is None:
            writer = self.writers.setdefault(id(origin), _Writer(origin))
        part = writer.assembler.feed(line)
        if len(writer.assembler.done) > _PENDING:
            self._take(writer, _PENDING // 2)
        growing = writer.text
        if growing is not None:
            if not part and text[:1] in (" ", "\t") and text.strip() and len(growing.lines) < _TEXT_LINES:
                growing.lines.append(line)
                return
            writer.text = None
            self._text(growing)
        if not part and not told and (self.interesting.search(text) or _STRAY.match(text)):
            writer.text = _Text([line])

    def gap(self) -> None:
        """Nothing that follows belongs to what came before."""
        for writer in self.writers.values():
            writer.assembler.close()
            self._take(writer, len(writer.assembler.done))
            if writer.text is not None:
                self._text(writer.text)
                writer.text = None
        self.stamps = self.stamps[-1:]

    def _take(self, writer: _Writer, count: int) -> None:
        """Takes over the oldest tracebacks. The newest wait: lines of their messages, or what was raised while they
        were handled, may follow."""
        for traceback in writer.assembler.done[:count]:
            self._traceback(writer.origin, traceback)
        del writer.assembler.done[:count]

    def _time(self, number: int) -> float | None:
        """The last time stamp at or before a line."""
        at = bisect_right(self.stamps, (number, float("inf")))
        return self.stamps[at - 1][1] if at else None

    # ------------------------------------------------------------------------------------------------- incidents

    def _traceback(self, origin: Origin, traceback: Traceback) -> None:
        final = traceback.final
        if all(_QUIET.search(raised.type) for raised in traceback.chain):
            return
        own = [raised for raised in traceback.chain if not _of_launcher(raised)]
        if not own:
            return
        if final.ignored or (not any(r.user_frame for r in own) and _TEARDOWN.search(final.type)):
            return
        told = "\n".join(r.text for r in own)
        if not told.strip() and own[-1].code:
            # Cut off before its message: the statement that raised it may hold it.
            told = own[-1].code[-1]
        readings = [one for one in match(told, traceback.stack) if one.role != "note"]
        raised = _speaking(own, readings)
        if readings:
            role = readings[0].role
        elif not raised.type:
            # Torn: two processes wrote its last line at once, or it was not copied.
            role = "stray"
        else:
            role = "stopped" if _STOPPED.search(raised.type) else "cause"
        frame = raised.user_frame or next((r.user_frame for r in reversed(own) if r.user_frame), None)
        shown = _shown(traceback, frame, raised, readings)
        frame = frame or _nearest(raised)
        rank = self.table_rank.get(traceback.lines[0].number, traceback.process) if traceback.lines else None
        call = call_of(raised.frames)
        key = (
            role,
            readings[0].signature if readings else raised.type,
            frame,
            call,
            frame is None and raised.message,
        )
        self._add(
            key,
            Incident(
                role, readings, raised.type, raised.text, frame, shown[0] if shown else traceback.lines[0],
                call=call, error=raised, time=self._time(raised.first),
            ),
            origin, rank, shown,
        )  # fmt: skip

    def _text(self, growing: _Text) -> None:
        line, text = growing.lines[0], growing.text
        readings = match(text)
        if not readings:
            found = _STRAY.match(text)
            if found is None or _LAUNCHERS.search(text.partition(":")[0]):
                return
            name = text.partition(":")[0]
            incident = Incident("stray", [], name, text[:2000], None, line, time=self._time(line.number))
            self._add(("stray", name, text[:200]), incident, line.origin, None, growing.lines[:3])
            return
        first = readings[0]
        if first.signature == "closing-signal":
            return
        incident = Incident(first.role, readings, "", text[:2000], None, line, time=self._time(line.number))
        self._add((first.role, first.signature, None), incident, line.origin, None, growing.lines[:4])

    def _add(
        self, key: tuple[object, ...], new: Incident, origin: Origin, rank: int | None, shown: list[Line]
    ) -> None:
        known = self.story.incidents.get(key)
        if known is None:
            if len(self.story.incidents) >= _MOST:
                return
            known = self.story.incidents.setdefault(key, new)
        known.count += 1
        if known.anonymous and known.text.startswith(new.text):
            # The same without what another process wrote into it.
            known.text = new.text
        known.anonymous |= (
            origin.rank is None and origin.local is None and origin.task is None and origin.pid is None
        )
        known.last = max(known.last, shown[-1].number if shown else 0)
        if len(known.lines) + len(shown) <= _EVIDENCE or known is new:
            known.lines += shown
        known.devices |= {one.captures["device"] for one in new.readings[:1] if "device" in one.captures}
        said = [one.captures["rank"] for one in new.readings[:1] if one.captures.get("rank", "").isdigit()]
        if origin.rank is not None:
            known.ranks.add(origin.rank)
        elif rank is not None:
            known.ranks.add(rank)
        elif origin.local is not None:
            known.locals.add(origin.local)
        elif origin.task is not None and not self.story.launch.agents:
            known.ranks.add(origin.task)
        elif said:
            known.ranks.add(int(said[0][:9]))
        else:
            known.unknown += 1
        if origin.node:
            known.nodes.add(origin.node)


def _of_launcher(raised: Raised) -> bool:
    return bool(
        _LAUNCHERS.search(raised.type)
        or (raised.frames and _LAUNCHER_FILES.search(raised.frames[-1].path) and raised.user_frame is None)
    )


def _unquoted(text: str) -> str:
    """The JSON string that `text` starts with; empty where it is cut off."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def _speaking(own: list[Raised], readings: list[Match]) -> Raised:
    """The exception of a chain that the verdict is about: the one whose text the table knows, else the first that
    user code raised, which the later ones follow from."""
    if readings:
        name = readings[0].signature
        knows = [r for r in own if any(one.signature == name for one in match(r.text, "\n".join(r.code)))]
        with_place = [raised for raised in knows if raised.user_frame]
        if with_place or knows:
            return (with_place or knows)[0]
    return next((raised for raised in own if raised.user_frame), own[0])


def _nearest(raised: Raised) -> Frame | None:
    """Without user code in the stack: the innermost frame outside of torch and the standard library."""
    return next((f for f in reversed(raised.frames) if _INSTALLED.search(f.path)), None)


def _shown(traceback: Traceback, frame: Frame | None, raised: Raised, readings: list[Match]) -> list[Line]:
    """The lines of a traceback that say most: the user's frame with its source line, the exception, and what lines
    of its message the table reads."""
    shown: list[Line] = []
    for at, line in enumerate(traceback.lines):
        if frame is not None and not shown and _names(line.text, frame):
            shown += traceback.lines[at : at + 2]
    ends = [line for line in traceback.lines if line.number == raised.end]
    more = [line for line in raised.more if readings and speaks(readings[0].signature, line.text)]
    return shown + [line for line in [*ends, *more[:_TOLD]] if line not in shown]


def _names(text: str, frame: Frame) -> bool:
    return frame.path in text and re.search(rf"(?:line |:){frame.line}\b", text) is not None


def call_of(frames: list[Frame]) -> str:
    """The communicating call that a stack stands in, innermost first: a collective, "backward", "DDP.forward"..."""
    for frame in reversed(frames):
        if frame.user:
            continue
        path, function = frame.path.replace("\\", "/"), frame.function.rpartition(".")[2]
        if path.endswith("distributed_c10d.py"):
            if function in _SETUP:
                return _SETUP[function]
            if _COLLECTIVES.match(function):
                return function
        elif path.endswith("nn/parallel/distributed.py") and function in ("forward", "__init__"):
            return f"DDP.{function}"
        elif path.endswith("torch/_tensor.py") and function == "backward":
            return "backward"
    return ""
