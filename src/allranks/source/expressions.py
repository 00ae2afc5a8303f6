"""Expressions: names, attributes, displays, subscripts, calls."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from . import lore, syntax
from .decisions import options, origin_of
from .operators import Operators, hashable
from .values import (
    ABSENT,
    FALSE,
    NONE,
    OTHERS,
    TRUE,
    Const,
    Either,
    External,
    FunctionValue,
    Items,
    Kind,
    LocalModule,
    Method,
    Mixed,
    PerLane,
    Scope,
    Table,
    Unknown,
    Value,
    Walk,
    merged,
    per_lane,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lanes import Lane

_BUILTINS = frozenset(dir(builtins)) - {"__name__"}
_SHAPELESS = frozenset(
    (
        "type",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_cuda",
        "is_leaf",
        "layout",
        "__class__",
        "__name__",
    )
)
"""Attributes of a tensor that do not follow its data."""
_OF_PROCESS: dict[str, Callable[[Lane], object]] = {
    "local_rank": lambda lane: lane.local_rank,
    "LOCAL_RANK": lambda lane: lane.local_rank,
    "local_process_index": lambda lane: lane.local_rank,
    "global_rank": lambda lane: lane.rank,
    "process_index": lambda lane: lane.rank,
    "is_main_process": lambda lane: lane.rank == 0,
    "is_global_zero": lambda lane: lane.rank == 0,
    "is_local_main_process": lambda lane: lane.local_rank == 0,
}
"""Attributes that tell processes apart, whatever object has them: a configuration or a library's helper."""


class Expressions(Operators):
    """Evaluates expressions."""

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression on the active lanes."""
        handle = _HANDLERS.get(type(node))
        return handle(self, node) if handle is not None else self._other(node)

    def _other(self, node: ast.expr) -> Value:
        """Anything else: its parts are evaluated for what they do."""
        parts = [self.evaluate(child) for child in syntax.children(node) if isinstance(child, ast.expr)]
        return self.fresh(like=tuple(parts))

    # Names

    def _name(self, node: ast.Name) -> Value:
        return self.look_up(node.id)

    def look_up(self, name: str) -> Value:
        """What a name stands for here."""
        scope: Scope | None = self.frame.scope
        value = scope.names.get(name) if scope is not None else None
        if value is not None:
            return self.settle(value)
        while scope is not None and scope.outer is not None:
            scope = scope.outer
            value = scope.names.get(name)
            if value is not None:
                return self.settle_shared(value)
        value = self.frame.home.names.get(name)
        if value is not None:
            return self.settle_shared(value)
        if name in _BUILTINS:
            return External(f"builtins.{name}")
        if name == "__name__":
            return Const(self.frame.home.module.path.stem)
        if name == "__file__":
            return Const(str(self.frame.home.module.path))
        return self.derived(("name", id(self.frame.home), name), (), Kind.UNKNOWN, name)

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is None:
            return NONE
        if value is True:
            return TRUE
        return FALSE if value is False else Const(value)

    # Attributes

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr, node)

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """The attribute `name` of a value."""
        if type(value) in (Either, PerLane, Mixed):
            return self.map_lanes(value, lambda part: self.attribute(part, name, node))
        if type(value) is External:
            return self._external(f"{value.name}.{name}", node)
        if type(value) is LocalModule:
            return self._member(value, name)
        if type(value) is Unknown:
            changed = self.sidetable.get(("attribute", value.key, name))
            if changed is not None:
                return self.settle_shared(changed)
            if node is self.calling:
                return Method(value, name)
            if name in _OF_PROCESS and value.kind <= Kind.UNKNOWN:
                return per_lane(_OF_PROCESS[name], self.origin(node, "rank"))
            kind = value.kind
            like: tuple[Value, ...] = (value,)
            if name in _SHAPELESS:
                kind, like = Kind.UNIFORM, ()
            elif name == "shape" and value.label == "batch":
                # Batches have one size, the last one aside.
                kind, like = min(value.kind, Kind.UNKNOWN), ()
            return self.settle(self.derived(("attribute", value.key, name), like, kind, name))
        return self.object_attribute(value, name, node)

    def _external(self, name: str, node: ast.AST) -> Value:
        row = lore.result_attribute("name", lore.canonical(name))
        if row is not None:
            return self.perform(row, name, NONE, [], {}, node)
        return External(name)

    def _member(self, value: LocalModule, name: str) -> Value:
        found = value.names.get(name)
        if found is not None:
            return self.settle_shared(found)
        if name == "__dict__":
            # models.__dict__[name](): one of the module's own functions.
            own = {k: v for k, v in value.names.items() if type(v) is FunctionValue and v.home is value}
            return Table(dict(own), Mixed(tuple(own.values()), Kind.UNIFORM, None) if own else None)
        folder = value.module.path.parent
        if value.module.path.name == "__init__.py":
            for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                if path.is_file():
                    return self.import_module(path)
        return self.derived(("name", id(value), name), (), Kind.UNKNOWN, name)

    def object_attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """The attribute of an object, class or container."""
        raise NotImplementedError

    def perform(
        self,
        row: lore.Effect,
        name: str,
        receiver: Value,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
    ) -> Value:
        """Does what a row of `lore` says."""
        raise NotImplementedError

    # Displays

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        items, rest = self.elements(node.elts)
        kind = "tuple" if type(node) is ast.Tuple else "set" if type(node) is ast.Set else "list"
        return Items(kind, items, rest)

    def elements(self, nodes: list[ast.expr]) -> tuple[list[Value], Value | None]:
        """The values of some expressions, stars spread; what any further element is like where that is not known."""
        items: list[Value] = []
        rest: Value | None = None
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.evaluate(node.value)
                if type(value) is Items:
                    items += value.items
                    rest = value.rest or rest
                else:
                    rest = self.element(value, node)
            else:
                items.append(self.evaluate(node))
        return items, rest

    def _dict(self, node: ast.Dict) -> Value:
        items: dict[Any, Value] = {}
        rest: Value | None = None
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.evaluate(value)
            if key is None:
                if type(found) is Table:
                    items.update(found.items)
                    rest = found.rest or rest
                else:
                    rest = found
                continue
            name = self.evaluate(key)
            if type(name) is Const and hashable(name.value):
                items[name.value] = found
            else:
                rest = found
        return Table(items, rest)

    def _joined(self, node: ast.JoinedStr) -> Value:
        """An f-string: per lane where its parts are known, else as they differ."""
        parts: list[Value] = []
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                parts.append(Const(piece.value))
            elif isinstance(piece, ast.FormattedValue):
                parts.append(self.evaluate(piece.value))
        if all(type(p) in (Const, PerLane) for p in parts):
            result: Value | None = Const("")
            for part in parts:
                result = self._compute(lambda a, b: a + str(b), result, part) if result is not None else None
            if result is not None:
                return result
        return self.derived(("joined", *map(self.key_of, parts)), tuple(parts))

    # Subscripts

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        self.uses(value, node)
        if isinstance(node.slice, ast.Slice):
            return self._sliced(value, node.slice)
        return self.item(value, self.evaluate(node.slice), node)

    def item(self, value: Value, index: Value, node: ast.AST) -> Value:
        """`value[index]`."""
        if type(value) in (Either, PerLane):
            return self.map_lanes(value, lambda part: self.item(part, index, node))
        if type(value) is Items:
            return self._item_of_list(value, index, node)
        if type(value) is Table:
            return self._item_of_table(value, index, node)
        if type(value) is External:
            if value.name == "os.environ":
                row = lore.effect("os.getenv")
                assert row is not None
                return self.perform(row, "os.getenv", NONE, [index], {}, node)
            return External(f"{value.name}.[]")
        key = ("item", self.key_of(value), self.key_of(index))
        changed = self.sidetable.get(key)
        if changed is not None:
            return self.settle_shared(changed)
        label = str(index.value) if type(index) is Const and isinstance(index.value, str) else ""
        if type(value) is Unknown and value.label == "batch" and type(index) is Const:
            label = "batch"
        return self.settle(self.derived(key, (value, index), label=label))

    def _item_of_list(self, value: Items, index: Value, node: ast.AST) -> Value:
        if type(index) is Const and type(index.value) is int:
            inside = -len(value.items) <= index.value < len(value.items)
            if inside and (value.rest is None or index.value >= 0):
                return self.settle_shared(value.items[index.value])
        if type(index) is PerLane and value.rest is None:
            picked = [self._item_of_list(value, i, node) for i in index.items]
            if all(type(i) is Const for i in index.items):
                return merged(picked, index.origin)
        return self.picked(self.element(value, node), index)

    def picked(self, element: Value, index: Value) -> Value:
        """An element that is chosen by `index`: it differs between ranks as the index does."""
        kind = self.kind(index)
        if kind <= Kind.UNKNOWN or self.kind(element) >= kind:
            return element
        if type(element) in (Const, Unknown):
            return self.fresh(like=(element, index))
        return Mixed((element,), kind, origin_of(index))

    def _item_of_table(self, value: Table, index: Value, node: ast.AST) -> Value:
        if type(index) is Const and hashable(index.value):
            held = value.items.get(index.value)
            if held is not None:
                return self.settle_shared(held)
            if value.factory is not None:
                made = value.items[index.value] = self.call(value.factory, [], {}, node)
                return made
            if value.rest is None or all(type(o) is Unknown for o in options(value.rest)):
                # What is under the keys that are known says nothing of another.
                like = value if value.rest is None else value.rest
                return self.derived(
                    ("item", self.key_of(value), self.key_of(index)), (like,), label=str(index.value)
                )
        if value.rest is None and value.factory is not None:
            value.rest = self.call(value.factory, [], {}, node)
        return self.element(Walk("values", [value]), node)

    def _sliced(self, value: Value, node: ast.Slice) -> Value:
        bounds = [self.evaluate(b) if b is not None else None for b in (node.lower, node.upper, node.step)]
        known = [b.value if type(b) is Const and type(b.value) is int else None for b in bounds]
        exact = all(b is None or type(b) is Const for b in bounds)
        if type(value) is Items and value.rest is None and exact:
            return Items(value.type, value.items[slice(*known)])
        if type(value) is Const and isinstance(value.value, str) and exact:
            return Const(value.value[slice(*known)])
        given = tuple(b for b in bounds if b is not None)
        differs = max(map(self.kind, given), default=Kind.UNIFORM)
        key = ("slice", self.key_of(value), *(self.key_of(b) if b is not None else None for b in bounds))
        if differs < Kind.NODE:
            found = self.derived(key, (value, *given))
            if bounds[1] is not None and known[1] is None:
                self.cut.add(found.key)
            return found
        # What was cut to length before is shared out evenly.
        even = type(value) is Unknown and value.key in self.cut
        origin = self.origin(node, "rank" if even else "shard")
        return self.derived(key, (value,), differs, origin=origin)

    def element(self, iterable: Value, node: ast.AST) -> Value:
        """What any element of `iterable` is like."""
        raise NotImplementedError

    # The rest

    def _lambda(self, node: ast.Lambda) -> Value:
        return self.define_function(node)

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _await(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    def _starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        value = self.evaluate(node.value) if node.value is not None else NONE
        frame = self.frame
        if isinstance(node, ast.YieldFrom):
            if frame.on_yield is not None:
                self.loop_over(value, node, frame.on_yield)
            return NONE
        frame.yielded.append(value)
        if frame.on_yield is not None:
            frame.on_yield(value)
        return self.fresh()

    def _call(self, node: ast.Call) -> Value:
        func = node.func
        if type(func) is ast.Attribute:
            receiver = self.evaluate(func.value)
            self.calling = func
            callee = self.attribute(receiver, func.attr, func)
        else:
            callee = self.evaluate(func)
        args, rest = self.elements(node.args)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif type(value) is Table:
                keywords.update(
                    {k: v for k, v in value.items.items() if isinstance(k, str) and v is not ABSENT}
                )
                if value.rest is not None:
                    keywords[OTHERS] = value.rest
            else:
                keywords[OTHERS] = value
        if rest is not None:
            args.append(rest)
        return self.call(callee, args, keywords, node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        raise NotImplementedError


_HANDLERS: dict[type[ast.AST], Callable[[Any, Any], Value]] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._constant,
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._bool,
    ast.Compare: Expressions._compare,
    ast.IfExp: Expressions._if_expression,
    ast.List: Expressions._display,
    ast.Tuple: Expressions._display,
    ast.Set: Expressions._display,
    ast.Dict: Expressions._dict,
    ast.JoinedStr: Expressions._joined,
    ast.Subscript: Expressions._subscript,
    ast.Lambda: Expressions._lambda,
    ast.NamedExpr: Expressions._walrus,
    ast.Await: Expressions._await,
    ast.Starred: Expressions._starred,
    ast.Yield: Expressions._yield,
    ast.YieldFrom: Expressions._yield,
    ast.Call: Expressions._call,
    ast.ListComp: lambda self, node: self._comprehension(node),
    ast.SetComp: lambda self, node: self._comprehension(node),
    ast.GeneratorExp: lambda self, node: self._comprehension(node),
    ast.DictComp: lambda self, node: self._comprehension(node),
}
