"""Loops: what an iterable gives, how many turns it takes on each rank, for and while, comprehensions.

A loop's body is followed once, with what the loop carries over made general before; a second time when what it
carries over then turns out to differ between ranks and the body reads it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from . import syntax, trace
from .decisions import Guard, origin_of
from .expressions import Expressions
from .lanes import ALL
from .state import LoopState
from .values import (
    ABSENT,
    NONE,
    Const,
    Either,
    GeneratorValue,
    Instance,
    Items,
    Kind,
    Mixed,
    Origin,
    PerLane,
    Scope,
    Table,
    Unknown,
    Value,
    Walk,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_UNROLLED = 4
"""Loops over at most so many known elements are followed turn by turn."""
_LISTED = 16
"""The same for a comprehension over constants, as names of variables of the environment are."""
_OF_RANK = (Kind.GROUP, Kind.NODE, Kind.RANK)
Turns = tuple[Kind, Origin | None]
EVEN: Turns = (Kind.UNIFORM, None)


class Iteration(Expressions):
    """Runs loops and comprehensions."""

    def force(self, value: Value) -> Value:
        """`value`, the call that gives it followed after all if it was passed over."""
        raise NotImplementedError

    # How many turns

    def turns(self, value: Value) -> Turns:
        """How the number of elements of an iterable differs between ranks, and where that began."""
        if type(value) is Items:
            if value.uneven is not None:
                return value.uneven
            return EVEN if value.rest is None else (Kind.UNKNOWN, None)
        if type(value) is Table:
            return self._turns_of_table(value)
        if type(value) is Walk:
            return self._turns_of_walk(value)
        if type(value) is Unknown:
            forced = self.force(value)
            if forced is not value:
                return self.turns(forced)
            sharded = value.origin is not None and value.origin.cause == "shard" and value.kind >= Kind.NODE
            return (value.kind, value.origin) if sharded else (Kind.UNKNOWN, None)
        if type(value) is PerLane:
            sizes = {len(v.items) if type(v) is Items and v.rest is None else -1 for v in value.items}
            return (self.kind(value), value.origin) if len(sizes) > 1 else (Kind.UNKNOWN, None)
        if type(value) is Instance:
            return self.turns_of_object(value)
        if type(value) is Either:
            return max(self.turns(value.high), self.turns(value.low), key=lambda t: t[0])
        return (Kind.UNKNOWN, None)

    def _turns_of_table(self, value: Table) -> Turns:
        kind, origin = value.uneven or (EVEN if value.rest is None else (Kind.UNKNOWN, None))
        for item in value.items.values():
            there = self.decisions.minus(ALL, self.missing(item))
            if there == ALL:
                continue
            found = self.decisions.kind_of_guard(there, self.guard)
            if found > kind:
                kind, origin = found, self.cause_of(NONE, there)
        return kind, origin

    def _turns_of_walk(self, value: Walk) -> Turns:
        if value.like == "range":
            return self._turns_of_range(value.over)
        if not value.over or value.like in ("islice", "cycle", "count", "filter"):
            return (Kind.UNKNOWN, None)
        inner = [self.turns(v) for v in value.over]
        if value.like == "zip":
            return min(inner, key=lambda t: t[0])
        return max(inner, key=lambda t: t[0])

    def _turns_of_range(self, bounds: list[Value]) -> Turns:
        found = [(self.kind(b), origin_of(b, self.decisions)) for b in bounds]
        kind, origin = max(found, key=lambda t: t[0], default=EVEN)
        stepped = len(bounds) == 3 and max(self.kind(bounds[0]), self.kind(bounds[2])) in _OF_RANK
        if stepped:
            # range(rank, n, world_size): a shard, even where n was made to divide.
            if self._divides(bounds[1]):
                return Kind.UNKNOWN, None
            return kind, Origin(origin.path, origin.line, "shard") if origin else None
        return kind, origin

    def _divides(self, value: Value, depth: int = 0) -> bool:
        """True for a number that was rounded to a multiple of something."""
        key = self.derivation.get(value.key) if type(value) is Unknown else None
        if key is None or depth > 3:
            return False
        if key[0] == "binary" and key[1] in ("FloorDiv", "Mod"):
            return True
        return any(self._divides(Unknown(part), depth + 1) for part in key[2:] if type(part) is int)

    def turns_of_object(self, value: Instance) -> Turns:
        """The same of a loader, a dataset, a sampler, or an object of the program."""
        raise NotImplementedError

    # Elements

    def element(self, iterable: Value, node: ast.AST) -> Value:
        """What any element of `iterable` is like."""
        if type(iterable) is Items:
            parts = [*iterable.items, *([iterable.rest] if iterable.rest is not None else [])]
            return self.settle(self._one_of(parts))
        if type(iterable) is Table:
            known = [k for k in iterable.items if isinstance(k, str)]
            return self.fresh(label="key") if iterable.rest or len(known) != 1 else Const(known[0])
        if type(iterable) is Walk:
            return self._element_of_walk(iterable, node)
        if type(iterable) is PerLane or type(iterable) is Either or type(iterable) is Mixed:
            return self.map_lanes(iterable, lambda part: self.element(part, node))
        if type(iterable) is Instance:
            return self.element_of_object(iterable, node)
        if type(iterable) is Unknown:
            return self.derived(("element", iterable.key, node), (iterable,), label="")
        return self.fresh(Kind.UNKNOWN)

    def _element_of_walk(self, walk: Walk, node: ast.AST) -> Value:
        if walk.like == "range":
            return self.derived(("turn", node, *map(self.key_of, walk.over)), tuple(walk.over[2:]), label="i")
        inner = [self.element(v, node) for v in walk.over]
        if walk.like == "enumerate":
            return Items("tuple", [self.derived(("turn", node), (), label="i"), *inner[:1]])
        if walk.like == "zip":
            return Items("tuple", inner)
        if walk.like in ("values", "items"):
            table = walk.over[0]
            if type(table) is Table:
                parts = [*table.items.values(), *([table.rest] if table.rest is not None else [])]
                found = self.settle(self._one_of([p for p in parts if p is not ABSENT]))
            else:
                found = inner[0]
            return Items("tuple", [self.fresh(label="key"), found]) if walk.like == "items" else found
        return inner[0] if inner else self.fresh()

    def element_of_object(self, value: Instance, node: ast.AST) -> Value:
        """What a loader, dataset or iterable object gives."""
        raise NotImplementedError

    def _one_of(self, parts: list[Value]) -> Value:
        """One of several values."""
        parts = parts[:16]
        kind = max(map(self.kind, parts), default=Kind.UNKNOWN)
        return self.mix(parts, kind, next((o for p in parts if (o := origin_of(p)) is not None), None))

    # Loops

    def loop_over(self, iterable: Value, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs `body` for the elements of `iterable`: inside a Loop of the trace, or inside the generator's own."""
        iterable = self.force(self.settle(iterable))
        if type(iterable) is Either:
            for part, holds in ((iterable.high, True), (iterable.low, False)):
                symbol = self.decisions.choice(iterable.symbol, ALL, 0)
                lanes = symbol if holds else self.decisions.minus(ALL, symbol)
                with self.under(self.decisions.both(self.guard, lanes)):
                    if self.guard != 0:
                        self.loop_over(part, node, body)
            return
        if type(iterable) is GeneratorValue:
            self.run_generator(iterable, node, body)
            return
        if (
            type(iterable) is Walk
            and iterable.like
            in (
                "enumerate",
                "iter",
                "zip",
                "islice",
                "progress",
                "cycle",
            )
            and any(self._drives(v) for v in iterable.over)
        ):
            self._loop_through(iterable, node, body)
            return
        if type(iterable) is Instance and self._drives(iterable):
            self.loop_over_object(iterable, node, body)
            return
        if type(iterable) is Items and self._is_short(iterable):
            for item in list(iterable.items):
                if self.guard != 0:
                    body(self.settle(item))
            return
        self.loop(iterable, node, body, self.turns(iterable), self.element(iterable, node))

    def _drives(self, value: Value) -> bool:
        """True when the loop runs inside code of the program: a generator, or an object with `__iter__`."""
        value = self.settle(value)
        if type(value) is Walk:
            return value.like in ("enumerate", "iter", "zip", "islice", "progress", "cycle") and any(
                map(self._drives, value.over)
            )
        return type(value) is GeneratorValue or (type(value) is Instance and self.iterates(value))

    def iterates(self, value: Instance) -> bool:
        """True for an object whose class of the program defines `__iter__`."""
        raise NotImplementedError

    def loop_over_object(self, value: Instance, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs `body` for what such an object's `__iter__` gives."""
        raise NotImplementedError

    def run_generator(self, generator: GeneratorValue, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs a generator, `body` at each of its yields."""
        raise NotImplementedError

    def _loop_through(self, walk: Walk, node: ast.AST, body: Callable[[Value], None]) -> None:
        """enumerate, zip and the like over a generator."""
        at = next(i for i, v in enumerate(walk.over) if self._drives(v))
        others = [None if i == at else self.element(v, node) for i, v in enumerate(walk.over)]

        def turn(value: Value) -> None:
            if walk.like == "enumerate":
                body(Items("tuple", [self.derived(("turn", node), (), label="i"), value]))
            elif walk.like == "zip":
                body(Items("tuple", [value if o is None else o for o in others]))
            else:
                body(value)

        self.loop_over(walk.over[at], node, turn)

    def loop(
        self, over: Value, node: ast.AST, body: Callable[[Value], None], turns: Turns, element: Value
    ) -> None:
        """One Loop of the trace."""
        kind, origin = turns
        loop = trace.Loop(self.here(node), self.absolute, self.branch, turns=kind, origin=origin, over=over)
        loop.within = self.within
        self.items.append(loop)
        # How often the ranks go round, and draw random numbers, is not known: those that they share may part.
        self.seeded = {library: max(seed, Kind.UNKNOWN) for library, seed in self.seeded.items()}
        outer, self.items = self.items, loop.items
        try:
            body(element)
            loop.again = self.absolute
        finally:
            self.items = outer

    # Statements

    def run_for(self, node: ast.For | ast.AsyncFor) -> None:
        """A for statement."""
        iterable = self.evaluate(node.iter)
        kind, origin = self.turns(self.settle(iterable))
        test = trace.Test(kind, self.guard, self.guard, origin)
        self.tests.setdefault((self.frame.home.module.path, node.lineno), []).append(test)

        def once() -> Guard:
            broke: Guard = 0

            def turn(value: Value) -> None:
                nonlocal broke
                broke = self.decisions.either(broke, self._turn(node, value))

            self.loop_over(iterable, node, turn)
            return broke

        broke = once() if self._is_short(self.force(self.settle(iterable))) else self._carrying(node, once)
        if node.orelse and self.guard != 0:
            self.run_block(node.orelse)
        self.guard = self.decisions.either(self.guard, broke)

    def _is_short(self, value: Value, constants: int = _UNROLLED) -> bool:
        """True for a list that is followed element by element; of constants only, there may be more."""
        if type(value) is not Items or value.rest is not None or value.uneven is not None:
            return False
        number = len(value.items)
        return number <= _UNROLLED or (number <= constants and all(type(v) is Const for v in value.items))

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, value: Value | None) -> Guard:
        """One turn of a loop's body; the lanes that a break took out."""
        state = LoopState()
        self.frame.loops.append(state)
        if value is not None and not isinstance(node, ast.While):
            self.assign(node.target, value)
        self.run_block(node.body)
        self.frame.loops.pop()
        self.guard = self.decisions.either(self.guard, state.continued)
        return state.broke

    def run_while(self, node: ast.While) -> None:
        """A while statement."""

        def once() -> Guard:
            entry, branch = self.guard, self.branch
            value = self.evaluate(node.test)
            doubt = self.unknown_condition(value)
            if doubt is not None:
                self.note_doubt(node, node.test, doubt, value)
                with self.doubting(doubt, origin_of(value)):
                    self.loop(
                        NONE, node, lambda _: self.run_block(node.body), (doubt, origin_of(value)), NONE
                    )
                return 0
            holds = self.truth(value)
            self.remember(node, node.test, holds, value)
            inside = self.decisions.both(self.guard, holds)
            left = self.decisions.minus(self.guard, holds)
            if inside == 0:
                return 0
            self.guard = inside
            if left != 0:
                self.branch = trace.Branch(self.here(node), entry, inside, branch)
            kind = self.decisions.kind_of_guard(holds, entry)
            seen = self.tests[self.frame.home.module.path, node.lineno][-1]
            broke: Guard = 0

            def turn(_: Value) -> None:
                nonlocal broke
                broke = self._turn(node, None)

            self.loop(NONE, node, turn, (kind, seen.origin), NONE)
            self.branch = branch
            endless = isinstance(node.test, ast.Constant) and bool(node.test.value) and not self.frame.rough
            self.guard = left if endless else self.decisions.either(self.guard, left)
            return broke

        broke = self._carrying(node, once)
        if node.orelse and self.guard != 0:
            self.run_block(node.orelse)
        self.guard = self.decisions.either(self.guard, broke)

    def _carrying(self, node: ast.For | ast.AsyncFor | ast.While, once: Callable[[], Guard]) -> Guard:
        """Runs a loop with what it carries from turn to turn made general."""
        names = self.frame.scope.names
        written, tests = self._carried(node)
        before = {n: names[n] for n in written if n in names}
        for name, value in before.items():
            if type(value) is Const and value.value is not None:
                names[name] = self.fresh(label=name)
        start = {n: names[n] for n in before}
        entry, kept = self.guard, len(self.items)
        broke = once()
        if self._joined_over(names, start, tests):
            del self.items[kept:]
            self.guard = entry
            start = {n: names[n] for n in before}
            broke = once()
            self._joined_over(names, start, tests)
        return broke

    def _carried(
        self, node: ast.For | ast.AsyncFor | ast.While
    ) -> tuple[frozenset[str], dict[str, list[int]]]:
        known = self.program.kept.setdefault("carried", {})
        if node not in known:
            known[node] = carried(node)
        return known[node]  # type: ignore[no-any-return]

    def _joined_over(
        self, names: dict[str, Value], start: dict[str, Value], tests: dict[str, list[int]]
    ) -> bool:
        """Binds each name to what it may be at the head of the loop; True when the body should be run again."""
        again = False
        for name, old in start.items():
            new = names.get(name, old)
            if same(new, old):
                continue
            joined = self._one_of([old, new])
            if name in tests:
                appeared = old is NONE and type(new) is not Unknown
                again = again or appeared or self._matters_in(tests[name], self.kind(joined))
            if type(joined) is Unknown and not joined.label:
                joined.label = name
            names[name] = joined
        return again

    def _matters_in(self, lines: list[int], kind: Kind) -> bool:
        """True when one of the tests was taken to differ less between ranks than `kind`."""
        path = self.frame.home.module.path
        seen = [self.tests[path, line] for line in lines if (path, line) in self.tests]
        return any(tests[-1].kind < kind for tests in seen)

    # Comprehensions

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        frame = self.frame
        outer = frame.scope
        frame.scope = Scope(outer)
        found: list[tuple[Value, Value]] = []
        listed = True
        uneven: Turns | None = None

        def inner(index: int) -> None:
            nonlocal listed, uneven
            if index == len(node.generators):
                if isinstance(node, ast.DictComp):
                    found.append((self.evaluate(node.key), self.evaluate(node.value)))
                else:
                    found.append((NONE, self.evaluate(node.elt)))
                return
            generator = node.generators[index]
            iterable = self.settle(self.evaluate(generator.iter))
            short = self._is_short(iterable, _LISTED)
            listed = listed and short
            turns = self.turns(iterable)
            if turns[0] > Kind.UNKNOWN:
                uneven = turns

            def turn(element: Value) -> None:
                nonlocal uneven
                self.assign(generator.target, element)
                guard = self.guard
                for condition in generator.ifs:
                    value = self.evaluate(condition)
                    doubt = self.unknown_condition(value)
                    if doubt is not None:
                        if doubt > Kind.UNKNOWN and doubt > (uneven[0] if uneven else Kind.UNIFORM):
                            uneven = (doubt, origin_of(value))
                        continue
                    holds = self.truth(value)
                    kind = self.decisions.kind_of_guard(holds, guard)
                    if kind > Kind.UNKNOWN and kind > (uneven[0] if uneven else Kind.UNIFORM):
                        uneven = (kind, self.cause_of(NONE, holds))
                    self.guard = self.decisions.both(self.guard, holds)
                if self.guard != 0:
                    inner(index + 1)
                self.guard = guard

            if short and type(iterable) is Items:
                for item in list(iterable.items):
                    turn(item)
            else:
                self.loop_over(iterable, generator.iter, turn)

        try:
            inner(0)
        finally:
            frame.scope = outer
        if isinstance(node, ast.DictComp):
            return self._table_of(found)
        values = [value for _, value in found]
        if listed and uneven is None:
            return Items("list", values)
        items = Items("list", [], self._one_of(values) if values else self.fresh(Kind.UNKNOWN))
        items.uneven = uneven
        return items

    def _table_of(self, pairs: list[tuple[Value, Value]]) -> Value:
        items: dict[Any, Value] = {}
        rest: list[Value] = []
        for key, value in pairs:
            if type(key) is Const and isinstance(key.value, str | int | float | bool | None):
                items[key.value] = value
            else:
                rest.append(value)
        return Table(items, self._one_of(rest) if rest else None)


def carried(node: ast.For | ast.AsyncFor | ast.While) -> tuple[frozenset[str], dict[str, list[int]]]:
    """(names that the loop binds, the lines of the tests inside it that read each of them)."""
    written: set[str] = set()
    tests: dict[str, list[int]] = {}
    todo: list[ast.AST] = [node] if isinstance(node, ast.While) else [*node.body, node.target]
    while todo:
        child = todo.pop()
        if isinstance(child, ast.Name):
            if isinstance(child.ctx, ast.Store):
                written.add(child.id)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            if isinstance(child, ast.If | ast.While | ast.IfExp | ast.Assert):
                for part in syntax.walk(child.test):
                    if isinstance(part, ast.Name):
                        tests.setdefault(part.id, []).append(child.lineno)
            todo += syntax.children(child)
    return frozenset(written), {name: lines for name, lines in tests.items() if name in written}
