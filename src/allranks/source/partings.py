"""Where ranks part: collectives that some ranks make and others do not, and the statement that decides.

The trace of a run is read as each rank would live it: for a rank and an outcome of the unknown conditions, the
sequence of collectives that it makes. Two ranks of one world, or one rank under two outcomes of its own data, must
make the same sequence; whether from the same lines does not matter. What does not pair is a parting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from .decisions import Choice, Decisions, Guard, mask_under, symbols_of
from .lanes import ALL, LANES, WORLDS, RankSet, even, indices
from .trace import Attempt, Branch, Event, Exit, Item, Loop, Site, walk
from .values import NONE, Const, External, Instance, Items, Kind, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 40
"""At most so many outcomes of the unknown conditions are looked at."""


@dataclass(frozen=True, slots=True)
class View:
    """A rank and an outcome of the unknown conditions."""

    lane: int
    holds: tuple[tuple[int, bool], ...]
    defaults: tuple[bool, ...]
    masks: dict[Guard, int] = field(default_factory=dict, compare=False, repr=False)
    """The lanes of each guard that was asked for, under this outcome."""

    def sees(self, guard: Guard) -> bool:
        """True when this rank is among the lanes of `guard`."""
        if type(guard) is int:
            return bool(guard >> self.lane & 1)
        mask = self.masks.get(guard)
        if mask is None:
            chosen = dict(self.holds)
            mask = self.masks[guard] = mask_under(guard, lambda s: chosen.get(s, self.defaults[s]))
        return bool(mask >> self.lane & 1)


@dataclass(slots=True, eq=False)
class Parting:
    """Collectives that one view makes and another does not, for one reason.

    `cause` is the branch, exit or loop that parts them; `kind` how its condition differs between ranks; `made` the
    calls that only some make; `waiting` what the others call instead, if anything; `ranks` those that make them,
    where the rank decides; `worlds` in which it happens; `ordered` is True when both make the same calls in another
    order, `crossed` when all make them, but some where others still wait.
    """

    cause: Branch | Exit | Loop
    kind: Kind
    made: list[Event]
    waiting: Event | None = None
    ranks: RankSet | None = None
    worlds: set[int] = field(default_factory=set)
    ordered: bool = False
    crossed: bool = False
    origin: Origin | None = None

    @property
    def site(self) -> Site:
        """The statement that parts the ranks."""
        return self.cause.site


@dataclass(slots=True)
class _Step:
    """One position of a sequence: a collective, or a loop with collectives inside."""

    item: Event | Loop
    inner: list[_Step] = field(default_factory=list)
    again: bool = True

    @property
    def key(self) -> object:
        if isinstance(self.item, Event):
            return self.item.operation or self.item.name
        return ("loop", *(s.key for s in self.inner))


@dataclass(frozen=True, slots=True)
class _Call:
    """A part of a trace that may be a step: a collective with the lanes of its group, or a loop around some."""

    item: Event | Loop
    members: int = 0
    inner: list[_Call] = field(default_factory=list)


def _calls(items: list[Item]) -> list[_Call]:
    """What of a trace may be steps, read off once for all views."""
    found: list[_Call] = []
    for item in items:
        if isinstance(item, Event):
            if pairs_up(item):
                group = _group(item)
                assert group is not None
                found.append(_Call(item, group[0]))
        elif isinstance(item, Loop):
            inner = _calls(item.items)
            if inner:
                found.append(_Call(item, 0, inner))
        elif isinstance(item, Attempt):
            found += _calls(item.items)
            for handler in item.handlers:
                found += _calls(handler.items)
    return found


def partings(items: list[Item], decisions: Decisions) -> list[Parting]:
    """Every parting of a trace, one for each statement that parts."""
    reader = _Reader(items, decisions)
    found: dict[object, Parting] = {}
    for one, other in reader.pairs():
        for parting in reader.compare(one, other):
            key = (parting.cause.site.path, id(parting.cause.site.node), parting.ordered)
            held = found.setdefault(key, parting)
            held.worlds |= parting.worlds
            held.made += [e for e in parting.made if not any(e.site.node is h.site.node for h in held.made)]
    return list(found.values())


class _Reader:
    """Reads sequences off one trace."""

    def __init__(self, items: list[Item], decisions: Decisions) -> None:
        self.calls = _calls(items)
        self.decisions = decisions
        self.exits = [i for i in walk(items) if isinstance(i, Exit) and i.how not in ("caught", "error")]
        self.order = {id(item): n for n, item in enumerate(walk(items))}
        self.partial: list[tuple[Guard, bool]] = []
        for item in walk(items):
            if isinstance(item, Event) and pairs_up(item) and item.guard != ALL:
                self.partial.append((item.guard, False))
            elif isinstance(item, Loop) and item.again is not item.guard and _communicating(item.items):
                self.partial.append((item.again, True))
                self.partial.append((item.guard, False))
        self.defaults = self._defaults()

    def _defaults(self) -> tuple[bool, ...]:
        """The usual outcome of each unknown condition: the one in which nobody leaves."""
        usual = [True] * len(self.decisions.symbols)
        for item in self.exits:
            for path, mask in _paths(item.guard):
                if mask:
                    for number, holds in path:
                        usual[number] = not holds
        for index, symbol in enumerate(self.decisions.symbols):
            if symbol.label == "error":
                usual[index] = False
        return tuple(usual)

    def pairs(self) -> Iterator[tuple[View, View]]:
        """Views that must make the same calls: ranks of one world, and one rank with its data and with other data."""
        seen: set[tuple[View, View]] = set()
        for guard, _ in self.partial:
            for path, mask in list(_paths(guard))[:_MOST]:
                chosen = dict(path)
                if not even(mask):
                    yield from self._ranks(path, seen)
                for symbol in chosen:
                    if self.decisions.symbols[symbol].kind >= Kind.GROUP:
                        yield from self._outcomes(guard, path, symbol, mask, seen)
            if len(seen) > 4 * _MOST:
                return

    def _ranks(
        self, path: tuple[tuple[int, bool], ...], seen: set[tuple[View, View]]
    ) -> Iterator[tuple[View, View]]:
        for world in WORLDS:
            first, *others = indices(world)
            for lane in others:
                pair = (View(first, path, self.defaults), View(lane, path, self.defaults))
                if pair not in seen:
                    seen.add(pair)
                    yield pair

    def _outcomes(
        self,
        guard: Guard,
        path: tuple[tuple[int, bool], ...],
        symbol: int,
        mask: int,
        seen: set[tuple[View, View]],
    ) -> Iterator[tuple[View, View]]:
        flipped = tuple((s, not h if s == symbol else h) for s, h in path)
        # Of a call that is some rank's own anyway, its data decides nothing for the others.
        lanes = mask or mask_under(guard, lambda s: dict(flipped).get(s, self.defaults[s]))
        if not even(lanes):
            return
        for world in WORLDS[:1]:
            for lane in indices(world):
                pair = (View(lane, path, self.defaults), View(lane, flipped, self.defaults))
                if pair not in seen and pair[::-1] not in seen:
                    seen.add(pair)
                    yield pair

    # Sequences

    def sequence(self, calls: list[_Call], view: View, other: View) -> list[_Step]:
        """The collectives that `view` makes, of those in which the rank of `other` has a part too."""
        both = 1 << view.lane | 1 << other.lane
        steps: list[_Step] = []
        for call in calls:
            item = call.item
            if isinstance(item, Event):
                if call.members & both == both and view.sees(item.guard):
                    steps.append(_Step(item))
            elif view.sees(item.guard):
                inner = self.sequence(call.inner, view, other)
                if inner or other.sees(item.guard):
                    steps.append(_Step(item, inner, view.sees(item.again)))
        return steps

    def compare(self, one: View, other: View) -> Iterator[Parting]:
        """What does not pair between two views."""
        a, b = self.sequence(self.calls, one, other), self.sequence(self.calls, other, one)
        yield from self._compare(a, b, one, other)

    def _compare(self, a: list[_Step], b: list[_Step], one: View, other: View) -> Iterator[Parting]:
        alone: list[tuple[_Step, View, View, _Step | None]] = []
        common: list[_Step] = []
        for x, y in self._paired(a, b):
            if x is not None and y is not None:
                if x.item is y.item:
                    common.append(x)
                    if isinstance(x.item, Loop):
                        yield from self._compare(x.inner, y.inner, one, other)
                        yield from self._left(x, y, one, other)
            elif x is not None:
                alone.append((x, one, other, self._next(b, x)))
            elif y is not None:
                alone.append((y, other, one, self._next(a, y)))
        crossed = self._crossed(alone, common)
        if crossed is not None:
            yield crossed
        else:
            yield from self._explained(alone)

    def _crossed(
        self, alone: list[tuple[_Step, View, View, _Step | None]], common: list[_Step]
    ) -> Parting | None:
        """What all ranks call, some before and some after a call that the two sides make at different places: a
        collective inside a context in which some ranks go first."""
        if len(alone) != 2 or alone[0][1] is alone[1][1] or alone[0][0].key != alone[1][0].key:
            return None
        (first, view, absent, _), (last, _, _, _) = sorted(alone, key=lambda s: self.order[id(s[0].item)])
        low, high = self.order[id(first.item)], self.order[id(last.item)]
        between = [s for s in common if low < self.order[id(s.item)] < high]
        cause = self._branch(first.item, view, absent)
        if not between or cause is None:
            return None
        made, waiting = list(_events(between)), next(_events([first]), None)
        if first.item.site.node is last.item.site.node:
            # The part that all go through, some before and some after: it is what communicates there that is wrong.
            made, waiting = list(_events([first])), next(_events(between), None)
        parting = self._parting(cause, made, view, absent, waiting, ordered=True)
        parting.crossed = True
        return parting

    def _next(self, steps: list[_Step], after: _Step) -> _Step | None:
        """What the other side comes to next, in the order of the program."""
        at = self.order[id(after.item)]
        return next((s for s in steps if self.order[id(s.item)] > at), None)

    def _paired(self, a: list[_Step], b: list[_Step]) -> Iterator[tuple[_Step | None, _Step | None]]:
        """The two sequences side by side. What both sides share pairs with itself, which cuts them into pieces;
        in a piece first what stands in one call of one function pairs, then by operation."""
        shared = {id(s.item) for s in a} & {id(s.item) for s in b}
        ones, others = _pieces(a, shared), _pieces(b, shared)
        for (xs, x), (ys, y) in zip(ones, others, strict=True):
            near: list[list[object]] = [[(s.key, id(s.item.site.caller)) for s in side] for side in (xs, ys)]
            for pairs, ps, qs in _aligned(xs, ys, near[0], near[1]):
                if pairs:
                    yield from zip(ps, qs, strict=True)
                    continue
                for alike, us, vs in _aligned(ps, qs, [s.key for s in ps], [s.key for s in qs]):
                    if alike:
                        yield from zip(us, vs, strict=True)
                    else:
                        yield from ((u, None) for u in us)
                        yield from ((None, v) for v in vs)
            if x is not None:
                yield x, y

    def _left(self, x: _Step, y: _Step, one: View, other: View) -> Iterator[Parting]:
        """A loop that one view goes on with and the other has left."""
        if x.again == y.again:
            return
        stays, leaves = (one, other) if x.again else (other, one)
        step = x if x.again else y
        left = self._exit(leaves, stays, step.item, inside=True)
        if left is not None:
            yield self._parting(left, list(_events(step.inner)), stays, leaves, None)

    def _explained(self, alone: list[tuple[_Step, View, View, _Step | None]]) -> Iterator[Parting]:
        """Why each call that stands alone is made by one view only."""
        counts = [
            sorted(str(s.key) for s, v, _, _ in alone if v is view)
            for view in {id(v): v for _, v, _, _ in alone}.values()
        ]
        ordered = len(counts) == 2 and counts[0] == counts[1]
        for step, view, absent, instead in alone:
            events = list(_events([step]))
            if not events:
                continue
            cause: Branch | Exit | None = self._branch(step.item, view, absent)
            if cause is None:
                cause = self._exit(absent, view, step.item)
            if cause is not None:
                waiting = next(_events([instead]), None) if instead is not None else None
                yield self._parting(cause, events, view, absent, waiting, ordered)

    def _branch(self, item: Event | Loop, view: View, absent: View) -> Branch | None:
        """The outermost branch around `item` that let `view` in and not `absent`."""
        found = None
        for branch in item.branch.chain() if item.branch is not None else ():
            if view.sees(branch.after) and absent.sees(branch.before) and not absent.sees(branch.after):
                found = branch
        return found

    def _exit(self, gone: View, view: View, item: Event | Loop, inside: bool = False) -> Exit | None:
        """The last way out before `item` that `gone` took and `view` did not."""
        callers = {id(s) for s in item.site.chain()[:-1]} | {id(None)}
        at = self.order[id(item)]
        found = None
        for left in self.exits:
            if gone.sees(left.guard) and not view.sees(left.guard):
                before = self.order[id(left)] < at
                within = inside and isinstance(item, Loop) and any(i is left for i in walk(item.items))
                # A return ends its own function only: it matters to what stands in the same call.
                own = left.how in ("exit", "raise") or id(left.site.caller) in callers
                if (within or before) and own:
                    found = left
        return found

    def _parting(
        self, cause: Branch | Exit, events: list[Event], view: View, absent: View, waiting: Event | None,
        ordered: bool = False,
    ) -> Parting:  # fmt: skip
        world = LANES[view.lane].world
        if view.lane != absent.lane:
            deciding = cause.guard if isinstance(cause, Exit) else cause.after
            chosen = dict(view.holds)
            mask = mask_under(deciding, lambda s: chosen.get(s, view.defaults[s]))
            if isinstance(cause, Exit):
                mask = ALL & ~mask
            kind = self.decisions.kind_of_guard(mask)
            return Parting(cause, max(kind, Kind.NODE), events, waiting, RankSet(mask), {world}, ordered)
        differing = [s for s, h in view.holds if dict(absent.holds).get(s) != h]
        symbol = self.decisions.symbols[differing[0]] if differing else None
        kind = symbol.kind if symbol is not None else Kind.DATA
        origin = symbol.origin if symbol is not None else None
        return Parting(cause, kind, events, waiting, None, {0, 1, 2}, ordered, False, origin)


def _pieces(steps: list[_Step], shared: set[int]) -> list[tuple[list[_Step], _Step | None]]:
    """A sequence cut behind each step that both sides share: (what stands before it, the step); the rest last."""
    found: list[tuple[list[_Step], _Step | None]] = []
    piece: list[_Step] = []
    for step in steps:
        if id(step.item) in shared:
            found.append((piece, step))
            piece = []
        else:
            piece.append(step)
    return [*found, (piece, None)]


def _aligned(
    a: list[_Step], b: list[_Step], one: list[object], other: list[object]
) -> Iterator[tuple[bool, list[_Step], list[_Step]]]:
    """Runs of steps that pair by their keys, and what stands between them."""
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        yield tag == "equal", a[a0:a1], b[b0:b1]


def pairs_up(event: Event) -> bool:
    """True for a call that surely communicates in a group whose members are known."""
    return event.communicates == 2 and "join" not in event.within and _group(event) is not None


def _group(event: Event) -> tuple[int, ...] | None:
    """The mask of the members of the group of a call as a one-tuple; None where it is not known."""
    group = event.args.get("group", event.args.get("process_group", NONE))
    if (
        group is NONE
        or (type(group) is External and group.name.endswith("WORLD"))
        or event.kind == "new_group"
    ):
        return (ALL,)
    if type(group) is Instance and group.kind == "group":
        ranks = group.fields.get("ranks", NONE)
        if ranks is NONE:
            return (ALL,)
        if type(ranks) is Items and ranks.rest is None and all(type(r) is Const for r in ranks.items):
            members = {getattr(r, "value", None) for r in ranks.items}
            return (sum(1 << i for i, lane in enumerate(LANES) if lane.rank in members),)
    return None


def _communicating(items: list[Item]) -> bool:
    return any(isinstance(i, Event) and pairs_up(i) for i in walk(items))


def _events(steps: list[_Step]) -> Iterator[Event]:
    for step in steps:
        if isinstance(step.item, Event):
            yield step.item
        else:
            yield from _events(step.inner)


def _paths(
    guard: Guard, path: tuple[tuple[int, bool], ...] = ()
) -> Iterator[tuple[tuple[tuple[int, bool], ...], int]]:
    """Every outcome of the conditions of a guard, with the lanes that it has then."""
    if type(guard) is Choice:
        yield from _paths(guard.high, (*path, (guard.symbol, True)))
        yield from _paths(guard.low, (*path, (guard.symbol, False)))
    else:
        assert type(guard) is int
        yield path, guard


def depends(guard: Guard, decisions: Decisions) -> Kind:
    """The greatest kind of the conditions that a guard depends on."""
    return max((decisions.symbols[s].kind for s in symbols_of(guard)), default=Kind.UNIFORM)
