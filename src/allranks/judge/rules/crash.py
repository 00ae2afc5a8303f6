"""Failures of one rank that take the others with them: whose came first, and what it was."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ...faults import catalogue
from ...findings import Confidence, Evidence, Finding, Location, Severity, Text, say
from ..case import Case, ranks_text
from ..failures import Blame, Failure
from ..signals import remedy, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...world import RankState


def verdict(case: Case, failure: Failure) -> Finding:
    """The finding of a failure that is its rank's own; what followed on the others is its evidence."""
    make: Callable[[Case, Failure], tuple[str, Text, Text | None]]
    if failure.exception is not None:
        make = _known if failure.match is not None else _unknown
    elif failure.signal is not None:
        make = _killed
    else:
        make = _status
    fault, message, fix = make(case, failure)
    ranks = (failure.rank,) if failure.rank is not None else ()
    return Finding(
        fault=fault,
        severity=max(catalogue()[fault].severity, Severity.ERROR, key=lambda s: s.weight),
        confidence=Confidence.MEASURED if failure.match is None else Confidence.INFERRED,
        message=message,
        location=_location(case, failure),
        ranks=_alike(case, failure) or ranks,
        evidence=tuple(_evidence(case, failure)),
        fix=fix,
    )


def without_a_word(case: Case) -> Finding | None:
    """Ranks that others wait for and that ended without an exception, a goodbye or a status that anybody saw: a
    launcher that is a shell script tells none."""
    awaited = {*case.dead.gone, *(case.deviation.missing if case.deviation is not None else ())}
    gone = tuple(sorted(r for r in awaited if r in case.world.ranks and _vanished(case.world.ranks[r])))
    if not gone:
        return None
    state = case.world.ranks[gone[0]]
    called = state.facts.get("exit_call")
    fix: Text | None
    if called:
        number = -called["status"]
        message = say(
            "{who} was killed by {signal}; what the other ranks met follows from it",
            who=ranks_text(gone),
            signal=signal_name(number),
        )
        fix = say("it sent the signal to itself, with os.kill: see why it gives up there")
    else:
        message = say(
            "{who} was ended from outside, without a word: by a signal, most often SIGKILL of the out-of-memory killer",
            who=ranks_text(gone),
        )
        fix = remedy(signal.SIGKILL)
    return Finding(
        fault="killed-by-signal",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED if called else Confidence.INFERRED,
        message=message,
        location=_last_seen(case, state),
        ranks=gone,
        evidence=tuple(e for e in (case.cycle(),) if e is not None),
        fix=fix,
    )


def _vanished(state: RankState) -> bool:
    end = state.exit
    if state.state != "exited" or end is None or not state.seen():
        return False
    if end.clean or end.ended_by_host or end.exception is not None or state.facts.get("clean"):
        return False
    how = (state.facts.get("exit_call") or {}).get("how", "os.kill")
    return end.status is None and end.signal is None and how == "os.kill"


def _alike(case: Case, failure: Failure) -> tuple[int, ...]:
    """All ranks that failed by themselves in the same way at the same line: a fault of the program, not of a rank."""
    if failure.signal is not None:
        return ()
    key = _way(failure)
    own = (f for f in case.failures if f.blame is Blame.OWN and _way(f) == key)
    return tuple(f.rank for f in own if f.rank is not None)


def _way(failure: Failure) -> tuple[object, ...]:
    if failure.exception is None:
        return failure.signal, failure.status
    return failure.exception.type, *((f.path, f.line) for f in failure.frames[-1:])


def _location(case: Case, failure: Failure) -> Location | None:
    """The innermost user line of the exception, or where the rank last was."""
    if failure.frames:
        return case.place(failure.frames[-1])
    if failure.rank is not None and failure.exception is None:
        return _last_seen(case, case.world.ranks[failure.rank])
    return None


def _last_seen(case: Case, state: RankState) -> Location | None:
    """The line at which a rank asked to end, or else made its last call, or stood."""
    frames = tuple(state.facts.get("exit_site", ()))
    if not frames:
        called = case.world.kind(state.last_call()) if state.stack_is_old() else None
        frames = called.site if called is not None else state.stack
    last = next((f for f in reversed(frames) if f.user), None)
    return case.place(last) if last is not None else None


def _who(failure: Failure) -> Text:
    return ranks_text((failure.rank,)) if failure.rank is not None else say("the program")


def _known(case: Case, failure: Failure) -> tuple[str, Text, Text | None]:
    assert failure.match is not None
    assert failure.exception is not None
    message = say(
        "{who}: {what} ({error})", who=_who(failure), what=failure.match.message, error=_error(failure)
    )
    return failure.match.fault, message, failure.match.advice


def _unknown(case: Case, failure: Failure) -> tuple[str, Text, Text | None]:
    message = say(
        "{who} failed first, with {error}; what the other ranks met follows from it",
        who=_who(failure),
        error=_error(failure),
    )
    return (
        "child-failed-first",
        message,
        say("mend this error; the messages of the other ranks will go with it"),
    )


def _killed(case: Case, failure: Failure) -> tuple[str, Text, Text | None]:
    assert failure.signal is not None
    message = say(
        "{who} was killed by {signal}; what the other ranks met follows from it",
        who=_who(failure),
        signal=signal_name(failure.signal),
    )
    return "killed-by-signal", message, remedy(failure.signal)


def _status(case: Case, failure: Failure) -> tuple[str, Text, Text | None]:
    deviation = case.deviation
    if deviation is not None and failure.rank in deviation.missing:
        message = say(
            "{who} ended with status {status} while the others went on",
            who=_who(failure),
            status=failure.status,
        )
        return (
            "early-exit",
            message,
            say("let every rank leave at the same step: agree on the condition with a collective"),
        )
    alike = _alike(case, failure)
    who = ranks_text(alike) if alike else _who(failure)
    script = next((case.world.ranks[r].facts.get("no_script") for r in alike if r in case.world.ranks), None)
    if script:
        message = say("{who} could not start: there is no {script}", who=who, script=script)
        return "child-failed-first", message, say("give the path as seen from the folder of the launch")
    called = case.world.ranks[failure.rank].facts.get("exit_call") if failure.rank is not None else None
    if called:
        message = say(
            "{who} left by {how} with status {status}; what the other ranks met follows from it",
            who=who, how=called["how"], status=failure.status,
        )  # fmt: skip
        return (
            "child-failed-first",
            message,
            say("see why it leaves there: what it printed last stands above"),
        )
    return (
        "child-failed-first",
        say("{who} ended with status {status}, and no exception was seen", who=who, status=failure.status),
        say("read what it printed last, above; `sys.exit` and `os._exit` give such a status"),
    )


def _error(failure: Failure) -> str:
    assert failure.exception is not None
    lines = failure.exception.message.strip().splitlines()
    first = lines[0] if lines else ""
    name = failure.exception.type.rpartition(".")[2]
    return f"{name}: {first[:200]}" if first else name


def _evidence(case: Case, failure: Failure) -> list[Evidence]:
    found = []
    if failure.exception is not None:
        lines = (
            *case.stack_lines(failure.exception.frames),
            *failure.exception.message.strip().splitlines()[:8],
        )
        found.append(Evidence("stack", say("the exception of {who}", who=_who(failure)), lines))
    after = [f for f in case.failures if f is not failure and f.blame is not Blame.OWN][:8]
    if after:
        lines = tuple(f"rank {f.rank}: {_brief(f)}" for f in after)
        found.append(
            Evidence("exit", say("what followed"), lines, tuple(f.rank for f in after if f.rank is not None))
        )
    return found


def _brief(failure: Failure) -> str:
    if failure.exception is not None:
        return _error(failure)[:120]
    # As torchrun prints it: these lines are quoted in every language.
    if failure.signal is not None:
        return f"exitcode -{failure.signal} ({signal_name(failure.signal)})"
    return f"exitcode {failure.status}"
