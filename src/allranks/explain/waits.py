"""Nobody failed by himself, ranks only lost or waited for others: who was it that did not come, and why.

Told apart by what the log holds: calls that differ between ranks, ranks that had already ended, ranks that were
alive until the launcher ended them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..findings import Text, say
from .ranks import named, ranks_of

if TYPE_CHECKING:
    from .logs import Line
    from .match import Incident, Story
    from .watchdog import Difference

COLLECTIVE = frozenset(
    ["collective-order", "collective-shape", "slow-rank", "early-exit", "unmatched-p2p", "group-membership"]
)
"""Faults of which the waiting ranks' stacks show the call."""

_P2P = frozenset(
    ["send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"]
)
_FOLLOW_UPS = frozenset(["watchdog-follow-up", "store-gone", "closing-signal"])
_NEAR_END = 15

_EXITED = say(
    "Find why it ended: a return, break or sys.exit under a condition that differs between ranks (a loss, a file, "
    "the length of its data). All ranks must leave together: reduce the decision first (all_reduce the flag)."
)
_LATE = say(
    "Find what it did meanwhile (py-spy dump --pid PID while it hangs): one-off work such as tokenizing, "
    "downloading or compiling needs a longer timeout (init_process_group(timeout=...)) or must be shared; a call "
    "that this rank skips because of a branch never comes."
)
_CONFLICT = say(
    "Take rank and world size from one place: the launcher's RANK and WORLD_SIZE, or your own arguments, never a "
    "mixture; two processes with one rank, or a world size larger than the number of processes, wait for ever."
)
_GLOO_KEY = re.compile(r"//(?:cpu|cuda)//\d+/(\d{1,7})$")
_PAIR = say(
    "Every send needs a recv with the same peer and tag on the other side, and two ranks that both send first block "
    "each other: let one side receive first, or use batch_isend_irecv."
)
_ORDER = say(
    "All ranks must issue the same collectives in the same order: look for the branch, loop or early continue before "
    "these calls that depends on the rank or on local data."
)


@dataclass(slots=True)
class Waiting:
    """The verdict on waits: the fault, who is at fault, and the incidents and lines that show it."""

    fault: str
    message: Text
    ranks: tuple[int, ...]
    fix: Text
    incidents: list[Incident]
    lines: list[Line] = field(default_factory=list)
    others: list[tuple[str, Text]] = field(default_factory=list)
    sure: bool = False


def judge(story: Story) -> Waiting | None:
    """Who did not come; None when nobody waited."""
    victims = [incident for incident in story.of("victim") if _counts(incident, story)]
    difference = story.watchdogs.difference(story.launch.size)
    if difference is not None:
        return _of_watchdogs(difference, story, victims)
    for wanted in (_named_by_barrier, _in_setup, _timed_out, _lost_peer):
        found = wanted(story, victims)
        if found is not None:
            return found
    return _stopped(story)


def _counts(incident: Incident, story: Story) -> bool:
    """Text without a traceback counts when the job failed, or when the log ends with it."""
    if incident.signature == "store-barrier-waiting":
        number = incident.readings[0].captures.get("number", "")
        if number in story.launch.met:
            return False
    if incident.raised or story.launch.exits:
        return True
    return story.lines - incident.last <= _NEAR_END or any(
        one.raised for one in story.of("victim", "stopped")
    )


# --------------------------------------------------------------------------------------------- NCCL's watchdogs


def _of_watchdogs(difference: Difference, story: Story, victims: list[Incident]) -> Waiting:
    lines = list(difference.lines)
    placed = [one for one in victims if one.frame is not None or one.signature.startswith("watchdog-")]
    calls = _calls(difference.calls)
    if story.watchdogs.all_point_to_point(difference):
        others = [("slow-rank", _LATE)]
        message = say("a send and a receive do not meet: {calls}", calls=calls)
        return Waiting(
            "unmatched-p2p", message, tuple(sorted(difference.calls)), _PAIR, placed, lines, others
        )
    if difference.kind in ("order", "shape"):
        fault = "collective-order" if difference.kind == "order" else "collective-shape"
        message = (
            say("ranks wait in different calls: {calls}", calls=calls)
            if fault == "collective-order"
            else say("ranks wait in one call with tensors that do not fit together: {calls}", calls=calls)
        )
        return Waiting(fault, message, difference.ranks, _ORDER, placed, lines, sure=True)
    waiting = tuple(sorted(difference.calls))
    call = next(iter(difference.calls.values()))
    if difference.kind == "missing":
        return _missing(difference.ranks, waiting, call, story, placed, lines)
    message = say(
        "{ranks}: waiting in {call}, which does not finish; no rank is seen elsewhere",
        ranks=named(waiting),
        call=call,
    )
    fix = say(
        "All ranks made the same call, so either the network or a GPU is stuck (look at NCCL_DEBUG=INFO, `dmesg`, "
        "nvidia-smi), or ranks use several groups in different orders."
    )
    others = [("collective-order", _ORDER)]
    return Waiting("slow-rank", message, (), fix, placed, lines, others)


def _calls(calls: dict[int, str]) -> str:
    """ "rank 0: #7 BROADCAST; ranks 1-3: #7 ALLREDUCE"."""
    by_call: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        by_call.setdefault(call, []).append(rank)
    return "; ".join(f"{named(ranks)}: {call}" for call, ranks in by_call.items())


# ------------------------------------------------------------------------------------------------- gloo, stores


def _named_by_barrier(story: Story, victims: list[Incident]) -> Waiting | None:
    """monitored_barrier names the ranks that did not come."""
    reports = [incident for incident in victims if incident.signature == "monitored-barrier-ranks"]
    if not reports:
        return None
    ranks = {
        int(rank)
        for incident in reports
        for one in incident.readings[:1]
        for rank in one.captures["ranks"].split(",")
    }
    others = [one for one in victims if one.signature in ("monitored-barrier-others", "gloo-peer-gone")]
    placed = sorted([*reports, *others], key=lambda incident: incident.frame is None)
    waiting = {rank for incident in placed for rank in ranks_of(incident, story.launch)} - ranks
    return _missing(tuple(sorted(ranks)), tuple(sorted(waiting)), "monitored_barrier", story, placed, [])


def _in_setup(story: Story, victims: list[Incident]) -> Waiting | None:
    """Ranks that wait for others in init_process_group or new_group."""
    waiting = [
        incident
        for incident in victims
        if incident.signature in ("store-key-wait", "store-barrier-waiting")
        or (incident.call in ("init_process_group", "new_group") and incident.signature not in _FOLLOW_UPS)
    ]
    if not waiting:
        return None
    first = waiting[0]
    reading = first.readings[0]
    number = reading.captures.get("number", "1")
    in_group = first.call == "new_group" or number != "1"
    ranks = {rank for incident in waiting for rank in ranks_of(incident, story.launch)}
    lost = all(incident.signature == "gloo-peer-gone" for incident in waiting)
    if lost or (not in_group and not first.call and first.signature == "store-key-wait"):
        return None
    awaited = _awaited(waiting)
    if not in_group and _all_are_there(waiting, awaited, story):
        message = say(
            "all {count} processes are there, and wait for rank {rank}: ranks or the world size contradict",
            count=sum(incident.count for incident in waiting if incident.raised),
            rank=min(awaited, default="?"),
        )
        return Waiting("rank-env-conflict", message, (), _CONFLICT, waiting)
    fault = "group-membership" if in_group else "rendezvous-unreachable"
    if awaited:
        message = say(
            "{ranks} waits for {others}, which does not come", ranks=named(ranks), others=named(awaited)
        )
    else:
        message = say("{what} (waiting: {ranks})", what=reading.message, ranks=named(ranks))
    others = [("slow-rank", _LATE)] if in_group else [("rank-env-conflict", _CONFLICT)]
    return Waiting(fault, message, tuple(sorted(awaited)), reading.advice, waiting, others=others)


def _awaited(waiting: list[Incident]) -> set[int]:
    """The ranks whose addresses gloo waits for in the store: the last part of the key."""
    keys = [one.readings[0].captures.get("keys", "") for one in waiting]
    return {int(match[1]) for key in keys if (match := _GLOO_KEY.search(key))}


def _all_are_there(waiting: list[Incident], awaited: set[int], story: Story) -> bool:
    """True when no process is missing: as many wait as were started, and they wait for a rank among them, or on the
    only node."""
    started = {one.pid for one in story.launch.exits if one.pid} | story.launch.closed
    waiters = sum(incident.count for incident in waiting if incident.raised)
    if not awaited or not started or waiters < len(started):
        return False
    return max(awaited) < len(started) or story.launch.nodes == 1


def _timed_out(story: Story, victims: list[Incident]) -> Waiting | None:
    """Ranks that gave up after the group's timeout: in the same call, or in different ones."""
    late = [
        one
        for one in victims
        if one.signature in ("gloo-timeout", "store-key-wait", "nccl-id-not-set", "watchdog-timeout")
    ]
    if not late:
        return None
    placed = sorted(late, key=lambda incident: incident.frame is None)
    # A rank that lost its peer stood in its call just as well.
    beside = [one for one in victims if one.signature == "gloo-peer-gone" and one.call]
    calls = {rank: one.call for one in [*beside, *late] if one.call for rank in ranks_of(one, story.launch)}
    if calls and all(call in _P2P for call in calls.values()):
        message = say("a send and a receive do not meet: {calls}", calls=_calls(calls))
        others = [("slow-rank", _LATE)]
        return Waiting("unmatched-p2p", message, tuple(sorted(calls)), _PAIR, placed, others=others)
    if len(set(calls.values())) > 1:
        message = say("ranks wait in different calls: {calls}", calls=_calls(calls))
        return Waiting("collective-order", message, _minority(calls), _ORDER, [*placed, *beside], sure=True)
    waiting = tuple(sorted({rank for incident in late for rank in ranks_of(incident, story.launch)}))
    roots = {one.readings[0].captures.get("root", "") for one in late if one.signature == "nccl-id-not-set"}
    size = story.launch.size or 0
    absent = tuple(rank for rank in range(size) if rank not in waiting) if size <= 2 * len(waiting) else ()
    if roots and all(root.isdigit() for root in roots):
        absent = tuple(sorted(map(int, roots)))
    call = next((incident.call for incident in placed if incident.call), "")
    return _missing(absent, waiting, call, story, placed, [])


def calls_of(incidents: list[Incident], story: Story) -> set[str]:
    """The calls in which ranks stood when they lost a peer."""
    return {one.call for one in incidents if one.call and (ranks_of(one, story.launch) or one.unknown)}


def _lost_peer(story: Story, victims: list[Incident]) -> Waiting | None:
    """Ranks whose peer went away, and no rank is known to have failed: it ended."""
    lost = [
        one
        for one in victims
        if one.signature in ("gloo-peer-gone", "nccl-remote", "store-gone", "nccl-id-not-set")
    ]
    if not lost:
        return None
    placed = sorted(lost, key=lambda incident: incident.frame is None)
    waiting = tuple(sorted({rank for incident in lost for rank in ranks_of(incident, story.launch)}))
    left = story.launch.left() or ()
    failed = _failed_in_silence(story, waiting)
    call = next((incident.call for incident in placed if incident.call), "")
    if failed:
        message = say(
            "{ranks} ended with an error status while {others} waited for it",
            ranks=named(failed),
            others=named(waiting),
        )
        return Waiting(
            "early-exit", message, failed, _EXITED, placed, others=[("child-failed-first", _silent())]
        )
    return _gone(left, waiting, call, placed, [], sure=bool(left))


def _failed_in_silence(story: Story, waiting: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that ended with a status of their own and printed no exception, beside those that lost a peer."""
    return tuple(
        sorted(
            one.rank
            for one in story.launch.exits
            if one.rank is not None and one.status and one.signal is None and one.rank not in waiting
        )
    )


def _silent() -> Text:
    return say("it failed with an exception that is not in this log: look into that rank's own log")


# --------------------------------------------------------------------------------------------------- who is gone


def _missing(
    ranks: tuple[int, ...],
    waiting: tuple[int, ...],
    call: str,
    story: Story,
    incidents: list[Incident],
    lines: list[Line],
) -> Waiting:
    """Ranks that did not come to a call: they had ended, or they were alive and late."""
    alive = [story.launch.alive_at_the_end(rank) for rank in ranks]
    left = story.launch.left() or ()
    if (alive and all(one is False for one in alive)) or (not ranks and left):
        return _gone(ranks or left, waiting, call, incidents, lines, sure=bool(left))
    unaccounted = story.launch.unaccounted()
    if ranks and unaccounted == len(ranks) and all(one is None for one in alive):
        return _gone(ranks, waiting, call, incidents, lines, sure=True)
    sure = (bool(alive) and all(alive)) or (bool(ranks) and unaccounted == 0)
    where = say("in {call}", call=call) if call else say("in a collective")
    message = say(
        "{ranks} did not come in time; {others} waited {where}",
        ranks=named(ranks),
        others=named(waiting),
        where=where,
    )
    others = [] if sure else [("early-exit", _EXITED)]
    return Waiting("slow-rank", message, ranks, _LATE, incidents, lines, others, sure=sure)


def _gone(
    ranks: tuple[int, ...],
    waiting: tuple[int, ...],
    call: str,
    incidents: list[Incident],
    lines: list[Line],
    *,
    sure: bool,
) -> Waiting:
    where = say("in {call}", call=call) if call else say("in a collective")
    message = say(
        "{ranks} ended while {others} waited for it {where}",
        ranks=named(ranks),
        others=named(waiting),
        where=where,
    )
    others = [] if sure else [("child-failed-first", _silent())]
    return Waiting("early-exit", message, ranks, _EXITED, incidents, lines, others, sure=sure)


def _stopped(story: Story) -> Waiting | None:
    """A job that was interrupted by hand: the stacks show where each rank stood."""
    stacks = [incident for incident in story.of("stopped") if incident.frame is not None]
    calls = {rank: one.call for one in stacks for rank in ranks_of(one, story.launch)}
    if len(calls) < 2 or not any(calls.values()) or len(set(calls.values())) < 2:
        return None
    elsewhere = tuple(sorted(rank for rank, call in calls.items() if not call))
    placed = sorted(stacks, key=lambda incident: bool(incident.call))
    if elsewhere:
        waiting = tuple(sorted(set(calls) - set(elsewhere)))
        return _missing(elsewhere, waiting, next(filter(None, calls.values())), story, placed, [])
    message = say("ranks stood in different calls when they were interrupted: {calls}", calls=_calls(calls))
    return Waiting("collective-order", message, _minority(calls), _ORDER, placed)


def _minority(calls: dict[int, str]) -> tuple[int, ...]:
    counts = Counter(calls.values()).most_common()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(calls))
    return tuple(sorted(rank for rank, call in calls.items() if call != counts[0][0]))
