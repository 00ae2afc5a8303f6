"""Gradients: the wrapper that keeps the replicas of a model equal, and what takes a model past it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, Text, say
from ...source import syntax
from ...source.flow import enclosing
from ...source.values import FALSE, NONE, TRUE, Instance, Items, Kind, Unknown, Value
from ..loaders import constant, given, speaks_of_ranks
from ..models import WRAPPED, Part, builder_of, owner_of, part_of, parts_of, unwrapped, whole_of
from ..scene import Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Program
    from ...source.trace import Event

_BY_HAND = re.compile(
    r"\.grad\b|average_gradients|allreduce_grad|sync_grad|reduce_grad|sync_params|all_reduce_coalesced|broadcast_coalesced"
)
_MOVES = re.compile(r"\.to\(|\.cuda\(|device\s*=|set_default")
_DATA_DIMENSION = re.compile(r"^(dp|ddp|data|batch|replicate|dp_replicate|data_parallel)$")


def wrappers(scene: Scene) -> list[Event]:
    """The events that build DDP, FSDP or the like over a model."""
    return [e for e in scene.of("wrap") if isinstance(e.result, Instance) and e.result.kind in WRAPPED]


def wraps_of(scene: Scene, model: Instance | int) -> list[Event]:
    """The wrappers built over a model, in order."""
    return [e for e in wrappers(scene) if isinstance(e.result, Instance) and unwrapped(e.result) == model]


def _synchronised(scene: Scene, model: Instance | int) -> bool:
    """True when something keeps a model equal on all ranks: a wrapper, shards, a library that prepares it."""
    if wraps_of(scene, model) or scene.of("prepare"):
        return True
    if isinstance(model, Instance) and ({"sharded", "prepared"} & model.fields.keys()):
        return True
    for event in scene.of("wrap"):
        module = event.args.get("module", NONE)
        if any(
            (leaf is model) or (isinstance(leaf, Unknown) and leaf.key == model) for leaf in leaves(module)
        ):
            return True
    return False


def _divided(model: Instance | int) -> bool:
    """True for a model whose class speaks of ranks: each may hold a part of its own, as of a large classifier."""
    return isinstance(model, Instance) and model.cls is not None and speaks_of_ranks(model.cls)


def _by_hand(scene: Scene) -> bool:
    """True when the program may reduce gradients or parameters itself: its text speaks of them."""
    return scene.program.speaks(scene.run.entry.path, _BY_HAND)


@finds("model-not-wrapped")
def model_not_wrapped(program: Program) -> Iterator[Finding]:
    """An optimizer that trains, on several ranks, a model that no wrapper covers and nothing synchronises.

    Quiet where gradients are reduced by hand, by the optimizer or by a library, and for a model that is not seen.
    """
    for scene in scenes(program):
        yield from _one_dimension(scene)
        if _by_hand(scene) or any(e.operation != "init_process_group" for e in scene.of("init")):
            continue
        told: set[Instance | int] = set()
        for event in scene.of("optimizer"):
            optimizer = event.result
            if (
                not isinstance(optimizer, Instance)
                or optimizer.cls is not None
                or not optimizer.name.startswith("torch.optim")
            ):
                continue
            if not _steps(scene, optimizer) or _searched(scene, event):
                continue
            for part in parts_of(scene, event.args.get("params", NONE)):
                model = part.inner if part is not None else None
                if (
                    model is None
                    or model in told
                    or _synchronised(scene, model)
                    or _divided(model)
                    or not _trained(scene, model)
                ):
                    continue
                told.add(model)
                yield found(
                    "model-not-wrapped",
                    scene.location(event),
                    say("each rank trains this model for itself: nothing averages its gradients"),
                    related=[Location(model.path, model.line, role=say("the model is made here"))]
                    if isinstance(model, Instance) and model.line
                    else [],
                    call_path=scene.path(event),
                    fix=say("wrap it: DistributedDataParallel(model)"),
                )


def _searched(scene: Scene, event: Event) -> bool:
    """True when the ranks train with settings of their own: a search, in which other models are wanted."""
    settings = (value for name, value in event.args.items() if name != "params")
    return any(scene.differs(value) is not Kind.UNIFORM for value in settings)


def _steps(scene: Scene, optimizer: Instance) -> bool:
    """True when several ranks step an optimizer in a loop."""
    for event in scene.of("step"):
        held = [*leaves(event.receiver), *leaves(event.args.get("optimizer", NONE))]
        if optimizer in held and scene.loops(event) and scene.by_all(event) and scene.shared(event):
            return True
    return False


def _trained(scene: Scene, model: Instance | int) -> bool:
    """True when a training loop runs a model forward, as far as it is seen."""
    for event in scene.of("forward"):
        receivers = [v.key if isinstance(v, Unknown) else v for v in leaves(event.receiver)]
        if model in receivers and "no_grad" not in event.within and _in_training(scene, event):
            return True
    return False


def _in_training(scene: Scene, event: Event) -> bool:
    loops = scene.loops(event)
    return bool(loops) and bool(scene.inside(loops[-1], "backward"))


def _one_dimension(scene: Scene) -> Iterator[Finding]:
    """A mesh with a data dimension of which only the other dimension is used: nothing averages over the first."""
    used = [e for e in scene.of("wrap") if e.operation == "parallelize_module"]
    if (
        not used
        or wrappers(scene)
        or _by_hand(scene)
        or any(e.name.endswith("fully_shard") for e in scene.of("wrap"))
    ):
        return
    for event in scene.of("init"):
        names = event.args.get("mesh_dim_names", NONE)
        dimensions = [constant(v) for v in names.items] if isinstance(names, Items) else []
        if len(dimensions) > 1 and any(isinstance(d, str) and _DATA_DIMENSION.match(d) for d in dimensions):
            yield found(
                "model-not-wrapped",
                scene.location(event),
                say(
                    "the model is parallel over one dimension of the mesh, and nothing averages over the other"
                ),
                related=[scene.location(used[0], say("parallelised here"))],
                condition=say("when the data dimension is larger than 1"),
                call_path=scene.path(event),
                fix=say("fully_shard or DDP over the data dimension too"),
            )


@finds("ddp-bypassed")
def ddp_bypassed(program: Program) -> Iterator[Finding]:
    """A training forward through `.module` or the inner model: its backward reduces nothing."""
    for scene in scenes(program):
        for event in scene.of("backward"):
            if (
                event.communicates
                or not scene.loops(event)
                or not scene.by_all(event)
                or "no_sync" in event.within
            ):
                continue
            place = _inner_use(scene, event)
            if place is not None:
                where, path = place
                yield found(
                    "ddp-bypassed",
                    where,
                    say(
                        "the loss is computed through the model inside DDP, so its gradients are not averaged"
                    ),
                    related=[scene.location(event, say("this backward reduces nothing"))],
                    call_path=path,
                    fix=say("call the wrapper: model(x) instead of model.module(x)"),
                )


def _inner_use(scene: Scene, backward: Event) -> tuple[Location, tuple[Location, ...]] | None:
    """Where the model inside a wrapper is used for the loss of a backward; None when that is not seen."""
    loop = scene.loops(backward)[-1]
    order = scene.order(backward)
    inner = {
        unwrapped(e.result): e
        for e in wrappers(scene)
        if isinstance(e.result, Instance) and e.result.kind == "ddp"
    }
    for event in reversed(scene.inside(loop, "forward", "model_call")):
        if scene.order(event) > order or "no_grad" in event.within or scene.exclusive(event, backward):
            continue
        if _called(event).startswith("self.") and event.kind == "model_call":
            continue  # the model calls itself
        for leaf in leaves(event.receiver):
            model = leaf.key if isinstance(leaf, Unknown) else leaf
            wrap = inner.get(model) if isinstance(model, int | Instance) else None
            if wrap is not None and scene.order(wrap) < order:
                if (scene.function(event.site), _called(event)) in _bound_to(scene, wrap):
                    return None  # it may be the wrapper all the same: one of several values of the name
                return scene.location(event), scene.path(event)
            if isinstance(leaf, Instance) and leaf.kind in WRAPPED:
                return None  # the loss comes through a wrapper after all
    return None


def _called(event: Event) -> str:
    """What the text calls."""
    node = event.site.node
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _bound_to(scene: Scene, event: Event) -> set[tuple[object, str]]:
    """(function, name) of what the result of a call is bound to, there or in what called it."""
    names: set[tuple[object, str]] = set()
    for site in event.site.chain():
        statement = scene.program.module(site.path).source.statement_at(site.line)
        if isinstance(statement, ast.Assign):
            names.update((scene.function(site), ast.unparse(target)) for target in statement.targets)
    return names


@finds("changed-after-wrap")
def changed_after_wrap(program: Program) -> Iterator[Finding]:
    """Parameters frozen, unfrozen, added or replaced in a model that DDP was already built over."""
    for scene in scenes(program):
        told: set[tuple[object, str]] = set()
        for event in scene.of("set", "freeze", "set_module"):
            change = _change(scene, event)
            if change is None:
                continue
            part, what, on = change
            wraps = wraps_of(scene, part.inner)
            order = scene.order(event)
            if not any(scene.order(w) < order and not scene.exclusive(w, event) for w in wraps):
                continue
            if (
                any(scene.order(w) > order for w in wraps)
                or (part.inner, what) in told
                or not _trains_after(scene, part.inner, order)
            ):
                continue
            message = _changed(scene, event, part, what, on, order, wraps[0])
            if message is None:
                continue
            told.add((part.inner, what))
            yield found(
                "changed-after-wrap",
                scene.location(event),
                message,
                related=[scene.location(wraps[0], say("DDP is built here"))],
                call_path=scene.path(event),
                fix=say("change the model first, or build DDP anew after the change"),
            )


def _change(scene: Scene, event: Event) -> tuple[Part, str, bool] | None:
    """(what is changed, "grad" or "module", whether it is switched on) of an event that changes a model."""
    part = owner_of(scene, event)
    if part is None:
        return None
    part = whole_of(scene, part)
    if event.kind == "freeze":
        value = event.args.get("requires_grad", TRUE)
        return (part, "grad", value is not FALSE) if value in (TRUE, FALSE) else None
    if event.kind == "set_module":
        return part, "module", True
    if event.name == "requires_grad":
        return (part, "grad", event.result is TRUE) if event.result in (TRUE, FALSE) else None
    put = event.result
    if isinstance(put, Instance) and put.kind == "module" and not part.what and unwrapped(put) != part.inner:
        return part, "module", True
    return None


def _changed(
    scene: Scene, event: Event, part: Part, what: str, on: bool, order: int, wrap: Event
) -> Text | None:
    """What is wrong with a change; None for one that does no harm."""
    if what == "module":
        return say("a layer is put into the model after DDP was built: its parameters are never averaged")
    others = [
        (scene.order(e), c)
        for e in scene.of("set", "freeze")
        if e is not event
        and (c := _change(scene, e)) is not None
        and c[1] == "grad"
        and c[0].inner == part.inner
        and all(a == b for a, b in zip(c[0].path, part.path, strict=False))
    ]
    if on:
        frozen = any(o < scene.order(wrap) and not c[2] for o, c in others)
        return (
            say("parameters that were frozen when DDP was built are unfrozen: they are never averaged")
            if frozen
            else None
        )
    toggled = any(c[2] for o, c in others if o > scene.order(wrap))
    if not part.path:
        return None  # all of it: a teacher that is wrapped to synchronise its buffers, and never trained
    if toggled or constant(given_of(wrap, "find_unused_parameters")) is True:
        return None
    return say("parameters are frozen after DDP was built, which waits for their gradients")


def given_of(event: Event, name: str) -> Value:
    """An argument of an event; NONE where it was not given."""
    return event.args.get(name, NONE)


def _trains_after(scene: Scene, model: Instance | int, order: int) -> bool:
    """True when a backward through the wrapper of a model comes after a point, or in a loop around it."""
    for event in scene.of("backward"):
        models = {unwrapped(m) for m in event.extra.get("models", ()) if isinstance(m, Instance)}
        if model in models and (scene.order(event) > order):
            return True
    return False


@finds("moved-after-wrap")
def moved_after_wrap(program: Program) -> Iterator[Finding]:
    """A model that is cast or moved after DDP was built over it: the parameters that DDP hooked are others now."""
    for scene in scenes(program):
        for event in scene.of("move"):
            options = {part_of(scene, leaf) for leaf in leaves(event.receiver)}
            part = options.pop() if len(options) == 1 else None
            if part is None or part.what or part.path or _copied(part.model):
                continue
            order = scene.order(event)
            wraps = [
                w
                for w in wraps_of(scene, part.inner)
                if isinstance(w.result, Instance) and w.result.kind == "ddp"
            ]
            if not any(scene.order(w) < order and not scene.exclusive(w, event) for w in wraps):
                continue
            again = any(scene.order(w) > order for w in wraps)
            if again or (
                not _trains_after(scene, part.inner, order) and not _loops_back(scene, event, part.inner)
            ):
                continue
            if not _really_moves(scene, event, part.inner) or not _seen_moved(scene, part.inner, wraps[0]):
                continue
            yield found(
                "moved-after-wrap",
                scene.location(event),
                say("the model is moved or cast after DDP was built over it"),
                related=[scene.location(wraps[0], say("DDP is built here"))],
                call_path=scene.path(event),
                fix=say("move and cast first, then wrap"),
            )


def _copied(model: Instance | int) -> bool:
    """True for a copy of a model, which is another model."""
    return isinstance(model, Instance) and "copy_of" in model.fields


def _loops_back(scene: Scene, event: Event, model: Instance | int) -> bool:
    """True when a loop around an event trains the model in its next turn."""
    return any(
        model in {unwrapped(m) for m in e.extra.get("models", ()) if isinstance(m, Instance)}
        for loop in scene.loops(event)
        for e in scene.inside(loop, "backward")
    )


def _moves_of(scene: Scene, model: Instance | int) -> list[Event]:
    """The events that move a whole model, in order."""
    moves = []
    for event in scene.of("move"):
        part = part_of(scene, next(leaves(event.receiver)))
        if part is not None and part.inner == model and not part.path and not part.what:
            moves.append(event)
    return moves


def _really_moves(scene: Scene, event: Event, model: Instance | int) -> bool:
    """False for a move to where the model is already."""
    order = scene.order(event)
    before = [e for e in _moves_of(scene, model) if scene.order(e) < order]
    target = _target(event)
    if target == "to_empty":
        return False  # the model was on the meta device: wrapped-before-device
    if any(isinstance(v, Unknown) and v.label == "dtype" for v in event.extra.get("args", ())):
        return False  # to the type of something else, which may be its own
    if target == "float":
        return any(_target(e) in ("half", "double", "bfloat16") for e in before)
    for earlier in reversed(before):
        if _target(earlier) == target:
            return False
        if _target(earlier) in ("cpu", "cuda") or target in ("cpu", "cuda"):
            break
    return not (target == "cpu" and not before)


def _target(event: Event) -> object:
    """What an event moves to: the method's name, or the device or type that `.to` was given."""
    method = event.name.rpartition(".")[2]
    if method != "to":
        return method
    values = [v for name, v in event.args.items() if name in ("device", "dtype", "other")] or list(
        event.extra.get("args", ())
    )
    for value in values:
        held = constant(value)
        if held is not None:
            return held
        if isinstance(value, Unknown):
            return value.key
        name = getattr(value, "name", "")
        if name:
            return str(name).rpartition(".")[2]
    return method


def _seen_moved(scene: Scene, model: Instance | int, wrap: Event) -> bool:
    """False where a first move only brings a model to its device: that is another fault (wrapped-before-device)."""
    devices = given_of(wrap, "device_ids")
    before = [e for e in _moves_of(scene, model) if scene.order(e) < scene.order(wrap)]
    return bool(before) or devices is NONE or (constant(devices) is None and not isinstance(devices, Items))


@finds("wrapped-before-device")
def wrapped_before_device(program: Program) -> Iterator[Finding]:
    """DDP over a model on the meta device, or with device_ids over one that was never brought to a device."""
    for scene in scenes(program):
        for event in wrappers(scene):
            wrapper = event.result
            if not isinstance(wrapper, Instance) or wrapper.kind != "ddp":
                continue
            if len(list(leaves(given_of(event, "module")))) > 1:
                continue  # one of several
            model = unwrapped(wrapper)
            moves = [e for e in _moves_of(scene, model) if scene.order(e) < scene.order(event)]
            if _on_meta(scene, event, model) and not any(e.name.endswith("to_empty") for e in moves):
                message = say("DDP is built over a model on the meta device, whose weights come later")
            elif _wants_devices(event) and not moves and _on_processor(scene, event, model):
                message = say("DDP is given devices, and the model is still on the processor")
            else:
                continue
            yield found(
                "wrapped-before-device",
                scene.location(event),
                message,
                call_path=scene.path(event),
                fix=say("bring the model to its device first, then wrap"),
            )


def _on_meta(scene: Scene, wrap: Event, model: Instance | int) -> bool:
    """True for a model made on the meta device."""
    if isinstance(model, Instance):
        made = next((e for e in scene.of("module") if e.result is model), None)
        if constant(given(model, "device")) == "meta" or (
            made is not None and constant(given_of(made, "device")) == "meta"
        ):
            return True
        if _inside_meta(scene, model.path, model.line):
            return True
    line = _bound_at(scene, wrap)
    return line is not None and _inside_meta(scene, str(wrap.site.path), line)


def _inside_meta(scene: Scene, path: str, line: int) -> bool:
    around = enclosing(scene.program, path, line)
    return any(
        e.kind == "with" and re.search(r"device\(\s*[\"']meta|init_empty_weights|init_on_device", e.test)
        for e in around
    )


def _bound_at(scene: Scene, wrap: Event) -> int | None:
    """The line that last bound the name that DDP is given."""
    node = wrap.site.node
    name = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if not isinstance(name, ast.Name):
        return wrap.site.line
    function = scene.program.function_at(wrap.site.path, wrap.site.line)
    tree = function.node if function is not None else scene.program.module(wrap.site.path).tree
    lines = [
        n.lineno
        for n in (syntax.walk(tree) if tree is not None else ())
        if isinstance(n, ast.Assign) and n.lineno < wrap.site.line
        and any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)
    ]  # fmt: skip
    return max(lines, default=None)


def _wants_devices(event: Event) -> bool:
    devices = given_of(event, "device_ids")
    return isinstance(devices, Items) and bool(devices.items)


def _on_processor(scene: Scene, wrap: Event, model: Instance | int) -> bool:
    """True for a model that surely is on the processor: a class of the program or of torch that moves nothing."""
    places = [(str(wrap.site.path), _bound_at(scene, wrap))]
    if isinstance(model, Instance):
        places.append((model.path, model.line))
    for path, line in places:
        around = enclosing(scene.program, path, line) if line is not None else ()
        if any(e.kind == "with" and "device" in e.test for e in around):
            return False
    if isinstance(model, Instance):
        if model.cls is not None:
            return not _MOVES.search(ast.unparse(model.cls.node))
        return model.name.startswith(("torch.nn.", "torchvision.models."))
    node = wrap.site.node
    builder = builder_of(scene, wrap, node.args[0]) if isinstance(node, ast.Call) and node.args else None
    return builder is not None and not _MOVES.search(ast.unparse(builder.node))
