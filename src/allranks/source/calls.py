"""Calls of what the program defines: functions, methods, classes, generators, decorated ones.

A call is followed when its callee matters: when its text, or that of something it calls, speaks of ranks, files
or training (`interest`), or when it is given something that communicates. Any other call gives an unknown that
differs between ranks as its arguments do.
"""

from __future__ import annotations

import ast
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import syntax, trace
from .decisions import options
from .lanes import ALL
from .state import Frame, parts_of
from .statements import Statements
from .values import (
    NONE,
    OTHERS,
    ClassValue,
    Const,
    Either,
    External,
    FunctionValue,
    GeneratorValue,
    Instance,
    Items,
    Kind,
    Method,
    Mixed,
    Partial,
    PerLane,
    Scope,
    Table,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEEPEST = 16
_TALKING = frozenset(
    ("ddp", "fsdp", "ds_engine", "accelerator", "fabric", "metric", "lightning_trainer", "optimizer")
)
"""Kinds of objects that may communicate, wherever they are passed."""
MODELS = ("module", "lightning_module")
"""Kinds of objects that are models."""


class Calls(Statements):
    """Calls values."""

    def call(self, callee: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """The result of calling a value on the active lanes."""
        kind = type(callee)
        if kind is FunctionValue:
            assert isinstance(callee, FunctionValue)
            return self.call_function(callee, args, keywords, node)
        if kind is External:
            assert isinstance(callee, External)
            return self.call_external(callee.name, args, keywords, node)
        if kind is Method:
            assert isinstance(callee, Method)
            if callee.function is not None:
                self._used(callee.receiver, callee.function, node)
                return self.call_function(callee.function, [callee.receiver, *args], keywords, node)
            return self.call_method(callee.receiver, callee.name, args, keywords, node)
        if isinstance(callee, Mixed):
            able = tuple(o for o in callee.options if _takes(o, len(args), keywords))
            callee = Mixed(able, callee.kind, callee.origin)
        if kind in (Either, PerLane, Mixed):
            return self.map_lanes(callee, lambda part: self.call(part, args, keywords, node))
        if kind is ClassValue:
            assert isinstance(callee, ClassValue)
            return self.instantiate(callee, args, keywords, node)
        if kind is Instance:
            assert isinstance(callee, Instance)
            return self.call_instance(callee, args, keywords, node)
        if kind is Partial:
            assert isinstance(callee, Partial)
            return self.call(callee.callee, [*callee.args, *args], {**callee.keywords, **keywords}, node)
        if kind is Unknown:
            assert isinstance(callee, Unknown)
            return self.call_unknown(callee, args, keywords, node)
        return self.fresh(Kind.UNKNOWN)

    def _used(self, receiver: Value, function: FunctionValue, node: ast.AST) -> None:
        """Records that a method of a model is called from outside of its class."""
        caller = self.frame.function
        outside = caller is None or caller.owner is None
        if type(receiver) is not Instance or receiver.kind != "module" or function.owner is None:
            return
        if outside or (caller is not None and caller.owner is not receiver.cls):
            self.record("model_call", function.name, node, receiver=receiver)

    def call_external(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Calls a foreign function or class."""
        raise NotImplementedError

    def call_method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls a method that the program does not define."""
        raise NotImplementedError

    def call_instance(
        self, value: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls an object."""
        raise NotImplementedError

    def call_unknown(
        self, callee: Unknown, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls something that was not resolved: what it does with what it is given is not known."""
        if ("wrapped", callee.key) in self.sidetable:
            self.record("forward", callee.label, node, receiver=callee)
        talking = any(self.talks(a) for a in (*args, *keywords.values()))
        if talking:
            self.missed("call")
        like = (callee, *args, *keywords.values())
        found = self.fresh(like=like)
        if found.kind is Kind.DATA and callee.kind is not Kind.DATA:
            found.kind = Kind.UNKNOWN
        return found

    # Functions

    def call_function(
        self, function: FunctionValue, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls a function of the program, its decorators applied."""
        target = self.decorated(function)
        if target is not function:
            if type(target) is not FunctionValue:
                return self.call(target, args, keywords, node)
            function = target
        if function.role.endswith("_zero"):
            return self._on_one_lane(function, args, keywords, node)
        if not self._followed(function, args, keywords):
            result = self.fresh(like=(*args, *keywords.values()))
            self.passed_over[result.key] = (function, args, keywords, node)
            return result
        scope = self.bind(function, args, keywords)
        if self.yields(function):
            return GeneratorValue(function, scope)
        return self.run_function(function, scope, node)

    def force(self, value: Value) -> Value:
        """`value`, the call that gives it followed after all if it was passed over."""
        held = self.passed_over.get(value.key) if type(value) is Unknown else None
        if held is None:
            return value
        if len(held) == 2:
            whole = self.force(self._by_key(held[0]))
            return (
                self.settle(whole.items[held[1]])
                if type(whole) is Items and held[1] < len(whole.items)
                else value
            )
        function, args, keywords, node = held
        assert type(value) is Unknown
        del self.passed_over[value.key]
        if self.steps <= 0 or len(self.calls) >= _DEEPEST or self.calls.count(function.node) >= 2:
            return value
        with self.muted():
            scope = self.bind(function, args, keywords)
            found = (
                GeneratorValue(function, scope)
                if self.yields(function)
                else self.run_function(function, scope, node)
            )
        self.replaced[value.key] = found
        return found

    def _by_key(self, key: int) -> Value:
        changed = self.replaced.get(key)
        return changed if changed is not None else Unknown(key)

    def _on_one_lane(
        self, function: FunctionValue, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """A function that a known decorator runs on rank 0 only."""
        mask = self.role_mask(function.role)
        inner = FunctionValue(function.node, function.home, function.closure, function.owner)
        inner.decorators = []
        entry, branch = self.guard, self.branch
        lanes = self.decisions.both(entry, mask)
        if lanes == 0:
            return NONE
        self.branch = trace.Branch(self.here(node), entry, lanes, branch)
        with self.under(lanes):
            found = self.call_function(inner, args, keywords, node)
        self.branch = branch
        return self.decisions.select(mask, found, NONE)

    def role_mask(self, role: str) -> int:
        """The lanes on which a function of such a role runs."""
        raise NotImplementedError

    def decorated(self, function: FunctionValue) -> Value:
        """What a function's name stands for once its decorators are applied."""
        if not function.decorators:
            return function
        if function.decorated is None:
            function.decorated = function  # a decorator that calls what it decorates
            bare = FunctionValue(function.node, function.home, function.closure, function.owner)
            bare.decorators = []
            result: Value = bare
            frame = self.frame
            self.frame = Frame(Scope(function.closure), function.home, None, self.absolute)
            for decorator in reversed(function.decorators):
                applied = self._apply(self.evaluate(decorator), result, decorator)
                result = applied if type(applied) in (FunctionValue, Partial, Method, Instance) else result
            self.frame = frame
            function.decorated = result
        return function.decorated

    def _apply(self, decorator: Value, function: Value, node: ast.AST) -> Value:
        if type(decorator) is FunctionValue:
            return self._deeply(lambda: self.call_function(decorator, [function], {}, node))
        if type(decorator) in (External, Partial, ClassValue, Method):
            return self.call(decorator, [function], {}, node)
        if type(decorator) is Instance and decorator.kind in ("no_grad", "autocast"):
            return function
        return function

    def _deeply(self, run: Callable[[], Value]) -> Value:
        """Runs a decorator outside of what is recorded: it is applied once, wherever it is first seen."""
        items, self.items = self.items, []
        guard, self.guard = self.guard, ALL
        try:
            return run()
        finally:
            self.items, self.guard = items, guard

    def _followed(self, function: FunctionValue, args: list[Value], keywords: dict[str, Value]) -> bool:
        """True when a call is run, False when only its arguments tell how its result differs."""
        if len(self.calls) >= _DEEPEST or self.steps <= 0:
            self.missed("depth" if self.steps > 0 else "budget")
            return False
        if self.calls.count(function.node) >= 2:
            return False
        of_model = function.owner is not None and self.kind_of_class(function.owner) in MODELS
        if isinstance(function.node, ast.Lambda) or (self.communicates if of_model else self.matters)(
            function
        ):
            return True
        if function.closure is not None and any(
            type(v) is FunctionValue and self.matters(v) for v in function.closure.names.values()
        ):
            return True
        given = (*args, *keywords.values())
        # What is done with a model or a loader is training, whatever the words.
        return any(self.talks(v) or (type(v) is Instance and v.kind in ("loader", "module")) for v in given)

    def kind_of_class(self, cls: ClassValue) -> str:
        """The kind of library object that a class descends from; empty for none."""
        raise NotImplementedError

    def instantiate(
        self, cls: ClassValue, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """A new object of a class of the program."""
        raise NotImplementedError

    def matters(self, function: FunctionValue) -> bool:
        """True when a function's text, or that of what it calls, speaks of ranks, files or training."""
        raise NotImplementedError

    def talks(self, value: Value, depth: int = 0, strict: bool = False) -> bool:
        """True for what may communicate when it is used: wrapped models, functions that matter, their holders;
        with `strict` only functions and classes that may communicate count, not those that tell something."""
        if type(value) is Instance:
            if value.kind in _TALKING or "sync_bn" in value.fields:
                return True
            if value.cls is not None and (self.class_communicates if strict else self.class_matters)(
                value.cls
            ):
                return True
            held = list(value.fields.values())[:24]
            return depth < 2 and any(self.talks(v, depth + 1, strict) for v in held)
        if type(value) is FunctionValue:
            return self.communicates(value) if strict else self.matters(value)
        if type(value) is Method:
            return self.talks(value.receiver if value.function is None else value.function, depth, strict)
        if type(value) is Partial:
            return self.talks(value.callee, depth, strict) or any(
                self.talks(a, depth, strict) for a in value.args
            )
        if type(value) in (Items, Table):
            return depth < 2 and any(self.talks(v, depth + 1, strict) for v in parts_of(value)[:8])
        if type(value) is Either or type(value) is Mixed or type(value) is PerLane:
            return any(self.talks(v, depth, strict) for v in options(value))
        return False

    def class_matters(self, cls: ClassValue) -> bool:
        """True when a method of a class matters."""
        raise NotImplementedError

    def class_communicates(self, cls: ClassValue) -> bool:
        """True when a method of a class may communicate."""
        raise NotImplementedError

    def yields(self, function: FunctionValue) -> bool:
        """True for a generator function."""
        known: dict[ast.AST, bool] = self.program.kept.setdefault("yields", {})
        node = function.node
        if node not in known:
            # Most functions do not even have the word in them.
            lines = function.home.module.source.lines[node.lineno - 1 : node.end_lineno]
            spoken = not isinstance(node, ast.Lambda) and any("yield" in line for line in lines)
            known[node] = spoken and _has_yield(node)
        return known[node]

    def bind(self, function: FunctionValue, args: list[Value], keywords: dict[str, Value]) -> Scope:
        """The scope in which a function runs: its parameters bound."""
        scope = Scope(function.closure)
        spec = function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        names = scope.names
        for parameter, value in zip(positional, args, strict=False):
            names[parameter.arg] = value
        if spec.vararg is not None:
            names[spec.vararg.arg] = Items("tuple", args[len(positional) :])
        known = {p.arg for p in (*positional, *spec.kwonlyargs)}
        others = keywords.get(OTHERS)
        extra = {k: v for k, v in keywords.items() if k not in known and k != OTHERS}
        for name, value in keywords.items():
            if name in known:
                names[name] = value
        if spec.kwarg is not None:
            names[spec.kwarg.arg] = Table(dict(extra), others)
        defaults = dict(zip([p.arg for p in positional[::-1]], spec.defaults[::-1], strict=False))
        defaults.update(
            {p.arg: d for p, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        )
        missing = [p.arg for p in (*positional, *spec.kwonlyargs) if p.arg not in names]
        if missing:
            # hydra.main and the like read them from the command line and files, alike on all ranks.
            configured = not args and not keywords and bool(getattr(function.node, "decorator_list", ()))
            frame = self.frame
            self.frame = Frame(Scope(function.closure), function.home, None, self.absolute)
            for name in missing:
                default = defaults.get(name)
                if default is not None and others is not None:
                    names[name] = self._among(others, name)
                elif default is not None:
                    names[name] = self.evaluate(default)
                else:
                    names[name] = self.fresh(Kind.UNIFORM if configured else Kind.UNKNOWN, label=name)
            self.frame = frame
        for name, value in names.items():
            if type(value) is Unknown and not value.label:
                value.label = name
        return scope

    def _among(self, others: Value, name: str) -> Unknown:
        """The argument `name` where what is given as `**others` is not known: the default or any other."""
        return self.derived(("item", self.key_of(others), self.key_of(Const(name))), (others,), label=name)

    def run_function(self, function: FunctionValue, scope: Scope, node: ast.AST) -> Value:
        """Runs the body of a function; the value that it returns."""
        body = function.node.body
        if isinstance(body, ast.expr):
            return self._in_frame(function, scope, node, lambda: self._lambda_body(body))
        return self._in_frame(function, scope, node, lambda: self.run_block(body))

    def _lambda_body(self, body: ast.expr) -> None:
        self.frame.result = self.evaluate(body)
        self.frame.returned, self.guard = self.guard, 0

    def _in_frame(
        self, function: FunctionValue, scope: Scope, node: ast.AST, run: Callable[[], None],
        on_yield: Callable[[Value], None] | None = None,
    ) -> Value:  # fmt: skip
        outer, outer_site, branch, entry = self.frame, self.site, self.branch, self.guard
        self.site = self.here(node)
        owner = f"{function.owner.name}." if function.owner is not None else ""
        frame = Frame(scope, function.home, function, self.absolute, name=owner + function.name)
        frame.rough = self._is_rough(function, scope)
        frame.unused = node is self.unused
        frame.doubts = self.doubts
        doubt, self.doubt = self.doubt, self.doubt if frame.rough else None
        self.frame, self.guard = frame, ALL
        if on_yield is not None:
            inner_site = self.site

            def at_yield(value: Value) -> None:
                # What stands at the yield belongs to the caller.
                here = self.guard
                inside = self.guard = self.decisions.both(entry, here)
                self.frame, self.site = outer, outer_site
                on_yield(value)
                left = self.decisions.minus(inside, self.guard)
                self.frame, self.site = frame, inner_site
                self.guard = self.decisions.minus(here, left)

            frame.on_yield = at_yield
        self.calls.append(function.node)
        self.reached.add(function.node)
        try:
            run()
            if type(frame.returned) is int and frame.returned & ALL not in (0, ALL) and self.guard != 0:
                # The other lanes came to the end.
                frame.result = self.decisions.select(frame.returned, frame.result, NONE)
        finally:
            self.calls.pop()
            self.frame, self.site, self.branch, self.doubt = outer, outer_site, branch, doubt
            self.guard = self.decisions.both(entry, self.decisions.either(self.guard, frame.returned))
        if frame.maybe and frame.returned == 0:
            return self._one_of([*frame.maybe, NONE])
        return frame.result

    def _is_rough(self, function: FunctionValue, scope: Scope) -> bool:
        """True for a function in which unknown conditions need not be told apart: it does not communicate, and is
        given nothing that does."""
        if self.communicates(function):
            return False
        if isinstance(function.node, ast.Lambda) or self.frame.rough:
            return self.frame.rough
        return not any(self.talks(v, 0, strict=True) for v in scope.names.values())

    def run_generator(self, generator: GeneratorValue, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs a generator, `body` at each of its yields."""
        function = generator.function
        if (
            isinstance(function.node, ast.Lambda)
            or self.calls.count(function.node) >= 2
            or len(self.calls) >= _DEEPEST
        ):
            self.missed("depth")
            body(self.fresh(Kind.UNKNOWN))
            return
        # A generator may be gone through more than once: each time from its beginning.
        scope = Scope(generator.bound.outer)
        scope.names = dict(generator.bound.names)
        statements = function.node.body
        self._in_frame(function, scope, node, lambda: self.run_block(statements), body)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Runs its body aside: the trace and the lanes stay as they were."""
        items, guard = self.items, self.guard
        self.items = []
        try:
            yield
        finally:
            self.items, self.guard = items, guard


def _takes(value: Value, given: int, keywords: dict[str, Value]) -> bool:
    """False for a function that cannot be called with such arguments."""
    if type(value) is not FunctionValue:
        return True
    spec = value.node.args
    positional = [*spec.posonlyargs, *spec.args]
    needed = [p.arg for p in positional[given : len(positional) - len(spec.defaults)]]
    named = {p.arg for p in (*positional, *spec.kwonlyargs)}
    unknown = keywords and spec.kwarg is None and not keywords.keys() - {OTHERS} <= named
    return not unknown and (OTHERS in keywords or all(name in keywords for name in needed))


def _has_yield(node: ast.AST) -> bool:
    todo: list[ast.AST] = list(getattr(node, "body", []))
    while todo:
        child = todo.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += syntax.children(child)
    return False
