"""The state of an execution: active lanes, frames, heap, what is recorded. The ground of the machine's layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from . import trace
from .decisions import Decisions, Guard, kind_of, origin_of
from .lanes import ALL
from .values import (
    NONE,
    Absent,
    Const,
    Either,
    FunctionValue,
    Instance,
    Items,
    Kind,
    LocalModule,
    Mixed,
    Origin,
    PerLane,
    Scope,
    Table,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .program import Program

_DEPTH, _BREADTH = 4, 12
"""How far into containers one looks."""


@dataclass(slots=True, eq=False)
class LoopState:
    """The lanes that a break or a continue took out of the body being run."""

    broke: Guard = 0
    continued: Guard = 0


@dataclass(slots=True, eq=False)
class Frame:
    """A running function or module: `base` are the lanes that entered it. Inside, guards are relative to it."""

    scope: Scope
    home: LocalModule
    function: FunctionValue | None
    base: Guard
    returned: Guard = 0
    result: Value = NONE
    loops: list[LoopState] = field(default_factory=list)
    on_yield: Callable[[Value], None] | None = None
    yielded: list[Value] = field(default_factory=list)
    name: str = ""
    rough: bool = False
    """True for code that does not communicate: unknown conditions in it are not told apart."""
    maybe: list[Value] = field(default_factory=list)
    """What it may have returned under such conditions."""
    unused: bool = False
    """True when nobody looks at what it returns."""
    left: Kind | None = None
    """How such conditions differ between ranks under which it, or what called it, may have been left."""
    doubts: int = 0
    """How many such conditions stood around the call."""


@dataclass(slots=True, eq=False)
class Catcher:
    """A try statement whose body runs: the lanes that an explicit raise brought to it."""

    types: tuple[str, ...]
    raised: Guard = 0


class State:
    """What the layers above share. Each layer adds what it evaluates; the names declared at the end of this class
    are theirs."""

    def __init__(self, program: Program, budget: int) -> None:
        self.program = program
        self.decisions = Decisions()
        self.guard: Guard = ALL
        self.items: list[trace.Item] = []
        self.frame = Frame(Scope(), LocalModule(program.module(program.root)), None, ALL)
        self.site: trace.Site | None = None
        self.branch: trace.Branch | None = None
        self.within: tuple[str, ...] = ()
        self.modules: dict[Path, LocalModule] = {}
        self.replaced: dict[int, Value] = {}
        self.sidetable: dict[tuple[Any, ...], Value] = {}
        self.tests: dict[tuple[Path, int], list[trace.Test]] = {}
        self.catchers: list[Catcher] = []
        self.calls: list[ast.AST] = []
        self.calling: ast.AST | None = None
        self.unused: ast.AST | None = None
        self.ended: Guard = 0
        self.steps = budget
        self.doubt: Kind | None = None
        self.doubt_origin: Origin | None = None
        self.doubts = 0
        """How many unknown conditions stand around, those around callers too."""
        self.keys_set: dict[tuple[int, Any], Table] = {}
        self.blind: dict[str, int] = {}
        self.cut: set[int] = set()
        self.pending: dict[int, tuple[trace.Event, Instance]] = {}
        self.early: list[trace.Early] = []
        self.passed_over: dict[int, tuple[Any, ...]] = {}
        self.initialised: Guard = 0
        self.seeded: dict[str, Kind] = {}
        self.expects_group = False
        self.launch = "torchrun"
        self.reached: set[ast.AST] = set()
        self._fresh = count(1)
        self._keys: dict[tuple[Any, ...], int] = {}
        self.derivation: dict[int, tuple[Any, ...]] = {}

    # Places

    def here(self, node: ast.AST) -> trace.Site:
        """The place of `node` in what runs now."""
        return trace.Site(self.frame.home.module.path, node, self.frame.name, self.site)

    def origin(self, node: ast.AST, cause: str) -> Origin:
        """`node` as the place where a value begins to differ."""
        return Origin(str(self.frame.home.module.path), getattr(node, "lineno", 1), cause)

    def missed(self, what: str) -> None:
        """Counts something that could not be followed."""
        self.blind[what] = self.blind.get(what, 0) + 1

    # Unknowns

    def fresh(
        self,
        kind: Kind = Kind.UNIFORM,
        origin: Origin | None = None,
        label: str = "",
        like: tuple[Value, ...] = (),
    ) -> Unknown:
        """An unknown like no other; `like` adds how those values differ and where they came from."""
        return self._like(next(self._fresh), kind, origin, label, like)

    def derived(
        self, key: tuple[Any, ...], like: tuple[Value, ...], kind: Kind = Kind.UNIFORM, label: str = "",
        origin: Origin | None = None,
    ) -> Unknown:  # fmt: skip
        """The unknown that `key` stands for: the same one each time it is asked for."""
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = next(self._fresh)
            self.derivation[number] = key
        return self._like(number, kind, origin, label, like)

    def _like(
        self, key: int, kind: Kind, origin: Origin | None, label: str, like: tuple[Value, ...]
    ) -> Unknown:
        sources: frozenset[Instance] = frozenset()
        for value in like:
            if type(value) is Const:
                continue  # the same everywhere, and nobody's
            other = self.kind(value)
            if other > kind:
                kind, origin = other, origin_of(value, self.decisions)
            elif origin is None:
                origin = origin_of(value, self.decisions)
            for found in _sources(value):
                sources = sources | found if sources else found
        return Unknown(key, kind, origin, label, sources)

    def kind(self, value: Value, depth: int = 0) -> Kind:
        """How a value differs between the active ranks; of a container, how anything in it does."""
        if type(value) is Const:
            return Kind.UNIFORM
        if type(value) is Unknown:
            return value.kind
        kind = kind_of(value, self.guard if type(self.guard) is int else ALL, self.decisions)
        if depth < _DEPTH:
            for part in parts_of(value)[:_BREADTH]:
                kind = max(kind, self.kind(part, depth + 1))
        return kind

    def key_of(self, value: Value) -> Any:
        """What tells a value from others, for the keys of derived unknowns."""
        if type(value) is Const:
            return ("c", type(value.value).__name__, value.value)
        if type(value) is Unknown:
            return value.key
        if type(value) is Either:
            return ("e", value.symbol, self.key_of(value.high), self.key_of(value.low))
        if type(value) is PerLane:
            return ("l", *map(self.key_of, value.items))
        if type(value) is Items and value.type == "tuple":
            return ("t", *map(self.key_of, value.items))
        return ("o", self._kept(value))

    def _kept(self, value: Value) -> int:
        # An id is only a key while its object lives.
        self.sidetable["kept", id(value)] = value
        return id(value)

    @property
    def absolute(self) -> Guard:
        """The active lanes: of those that entered the function, those that are still here."""
        if self.guard == ALL:
            return self.frame.base
        return self.decisions.both(self.frame.base, self.guard)

    def settle(self, value: Value) -> Value:
        """`value` as the active lanes see it now, after what was changed in place."""
        if type(value) is Unknown:
            changed = self.replaced.get(value.key)
            if changed is None:
                return value
            # What took its place may have been changed in turn.
            seen = self.decisions.restrict(changed, self.absolute)
            return self.settle(seen) if type(seen) is Unknown and seen.key != value.key else seen
        if type(value) is Either or type(value) is PerLane:
            seen = self.decisions.restrict(value, self.guard)
            return self.settle(seen) if type(seen) is Unknown else seen
        return value

    def settle_shared(self, value: Value) -> Value:
        """The same of what lives outside of the function that runs."""
        if type(value) is Either or type(value) is PerLane:
            return self.settle(self.decisions.restrict(value, self.absolute))
        return self.settle(value) if type(value) is Unknown else value

    def change(self, value: Value, kind: Kind, origin: Origin | None = None) -> None:
        """Makes `value`, and what it holds, differ between ranks as `kind` says from now on (in place)."""
        self._change(value, kind, origin, (), {})

    def _change(
        self, value: Value, kind: Kind, origin: Origin | None, at: tuple[Any, ...], made: dict[Any, Unknown]
    ) -> None:
        """The same of a part: what ends up in one place is the same value, wherever the lanes keep it."""
        if type(value) is Unknown:
            held = self.replaced.get(value.key, value)
            new = self._new(at, kind, origin, made, value)
            self.replaced[value.key] = self.decisions.replace(self.absolute, new, held)
        elif type(value) is Either:
            self._change(value.high, kind, origin, at, made)
            self._change(value.low, kind, origin, at, made)
        elif isinstance(value, PerLane | Mixed):
            for part in value.items if isinstance(value, PerLane) else value.options:
                self._change(part, kind, origin, at, made)
        elif len(at) < _DEPTH and type(value) is Items:
            for i, part in enumerate(value.items):
                self._change(part, kind, origin, (*at, i), made)
                value.items[i] = self._filled(part, (*at, i), kind, origin, made)
            if value.rest is not None:
                self._change(value.rest, kind, origin, (*at, "rest"), made)
                value.rest = self._filled(value.rest, (*at, "rest"), kind, origin, made)
        elif len(at) < _DEPTH and type(value) is Table:
            for name, part in value.items.items():
                self._change(part, kind, origin, (*at, name), made)
                value.items[name] = self._filled(part, (*at, name), kind, origin, made)

    def _new(
        self,
        at: tuple[Any, ...],
        kind: Kind,
        origin: Origin | None,
        made: dict[Any, Unknown],
        old: Unknown | None,
    ) -> Unknown:
        found = made.get(at) if kind <= Kind.UNKNOWN else None
        if found is None:
            label, sources = (old.label, old.sources) if old is not None else ("", frozenset())
            found = made[at] = Unknown(next(self._fresh), kind, origin, label, sources)
        return found

    def _filled(
        self, value: Value, at: tuple[Any, ...], kind: Kind, origin: Origin | None, made: dict[Any, Unknown]
    ) -> Value:
        """An element of a container that a collective filled."""
        if type(value) in (Instance, Unknown, Absent):
            return value
        return self.decisions.replace(self.absolute, self._new(at, kind, origin, made, None), value)

    @property
    def unsure(self) -> bool:
        """True under an unknown condition of the function that runs itself."""
        return self.doubts > self.frame.doubts

    # Records

    def record(self, kind: str, name: str, node: ast.AST, **more: Any) -> trace.Event:
        """Adds an event at `node` to the trace."""
        event = trace.Event(
            kind, name, self.absolute, self.here(node), self.branch, within=self.within, **more
        )
        event.doubt = worse(self.doubt, self.frame.left)
        self.items.append(event)
        return event

    def uses(self, value: Value, node: ast.AST) -> None:
        """Notes that `value` is read by an operation: too early for the tensor of a collective that still runs."""
        if self.pending and type(value) is Unknown:
            held = self.pending.pop(value.key, None)
            if held is not None:
                self.early.append(trace.Early(held[0], self.here(node)))

    def leave(self, how: str, node: ast.AST) -> None:
        """Records that the active lanes leave at `node`; what follows runs without them."""
        self.items.append(trace.Exit(how, self.absolute, self.here(node), self.branch))
        if self.doubt is None or (how in ("break", "continue") and not self.unsure):
            self.guard = 0
        else:
            self.frame.left = worse(self.frame.left, self.doubt)

    # Declared here, defined in the layers above.

    def communicates(self, function: FunctionValue) -> bool:
        """True when a function may communicate or leave, itself or through what it calls."""
        raise NotImplementedError

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression."""
        raise NotImplementedError

    def call(self, callee: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Calls a value."""
        raise NotImplementedError

    def run_block(self, body: list[ast.stmt]) -> None:
        """Runs statements until no lane is left."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value) -> None:
        """Binds a target of an assignment."""
        raise NotImplementedError

    def loop_over(self, iterable: Value, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs `body` for the elements of `iterable`."""
        raise NotImplementedError

    def import_module(self, path: Path) -> LocalModule:
        """The module at `path`, run if it was not yet."""
        raise NotImplementedError

    def define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> FunctionValue:
        """The function that a def or lambda makes here."""
        home = self.frame.home
        closure = None if self.frame.scope.names is home.names else self.frame.scope
        return FunctionValue(node, home, closure)


def parts_of(value: Value) -> list[Value]:
    """What a container holds."""
    if type(value) is Items:
        return [*value.items, value.rest] if value.rest is not None else value.items
    if type(value) is Table:
        return [*value.items.values(), *([value.rest] if value.rest is not None else [])]
    return []


def worse(one: Kind | None, other: Kind | None) -> Kind | None:
    """The greater of two kinds, where there are any."""
    return max((k for k in (one, other) if k is not None), default=None)


def _sources(value: Value, depth: int = 0) -> Iterator[frozenset[Instance]]:
    if type(value) is Unknown:
        if value.sources:
            yield value.sources
    elif depth < _DEPTH and type(value) is not Const:
        if type(value) is Either:
            found: list[Value] = [value.high, value.low]
        elif type(value) is PerLane:
            found = list(value.items)
        elif type(value) is Mixed:
            found = list(value.options)
        else:
            found = parts_of(value)
        for part in found[:_BREADTH]:
            yield from _sources(part, depth + 1)
