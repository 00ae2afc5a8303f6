"""Findings on calls that ranks wait in at the end of their dumps.

Without the source a dump tells what a rank did not do, not why. So a rank that stopped is an `early-exit` whatever
ended it, and the finding says what else it can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Confidence, Evidence, Finding, Severity, Text, say
from .agreement import described, place
from .parted import last_call
from .standstills import Exchange, Gathering, Standstill
from .words import SHOWN, Words, group_text, ranks_text

if TYPE_CHECKING:
    from .columns import Call
    from .job import GroupTrace

_UNDER_WAY_S = 0.5
"""A wait that had lasted no longer when the dump was written may be that of a running job."""
_STUCK_S = 10.0
"""The same for a call that all ranks are in, which is the usual state of a running job."""


def gathering(words: Words, found: Gathering, consequences: int = 0) -> Finding:
    """A collective that not all members are in, or that does not end though all are."""
    if not found.lacking:
        return _unseen(words, found) if found.unseen else _stuck(words, found)
    if len(found.waiting) < len(found.lacking):
        return _extra(words, found)
    return _missing(words, found, consequences)


def is_minority(found: Gathering) -> bool:
    """True when more ranks lack the call than made it: then those who made it are at fault."""
    return len(found.waiting) < len(found.lacking)


def _missing(words: Words, found: Gathering, consequences: int) -> Finding:
    call = words.call_at(found.group, found.waiting, found.position)
    last = last_call(words.job, found.stopped[0])
    names = _names(words, found, call, last)
    if last is None:
        message = say(
            "{ranks} made no call at all; {others} wait in call #{position} of {group}, {call}", **names
        )
    elif found.ended:
        message = say(
            "{ranks} did not make call #{position} of {group}, {call}, which {others} made at {place}; the last it "
            "made was {last} at {last_place}",
            **names,
        )
    else:
        message = say(
            "{ranks} did not make call #{position} of {group}, {call}, in which {others} wait at {place}; the last "
            "it made was {last} at {last_place}",
            **names,
        )
    return Finding(
        fault="early-exit",
        severity=_severity(words, found),
        confidence=Confidence.MEASURED if found.group.known and not found.ended else Confidence.INFERRED,
        message=message,
        location=words.location(last, call) or words.location(call),
        related=words.related(call, found.waiting, other=last),
        ranks=found.stopped,
        evidence=_who_made_what(words, found, call, last, consequences),
        fix=say(
            "see what {ranks} did after {last_place}: return, raise, leave the loop, take a branch without this call, "
            "have fewer steps, or merely be busy; the rank's own log or py-spy tells which",
            **names,
        ),
    )


def _names(words: Words, found: Gathering, call: Call, last: Call | None) -> dict[str, object]:
    return {
        "ranks": ranks_text(found.stopped),
        "position": found.position,
        "group": group_text(found.group),
        "call": described(call),
        "others": ranks_text(found.waiting),
        "place": words.place(call, last),
        "last": described(last) if last is not None else "",
        "last_place": words.place(last, call) if last is not None else "?",
    }


def _severity(words: Words, found: Gathering) -> Severity:
    if _waited_s(words, found) < (_UNDER_WAY_S if found.lacking else _STUCK_S):
        return Severity.INFO
    return Severity.WARNING if found.ended or not found.lacking else Severity.ERROR


def _waited_s(words: Words, found: Gathering) -> float:
    """For how long ranks had waited when they dumped; large where that is not known (a copied file is younger)."""
    waits = [
        words.job.ranks[rank].written_ns - time
        for rank in found.waiting
        if (time := found.group.calls[rank].time_at(found.position))
    ]
    return min((wait / 1e9 for wait in waits if wait > 0), default=1e9)


def _who_made_what(
    words: Words, found: Gathering, call: Call, last: Call | None, consequences: int = 0
) -> tuple[Evidence, ...]:
    absent = (found.stopped or found.lacking)[:1]
    evidence = [words.counts(found.group)]
    if last is not None:
        evidence.append(words.stack(say("the last call of {ranks}", ranks=ranks_text(absent)), last, absent))
    title = say("the call that {ranks} made", ranks=ranks_text(found.waiting))
    evidence.append(words.stack(title, call, found.waiting))
    evidence += words.histories(found.group, [absent[0], found.waiting[0]], found.position + 1)
    if consequences:
        evidence.append(
            Evidence("cycle", say("{count} other waits follow from this one", count=consequences))
        )
    if found.ended:
        title = say("this backend records a call that timed out like one that ended well")
        evidence.append(Evidence("calls", title))
    return tuple(evidence)


def _extra(words: Words, found: Gathering) -> Finding:
    """A call that only a minority made: it is the one too many."""
    call = words.call_at(found.group, found.waiting, found.position)
    last = last_call(words.job, found.lacking[0])
    names = {
        "ranks": ranks_text(found.waiting),
        "position": found.position,
        "group": group_text(found.group),
        "call": described(call),
        "others": ranks_text(found.lacking),
        "place": words.place(call, last),
    }
    again = _made_before(words, found, call)
    if again:
        message = say(
            "{ranks} made call #{position} of {group}, {call} at {place}, once more than {others}: the one went on "
            "when the others had finished",
            **names,
        )
    else:
        message = say(
            "only {ranks} made call #{position} of {group}, {call} at {place}; {others} never did", **names
        )
    return Finding(
        fault="uneven-iterations" if again else "rank-conditional-collective",
        severity=_severity(words, found),
        confidence=Confidence.INFERRED,
        message=message,
        location=words.location(call, last),
        related=words.related(last, found.lacking, say("the last call of the others"), other=call),
        ranks=found.waiting,
        evidence=_who_made_what(words, found, call, last),
        fix=say("make every rank of the group issue this call, or none"),
    )


def _made_before(words: Words, found: Gathering, call: Call) -> bool:
    calls = found.group.calls[found.waiting[0]]
    before = calls.kinds[: max(0, found.position - calls.start)]
    there = place(call)
    return bool(there) and any(place(words.call(kind)) == there for kind in set(before))


def _unseen(words: Words, found: Gathering) -> Finding:
    """All whose dumps are here wait in one call; the dumps of others are missing or cut off."""
    call = words.call_at(found.group, found.waiting, found.position)
    few = len(found.unseen) < len(found.waiting)
    cut = tuple(rank for rank in found.unseen if rank in words.job.ranks)
    last = last_call(words.job, cut[0]) if cut else None
    return Finding(
        fault="early-exit",
        severity=_severity(words, found) if not few else Severity.ERROR,
        confidence=Confidence.INFERRED,
        message=_who_is_unseen(words, found, call, few=few, cut=len(cut) == len(found.unseen)),
        location=words.location(last, call) or words.location(call),
        related=words.related(call, found.waiting, other=last),
        ranks=found.unseen if few else (),
        evidence=(
            words.counts(found.group),
            words.stack(say("where {ranks} wait", ranks=ranks_text(found.waiting)), call, found.waiting),
        ),
        fix=say(
            "look at the end of the log of {ranks}: a rank that dies leaves no dump",
            ranks=ranks_text(found.unseen),
        ),
    )


def _who_is_unseen(words: Words, found: Gathering, call: Call, *, few: bool, cut: bool) -> Text:
    names = {
        "ranks": ranks_text(found.unseen),
        "position": found.position,
        "group": group_text(found.group),
        "call": described(call),
        "others": ranks_text(found.waiting),
        "place": words.place(call),
    }
    if few and cut:
        return say(
            "{others} wait in call #{position} of {group}, {call} at {place}, and the dump of {ranks} is cut off "
            "before it: most likely that is who is missing",
            **names,
        )
    if few:
        return say(
            "{others} wait in call #{position} of {group}, {call} at {place}, and there is no whole dump of {ranks}: "
            "most likely that is who is missing",
            **names,
        )
    return say(
        "{others} wait in call #{position} of {group}, {call} at {place}; who is missing cannot be told without the "
        "dumps of {ranks}",
        **names,
    )


def _stuck(words: Words, found: Gathering) -> Finding:
    """All members are in one call, none differs, and it does not end."""
    call = words.call_at(found.group, found.waiting, found.position)
    late = tuple(sorted(found.late, key=lambda rank: -found.late[rank]))
    names = {
        "count": len(found.waiting),
        "position": found.position,
        "group": group_text(found.group),
        "call": described(call),
        "place": words.place(call),
        "late": ranks_text(late),
        "seconds": f"{max(found.late.values(), default=0) / 1e9:.1f}",
    }
    if late:
        message = say(
            "all {count} ranks of {group} are in call #{position}, {call} at {place}: none is missing and none "
            "differs; {late} came {seconds} s later than usual",
            **names,
        )
    else:
        message = say(
            "all {count} ranks of {group} are in call #{position}, {call} at {place}: none is missing and none "
            "differs, so the cause is below the program: network, driver or device",
            **names,
        )
    lines = tuple(f"rank {rank}: {found.late[rank] / 1e9:+.1f} s" for rank in late[:SHOWN])
    return Finding(
        fault="slow-rank",
        severity=_severity(words, found),
        confidence=Confidence.MEASURED if late else Confidence.INFERRED,
        message=message,
        location=words.location(call),
        ranks=late,
        evidence=(
            words.stack(say("where all ranks are"), call, found.waiting),
            *((Evidence("counts", say("later than usual"), lines, late),) if lines else ()),
        ),
        fix=say(
            "if the job had hung: look for network or device errors (NCCL_DEBUG=INFO, dmesg, Xid), and at what else "
            "runs on the device's streams; if it ran, this call was merely under way"
        ),
    )


def straggler(words: Words, group: GroupTrace, position: int, late: dict[int, int]) -> Finding:
    """Ranks that came late to a call that then went well."""
    call = words.call_at(group, late, position)
    ranks = tuple(sorted(late))
    message = say(
        "all calls ended well; {ranks} came {seconds} s late to call #{position} of {group}, {call} at {place}, and "
        "kept the others waiting",
        ranks=ranks_text(ranks),
        seconds=f"{max(late.values()) / 1e9:.1f}",
        position=position,
        group=group_text(group),
        call=described(call),
        place=words.place(call),
    )
    return Finding(
        fault="slow-rank",
        severity=Severity.INFO,
        confidence=Confidence.MEASURED,
        message=message,
        location=words.location(call),
        ranks=ranks,
        evidence=words.histories(group, [ranks[0]], position + 1),
    )


def exchange(words: Words, found: Exchange) -> Finding:
    """A send or receive that the other rank has not answered."""
    call = words.call(found.kind)
    last = last_call(words.job, found.peer)
    answer = words.call(found.mismatched) if found.mismatched is not None else None
    names = {"rank": found.rank, "peer": found.peer, "call": described(call), "place": words.place(call)}
    if answer is not None:
        message = say(
            "rank {rank} calls {call} at {place}, but rank {peer} answers with {answer} at {answer_place}",
            answer=described(answer),
            answer_place=words.place(answer),
            **names,
        )
    elif found.sending:
        message = say("rank {rank} waits in {call} at {place}; rank {peer} does not receive it", **names)
    else:
        message = say("rank {rank} waits in {call} at {place}; rank {peer} has not sent it", **names)
    evidence = [words.stack(say("where rank {rank} waits", rank=found.rank), call, (found.rank,))]
    if last is not None:
        title = say("the last call of rank {rank}: {call}", rank=found.peer, call=described(last))
        evidence.append(words.stack(title, last, (found.peer,)))
    return Finding(
        fault="unmatched-p2p",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED if found.peer in words.job.ranks else Confidence.INFERRED,
        message=message,
        location=words.location(answer or last) or words.location(call),
        related=words.related(call, (found.rank,), say("rank {rank} waits here", rank=found.rank)),
        ranks=(found.peer,),
        evidence=tuple(evidence),
        fix=say("pair every send with one receive of the same peer and order"),
    )


def circle(words: Words, found: list[Standstill]) -> Finding:
    """Waits that are each other's cause."""
    exchanges = all(isinstance(still, Exchange) for still in found)
    calls = [_call_of(words, still) for still in found]
    lines = tuple(
        f"{ranks_text(still.waiting)}: {described(call)} at {words.place(call)}, {group_text(still.group)}, "
        f"<- {ranks_text(still.needed)}"
        for still, call in zip(found, calls, strict=True)
    )
    ranks = tuple(sorted({rank for still in found for rank in still.needed}))
    names = {"ranks": ranks_text(ranks), "count": len(found)}
    if exchanges:
        message = say("{ranks} block each other in sends and receives: each waits for the next", **names)
    else:
        message = say(
            "{ranks} wait for each other in {count} different calls: they use their process groups in different orders",
            **names,
        )
    others = [(call, still.waiting) for call, still in zip(calls[1:], found[1:], strict=True)]
    return Finding(
        fault="unmatched-p2p" if exchanges else "collective-order",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED,
        message=message,
        location=words.location(calls[0]),
        related=tuple(location for call, waiting in others for location in words.related(call, waiting)),
        ranks=ranks,
        evidence=(Evidence("cycle", say("who waits (<- for whom)"), lines[: 2 * SHOWN], ranks),),
        fix=say("let all ranks use their process groups, sends and receives in one order"),
    )


def _call_of(words: Words, still: Standstill) -> Call:
    if isinstance(still, Exchange):
        return words.call(still.kind)
    return words.call_at(still.group, still.waiting, still.position)
