"""Findings on ranks that made calls that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Confidence, Evidence, Finding, Severity, Text, say
from .agreement import described, operation, place
from .words import SHOWN, Words, group_text, ranks_text

if TYPE_CHECKING:
    from .deviations import Mismatch, Shift, Side

Members = tuple[int, tuple[int, ...]]
"""A rank, and the members of a group as it knows them."""


def mismatch(words: Words, found: Mismatch) -> Finding:
    """Ranks that made different calls at one position."""
    odd = found.odd
    first = found.sides[0] if odd == found.sides else odd[0]
    second = next(
        side for side in found.sides if side is not first and (odd == found.sides or side not in odd)
    )
    one, other = words.call(first.kind), words.call(second.kind)
    same = operation(one) == operation(other) and not one.parts
    same = same and place(one) == place(other) and found.skipped is None
    fix = say("make every rank of the group issue the same calls in the same order")
    if same:
        fix = say("give the tensors of this call the same number of elements and the same type on every rank")
    sure = 2 * len(found.sides[0].ranks) > len(found.group.members)
    return Finding(
        fault="collective-shape" if same else "collective-order",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED if sure else Confidence.INFERRED,
        message=_what_differs(words, found, first, second),
        location=words.location(one, other),
        related=words.related(other, second.ranks, other=one),
        ranks=tuple(sorted(rank for side in odd for rank in side.ranks)),
        evidence=(
            *(_side(words, side) for side in found.sides[:SHOWN]),
            *words.histories(found.group, [first.ranks[0], second.ranks[0]], found.position + 1),
        ),
        fix=fix,
    )


def _what_differs(words: Words, found: Mismatch, first: Side, second: Side) -> Text:
    one, other = words.call(first.kind), words.call(second.kind)
    names = {
        "position": found.position,
        "group": group_text(found.group),
        "ranks": ranks_text(first.ranks),
        "call": described(one),
        "place": words.place(one, other),
        "others": ranks_text(second.ranks),
        "other_call": described(other),
        "other_place": words.place(other, one),
    }
    if found.odd == found.sides:
        return say(
            "call #{position} of {group}: {ranks} called {call} at {place}, {others} called {other_call} at "
            "{other_place}; the dumps do not tell which side is wrong",
            **names,
        )
    if found.skipped is not None:
        return say(
            "{ranks} went on to {call} at {place} without call #{position} of {group}, {other_call}, which "
            "{others} made at {other_place}",
            **names,
        )
    return say(
        "call #{position} of {group}: {ranks} called {call} at {place}, but {others} called {other_call} at "
        "{other_place}",
        **names,
    )


def _side(words: Words, side: Side) -> Evidence:
    call = words.call(side.kind)
    names = {"ranks": ranks_text(side.ranks), "call": described(call)}
    title = say("{ranks} called {call}", **names)
    if side.as_before is False:
        title = say("{ranks} called {call}, where another call used to follow", **names)
    return words.stack(title, call, side.ranks)


def shift(words: Words, found: Shift) -> Finding:
    """Calls that pair with the wrong ones, unseen, because sizes and types go together."""
    one, other = words.call(found.kind), words.call(found.other_kind)
    if found.left_out > 0:  # the call at stake is the one that the others made
        one, other = other, one
    names = {
        "ranks": ranks_text(found.ranks),
        "position": found.position,
        "group": group_text(found.group),
        "count": abs(found.left_out),
        "call": described(one),
        "place": words.place(one, other),
        "other_place": words.place(other, one),
    }
    if found.left_out > 0:
        message = say(
            "{ranks} left out {count} calls of {group}, first #{position}, {call} at {place}; every later call pairs "
            "with the wrong one, and no error shows it",
            **names,
        )
    elif found.left_out < 0:
        message = say(
            "{ranks} made {count} calls of {group} that the others did not make, first #{position}, {call} at "
            "{place}; every later call pairs with the wrong one, and no error shows it",
            **names,
        )
    else:
        message = say(
            "{ranks} made two calls of {group} in the other order, from #{position}: that of {place} before that of "
            "{other_place}; their results are mixed up, and no error shows it",
            **names,
        )
    return Finding(
        fault="collective-order",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED if len(found.ranks) < len(found.others) else Confidence.INFERRED,
        message=message,
        location=words.location(one, other),
        related=words.related(other, found.others if found.left_out <= 0 else found.ranks, other=one),
        ranks=found.ranks,
        evidence=words.histories(found.group, [found.ranks[0], found.others[0]], found.position + SHOWN),
        fix=say("make every rank of the group issue the same calls in the same order"),
    )


def membership(name: str, one: Members, other: Members) -> Finding:
    """A group that has different members on different ranks."""
    lines = tuple(f"rank {rank}: {list(ranks)[:32]}" for rank, ranks in (one, other))
    ranks = (one[0], other[0])
    return Finding(
        fault="group-membership",
        severity=Severity.ERROR,
        confidence=Confidence.MEASURED,
        message=say(
            "process group {name} has other members on rank {rank} than on rank {other}: the ranks made their groups "
            "in different orders",
            name=name,
            rank=one[0],
            other=other[0],
        ),
        ranks=ranks,
        evidence=(Evidence("calls", say("the members of the group by rank"), lines, ranks),),
        fix=say("let every rank call new_group for every group, in the same order"),
    )
