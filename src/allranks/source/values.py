"""Values as they are known without running anything: constants, one value per lane, objects, and the unknown.

An unknown value still says how it may differ between ranks (`Kind`) and where that began (`Origin`). Lists,
dicts and instances are shared and mutable, as in Python.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from .lanes import LANES, WORLDS, indices

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable

    from .program import Module


class Kind(IntEnum):
    """How a value differs between ranks; of two kinds that meet the greater one stays."""

    UNIFORM = 0
    """The same on all ranks."""
    UNKNOWN = 1
    """Not known."""
    GROUP = 2
    """The same within a process group."""
    NODE = 3
    """By local rank: the same processes on each node."""
    RANK = 4
    """By rank."""
    DATA = 5
    """By each rank's own data: batches, losses, time, random numbers, files, errors."""


class Origin(NamedTuple):
    """Where a value began to differ between ranks, and by what: "rank", "batch", "loss", "random", "time",
    "file", "error", "shard"."""

    path: str
    line: int
    cause: str


class Value:
    """Anything that an expression may stand for."""

    __slots__ = ()


class Absent(Value):
    """No value: a name not bound, a key not there."""

    __slots__ = ()


ABSENT = Absent()
OTHERS = "**"
"""The name under which what is given as `**` of something not known stands among keyword arguments."""


class Const(Value):
    """A Python constant: None, a bool, a number, a string, bytes."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Const({self.value!r})"


NONE, TRUE, FALSE = Const(None), Const(True), Const(False)


class Unknown(Value):
    """Some value. Two unknowns with one `key` are the same value; `label` is the last name it went by;
    `sources` are the wrapped models whose forward it came from."""

    __slots__ = ("key", "kind", "label", "origin", "sources")

    def __init__(
        self,
        key: int,
        kind: Kind = Kind.UNIFORM,
        origin: Origin | None = None,
        label: str = "",
        sources: frozenset[Instance] = frozenset(),
    ) -> None:
        self.key = key
        self.kind = kind
        self.origin = origin
        self.label = label
        self.sources = sources

    def __repr__(self) -> str:
        return f"Unknown({self.key}, {self.kind.name}, {self.label!r})"


class PerLane(Value):
    """One value for each lane."""

    __slots__ = ("items", "origin")

    def __init__(self, items: tuple[Value, ...], origin: Origin | None = None) -> None:
        self.items = items
        self.origin = origin

    def __repr__(self) -> str:
        return f"PerLane{self.items!r}"


class Either(Value):
    """`high` where the condition `symbol` holds, else `low`; symbols nest in rising order."""

    __slots__ = ("high", "low", "size", "symbol")

    def __init__(self, symbol: int, high: Value, low: Value) -> None:
        self.symbol = symbol
        self.high = high
        self.low = low
        self.size: int = getattr(high, "size", 1) + getattr(low, "size", 1)

    def __repr__(self) -> str:
        return f"Either({self.symbol}, {self.high!r}, {self.low!r})"


class Mixed(Value):
    """One of several values, which one is not known: the elements of a list, a name after a loop."""

    __slots__ = ("kind", "options", "origin")

    def __init__(self, options: tuple[Value, ...], kind: Kind, origin: Origin | None) -> None:
        self.options = options
        self.kind = kind
        self.origin = origin

    def __repr__(self) -> str:
        return f"Mixed{self.options!r}"


class External(Value):
    """A name of a foreign module: "torch.distributed.all_reduce"."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"External({self.name})"


class LocalModule(Value):
    """A module of the program, with its names."""

    __slots__ = ("module", "names", "started")

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names: dict[str, Value] = {}
        self.started = False


class FunctionValue(Value):
    """A function of the program with what it closes over; `decorators` are still to be applied, innermost
    last."""

    __slots__ = ("closure", "decorated", "decorators", "home", "name", "node", "owner", "role")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        home: LocalModule,
        closure: Scope | None,
        owner: ClassValue | None = None,
    ) -> None:
        self.node = node
        self.home = home
        self.closure = closure
        self.owner = owner
        self.name: str = getattr(node, "name", "<lambda>")
        self.decorators: list[ast.expr] = list(getattr(node, "decorator_list", ()))
        self.decorated: Value | None = None
        self.role = ""
        """"contextmanager", "property", "static", "class" once the decorators are applied."""

    def __repr__(self) -> str:
        return f"Function({self.name})"


class ClassValue(Value):
    """A class of the program."""

    __slots__ = ("bases", "closure", "fields", "home", "kind", "methods", "name", "node")

    def __init__(self, node: ast.ClassDef, home: LocalModule, closure: Scope | None) -> None:
        self.node = node
        self.home = home
        self.closure = closure
        self.name = node.name
        self.bases: list[Value] | None = None
        self.methods: dict[str, FunctionValue] = {}
        self.fields: dict[str, Value] = {}
        self.kind: str | None = None

    def __repr__(self) -> str:
        return f"Class({self.name})"


class Instance(Value):
    """An object: of a class of the program (`cls`), or of a library (`kind`, e.g. "ddp", "loader",
    "module")."""

    __slots__ = ("cls", "fields", "kind", "line", "name", "path", "vague")

    def __init__(self, name: str, kind: str, cls: ClassValue | None, path: str, line: int) -> None:
        self.name = name
        self.kind = kind
        self.cls = cls
        self.fields: dict[str, Value] = {}
        self.path = path
        self.line = line
        self.vague: Unknown | None = None
        """What a field is whose assignment was not followed."""

    def __repr__(self) -> str:
        return f"Instance({self.name})"


class Method(Value):
    """A bound method: of the program (`function`), or of a library's object or an unknown value."""

    __slots__ = ("function", "name", "receiver")

    def __init__(self, receiver: Value, name: str, function: FunctionValue | None = None) -> None:
        self.receiver = receiver
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"Method({self.receiver!r}.{self.name})"


class Super(Value):
    """super(): the attributes of `receiver` behind class `owner`."""

    __slots__ = ("owner", "receiver")

    def __init__(self, receiver: Instance, owner: ClassValue) -> None:
        self.receiver = receiver
        self.owner = owner


class Partial(Value):
    """functools.partial: a callee with its first arguments."""

    __slots__ = ("args", "callee", "keywords")

    def __init__(self, callee: Value, args: list[Value], keywords: dict[str, Value]) -> None:
        self.callee = callee
        self.args = args
        self.keywords = keywords


class Items(Value):
    """A list, tuple or set: `items` where each element is known, `rest` what any further element is like.
    `uneven` says how the number of elements differs between ranks, and where that began."""

    __slots__ = ("items", "rest", "type", "uneven")

    def __init__(self, type_: str, items: list[Value], rest: Value | None = None) -> None:
        self.type = type_
        self.items = items
        self.rest = rest
        self.uneven: tuple[Kind, Origin | None] | None = None

    def __repr__(self) -> str:
        return f"Items({self.type}, {self.items!r}, {self.rest!r})"


class Table(Value):
    """A dict: values by constant key, `rest` what any other value is like, `factory` makes missing ones. `uneven`
    says how the number of its keys differs between ranks, and where that began."""

    __slots__ = ("factory", "items", "rest", "sure", "uneven")

    def __init__(
        self, items: dict[Any, Value], rest: Value | None = None, factory: Value | None = None
    ) -> None:
        self.items = items
        self.rest = rest
        self.factory = factory
        self.uneven: tuple[Kind, Origin | None] | None = None
        self.sure: set[Any] = set(items)
        """Keys that were set for sure."""

    def __repr__(self) -> str:
        return f"Table({self.items!r}, {self.rest!r})"


class Walk(Value):
    """An iterator over `over`: how far it goes is as `over`; `like` says what is done on the way
    ("enumerate", "zip", "keys", ...)."""

    __slots__ = ("like", "over")

    def __init__(self, like: str, over: list[Value]) -> None:
        self.like = like
        self.over = over


class GeneratorValue(Value):
    """A generator of the program, not yet begun."""

    __slots__ = ("bound", "function")

    def __init__(self, function: FunctionValue, bound: Scope) -> None:
        self.function = function
        self.bound = bound


class Scope:
    """The names of one function while it runs; `outer` is where free names are looked up next."""

    __slots__ = ("declared_global", "names", "nonlocals", "outer")

    def __init__(self, outer: Scope | None = None) -> None:
        self.names: dict[str, Value] = {}
        self.outer = outer
        self.declared_global: set[str] = set()
        self.nonlocals: dict[str, Scope] = {}


def same(a: Value, b: Value) -> bool:
    """True when both are surely one value."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Const):
        assert isinstance(b, Const)
        return type(a.value) is type(b.value) and bool(a.value == b.value)
    if isinstance(a, Unknown):
        assert isinstance(b, Unknown)
        return a.key == b.key
    if isinstance(a, External):
        assert isinstance(b, External)
        return a.name == b.name
    if isinstance(a, PerLane):
        assert isinstance(b, PerLane)
        return all(same(x, y) for x, y in zip(a.items, b.items, strict=True))
    if isinstance(a, Either):
        assert isinstance(b, Either)
        return a.symbol == b.symbol and same(a.high, b.high) and same(a.low, b.low)
    if isinstance(a, Method):
        assert isinstance(b, Method)
        return a.name == b.name and same(a.receiver, b.receiver)
    if isinstance(a, Items) and a.type == "tuple":
        assert isinstance(b, Items)
        pairs = zip(a.items, b.items, strict=False)
        return len(a.items) == len(b.items) and a.rest is b.rest and all(same(x, y) for x, y in pairs)
    return False


def per_lane(pick: Callable[[Any], Any], origin: Origin | None) -> Value:
    """The value that is `pick(lane)` on each lane."""
    return merged([Const(pick(lane)) for lane in LANES], origin)


def merged(items: list[Value], origin: Origin | None) -> Value:
    """The items of all lanes as one value: themselves where they are all the same."""
    first = items[0]
    if all(same(first, item) for item in items[1:]):
        return first
    return PerLane(tuple(items), origin)


def lanes_kind(items: Iterable[Value], mask: int) -> Kind:
    """How one value per lane differs between the ranks of a world, looking at the lanes of `mask`."""
    values = list(items)
    differs = set()
    for world, lanes in enumerate(WORLDS):
        places = indices(mask & lanes)
        if all(same(values[places[0]], values[i]) for i in places[1:]):
            continue
        differs.add(world)
        by_local: dict[int, Value] = {}
        for i in places:
            if not same(by_local.setdefault(LANES[i].local_rank, values[i]), values[i]):
                return Kind.RANK
    # In a world of one node rank and local rank are one: only the world of two nodes can tell them apart.
    if not differs:
        return Kind.UNIFORM
    return Kind.NODE if 1 in differs else Kind.RANK
