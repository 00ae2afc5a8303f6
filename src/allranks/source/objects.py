"""Objects and classes of the program: made, their attributes, what loops over them get, and in how many turns."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from . import trace
from .calls import MODELS, Calls
from .decisions import options
from .iteration import EVEN, Turns
from .state import Frame
from .values import (
    NONE,
    OTHERS,
    ClassValue,
    External,
    FunctionValue,
    GeneratorValue,
    Instance,
    Kind,
    Method,
    PerLane,
    Scope,
    Super,
    Table,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_BOUND = re.compile(r"\bself\.(\w+)\s*(?:[-+*/|&]|//|\*\*)?=(?!=)")
"""An attribute that a method binds."""


class Objects(Calls):
    """Looks into objects."""

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
        if kind in MODELS:
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
            field = self._class_field(value, name)
            if field is None and node is self.calling:
                return Method(value, name)
            return field or self.fresh(Kind.UNKNOWN, label=name)
        if type(value) is Table and name in value.items:
            return self.settle_shared(value.items[name])
        if type(value) is Super and value.receiver.cls is not None:
            method = self.method_of(value.receiver.cls, name, value.owner)
            return Method(value.receiver, name, method)
        return Method(value, name) if type(value) is not Method else self.fresh(like=(value,))

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
            GeneratorValue(target, scope) if self.yields(target) else self.run_function(target, scope, node)
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
        own = value.cls is not None and self.method_of(value.cls, "__len__") is not None
        if indices is not None and not own:
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


def _open_loops(items: list[trace.Item]) -> list[Turns]:
    """The turns of the loops that are being recorded: each the last item of the one around it."""
    found: list[Turns] = []
    while items and isinstance(items[-1], trace.Loop):
        found.append((items[-1].turns, items[-1].origin))
        items = items[-1].items
    return found
