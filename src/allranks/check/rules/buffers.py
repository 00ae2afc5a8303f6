"""Buffers: batch norm over a rank's own few samples, and SyncBatchNorm where it cannot work."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, say
from ...source import syntax
from ...source.flow import Enclosure, enclosing
from ...source.program import Function, Program, dotted_name
from ...source.values import FALSE, NONE, Instance, Unknown, Value
from ..loaders import constant, given, loaders_of
from ..models import builder_of, part_of, unwrapped
from ..scene import Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ...source.trace import Event

_FEW = 3
"""Samples a rank up to which the statistics of a batch say nothing."""
_BATCH_NORM = re.compile(r"\bBatchNorm[123]?d?\b")
_BUILT_WITH = re.compile(
    r"torchvision\.models\.(?!vit|swin|convnext|alexnet|squeezenet|vgg\d+$)\w*(resne|densenet|mobilenet|inception|efficientnet|regnet|_bn)"
)


_LAYER = say("a BatchNorm layer")


@finds("local-batch-norm")
def local_batch_norm(program: Program) -> Iterator[Finding]:
    """A model with BatchNorm, trained on two or three samples a rank: each rank normalises by its own few.

    Quiet when the model is converted to SyncBatchNorm or its statistics are frozen, and when the batch size is not
    to be seen.
    """
    for scene in scenes(program):
        for event in scene.of("wrap"):
            wrapper = event.result
            if not isinstance(wrapper, Instance) or wrapper.kind != "ddp" or not scene.shared(event):
                continue
            if scene.of("sync_bn") or _frozen(scene, wrapper):
                continue
            layer, size = _batch_norm(scene, event), _batch_size(scene, wrapper)
            if layer is not None and size is not None and size <= _FEW:
                yield found(
                    "local-batch-norm",
                    scene.location(event),
                    say("BatchNorm normalises over the {count} samples of each rank alone", count=size),
                    related=[layer],
                    call_path=scene.path(event),
                    fix=say(
                        "SyncBatchNorm.convert_sync_batchnorm before DDP, or a norm that does not look at the batch"
                    ),
                )


def _batch_size(scene: Scene, wrapper: Instance) -> int | None:
    """Samples a rank in the loop that trains a model."""
    for loop in scene.training_loops:
        if not any(wrapper in e.extra.get("models", ()) for e in scene.inside(loop, "backward")):
            continue
        for loader in loaders_of(loop.over):
            if given(loader, "batch_sampler") is not NONE:
                return None
            value = given(loader, "batch_size")
            if value is NONE:
                return 1 if loader.cls is None and "batch_size" not in loader.fields else None
            return number(scene, value)
    return None


def number(scene: Scene, value: Value) -> int | None:
    """A whole number: a constant, or the default of the command-line option that it is read from."""
    held = constant(value)
    if isinstance(held, int):
        return held
    if not isinstance(value, Unknown) or not value.label:
        return None
    for event in scene.of("add_argument"):
        names = [str(constant(v)).lstrip("-").replace("-", "_") for v in event.extra.get("args", ())]
        default = constant(event.args.get("default", NONE))
        if value.label in (*names, constant(event.args.get("dest", NONE))) and isinstance(default, int):
            return default
    return None


def _frozen(scene: Scene, wrapper: Instance) -> bool:
    """True when the model, or a part of it, is put into eval mode and not taken out again before training."""
    inner = unwrapped(wrapper)
    modes = []
    for event in scene.of("mode"):
        part = part_of(scene, next(leaves(event.receiver)))
        if part is not None and part.inner == inner:
            off = event.name.endswith(".eval") or event.args.get("mode") is FALSE
            modes.append((scene.order(event), off))
    backwards = [scene.order(e) for e in scene.of("backward")]
    before = [off for order, off in modes if backwards and order < backwards[0]]
    return bool(before) and before[-1]


def _batch_norm(scene: Scene, wrap: Event) -> Location | None:
    """Where the model that is wrapped surely gets a BatchNorm layer."""
    for leaf in leaves(wrap.args.get("module", NONE)):
        if isinstance(leaf, Instance):
            return _of_instance(scene, leaf, 0)
    # Not seen from inside: the function that builds it may say so in its text.
    node = wrap.site.node
    built = builder_of(scene, wrap, node.args[0]) if isinstance(node, ast.Call) and node.args else None
    return _of_text(scene.program, built.module.path, built.node, 0) if built is not None else None


def _of_instance(scene: Scene, value: Instance, depth: int) -> Location | None:
    if _BATCH_NORM.search(value.name) or _BUILT_WITH.match(value.name):
        return Location(value.path, value.line, role=_LAYER)
    if value.cls is not None:
        return _of_text(scene.program, value.cls.home.module.path, value.cls.node, depth)
    if depth >= 5:
        return None
    parts = [leaf for field in value.fields.values() for leaf in leaves(field)]
    places = (_of_instance(scene, p, depth + 1) for p in parts if isinstance(p, Instance) and p is not value)
    return next((place for place in places if place is not None), None)


def _of_text(program: Program, path: Path, node: ast.AST, depth: int) -> Location | None:
    """Where code names BatchNorm, itself or in what it calls of the program."""
    kept: dict[tuple[ast.AST, int], Location | None] = program.kept.setdefault("batch_norm", {})
    if (node, depth) not in kept:
        kept[node, depth] = _read(program, path, node, depth)
    return kept[node, depth]


def _read(program: Program, path: Path, node: ast.AST, depth: int) -> Location | None:
    module = program.module(path)
    for inner in syntax.walk(node):
        if (
            isinstance(inner, ast.Name | ast.Attribute)
            and _BATCH_NORM.search(name := dotted_name(inner))
            and "Sync" not in name
        ):
            return Location(str(path), inner.lineno, inner.col_offset + 1, role=_LAYER)
        if isinstance(inner, ast.Call) and depth < 4 and (called := dotted_name(inner.func)):
            target = program.resolve(module, called)
            place = None
            if isinstance(target, Function) and target.node is not node:
                place = _of_text(program, target.module.path, target.node, depth + 1)
            elif isinstance(target, ast.ClassDef) and target is not node:
                place = _of_text(program, path, target, depth + 1)
            if place is not None:
                return place
    return None


@finds("sync-batch-norm-misplaced")
def sync_batch_norm_misplaced(program: Program) -> Iterator[Finding]:
    """convert_sync_batchnorm after the wrap, whose reducer holds the old layers, or in a job of processors."""
    for scene in scenes(program):
        for event in scene.of("sync_bn"):
            module = event.args.get("module", NONE)
            if _already_wrapped(scene, event, module):
                yield found(
                    "sync-batch-norm-misplaced",
                    scene.location(event),
                    say("the model is converted after DDP was built over it"),
                    call_path=scene.path(event),
                    fix=say("convert first, then wrap"),
                )
            elif _on_processors(scene, event):
                yield found(
                    "sync-batch-norm-misplaced",
                    scene.location(event),
                    say("SyncBatchNorm runs on accelerators only, and this job is one of processors"),
                    call_path=scene.path(event),
                    fix=say("convert only where there are accelerators"),
                )


def _already_wrapped(scene: Scene, event: Event, module: Value) -> bool:
    """True when DDP holds a model at an event, and is not built anew after it."""
    order = scene.order(event)
    for leaf in leaves(module):
        part = part_of(scene, leaf)
        if part is None or part.path:
            return False
        wraps = [
            w
            for w in scene.of("wrap")
            if isinstance(w.result, Instance) and w.result.kind == "ddp" and unwrapped(w.result) == part.inner
        ]
        if any(scene.order(w) < order and not scene.exclusive(w, event) for w in wraps):
            return not any(scene.order(w) > order for w in wraps)
    return False


def _on_processors(scene: Scene, event: Event) -> bool:
    """True for a gloo job in which nothing is moved to an accelerator."""
    inits = [e for e in scene.of("init") if e.operation == "init_process_group"]
    backends = {constant(leaf) for e in inits for leaf in leaves(e.args.get("backend", NONE))}
    if backends != {"gloo"} or any("cuda" in e.test or "gpu" in e.test.lower() for e in _tests(scene, event)):
        return False
    devices = [v for e in scene.of("move", "device", "set_device") for v in (*e.args.values(), e.receiver)]
    names = [str(constant(leaf)) for value in devices for leaf in leaves(value)]
    return not any("cuda" in name for name in names) and not any(
        e.name.endswith(".cuda") for e in scene.of("move")
    )


def _tests(scene: Scene, event: Event) -> Iterator[Enclosure]:
    for site in event.site.chain():
        yield from enclosing(scene.program, site.path, site.line)
