"""What model classes hold, read from their text: fields with parameters, and layers that are not registered."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Location
from ...source import syntax
from ...source.program import dotted_name
from ...source.values import ClassValue, External

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Module, Program

_PLAIN = re.compile(
    r"(ReLU6?|PReLU|GELU|SiLU|Mish|ELU|SELU|CELU|GLU|LeakyReLU|Hard\w+|Tanh|Sigmoid|Softmax\w*|LogSoftmax|Softplus|Dropout\w*"
    r"|Identity|Flatten|Unflatten|\w*Pool\d?d?|Upsample\w*|\w*Pad\d?d?|PixelShuffle|PixelUnshuffle|\w*Loss|CosineSimilarity"
    r"|PairwiseDistance|Unfold|Fold|ChannelShuffle)$"
)
"""Modules of torch that have no parameters."""
_DEEPEST = 8
_REGISTERS = re.compile(
    r"ModuleList|ModuleDict|ParameterList|ParameterDict|Sequential|add_module|register_module|register_parameter|setattr\(self"
)
_FROZEN = re.compile(r"requires_grad_?\(?\s*=?\s*\(?False|\.eval\(\)|deepcopy|no_grad|detach")


def classes(module: Module) -> Iterator[ast.ClassDef]:
    """The model classes that stand at the top of a module."""
    for node in module.tree.body if module.tree is not None else ():
        if isinstance(node, ast.ClassDef) and any(_is_module(module, base) for base in node.bases):
            yield node


def _is_module(module: Module, base: ast.expr, depth: int = 0) -> bool:
    name = dotted_name(base)
    if not name or depth > _DEEPEST:
        return False
    target = module.program.resolve(module, name)
    if isinstance(target, str):
        return bool(re.search(r"torch\.nn\.|Module$|PreTrainedModel$", target))
    return isinstance(target, ast.ClassDef) and any(
        _is_module(module, inner, depth + 1) for inner in target.bases
    )


def held_outside(program: Program, module: Module) -> Iterator[tuple[Location, str, str]]:
    """(place, attribute, "list", "dict" or "tensor") of what model classes keep out of their parameters.

    Only what another method of the class uses, and what is not registered elsewhere in `__init__`.
    """
    kept: dict[object, list[tuple[Location, str, str]]] = program.kept.setdefault("outside", {})
    if module.path not in kept:
        kept[module.path] = [found for cls in classes(module) for found in _outside(module, cls)]
    yield from kept[module.path]


def _outside(module: Module, cls: ast.ClassDef) -> Iterator[tuple[Location, str, str]]:
    init = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        return
    bound = [node for node in syntax.walk(init) if _bound(node)[0] is not None]
    if not bound:
        return
    used = _used(cls, init)
    registered = _registered(module, init)
    for node in bound:
        name, value = _bound(node)
        if name is None or value is None or name not in used or name in registered:
            continue
        what = _what(module, value)
        if what is None or _FROZEN.search(ast.unparse(value)):
            continue
        if not re.search(rf"self\.{name}\b[^\n]*requires_grad_?\(?\s*=?\s*\(?False", ast.unparse(cls)):
            yield _place(module, cls, init, node), name, what
    yield from _appended(module, cls, init, used - registered)


def _bound(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """(attribute, value) of `self.x = value`."""
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    for target in targets:
        if (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ):
            return target.attr, node.value  # type: ignore[attr-defined]
    return None, None


def _what(module: Module, value: ast.expr) -> str | None:
    """ "list", "dict" or "tensor" for a value that holds parameters of its own."""
    if (
        isinstance(value, ast.List | ast.Tuple)
        and value.elts
        and all(_has_parameters(module, e) for e in value.elts)
    ):
        return "list"
    if isinstance(value, ast.ListComp) and _has_parameters(module, value.elt):
        return "list"
    if isinstance(value, ast.Dict) and value.values and all(_has_parameters(module, v) for v in value.values):
        return "dict"
    if isinstance(value, ast.DictComp) and _has_parameters(module, value.value):
        return "dict"
    if isinstance(value, ast.Call):
        name = module.program.resolve(module, dotted_name(value.func)) if dotted_name(value.func) else None
        trained = any(
            k.arg == "requires_grad" and getattr(k.value, "value", None) is True for k in value.keywords
        )
        if (
            isinstance(name, str)
            and name.startswith("torch.")
            and trained
            and not name.endswith(".Parameter")
        ):
            return "tensor"
    return None


def _has_parameters(module: Module, node: ast.expr) -> bool:
    """True for the making of a layer that has parameters."""
    if not isinstance(node, ast.Call) or not dotted_name(node.func):
        return False
    target = module.program.resolve(module, dotted_name(node.func))
    if isinstance(target, str):
        last = target.rpartition(".")[2]
        return (
            target.startswith("torch.nn.")
            and last[:1].isupper()
            and not target.startswith("torch.nn.init")
            and not _PLAIN.search(last)
        )
    return isinstance(target, ast.ClassDef) and any(_is_module(module, base) for base in target.bases)


def _appended(
    module: Module, cls: ast.ClassDef, init: ast.FunctionDef, names: set[str]
) -> Iterator[tuple[Location, str, str]]:
    """Layers appended to a list that `__init__` made empty."""
    empty = {
        name
        for node in syntax.walk(init)
        for name, value in [_bound(node)]
        if name in names and isinstance(value, ast.List) and not value.elts
    }
    told: set[str] = set()
    for node in syntax.walk(init):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or node.func.attr != "append"
        ):
            continue
        owner = node.func.value
        mine = (
            isinstance(owner, ast.Attribute)
            and isinstance(owner.value, ast.Name)
            and owner.value.id == "self"
        )
        name = owner.attr if mine and isinstance(owner, ast.Attribute) else None
        if name in empty and name not in told and node.args and _has_parameters(module, node.args[0]):
            told.add(str(name))
            yield _place(module, cls, init, node), str(name), "list"


def _used(cls: ast.ClassDef, init: ast.FunctionDef) -> set[str]:
    """Attributes of self that methods other than `__init__` read."""
    return {
        node.attr
        for method in cls.body
        if method is not init
        for node in syntax.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _registered(module: Module, init: ast.FunctionDef) -> set[str]:
    """Attributes that `__init__` hands to what registers them."""
    found: set[str] = set()
    if not _REGISTERS.search("\n".join(module.source.lines[init.lineno - 1 : init.end_lineno])):
        return found
    for node in syntax.walk(init):
        if isinstance(node, ast.Call) and _REGISTERS.search(ast.unparse(node)):
            found |= {
                inner.attr
                for inner in syntax.walk(node)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            }
    return found


def _place(module: Module, cls: ast.ClassDef, init: ast.FunctionDef, node: ast.AST) -> Location:
    line, column = getattr(node, "lineno", init.lineno), getattr(node, "col_offset", 0)
    return Location(
        str(module.path), line, column + 1, f"{cls.name}.__init__", getattr(node, "end_lineno", None)
    )


def trained_fields(program: Program, cls: ClassValue) -> frozenset[str] | None:
    """The fields of a model class that hold parameters; None when not all of them can be told from its text."""
    for base in cls.bases or ():
        if not isinstance(base, External) or not base.name.startswith("torch.nn"):
            return None
    init = next((n for n in cls.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None or re.search(r"setattr|add_module|register_parameter|__dict__", ast.unparse(init)):
        return None
    module = cls.home.module
    found = set()
    for node in syntax.walk(init):
        name, value = _bound(node)
        if name is None or value is None:
            continue
        if (
            isinstance(value, ast.Call) and (_has_parameters(module, value) or _is_parameter(module, value))
        ) or (isinstance(value, ast.Call) and _makes_module(module, value)):
            found.add(name)
    return frozenset(found)


def _is_parameter(module: Module, node: ast.Call) -> bool:
    target = module.program.resolve(module, dotted_name(node.func)) if dotted_name(node.func) else None
    return isinstance(target, str) and target.startswith("torch.nn.") and target.endswith("Parameter")


def _makes_module(module: Module, node: ast.Call) -> bool:
    """True for a call of a local function that returns a module with parameters."""
    target = module.program.resolve(module, dotted_name(node.func)) if dotted_name(node.func) else None
    inner = getattr(target, "node", None)
    home = getattr(target, "module", module)
    if not isinstance(inner, ast.FunctionDef):
        return False
    returned = [n.value for n in syntax.walk(inner) if isinstance(n, ast.Return) and n.value is not None]
    return any(_has_parameters(home, value) for value in returned)
