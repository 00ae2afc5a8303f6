"""Calls of what the program does not define: collectives, wrappers, launching, as the rows of `lore` say."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

from . import lore, trace
from .buffers import NO, buffers
from .calls import MODELS
from .containers import Containers
from .decisions import Guard, options
from .lanes import ALL, LOCAL_ZERO, RANK_ZERO
from .standard import Call
from .state import parts_of
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
    Method,
    Mixed,
    Table,
    Unknown,
    Value,
    Walk,
    per_lane,
)

_COMMUNICATING = frozenset(("collective", "new_group", "init"))
_PARTS = frozenset(("parameters", "named_parameters", "state_dict", "modules", "named_modules", "buffers"))
"""Methods of a model that give what it holds."""
_WRAPPED = ("ddp", "fsdp", "ds_engine", "dp")
_RANK_OF_GROUP = re.compile(r"get_\w*rank$")
"""Functions of libraries for parallel layers: get_data_parallel_rank, get_tensor_model_parallel_rank."""


class Libraries(Containers):
    """What calls of libraries do."""

    # Dispatch

    def call_external(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Calls a foreign function or class."""
        row = lore.effect(name)
        if row is None:
            return self._foreign(name, args, keywords, node)
        return self.perform(row, lore.canonical(name), NONE, args, keywords, node)

    def _foreign(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A foreign function that no table names: its result differs as its arguments do."""
        given = (*args, *keywords.values())
        last = name.rpartition(".")[2]
        owner = name.rpartition(".")[0]
        if last[:1].isupper() and not name.startswith("builtins."):
            value = Instance(name, "", None, str(self.frame.home.module.path), getattr(node, "lineno", 0))
            value.vague = self.fresh(like=given)
            value.fields.update(keywords)
            return value
        if any(self.talks(v) for v in given):
            self.missed("call")
        if not given and _RANK_OF_GROUP.match(last):
            return self.derived(("foreign", name), (), Kind.GROUP, "rank", self.origin(node, "rank"))
        if owner.startswith("torch.nn.functional") or owner == "torch":
            return self.fresh(like=given)
        key = ("foreign", name, *map(self.key_of, given))
        found = self.derived(key, given)
        if found.kind is Kind.DATA and not name.startswith(
            ("torch", "numpy", "math", "builtins", "cv2", "PIL")
        ):
            found.kind = Kind.UNKNOWN
        return self.settle(found)

    def call_method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls a method that the program does not define."""
        if type(receiver) is Items:
            return self.method_of_list(receiver, name, args, node)
        if type(receiver) is Table:
            return self.method_of_table(receiver, name, args, keywords, node)
        if type(receiver) is Const:
            return self.method_of_constant(receiver, name, args)
        if type(receiver) is Instance:
            return self._method_of_object(receiver, name, args, keywords, node)
        if type(receiver) is ClassValue:
            return self._method_of_class(receiver, name, args, keywords, node)
        if name in ("items", "values", "keys", "get"):
            forced = self.force(receiver)
            if forced is not receiver:
                return self.call(self.attribute(forced, name, self.calling or node), args, keywords, node)
        if name not in ("wait", "record_stream", "data_ptr"):
            self.uses(receiver, node)
        row = lore.method("*", name)
        if row is not None and type(receiver) not in (Walk, FunctionValue):
            return self.perform(row, f".{name}", receiver, args, keywords, node)
        if type(receiver) is Method and receiver.function is None:
            receiver = self.attribute(receiver.receiver, receiver.name, node)
        return self.method_of_unknown(receiver, name, args, keywords, node)

    def _method_of_object(
        self, value: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name in ("forward", "__call__") and (value.kind in _WRAPPED or value.kind == "module"):
            return self.call_instance(value, args, keywords, node)
        row = lore.method(value.kind, name) if value.kind else None
        row = row or lore.method("*", name)
        if row is not None:
            return self.perform(row, f"{value.kind}.{name}", value, args, keywords, node)
        if value.kind in _WRAPPED and name not in ("parameters", "named_parameters", "state_dict", "modules"):
            # Methods of the model are not the wrapper's, but nothing is lost in following them.
            inner = self.settle(value.fields.get("module", NONE))
            if type(inner) is Instance:
                return self.call(self.attribute(inner, name, node), args, keywords, node)
        if name in _PARTS:
            return self.derived((name, self._kept(value)), (), label=name)
        if value.kind in ("lightning_module",) and name in ("log", "log_dict"):
            return self._logged(value, name, args, keywords, node)
        if value.kind in ("lightning_module",) and name == "all_gather":
            self.record(
                "collective", "LightningModule.all_gather", node, operation="all_gather", communicates=2
            )
            return self.fresh()
        if value.kind == "rng":
            return self._act_drawn(Call(lore.Effect(), name, value, args, keywords, node))
        like = (*args, *keywords.values(), *([value.vague] if value.vague is not None else []))
        found = self.fresh(like=like)
        if found.kind is Kind.DATA and not value.kind:
            found.kind = Kind.UNKNOWN
        return found

    def _logged(
        self, value: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """LightningModule.log: reduces over the ranks with sync_dist=True."""
        if keywords.get("sync_dist") is TRUE:
            self.record("collective", "LightningModule.log", node, receiver=value, operation="all_reduce",
                        communicates=2, hidden="log(sync_dist=True)")  # fmt: skip
        return NONE

    def _method_of_class(
        self, cls: ClassValue, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """autograd.Function.apply runs forward; the rest is not known."""
        forward = self.method_of(cls, "forward")
        if name == "apply" and forward is not None:
            result = self.call_function(forward, [self.fresh(label="ctx"), *args], keywords, node)
            return (
                result
                if type(result) is not Unknown
                else self.fresh(result.kind, result.origin, like=tuple(args))
            )
        return self.fresh(Kind.UNKNOWN, like=(*args, *keywords.values()))

    def perform(
        self,
        row: lore.Effect,
        name: str,
        receiver: Value,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
    ) -> Value:
        """Does what a row of `lore` says, and records it."""
        named = dict(zip(row.params, args, strict=False)) | keywords if row.params else dict(keywords)
        event = None
        if row.event:
            event = self.record(row.event, name, node, args=named, receiver=receiver, operation=row.operation)
            event.extra["args"] = args
            if row.event in _COMMUNICATING or (row.event in ("wrap", "prepare") and row.hidden):
                event.communicates = 2
                event.hidden = row.hidden
        call = Call(row, name, receiver, args, named, node, event)
        result: Value = getattr(self, f"_act_{row.act}")(call)
        if event is not None:
            event.result = result
        return result

    # Making

    def _act_make(self, c: Call) -> Value:
        value = Instance(
            c.name, c.row.make, None, str(self.frame.home.module.path), getattr(c.node, "lineno", 0)
        )
        value.fields.update(c.named)
        if not c.row.params:
            value.fields.update({str(i): a for i, a in enumerate(c.args)})
        if c.row.hidden and c.row.event == "optimizer":
            value.fields["hidden"] = Const(c.row.hidden)
        if c.row.make == "dataset":
            value.vague = self.fresh(like=tuple(c.args))
            value.fields.update({str(i): a for i, a in enumerate(c.args)})
        return value

    def _act_wrap(self, c: Call) -> Value:
        value = self._act_make(c)
        assert isinstance(value, Instance)
        module = value.fields.get("module", c.args[0] if c.args else NONE)
        value.fields["module"] = module
        if type(module) is Unknown:
            self.sidetable["wrapped", module.key] = value
        if type(module) is Instance and "sync_bn" in module.fields:
            value.fields["sync_bn"] = TRUE
        return value

    def _act_mode(self, c: Call) -> Value:
        """train() and eval(), of a wrapper and of what it wraps, of a model and of the layers that it holds."""
        mode = c.named.get("mode", TRUE) if c.row.target == "train" else FALSE
        todo: list[Value] = [c.receiver]
        seen: dict[int, Value] = {}
        while todo:
            value = self.settle_shared(todo.pop())
            if id(value) in seen:
                continue
            seen[id(value)] = value
            todo += parts_of(value)
            if type(value) is Instance and value.kind in (*MODELS, *_WRAPPED):
                # What was said last holds: a mode is set right before it matters.
                value.fields["training"] = mode
                todo += [v for name, v in value.fields.items() if name != "training"]
        return c.receiver

    def _act_shard(self, c: Call) -> Value:
        """fully_shard changes the module in place."""
        module = c.named.get("module", NONE)
        for option in options(module):
            if type(option) is Instance:
                self.store(option.fields, "sharded", TRUE, kept=True)
        return module

    def _act_sync_batch_norm(self, c: Call) -> Value:
        module = c.named.get("module", c.args[0] if c.args else NONE)
        for option in options(module):
            if type(option) is Instance:
                option.fields["sync_bn"] = TRUE
        return module

    def _act_prepare(self, c: Call) -> Value:
        """accelerate.prepare, Fabric.setup: models come back wrapped, the rest as it is."""
        given = c.args or list(c.named.values())
        prepared = [self._prepared(v, c.node) for v in given]
        return prepared[0] if len(prepared) == 1 else Items("tuple", prepared)

    def _prepared(self, value: Value, node: ast.AST) -> Value:
        if type(value) is Instance and value.kind in ("module", "lightning_module"):
            wrapped = Instance("DistributedDataParallel", "ddp", None, str(self.frame.home.module.path),
                               getattr(node, "lineno", 0))  # fmt: skip
            wrapped.fields["module"] = value
            return wrapped
        if type(value) is Instance and value.kind == "loader":
            value.fields["prepared"] = TRUE
        return value

    def _act_unwrap(self, c: Call) -> Value:
        value = c.args[0] if c.args else NONE
        if type(value) is Instance and value.kind in _WRAPPED:
            return self.settle(value.fields.get("module", value))
        return value

    def _act_engine(self, c: Call) -> Value:
        value = self._act_make(c)
        assert isinstance(value, Instance)
        value.fields["module"] = c.named.get("model", NONE)
        return Items("tuple", [value, self.fresh(), self.fresh(), self.fresh()])

    # Process groups and collectives

    def _act_initialise(self, c: Call) -> Value:
        self.initialised = self.decisions.either(self.initialised, self.absolute)
        if isinstance(c.node, ast.Call):
            for keyword in c.node.keywords:
                # Whatever it was computed from: what is passed as the rank is the rank.
                if keyword.arg in ("rank", "world_size") and isinstance(
                    keyword.value, ast.Name | ast.Attribute | ast.Subscript
                ):
                    lanes = per_lane(operator.attrgetter(keyword.arg), self.origin(c.node, "rank"))
                    if self.kind(c.named[keyword.arg]) is not Kind.RANK or keyword.arg == "world_size":
                        self.assign(_stored(keyword.value), lanes)
        return self._act_make(c) if c.row.make else NONE

    def _act_initialised(self, c: Call) -> Value:
        """is_initialized(): as far as the run has come, where it can be seen that it begins a group at all."""
        if self.initialised == 0 and self.expects_group:
            return FALSE
        return TRUE

    def _in_world(self, named: dict[str, Value]) -> bool:
        """True when a call is made in the default group."""
        group = named.get("group", named.get("process_group", NONE))
        return group is NONE or (type(group) is External and group.name.endswith("WORLD"))

    def _act_rank_in(self, c: Call) -> Value:
        """get_rank, get_world_size: of the default group, or of another."""
        if self._in_world(c.named):
            origin = self.origin(c.node, "rank") if c.row.lane == "rank" else None
            return per_lane(operator.attrgetter(c.row.lane), origin)
        key = ("group", c.row.lane, *(self.key_of(v) for v in c.named.values()))
        if c.row.lane == "world_size":
            return self.derived(key, (), label="world_size")
        return self.derived(key, (), Kind.GROUP, "rank", self.origin(c.node, "rank"))

    def _act_collective(self, c: Call) -> Value:
        event = c.event
        assert event is not None
        event.operation = c.row.operation or c.name.rpartition(".")[2]
        target = c.named.get(c.row.target)
        if target is not None and target is not NONE:
            kind = c.row.kind if self._in_world(c.named) else max(c.row.kind, Kind.GROUP)
            origin = self.origin(c.node, "rank") if kind >= Kind.GROUP else None
            self.change(target, kind, origin)
        asked = c.named.get("async_op", FALSE)
        if asked is not FALSE:
            work = Instance(
                "Work", "work", None, str(self.frame.home.module.path), getattr(c.node, "lineno", 0)
            )
            work.fields["of"] = target or NONE
            event.extra["work"] = work
            running = self.settle(target) if target is not None else NONE
            if type(running) is Unknown and type(asked) is Const:
                self.pending[running.key] = (event, work)
            return work
        return NONE

    def _act_exchange(self, c: Call) -> Value:
        """A collective that returns what it makes."""
        origin = self.origin(c.node, "rank") if c.row.kind >= Kind.GROUP else None
        found = self.fresh(c.row.kind, origin)
        for arg in c.args[:1]:
            found.sources = self.fresh(like=(arg,)).sources
        return found

    def _act_received(self, c: Call) -> Value:
        tensor = c.named.get("tensor")
        if tensor is not None:
            self.change(tensor, Kind.RANK, self.origin(c.node, "rank"))
        if c.row.make:
            return self._act_make(c)
        return self.fresh(Kind.RANK, self.origin(c.node, "rank"))

    def _act_wait(self, c: Call) -> Value:
        """wait(): the work is done; what one statement began in several turns is waited for in several turns too."""
        place = (c.receiver.path, c.receiver.line) if type(c.receiver) is Instance else None
        known = type(c.receiver) is Instance and c.receiver.kind == "work"
        self.pending = {
            key: (event, work)
            for key, (event, work) in self.pending.items()
            if known and (work.path, work.line) != place
        }
        return NONE

    def _act_split(self, c: Call) -> Value:
        """random_split: as many parts as lengths."""
        lengths = c.named.get("lengths", NONE)
        count = len(lengths.items) if type(lengths) is Items and lengths.rest is None else 2
        parts: list[Value] = []
        for i in range(count):
            part = Instance("torch.utils.data.Subset", "dataset", None, str(self.frame.home.module.path),
                            getattr(c.node, "lineno", 0))  # fmt: skip
            part.fields["dataset"] = c.named.get("dataset", NONE)
            part.fields["part"] = Const(i)
            parts.append(part)
        return Items("list", parts)

    # Launching

    def _act_spawn(self, c: Call) -> Value:
        """mp.spawn: the function runs with its local rank first, in every process."""
        function = c.named.get("fn", c.named.get("function", NONE))
        given = c.named.get("args", Items("tuple", []))
        more = list(given.items) if type(given) is Items else [self.fresh(Kind.UNKNOWN)] * 2
        first: list[Value] = []
        if "notebook" not in c.name:
            first = [per_lane(lambda lane: lane.local_rank, self.origin(c.node, "rank"))]
        return self._launched(function, [*first, *more], {}, c.node)

    def _act_process(self, c: Call) -> Value:
        """Process(target=f, args=(rank, ...)) inside a loop over ranks."""
        function = c.named.get("target", NONE)
        given = c.named.get("args", NONE)
        if not self.talks(function) or type(given) is not Items or not given.items:
            return Instance(
                "Process", "process", None, str(self.frame.home.module.path), getattr(c.node, "lineno", 0)
            )
        lanes = per_lane(lambda lane: lane.local_rank, self.origin(c.node, "rank"))
        numbers = [v for v in given.items if type(v) is Unknown and v.label in ("i", "rank", "local_rank")]
        if numbers:
            # Wherever the number of the loop was put, in the child it is the rank.
            self.replaced[numbers[0].key] = lanes
        passed = [lanes if numbers and v is numbers[0] else v for v in given.items]
        extra = c.named.get("kwargs", NONE)
        self._launched(function, passed, extra.items if type(extra) is Table else {}, c.node)
        if numbers:
            self.replaced.pop(numbers[0].key, None)
        return Instance(
            "Process", "process", None, str(self.frame.home.module.path), getattr(c.node, "lineno", 0)
        )

    def _launched(
        self, function: Value, args: list[Value], keywords: dict[Any, Value], node: ast.AST
    ) -> Value:
        launch, self.launch = self.launch, "spawn"
        self.call(function, args, {str(k): v for k, v in keywords.items()}, node)
        self.launch = launch
        return NONE

    def _act_launch(self, c: Call) -> Value:
        """A trainer that runs a function on every worker."""
        self.initialised = ALL
        function = c.named.get("train_loop_per_worker", c.args[0] if c.args else NONE)
        self.call(function, [self.fresh(label="config")], {}, c.node)
        return self.fresh()

    def _act_submit(self, c: Call) -> Value:
        """submitit: the callable runs in every task."""
        if c.args:
            self.call(c.args[0], c.args[1:], c.named, c.node)
        return self.fresh()

    # Training

    def _act_backward(self, c: Call) -> Value:
        loss = (
            c.receiver if c.row.target == "self" else c.named.get(c.row.target, c.args[0] if c.args else NONE)
        )
        event = c.event
        assert event is not None
        models = self.fresh(like=(loss,)).sources
        event.extra["models"] = models
        event.extra["loss"] = loss
        wrapped = [m for m in models if m.kind in ("ddp", "fsdp", "ds_engine")]
        if wrapped and "no_sync" not in self.within and "accumulate" not in self.within:
            event.communicates = 2
            event.operation = f"{wrapped[0].kind}.backward"
            event.hidden = (
                "DDP backward" if wrapped[0].kind == "ddp" else f"{wrapped[0].kind.upper()} backward"
            )
        return NONE

    def _act_optimizer_step(self, c: Call) -> Value:
        hidden = c.receiver.fields.get("hidden") if type(c.receiver) is Instance else None
        if type(hidden) is Const and c.event is not None:
            c.event.communicates = 2
            c.event.operation = "optimizer.step"
            c.event.hidden = str(hidden.value)
        closure = c.named.get("closure", c.args[0] if c.args else NONE)
        if type(closure) in (FunctionValue, Method):
            self.call(closure, [], {}, c.node)
        return NONE

    def _act_checkpoint(self, c: Call) -> Value:
        """Activation checkpointing calls its function."""
        return self.call(c.args[0], c.args[1:], {}, c.node) if c.args else NONE

    def _act_enter_context(self, c: Call) -> Value:
        return self.enter_in_stack(c.receiver, c.args[0] if c.args else NONE, c.node)

    # Objects

    def role_mask(self, role: str) -> int:
        """The lanes on which a function of such a role runs."""
        return LOCAL_ZERO if role == "local_zero" else RANK_ZERO

    def library_attribute(self, value: Instance, name: str, node: ast.AST) -> Value:
        """The attribute of an object that its class does not define."""
        row = lore.result_attribute(value.kind, name) if value.kind else None
        if row is not None:
            return self.perform(row, name, value, [], {}, node)
        own = lore.method(value.kind, name) if value.kind else None
        if node is self.calling or (own is not None and own is not lore.method("*", name)):
            return Method(value, name)
        if name == "training" and value.kind in ("module", "lightning_module", *_WRAPPED):
            return TRUE
        if value.kind == "namespace":
            found = value.fields[name] = self.argument(value, name, node)
            return found
        if value.kind in ("ddp", "fsdp", "ds_engine", "dp") and "module" in value.fields and name != "grad":
            return self.derived(("field", self._kept(value), name), (), label=name)
        if name in ("sampler", "batch_sampler", "dataset") and value.kind in ("loader", "batch_sampler"):
            return (
                NONE
                if name != "sampler"
                else self.derived(("field", self._kept(value), name), (), label=name)
            )
        if name == "__class__":
            return value.cls or External(value.name)
        like = (value.vague,) if value.vague is not None else ()
        return self.derived(("field", self._kept(value), name), like, label=name)

    def call_instance(
        self, value: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Calls an object: the forward of a model, an object with `__call__`, a decorator."""
        given = (*args, *keywords.values())
        if value.kind in ("no_grad", "autocast", "context") and args and type(args[0]) is FunctionValue:
            return args[0]
        if value.kind in _WRAPPED or value.kind in ("module", "lightning_module", "metric"):
            return self._forward(value, args, keywords, node)
        if value.cls is not None:
            method = self.method_of(value.cls, "__call__")
            if method is not None:
                return self.call_function(method, [value, *args], keywords, node)
        like = given if value.vague is None else (*given, value.vague)
        return self.fresh(like=like)

    def _forward(
        self, value: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """A forward: of a wrapper, which may communicate before and after, and of the model inside."""
        event = self.record("forward", value.name, node, args=dict(keywords), receiver=value)
        event.extra["args"] = args
        self._communication_of_forward(value, event)
        result: Value | None = None
        inner: Value = value
        if value.kind in _WRAPPED and value.cls is None:
            inner = self.settle(value.fields.get("module", NONE))
            if type(inner) is Either or type(inner) is Mixed:
                inner = next((o for o in options(inner) if type(o) is Instance), NONE)
        if type(inner) is Instance and inner.cls is not None:
            forward = self.method_of(inner.cls, "forward")
            talking = any(self.talks(v, 1, strict=True) for v in inner.fields.values())
            if forward is not None and (self.communicates(forward) or talking):
                result = self.call_function(forward, [inner, *args], keywords, node)
        found = self.fresh(like=(*args, *keywords.values(), *([result] if result is not None else [])))
        if value.kind in _WRAPPED and "no_grad" not in self.within:
            found.sources = found.sources | {value}
        if type(result) is Items and result.rest is None:
            items: list[Value] = [self.fresh(like=(r, found)) for r in result.items]
            return Items(result.type, items)
        if type(result) is Table:
            result.items = {
                k: self.fresh(like=(v, found)) if type(v) is Unknown else v for k, v in result.items.items()
            }
            return result
        event.result = found
        return found

    def _communication_of_forward(self, value: Instance, event: trace.Event) -> None:
        """What a forward communicates: buffers, SyncBatchNorm, shards."""
        sharded: Guard = ALL if value.kind == "fsdp" else 0
        if "sharded" in value.fields:
            sharded = self.decisions.minus(ALL, self.missing(value.fields["sharded"]))
        if sharded != 0:
            active = self.decisions.both(event.guard, sharded)
            if active != event.guard:
                # Sharded under some condition only: a call of its own.
                event = self.record("sharded", value.name, event.site.node, receiver=value)
                event.guard = active
            event.communicates, event.operation, event.hidden = 2, "fsdp.forward", "FSDP forward"
            return
        if value.kind == "ddp" and value.fields.get("broadcast_buffers") is not FALSE:
            sure = buffers(self, value.fields.get("module", NONE))
            if sure != NO:
                event.communicates, event.operation = sure, "ddp.forward"
                event.hidden = "DDP forward broadcasts buffers"
        module = value.fields.get("module", value) if value.kind == "ddp" else value
        if "sync_bn" in value.fields or (type(module) is Instance and "sync_bn" in module.fields):
            evaluating = self.settle_shared(value.fields.get("training", TRUE)) is FALSE
            if not evaluating and event.communicates == 0:
                event.communicates, event.operation, event.hidden = 2, "sync_batch_norm", "SyncBatchNorm"


def _stored(node: ast.expr) -> ast.expr:
    """`node` as a target of an assignment."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Store()), node)
    return node
