"""The standard library: environment, arguments, functions about functions, questions, randomness."""

from __future__ import annotations

import ast
import builtins
import operator
import re
from dataclasses import dataclass, replace

from . import lore, trace
from .contexts import Contexts
from .lanes import ALL
from .values import (
    FALSE,
    NONE,
    TRUE,
    ClassValue,
    Const,
    Either,
    External,
    FunctionValue,
    Instance,
    Items,
    Kind,
    Partial,
    PerLane,
    Super,
    Table,
    Unknown,
    Value,
    merged,
    per_lane,
)


@dataclass(slots=True)
class Call:
    """A call of a library that is being followed: `named` are its arguments by name, as far as its row names
    parameters, else its keywords; `event` is what was recorded of it."""

    row: lore.Effect
    name: str
    receiver: Value
    args: list[Value]
    named: dict[str, Value]
    node: ast.AST
    event: trace.Event | None = None


_ENVIRONMENT = {
    "RANK": "rank", "LOCAL_RANK": "local_rank", "WORLD_SIZE": "world_size", "LOCAL_WORLD_SIZE": "local_size",
    "NODE_RANK": "node_rank", "GROUP_RANK": "node_rank", "SLURM_PROCID": "rank", "SLURM_LOCALID": "local_rank",
    "SLURM_NODEID": "node_rank", "SLURM_NTASKS": "world_size", "SLURM_NPROCS": "world_size",
    "OMPI_COMM_WORLD_RANK": "rank", "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank", "OMPI_COMM_WORLD_SIZE": "world_size",
    "PMI_RANK": "rank", "PMI_SIZE": "world_size", "MPI_LOCALRANKID": "local_rank", "MPI_RANKID": "rank",
}  # fmt: skip
_PART_ARGUMENT = re.compile(r"^(shard|chunk|split|part)_?(id|idx|index|num|rank)$")
_NODE_ARGUMENTS = frozenset(("rank", "node_rank", "nr", "machine_rank", "node_id", "dist_rank"))
_FOLDED = {
    name: getattr(builtins, name)
    for name in (
        "int",
        "float",
        "str",
        "abs",
        "round",
        "min",
        "max",
        "divmod",
        "bool",
        "len",
        "repr",
        "ord",
        "chr",
    )
}


_GENERATORS = ("torch", "random", "numpy")
"""The libraries that have a global generator each."""


class Standard(Contexts):
    """What calls of the standard library do."""

    # Plain results

    def _act_value(self, c: Call) -> Value:
        told = c.row.kind > Kind.UNKNOWN or c.row.cause
        origin = self.origin(c.node, c.row.cause or c.row.kind.name.lower()) if told else None
        if c.row.kind is Kind.UNIFORM and not c.row.event:
            key = ("value", c.name, self.key_of(c.receiver), *map(self.key_of, c.args))
            return self.derived(key, (), Kind.UNIFORM, c.name.rpartition(".")[2])
        return self.fresh(c.row.kind, origin)

    def _act_like(self, c: Call) -> Value:
        key = ("like", c.name, *map(self.key_of, c.args), *(self.key_of(v) for v in c.named.values()))
        return self.derived(key, (*c.args, *c.named.values()))

    def _act_fresh(self, c: Call) -> Value:
        return self.fresh()

    def _act_tensor(self, c: Call) -> Value:
        return self.fresh(like=tuple(c.args[:1]))

    def _act_true(self, c: Call) -> Value:
        return TRUE

    def _act_none(self, c: Call) -> Value:
        return NONE

    def _act_self(self, c: Call) -> Value:
        return c.receiver

    def _act_pass(self, c: Call) -> Value:
        if c.row.target == "self":
            return c.receiver
        if c.row.target.isdigit():
            at = int(c.row.target)
            return c.args[at] if at < len(c.args) else External("identity")
        return c.named.get(c.row.target, c.args[0] if c.args else NONE)

    def _act_copy(self, c: Call) -> Value:
        """A copy is another object of the same make."""
        value = c.args[0] if c.args else c.named.get("x", NONE)
        return self.map_lanes(value, self._copied)

    def _copied(self, value: Value) -> Value:
        if type(value) is Instance:
            new = Instance(value.name, value.kind, value.cls, value.path, value.line)
            new.fields, new.vague = dict(value.fields), value.vague
            new.fields["copy_of"] = value
            return new
        if type(value) is Items:
            return Items(value.type, list(value.items), value.rest)
        if type(value) is Unknown:
            return self.derived(("copy", value.key), (value,), label=value.label)
        return Table(dict(value.items), value.rest, value.factory) if type(value) is Table else value

    def _act_field(self, c: Call) -> Value:
        if type(c.receiver) is Instance and c.row.target in c.receiver.fields:
            return self.settle(c.receiver.fields[c.row.target])
        return self.fresh(like=(c.receiver,))

    def _act_leave(self, c: Call) -> Value:
        catching = any("SystemExit" in c.types for c in self.catchers)
        if catching:
            self.raised("SystemExit", c.node)
        elif self._in_handler():
            self.given_up("exit", c.node)
        elif type(self.guard) is int or not self.decisions.for_all(self.guard):
            self.leave("exit", c.node)
        return NONE

    # Lanes, environment, arguments

    def _act_lanes(self, c: Call) -> Value:
        return per_lane(operator.attrgetter(c.row.lane), self.origin(c.node, "rank"))

    def _act_lane_test(self, c: Call) -> Value:
        return per_lane(lambda lane: getattr(lane, c.row.lane) == 0, self.origin(c.node, "rank"))

    def _act_environment(self, c: Call) -> Value:
        key = c.named.get("key", c.args[0] if c.args else NONE)
        if type(key) is not Const or not isinstance(key.value, str):
            return self.fresh(Kind.UNKNOWN)
        held = self.sidetable.get(("environ", key.value))
        if held is not None:
            seen = self.settle(held)
            if self.missing(seen) == 0:
                return seen
        lane = _ENVIRONMENT.get(key.value)
        if lane is not None:
            origin = self.origin(c.node, "rank") if lane != "world_size" else None
            return per_lane(lambda one: str(getattr(one, lane)), origin)
        return self.derived(("environ", key.value), (), Kind.UNIFORM, key.value)

    def _act_set_environment(self, c: Call) -> Value:
        return NONE

    def _act_parsed(self, c: Call) -> Value:
        if type(c.receiver) is Instance:
            held = c.receiver.fields.get("parsed")
            if held is None:
                value = Instance(
                    "argparse.Namespace", "namespace", None, c.receiver.path, getattr(c.node, "lineno", 0)
                )
                value.fields["parser"] = c.receiver
                held = c.receiver.fields["parsed"] = value
            return held
        return self.fresh(label="args")

    def _act_parsed_known(self, c: Call) -> Value:
        return Items("tuple", [self._act_parsed(c), self.fresh()])

    def _act_argument(self, c: Call) -> Value:
        return NONE

    def argument(self, value: Instance, name: str, node: ast.AST) -> Value:
        """An attribute of parsed arguments that the program has not bound."""
        if name == "local_rank":
            return per_lane(lambda lane: lane.local_rank, self.origin(node, "rank"))
        if name in _NODE_ARGUMENTS:
            node_wide = self.launch == "spawn" or name not in ("rank", "dist_rank")
            lane = "node_rank" if node_wide else "rank"
            return per_lane(operator.attrgetter(lane), self.origin(node, "rank"))
        # A process that is told which part is its own was started by hand, beside others.
        own = _PART_ARGUMENT.search(name)
        return self.fresh(Kind.UNKNOWN if own else Kind.UNIFORM, label=name)

    def _act_namespace(self, c: Call) -> Value:
        value = Instance(
            c.name, "namespace", None, str(self.frame.home.module.path), getattr(c.node, "lineno", 0)
        )
        value.fields.update(c.named)
        return value

    def _act_run_main(self, c: Call) -> Value:
        return self.call(c.args[0], [], {}, c.node) if c.args else NONE

    # Functions about functions

    def _act_partial(self, c: Call) -> Value:
        return Partial(c.args[0], c.args[1:], c.named) if c.args else NONE

    def _act_identity_decorator(self, c: Call) -> Value:
        """functools.wraps(f), lru_cache(...): what they return gives back what it decorates."""
        plain = c.name in ("functools.lru_cache",) and len(c.args) == 1 and type(c.args[0]) is FunctionValue
        return c.args[0] if plain else Partial(External("functools.cache"), [], {})

    def _act_mark(self, c: Call) -> Value:
        """A decorator that gives a function a role."""
        function = c.args[0] if c.args else NONE
        if type(function) is FunctionValue:
            function.role = c.row.make
        return function if c.args else External(c.name)

    def _act_super(self, c: Call) -> Value:
        function = self.frame.function
        if function is None or function.owner is None or isinstance(function.node, ast.Lambda):
            return self.fresh(Kind.UNKNOWN)
        spec = [*function.node.args.posonlyargs, *function.node.args.args]
        value = self.frame.scope.names.get(spec[0].arg) if spec else None
        value = c.args[1] if len(c.args) > 1 else value
        return Super(value, function.owner) if type(value) is Instance else self.fresh(Kind.UNKNOWN)

    # Questions about objects

    def _act_isinstance(self, c: Call) -> Value:
        if len(c.args) == 2:
            answer = self.map_lanes(c.args[0], lambda v: self._is_a(v, c.args[1]))
            if answer is not NONE:
                return answer
        return self.derived(("isinstance", *map(self.key_of, c.args)), (), Kind.UNKNOWN)

    def _is_a(self, value: Value, classes: Value) -> Value:
        """Whether an object is of a class, where that is sure."""
        wanted = classes.items if type(classes) is Items else [classes]
        if type(value) is Instance and (
            value.cls is not None or value.kind in ("ddp", "fsdp", "dp", "loader")
        ):
            lineage = list(self.lineage(value.cls)) if value.cls is not None else [External(value.name)]
            names = {lore.canonical(b.name) for b in lineage if type(b) is External}
            for one in wanted:
                if type(one) is ClassValue and any(b is one for b in lineage):
                    return TRUE
                if type(one) is External and lore.canonical(one.name) in names:
                    return TRUE
            known = all(type(one) in (ClassValue, External) for one in wanted)
            wrapper = value.kind in ("ddp", "fsdp", "dp") and value.cls is None
            if (
                known
                and wrapper
                and all(type(o) is External and "parallel" in o.name.lower() for o in wanted)
            ):
                return FALSE
            if known and all(type(o) is External and "DataParallel" in o.name for o in wanted):
                return FALSE
        return self.derived(("isinstance", self.key_of(value), self.key_of(classes)), (), Kind.UNKNOWN)

    def _act_hasattr(self, c: Call) -> Value:
        if len(c.args) == 2 and type(c.args[1]) is Const and isinstance(c.args[1].value, str):
            wanted = c.args[1].value
            return self.map_lanes(c.args[0], lambda v: self._has(v, wanted))
        return self.fresh(Kind.UNKNOWN)

    def _has(self, value: Value, name: str) -> Value:
        if type(value) is Instance:
            if name in value.fields:
                return self.condition(self.decisions.minus(ALL, self.missing(value.fields[name])))
            if value.cls is not None and self.method_of(value.cls, name) is not None:
                return TRUE
            if name == "module" and value.kind in ("ddp", "fsdp", "dp", "ds_engine"):
                return TRUE
            if name == "module" and value.kind == "module":
                return FALSE
            if name == "set_epoch" and value.kind == "distributed_sampler":
                return TRUE
        return self.derived(("hasattr", self.key_of(value), name), (), Kind.UNKNOWN)

    def _act_getattr(self, c: Call) -> Value:
        name = c.args[1].value if len(c.args) >= 2 and type(c.args[1]) is Const else None
        if isinstance(name, str):
            held = c.args[0]
            plain = (
                type(held) is Instance
                and held.kind != "namespace"
                and held.vague is None
                and held.cls is None
            )
            if len(c.args) > 2 and type(held) is Instance and plain and name not in held.fields:
                return self.derived(("getattr", self.key_of(held), name), (c.args[2],), label=name)
            return self.attribute(held, name, c.node)
        if c.args and type(c.args[0]) is External:
            return External(f"{c.args[0].name}.[]")
        return self.fresh(Kind.UNKNOWN)

    def _act_setattr(self, c: Call) -> Value:
        if len(c.args) == 3 and type(c.args[1]) is Const and isinstance(c.args[1].value, str):
            self.set_attribute(c.args[0], c.args[1].value, c.args[2])
        return NONE

    def _act_truth(self, c: Call) -> Value:
        return self.condition(self.truth(c.args[0])) if c.args else FALSE

    def _act_folded(self, c: Call) -> Value:
        """any, all."""
        value = self.settle(c.args[0]) if c.args else NONE
        if type(value) is Items and value.rest is None and value.items:
            holds = [self.truth(v) for v in value.items]
            join = self.decisions.either if c.row.make == "any" else self.decisions.both
            result = holds[0]
            for one in holds[1:]:
                result = join(result, one)
            return self.condition(result)
        return self.derived((c.row.make, self.key_of(value)), (value,))

    def _act_length(self, c: Call) -> Value:
        value = self.settle(c.args[0]) if c.args else NONE
        if type(value) is Items and value.rest is None and value.uneven is None:
            return Const(len(value.items))
        if type(value) is PerLane:
            parts = [self._act_length(replace(c, args=[v])) for v in value.items]
            if all(type(p) is Const for p in parts):
                return merged(parts, value.origin)
        kind, origin = self.turns(value)
        if type(value) is Unknown:
            own = min(value.kind, Kind.UNKNOWN) if value.label == "batch" else value.kind
            kind = max(kind if kind is not Kind.UNKNOWN else Kind.UNIFORM, own)
            origin = origin or value.origin
        elif (
            type(value) is Instance
            and value.cls is not None
            and self.method_of(value.cls, "__len__") is not None
        ):
            method = self.method_of(value.cls, "__len__")
            assert method is not None
            return self.call_function(method, [value], {}, c.node)
        return self.derived(("len", self.key_of(value)), (), kind, origin=origin)

    def _act_fold(self, c: Call) -> Value:
        """A function of the standard library without effects: computed where its arguments are constants."""
        plain = _FOLDED.get(c.name.rpartition(".")[2]) if c.name.startswith("builtins.") else None
        known = all(type(a) in (Const, PerLane) for a in c.args)
        if plain is not None and known and len(c.args) in (1, 2) and not c.named:
            other: Value = c.args[1] if len(c.args) == 2 else NONE
            single = len(c.args) == 1
            found = self._compute(lambda a, b: plain(a) if single else plain(a, b), c.args[0], other)
            if found is not None:
                return found
        if len(c.args) == 1 and type(c.args[0]) is Either and plain is not None:
            return self.map_lanes(c.args[0], lambda v: self._act_fold(replace(c, args=[v])))
        label = ""
        if len(c.args) == 1 and type(c.args[0]) is Unknown:
            label = c.args[0].label
        key = ("fold", c.name, *map(self.key_of, c.args), *(self.key_of(v) for v in c.named.values()))
        return self.derived(key, (*c.args, *c.named.values()), label=label)

    # Randomness

    def _act_seed(self, c: Call) -> Value:
        given = c.args[0] if c.args else next(iter(c.named.values()), NONE)
        library = c.name.partition(".")[0]
        for seeded in (library,) if library in _GENERATORS else _GENERATORS:
            kind = self.kind(given) if given is not NONE else Kind.DATA
            self.seeded[seeded] = kind if self._surely else max(kind, Kind.UNKNOWN)
        return NONE

    def _act_draw(self, c: Call) -> Value:
        """A random draw: as its generator was seeded; from the global one, which data and order also move."""
        generator = c.named.get("generator")
        if type(generator) is Instance and generator.kind == "generator":
            return self.fresh(like=(self.settle(generator.fields.get("seed", NONE)), *c.args))
        if generator is not None and generator is not NONE:
            return self.fresh(Kind.UNKNOWN, like=tuple(c.args))
        library = c.name.partition(".")[0]
        seeded = self.seeded.get(library, Kind.DATA)
        if seeded is Kind.UNIFORM and not self._surely:
            self.seeded[library] = seeded = Kind.UNKNOWN
        alike = seeded <= Kind.UNKNOWN
        if c.name.endswith(".shuffle") and c.args:
            if not alike and type(c.args[0]) is Items:
                c.args[0].items, c.args[0].rest = [], self.fresh(Kind.DATA, self.origin(c.node, "random"))
            elif not alike:
                self.change(c.args[0], Kind.DATA, self.origin(c.node, "random"))
            return NONE
        if alike:
            return self.fresh(seeded, like=tuple(c.args))
        return self.fresh(Kind.DATA, self.origin(c.node, "random"))

    @property
    def _surely(self) -> bool:
        """True where all ranks are, whatever the conditions turn out to be."""
        return self.absolute == ALL and self.doubt is None

    def _act_drawn(self, c: Call) -> Value:
        seed = c.receiver.fields.get("seed", NONE) if type(c.receiver) is Instance else NONE
        if seed is NONE:
            return self.fresh(Kind.DATA, self.origin(c.node, "random"))
        return self.fresh(like=(self.settle(seed),))

    def _act_seed_generator(self, c: Call) -> Value:
        if type(c.receiver) is Instance:
            seed = c.args[0] if c.args else self.fresh(Kind.DATA, self.origin(c.node, "random"))
            self.store(c.receiver.fields, "seed", seed)
        return c.receiver
