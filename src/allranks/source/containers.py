"""Containers and iterators: walks over values, lists, tables, and the methods of plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .decisions import origin_of
from .lanes import ALL
from .standard import Call, Standard
from .values import (
    NONE,
    Const,
    GeneratorValue,
    Items,
    Kind,
    PerLane,
    Table,
    Unknown,
    Value,
    Walk,
    merged,
    same,
)

if TYPE_CHECKING:
    import ast

_STRING_METHODS = frozenset(
    ("lower", "upper", "strip", "startswith", "endswith", "replace", "format", "title", "lstrip", "rstrip", "zfill",
     "removeprefix", "removesuffix", "isdigit", "capitalize")
)  # fmt: skip
_UNIFORM_METHODS = frozenset(
    ("dim", "ndimension", "get_device", "element_size", "is_floating_point", "type", "keys")
)
_READING = frozenset(
    ("append", "add", "extend", "insert", "remove", "clear", "update", "push", "put", "appendleft")
)


class Containers(Standard):
    """What is done with containers."""

    def _act_walk(self, c: Call) -> Value:
        over = list(c.args[1:] if c.row.make in ("map", "filter") else c.args)
        if c.row.make == "enumerate":
            over = over[:1]
        if c.row.make == "map" and c.args:
            return Walk("iter", over) if not self.talks(c.args[0]) else self._mapped(c.args, c.node)
        if c.row.make == "islice":
            over = over[:1]
        return Walk(c.row.make, over)

    def _mapped(self, args: list[Value], node: ast.AST) -> Value:
        element = self.call(args[0], [self.element(a, node) for a in args[1:]], {}, node)
        return Items("list", [], element)

    def _act_progress(self, c: Call) -> Value:
        """tqdm and its like: the iterable itself, with a bar."""
        over = c.named.get(c.row.target, c.args[0] if c.args else NONE)
        if c.name.endswith("trange"):
            over = Walk("range", c.args[:3])
        if over is NONE:
            return self.fresh(label="progress")
        return Walk("progress", [over])

    def _act_next(self, c: Call) -> Value:
        value = self.settle(c.args[0]) if c.args else NONE
        if type(value) is GeneratorValue:
            return self.fresh(Kind.DATA, self.origin(c.node, "batch"), "batch")
        return self.element(value, c.node)

    def _act_listed(self, c: Call) -> Value:
        kind = c.name.rpartition(".")[2]
        if not c.args:
            return Items(kind, [])
        value = self.settle(c.args[0])
        if type(value) is Items:
            new = Items(kind, list(value.items), value.rest)
            new.uneven = value.uneven
            return new
        if type(value) is Walk and value.like == "range":
            bounds = [b.value for b in value.over if type(b) is Const and type(b.value) is int]
            if len(bounds) == len(value.over) and bounds and (bounds[2:] or [1])[0]:
                numbers = range(*bounds)
                if len(numbers) <= 16:
                    return Items(kind, [Const(n) for n in numbers])
        turns = self.turns(value)
        new = Items(kind, [], self.element(value, c.node))
        if turns[0] > Kind.UNKNOWN:
            new.uneven = turns
        return new

    def _act_table(self, c: Call) -> Value:
        table = Table(dict(c.named))
        for arg in c.args[:1]:
            if type(arg) is Table:
                table.items = {**arg.items, **table.items}
                table.rest = arg.rest
            else:
                table.rest = self.fresh(like=(arg,))
        return table

    def _act_default_table(self, c: Call) -> Value:
        return Table({}, None, c.args[0] if c.args and c.args[0] is not NONE else None)

    # Methods of values

    def method_of_list(self, value: Items, name: str, args: list[Value], node: ast.AST) -> Value:
        """A method of a list, tuple, set or deque."""
        if name in ("append", "add", "appendleft") and args:
            kind = self.decisions.kind_of_guard(self.guard, ALL)
            if kind > Kind.UNKNOWN:
                value.uneven = (kind, self.cause_of(NONE, self.guard))
            elif self.doubt is not None and self.doubt > Kind.UNKNOWN:
                value.uneven = (self.doubt, self.doubt_origin)
            inside = bool(self.frame.loops)
            if not inside and self.absolute == ALL and value.rest is None and len(value.items) < 16:
                value.items.append(args[0])
            else:
                value.rest = self._one_of([*([value.rest] if value.rest is not None else []), args[0]])
        elif name == "extend" and args:
            self.extend(value, args[0])
        elif name in ("pop", "popleft"):
            return self.element(value, node)
        elif name == "copy":
            return Items(value.type, list(value.items), value.rest)
        elif name == "index":
            return self._index(value, args)
        elif name == "clear":
            value.items.clear()
        elif name not in ("insert", "remove", "sort", "reverse", "discard"):
            return self.derived(("method", self.key_of(value), name, *map(self.key_of, args)), (value, *args))
        return NONE

    def _index(self, value: Items, args: list[Value]) -> Value:
        if (
            args
            and type(args[0]) is PerLane
            and value.rest is None
            and all(type(i) is Const for i in value.items)
        ):
            found = [self._index(value, [v]) for v in args[0].items]
            if all(type(f) is Const for f in found):
                return merged(found, args[0].origin)
        if args and type(args[0]) is Const and value.rest is None:
            for i, item in enumerate(value.items):
                if same(item, args[0]):
                    return Const(i)
        return self.fresh(like=tuple(args))

    def method_of_table(
        self, value: Table, name: str, args: list[Value], named: dict[str, Value], node: ast.AST
    ) -> Value:
        """A method of a dict."""
        if name in ("get", "pop", "setdefault") and args:
            key = args[0]
            if type(key) is Const and isinstance(key.value, str | int | float | bool | None):
                held = value.items.get(key.value)
                default = args[1] if len(args) > 1 else NONE
                if held is not None:
                    there = self.missing(held)
                    return (
                        self.settle(self.decisions.select(there, default, held))
                        if there != 0
                        else self.settle(held)
                    )
                if value.rest is None:
                    if name == "setdefault":
                        self.store(value.items, key.value, default, kept=True)
                    return default
            return self.item(value, key, node)
        if name in ("items", "values", "keys"):
            return Walk(name, [value])
        if name == "copy":
            return Table(dict(value.items), value.rest, value.factory)
        if name == "update":
            for arg in (*args, Table(dict(named))):
                if type(arg) is Table:
                    for key_, item in arg.items.items():
                        self.store(value.items, key_, item, kept=True)
                    value.rest = value.rest or arg.rest
                else:
                    value.rest = self.fresh(like=(arg,))
            return NONE
        return self.derived(("method", self.key_of(value), name, *map(self.key_of, args)), (value, *args))

    def method_of_constant(self, value: Const, name: str, args: list[Value]) -> Value:
        """A method of a string."""
        if (
            isinstance(value.value, str)
            and name in _STRING_METHODS
            and all(type(a) in (Const, PerLane) for a in args)
        ) and len(args) <= 1:
            single = not args
            found = self._compute(
                lambda a, b: getattr(a, name)() if single else getattr(a, name)(b),
                value,
                args[0] if args else NONE,
            )
            if found is not None:
                return found
        return self.derived(("method", self.key_of(value), name, *map(self.key_of, args)), tuple(args))

    def method_of_unknown(
        self, value: Value, name: str, args: list[Value], named: dict[str, Value], node: ast.AST
    ) -> Value:
        """A method of something unknown: differs as the value and the arguments do."""
        given = (*args, *named.values())
        if name.endswith("_") and not name.endswith("__"):
            self._changed_in_place(value, given)
            return self.settle(value)
        if name in _READING:
            self._changed_in_place(value, given)
            return NONE
        if type(value) is Unknown and value.kind is not Kind.DATA and any(map(self.talks, given)):
            self.missed("call")
        kind = Kind.UNIFORM
        like: tuple[Value, ...] = (value, *given)
        if name in _UNIFORM_METHODS:
            like = ()
        elif name == "size" and type(value) is Unknown and value.label == "batch":
            like, kind = (), min(value.kind, Kind.UNKNOWN)
        key = (
            "method",
            self.key_of(value),
            name,
            *map(self.key_of, args),
            *(self.key_of(v) for v in named.values()),
        )
        found = self.derived(key, like, kind)
        if type(value) is Unknown and found.kind is Kind.DATA and value.kind is not Kind.DATA:
            # What an unknown object makes of data may well be reduced.
            found.kind = Kind.UNKNOWN
        return self.settle(found)

    def _changed_in_place(self, value: Value, given: tuple[Value, ...]) -> None:
        kind = max(map(self.kind, given), default=Kind.UNIFORM)
        if kind > self.kind(value):
            origin = next((o for g in given if (o := origin_of(g)) is not None), None)
            self.change(value, kind, origin)
