"""From what the ranks of a World did to findings, root causes first."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import Confidence, Severity
from ..source.program import Program
from . import silent
from .case import Case, side_of
from .compare import Deviation, first_deviation
from .failures import Blame, Failure, failures
from .luck import Luck, luck
from .parting import part
from .rules import crash, launch, step, waiting
from .waits import dead_set

if TYPE_CHECKING:
    from ..findings import Finding
    from ..world import Site, World
    from .weigh import Side


def judge(world: World, *, final: bool = False, stall_s: float = 60.0) -> list[Finding]:
    """What is wrong with `world`, the root cause first; empty while nothing is proved.

    `final` says that the job is over: ranks that ended are then judged too. `stall_s` is for how long a rank may
    keep the others waiting before it is reported as slow.
    """
    dead = dead_set(world)
    ended = failures(world)
    settled = final or bool(dead)
    case = Case(world, _program(world), dead=dead, failures=ended, final=final, stall_s=stall_s)
    case.deviation = _deviation(world, settled)
    root = _root(case) if settled or _silent(case.deviation) else None
    if root is None:
        root = waiting.RULES.first(case)
    if root is not None:
        root = silent.refined(case, root)
    found = [root] if root is not None else []
    if final:
        found += silent.findings(case, root)
        found += [f for rule in launch.NOTES if (f := rule.judge(case)) is not None]
    return found


def so_far(world: World) -> list[Finding]:
    """What was measured to be wrong with a job that goes on all the same: the errors that no later step unsays."""
    case = Case(world, _program(world), dead=dead_set(world), failures=failures(world), final=False)
    certain = (Confidence.PROVED, Confidence.MEASURED)
    found = silent.findings(case, None)
    return [f for f in found if f.severity is Severity.ERROR and f.confidence in certain]


def _program(world: World) -> Program:
    """The job's program: the files that its stacks name, and what those import; parsed only when a rule asks, and
    kept from one look at the world to the next."""
    sites = [kind.site for kind in world.kinds.values()]
    for state in world.ranks.values():
        sites += [state.stack, *(error.frames for error in state.exceptions)]
    paths = {frame.path for site in sites for frame in site if frame.user}
    return _kept(world.root or ".", frozenset((path, _changed(path)) for path in paths))


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _kept(root: str, files: frozenset[tuple[str, int]]) -> Program:
    return Program(Path(root), [Path(path) for path, changed in sorted(files) if changed])


def _silent(deviation: Deviation | None) -> bool:
    """True when ranks that still run have made calls that do not pair."""
    return deviation is not None and deviation.mismatch is not None


def _deviation(world: World, settled: bool) -> Deviation | None:
    """The first deviation that means something; calls that pair, from other statements, only where it is proved
    that one was skipped or two were swapped."""
    harmless: set[frozenset[int]] = set()
    while True:
        found = first_deviation(world, harmless=harmless)
        if found is None or found.mismatch != "site":
            return found
        what = luck(world, found, settled=settled)
        if what in (Luck.SKIPPED, Luck.SWAPPED):
            return found
        if what is Luck.OPEN and not settled:
            hard = first_deviation(world, sites=False)
            return hard if _silent(hard) else None
        harmless.add(frozenset(found.calls.values()))


def _root(case: Case) -> Finding | None:
    """The root cause of a job that is dead or over: whoever failed first by itself, or where the ranks parted."""
    refused = launch.FIRST.first(case)
    if refused is not None:
        return refused
    own = next((f for f in case.failures if f.blame is Blame.OWN), None)
    left = own is not None and own.exception is None and own.signal is None
    if own is not None and _comes_first(case, own) and not (left and case.deviation):
        return crash.verdict(case, own)
    vanished = crash.without_a_word(case)
    if vanished is not None:
        return vanished
    if case.deviation is not None and not _cut_short(case):
        finding = waiting.RULES.first(case)
        if finding is not None:
            return finding
        sides = _sides(case)
        if sides is not None:
            one, other = sides
            case.parting = part(case.world, case.program, one, other, _before(case.world, case.deviation))
            return step.RULES.first(case)
    finding = launch.RULES.first(case) or waiting.RULES.first(case)
    first = next((f for f in case.failures if not f.asked_for), None)
    if finding is None and first is not None:
        return crash.verdict(case, first)
    return finding


def _cut_short(case: Case) -> bool:
    """True when the ranks that are missing from a call were ended from outside before they came to it."""
    deviation = case.deviation
    if deviation is None or deviation.mismatch is not None or case.dead:
        return False
    if any(f.blame is Blame.TIMEOUT for f in case.failures):
        return False
    asked = {f.rank for f in case.failures if f.asked_for}
    return bool(asked) and set(deviation.missing) <= asked


def _comes_first(case: Case, failure: Failure) -> bool:
    """True when a rank's own failure is the cause of the deviation and not its consequence."""
    deviation = case.deviation
    if deviation is None or failure.rank is None:
        return True
    if deviation.mismatch is not None:
        return failure.time_ns < deviation.time_ns
    if failure.rank in deviation.missing:
        return True
    others = [case.world.ranks[rank] for rank in deviation.missing]
    if all(state.state != "exited" for state in others):
        return True
    return failure.time_ns <= min(s.exit.time_ns for s in others if s.exit is not None)


def _sides(case: Case) -> tuple[Side, Side] | None:
    """The two sides of the deviation: the largest class of ranks that made one call, and the largest of the rest."""
    deviation, world = case.deviation, case.world
    assert deviation is not None
    classes: dict[int | None, list[int]] = {}
    for rank, made in sorted(deviation.calls.items()):
        classes.setdefault(made, []).append(rank)
    for rank in deviation.missing:
        classes.setdefault(None, []).append(rank)
    ordered = sorted(classes.items(), key=lambda item: (-len(item[1]), item[1]))
    if len(ordered) < 2:
        return None
    (call, ranks), (otherwise, rest) = ordered[:2]
    return side_of(world, tuple(ranks), call), side_of(world, tuple(rest), otherwise)


def _before(world: World, deviation: Deviation) -> Site:
    """The site of the last call on which the ranks agreed."""
    rank = next(iter(deviation.calls))
    history = world.ranks[rank].histories.get(deviation.group.name)
    kind = world.kind(history.at(deviation.position - 1)) if history is not None else None
    return kind.site if kind is not None else ()
