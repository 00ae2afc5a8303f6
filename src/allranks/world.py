"""What is known of every rank: calls, waits, stacks, exits. Filled by a live run or by dumps, read by the judge.

Histories are columnar (arrays of signature and site ids), so that a world of thousands of ranks with
thousands of calls fits in memory and a live rank costs the host eight bytes a call.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

WORLD_GROUP = "0"
"""PyTorch's name of the default process group."""


SETUP = "0/setup"
"""The key in `RankState.histories` of the calls that make and end groups."""


def p2p(group: str) -> str:
    """The key in `RankState.histories` of a group's point-to-point calls, which pair by peer and not by position."""
    return f"{group}/p2p"


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame: `line` is where it stands now. `user` is False for frames of torch and the standard library."""

    path: str
    line: int
    function: str
    first_line: int = 0
    """The line at which the function's code begins; 0 where it is not known."""
    user: bool = True


Site = tuple[Frame, ...]
"""A call site: user frames, outermost first; the last is the line that made the call."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What the ranks of a group must agree on for a call to pair.

    `op` is the c10d name ("allreduce", "broadcast", "barrier", "send", "new_group", ...), `reduce_op` "SUM"...,
    `root` a global rank (broadcast, reduce, scatter, gather), `peer` the other global rank of a point-to-point
    call, `dtype` of the first tensor, `shape` the shapes of its tensors, `sizes` their element counts,
    `detail` anything else that must agree (the ranks of a new group). None: not known.
    """

    op: str
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    dtype: str | None = None
    shape: tuple[tuple[int, ...], ...] | None = None
    detail: str | None = None

    @property
    def is_p2p(self) -> bool:
        """True for point-to-point calls."""
        return self.op in ("send", "recv", "recv_any", "send_object", "recv_object")


@dataclass(frozen=True, slots=True)
class CallKind:
    """One distinct call of a program: its signature and the user's call site. Interned: histories hold its id."""

    signature: Signature
    site: Site
    hidden: bool = False
    """True when the user's line does not name a collective: DDP's forward or backward, SyncBatchNorm, FSDP..."""
    inside: str = ""
    """For hidden calls, what communicates: "DDP.forward", "DDP.backward", "DDP.__init__", "FSDP", ..."""


@dataclass(slots=True)
class History:
    """The calls of one rank in one group, in order. Position `start` is the first that is still held."""

    start: int = 0
    kinds: array[int] = field(default_factory=lambda: array("Q"))
    """Ids into `World.kinds`."""
    times_ns: array[int] = field(default_factory=lambda: array("Q"))
    """Unix time of each call's start in ns; empty where it is not known."""

    @property
    def end(self) -> int:
        """One past the last position: the number of calls made so far."""
        return self.start + len(self.kinds)

    def at(self, position: int) -> int | None:
        """The id of the call at `position`, or None if it was not made or is no longer held."""
        index = position - self.start
        return self.kinds[index] if 0 <= index < len(self.kinds) else None


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: PyTorch's name and description, its global ranks in group order."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""
    backend: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """What a blocked rank waits for.

    `kind`: "collective", "p2p", "store" (a key or the store barrier of init/new_group), "init" (rendezvous of
    init_process_group), "other". `group`/`position`/`call` say which call of `History` it sits in (the earliest
    unfinished one); `peers` the global ranks that must act for it to go on.
    """

    kind: str
    group: str | None = None
    position: int | None = None
    call: int | None = None
    peers: tuple[int, ...] = ()
    since_ns: int = 0
    detail: str = ""
    """For store waits the key or the address."""


@dataclass(frozen=True, slots=True)
class ExceptionInfo:
    """An exception as the rank saw it: `frames` outermost first, user and library frames alike."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    time_ns: int = 0
    handled: bool = False
    """True when user code swallowed it and went on."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a rank ended. `status` is the exit status if known, `signal` the killing signal's number."""

    time_ns: int = 0
    status: int | None = None
    signal: int | None = None
    exception: ExceptionInfo | None = None
    clean: bool = False
    """True when the interpreter ran to its end (exit handlers were called)."""
    ended_by_host: bool = False
    """True when allranks, the launch agent or a closing signal ended it: a victim, not a cause."""


@dataclass(slots=True)
class RankState:
    """All that is known of one rank."""

    rank: int
    local_rank: int | None = None
    node: str = ""
    pid: int = 0
    state: str = "running"
    """"starting" (not in a process group yet), "running", "blocked" (see `wait`), "exited" (see `exit`), "silent"
    (expected, never heard from)."""
    wait: Wait | None = None
    stack: tuple[Frame, ...] = ()
    """The main thread's present or last stack, outermost first."""
    stack_since_ns: int = 0
    exit: Exit | None = None
    histories: dict[str, History] = field(default_factory=dict)
    """By group name; point-to-point calls apart, under `p2p(name)`. Calls that make or end groups (init_process_group,
    new_group, destroy_process_group) are in the history of the default group's name with "/setup" appended."""
    groups: dict[str, Group] = field(default_factory=dict)
    """The groups as this rank knows them; names can mean different groups on different ranks when ranks made
    them in a different order."""
    exceptions: list[ExceptionInfo] = field(default_factory=list)
    """Exceptions seen on the way, swallowed or not, in order."""
    environment: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Other observations: loader turns, versions, device, warnings; keys are documented in `run/collect.py`."""

    def seen(self) -> bool:
        """False for a rank that runs or ran without a recorder: what it called is not known."""
        return self.state != "silent" and not self.facts.get("unheard")

    def stack_is_old(self) -> bool:
        """True when the rank has made a call since `stack` was taken: it no longer stands there."""
        last = max((h.times_ns[-1] for h in self.histories.values() if h.times_ns), default=0)
        return bool(self.stack) and self.stack_since_ns < last

    def last_call(self) -> int | None:
        """The id of the latest call in any group, or None."""
        made = [(h.times_ns[-1], h.kinds[-1]) for h in self.histories.values() if h.kinds and h.times_ns]
        return max(made)[1] if made else None


@dataclass(slots=True)
class World:
    """Every rank of one job at one moment."""

    size: int | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    kinds: dict[int, CallKind] = field(default_factory=dict)
    """Interned calls: id -> what and where."""
    now_ns: int = 0
    root: str = ""
    """The folder the job ran in; paths of frames under it are shown relative to it."""
    agents: list[dict[str, Any]] = field(default_factory=list)
    """Launch agents and other processes that are not ranks, with what they reported (children's statuses, errors)."""
    live: bool = False
    """True for a run that is being watched, False for dumps."""
    compared: dict[str, int] = field(default_factory=dict)
    """By group name, the position up to which the judge has found the histories to agree: it need not look again."""

    def kind(self, call: int | None) -> CallKind | None:
        """The interned call with this id, or None."""
        return self.kinds.get(call) if call is not None else None
