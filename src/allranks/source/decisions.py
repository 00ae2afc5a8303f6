"""Which lanes are active, and what a name holds, under conditions that are not known.

A guard is a set of lanes that depends on symbols (unknown conditions): a decision diagram with lane masks
at its leaves. Values use the same diagrams (`Either`), so that one flag tested twice agrees with itself, an
early return excludes its lanes from everything that follows, and `x if rank == 0 else None` is later a test
on the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from .lanes import ALL, LANES, even, indices, per_local_rank
from .values import (
    ABSENT,
    Either,
    Items,
    Kind,
    Mixed,
    Origin,
    PerLane,
    Unknown,
    Value,
    lanes_kind,
    merged,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_GUARD = 24
_MOST_VALUE = 8
_MOST_STORED = 5


class Choice:
    """`high` where `symbol` holds, else `low`. Interned: equal guards are one object."""

    __slots__ = ("high", "low", "size", "symbol")

    def __init__(self, symbol: int, high: Guard, low: Guard) -> None:
        self.symbol = symbol
        self.high = high
        self.low = low
        self.size: int = (high.size if type(high) is Choice else 1) + (low.size if type(low) is Choice else 1)


Guard = Union[int, Choice]  # noqa: UP007 - evaluated at run time, and `|` cannot take a forward reference


@dataclass(frozen=True, slots=True)
class Symbol:
    """An unknown condition. A condition whose kind is above UNKNOWN may hold on one rank and not on
    another."""

    kind: Kind
    origin: Origin | None
    label: str


class Decisions:
    """The symbols of one execution and the algebra of its guards."""

    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self._by_key: dict[object, int] = {}
        self._nodes: dict[tuple[int, Guard, Guard], Choice] = {}
        self._memo: dict[tuple[str, Guard, Guard], Guard] = {}

    def symbol(self, key: object, kind: Kind, origin: Origin | None, label: str) -> Guard:
        """The guard that holds where the condition `key` does."""
        index = self._by_key.get(key)
        if index is None:
            index = self._by_key[key] = len(self.symbols)
            self.symbols.append(Symbol(kind, origin, label))
        return self.choice(index, ALL, 0)

    def choice(self, symbol: int, high: Guard, low: Guard) -> Guard:
        """The guard `high` where `symbol` holds and `low` where it does not."""
        if high is low or high == low:
            return high
        key = (symbol, high, low)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Choice(symbol, high, low)
        return node

    def _apply(self, name: str, operate: Callable[[Guard, Guard], Guard | None], a: Guard, b: Guard) -> Guard:
        """`a` and `b` joined condition by condition, as far as `operate` does not settle it."""
        found = operate(a, b)
        if found is not None:
            return found
        key = (name, a, b)
        found = self._memo.get(key)
        if found is None:
            top = min(g.symbol for g in (a, b) if type(g) is Choice)
            high = self._apply(name, operate, side(a, top, True), side(b, top, True))
            low = self._apply(name, operate, side(a, top, False), side(b, top, False))
            found = self._memo[key] = self.choice(top, high, low)
        return found

    def both(self, a: Guard, b: Guard) -> Guard:
        """Where `a` and `b` hold."""
        found = _both(a, b)
        return found if found is not None else self._trim(self._apply("and", _both, a, b))

    def either(self, a: Guard, b: Guard) -> Guard:
        """Where `a` or `b` holds."""
        found = _either(a, b)
        return found if found is not None else self._trim(self._apply("or", _either, a, b))

    def minus(self, a: Guard, b: Guard) -> Guard:
        """Where `a` holds and `b` does not."""
        found = _minus(a, b)
        return found if found is not None else self._trim(self._apply("minus", _minus, a, b))

    def _trim(self, guard: Guard) -> Guard:
        """`guard`, with its oldest condition forgotten while it is too large: more lanes, so fewer alarms."""
        while type(guard) is Choice and guard.size > _MOST_GUARD:
            guard = self._forgotten(guard)
        return guard

    def _forgotten(self, guard: Choice) -> Guard:
        """`guard` without its oldest condition. Of an error, what is looked at is the run that meets none."""
        if self.symbols[guard.symbol].label == "error" and guard.low != 0:
            return guard.low
        return self._apply("or", _either, guard.high, guard.low)

    # Values

    def choose(self, symbol: int, high: Value, low: Value) -> Value:
        """The value `high` where `symbol` holds and `low` where it does not."""
        if same(high, low):
            return high
        node = Either(symbol, high, low)
        return self.collapse(node) if node.size > _MOST_VALUE else node

    def collapse(self, value: Value) -> Value:
        """One leaf for a value that depends on too many conditions."""
        found: list[Value] = []
        for leaf in options(value):
            if not any(same(leaf, o) for o in found):
                found.append(leaf)
        return Mixed(tuple(found[:6]), kind_of(value, ALL, self), origin_of(value))

    def replace(self, guard: Guard, new: Value, old: Value) -> Value:
        """`new` on the lanes of `guard`, for a name or field that held `old`. Of a guard that is too large the
        oldest conditions are forgotten: what was bound last then holds on more lanes."""
        while type(guard) is Choice and guard.size > _MOST_STORED:
            guard = self._forgotten(guard)
        return self.select(guard, new, old)

    def select(self, guard: Guard, new: Value, old: Value) -> Value:
        """`new` on the lanes of `guard`, `old` elsewhere."""
        if guard == ALL or new is old:
            return new
        if guard == 0:
            return old
        tops = [v.symbol for v in (guard, new, old) if type(v) is Choice or type(v) is Either]
        if tops:
            top = min(tops)
            return self.choose(
                top,
                self.select(side(guard, top, True), pick(new, top, True), pick(old, top, True)),
                self.select(side(guard, top, False), pick(new, top, False), pick(old, top, False)),
            )
        assert type(guard) is int
        if same(new, old):
            return new
        news, olds = lane_items(new), lane_items(old)
        items = [news[i] if guard >> i & 1 else olds[i] for i in range(len(LANES))]
        return merged(items, origin_of(new) or origin_of(old))

    def restrict(self, value: Value, guard: Guard) -> Value:
        """`value` as the lanes of `guard` see it."""
        if type(value) is not Either and type(value) is not PerLane:
            return value
        if guard == ALL:
            return value
        if type(guard) is Choice:
            if type(value) is Either and value.symbol <= guard.symbol:
                return self._restrict_below(value, guard)
            if guard.high == 0:
                return self.restrict(value, guard.low)
            if guard.low == 0:
                return self.restrict(value, guard.high)
            one, other = self.restrict(value, guard.high), self.restrict(value, guard.low)
            return one if same(one, other) else value
        if type(value) is Either:
            return self.choose(
                value.symbol, self.restrict(value.high, guard), self.restrict(value.low, guard)
            )
        assert type(value) is PerLane
        assert type(guard) is int
        places = indices(guard)
        if not places:
            return value
        first = value.items[places[0]]
        return first if all(same(first, value.items[i]) for i in places[1:]) else value

    def _restrict_below(self, value: Either, guard: Choice) -> Value:
        high, low = side(guard, value.symbol, True), side(guard, value.symbol, False)
        if high == 0:
            return self.restrict(value.low, low)
        if low == 0:
            return self.restrict(value.high, high)
        return self.choose(value.symbol, self.restrict(value.high, high), self.restrict(value.low, low))

    # What a guard says

    def kind_of_guard(self, guard: Guard, active: Guard = ALL) -> Kind:
        """How a condition differs between the ranks of `active`."""
        kind = Kind.UNIFORM
        for mask, among, symbols in self._leaves(guard, active):
            for symbol in symbols:
                kind = max(kind, self.symbols[symbol].kind)
            if not even(mask, among):
                by_node = per_local_rank(mask) and mask & among & 0b111100 not in (0, among & 0b111100)
                kind = max(kind, Kind.NODE if by_node else Kind.RANK)
        return kind

    def for_all(self, guard: Guard) -> bool:
        """True when all ranks are among the lanes of `guard` or none, whatever its conditions are."""
        return self.kind_of_guard(guard) <= Kind.UNKNOWN

    def _leaves(
        self, guard: Guard, active: Guard, path: tuple[int, ...] = ()
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        if active == 0:
            return
        if type(guard) is int and type(active) is int:
            yield guard & active, active, path
            return
        top = min(g.symbol for g in (guard, active) if type(g) is Choice)
        mine = (*path, top) if type(guard) is Choice and guard.symbol == top else path
        yield from self._leaves(side(guard, top, True), side(active, top, True), mine)
        yield from self._leaves(side(guard, top, False), side(active, top, False), mine)


def _both(a: Guard, b: Guard) -> Guard | None:
    """The lanes of both, where they need no condition of theirs to be looked at."""
    if a is b or a == ALL:
        return b
    if b == ALL:
        return a
    if a == 0 or b == 0:
        return 0
    return a & b if type(a) is int and type(b) is int else None


def _either(a: Guard, b: Guard) -> Guard | None:
    """The same of the lanes of one or the other."""
    if a is b or a == 0:
        return b
    if b == 0:
        return a
    if a == ALL or b == ALL:
        return ALL
    return a | b if type(a) is int and type(b) is int else None


def _minus(a: Guard, b: Guard) -> Guard | None:
    """The same of the lanes of `a` that are not in `b`."""
    if a == 0 or b == ALL or a is b:
        return 0
    if b == 0:
        return a
    return a & ~b if type(a) is int and type(b) is int else None


def side(guard: Guard, symbol: int, holds: bool) -> Guard:
    """`guard` where `symbol` holds, or does not; `symbol` is not above its own top one."""
    if type(guard) is Choice and guard.symbol == symbol:
        return guard.high if holds else guard.low
    return guard


def pick(value: Value, symbol: int, holds: bool) -> Value:
    """`value` where `symbol` holds, or does not; `symbol` is not above its own top one."""
    if type(value) is Either and value.symbol == symbol:
        return value.high if holds else value.low
    return value


def lane_items(value: Value) -> tuple[Value, ...]:
    """The value of each lane."""
    return value.items if type(value) is PerLane else (value,) * len(LANES)


def symbols_of(guard: Guard) -> set[int]:
    """The conditions that a guard depends on."""
    found: set[int] = set()
    todo = [guard]
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if type(node) is Choice and id(node) not in seen:
            seen.add(id(node))
            found.add(node.symbol)
            todo += [node.high, node.low]
    return found


def mask_under(guard: Guard, holds: Callable[[int], bool]) -> int:
    """The lanes of `guard` when each symbol holds or not as `holds` says."""
    while type(guard) is Choice:
        guard = guard.high if holds(guard.symbol) else guard.low
    assert type(guard) is int
    return guard


def leaves(value: Value, mask: Guard) -> Iterator[tuple[Value, Guard]]:
    """Every leaf of a value, each with the lanes that have it (under some outcome of its conditions)."""
    if type(value) is Either:
        yield from leaves(value.high, mask)
        yield from leaves(value.low, mask)
    elif type(value) is PerLane:
        seen: list[Value] = []
        for i, item in enumerate(value.items):
            if type(mask) is int and not mask >> i & 1:
                continue
            if not any(same(item, s) for s in seen):
                seen.append(item)
                yield item, sum(1 << j for j, other in enumerate(value.items) if same(item, other))
    else:
        yield value, mask


def options(value: Value) -> Iterator[Value]:
    """Every leaf of a value, the alternatives of mixed ones too."""
    for leaf, _ in leaves(value, ALL):
        if type(leaf) is Mixed:
            for option in leaf.options:
                yield from options(option)
        elif leaf is not ABSENT:
            yield leaf


def kind_of(value: Value, mask: int = ALL, decisions: Decisions | None = None) -> Kind:
    """How a value differs between ranks."""
    if type(value) is Unknown or type(value) is Mixed:
        return value.kind
    if type(value) is PerLane:
        kind = lanes_kind(value.items, mask)
        return max([kind, *(kind_of(item) for item in value.items)])
    if type(value) is Either:
        kind = decisions.symbols[value.symbol].kind if decisions else Kind.UNIFORM
        return max(kind, kind_of(value.high, mask, decisions), kind_of(value.low, mask, decisions))
    return Kind.UNIFORM


def origin_of(value: Value, decisions: Decisions | None = None) -> Origin | None:
    """Where a value began to differ between ranks, if it does."""
    if type(value) is Unknown or type(value) is PerLane or type(value) is Mixed:
        return value.origin
    if type(value) is Either:
        symbol = decisions.symbols[value.symbol] if decisions is not None else None
        if symbol is not None and symbol.kind > Kind.UNKNOWN:
            return symbol.origin
        return origin_of(value.high, decisions) or origin_of(value.low, decisions)
    if type(value) is Items and value.rest is not None:
        return origin_of(value.rest, decisions)
    return None
