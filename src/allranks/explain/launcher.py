"""What launchers, schedulers and the kernel say of processes: who failed with which status, who was ended by whom.

Reads torchrun's failure tables and log lines, mp.spawn, srun, mpirun, deepspeed, shells and Kubernetes.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..judge.signals import signal_name
from .logs import mentioned_rank, seconds

if TYPE_CHECKING:
    from .logs import Line

ENDED = (signal.SIGTERM, signal.SIGINT)
"""Signals by which a launcher or a user ends a process: whoever dies of them is not the cause."""

_TABLE_RANK = re.compile(r"\s*rank\s+: (?P<rank>\d{1,7}) \(local_rank: (?P<local>-?\d{1,5})\)")
_TABLE_EXIT = re.compile(r"\s*exitcode\s*: (?P<status>-?\d{1,5})\s+\(pid: (?P<pid>\d+)\)")
_TABLE_TIME = re.compile(
    r"\s*time\s+: \d{4}-(?P<month>\d\d)-(?P<day>\d\d)_(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
)
_TABLE_HOST = re.compile(r"\s*host\s+: (?P<host>\S+)")
_FAILED = re.compile(
    r"failed \(exitcode: (?P<status>-?\d{1,5})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d+)\)"
)
_CLOSING = re.compile(
    r"(?:Sending process (?P<pid>\d+) closing signal|Closing process (?P<pid2>\d+) via signal"
    r"|Unable to shutdown process (?P<pid3>\d+) via|Killing subprocess (?P<pid4>\d+))"
)
_SRUN = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,\- ]+): (?P<how>.+)")
_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal (?P<signal>\d{1,2})"
)
_DEEPSPEED = re.compile(r"exits with return code = (?P<status>-?\d{1,5})")
"""DeepSpeed names the command of the process that it started last, not of the one that failed."""
_LIGHTNING = re.compile(
    r"Child process with PID (?P<pid>\d{1,9}) terminated with code (?P<status>-?\d{1,5})\."
)
_SPAWNED = re.compile(
    r"process (?P<rank>\d{1,5}) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<status>\d{1,5}))"
)
_CALLED = re.compile(
    r"CalledProcessError: .{0,4000}(?:died with <Signals\.(?P<name>SIG\w+)"
    r"|returned non-zero exit status (?P<status>\d{1,5}))"
)
_SHELL = re.compile(
    r"(?:.{0,300}: line \d+: +)?(?P<pid>\d{2,8}) (?P<how>Killed|Segmentation fault|Bus error|Aborted)\b"
)
_BARE = re.compile(r"(?P<how>Killed|Segmentation fault|Bus error|Aborted)(?: \(core dumped\))?$")
_CONTAINER = re.compile(r"(?:exit code:?|Exit Code:) +(?P<status>137|139|135|134)\b", re.IGNORECASE)
_HOW = {
    "killed": signal.SIGKILL,
    "segmentation fault": signal.SIGSEGV,
    "bus error": signal.SIGBUS,
    "aborted": signal.SIGABRT,
    "terminated": signal.SIGTERM,
    "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
}
_HOW_EXIT = re.compile(r"Exited with exit code (\d{1,5})")

_WORLD = re.compile(
    r"world[_ -]?size[\"']?\s*[:=]?\s*(?P<size>\d{1,6})\b|\bworld[ =:]+(?P<size2>\d{1,6})\b"
    r"|MEMBER: \d+/(?P<size3>\d{1,6})|[Nn]um(?:ber of)?[_ ]processes[\"']?\s*[:=]\s*(?P<size4>\d{1,6})\b"
)
_PER_NODE = re.compile(r"--nproc[_-]per[_-]node[= ](?P<n>\d{1,4})\b")
_NODES = re.compile(r"--nnodes[= ](?P<n>\d{1,5})\b")
_MET = re.compile(r"Completed store-based barrier for key: ?store_based_barrier_key:(?P<number>\d{1,9})")
_AGENT = re.compile(r"torch[./]distributed[./](?:run|elastic|launcher)|torchrun")


@dataclass(slots=True)
class Exit:
    """How one process ended, as its launcher tells. `first` is torchrun's "first observed failure", which means only
    that this process died first."""

    line: Line
    rank: int | None = None
    local: int | None = None
    pid: int | None = None
    node: str = ""
    status: int | None = None
    first: bool = False
    time: float | None = None

    @property
    def signal(self) -> int | None:
        """The number of the killing signal; shells and containers report it as 128 + number."""
        if self.status is None:
            return None
        if self.status < 0:
            return -self.status
        return self.status - 128 if 128 < self.status < 160 else None

    @property
    def signal_name(self) -> str:
        """SIGKILL and the like; the number where it has no name."""
        return "" if self.signal is None else signal_name(self.signal)

    @property
    def ended(self) -> bool:
        """True when the process was ended from outside by the launcher or a user: a victim."""
        return self.signal in ENDED


@dataclass(slots=True)
class Launch:
    """All that is known of the job's processes."""

    exits: list[Exit] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    """Process ids that the launcher ended: they were alive when another one failed."""
    told: int = 0
    """The largest world size that a line names."""
    per_node: int | None = None
    nodes: int | None = None
    ranks: set[int] = field(default_factory=set)
    last_words: dict[int, Line] = field(default_factory=dict)
    """The last line that each rank printed, where lines tell their rank."""
    met: set[str] = field(default_factory=set)
    """Numbers of the barriers of new groups that ranks have passed: all ranks had come."""
    agents: bool = False
    """True when torchrun's agent printed something."""
    tables: int = 0

    @property
    def size(self) -> int | None:
        """The world size: what the log says, or at least as many as there are ranks in it."""
        told = self.told
        if self.per_node:
            told = max(told, self.per_node * (self.nodes or 1))
        return max(told, max(self.ranks, default=-1) + 1) or None

    def alive_at_the_end(self, rank: int) -> bool | None:
        """Whether a rank was still running when the job was ended; None when nothing tells."""
        for one in self.exits:
            if one.rank == rank:
                return one.ended or (one.pid in self.closed)
        left = self.left()
        return False if left is not None and rank in left else None

    def left(self) -> tuple[int, ...] | None:
        """Ranks that had ended with status 0 before the job failed: those that a whole failure table leaves out.
        None when the table does not tell (old torchrun lists no process that it ended itself)."""
        size = self.size
        listed = {one.rank for one in self.exits if one.rank is not None}
        if not self.tables or size is None or not listed:
            return None
        pids = {one.pid for one in self.exits}
        if not self.closed <= pids:
            return None if len(listed) + len(self.closed - pids) < size else ()
        return tuple(rank for rank in range(size) if rank not in listed)

    def unaccounted(self) -> int | None:
        """How many processes neither failed nor were ended by the launcher: they had ended with status 0. None when
        that cannot be counted: several nodes, or no launcher that lists failures."""
        size = self.size
        listed = {one.pid: one for one in self.exits if one.pid is not None and one.status}
        hosts = {one.node for one in self.exits if one.node}
        if size is None or not listed or (self.nodes or 1) > 1 or len(hosts) > 1:
            return None
        count = size - len(listed.keys() | self.closed)
        return count if count >= 0 else None


class Reader:
    """Fills a `Launch` from lines, those inside tracebacks too."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._known: dict[tuple[int | None, int | None], Exit] = {}
        self._row: Exit | None = None
        self._first = False
        self._host = ""
        self._time: float | None = None

    @property
    def row(self) -> Exit | None:
        """The row of a failure table that is being read."""
        return self._row

    def feed(self, line: Line) -> bool:
        """Takes one line; True when it says something of a process's end."""
        text = line.text
        self._notice(line, text)
        if " : " in text and self._table(line, text):
            return True
        if "Root Cause (first observed failure)" in text:
            self._first = True
            return True
        if text.startswith("Failures:"):
            self._first = False
            self.launch.tables += 1
        if "exitcode: " in text and (match := _FAILED.search(text)):
            status, local, pid = int(match["status"]), int(match["local"]), int(match["pid"])
            self._add(Exit(line, None, local, pid, line.origin.node, status, time=line.time))
            return True
        if "process " in text and (match := _CLOSING.search(text)):
            self.launch.closed.add(int(next(filter(None, match.groups()))))
            return True
        return any(word in text for word in _OTHERS) and self._elsewhere(line, text)

    def _notice(self, line: Line, text: str) -> None:
        launch = self.launch
        rank = line.origin.rank if line.origin.rank is not None else mentioned_rank(text)
        if rank is not None and rank < _MOST_RANKS:
            launch.ranks.add(rank)
            if text.strip():
                launch.last_words[rank] = line
        if any(word in text for word in _SIZES) and (match := _WORLD.search(text)):
            size = int(next(filter(None, match.groups())))
            launch.told = max(launch.told, size if size <= _MOST_RANKS else 0)
        if "--n" in text:
            if match := _PER_NODE.search(text):
                launch.per_node = int(match["n"])
            if match := _NODES.search(text):
                launch.nodes = int(match["n"])
            elif "--standalone" in text:
                launch.nodes = 1
        if "store-based barrier" in text and (match := _MET.search(text)):
            launch.met.add(match["number"])
        if not launch.agents and _AGENT.search(text):
            launch.agents = True

    def _table(self, line: Line, text: str) -> bool:
        if match := _TABLE_TIME.match(text):
            self._time = seconds(match)
        elif match := _TABLE_HOST.match(text):
            self._host = match["host"]
        elif match := _TABLE_RANK.match(text):
            rank, local = int(match["rank"]), int(match["local"])
            self._row = Exit(line, rank, local, node=self._host, first=self._first, time=self._time)
            if rank < _MOST_RANKS:
                self.launch.ranks.add(rank)
        elif (match := _TABLE_EXIT.match(text)) and self._row is not None:
            self._row.status, self._row.pid, self._row.line = int(match["status"]), int(match["pid"]), line
            self._add(self._row)
        else:
            return False
        return True

    def _elsewhere(self, line: Line, text: str) -> bool:
        """Launchers other than torchrun."""
        if len(self.launch.exits) >= _MOST_EXITS:
            return False
        found = []
        if match := _SRUN.search(text):
            status = _status(match["how"])
            found = [
                Exit(line, None if self.launch.agents else task, node=match["node"], status=status)
                for task in _numbers(match["tasks"])
            ]
        elif match := _MPIRUN.search(text):
            status, rank = -int(match["signal"]), int(match["rank"])
            found = [Exit(line, rank, pid=int(match["pid"]), node=match["node"], status=status)]
        elif match := _DEEPSPEED.search(text):
            found = [Exit(line, status=int(match["status"]))]
        elif match := _LIGHTNING.search(text):
            found = [Exit(line, pid=int(match["pid"]), status=int(match["status"]))]
        elif match := _SPAWNED.search(text):
            found = [Exit(line, int(match["rank"]), status=_named(match["name"], match["status"]))]
        elif match := _CALLED.search(text):
            found = [Exit(line, status=_named(match["name"], match["status"]))]
        elif match := _SHELL.match(text):
            found = [Exit(line, pid=int(match["pid"]), status=_status(match["how"]))]
        elif match := _BARE.match(text):
            found = [Exit(line, status=_status(match["how"]))]
        elif match := _CONTAINER.search(text):
            found = [Exit(line, status=int(match["status"]))]
        for one in found:
            self._add(one)
        return bool(found)

    def _add(self, new: Exit) -> None:
        """Adds an exit, or completes the one that is already known of the same process."""
        known = self._known.get((new.pid, new.status)) if new.pid is not None else None
        if known is not None:
            known.rank = known.rank if known.rank is not None else new.rank
            known.local = known.local if known.local is not None else new.local
            known.first = known.first or new.first
            known.node = known.node or new.node
        elif len(self.launch.exits) < _MOST_EXITS:
            self.launch.exits.append(new)
            self._known[new.pid, new.status] = new


_OTHERS = (
    "srun: error",
    "exited on signal",
    "return code",
    "terminated with",
    "CalledProcessError",
    "Killed",
    "fault",
    "Bus error",
    "Aborted",
    "xit code",
    "xit Code",
)
"""What stands in every line that another launcher, a shell or a container writes of an end."""
_SIZES = ("orld", "MEMBER: ", "rocesses")
_MOST_EXITS = 20_000
_MOST_RANKS = 1 << 17
"""No job is larger; a number above it is no rank and no world size."""


def _named(name: str | None, status: str | None) -> int | None:
    if name:
        try:
            return -signal.Signals[name].value
        except KeyError:
            return None
    return int(status) if status else None


def _status(how: str) -> int | None:
    """The exit status that srun's or a shell's words stand for, negative for a signal."""
    if match := _HOW_EXIT.search(how):
        return int(match[1])
    if "Out Of Memory" in how:
        return -signal.SIGKILL
    words = how.lower()
    return next((-number.value for name, number in _HOW.items() if words.startswith(name)), None)


def _numbers(tasks: str) -> list[int]:
    """ "0-2,5" -> [0, 1, 2, 5], of which at most a few thousand."""
    numbers: list[int] = []
    for part in tasks.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            numbers += range(
                int(first), min(int(last) if last.isdigit() else int(first), int(first) + 4096) + 1
            )
    return numbers[:4096]
