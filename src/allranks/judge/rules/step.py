"""Collectives out of step: from the statement at which two ranks parted to the fault that it is."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ...findings import Confidence, Evidence, Finding, Location, Text, say
from ...source.files import read
from ...world import SETUP, Frame
from ..case import Case, at_fault, describe, ranks_text
from ..observed import everywhere
from ..places import chain, escapes, function_of
from ..weigh import Cause, Side
from . import Rules, found

if TYPE_CHECKING:
    from ..parting import Parting

RULES = Rules()


def _confidence(parting: Parting) -> Confidence:
    return Confidence.MEASURED if parting.certain or parting.by_rank else Confidence.INFERRED


def _location(case: Case, parting: Parting) -> Location | None:
    """The statement that parted the ranks; in a decorator's wrapper, the call it decides about."""
    if parting.wrapper and parting.inner.site:
        return case.place(parting.inner.site[-1])
    return case.place(parting.frame, parting.line) if parting.frame is not None else None


def _innermost(side: Side) -> Frame | None:
    return side.site[-1] if side.site else None


def _stands(parting: Parting) -> tuple[Frame | None, Frame | None]:
    """The lines that tell the two sides apart: the innermost, or those of the callers where both are in one helper."""
    inner, outer = parting.inner.site, parting.outer.site
    if inner and outer and inner != outer and inner[-1] == outer[-1]:
        return next((a, b) for a, b in zip(inner, outer, strict=False) if a != b)
    return _innermost(parting.inner), _innermost(parting.outer)


def _related(case: Case, parting: Parting) -> tuple[Location, ...]:
    """The call at stake, and where the others are."""
    sides = (parting.inner, parting.outer)
    if parting.cause is Cause.SAME_LINE:
        roles = [say("{ranks} gave {call}", ranks=ranks_text(s.ranks), call=_call(case, s)) for s in sides]
    elif parting.cause is Cause.ARMS:
        roles = [say("where {ranks} stood", ranks=ranks_text(s.ranks)) for s in sides]
    else:
        roles = [
            say("the call that only {ranks} made", ranks=ranks_text(parting.inner.ranks)),
            say("where {ranks} stood", ranks=ranks_text(parting.outer.ranks)),
        ]
    places = [
        case.place(frame, role=role, ranks=side.ranks)
        for side, frame, role in zip(sides, _stands(parting), roles, strict=True)
        if frame is not None
    ]
    if parting.wrapper and parting.frame is not None:
        places.append(case.place(parting.frame, parting.line, role=say("the test that decides who runs it")))
    places += _raised(case, parting)
    test = _test_of(parting)
    if test is not None and parting.frame is not None:
        places.append(case.place(parting.frame, test, role=say("the test that decides who leaves")))
    return tuple(places)


def _raised(case: Case, parting: Parting) -> list[Location]:
    """Where the error may have been raised that a handler swallowed unseen: above the call, in the functions that lead
    to it."""
    if (
        parting.cause is not Cause.HANDLER
        or parting.exception is not None
        or parting.frame not in parting.inner.site
    ):
        return []
    found = []
    for frame in parting.inner.site[parting.inner.site.index(parting.frame) + 1 :]:
        tree = read(frame.path).tree
        for escape in escapes(function_of(tree, frame), frame.line) if tree is not None else ():
            if isinstance(escape.node, ast.Raise) and escape.node.exc is not None:
                made = escape.node.exc
                name = ast.unparse(made.func if isinstance(made, ast.Call) else made)
                found.append(
                    case.place(frame, escape.node.lineno, role=say("may have raised {error}", error=name))
                )
    return found


def _test_of(parting: Parting) -> int | None:
    """The line of the test that decides whether a rank takes the way out."""
    if parting.cause is not Cause.ESCAPE or parting.frame is None or parting.node is None:
        return None
    tree = read(parting.frame.path).tree
    controls = chain(function_of(tree, parting.frame), parting.node.lineno) if tree is not None else []
    branch = next((c for c in reversed(controls) if c.is_branch), None)
    return branch.line if branch is not None and branch.line != parting.line else None


def _call(case: Case, side: Side) -> str:
    """The call of a side in words; with its ReduceOp, the default too, where that is what differs."""
    if side.kind is None:
        return ""
    reduction = case.deviation is not None and case.deviation.mismatch == "reduce_op"
    return describe(side.kind, reduction=reduction)


def _evidence(case: Case, parting: Parting) -> tuple[Evidence | None, ...]:
    made = case.calls(parting.inner.ranks[0])
    return (
        case.cycle(),
        case.stand(parting.inner),
        case.stand(parting.outer),
        made,
        case.calls(parting.outer.ranks[0]),
        _turns(parting),
        _exception(case, parting),
    )


def _turns(parting: Parting) -> Evidence | None:
    if not parting.turns:
        return None
    lines = tuple(f"rank {rank}: {count}" for rank, count in sorted(parting.turns.items()))
    return Evidence("counts", say("batches drawn by this loop"), lines, tuple(sorted(parting.turns)))


def _exception(case: Case, parting: Parting) -> Evidence | None:
    seen = parting.exception
    if seen is None:
        return None
    lines = (*case.stack_lines(seen.frames), f"{seen.type}: {seen.message}")
    return Evidence("stack", say("the error that was handled"), lines, parting.outer.ranks)


def _finding(case: Case, fault: str, message: Text, fix: Text) -> Finding:
    parting = case.parting
    assert parting is not None
    return found(
        fault,
        message,
        _location(case, parting),
        ranks=at_fault(case),
        confidence=_confidence(parting),
        related=_related(case, parting),
        evidence=_evidence(case, parting),
        fix=fix,
    )


def _names(case: Case) -> dict[str, object]:
    """The words that most messages need."""
    parting = case.parting
    assert parting is not None
    test = ""
    if parting.node is not None and not isinstance(parting.node, ast.ExceptHandler):
        test = ast.unparse(parting.node).splitlines()[0].rstrip(":")
    inner, outer = _stands(parting)
    return {
        "ranks": ranks_text(at_fault(case)),
        "inner": ranks_text(parting.inner.ranks),
        "outer": ranks_text(parting.outer.ranks),
        "call": _call(case, parting.inner) or "a collective",
        "other": _call(case, parting.outer),
        "test": test,
        "line": parting.line,
        "call_line": f"{case.path(inner.path)}:{inner.line}" if inner else "?",
        "elsewhere": say("stood at {place}", place=f"{case.path(outer.path)}:{outer.line}")
        if outer
        else say("had ended"),
    }


@RULES.finds("group-membership")
def group_not_made_by_all(case: Case) -> Finding | None:
    """Some ranks made a group that the others did not: new_group is a collective of the whole world."""
    parting, deviation = case.parting, case.deviation
    if parting is None or deviation is None or deviation.group.name != SETUP:
        return None
    inner, outer = sorted((parting.inner, parting.outer), key=lambda side: not _makes_group(side))
    wanted = inner.kind.signature.detail if inner.kind is not None else ""
    names = _names(case) | {"inner": ranks_text(inner.ranks), "outer": ranks_text(outer.ranks)}
    frame = _innermost(inner)
    names["call_line"] = f"{case.path(frame.path)}:{frame.line}" if frame else "?"
    message = say(
        "new_group({wanted}) at {call_line} was called by {inner} only; {outer} went on without it, and new_group "
        "waits for every rank of the world, members or not",
        wanted=wanted, **names,
    )  # fmt: skip
    finding = _finding(
        case,
        "group-membership",
        message,
        say("call new_group on every rank, in the same order, and keep the group where the rank is a member"),
    )
    if parting.cause is Cause.RANK_BRANCH or frame is None:
        return replace(finding, ranks=outer.ranks)
    return replace(finding, ranks=outer.ranks, location=case.place(frame))


def _makes_group(side: Side) -> bool:
    return side.kind is not None and side.kind.signature.op in ("new_group", "split_group")


@RULES.finds("swallowed-exception")
def swallowed_exception(case: Case) -> Finding | None:
    """One side met an error, a handler swallowed it, and the rest of its step's calls were never made."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.HANDLER:
        return None
    names = _names(case)
    fix = say(
        "let the error end the job, or agree on it first: all_reduce a flag, and let every rank skip the step"
    )
    if parting.exception is not None:
        error = f"{parting.exception.type}: {parting.exception.message}".strip()[:200]
        message = say(
            "{outer} met {error}, the handler at line {line} swallowed it, and {outer} went on without "
            "{call}, which {inner} called",
            error=error, **names,
        )  # fmt: skip
    else:
        message = say(
            "{outer} left the try whose handler is at line {line} before {call}, which {inner} called, and went on",
            **names,
        )
    return _finding(case, "swallowed-exception", message, fix)


@RULES.finds("collective-shape")
def collective_shape(case: Case) -> Finding | None:
    """The same call from the same statement, with other shapes or types."""
    parting, deviation = case.parting, case.deviation
    if parting is None or deviation is None or deviation.mismatch not in ("shape", "dtype"):
        return None
    if parting.cause is not Cause.SAME_LINE:
        return None
    message = say("{inner} called {call} while {outer} called {other}, from the same line", **_names(case))
    fix = say(
        "give every rank the same shape and type: pad to the largest size (all_reduce it with MAX first), "
        "or drop the last uneven batch"
    )
    return _finding(case, "collective-shape", message, fix)


@RULES.finds("group-membership")
def group_membership(case: Case) -> Finding | None:
    """The ranks disagree on a root of the same call in a subgroup."""
    parting, deviation = case.parting, case.deviation
    if (
        parting is None
        or deviation is None
        or deviation.mismatch != "root"
        or parting.cause is not Cause.SAME_LINE
    ):
        return None
    message = say(
        "{inner} called {call} while {outer} called {other}: the root is not one rank for all", **_names(case)
    )
    fix = say("pass the same global rank on every member (dist.get_global_rank turns a group rank into one)")
    return _finding(case, "group-membership", message, fix)


@RULES.finds("collective-order")
def collective_order(case: Case) -> Finding | None:
    """Both sides communicate, with other calls or in another order."""
    parting, deviation = case.parting, case.deviation
    if parting is None or parting.cause not in (Cause.ARMS, Cause.SAME_LINE):
        return None
    names = _names(case)
    position = deviation.position if deviation is not None else 0
    message = say(
        "{inner} called {call} at {call_line} where {outer}, which {elsewhere}, called {other}, "
        "as call {position} of their group",
        position=position, **names,
    )  # fmt: skip
    if deviation is not None and deviation.mismatch == "reduce_op":
        return _finding(case, "collective-order", message, say("pass the same ReduceOp on every rank"))
    fix = say(
        "make the same calls in the same order on every rank; move them out of the branch where they can be shared"
    )
    return _finding(case, "collective-order", message, fix)


@RULES.finds("backward-rank-conditional")
def backward_rank_conditional(case: Case) -> Finding | None:
    """Only some ranks run backward, whose reduction waits for all."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.RANK_BRANCH or parting.inner.kind is None:
        return None
    if parting.inner.kind.inside != "DDP.backward":
        return None
    if not _text_has(parting, ".backward(") and not _leaves_after_forward(case, parting):
        return None
    message = say(
        "only {inner} runs backward (`{test}`, line {line}); its reduction waits for every rank",
        **_names(case),
    )
    return _finding(
        case,
        "backward-rank-conditional",
        message,
        say("run backward on every rank; guard only logging and saving"),
    )


def _leaves_after_forward(case: Case, parting: Parting) -> bool:
    """True when the branch is a way out between the forward, which all ranks make, and the backward."""
    if not isinstance(parting.node, ast.If) or not isinstance(
        parting.node.body[-1], ast.Continue | ast.Return
    ):
        return False
    forwards = [row["site"][-1] for _, row in everywhere(case, "event", what="forward") if row["site"]]
    backward = _innermost(parting.inner)
    return backward is not None and any(
        f.path == backward.path
        and f.function == backward.function
        and f.line < (parting.line or 0) < backward.line
        for f in forwards
    )


def _text_has(parting: Parting, words: str) -> bool:
    return parting.node is not None and words in ast.unparse(parting.node)


@RULES.finds("hidden-collective")
def hidden_collective(case: Case) -> Finding | None:
    """A call that communicates inside stands in a branch on the rank."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.RANK_BRANCH:
        return None
    if parting.inner.kind is None or not parting.inner.kind.hidden:
        return None
    message = say(
        "only {inner} gets to {call_line}, which communicates inside: {call}; {outer} {elsewhere}",
        **_names(case),
    )
    return _finding(case, "hidden-collective", message, _share(parting))


def _share(parting: Parting) -> Text:
    """The mend of a hidden call: only a forward of DDP that trains nothing may go around the wrapper instead."""
    assert parting.inner.kind is not None
    if parting.inner.kind.inside == "DDP.forward" and not _trains(parting.inner):
        return say(
            "make the call on every rank, or use the inner module (model.module) where no communication is wanted"
        )
    return say("make the call on every rank: the others wait for its part")


def _trains(side: Side) -> bool:
    """True when the function that makes the call runs a backward too."""
    frame = _innermost(side)
    tree = read(frame.path).tree if frame is not None else None
    return frame is not None and tree is not None and ".backward(" in ast.unparse(function_of(tree, frame))


@RULES.finds("rank-conditional-collective")
def rank_conditional_collective(case: Case) -> Finding | None:
    """A collective stands in a branch on the rank."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.RANK_BRANCH:
        return None
    message = say(
        "{call} at {call_line} is reached by {inner} only (`{test}`, line {line}); {outer} {elsewhere}",
        **_names(case),
    )
    fix = say("move the collective out of the branch: every rank of the group must call it")
    return _finding(case, "rank-conditional-collective", message, fix)


@RULES.finds("early-exit")
def early_exit(case: Case) -> Finding | None:
    """One side left by a break, return or exit while the other went on."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.ESCAPE or parting.escape == "continue":
        return None
    message = say(
        "{outer} left by the {escape} at line {line} while {inner} went on to {call} at {call_line}",
        escape=parting.escape, **_names(case),
    )  # fmt: skip
    fix = say(
        "decide together: all_reduce or broadcast the condition, so that every rank leaves at the same step"
    )
    return _finding(case, "early-exit", message, fix)


@RULES.finds("uneven-iterations")
def uneven_iterations(case: Case) -> Finding | None:
    """A loop over steps had fewer turns on one side."""
    parting = case.parting
    if parting is None or parting.cause is not Cause.LOOP:
        return None
    names = _names(case)
    mine = max((parting.turns.get(r, 0) for r in parting.inner.ranks), default=0)
    theirs = max((parting.turns.get(r, 0) for r in parting.outer.ranks), default=0)
    if parting.certain:
        message = say(
            "the loop at line {line} had {theirs} turns on {outer} and at least {mine} on {inner}, "
            "which waits in {call}",
            mine=mine, theirs=theirs, **names,
        )  # fmt: skip
    else:
        message = say("the loop at line {line} ended sooner on {outer}; {inner} waits in {call}", **names)
    fix = say(
        "give every rank the same number of batches: DistributedSampler, drop_last, equal shards, or DDP's join()"
    )
    return _finding(case, "uneven-iterations", message, fix)


@RULES.finds("data-dependent-collective")
def data_dependent_collective(case: Case) -> Finding | None:
    """Whether a call runs depends on each rank's data."""
    parting = case.parting
    if parting is None or (parting.cause is not Cause.DATA_BRANCH and parting.escape != "continue"):
        return None
    message = say(
        "`{test}` (line {line}) came out differently: {inner} went on to {call} at {call_line}, {outer} did not",
        **_names(case),
    )
    fix = say(
        "make the call on every rank whatever its data (with a zero where there is nothing), "
        "or agree on the condition first"
    )
    return _finding(case, "data-dependent-collective", message, fix)


@RULES.finds("collective-order")
def out_of_step(case: Case) -> Finding | None:
    """The ranks made different calls, and no statement that parted them could be named."""
    parting, deviation = case.parting, case.deviation
    if parting is None or deviation is None:
        return None
    names = _names(case)
    if parting.outer.ended and parting.outer.kind is None:
        message = say("{outer} ended while {inner} waits in {call} at {call_line}", **names)
        return _finding(
            case,
            "early-exit",
            message,
            say("find out why {outer} ended before the others", outer=names["outer"]),
        )
    message = say(
        "{inner} called {call} at {call_line} where {outer} {elsewhere} instead; the statement that parted "
        "them could not be read",
        **names,
    )
    return _finding(
        case,
        "collective-order",
        message,
        say("every rank of a group must make the same calls in the same order"),
    )
