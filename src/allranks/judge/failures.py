"""How ranks ended, in order of time: whose failure is its own, and whose follows from another rank's.

A communication error (connection closed, timed out) says that some *other* rank is gone or late; SIGTERM comes
from a launch agent that ends the survivors; SIGABRT after a clean end is torch 2.13 tearing down its threads.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import Enum, auto

from ..world import ExceptionInfo, Exit, Frame, RankState, World
from .signatures import Match, classify_exception


class Blame(Enum):
    """Whose failure it is."""

    OWN = auto()
    VICTIM = auto()
    """It follows from what happened on another rank."""
    TIMEOUT = auto()
    """A victim too, of a rank that came too late or not at all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of one rank (or of a process that never became one: `rank` None)."""

    rank: int | None
    blame: Blame
    time_ns: int
    exception: ExceptionInfo | None = None
    signal: int | None = None
    status: int | None = None
    match: Match | None = None

    @property
    def asked_for(self) -> bool:
        """True when somebody wanted it to end: Ctrl-C, SIGTERM from a person, a scheduler, the launch agent or us."""
        return self.blame is Blame.VICTIM and (
            self.exception is None or self.exception.type.rpartition(".")[2] in _INTERRUPTS
        )

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user frames of the exception, outermost first."""
        return tuple(f for f in (self.exception.frames if self.exception else ()) if f.user)


_INTERRUPTS = ("KeyboardInterrupt", "SignalException")
_TIMEOUT_WORDS = ("Timed out waiting", "timed out", "Timeout", "timeout", "failed to pass monitoredBarrier")


def failures(world: World) -> list[Failure]:
    """Every failed end in order of time; of equal times, own failures first."""
    found = [f for state in world.ranks.values() if (f := _of_rank(state)) is not None]
    found += [f for process in world.agents if (f := _of_process(process)) is not None]
    return sorted(found, key=lambda f: (f.time_ns, f.blame.value))


def _of_rank(state: RankState) -> Failure | None:
    end = state.exit
    if state.state != "exited" or end is None:
        return None
    return _judged(state.rank, end, clean=bool(end.clean or state.facts.get("clean")))


def _of_process(process: dict[str, object]) -> Failure | None:
    """A process that ended with an exception before it was a rank; a launch agent's report on its children is none."""
    end = process.get("exit")
    if not isinstance(end, Exit) or end.exception is None or process.get("role") == "agent":
        return None
    return _judged(None, end, clean=False)


def _judged(rank: int | None, end: Exit, *, clean: bool) -> Failure | None:
    if end.exception is not None:
        match = classify_exception(end.exception.type, end.exception.message, _stack(end.exception))
        return Failure(
            rank,
            _blame(end.exception, match),
            end.exception.time_ns or end.time_ns,
            end.exception,
            end.signal,
            end.status,
            match,
        )
    if end.signal is not None:
        # "terminate called without an active exception", while the interpreter was shutting down.
        if clean and end.signal == signals.SIGABRT:
            return None
        victim = end.ended_by_host or end.signal in (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)
        return Failure(rank, Blame.VICTIM if victim else Blame.OWN, end.time_ns, None, end.signal)
    if end.status:
        return Failure(
            rank, Blame.VICTIM if end.ended_by_host else Blame.OWN, end.time_ns, None, None, end.status
        )
    return None


def _stack(exception: ExceptionInfo) -> str:
    return "\n".join(f"{frame.path}:{frame.line} {frame.function}" for frame in exception.frames)


def _blame(exception: ExceptionInfo, match: Match | None) -> Blame:
    if match is not None and match.role == "victim":
        timed_out = any(word in exception.message for word in _TIMEOUT_WORDS)
        return Blame.TIMEOUT if timed_out else Blame.VICTIM
    return Blame.VICTIM if exception.type.rpartition(".")[2] in _INTERRUPTS else Blame.OWN
