"""Conditions: on which lanes a value is true, and what is done on those alone: alternatives, bindings, doubts."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .decisions import Guard, options, origin_of
from .lanes import ALL, LANES
from .state import State
from .values import (
    ABSENT,
    FALSE,
    NONE,
    TRUE,
    Const,
    Either,
    Items,
    Kind,
    Mixed,
    Origin,
    PerLane,
    Table,
    Unknown,
    Value,
    merged,
    same,
)

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator

DISTRIBUTED_FLAG = re.compile(
    r"(?i)^_?(is_|use_|run_|enable_|in_)?(distributed|ddp|dist|multi_?gpus?|multi_?node|parallel|dist_train"
    r"|distributed_(run|training|mode)|ddp_run|is_ddp|distribute)$"
)
"""A uniform flag of such a name is taken as set: it is the distributed run that is looked at."""


class Conditions(State):
    """Tells lanes apart by conditions."""

    def truth(self, value: Value) -> Guard:
        """The lanes on which `value` is true."""
        decisions = self.decisions
        if type(value) is Const:
            return ALL if value.value else 0
        if type(value) is Either:
            high, low = self.truth(value.high), self.truth(value.low)
            holds = decisions.choice(value.symbol, ALL, 0)
            return decisions.either(decisions.both(holds, high), decisions.minus(low, holds))
        if type(value) is PerLane:
            found: Guard = 0
            for i, item in enumerate(value.items):
                found = decisions.either(found, decisions.both(1 << i, self.truth(item)))
            return found
        if type(value) is Unknown and value.key in self.replaced:
            settled = self.settle(value)
            if settled is not value:
                return self.truth(settled)
        if type(value) is Unknown:
            if value.kind is Kind.UNIFORM and DISTRIBUTED_FLAG.match(value.label):
                return ALL
            return decisions.symbol(("u", value.key), value.kind, value.origin, value.label)
        if type(value) is Mixed:
            return decisions.symbol(("m", self._kept(value)), value.kind, value.origin, "")
        if type(value) is Items and value.rest is None:
            return ALL if value.items else 0
        if type(value) is Table and value.rest is None and value.factory is None:
            found = 0
            for item in value.items.values():
                found = decisions.either(found, decisions.minus(ALL, self.missing(item)))
            return found
        if type(value) is Items or type(value) is Table:
            return decisions.symbol(("u", self._kept(value)), self.kind(value), None, "")
        return 0 if value is ABSENT else ALL

    def missing(self, value: Value) -> Guard:
        """The lanes on which there is no value."""
        if value is ABSENT:
            return ALL
        if type(value) is Either:
            holds = self.decisions.choice(value.symbol, ALL, 0)
            high, low = self.missing(value.high), self.missing(value.low)
            return self.decisions.either(self.decisions.both(holds, high), self.decisions.minus(low, holds))
        if type(value) is PerLane:
            return sum(1 << i for i, item in enumerate(value.items) if item is ABSENT)
        return 0

    def condition(self, guard: Guard) -> Value:
        """The bool that is true on the lanes of `guard`."""
        if type(guard) is int:
            if guard in (0, ALL):
                return TRUE if guard else FALSE
            return merged([TRUE if guard >> i & 1 else FALSE for i in range(len(LANES))], None)
        assert not isinstance(guard, int)
        return self.decisions.choose(guard.symbol, self.condition(guard.high), self.condition(guard.low))

    def map_lanes(self, value: Value, operate: Callable[[Value], Value]) -> Value:
        """`operate` on each alternative of `value`, under its own lanes."""
        if type(value) is Either:
            holds = self.decisions.choice(value.symbol, ALL, 0)
            with self.under(self.decisions.both(self.guard, holds)):
                high = (
                    self.map_lanes(self.decisions.restrict(value.high, self.guard), operate)
                    if self.guard
                    else ABSENT
                )
            with self.under(self.decisions.minus(self.guard, holds)):
                low = (
                    self.map_lanes(self.decisions.restrict(value.low, self.guard), operate)
                    if self.guard
                    else ABSENT
                )
            return self.decisions.select(holds, high, low)
        if type(value) is PerLane:
            return self._each_lane(value, operate)
        if type(value) is Mixed:
            return self._each_option(value, operate)
        return operate(value)

    def for_lanes(self, value: Value, operate: Callable[[Value], None]) -> None:
        """The same for what gives no value."""

        def once(part: Value) -> Value:
            operate(part)
            return NONE

        self.map_lanes(value, once)

    def _each_lane(self, value: PerLane, operate: Callable[[Value], Value]) -> Value:
        done: list[Value] = []
        result: Value = ABSENT
        for item in value.items:
            if any(same(v, item) for v in done):
                continue
            done.append(item)
            mask = sum(1 << j for j, other in enumerate(value.items) if same(item, other))
            with self.under(self.decisions.both(self.guard, mask)):
                found = operate(self.settle(item)) if self.guard else ABSENT
            result = self.decisions.select(mask, found, result)
        if type(result) is PerLane and result.origin is None:
            result.origin = value.origin
        return result

    def _each_option(self, value: Mixed, operate: Callable[[Value], Value]) -> Value:
        """Of several alternatives one is followed, the first that is something: they are mostly of one make, and
        following all would lose what goes together in each."""
        chosen = next((o for o in value.options if o is not NONE and type(o) is not Const), value.options[0])
        found = operate(chosen)
        if value.kind > self.kind(found) and type(found) in (Const, Unknown):
            return self.fresh(value.kind, value.origin, like=(found,))
        return found

    def mix(self, values: list[Value], kind: Kind, origin: Origin | None) -> Value:
        """One of several values: itself if there is only one, an unknown if they are plain."""
        whole: list[Value] = []
        for value in map(self.settle, values):
            if not any(same(value, w) for w in whole):
                whole.append(value)
        if len(whole) == 1:
            return whole[0]
        if kind <= Kind.RANK and len(whole) <= 3 and any(type(w) is PerLane for w in whole):
            return self._one_everywhere(whole)
        distinct: list[Value] = []
        for value in whole:
            for leaf in options(value):
                if not any(same(leaf, d) for d in distinct):
                    distinct.append(leaf)
        if len(distinct) == 1:
            return distinct[0]
        if all(type(d) in (Const, Unknown) for d in distinct):
            return self.fresh(kind, origin, like=tuple(distinct))
        return Mixed(tuple(distinct[:6]), kind, origin)

    def _one_everywhere(self, values: list[Value]) -> Value:
        """Which of some values is not known, but it is the same one on all ranks."""
        result = values[0]
        for value in values[1:]:
            uniform = self.decisions.symbol(("mix", next(self._fresh)), Kind.UNKNOWN, self.doubt_origin, "")
            result = self.decisions.select(uniform, value, result)
        return result

    @contextmanager
    def under(self, guard: Guard) -> Iterator[None]:
        """Runs its body on the lanes of `guard`; lanes that leave inside stay out afterwards."""
        outside = self.decisions.minus(self.guard, guard)
        self.guard = guard
        try:
            yield
        finally:
            self.guard = self.decisions.either(outside, self.guard)

    # Names and fields

    def bind_name(self, names: dict[str, Value], name: str, value: Value) -> None:
        """Binds a name of the function that runs, on the active lanes."""
        if type(value) is Unknown and not value.label:
            value.label = name
        if self.unsure:
            names[name] = self.doubtful(names.get(name, ABSENT), value)
        elif self.guard == ALL or name not in names:
            names[name] = value
        else:
            names[name] = self.decisions.replace(self.guard, value, names[name])

    def store(self, held: dict[Any, Value], key: Any, value: Value, kept: bool = False) -> None:
        """Sets a field, an item or a global on the active lanes; with `kept`, that it is not there on the other
        lanes is kept too."""
        if type(value) is Unknown and not value.label and type(key) is str:
            value.label = key
        old = held.get(key, ABSENT)
        guard = self.absolute
        if self.doubt is not None:
            held[key] = self.doubtful(old, value)
        elif old is ABSENT and type(guard) is not int and not kept:
            held[key] = value
        else:
            held[key] = self.decisions.replace(guard, value, old)

    def doubtful(self, old: Value, new: Value) -> Value:
        """What a name holds when it is not known whether `new` was bound to it."""
        if same(old, new):
            return old
        kind = max(self.doubt or Kind.UNIFORM, self.kind(old), self.kind(new))
        origin = origin_of(old) or origin_of(new) or self.doubt_origin
        if old is ABSENT:
            plain = type(new) in (Const, Unknown)
            return self.fresh(kind, origin, like=(new,)) if plain and kind > self.kind(new) else new
        return self.mix([old, new], kind, origin)

    def unknown_condition(self, value: Value, node: ast.stmt | None = None) -> Kind | None:
        """How a condition differs between ranks, where its sides need not be told apart: in code that does not
        communicate, and in a statement `node` that neither leaves nor communicates; else None."""
        if not self.frame.rough and (node is None or not self.silent(node)):
            return None
        if type(value) is Const or type(value) is PerLane:
            return None
        if type(value) is Unknown or type(value) is Mixed:
            if type(value) is Unknown and value.kind is Kind.UNIFORM and DISTRIBUTED_FLAG.match(value.label):
                return None
            kind = value.kind
        else:
            holds = self.truth(value)
            if type(holds) is int:
                return None
            kind = self.decisions.kind_of_guard(holds, self.guard)
        return kind if self.frame.rough or kind <= Kind.UNKNOWN else None

    def silent(self, node: ast.stmt) -> bool:
        """True for a statement that neither leaves nor speaks of what communicates."""
        raise NotImplementedError

    @contextmanager
    def doubting(self, kind: Kind, origin: Origin | None) -> Iterator[None]:
        """Runs its body without knowing whether it runs: what it binds is doubtful, and nobody leaves."""
        outer = self.doubt, self.doubt_origin
        if self.doubt is None or kind > self.doubt:
            self.doubt, self.doubt_origin = kind, origin
        self.doubts += 1
        try:
            yield
        finally:
            self.doubts -= 1
            self.doubt, self.doubt_origin = outer
