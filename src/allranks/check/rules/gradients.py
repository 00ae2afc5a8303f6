"""Gradients: which parameters are trained, how often they are reduced, and by which ranks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, say
from ...source import syntax
from ...source.values import NONE, FunctionValue, Instance
from ..models import Part, gradient_of, params_of, part_of, parts_of, unwrapped, whole_of
from ..scene import Scene, leaves, scenes
from . import finds, found
from .layers import held_outside, trained_fields
from .wrapping import wrappers, wraps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Program
    from ...source.trace import Event

_DIVIDES = re.compile(
    r"(/=?|div_?\(|mul_?\()[^\n]*(world|size|num_|nprocs|n_gpus|ngpus|n_procs|count|len\()|ReduceOp\.AVG|op=[\"']avg|gradient_predivide",
    re.IGNORECASE,
)


@finds("optimizer-mismatch")
def optimizer_mismatch(program: Program) -> Iterator[Finding]:
    """An optimizer that holds another model than the one that DDP wraps, or not all of it.

    Quiet when a parameter comes from where it cannot be traced, and for what is frozen.
    """
    for scene in scenes(program):
        events = [e for e in scene.of("optimizer") if isinstance(e.result, Instance)]
        held = {id(e): list(parts_of(scene, params_of(e))) for e in events}
        for event in events:
            parts = held[id(event)]
            if not parts or None in parts:
                continue
            yield from _other_model(scene, event, [p for p in parts if p is not None])
        every = [p for parts in held.values() for p in parts]
        added = [
            p for e in scene.of("add_param_group") for p in parts_of(scene, e.args.get("param_group", NONE))
        ]
        if events and None not in every and None not in added:
            yield from _left_out(scene, events, held, [p for p in (*every, *added) if p is not None])


def _other_model(scene: Scene, event: Event, parts: list[Part]) -> Iterator[Finding]:
    """The optimizer's model is not what is trained: it was replaced, copied, or got a new layer."""
    order = scene.order(event)
    models = {whole_of(scene, part).inner for part in parts}
    trained = {
        unwrapped(m)
        for e in scene.of("backward")
        for m in e.extra.get("models", ())
        if isinstance(m, Instance)
    }
    known = all(isinstance(m, Instance) for m in trained)
    if (
        len(models) == 1
        and trained
        and known
        and not models & trained
        and not any(wraps_of(scene, m) for m in models)
    ):
        forward = {id(leaf) for e in scene.of("forward") for leaf in leaves(e.receiver)}
        if any(isinstance(m, Instance) and id(m) in forward for m in models):
            return
        wrap = next((w for m in trained for w in wraps_of(scene, m)), None)
        if wrap is not None and not _covered(scene, trained):
            yield found(
                "optimizer-mismatch",
                scene.location(event),
                say("the optimizer holds a model that is not the one that is trained"),
                related=[scene.location(wrap, say("this one is wrapped and trained"))],
                call_path=scene.path(event),
                fix=say("build the optimizer from the parameters of the wrapped model"),
            )
        return
    for change in scene.of("set", "set_module"):
        part = part_of(scene, next(leaves(change.receiver)))
        if scene.order(change) < order or part is None or part.inner not in models:
            continue
        added = change.result
        new = isinstance(added, Instance) and added.kind == "module" and not _parameterless(added)
        begun = [scene.order(e) for e in scene.of("backward")]
        if new and begun and scene.order(change) < begun[0] and not scene.exclusive(change, event):
            yield found(
                "optimizer-mismatch",
                scene.location(event),
                say(
                    "the optimizer is made before a layer of the model is replaced: it never trains the new one"
                ),
                related=[scene.location(change, say("replaced here"))],
                call_path=scene.path(event),
                fix=say("build the optimizer after the model is complete"),
            )
            return


def _covered(scene: Scene, models: set[Instance | int]) -> bool:
    """True when some optimizer holds one of the models."""
    for event in scene.of("optimizer"):
        for part in parts_of(scene, params_of(event)):
            if part is None or part.inner in models:
                return True
    return False


def _parameterless(value: Instance) -> bool:
    return bool(
        re.search(
            r"(ReLU|GELU|SiLU|Tanh|Sigmoid|Dropout\w*|Identity|Flatten|Softmax|Pool\w*|Upsample)$", value.name
        )
    )


def _left_out(
    scene: Scene, events: list[Event], held: dict[int, list[Part | None]], parts: list[Part]
) -> Iterator[Finding]:
    """Fields of the wrapped model that no optimizer holds, though some hold other fields of it."""
    for wrap in wrappers(scene):
        model = unwrapped(wrap.result) if isinstance(wrap.result, Instance) else None
        if not isinstance(model, Instance) or model.cls is None:
            continue
        mine = [part for part in parts if part.inner == model]
        if not mine or any(not part.path for part in mine):
            continue
        fields = trained_fields(scene.program, model.cls)
        frozen = _frozen_fields(scene, model)
        if fields is None or frozen is None or not {part.path[0] for part in mine} <= fields:
            continue
        missing = sorted(fields - {part.path[0] for part in mine} - frozen)
        event = next(
            (e for e in events if any(p is not None and p.inner == model for p in held[id(e)])),
            None,
        )
        if missing and event is not None:
            yield found(
                "optimizer-mismatch",
                scene.location(event),
                say(
                    "the optimizer is not given {fields}, which DDP reduces and nothing trains",
                    fields=", ".join(missing),
                ),
                related=[scene.location(wrap, say("wrapped here"))],
                call_path=scene.path(event),
                fix=say("give every trained parameter to an optimizer, or freeze it before the wrap"),
            )


def _frozen_fields(scene: Scene, model: Instance) -> frozenset[str] | None:
    """The fields of a model that are frozen somewhere; None when all of it may be."""
    found_fields = set()
    for event in scene.of("set", "freeze"):
        if event.kind == "set" and event.name != "requires_grad":
            continue
        part = part_of(scene, next(leaves(event.receiver)))
        if part is None or part.inner != model:
            continue
        if not part.path:
            return None
        found_fields.add(part.path[0])
    return frozenset(found_fields)


@finds("unregistered-parameter")
def unregistered_parameter(program: Program) -> Iterator[Finding]:
    """Layers or trained tensors in a plain list, dict or attribute of a model that DDP wraps.

    A class is looked at where the program wraps a model at all; lists of what has no parameters are right.
    """
    for scene in scenes(program):
        if not any(scene.shared(event) for event in wrappers(scene)):
            continue
        for path in program.closure(scene.run.entry.path):
            module = program.module(path)
            for place, name, what in held_outside(program, module):
                yield found(
                    "unregistered-parameter",
                    place,
                    say(
                        "self.{name} holds layers in a plain {what}: they are not parameters of the model",
                        name=name,
                        what=what,
                    )
                    if what in ("list", "dict")
                    else say("self.{name} is a plain tensor: it is not a parameter of the model", name=name),
                    fix=say("nn.ModuleList, nn.ModuleDict or nn.Parameter"),
                )


@finds("reduced-twice-or-unscaled")
def reduced_twice_or_unscaled(program: Program) -> Iterator[Finding]:
    """Gradients that are reduced by hand: on top of DDP's own reduction, or summed and never divided."""
    for scene in scenes(program):
        for event in scene.of("collective"):
            if not event.operation.startswith(("all_reduce", "reduce")):
                continue
            part = gradient_of(scene, event.args.get("tensor", NONE))
            if part is not None and scene.shared(event):
                yield from _reduced(scene, event, part)
        for event in scene.of("comm_hook"):
            hook = event.args.get("hook", NONE)
            if isinstance(hook, FunctionValue):
                yield from _hook_sums(scene, event, hook)


def _reduced(scene: Scene, event: Event, part: Part) -> Iterator[Finding]:
    averaged = [
        w for w in wraps_of(scene, part.inner) if isinstance(w.result, Instance) and w.result.kind == "ddp"
    ]
    backwards = [e for e in scene.of("backward") if scene.order(e) < scene.order(event)]
    if averaged:
        own = [e for e in backwards if e.communicates == 2]
        if own and not any("no_sync" in e.within for e in scene.of("backward")):
            yield found(
                "reduced-twice-or-unscaled",
                scene.location(event),
                say("DDP has already averaged these gradients, and they are reduced once more"),
                related=[scene.location(averaged[0], say("DDP wraps the model here"))],
                call_path=scene.path(event),
                fix=say("take the reduction by hand out"),
            )
        return
    operation = event.args.get("op", NONE)
    name = getattr(operation, "name", "")
    if name.endswith(("AVG", "MAX", "MIN")) or not backwards or _divided(scene, event, backwards[-1]):
        return
    yield found(
        "reduced-twice-or-unscaled",
        scene.location(event),
        say(
            "the gradients are summed over the ranks and never divided: the learning rate grows with their number"
        ),
        call_path=scene.path(event),
        fix=say("divide by dist.get_world_size(), or reduce with ReduceOp.AVG"),
    )


def _divided(scene: Scene, *events: Event) -> bool:
    """True when a function on the way to these events divides by what may be the number of ranks."""
    for event in events:
        for site in event.site.chain():
            function = scene.program.function_at(site.path, site.line)
            text = scene.program.text(site.path)
            body = text if function is None else ast.get_source_segment(text, function.node) or ""
            if _DIVIDES.search(body):
                return True
    return False


def _hook_sums(scene: Scene, event: Event, hook: FunctionValue) -> Iterator[Finding]:
    """A communication hook that all-reduces the bucket and divides nowhere."""
    text = ast.unparse(hook.node)
    if re.search(r"/|div|AVG|mean|average|mul", text):
        return
    for node in syntax.walk(hook.node):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "all_reduce"
        ):
            yield found(
                "reduced-twice-or-unscaled",
                Location(str(hook.home.module.path), node.lineno, node.col_offset + 1, hook.name),
                say(
                    "the communication hook sums the gradients, where DDP's own divides by the number of ranks"
                ),
                related=[scene.location(event, say("registered here"))],
                fix=say("divide the bucket by dist.get_world_size() before reducing it"),
            )
            return


@finds("backward-rank-conditional")
def backward_rank_conditional(program: Program) -> Iterator[Finding]:
    """A backward through DDP on some ranks only: the others never join its reduction."""
    for scene in scenes(program):
        told: set[int] = set()
        for event in scene.of("backward"):
            reach = scene.reaches(event)
            if (
                event.communicates != 2
                or not scene.shared(event)
                or not reach.sure
                or event.site.line in told
            ):
                continue
            together = event.guard
            for other in scene.of("backward"):
                if scene.loops(other) != scene.loops(event) and other.site.node is not event.site.node:
                    continue
                together = scene.run.decisions.either(together, other.guard)
            everyone = scene.reach(together).ranks
            if reach.ranks.mask and scene.partial(everyone.mask, event):
                told.add(event.site.line)
                yield found(
                    "backward-rank-conditional",
                    scene.location(event),
                    say(
                        "only {ranks} runs backward: the others never join its reduction",
                        ranks=str(reach.ranks),
                    ),
                    call_path=scene.path(event),
                    fix=say("let every rank run backward and step"),
                )
