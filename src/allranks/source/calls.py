"""Calls of what the program defines: functions, methods, classes, generators, decorated ones.

A call is followed when its callee matters: when its text, or that of something it calls, speaks of ranks, files
or training (`interest`), or when it is given something that communicates. Any other call gives an unknown that
differs between ranks as its arguments do.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from . import trace
from .decisions import Guard, options
from .iteration import EVEN, Turns
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
    LocalModule,
    Method,
    Mixed,
    Partial,
    PerLane,
    Scope,
    Super,
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
_MODELS = ("module", "lightning_module")
_BASES = (
    (re.compile(r"torch\.optim\.\w*(Optimizer|SGD|Adam\w*)$"), "optimizer"),
    (re.compile(r"(IterableDataset|IterDataPipe)$"), "iterable_dataset"),
    (re.compile(r"Dataset$|ImageFolder$|DatasetFolder$|MapDataPipe$"), "dataset"),
    (re.compile(r"torch\.utils\.data\.DistributedSampler$"), "distributed_sampler"),
    (re.compile(r"BatchSampler$"), "batch_sampler"),
    (re.compile(r"Sampler$"), "sampler"),
    (re.compile(r"DataLoader$"), "loader"),
    (re.compile(r"torch\.nn\.parallel\.DistributedDataParallel$"), "ddp"),
    (re.compile(r"torch\.distributed\.fsdp\.FullyShardedDataParallel$"), "fsdp"),
    (re.compile(r"torch\.autograd\.Function$|autograd\.function\.Function$"), "autograd_function"),
    (re.compile(r"[Ll]ightning.*\.Lightning(Data)?Module$"), "lightning_module"),
    (re.compile(r"torchmetrics.*Metric$"), "metric"),
    (re.compile(r"Module$|torch\.nn\.|PreTrainedModel$|torchvision\.models\."), "module"),
    (re.compile(r"argparse\.Namespace$"), "namespace"),
)


class Calls(Statements):
    """Calls values, and looks into objects."""

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
        if self.yields(function.node):
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
                if self.yields(function.node)
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
        of_model = function.owner is not None and self.kind_of_class(function.owner) in _MODELS
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

    def yields(self, node: ast.AST) -> bool:
        """True for a generator function."""
        known: dict[ast.AST, bool] = self.program.kept.setdefault("yields", {})
        if node not in known:
            known[node] = not isinstance(node, ast.Lambda) and _has_yield(node)
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

    # Classes

    def define_class(self, cls: ClassValue) -> None:
        """Fills a class with its methods and fields."""
        frame = self.frame
        scope = Scope(cls.closure)
        self.frame = Frame(scope, cls.home, frame.function, self.absolute, name=cls.name, doubts=self.doubts)
        cls.bases = [self.evaluate(base) for base in cls.node.bases if not isinstance(base, ast.Starred)]
        self.run_block(cls.node.body)
        self.frame = frame
        for name, value in scope.names.items():
            if type(value) is FunctionValue and value.node in cls.node.body:
                value.owner = cls
                value.closure = cls.closure
                cls.methods[name] = value
            else:
                cls.fields[name] = value

    def lineage(self, cls: ClassValue, seen: int = 0) -> Iterator[ClassValue | External]:
        """A class and its bases, in the order in which attributes are looked up."""
        yield cls
        for base in cls.bases or ():
            for option in options(base):
                if type(option) is ClassValue and seen < 8:
                    yield from self.lineage(option, seen + 1)
                elif type(option) is External:
                    yield option

    def method_of(self, cls: ClassValue, name: str, after: ClassValue | None = None) -> FunctionValue | None:
        """The method `name` of a class; with `after`, of the classes behind that one."""
        passed = after is None
        for base in self.lineage(cls):
            if passed and type(base) is ClassValue and name in base.methods:
                return base.methods[name]
            passed = passed or base is after
        return None

    def kind_of_class(self, cls: ClassValue) -> str:
        """The kind of library object that a class descends from; empty for none."""
        if cls.kind is None:
            cls.kind = ""
            for base in self.lineage(cls):
                if type(base) is External and not cls.kind:
                    cls.kind = next((kind for pattern, kind in _BASES if pattern.search(base.name)), "")
        return cls.kind

    def varying(self, cls: ClassValue) -> frozenset[str]:
        """The attributes that methods of a class other than `__init__` bind."""
        known: dict[ast.ClassDef, frozenset[str]] = self.program.kept.setdefault("varying", {})
        if cls.node not in known:
            names: set[str] = set()
            for method in cls.methods.values():
                if method.name != "__init__" and not isinstance(method.node, ast.Lambda):
                    lines = method.home.module.source.lines[method.node.lineno - 1 : method.node.end_lineno]
                    names.update(_BOUND.findall("\n".join(lines)))
            known[cls.node] = frozenset(names)
        return known[cls.node]

    def instantiate(
        self, cls: ClassValue, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """A new object of a class of the program."""
        kind = self.kind_of_class(cls)
        value = Instance(cls.name, kind, cls, str(self.frame.home.module.path), getattr(node, "lineno", 0))
        init = self.method_of(cls, "__init__")
        like = (*args, *keywords.values())
        if kind:
            named = dict(keywords) | {str(i): a for i, a in enumerate(args)}
            self.record(kind, cls.name, node, args=named, result=value)
        if init is None:
            self._fill_fields(value, cls, args, keywords)
        elif self._builds(cls, init, kind) or any(map(self.talks, like)):
            self.call_function(init, [value, *args], keywords, node)
        else:
            value.vague = self._vague(like)
        if init is None and kind:
            value.vague = self._vague(like)
        return value

    def _vague(self, like: tuple[Value, ...]) -> Unknown:
        """What a field may be that was made of these values somehow: hardly the rank itself."""
        found = self.fresh(like=like)
        if found.kind is not Kind.DATA:
            found.kind = min(found.kind, Kind.UNKNOWN)
        return found

    def _builds(self, cls: ClassValue, init: FunctionValue, kind: str) -> bool:
        """True when `__init__` is run: models are only looked into where they matter."""
        if kind in _MODELS:
            return self.class_communicates(cls)
        short = (
            (init.node.end_lineno or 0) - init.node.lineno < 80
            if not isinstance(init.node, ast.Lambda)
            else True
        )
        return short or self.class_matters(cls)

    def _fill_fields(
        self, value: Instance, cls: ClassValue, args: list[Value], keywords: dict[str, Value]
    ) -> None:
        """A dataclass or named tuple: fields in the order of their annotations."""
        names = [
            s.target.id
            for s in cls.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        for name, arg in zip(names, args, strict=False):
            value.fields[name] = arg
        value.fields.update({k: v for k, v in keywords.items() if k != OTHERS})
        if OTHERS in keywords:
            missing = [name for name in names if name not in value.fields]
            value.fields.update({name: self._among(keywords[OTHERS], name) for name in missing})

    # Attributes of objects

    def object_attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """The attribute of an object, class or container."""
        if type(value) is Instance:
            return self._instance_attribute(value, name, node)
        if type(value) is ClassValue:
            method = self.method_of(value, name)
            if method is not None:
                self.decorated(method)
                bare = method.decorated
                role = bare.role if type(bare) is FunctionValue else ""
                return Method(value, name, method) if role == "class" else method
            return self._class_field(value, name) or self.fresh(Kind.UNKNOWN, label=name)
        if type(value) is Table and name in value.items:
            return self.settle_shared(value.items[name])
        if type(value) is Super and value.receiver.cls is not None:
            method = self.method_of(value.receiver.cls, name, value.owner)
            return Method(value.receiver, name, method)
        return Method(value, name)

    def _class_field(self, cls: ClassValue, name: str) -> Value | None:
        for base in self.lineage(cls):
            if type(base) is ClassValue and name in base.fields:
                return self.settle_shared(base.fields[name])
        return None

    def _instance_attribute(self, value: Instance, name: str, node: ast.AST) -> Value:
        held = value.fields.get(name)
        if held is not None:
            return self.settle_shared(held)
        if value.cls is not None:
            method = self.method_of(value.cls, name)
            if method is not None:
                target = self.decorated(method)
                role = target.role if type(target) is FunctionValue else ""
                if role == "property":
                    return self.call_function(method, [value], {}, node)
                if role == "static":
                    return method
                return Method(value.cls if role == "class" else value, name, method)
            field = self._class_field(value.cls, name)
            if field is not None:
                return field
        return self.library_attribute(value, name, node)

    def library_attribute(self, value: Instance, name: str, node: ast.AST) -> Value:
        """The attribute of an object that its class does not define."""
        raise NotImplementedError

    # Objects as iterables

    def iterates(self, value: Instance) -> bool:
        """True for an object whose class of the program defines `__iter__`."""
        return (
            value.cls is not None
            and value.kind not in ("loader", "iterable_dataset", "dataset", "sampler", "batch_sampler")
            and self.method_of(value.cls, "__iter__") is not None
        )

    def loop_over_object(self, value: Instance, node: ast.AST, body: Callable[[Value], None]) -> None:
        """Runs `body` for what the object's `__iter__` gives."""
        assert value.cls is not None
        method = self.method_of(value.cls, "__iter__")
        assert method is not None
        found = self._forced(method, [value], node)
        if found is value or (type(found) is Instance and self.iterates(found)) or type(found) is Unknown:
            element = self.fresh(Kind.DATA, self.origin(node, "batch"), "batch")
            self.loop(value, node, body, (Kind.UNKNOWN, None), element)
        else:
            self.loop_over(found, node, body)

    def _forced(self, function: FunctionValue, args: list[Value], node: ast.AST) -> Value:
        """Calls a function whether it matters or not."""
        target = self.decorated(function)
        if type(target) is not FunctionValue or self.calls.count(target.node) >= 2:
            return self.fresh(Kind.UNKNOWN)
        scope = self.bind(target, args, {})
        return (
            GeneratorValue(target, scope)
            if self.yields(target.node)
            else self.run_function(target, scope, node)
        )

    def turns_of_object(self, value: Instance) -> Turns:
        """How the number of elements of a loader or dataset differs between ranks."""
        if value.kind == "loader":
            return self._turns_of_loader(value)
        if value.kind in ("iterable_dataset", "dataset", "sampler", "batch_sampler"):
            return self._turns_of_dataset(value)
        return EVEN if value.kind in ("distributed_sampler",) else (Kind.UNKNOWN, None)

    def _turns_of_loader(self, value: Instance) -> Turns:
        sampler = self.settle(value.fields.get("sampler", NONE))
        batch_sampler = self.settle(value.fields.get("batch_sampler", NONE))
        for given in (batch_sampler, sampler):
            leaves = [o for o in options(given) if o is not NONE]
            if leaves:
                found = [self.turns_of_object(o) if type(o) is Instance else self.turns(o) for o in leaves]
                return max(found, key=lambda t: t[0])
        return self.turns(self.settle(value.fields.get("dataset", NONE)))

    def _turns_of_dataset(self, value: Instance) -> Turns:
        indices = value.fields.get("indices") or value.fields.get("sampler")
        if indices is not None:
            return self.turns(self.settle(indices))
        if value.cls is None:
            parts = [self.turns(self.settle(v)) for v in value.fields.values() if type(v) is Unknown]
            return max(parts, key=lambda t: t[0], default=(Kind.UNKNOWN, None))
        iterate, length = self.method_of(value.cls, "__iter__"), self.method_of(value.cls, "__len__")
        with self.muted():
            if value.kind == "iterable_dataset" and iterate is not None:
                return self._turns_of_generator(value, iterate)
            if length is not None:
                found = self._forced(length, [value], length.node)
                origin = found.origin if type(found) is Unknown or type(found) is PerLane else None
                sharded = origin is not None and origin.cause == "shard"
                return (self.kind(found), origin) if sharded else (Kind.UNKNOWN, None)
        return (Kind.UNKNOWN, None)

    def _turns_of_generator(self, value: Instance, iterate: FunctionValue) -> Turns:
        found = self._forced(iterate, [value], iterate.node)
        if type(found) is not GeneratorValue:
            return self.turns(found)
        loops: list[Turns] = []
        outer = self.items

        def at_yield(_: Value) -> None:
            loops.extend(_open_loops(outer))

        self.run_generator(found, iterate.node, at_yield)
        return max(loops, key=lambda t: t[0], default=(Kind.UNKNOWN, None))

    def muted(self) -> _Muted:
        """A context in which nothing is recorded and no lane leaves."""
        return _Muted(self)

    def element_of_object(self, value: Instance, node: ast.AST) -> Value:
        """What a loader, dataset or other object gives."""
        if value.kind in (
            "loader",
            "dataset",
            "iterable_dataset",
            "sampler",
            "batch_sampler",
            "distributed_sampler",
        ):
            return self.fresh(Kind.DATA, self.origin(node, "batch"), "batch")
        if value.vague is not None:
            return self.fresh(like=(value.vague,))
        return self.fresh(Kind.UNKNOWN)

    # Modules

    def import_module(self, path: object) -> LocalModule:
        """The module at `path`, run if it was not yet."""
        module = self.program.module(path)  # type: ignore[arg-type]
        found = self.modules.get(module.path)
        if found is None:
            found = self.modules[module.path] = LocalModule(module)
            self.run_module(found)
        return found

    def run_module(self, value: LocalModule, name: str | None = None) -> None:
        """Runs the top level of a module, as `name` ("__main__" for a script)."""
        if value.started:
            return
        value.started = True
        tree = value.module.tree
        if tree is None:
            self.missed("syntax")
            return
        if name is not None:
            value.names["__name__"] = Const(name)
        outer = self.frame, self.guard, self.site, self.branch, self.catchers
        scope = Scope()
        scope.names = value.names
        self.frame, self.guard = Frame(scope, value, None, ALL, name="", doubts=self.doubts), ALL
        self.site, self.branch, self.catchers = None, None, []
        self.run_block(tree.body)
        self.frame, guard, self.site, self.branch, self.catchers = outer
        self.guard = guard


class _Muted:
    """Runs its body aside: the trace, the lanes and the tests stay as they were."""

    def __init__(self, machine: Calls) -> None:
        self.machine = machine

    def __enter__(self) -> None:
        machine = self.machine
        self.kept: tuple[list[trace.Item], Guard, dict[object, list[trace.Test]]] = (
            machine.items, machine.guard, {},
        )  # fmt: skip
        machine.items = []

    def __exit__(self, *error: object) -> None:
        self.machine.items, self.machine.guard = self.kept[0], self.kept[1]


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


def _open_loops(items: list[trace.Item]) -> list[Turns]:
    """The turns of the loops that are being recorded: each the last item of the one around it."""
    found: list[Turns] = []
    while items and isinstance(items[-1], trace.Loop):
        found.append((items[-1].turns, items[-1].origin))
        items = items[-1].items
    return found


def _has_yield(node: ast.AST) -> bool:
    todo: list[ast.AST] = list(getattr(node, "body", []))
    while todo:
        child = todo.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(child)
    return False


_BOUND = re.compile(r"\bself\.(\w+)\s*(?:[-+*/|&]|//|\*\*)?=(?!=)")
