"""Collectives in step: what some ranks call and others do not, from branches, exits, loops and handlers."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ...findings import Finding, Location, Severity, Text, say
from ...source import syntax
from ...source.execution import alone, runs
from ...source.lanes import LANES, RankSet
from ...source.partings import Parting, partings
from ...source.program import Function, dotted_name
from ...source.trace import Attempt, Branch, Event, Exit, Handler, Loop, events, walk
from ...source.values import Instance, Kind, Unknown, Value, Walk
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...source.machine import Run
    from ...source.program import Module, Program
    from ...source.trace import Site
    from ...source.values import Origin

_WEAK = frozenset(("random", "time", "memory", "process", "host"))
"""Causes of a difference that the ranks may well share: one seed, clocks that agree."""
_UNIFORM_ERRORS = frozenset(
    ("ImportError", "ModuleNotFoundError", "KeyboardInterrupt", "StopIteration", "AttributeError", "SystemExit",
     "NotImplementedError", "NameError", "TypeError", "KeyError", "IndexError", "BrokenPipeError", "EOFError",
     "queue.Empty", "Empty")
)  # fmt: skip
"""Errors that are bugs or the end of something: every rank meets them alike."""


@finds(
    "rank-conditional-collective", "hidden-collective", "early-exit", "data-dependent-collective",
    "group-membership", "collective-order", "swallowed-exception",
)  # fmt: skip
def parted(program: Program) -> Iterator[Finding]:
    """A statement lets some ranks call collectives that the others do not call, or in another order.

    What both sides of a branch call is compared as a sequence, through calls and past exits; a barrier in each of
    two opposite branches pairs.
    """
    for run in _looked_at(program):
        for parting in partings(run.items, run.decisions):
            finding = _parted(program, run, parting)
            if finding is not None:
                yield finding


def _looked_at(program: Program) -> Iterator[Run]:
    for run in runs(program):
        # What os.fork makes of one process is not followed.
        if run.initialised and not any(events(run.items, "fork")):
            yield run
    yield from alone(program)


def _parted(program: Program, run: Run, parting: Parting) -> Finding | None:
    made = [e for e in parting.made if e.kind != "init"]
    if run.alone is not None:
        # What is built once, by whoever asks first, was mostly built before.
        made = [e for e in made if e.kind not in ("wrap", "prepare")]
    origin = parting.origin.cause if parting.origin is not None else ""
    if not made or origin == "file" or (run.alone is not None and parting.ranks is None):
        return None
    if all(e.kind == "backward" for e in made) and isinstance(parting.cause, Branch):
        return None  # told by the rule on gradients
    weak = origin in _WEAK
    if isinstance(parting.cause, Exit) and not _in_wrapper(program, parting, made[0]):
        finding = _left(program, parting, made)
    elif isinstance(parting.cause, Branch) and isinstance(parting.site.node, ast.ExceptHandler):
        return None  # what a handler calls belongs to the attempt
    elif parting.ordered:
        finding = _ordered(parting, made)
    else:
        finding = _branched(program, parting, made)
    if finding is None:
        return None
    if weak or run.alone is not None:
        finding = replace(finding, severity=min(finding.severity, Severity.WARNING, key=lambda s: s.weight))
    return replace(finding, condition=_condition(parting), call_path=made[0].site.calls())


def _in_wrapper(program: Program, parting: Parting, event: Event) -> bool:
    """True for an exit of a decorator's wrapper, which then does not call what it wraps."""
    return any(s.caller is parting.site.caller and _hands_over(program, s) for s in event.site.chain())


def _branched(program: Program, parting: Parting, made: list[Event]) -> Finding | None:
    """Calls under a condition that holds on some ranks only."""
    event = next((e for e in made if not e.hidden), made[0])
    if _called_back(program, parting, event):
        return None
    place = _place(program, parting, event)
    related = [*_of_branch(parting, place), *_of_event(event, place), *_waiting(parting)]
    if event.kind == "new_group" and parting.ranks is not None:
        return found(
            "group-membership",
            place,
            say(
                "{operation} is called by {ranks} only; every rank of the job must call it, members or not",
                operation=event.operation,
                ranks=_who(parting.ranks),
            ),
            related=related,
            fix=say("call {operation} on all ranks; only members use the group", operation=event.operation),
        )
    if parting.ranks is None and parting.origin is not None and parting.origin.cause == "error":
        return _other_values(parting.origin, _not_called(event))
    if parting.ranks is None and parting.kind is not Kind.GROUP:
        return found(
            "data-dependent-collective",
            place,
            say("whether a rank calls {operation} depends on its own data", operation=_called(event)),
            related=[*related, *_origin(parting)],
            fix=say(
                "decide together: reduce the condition over the ranks first, or make the call in both cases"
            ),
        )
    if all(e.hidden for e in made):
        return found(
            "hidden-collective",
            place,
            say(
                "this runs on {ranks} only, but it communicates: {hidden}",
                ranks=_who(parting.ranks),
                hidden=event.hidden,
            ),
            related=related,
            fix=_fix_hidden(event),
        )
    return found(
        "rank-conditional-collective",
        place,
        say(
            "{operation} is called by {ranks} only; the other ranks do not take part",
            operation=_called(event),
            ranks=_who(parting.ranks),
        ),
        related=related,
        fix=say(
            "call {operation} on all ranks and keep only the output under the rank test",
            operation=_called(event),
        ),
    )


def _called_back(program: Program, parting: Parting, event: Event) -> bool:
    """True when the other arm of the test hands a function that communicates to something that calls it back: a
    server on rank 0, whose requests the other ranks follow."""
    node = parting.site.node
    if not isinstance(node, ast.If):
        return False
    lines = [site.line for site in event.site.chain() if site.path == parting.site.path]
    first, last = node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno
    other = node.orelse if any(first <= line <= last for line in lines) else node.body
    return _hands_talk(program, program.module(parting.site.path), other, 2)


def _hands_talk(program: Program, module: Module, body: Sequence[ast.AST], depth: int) -> bool:
    for call in (n for statement in body for n in syntax.walk(statement) if isinstance(n, ast.Call)):
        for given in (*call.args, *(k.value for k in call.keywords)):
            target = program.resolve(module, given.id) if isinstance(given, ast.Name) else None
            if isinstance(target, Function) and program.interest.communicates(
                target.module.path, target.line
            ):
                return True
        callee = dotted_name(call.func)
        target = program.resolve(module, callee) if callee and depth else None
        if isinstance(target, Function) and _hands_talk(program, target.module, target.node.body, depth - 1):
            return True
    return False


def _ordered(parting: Parting, made: list[Event]) -> Finding:
    """Both sides make the same calls, in another order."""
    made = sorted(made, key=lambda e: (str(e.site.path), e.site.line))
    first, waiting = made[0], parting.waiting
    if parting.crossed and waiting is not None:
        return found(
            "hidden-collective" if first.hidden else "collective-order",
            first.site.location(),
            say(
                "{operation} stands where some ranks still wait in {waiting}",
                operation=first.hidden or _called(first),
                waiting=_called(waiting),
            ),
            related=[
                waiting.site.location(say("they wait here")),
                *_of_branch(parting, first.site.location()),
            ],
            fix=say("take what communicates out of the part that the ranks run one after the other"),
        )
    return found(
        "collective-order",
        first.site.location(),
        say("{operation} comes in another order on the other ranks", operation=_called(first)),
        related=[
            *(e.site.location(say("and here")) for e in made[1:4]),
            *_of_branch(parting, first.site.location()),
        ],
        fix=say("issue the collectives in the same order on all ranks"),
    )


def _left(program: Program, parting: Parting, made: list[Event]) -> Finding | None:
    """Calls that are missed by ranks that have left."""
    left = parting.cause
    assert isinstance(left, Exit)
    event = made[0]
    site = left.site
    handler = _handler(left)
    related = [
        *_of_branch(parting, site.location()),
        event.site.location(say("the other ranks wait here, in {operation}", operation=_called(event))),
        *_origin(parting),
    ]
    if handler is not None:
        if left.how in ("raise", "exit") or _refused(handler):
            return None
        return _swallowed(handler, site, event)
    if parting.ranks is None and parting.origin is not None and parting.origin.cause == "error":
        return _other_values(parting.origin, _not_called(event))
    if left.how == "raise" and parting.ranks is not None and parting.ranks.mask == 0:
        return None
    if left.how == "continue":
        by_rank = parting.ranks is not None or parting.kind is Kind.GROUP
        slug = "rank-conditional-collective" if by_rank else "data-dependent-collective"
        return found(
            slug,
            site.location(),
            say("a rank that skips the rest of this turn misses {operation}", operation=_called(event)),
            related=related,
            fix=say("decide together: reduce the condition over the ranks, so that all of them skip or none"),
        )
    return found(
        "early-exit",
        site.location(),
        say(
            "a rank that leaves here ({how}) lets the others wait in {operation}",
            how=left.how,
            operation=_called(event),
        ),
        related=related,
        fix=say("decide together: all_reduce the condition (MAX), then leave on all ranks or on none"),
    )


def _other_values(origin: Origin, *related: Location) -> Finding:
    """An except clause sets what decides later what a rank calls, and how often."""
    return found(
        "swallowed-exception",
        Location(origin.path, origin.line),
        say("a rank that meets an error here goes on with other values than the ranks that do not"),
        related=list(related),
        fix=say("let the error end the job, or let rank 0 decide and broadcast what it found"),
    )


def _not_called(event: Event) -> Location:
    return event.site.location(say("then it does not call {operation}", operation=_called(event)))


def _handler(left: Exit) -> ast.ExceptHandler | None:
    """The except clause in which an exit stands."""
    for branch in left.branch.chain() if left.branch is not None else ():
        if branch.site.caller is left.site.caller and isinstance(branch.site.node, ast.ExceptHandler):
            return branch.site.node
    return None


@finds("swallowed-exception")
def swallowed(program: Program) -> Iterator[Finding]:
    """An error in a part of the step that communicates is caught, and the rank goes on without it."""
    for run in _looked_at(program):
        for item in walk(run.items):
            if isinstance(item, Attempt):
                event = next((e for e in events(item.items) if _in_step(e) and _in_process(item, e)), None)
                if event is None or not isinstance(item.site.node, ast.Try):
                    continue
                for handler in item.handlers:
                    asked = _refused(handler.node) and not any(events(item.items, "backward"))
                    told = _meant(handler) or _own(program, handler, item.site)
                    if _goes_on(handler) and not (told or _agreed(handler, event) or asked):
                        yield replace(
                            _swallowed(handler.node, item.site, event), call_path=event.site.calls()
                        )


def _in_step(event: Event) -> bool:
    """True for a collective of the step; monitored_barrier is there to fail, and fails on every rank."""
    return (
        event.communicates == 2
        and event.kind not in ("init", "new_group", "wrap", "prepare")
        and event.operation != "monitored_barrier"
    )


def _in_process(attempt: Attempt, event: Event) -> bool:
    """True for an event of the process that makes the attempt, not of one that it starts there."""
    callers = {id(site) for site in attempt.site.chain()}
    inner = [site for site in event.site.chain() if id(site) not in callers]
    return not any(
        isinstance(site.node, ast.Call)
        and getattr(site.node.func, "attr", "") in ("Process", "start", "spawn")
        for site in inner
    )


def _own(program: Program, handler: Handler, site: Site) -> bool:
    """True for exceptions of the program's own, which it raises where it decides to."""
    module = program.module(site.path)
    return bool(handler.types) and all(
        isinstance(program.resolve(module, name), ast.ClassDef) for name in handler.types
    )


def _goes_on(handler: Handler) -> bool:
    """True when a rank comes out of the clause: at its end, or to the next turn, or back to the caller."""
    left = (i for i in walk(handler.items) if isinstance(i, Exit))
    return handler.fell != 0 or any(e.how in ("continue", "break", "return") for e in left)


def _refused(handler: ast.ExceptHandler) -> bool:
    """True for the errors of arguments that somebody gave, alike on all ranks."""
    return isinstance(handler.type, ast.Name) and handler.type.id in ("ValueError", *_UNIFORM_ERRORS)


def _agreed(handler: Handler, event: Event) -> bool:
    """True when the ranks that come into a clause make the call there that the others make."""
    return any(e.communicates == 2 and e.operation == event.operation for e in events(handler.items))


def _meant(handler: Handler) -> bool:
    """True for errors that all ranks meet alike."""
    return bool(handler.types) and all(t in _UNIFORM_ERRORS for t in handler.types)


def _swallowed(handler: ast.ExceptHandler, site: Site, event: Event) -> Finding:
    place = replace(
        site.location(), line=handler.lineno, column=handler.col_offset + 1, end_line=handler.lineno
    )
    return found(
        "swallowed-exception",
        place,
        say(
            "a rank that meets an error here goes on without {operation}, in which the others wait",
            operation=_called(event),
        ),
        related=[event.site.location(say("called inside the attempt"))],
        fix=say(
            "let the error end the job, or agree on it: all_reduce a flag and skip the step on all ranks"
        ),
    )


@finds("uneven-iterations", "data-dependent-collective", "swallowed-exception")
def uneven(program: Program) -> Iterator[Finding]:
    """A loop with collectives inside takes a different number of turns on each rank."""
    for run in _looked_at(program):
        for loop in (i for i in walk(run.items) if isinstance(i, Loop)):
            if loop.turns <= Kind.GROUP or "join" in loop.within:
                continue
            event = next((e for e in events(loop.items) if e.communicates == 2), None)
            if event is None or (loop.origin is not None and loop.origin.cause in ("file", *_WEAK)):
                continue
            if run.alone is not None and loop.turns is Kind.DATA:
                continue
            over = _through(loop.over)
            if isinstance(over, Walk) and over.like == "range" and not _by_shard_or_error(loop):
                continue  # micro-batches of a batch: of one size, the last batch aside
            if loop.origin is not None and loop.origin.cause == "error":
                yield _other_values(
                    loop.origin,
                    loop.site.location(say("then it takes another number of turns here")),
                    event.site.location(
                        say("and the others wait here, in {operation}", operation=_called(event))
                    ),
                )
            else:
                yield replace(_uneven(loop, event), call_path=event.site.calls())


def _by_shard_or_error(loop: Loop) -> bool:
    return loop.origin is not None and loop.origin.cause in ("shard", "error")


def _uneven(loop: Loop, event: Event) -> Finding:
    place = replace(loop.site.location(), end_line=loop.site.line)
    related = [
        event.site.location(say("{operation} in every turn needs all ranks", operation=_called(event))),
        *(_named(loop.origin.path, loop.origin.line) if loop.origin is not None else ()),
    ]
    if _over_steps(loop):
        return found(
            "uneven-iterations",
            place,
            say(
                "ranks may take different numbers of turns here, and {operation} inside needs all of them",
                operation=_called(event),
            ),
            related=related,
            severity=Severity.INFO if _by_sample(loop) else None,
            fix=say(
                "give all ranks as many samples (drop the rest or pad), or wrap the loop in `with model.join():`"
            ),
        )
    return found(
        "data-dependent-collective",
        place,
        say("how often a rank calls {operation} here depends on its own data", operation=_called(event)),
        related=related,
        fix=say(
            "call it equally often on all ranks: fill in what is missing with zeros, or reduce one stacked tensor"
        ),
    )


def _over_steps(loop: Loop) -> bool:
    """True for a loop over batches or shards, or until a condition; False for one over what the data gave."""
    over = _through(loop.over)
    if isinstance(loop.site.node, ast.While) or isinstance(over, Instance):
        return True
    sharded = loop.origin is not None and loop.origin.cause == "shard"
    return sharded or (isinstance(over, Unknown) and loop.turns is not Kind.DATA)


def _by_sample(loop: Loop) -> bool:
    """True for a loader over single samples shared out in turn: shards differ by one sample at most, which seldom
    makes a batch more."""
    over = _through(loop.over)
    dataset = over.fields.get("dataset") if isinstance(over, Instance) and over.kind == "loader" else None
    return dataset is not None and not (isinstance(dataset, Instance) and dataset.kind == "iterable_dataset")


def _through(value: Value) -> Value:
    """What enumerate, tqdm and the like go over."""
    while isinstance(value, Walk) and value.over and value.like not in ("items", "values", "keys", "range"):
        value = value.over[0]
    return value


@finds("unawaited-work")
def unawaited(program: Program) -> Iterator[Finding]:
    """The tensor of an asynchronous collective is used before `wait()`."""
    for run in _looked_at(program):
        for early in run.early:
            operation = early.event.operation
            yield found(
                "unawaited-work",
                early.event.site.location(),
                say(
                    "the result of this asynchronous {operation} is used before it is waited for",
                    operation=operation,
                ),
                related=[early.used.location(say("used here"))],
                fix=say(
                    "keep the returned work and call .wait() before the tensor is used, or drop async_op=True"
                ),
                call_path=early.event.site.calls(),
            )


# Places and words


def _place(program: Program, parting: Parting, event: Event) -> Location:
    """The call under the branch that leads to the collective; the collective itself where a wrapper decides."""
    chain = event.site.chain()
    at = next((i for i, s in enumerate(chain) if s.caller is parting.site.caller), None)
    if at is None:
        return event.site.location()
    site = chain[at]
    if at + 1 < len(chain) and _hands_over(program, site):
        site = chain[at + 1]
    return site.location()


def _hands_over(program: Program, site: Site) -> bool:
    """True for the call by which a decorator's wrapper runs what it wraps."""
    function = program.function_at(site.path, site.line)
    if function is None or not isinstance(site.node, ast.Call) or not isinstance(site.node.func, ast.Name):
        return False
    around = function.name.rpartition(".")[0]
    outer = next((f for f in function.module.functions if f.name == around), None)
    if outer is None:
        return False
    spec = outer.node.args
    return site.node.func.id in {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}


def _called(event: Event) -> Text | str:
    """The name under which a collective is known."""
    if event.operation == "ddp.forward":
        return say("the DDP forward")
    return say("the DDP backward") if event.operation == "ddp.backward" else event.operation


def _who(ranks: RankSet | None) -> Text:
    if ranks is None:
        return say("some ranks")
    if ranks.only_zero:
        return say("rank 0")
    if ranks.all_but_zero:
        return say("every rank but 0")
    if ranks.by_node:
        return say("some local ranks of each node")
    if not ranks.known or len(ranks.known) > 3:
        return say("some ranks")
    return say("ranks {ranks}", ranks=", ".join(map(str, sorted(ranks.known))))


def _condition(parting: Parting) -> Text | None:
    if parting.ranks is None or 0 in parting.worlds:
        return None
    several = all(LANES[i].nodes > 1 for i in range(len(LANES)) if LANES[i].world in parting.worlds)
    return say("with several nodes") if several else say("with more than two processes")


def _fix_hidden(event: Event) -> Text:
    if event.operation == "ddp.forward":
        return say("evaluate on all ranks, or call the inner model: model.module(...)")
    return say("run it on all ranks; keep only what writes under the rank test")


def _of_branch(parting: Parting, place: Location) -> Iterator[Location]:
    branch = parting.cause if isinstance(parting.cause, Branch) else parting.cause.branch
    if branch is None or isinstance(branch.site.node, ast.ExceptHandler):
        return
    test = getattr(branch.site.node, "test", None)
    line = test.lineno if isinstance(test, ast.expr) else branch.site.line
    if (str(branch.site.path), line) != (place.path, place.line):
        yield replace(branch.site.location(say("decided here")), line=line, end_line=line)


def _of_event(event: Event, place: Location) -> Iterator[Location]:
    if (str(event.site.path), event.site.line) != (place.path, place.line):
        yield event.site.location(say("{operation} is called here", operation=_called(event)))


def _waiting(parting: Parting) -> Iterator[Location]:
    if parting.waiting is not None:
        role = say("meanwhile the other ranks wait here, in {operation}", operation=_called(parting.waiting))
        yield parting.waiting.site.location(role)


def _origin(parting: Parting) -> Iterator[Location]:
    if parting.origin is not None and parting.origin.cause != "error":
        yield from _named(parting.origin.path, parting.origin.line)


def _named(path: str, line: int) -> Iterator[Location]:
    yield Location(path, line, role=say("where the ranks begin to differ"))
