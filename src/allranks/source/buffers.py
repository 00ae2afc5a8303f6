"""Whether a model has buffers, which DDP broadcasts before a forward: no, perhaps, or yes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from . import syntax
from .values import (
    ClassValue,
    Either,
    External,
    Instance,
    Items,
    Mixed,
    PerLane,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from .objects import Objects

NO, PERHAPS, YES = 0, 1, 2
_BUFFERED = re.compile(r"BatchNorm|SyncBN\b|InstanceNorm|SpectralNorm")
_WITHOUT = re.compile(
    r"torch\.nn\.(?!.*(BatchNorm|InstanceNorm))|torchvision\.models\.(vit_|alexnet|squeezenet|vgg\d+$|convnext)"
)
_CONTAINERS = re.compile(r"torch\.nn\.(Sequential|ModuleList|ModuleDict)$")


def buffers(machine: Objects, value: Value, depth: int = 0) -> int:
    """NO, PERHAPS or YES for a model."""
    if depth > 6:
        return PERHAPS
    value = machine.force(value)
    if type(value) is Instance:
        if value.cls is not None:
            return of_class(machine, value.cls, depth)
        if value.kind in ("ddp", "dp", "fsdp"):
            return buffers(machine, value.fields.get("module", value), depth + 1)
        if _CONTAINERS.search(value.name):
            parts = [buffers(machine, v, depth + 1) for v in value.fields.values() if v is not value]
            return max(parts, default=NO)
        if value.kind == "loss":
            return NO
        return _of_name(value.name)
    if type(value) is Either:
        return _agreed([buffers(machine, value.high, depth + 1), buffers(machine, value.low, depth + 1)])
    if isinstance(value, Mixed | PerLane):
        some = value.options if isinstance(value, Mixed) else value.items
        return _agreed([buffers(machine, p, depth + 1) for p in some])
    if type(value) is Items:
        parts = [buffers(machine, v, depth + 1) for v in value.items]
        if value.rest is not None:
            parts.append(buffers(machine, value.rest, depth + 1))
        return max(parts, default=NO)
    return PERHAPS if type(value) is Unknown else NO


def _agreed(answers: list[int]) -> int:
    return answers[0] if len(set(answers)) == 1 else PERHAPS


def _of_name(name: str) -> int:
    if _BUFFERED.search(name):
        return YES
    if _WITHOUT.match(name):
        return NO
    if name.startswith("torchvision.models."):
        return (
            YES
            if re.search(r"resne|_bn$|densenet|mobilenet|inception|googlenet|efficientnet|regnet", name)
            else PERHAPS
        )
    return PERHAPS


def of_class(machine: Objects, cls: ClassValue, depth: int = 0) -> int:
    """The same for a model class of the program: what its text registers, and the classes that it names."""
    known: dict[ast.ClassDef, int] = machine.program.kept.setdefault("buffers", {})
    if cls.node not in known:
        known[cls.node] = NO  # a class that names itself
        found = _Reader(machine, cls, depth).read()
        for base in cls.bases or ():
            if type(base) is ClassValue:
                found = max(found, of_class(machine, base, depth + 1))
            elif type(base) is External and not base.name.startswith("torch.nn."):
                found = max(found, _of_name(base.name))
        known[cls.node] = found
    return known[cls.node]


class _Reader:
    """Reads the text of one class. What stands under a condition counts as PERHAPS."""

    def __init__(self, machine: Objects, cls: ClassValue, depth: int) -> None:
        self.machine = machine
        self.cls = cls
        self.depth = depth
        self.found = NO

    def read(self) -> int:
        for statement in self.cls.node.body:
            self._visit(statement, YES)
        return self.found

    def _visit(self, node: ast.AST, sure: int) -> None:
        if self.found == YES:
            return
        if isinstance(node, ast.If | ast.IfExp):
            if _by_default(node.test):
                for part in syntax.children(node):
                    self._visit(part, sure)
                return
            self._visit(node.test, sure)
            for part in syntax.children(node):
                if part is not node.test:
                    self._visit(part, PERHAPS)
            return
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("isinstance", "issubclass"):
                return
            if called == "register_buffer":
                self.found = max(self.found, sure)
        elif isinstance(node, ast.Attribute) and _BUFFERED.search(node.attr):
            self.found = max(self.found, sure)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._named(node.id, sure)
        for child in syntax.children(node):
            self._visit(child, sure)

    def _named(self, name: str, sure: int) -> None:
        value = self.cls.home.names.get(name)
        if type(value) is External and _BUFFERED.search(value.name):
            self.found = max(self.found, sure)
        elif type(value) is ClassValue and value is not self.cls and self.depth < 6:
            self.found = max(self.found, min(sure, of_class(self.machine, value, self.depth + 1)))
        elif type(value) is External and re.match(r"(timm|transformers|torchvision)\.", value.name):
            self.found = max(self.found, min(sure, _of_name(value.name)))


def _by_default(test: ast.expr) -> bool:
    """True for `x is None`: what follows is the usual case."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Is)
        and (isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None)
    )
