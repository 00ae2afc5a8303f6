"""Models: which one a list of parameters, a parameter or a state dict belongs to, and what wraps it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..source import syntax
from ..source.program import Function, dotted_name
from ..source.values import Const, Instance, Items, Kind, Table, Unknown, Value, Walk
from .scene import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..source.trace import Event
    from .scene import Scene

_GIVEN_BY = frozenset(
    ("parameters", "named_parameters", "state_dict", "modules", "named_modules", "buffers", "children")
)
WRAPPED = ("ddp", "fsdp", "ds_engine", "dp")


@dataclass(frozen=True, slots=True)
class Part:
    """A model, or what lies in it: `path` are the fields on the way, `what` the method that gave it
    ("parameters", "state_dict", ...; empty for the model itself). `model` is an Instance, or the key of an
    unknown that stands for one."""

    model: Instance | int
    path: tuple[str, ...] = ()
    what: str = ""

    @property
    def inner(self) -> Instance | int:
        """The model without its wrappers."""
        return unwrapped(self.model)

    @property
    def wrapped(self) -> bool:
        """True when it was asked of the wrapper."""
        return isinstance(self.model, Instance) and self.model.kind in WRAPPED


def unwrapped(model: Instance | int) -> Instance | int:
    """The model inside its wrappers."""
    while isinstance(model, Instance) and model.kind in WRAPPED and "module" in model.fields:
        inner = next(leaves(model.fields["module"]))
        if isinstance(inner, Instance):
            model = inner
        elif isinstance(inner, Unknown):
            return inner.key
        else:
            return model
    return model


def whole_of(scene: Scene, part: Part) -> Part:
    """`part` told by the model that is wrapped, where it is a layer of one: `head` of DDP(Sequential(body, head))."""
    model = part.model
    for wrap in scene.of("wrap"):
        outer = unwrapped(wrap.result) if isinstance(wrap.result, Instance) else None
        if isinstance(model, Instance) and isinstance(outer, Instance) and outer is not part.inner:
            way = _way(outer, model, 0)
            if way is not None:
                return Part(outer, (*way, *part.path), part.what)
    return part


def _way(outer: Instance, inner: Instance, depth: int) -> tuple[str, ...] | None:
    """The fields that lead from a model to a layer of it; None when it is not seen to have it."""
    for name, field in outer.fields.items():
        if name == "copy_of":
            continue  # what it was copied from is no part of it
        for leaf in leaves(field):
            if leaf is inner:
                return (name,)
            if isinstance(leaf, Instance) and leaf.kind == "module" and depth < 4:
                rest = _way(leaf, inner, depth + 1)
                if rest is not None:
                    return (name, *rest)
    return None


def part_of(scene: Scene, value: Value) -> Part | None:
    """The model that a single value belongs to; None when that is not known."""
    if isinstance(value, Instance):
        return Part(value) if value.kind in (*WRAPPED, "module", "lightning_module") else None
    if isinstance(value, Unknown):
        return _of_key(scene, value.key, 0)
    return None


def _of_key(scene: Scene, key: int, depth: int) -> Part | None:
    derivation = scene.run.derivations.get(key)
    if derivation is None or depth > 12:
        return Part(key)
    kind = derivation[0]
    if kind in _GIVEN_BY:
        owner = scene.run.objects.get(derivation[1])
        return Part(owner, (), kind) if isinstance(owner, Instance) else None
    if kind == "field":
        owner = scene.run.objects.get(derivation[1])
        return _member(Part(owner), derivation[2]) if isinstance(owner, Instance) else None
    if kind == "method":
        owner_part = _of_ref(scene, derivation[1], depth)
        if owner_part is None:
            return None
        if derivation[2] in _GIVEN_BY:
            return Part(owner_part.model, owner_part.path, derivation[2])
        return None
    if kind in ("element", "part", "attribute", "item"):
        owner_part = _of_ref(scene, derivation[1], depth)
        if owner_part is None:
            return None
        if kind == "attribute" and not owner_part.what:
            return _member(owner_part, derivation[2])
        if kind == "item" and not owner_part.what:
            return _member(owner_part, "[]")
        return owner_part
    return Part(key)


def _member(owner: Part, name: str) -> Part:
    if name == "_orig_mod":
        return owner  # what torch.compile wraps
    if name == "module":
        return owner if not owner.wrapped else Part(owner.inner, owner.path, owner.what)
    return Part(owner.inner, (*owner.path, name), owner.what)


def _of_ref(scene: Scene, ref: Any, depth: int) -> Part | None:
    """The part that a component of a derivation stands for."""
    if isinstance(ref, int):
        return _of_key(scene, ref, depth + 1)
    if isinstance(ref, tuple) and ref and ref[0] == "o":
        value = scene.run.objects.get(ref[1])
        return part_of(scene, value) if value is not None else None
    return None


def owner_of(scene: Scene, event: Event) -> Part | None:
    """The model that the receiver of an event belongs to; of a loop's variable, what the loop goes over says it."""
    part = part_of(scene, next(leaves(event.receiver)))
    if part is not None and (part.what or isinstance(part.model, Instance)):
        return part
    node = event.site.node
    target = node.func if isinstance(node, ast.Call) else node
    base = target.value if isinstance(target, ast.Attribute) else None
    if isinstance(base, ast.Name):
        for loop in reversed(scene.loops(event)):
            bound = getattr(loop.site.node, "target", None)
            if bound is not None and any(
                isinstance(n, ast.Name) and n.id == base.id for n in syntax.walk(bound)
            ):
                return next(iter(parts_of(scene, loop.over)), None)
    return part


def parts_of(scene: Scene, value: Value, depth: int = 0) -> Iterator[Part | None]:
    """Every model that lists, groups or generators of parameters come from; None for what is not known."""
    if depth > 6:
        yield None
        return
    for leaf in leaves(value):
        if isinstance(leaf, Items):
            for item in [*leaf.items, *([leaf.rest] if leaf.rest is not None else [])]:
                yield from parts_of(scene, item, depth + 1)
        elif isinstance(leaf, Table):
            if "params" in leaf.items:
                yield from parts_of(scene, leaf.items["params"], depth + 1)
            elif leaf.items or leaf.rest is None:
                for item in leaf.items.values():
                    if not isinstance(item, Const):
                        yield from parts_of(scene, item, depth + 1)
            else:
                yield from parts_of(scene, leaf.rest, depth + 1)
        elif isinstance(leaf, Walk):
            for over in leaf.over:
                yield from parts_of(scene, over, depth + 1)
        elif isinstance(leaf, Const):
            continue
        else:
            part = part_of(scene, leaf)
            # An unknown that no method of a model gave may be anything.
            yield None if part is not None and isinstance(part.model, int) and not part.what else part


def params_of(event: Event) -> Value:
    """What an optimizer is given to train; something unknown for one of the program's own that takes it otherwise."""
    return event.args.get("params", event.args.get("0", Unknown(-1, Kind.UNKNOWN)))


def gradient_of(scene: Scene, value: Value) -> Part | None:
    """The model whose gradient a value is: `p.grad`, `p.grad.data` of one of its parameters; else None."""
    for leaf in leaves(value):
        key: object = leaf.key if isinstance(leaf, Unknown) else None
        for _ in range(4):
            derivation = scene.run.derivations.get(key) if isinstance(key, int) else None
            if derivation is None or derivation[0] != "attribute":
                break
            if derivation[2] == "grad":
                return _of_ref(scene, derivation[1], 0)
            key = derivation[1]
    return None


def builder_of(scene: Scene, event: Event, node: ast.expr) -> Function | None:
    """The function of the program that an expression, or the name it is, was built by."""
    module = scene.program.module(event.site.path)
    if isinstance(node, ast.Name):
        function = scene.program.function_at(event.site.path, event.site.line)
        tree = function.node if function is not None else module.tree
        bound = [
            n.value
            for n in (syntax.walk(tree) if tree is not None else ())
            if isinstance(n, ast.Assign) and n.lineno < event.site.line
            and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
        ]  # fmt: skip
        return builder_of(scene, event, bound[-1]) if bound and not isinstance(bound[-1], ast.Name) else None
    if isinstance(node, ast.Call) and dotted_name(node.func):
        found_function = scene.program.resolve(module, dotted_name(node.func))
        return found_function if isinstance(found_function, Function) else None
    return None
