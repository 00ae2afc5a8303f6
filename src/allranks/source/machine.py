"""Follows a program on all ranks at once: an entry script from its first line, or one function by itself."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .files import collector_at_rest
from .lanes import ALL
from .libraries import Libraries
from .state import Frame
from .values import ClassValue, FunctionValue, Instance, LocalModule, Scope, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from . import trace
    from .decisions import Decisions
    from .interest import Interest
    from .program import Entry, Function, Module, Program

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_LEAVING = re.compile(r"\b(return|break|continue|raise|yield|exit)\b")
BUDGET = 40_000
"""Statements that are followed for one entry."""


@dataclass(slots=True, eq=False)
class Run:
    """What following one entry (or one function alone) left behind."""

    entry: Module
    alone: Function | None
    decisions: Decisions
    items: list[trace.Item]
    tests: dict[tuple[Path, int], list[trace.Test]]
    reached: set[ast.AST]
    initialised: bool
    blind: dict[str, int] = field(default_factory=dict)
    derivations: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """What each derived unknown stands for, by its key: ("attribute", key of the owner, name), ..."""
    objects: dict[int, Value] = field(default_factory=dict)
    """The objects that derivations name by number."""
    early: list[trace.Early] = field(default_factory=list)
    """Tensors used before their collective was waited for."""


class Machine(Libraries):
    """Runs programs."""

    def __init__(self, program: Program, interest: Interest, budget: int = BUDGET) -> None:
        super().__init__(program, budget)
        self.budget = budget
        self.interest = interest

    def matters(self, function: FunctionValue) -> bool:
        """True when a function's text, or that of what it calls, speaks of ranks, files or training."""
        return self.interest.matters(function.home.module.path, getattr(function.node, "lineno", 0))

    def communicates(self, function: FunctionValue) -> bool:
        """True when a function may communicate or leave, itself or through what it calls."""
        return self.interest.communicates(function.home.module.path, getattr(function.node, "lineno", 0))

    def class_matters(self, cls: ClassValue) -> bool:
        """True when a method of a class matters."""
        return self.interest.class_matters(cls.name)

    def class_communicates(self, cls: ClassValue) -> bool:
        """True when a method of a class may communicate."""
        return self.interest.class_communicates(cls.name)

    def silent(self, node: ast.stmt) -> bool:
        """True for a statement that neither leaves, nor speaks of what communicates, nor uses it."""
        known: dict[ast.stmt, frozenset[str] | None] = self.program.kept.setdefault("silent", {})
        if node not in known:
            lines = self.frame.home.module.source.lines[node.lineno - 1 : node.end_lineno]
            text = "\n".join(lines)
            loud = _LEAVING.search(text) or self.interest.speaks(text)
            known[node] = None if loud else frozenset(_NAME.findall(text)) if "(" in text else frozenset()
        names = known[node]
        return names is not None and not any(map(self._named_talks, names))

    def _named_talks(self, name: str) -> bool:
        """True when a name of the function that runs holds what may communicate."""
        value = self.frame.scope.names.get(name)
        return value is not None and self.talks(value, 0, strict=True)

    def run_entry(self, entry: Entry) -> Run:
        """Follows a script as `__main__`."""
        module = LocalModule(entry.module)
        self.modules[entry.module.path] = module
        closure = self.program.closure(entry.path)
        self.interest.add(closure)
        self.launch = entry.launch
        self.expects_group = any("init_process_group(" in self.program.text(p) for p in closure)
        self._follow(lambda: self.run_module(module, "__main__"))
        return self.finished(entry.module, None)

    def run_alone(self, function: Function) -> Run:
        """Follows one function with unknown arguments, after the top level of its module. One machine can follow
        many functions so: modules are run once, and their names are as before for the next function."""
        self.interest.add([function.module.path])
        self._rest()
        self._follow(lambda: self.import_module(function.module.path))
        module = self.modules[function.module.path]
        before = [(m.names, dict(m.names)) for m in self.modules.values()]
        self._rest()
        self._follow(lambda: self._call_alone(module, *self._found(module, function)))
        for names, kept in before:
            names.clear()
            names.update(kept)
        return self.finished(function.module, function)

    def _follow(self, run: Callable[[], object]) -> None:
        """Runs a program, or a part of one. An error in here ends this run and no other."""
        items = self.items
        try:
            with deep_recursion():
                run()
        except Exception:  # whatever a program makes this stumble over, the report is worth more
            self.missed("failure")
        self.items = items

    def _rest(self) -> None:
        """As before anything ran, but for the modules and what is known of objects."""
        self.items, self.tests, self.reached, self.blind, self.early = [], {}, set(), {}, []
        self.frame = Frame(Scope(), LocalModule(self.program.module(self.program.root)), None, ALL)
        self.guard, self.initialised = ALL, ALL
        self.site, self.branch, self.within = None, None, ()
        self.catchers, self.calls, self.calling, self.unused, self.ended = [], [], None, None, 0
        self.doubt, self.doubt_origin, self.doubts = None, None, 0
        self.pending = {}
        self.steps = self.budget

    def _found(self, module: LocalModule, function: Function) -> tuple[FunctionValue, Value | None]:
        """A function of a module, with the object to call it on."""
        parts = function.name.split(".")
        found = module.names.get(parts[0])
        if type(found) is ClassValue and len(parts) == 2:
            method = found.methods.get(parts[1])
            if method is not None:
                return method, self._object(module, found, method)
        if type(found) is FunctionValue and len(parts) == 1:
            return found, None
        value = FunctionValue(function.node, module, None)
        value.decorators = []
        return value, None

    def _object(self, module: LocalModule, cls: ClassValue, method: FunctionValue) -> Value:
        if method.name == "__init__":
            return Instance(cls.name, self.kind_of_class(cls), cls, str(module.module.path), cls.node.lineno)
        self.frame = Frame(Scope(), module, None, ALL)
        kept, self.items = self.items, []
        value = self.instantiate(cls, [], {}, cls.node)
        self.items, self.guard = kept, ALL
        return value

    def _call_alone(self, module: LocalModule, function: FunctionValue, receiver: Value | None) -> None:
        self.frame = Frame(Scope(), module, None, ALL)
        self.guard = ALL
        args = [receiver] if receiver is not None else []
        target = self.decorated(function)
        # A decorator may hand over to anything: the function's own body is what was asked for.
        bare = target if type(target) is FunctionValue and target.node is function.node else function
        scope = self.bind(bare, args, {})
        body = function.node.body
        if self.yields(function) and isinstance(body, list):
            self._in_frame(bare, scope, function.node, lambda: self.run_block(body), lambda _: None)
        else:
            self.run_function(bare, scope, function.node)

    def finished(self, entry: Module, alone: Function | None) -> Run:
        """The run, once it is over."""
        return Run(
            entry,
            alone,
            self.decisions,
            self.items,
            self.tests,
            self.reached,
            self.initialised != 0,
            self.blind,
            self.derivation,
            {key[1]: value for key, value in self.sidetable.items() if key[0] == "kept"},
            self.early,
        )


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room for programs whose calls go deep: following one call takes a dozen of Python's own."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 8000))
    try:
        with collector_at_rest():
            yield
    finally:
        sys.setrecursionlimit(limit)
