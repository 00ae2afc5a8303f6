"""Mixed precision and the order of a training step: scale, backward, unscale, clip, step, update, clear."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, say
from ...source import syntax
from ...source.values import FALSE, NONE, FunctionValue, Instance, Unknown, Value
from ..loaders import given
from ..models import WRAPPED, gradient_of, owner_of, part_of, parts_of, unwrapped
from ..scene import Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...source.program import Program
    from ...source.trace import Event, Loop

_CLEARS = re.compile(
    r"zero_grad|\.grad\s*=\s*None|grad\.zero_|grad\.data\.zero_|grad\.detach_|zero_grads|clear_grad"
)
_BENDS = frozenset(
    [
        "clamp",
        "clamp_",
        "clip",
        "clip_",
        "norm",
        "sign",
        "where",
        "nan_to_num",
        "minimum",
        "maximum",
        "max",
        "min",
        "tanh",
    ]
)
"""What a gradient hook can do that the mean over the ranks does not pass through."""


def _same_step(scene: Scene, one: Event, other: Event) -> bool:
    """True when two events can happen in one turn of one loop."""
    return scene.loops(one) == scene.loops(other) and not scene.exclusive(one, other)


def _scaler(event: Event) -> Instance | None:
    """The gradient scaler that an event is a method of; None when it is another object, or one switched off."""
    for leaf in leaves(event.receiver):
        if isinstance(leaf, Instance) and leaf.kind == "scaler" and given(leaf, "enabled") is not FALSE:
            return leaf
    return None


def _scaled(scene: Scene, backward: Event) -> Instance | None:
    """The scaler that scaled the loss of a backward."""
    loss = backward.extra.get("loss", NONE)
    inside = set(syntax.walk(backward.site.node))
    for event in scene.of("scale"):
        if scene.order(event) > scene.order(backward) or not _same_step(scene, event, backward):
            continue
        if event.site.node in inside or _same_value(event.args.get("loss", NONE), loss):
            return _scaler(event)
    return None


def _same_value(one: Value, other: Value) -> bool:
    if isinstance(one, Unknown) and isinstance(other, Unknown):
        return one.key == other.key
    return one is other and one is not NONE


def _backward_before(scene: Scene, event: Event) -> Event | None:
    """The last backward before an event, in its turn of the loop."""
    for backward in reversed(scene.of("backward")):
        if scene.order(backward) < scene.order(event) and _same_step(scene, backward, event):
            return backward
    return None


def _optimizer(event: Event) -> Instance | None:
    """The optimizer that a step or clearing is of: the receiver, or the scaler's argument."""
    asked = event.args.get("optimizer", NONE) if _scaler(event) is not None else event.receiver
    return next((v for v in leaves(asked) if isinstance(v, Instance) and v.kind == "optimizer"), None)


@finds("scaler-order")
def scaler_order(program: Program) -> Iterator[Finding]:
    """The methods of a GradScaler out of order: one too often, one missing, one too early."""
    for scene in scenes(program):
        for event in scene.of("unscale"):
            yield from _unscaled_too_often(scene, event)
        for event in scene.of("step"):
            yield from _step_amiss(scene, event)


def _unscaled_too_often(scene: Scene, event: Event) -> Iterator[Finding]:
    """unscale_ in every micro-batch, update once a window: the second one raises RuntimeError."""
    loops = scene.loops(event)
    scaler = _scaler(event)
    if not loops or scaler is None:
        return
    mine = scene.tests(event, loops[-1])
    updates = [e for e in scene.of("update") if _scaler(e) is scaler and scene.loops(e) == loops]
    narrower = bool(updates) and all(set(mine) < set(scene.tests(e, loops[-1])) for e in updates)
    if narrower and any(_counts(scene, e, loops[-1], mine) for e in updates):
        yield found(
            "scaler-order",
            scene.location(event),
            say("unscale_ runs in every micro-batch, update only once a window: the second call raises"),
            related=[scene.location(updates[0], say("updated here"))],
            call_path=scene.path(event),
            fix=say("unscale once, right before clipping and step"),
        )


def _counts(scene: Scene, event: Event, loop: Loop, outside: Mapping[tuple[int, str], object]) -> bool:
    """True when an event stands under a test that counts turns: one that has a remainder in it."""
    for key, enclosure in scene.tests(event, loop).items():
        if key not in outside and is_counting(scene, event, getattr(enclosure.node, "test", None)):
            return True
    return False


def is_counting(scene: Scene, event: Event, test: ast.expr | None) -> bool:
    """True for a test on the number of the turn: a remainder, or a name that was bound to one."""
    if test is None:
        return False
    names = set()
    for node in syntax.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return True
        if isinstance(node, ast.Name):
            names.add(node.id)
    for site in event.site.chain():
        function = scene.program.function_at(site.path, site.line)
        tree = function.node if function is not None else scene.program.module(site.path).tree
        for node in syntax.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.Assign):
                continue
            bound = any(isinstance(t, ast.Name) and t.id in names for t in node.targets)
            if bound and any(
                isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in syntax.walk(node.value)
            ):
                return True
    return False


def _step_amiss(scene: Scene, event: Event) -> Iterator[Finding]:
    scaler = _scaler(event)
    backward = _backward_before(scene, event)
    if backward is None:
        return
    if scaler is None:
        used = _scaled(scene, backward)
        if used is not None and _optimizer(event) is not None:
            yield found(
                "scaler-order",
                scene.location(event),
                say("the gradients are still scaled, and the optimizer steps by itself"),
                related=[scene.location(backward, say("the loss is scaled here"))],
                call_path=scene.path(event),
                fix=say("scaler.step(optimizer), then scaler.update()"),
            )
        return
    updates = [e for e in scene.of("update") if _scaler(e) is scaler]
    if not any(_scaler(e) is scaler for e in scene.of("scale")):
        message = say("scaler.step unscales gradients that were never scaled: backward takes the plain loss")
    elif not updates:
        message = say("scaler.update is never called, so the scale never adapts")
    else:
        early = [e for e in updates if scene.loops(e) == scene.loops(event) and not scene.exclusive(e, event)]
        if early and all(scene.order(e) < scene.order(event) for e in early):
            yield found(
                "scaler-order",
                scene.location(early[0]),
                say("scaler.update runs before scaler.step: it raises, as no inf checks were recorded"),
                related=[scene.location(event, say("the step"))],
                call_path=scene.path(early[0]),
                fix=say("scaler.step(optimizer), then scaler.update()"),
            )
        return
    yield found(
        "scaler-order",
        scene.location(event),
        message,
        call_path=scene.path(event),
        fix=say("scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"),
    )


@finds("clip-scaled")
def clip_scaled(program: Program) -> Iterator[Finding]:
    """Gradients clipped between a scaled backward and unscale_: the bound is that of the scaled ones."""
    for scene in scenes(program):
        for event in scene.of("clip"):
            backward = _backward_before(scene, event)
            scaler = _scaled(scene, backward) if backward is not None else None
            if backward is None or scaler is None:
                continue
            between = scene.between(backward, event)
            if any(e.kind in ("unscale", "step") and not scene.exclusive(e, event) for e in between):
                continue
            yield found(
                "clip-scaled",
                scene.location(event),
                say("the gradients are clipped while they are still multiplied by the loss scale"),
                related=[scene.location(backward, say("scaled here"))],
                call_path=scene.path(event),
                fix=say("scaler.unscale_(optimizer) before clipping"),
            )


@finds("gradients-cleared")
def gradients_cleared(program: Program) -> Iterator[Finding]:
    """zero_grad between backward and step, in every micro-batch of a window, or never."""
    for scene in scenes(program):
        told: set[Instance] = set()
        for event in scene.of("step"):
            optimizer = _optimizer(event)
            if optimizer is None or not scene.loops(event) or optimizer in told:
                continue
            clears = [e for e in scene.of("zero_grad") if _clears(scene, e, optimizer)]
            finding = (
                _lost(scene, event, clears) or _window_lost(scene, event, clears) or _never(scene, event)
            )
            if finding is not None:
                told.add(optimizer)
                yield finding


def _clears(scene: Scene, event: Event, optimizer: Instance) -> bool:
    """True when a zero_grad clears what an optimizer steps: its own, or that of the model that it holds."""
    for leaf in leaves(event.receiver):
        if leaf is optimizer:
            return True
        part = part_of(scene, leaf)
        if part is not None and not (isinstance(leaf, Instance) and leaf.kind == "optimizer"):
            held = parts_of(scene, given(optimizer, "params"))
            if any(p is not None and p.inner == part.inner for p in held):
                return True
    return False


def _lost(scene: Scene, step: Event, clears: list[Event]) -> Finding | None:
    """A clearing after backward and before the step."""
    for clear in clears:
        if scene.order(clear) > scene.order(step) or not _same_step(scene, clear, step):
            continue
        backward = _backward_before(scene, clear)
        between = [
            e for e in scene.between(clear, step) if e.kind == "backward" and not scene.exclusive(e, step)
        ]
        if backward is None or between:
            continue
        # A step before the clearing belongs to that backward: this turn's gradients are those of the next.
        stepped = [
            e
            for e in scene.between(backward, clear)
            if e.kind == "step" and _optimizer(e) is _optimizer(step)
        ]
        if stepped:
            continue
        return found(
            "gradients-cleared",
            scene.location(clear),
            say("zero_grad clears what backward has just computed: the step does nothing"),
            related=[scene.location(backward, say("computed here")), scene.location(step, say("the step"))],
            call_path=scene.path(clear),
            fix=say("clear before backward, or after the step"),
        )
    return None


def _window_lost(scene: Scene, step: Event, clears: list[Event]) -> Finding | None:
    """A clearing in every micro-batch where the step comes once a window: all but the last are lost."""
    loop = scene.loops(step)[-1]
    backward = _backward_before(scene, step)
    if backward is None:
        return None
    outside = scene.tests(backward, loop)
    if set(scene.tests(step, loop)) <= set(outside) or not _counts(scene, step, loop, dict(outside)):
        return None
    for clear in clears:
        always = scene.loops(clear) == scene.loops(step) and set(scene.tests(clear, loop)) <= set(outside)
        if always and clear.site.path == step.site.path and not _counts(scene, clear, loop, {}):
            return found(
                "gradients-cleared",
                scene.location(clear),
                say("zero_grad runs in every micro-batch, the step once a window: all but the last are lost"),
                related=[scene.location(step, say("the step"))],
                call_path=scene.path(clear),
                fix=say("clear after the step"),
            )
    return None


def _never(scene: Scene, step: Event) -> Finding | None:
    """A step in a loop of a program that clears no gradient anywhere."""
    backward = _backward_before(scene, step)
    if backward is None or scene.of("zero_grad"):
        return None
    if any(event.name == "grad" for event in scene.of("set")):
        return None
    if scene.program.speaks(scene.run.entry.path, _CLEARS):
        return None
    return found(
        "gradients-cleared",
        scene.location(step),
        say("gradients are never cleared, so each step adds all that came before"),
        related=[scene.location(backward, say("added to here"))],
        call_path=scene.path(step),
        fix=say("optimizer.zero_grad() in every turn"),
    )


@finds("clip-before-sync")
def clip_before_sync(program: Program) -> Iterator[Finding]:
    """Gradients bent on each rank before they are averaged: a hook on parameters, clipping before the reduction."""
    for scene in scenes(program):
        told: set[int] = set()
        for event in scene.of("grad_hook"):
            part = owner_of(scene, event)
            hook = event.args.get("hook", NONE)
            if part is None or part.what not in ("parameters", "named_parameters") or event.site.line in told:
                continue
            if not _averaged(scene, part.inner) or not _bends(hook):
                continue
            told.add(event.site.line)
            yield found(
                "clip-before-sync",
                scene.location(event),
                say("the hook changes each rank's own gradient, before DDP averages them"),
                call_path=scene.path(event),
                fix=say("clip after backward, when the gradients are averaged"),
            )
        for event in scene.of("clip"):
            yield from _clipped_early(scene, event)


def _averaged(scene: Scene, model: Instance | int) -> bool:
    """True when DDP averages the gradients of a model."""
    wrapped = [
        e.result for e in scene.of("wrap") if isinstance(e.result, Instance) and e.result.kind in WRAPPED
    ]
    return any(unwrapped(w) == model for w in wrapped)


def _bends(hook: Value) -> bool:
    """True for a hook that returns something else than a multiple of the gradient."""
    if not isinstance(hook, FunctionValue):
        return False
    node = hook.node
    if isinstance(node, ast.Lambda):
        given_back: list[ast.expr] = [node.body]
    else:
        given_back = [n.value for n in syntax.walk(node) if isinstance(n, ast.Return) and n.value is not None]
    for expression in given_back:
        if isinstance(expression, ast.Call) and getattr(expression.func, "attr", "") in (
            "append",
            "add",
            "update",
            "put",
        ):
            continue
        for inner in syntax.walk(expression):
            name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
            if name in _BENDS:
                return True
    return False


def _clipped_early(scene: Scene, event: Event) -> Iterator[Finding]:
    backward = _backward_before(scene, event)
    if backward is None:
        return
    if "no_sync" in event.within and "no_sync" in backward.within:
        yield found(
            "clip-before-sync",
            scene.location(event),
            say("each rank clips the gradients of its own micro-batch, which are not averaged yet"),
            call_path=scene.path(event),
            fix=say("clip once a window, after the backward that synchronises"),
        )
        return
    for later in scene.of("collective"):
        if (
            scene.order(later) < scene.order(event)
            or gradient_of(scene, later.args.get("tensor", NONE)) is None
        ):
            continue
        if scene.loops(event) == scene.loops(later)[: len(scene.loops(event))] and not scene.exclusive(
            event, later
        ):
            yield found(
                "clip-before-sync",
                scene.location(event),
                say("each rank clips its own gradients, and only then are they averaged"),
                related=[scene.location(later, say("averaged here"))],
                call_path=scene.path(event),
                fix=say("average first, then clip"),
            )
            return
