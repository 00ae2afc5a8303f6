"""Assignments: what binds a name, an attribute, an item or several targets at once."""

from __future__ import annotations

import ast
from functools import partial

from .iteration import Iteration
from .lanes import ALL
from .values import (
    NONE,
    ClassValue,
    Const,
    Either,
    External,
    Instance,
    Items,
    LocalModule,
    Mixed,
    PerLane,
    Table,
    Unknown,
    Value,
)

_TOLD = frozenset(("requires_grad", "grad", "module", "require_backward_grad_sync"))
"""Attributes whose assignments are recorded, beside those that hold a model."""


class Assignment(Iteration):
    """Binds targets."""

    def _assignment(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        """`x += y`: never a constant, since it is mostly done again and again."""
        target = node.target
        value = self.evaluate(node.value)
        if isinstance(target, ast.Name):
            old = self.look_up(target.id)
        elif isinstance(target, ast.Attribute):
            old = self.attribute(self.evaluate(target.value), target.attr, target)
        else:
            old = self.evaluate(ast.Subscript(target.value, target.slice, ast.Load()))
        if type(old) is Items and type(node.op) is ast.Add:
            self.extend(old, value)
            return
        new = self.binary(node.op, old, value, node)
        if type(new) is Const or (type(new) is PerLane and type(old) is not PerLane):
            new = self.fresh(self.kind(new), label=getattr(target, "id", getattr(target, "attr", "")))
        self.assign(target, new)

    def extend(self, items: Items, more: Value) -> None:
        """`items += more`, in place."""
        if type(more) is Items and self.absolute == ALL and more.rest is None and len(items.items) < 32:
            items.items += more.items
        else:
            items.rest = self._one_of(
                [*([items.rest] if items.rest else []), self.element(more, self.frame_node())]
            )

    def frame_node(self) -> ast.AST:
        """The node of the function that runs."""
        function = self.frame.function
        return function.node if function is not None else self.frame.home.module.tree or ast.Pass()

    def assign(self, target: ast.expr, value: Value) -> None:
        """Binds the target of an assignment on the active lanes."""
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value)
            if target.attr in _TOLD or (type(value) is Instance and value.kind == "module"):
                self.record("set", target.attr, target, receiver=owner, result=value)
            self.set_attribute(owner, target.attr, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Items("list", [], value))

    def _assign_name(self, name: str, value: Value) -> None:
        scope = self.frame.scope
        if name in scope.declared_global:
            if type(value) is Const and type(value.value) in (int, float, bool):
                value = self.fresh(label=name)
            self.store(self.frame.home.names, name, value)
            return
        outer = scope.nonlocals.get(name)
        if outer is not None:
            self.store(outer.names, name, value)
        else:
            self.bind_name(scope.names, name, value)

    def set_attribute(self, value: Value, name: str, new: Value) -> None:
        """`value.name = new` on the active lanes."""
        if type(value) is Instance:
            cls = value.cls
            number = type(new) is Const and type(new.value) in (int, float, bool)
            if cls is not None and number and name in self.varying(cls):
                new = self.fresh(label=name)
            self.store(value.fields, name, new)
        elif type(value) is Unknown:
            key = ("attribute", value.key, name)
            if key not in self.sidetable:
                self.sidetable[key] = self.attribute(value, name, self.frame_node())
            self.store(self.sidetable, key, new)
            if type(new) is Unknown and not new.label:
                new.label = name
        elif type(value) is LocalModule:
            self.store(value.names, name, new)
        elif type(value) is ClassValue:
            self.store(value.fields, name, new)
        elif type(value) is Table:
            self.store(value.items, name, new, kept=True)
        elif type(value) in (Either, PerLane, Mixed):
            self.for_lanes(value, lambda part: self.set_attribute(part, name, new))
        elif type(value) is External:
            self.record("patch", f"{value.name}.{name}", self.frame_node(), result=new)

    def varying(self, cls: ClassValue) -> frozenset[str]:
        """The attributes that methods of a class other than `__init__` bind."""
        raise NotImplementedError

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        container = self.settle(self.evaluate(target.value))
        index = self.evaluate(target.slice) if not isinstance(target.slice, ast.Slice) else NONE
        if type(value) is Instance and value.kind == "module":
            self.record("set", "[]", target, receiver=container, result=value)
        self.set_item(container, index, value, target)

    def set_item(self, container: Value, index: Value, value: Value, node: ast.AST) -> None:
        """`container[index] = value` on the active lanes."""
        if type(container) is Table:
            if self.doubt is not None and type(index) is Const:
                self.keys_set[id(container), index.value] = container
            elif type(index) is Const:
                container.sure.add(index.value)
            if type(index) is Const and isinstance(index.value, str | int | float | bool | None):
                self.store(container.items, index.value, value, kept=True)
            else:
                container.rest = self._one_of([*([container.rest] if container.rest else []), value])
        elif type(container) is Items:
            if type(index) is Const and type(index.value) is int and 0 <= index.value < len(container.items):
                held = container.items[index.value]
                container.items[index.value] = self.decisions.select(self.absolute, value, held)
            else:
                container.rest = self._one_of([*([container.rest] if container.rest else []), value])
        elif type(container) is Instance:
            if container.kind == "module" and type(index) is Const and str(index.value) in container.fields:
                self.store(container.fields, str(index.value), value)
        elif type(container) is External:
            if container.name == "os.environ" and type(index) is Const:
                self.record("environ", "os.environ", node, args={"key": index, "value": value})
                key = ("environ", index.value)
                if self.absolute != ALL and key not in self.sidetable:
                    # The others keep what the launcher gave them.
                    self.sidetable[key] = self.item(container, index, node)
                self.store(self.sidetable, key, value)
        elif type(container) in (Either, PerLane, Mixed):
            self.for_lanes(container, lambda part: self.set_item(part, index, value, node))
        elif type(container) is Unknown:
            if type(index) is Const and isinstance(index.value, str):
                self.store(self.sidetable, ("item", container.key, self.key_of(index)), value)
            elif self.kind(value) > container.kind:
                self.change(container, self.kind(value), self.cause_of(value, 0))

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        value = self.settle(value)
        if type(value) is Items and value.rest is None and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assign(target, self.settle(item))
            return
        if type(value) in (Either, PerLane):
            parts = [
                self.map_lanes(value, partial(self._part, index=i, targets=targets))
                for i in range(len(targets))
            ]
            for target, part in zip(targets, parts, strict=True):
                self.assign(target, part)
            return
        for i, target in enumerate(targets):
            self.assign(target, self._part(value, i, targets))

    def _part(self, value: Value, index: int, targets: list[ast.expr]) -> Value:
        """The element that one of several targets takes."""
        if type(value) is Items and value.rest is None and index < len(value.items):
            return self.settle(value.items[index])
        if type(value) is Unknown:
            label = value.label if value.label == "batch" else ""
            part = self.settle(self.derived(("part", value.key, index), (value,), label=label))
            if value.key in self.passed_over and type(part) is Unknown:
                self.passed_over.setdefault(part.key, (value.key, index))
            return part
        return self.element(value, targets[index])
