"""Waits that no statement parted: a rank that comes too late, sends and receives that do not meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Confidence, Evidence, Finding, Location, Severity, Text, say
from ...world import WORLD_GROUP, p2p
from ..case import Case, describe, ranks_text, user_frames, whereabouts
from ..failures import Blame
from . import Rules, found

if TYPE_CHECKING:
    from ...world import CallKind, Frame, RankState, Site

RULES = Rules()


@RULES.finds("unmatched-p2p")
def unmatched_p2p(case: Case) -> Finding | None:
    """A dead set in which a rank is blocked in a send or receive."""
    blocked = [r for r in case.dead.ranks if (w := case.world.ranks[r].wait) is not None and w.kind == "p2p"]
    if not blocked or (len(blocked) < len(case.dead.ranks) and not _leads(case, blocked)):
        return None
    rank = blocked[0]
    state = case.world.ranks[rank]
    assert state.wait is not None
    kind = case.world.kind(state.wait.call)
    site = kind.site if kind is not None and kind.site else user_frames(state.stack)
    circle = set(case.dead.cycle()) <= set(blocked)
    ops = {k.signature.op for r in blocked if (k := _blocked_call(case, r)) is not None}
    related: tuple[Location, ...] = ()
    tags = next((told for r in blocked if (told := _other_tag(case, r)) is not None), None)
    if tags is not None:
        message, fix, related = tags
    elif circle and len(blocked) > 1 and len(ops) == 1:
        message = say(
            "{ranks} block each other: each is in {call} and none gets to the call that would answer it",
            ranks=ranks_text(tuple(blocked)),
            call=next(iter(ops)),
        )
        fix = _TURN_AROUND if ops == {"send"} else _SEND_FIRST
    elif circle and len(blocked) > 1:
        message = say(
            "{ranks} block each other: no send among them meets a receive", ranks=ranks_text(tuple(blocked))
        )
        fix = _PAIR
    else:
        message = say(
            "{ranks} waits in {call}, which no call of rank {peer} answers",
            ranks=ranks_text(tuple(blocked)),
            call=describe(kind) if kind is not None else "a send or receive",
            peer=", ".join(map(str, state.wait.peers)),
        )
        fix = _PAIR
    return found(
        "unmatched-p2p", message, case.place(site[-1]) if site else None,
        ranks=tuple(blocked), confidence=Confidence.PROVED, severity=Severity.ERROR, related=related,
        evidence=(case.cycle(), *(_stack(case, case.world.ranks[r]) for r in blocked[:4])), fix=fix,
    )  # fmt: skip


_TURN_AROUND = say(
    "let half of the ranks receive first, or use batch_isend_irecv or isend/irecv and wait afterwards"
)
_SEND_FIRST = say(
    "let half of the ranks send first, or use batch_isend_irecv or isend/irecv and wait afterwards"
)
_PAIR = say("pair every send with one receive of the same peer, tag and order")


def _blocked_call(case: Case, rank: int) -> CallKind | None:
    wait = case.world.ranks[rank].wait
    return case.world.kind(wait.call) if wait is not None else None


def _other_tag(case: Case, rank: int) -> tuple[Text, Text, tuple[Location, ...]] | None:
    """What to say where the peer of a blocked send or receive made the opposite call last, with another tag."""
    mine = _blocked_call(case, rank)
    if mine is None or mine.signature.tag is None or mine.signature.peer not in case.world.ranks:
        return None
    wait = case.world.ranks[rank].wait
    assert wait is not None
    peer = mine.signature.peer
    history = case.world.ranks[peer].histories.get(p2p(wait.group or WORLD_GROUP))
    made = (case.world.kinds[call] for call in reversed(history.kinds)) if history is not None else iter(())
    theirs = next((k for k in made if k.signature.peer == rank), None)
    if theirs is None or {mine.signature.op, theirs.signature.op} != {"send", "recv"}:
        return None
    if theirs.signature.tag in (None, mine.signature.tag):
        return None
    sender, receiver = (rank, peer) if mine.signature.op == "send" else (peer, rank)
    sent, wanted = (mine, theirs) if sender == rank else (theirs, mine)
    message = say(
        "rank {sender} sends to rank {receiver} with tag {sent}, and rank {receiver} receives with tag {wanted}: "
        "they never meet",
        sender=sender, receiver=receiver, sent=sent.signature.tag, wanted=wanted.signature.tag,
    )  # fmt: skip
    role = say("what rank {peer} called", peer=peer)
    related = (case.place(theirs.site[-1], role=role, ranks=(peer,)),) if theirs.site else ()
    return message, say("give a send and its receive the same tag"), related


def _leads(case: Case, blocked: list[int]) -> bool:
    """True when the others in the dead set wait, through whom ever, for the ranks that are in send or receive and the
    ranks did not part at a collective before that."""
    first = min((w.since_ns for r in blocked if (w := case.world.ranks[r].wait) is not None), default=0)
    deviation = case.deviation
    return deviation is None or (deviation.mismatch is None and first <= deviation.time_ns)


def _stack(case: Case, state: RankState) -> Evidence:
    title = say("rank {rank} is at", rank=state.rank)
    return Evidence("stack", title, case.stack_lines(whereabouts(case.world, state)), (state.rank,))


@RULES.finds("slow-rank")
def slow_rank(case: Case) -> Finding | None:
    """Ranks that compute while the others time out in a call, or wait longer than the stall limit."""
    late, seconds = _timed_out(case) or _stalled(case) or ((), 0.0)
    if not late:
        return None
    state = case.world.ranks[late[0]]
    waiting = _waiting_site(case, late)
    stack = user_frames(state.stack)
    frame = _where(stack, waiting)
    names: dict[str, object] = {"ranks": ranks_text(late), "seconds": f"{seconds:.0f}"}
    limit = (
        state.groups[case.deviation.group.name].timeout_s
        if case.deviation and case.deviation.group.name in state.groups
        else None
    )
    message: Text
    if case.final and limit:
        message = say(
            "{ranks} was still busy when the others gave up after {limit} s of waiting",
            limit=f"{limit:.0f}",
            **names,
        )
    elif case.final:
        message = say("{ranks} was still busy when the others gave up waiting", **names)
    else:
        message = say("{ranks} kept the others waiting for {seconds} s", **names)
    related = (case.place(waiting[-1], role=say("the others wait here")),) if waiting else ()
    return found(
        "slow-rank", message, case.place(frame) if frame is not None else None, ranks=late,
        severity=Severity.ERROR if case.final else Severity.WARNING, related=related,
        evidence=(_stack(case, state),),
        fix=say(
            "spread the work over the ranks, do it before init_process_group, or raise init_process_group(timeout=...)"
        ),
    )  # fmt: skip


def _timed_out(case: Case) -> tuple[tuple[int, ...], float] | None:
    """Ranks that were alive and had not arrived when another rank's call timed out."""
    timeout = next((f for f in case.failures if f.blame is Blame.TIMEOUT), None)
    deviation = case.deviation
    if timeout is None or deviation is None or deviation.mismatch is not None:
        return None
    late = tuple(r for r in deviation.missing if _busy_at(case.world.ranks[r], timeout.time_ns))
    return (late, 0.0) if late else None


def _busy_at(state: RankState, time_ns: int) -> bool:
    """True when the rank was alive then and not in a call of its own."""
    if state.state == "blocked":
        return False
    if state.state != "exited":
        return True
    return (
        state.exit is not None
        and state.exit.time_ns >= time_ns
        and not state.exit.clean
        and bool(state.stack)
    )


def _stalled(case: Case) -> tuple[tuple[int, ...], float] | None:
    """Ranks that compute while others have waited for them for longer than the limit."""
    world = case.world
    if case.final or case.dead:
        return None
    longest, late = 0.0, set()
    for state in world.ranks.values():
        if state.state != "blocked" or state.wait is None:
            continue
        seconds = (world.now_ns - state.wait.since_ns) / 1e9
        if seconds >= case.stall_s:
            longest = max(longest, seconds)
            late |= {p for p in state.wait.peers if p in world.ranks and world.ranks[p].state == "running"}
    return (tuple(sorted(late)), longest) if late else None


def _waiting_site(case: Case, late: tuple[int, ...]) -> Site:
    """Where the ranks stand that wait for the late ones."""
    if case.deviation is not None and case.deviation.calls:
        return case.world.kinds[next(iter(case.deviation.calls.values()))].site
    for state in case.world.ranks.values():
        kind = case.world.kind(state.wait.call) if state.wait is not None else None
        if state.rank not in late and kind is not None:
            return kind.site
    return ()


def _where(stack: Site, waiting: Site) -> Frame | None:
    """The line of the late rank in the function in which the others wait; else its innermost user line."""
    best = stack[-1] if stack else None
    for mine, theirs in zip(stack, waiting, strict=False):
        if (mine.path, mine.function) != (theirs.path, theirs.function):
            break
        best = mine
        if mine.line != theirs.line:
            break
    return best
