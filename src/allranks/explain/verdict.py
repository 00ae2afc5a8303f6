"""From incidents to findings: the first cause, what follows from it, and how sure that is.

The order of questions: did a rank fail by itself; was one killed; who waits for whom; is there anything that says
less. Whoever lost a peer, timed out or was ended by the launcher is never the cause.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import Text, say
from ..judge.signals import remedy
from . import waits
from .ranks import named, ranks_of
from .telling import Verdict, brief, findings_of, follows, note

if TYPE_CHECKING:
    from ..findings import Finding
    from .launcher import Exit
    from .match import Incident, Story

_WEAK = 0.5
"""Signatures that explain no more than this share of their cases count only when nothing else is found."""
_HARD = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that no launcher sends to a healthy process at once."""
_DEATHS = frozenset(["out-of-memory", "shared-memory-too-small", "killed-by-signal"])
"""Faults whose text explains that a process was killed."""
_GOES_ON = 60
"""Lines after which an unprefixed traceback without any sign of an end was handled by the program."""
_NEAR_END = 80
_MILD = re.compile(r"(?<!NCCL )\b(?:INFO|WARNING|WARN|DEBUG)\b")
_LEVEL = 60
"""Characters within which a line's level stands."""
"""How a line begins whose writer does not take it for a failure."""
_AGENTS = frozenset(["rendezvous-timed-out", "master-unreachable"])
"""What launchers say when a rendezvous fails: the first one, or one after a failure."""
_HARMLESS = frozenset(["store-barrier-waiting", "store-gone"])
"""Victims' lines that a job which goes well may print too, at its beginning and at its end."""
_ONE_DEVICE = say(
    "Several ranks ran out of memory on device 0: do they all use it? Call torch.cuda.set_device(local_rank) first."
)


def findings(story: Story) -> list[Finding]:
    """What the logs tell: the verdict first, then other possibilities and consequences, then notes."""
    verdict = _verdict(story)
    found: list[Finding] = []
    if verdict is not None:
        _narrow(verdict)
        found += findings_of(verdict, story)
    found += [
        note(incident, story) for incident in story.of("note") if verdict is None or not follows(incident)
    ]
    return found


def _verdict(story: Story) -> Verdict | None:
    causes = _own_failures(story)
    strong = [incident for incident in causes if not _weak(incident)]
    killed = _killed(story)
    if (
        killed
        and not any(incident.fault in _DEATHS for incident in strong)
        and (killed[0].first or not strong)
    ):
        return _by_signal(killed, story)
    if strong:
        return _by_cause(strong, story)
    waiting = waits.judge(story)
    if waiting is not None:
        return _by_wait(waiting, story)
    weak = [incident for incident in causes if _weak(incident)]
    if weak:
        return _by_cause(weak, story)
    if killed:
        return _by_signal(killed, story)
    return _by_status(story) or _by_stray(story)


# ---------------------------------------------------------------------------------------------- own failures


def _own_failures(story: Story) -> list[Incident]:
    """Failures that a rank had by itself, in order; not what a rank raised after it had lost a peer, and not what
    the program plainly survived."""
    causes = [
        incident
        for incident in story.of("cause")
        if not survived(incident, story) and not _agents_gave_up(incident, story)
    ]
    lost: dict[int, tuple[str, int]] = {}
    for victim in story.of("victim"):
        for rank in victim.ranks:
            lost.setdefault(rank, victim.order)
    first = [
        incident
        for incident in causes
        if not incident.ranks
        or not all(rank in lost and lost[rank] < incident.order for rank in incident.ranks)
    ]
    return first or causes


def _agents_gave_up(incident: Incident, story: Story) -> bool:
    """True when launchers did not find each other any more, after ranks had failed or waited in vain: it follows."""
    if incident.signature not in _AGENTS:
        return False
    before = [one for one in story.of("cause", "victim") if one.raised and one.fault != incident.fault]
    exits = [one.line for one in story.launch.exits if one.status]
    at = incident.first
    return any(
        line.origin.file == at.origin.file and line.number < at.number
        for line in [*exits, *(one.first for one in before)]
    )


def survived(incident: Incident, story: Story) -> bool:
    """True when the log shows no end after it: the program handled it, or it is a warning."""
    if incident.readings and incident.readings[0].goes_on:
        return False
    if story.launch.exits or any(
        other.raised or other.signature not in _HARMLESS for other in story.of("victim")
    ):
        return False
    after = story.lines - incident.last
    if incident.raised:
        return after > _GOES_ON and not incident.ranks and not story.launch.agents
    if _MILD.search(incident.first.text[:_LEVEL]) and after > 1:
        return not any(other.raised for other in story.of("cause", "victim"))
    return after > _NEAR_END and not any(other.raised for other in story.of("cause", "victim"))


def _weak(incident: Incident) -> bool:
    if not incident.readings:
        return False
    return incident.readings[0].likelihood <= _WEAK or incident.signature == "cancelled"


def _by_cause(causes: list[Incident], story: Story) -> Verdict:
    """The verdict of own failures: the first one's fault, at the first place that is known of it."""
    first = _clearest(causes)
    same = [incident for incident in causes if _is_same(incident, first)]
    placed = _best_placed(same) or first
    ranks = tuple(sorted({rank for incident in same for rank in ranks_of(incident, story.launch)}))
    frame = placed.frame
    if frame is None and first.fault in waits.COLLECTIVE:
        frame = next((victim.frame for victim in story.of("victim") if victim.frame is not None), None)
    if first.readings:
        reading = placed.readings[0] if placed.readings else first.readings[0]
        message = (
            say("{what} ({ranks})", what=reading.message, ranks=named(ranks)) if ranks else reading.message
        )
        fix: Text | None = reading.advice
        others = [
            (one.fault, one.advice)
            for one in first.readings[1:]
            if _possible(one.signature, one.likelihood, first)
        ]
    else:
        message = say("{ranks} failed first: {error}", ranks=named(ranks), error=brief(placed.text))
        fix = say("Mend this error; those of the other ranks follow from it.") if story.of("victim") else None
        others = []
    devices = {device for one in same for device in one.devices}
    if first.fault == "out-of-memory" and len(ranks) > 1 and devices == {"0"}:
        others.append(("device-not-bound", _ONE_DEVICE))
    fault = first.fault
    if first.signature == "gloo-size-mismatch" and len(waits.calls_of(story.of("victim"), story)) > 1:
        # The stacks show it: not one call with other sizes, but two calls.
        fault, others = "collective-order", [("collective-shape", first.readings[0].advice)]
    lines = [line for incident in same for line in incident.lines]
    return Verdict(fault, message, ranks, frame, fix, lines, same, others, sure=not _weak(first))


def _is_same(incident: Incident, first: Incident) -> bool:
    """True for what shows the same fault; an exception of a rank's own is the same only in the same words."""
    if first.fault != "child-failed-first":
        return incident.fault == first.fault
    if not first.readings:
        return incident is first
    return bool(incident.readings) and (incident.signature == first.signature or first.frame is None)


def _clearest(causes: list[Incident]) -> Incident:
    """The first failure; of equal ones, whose messages were torn by other ranks' lines, one that the table knows."""
    first = causes[0]
    if first.frame is None or not (_weak(first) or first.fault == "child-failed-first"):
        return first
    same = [one for one in causes if (one.type, one.frame) == (first.type, first.frame)]
    return next((one for one in same if one.fault != "child-failed-first" and not _weak(one)), first)


def _best_placed(same: list[Incident]) -> Incident | None:
    """The incident whose place is shown: the first; where lines bear no rank and are woven into each other, the
    place that was put together most often."""
    placed = [incident for incident in same if incident.frame is not None]
    if placed and not placed[0].anonymous:
        return placed[0]
    return max(
        placed,
        key=lambda incident: (incident.count, len(incident.error.frames) if incident.error else 0),
        default=None,
    )


def _possible(signature: str, likelihood: float, first: Incident) -> bool:
    return signature == first.signature and likelihood >= 0.2


# ------------------------------------------------------------------------------------------ ends of processes


def _killed(story: Story) -> list[Exit]:
    """Processes that died of a signal which no launcher sends first, torchrun's first observed failure first."""
    killed = [one for one in story.launch.exits if one.signal in _HARD and one.pid not in story.launch.closed]
    return sorted(killed, key=lambda one: not one.first)


def _by_signal(killed: list[Exit], story: Story) -> Verdict:
    first = killed[0]
    same = [one for one in killed if one.signal == first.signal]
    ranks = tuple(sorted({rank for one in same if (rank := _rank(one, story)) is not None}))
    if first.first and (rank := _rank(first, story)) is not None:
        ranks = (rank,)
    fix = remedy(first.signal or 0)
    others = []
    if first.signal == signal.SIGKILL:
        others.append(
            (
                "out-of-memory",
                say(
                    "it is this when `dmesg` or the scheduler's accounting tells of the out-of-memory killer"
                ),
            )
        )
    message = say("{ranks} was killed by {signal}", ranks=named(ranks), signal=first.signal_name)
    if first.signal == signal.SIGBUS:
        others.append(
            (
                "shared-memory-too-small",
                say("it is this when `df -h /dev/shm` shows little room for the loaders"),
            )
        )
    lines = [one.line for one in same]
    return Verdict("killed-by-signal", message, ranks, None, fix, lines, [], others, sure=True)


def _by_status(story: Story) -> Verdict | None:
    """A process that ended with a status or was ended, and nothing in the log says why."""
    exits = [one for one in story.launch.exits if one.status]
    if not exits:
        return None
    first = next((one for one in exits if one.first), exits[0])
    rank = _rank(first, story)
    ranks = (rank,) if rank is not None else ()
    if first.signal is not None:
        ended = first.ended
        message = (
            say("{ranks} was ended from outside by {signal}", ranks=named(ranks), signal=first.signal_name)
            if ended
            else say("{ranks} was killed by {signal}", ranks=named(ranks), signal=first.signal_name)
        )
        outside = say(
            "Look at the scheduler, and at who or what else ends jobs here; this log does not tell."
        )
        fix = remedy(first.signal) or outside
        return Verdict("killed-by-signal", message, ranks, fix=fix, lines=[first.line], sure=not ended)
    message = say(
        "{ranks} failed first, with exit status {status}; what it printed is not in this log",
        ranks=named(ranks),
        status=first.status,
    )
    fix = say(
        "Look into that rank's own log (torchrun --log-dir DIR --redirects 3 writes one for each rank)."
    )
    return Verdict("child-failed-first", message, ranks, fix=fix, lines=[first.line])


def _rank(one: Exit, story: Story) -> int | None:
    if one.rank is not None:
        return one.rank
    single = (story.launch.nodes or 1) == 1 and not one.node
    return one.local if single else None


def _by_stray(story: Story) -> Verdict | None:
    """The line of an exception without its traceback: all that was pasted, or how the log ends."""
    for incident in story.of("stray"):
        value = incident.text.partition(":")[2].strip()
        if value.replace(".", "", 1).replace("-", "").isdigit():
            continue
        if story.lines - incident.last <= 5:
            message = (
                say("a rank failed: {error}", error=brief(incident.text))
                if incident.text.strip()
                else say("a rank failed; the log does not go on to its message")
            )
            return Verdict(
                "child-failed-first",
                message,
                frame=incident.frame,
                lines=incident.lines,
                incidents=[incident],
            )
    return None


# ------------------------------------------------------------------------------------------------------- waits


def _by_wait(waiting: waits.Waiting, story: Story) -> Verdict:
    lines = list(waiting.lines) or [line for incident in waiting.incidents for line in incident.lines]
    frame = next((incident.frame for incident in waiting.incidents if incident.frame is not None), None)
    words = [story.launch.last_words[rank] for rank in waiting.ranks if rank in story.launch.last_words]
    lines += [line for line in words[:2] if line not in lines]
    return Verdict(
        waiting.fault, waiting.message, waiting.ranks, frame, waiting.fix, lines, waiting.incidents,
        waiting.others, sure=waiting.sure,
    )  # fmt: skip


def _narrow(verdict: Verdict) -> None:
    """Looks for the statement at fault in source that lies here."""
    if verdict.fault not in ("slow-rank", "early-exit", "collective-order"):
        return
    # It brings the source analysis: a quarter of a second, which most logs do without.
    from .narrow import narrow, narrow_apart

    folder = Path.cwd()
    if verdict.fault != "collective-order":
        ended = verdict.fault == "early-exit"
        verdict.narrowed = narrow(verdict.incidents, verdict.ranks, ended=ended, folder=folder)
    else:
        apart = {incident.frame: incident for incident in verdict.incidents if incident.error is not None}
        if len(apart) > 1:
            one, other = list(apart.values())[:2]
            verdict.narrowed = narrow_apart(one, other, folder)
