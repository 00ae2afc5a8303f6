"""Launch, continued: which accelerator a rank uses, and which backend serves it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, Severity, say
from ...source import syntax
from ...source.flow import enclosing
from ...source.lanes import LANES
from ...source.program import dotted_name
from ...source.values import NONE, Items, PerLane, Unknown, Value
from ..loaders import constant
from ..scene import PER_NODE, Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Module, Program
    from ...source.trace import Event

NODES = say("with several nodes")

_OWN_DEVICES = re.compile(
    r"CUDA_VISIBLE_DEVICES|with torch\.cuda\.device\(|HIP_VISIBLE_DEVICES|set_default_device"
)
"""What gives a process its device in a way that `set_device` does not show."""
_DROPPED = ("torch.cuda.device", "torch.accelerator.device_index", "torch.accelerator.device")
_MADE = re.compile(
    r"torch\.(zeros|ones|empty|full|rand|randn|randint|randperm|arange|eye|linspace|from_numpy"
    r"|FloatTensor|LongTensor|IntTensor|DoubleTensor|BoolTensor|ByteTensor|Tensor)$"
)
_KEEPS = frozenset(
    [
        "float",
        "double",
        "half",
        "long",
        "int",
        "bool",
        "byte",
        "clone",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "sum",
        "mean",
        "flatten",
        "contiguous",
        "detach",
        "type",
        "t",
        "repeat",
        "expand",
    ]
)
_DEFAULT_DEVICE = re.compile(r"set_default_device|set_default_tensor_type|with torch\.device\(")


@finds("device-not-bound")
def device_not_bound(program: Program) -> Iterator[Finding]:
    """Ranks that share an accelerator, or that take the rank for the number of a device; once for each script.

    Quiet where something else gives each process its device, and without accelerators.
    """
    for scene in scenes(program):
        if program.speaks(scene.run.entry.path, _OWN_DEVICES):
            continue
        if not any(e.operation == "init_process_group" for e in scene.of("init")):
            continue
        finding = _dropped_context(scene) or _one_device(scene)
        if finding is None:
            as_devices = list(_rank_as_device(scene))
            yield from as_devices
            finding = _never_set(scene) if not as_devices else None
        if finding is not None:
            yield finding


def _all_ranks(scene: Scene, event: Event) -> bool:
    return scene.by_all(event) and scene.shared(event)


def _one_device(scene: Scene) -> Finding | None:
    """`torch.cuda.set_device(0)` on every rank."""
    for event in scene.of("set_device"):
        values = [_index(leaf) for leaf in leaves(event.args.get("device", NONE))]
        if _all_ranks(scene, event) and len(values) == 1 and isinstance(values[0], int):
            return found(
                "device-not-bound",
                scene.location(event),
                say("every rank uses device {index}", index=values[0]),
                call_path=scene.path(event),
                fix=say("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"),
            )
    return None


def _index(value: Value) -> object:
    """The number of a device: of an int, or of "cuda:0"."""
    held = constant(value)
    if isinstance(held, str):
        match = re.fullmatch(r"cuda:(\d+)", held)
        return int(match[1]) if match else None
    return held if type(held) is int else None


def _rank_as_device(scene: Scene) -> Iterator[Finding]:
    """The rank over all nodes as the index of a device; once for each function."""
    if scene.one_node:
        return
    told: set[object] = set()
    for event in [*scene.of("set_device"), *scene.of("device"), *scene.of("move"), *scene.of("wrap")]:
        given = [event.args.get(name, NONE) for name in ("device", "index", "type", "device_ids")]
        given += [item for value in given if isinstance(value, Items) for item in value.items]
        function = scene.program.function_at(event.site.path, event.site.line)
        if function not in told and any(_is_rank(scene, value) for value in given) and scene.by_all(event):
            told.add(function)
            yield found(
                "device-not-bound",
                scene.location(event),
                say(
                    "the rank is taken for the index of a device: on the second node there is none of that number"
                ),
                severity=Severity.WARNING,
                condition=NODES,
                call_path=scene.path(event),
                fix=say("use LOCAL_RANK for the device"),
            )


def _is_rank(scene: Scene, value: Value) -> bool:
    """True for the rank on every lane, which is not the local rank on the second node.

    Not for what counts as the rank only because init_process_group was given it: it may be a local one.
    """
    if not isinstance(value, PerLane):
        return False
    inits = {(str(e.site.path), e.site.line) for e in scene.of("init")}
    if value.origin is not None and (value.origin.path, value.origin.line) in inits:
        return False
    held = [constant(item) for item in value.items]
    if all(isinstance(item, str) for item in held):
        held = [_index(item) for item in value.items]
    return held == [lane.rank for lane in LANES]


def _never_set(scene: Scene) -> Finding | None:
    """A model on the current device, which nobody has set on these ranks."""
    both = scene.run.decisions.both
    named = {event.result.key: event for event in scene.of("device") if isinstance(event.result, Unknown)}
    for event in scene.of("move"):
        method = event.name.rpartition(".")[2]
        device = event.args.get("device", NONE)
        if method not in ("cuda", "to") or not _all_ranks(scene, event):
            continue
        source = next(
            (named[v.key] for v in leaves(device) if isinstance(v, Unknown) and v.key in named), None
        )
        if not _current(device, method, source):
            continue
        earlier = [s for s in scene.of("set_device") if scene.order(s) < scene.order(event)]
        reaches = [scene.reach(both(s.guard, event.guard)) for s in earlier if not scene.exclusive(s, event)]
        if any(reach.many >= PER_NODE or not reach.sure for reach in reaches):
            continue
        place = source if source is not None and _all_ranks(scene, source) else event
        return found(
            "device-not-bound",
            scene.location(place),
            say("every rank uses the current device, which is never set: all share device 0"),
            call_path=scene.path(place),
            fix=say("torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is moved"),
        )
    return None


def _current(device: Value, method: str, source: Event | None) -> bool:
    """True for the accelerator without a number."""
    if source is not None:
        index = source.args.get("index", NONE)
        return index is NONE and any(constant(v) == "cuda" for v in leaves(source.args.get("type", NONE)))
    if device is NONE:
        return method == "cuda"
    return any(constant(leaf) == "cuda" for leaf in leaves(device))


def _dropped_context(scene: Scene) -> Finding | None:
    """`torch.cuda.device(i)` as a statement: a context manager that is made and dropped."""
    if scene.of("set_device"):
        return None
    for path in scene.program.closure(scene.run.entry.path):
        text = scene.program.text(path)
        if not any(name.rpartition(".")[2] + "(" in text for name in _DROPPED):
            continue
        module = scene.program.module(path)
        for node in syntax.walk(module.tree) if module.tree is not None else ():
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
                continue
            if scene.program.resolve(module, dotted_name(node.value.func)) in _DROPPED:
                return found(
                    "device-not-bound",
                    _at(scene, module, node),
                    say(
                        "this context manager is made and dropped: the device is not set, and all ranks use device 0"
                    ),
                    fix=say("set the device: torch.cuda.set_device, torch.accelerator.set_device_index"),
                )
    return None


def _at(scene: Scene, module: Module, node: ast.stmt) -> Location:
    function = scene.program.function_at(module.path, node.lineno)
    name = function.name if function is not None else None
    return Location(str(module.path), node.lineno, node.col_offset + 1, name, node.end_lineno)


@finds("backend-device-mismatch")
def backend_device_mismatch(program: Program) -> Iterator[Finding]:
    """A tensor of the processor in a collective over NCCL, or ranks that choose different backends.

    A tensor counts as the processor's when the function makes it without a device and moves it nowhere.
    """
    for scene in scenes(program):
        inits = [e for e in scene.of("init") if e.operation == "init_process_group"]
        for event in inits:
            backend = event.args.get("backend", NONE)
            if isinstance(backend, PerLane) and len({constant(v) for v in backend.items} - {None}) > 1:
                yield found(
                    "backend-device-mismatch",
                    scene.location(event),
                    say("the ranks choose different backends, and never meet"),
                    call_path=scene.path(event),
                    fix=say("choose the backend alike on every rank"),
                )
        backends = {constant(leaf) for event in inits for leaf in leaves(event.args.get("backend", NONE))}
        texts = [program.text(path) for path in program.closure(scene.run.entry.path)]
        if "nccl" not in backends or None in backends or any(map(_DEFAULT_DEVICE.search, texts)):
            continue
        yield from _on_processor(scene, only=backends == {"nccl"})


def _on_processor(scene: Scene, *, only: bool) -> Iterator[Finding]:
    for event in scene.of("collective"):
        if not event.name.startswith("torch.distributed.") or "object" in event.name:
            continue
        if event.args.get("group", NONE) is not NONE or not scene.shared(event):
            continue
        node = event.site.node
        tensor = _tensor(event, node) if isinstance(node, ast.Call) else None
        if tensor is None or not _made_on_processor(scene, event, tensor, 0):
            continue
        yield found(
            "backend-device-mismatch",
            scene.location(event),
            say("{call} gets a tensor of the processor, which NCCL does not serve", call=event.operation),
            condition=None if only else say("with NCCL"),
            call_path=scene.path(event),
            fix=say("make the tensor on the rank's device"),
        )


def _tensor(event: Event, node: ast.Call) -> ast.expr | None:
    """The expression of the tensor that a collective sends."""
    names = {"all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter": 0}
    position = names.get(event.operation, 0)
    for keyword in node.keywords:
        if keyword.arg in ("tensor", "input_tensor"):
            return keyword.value
    return node.args[position] if position < len(node.args) else None


def _made_on_processor(scene: Scene, event: Event, node: ast.expr, depth: int) -> bool:
    """True when an expression surely gives a tensor of the processor."""
    if depth > 4:
        return False
    if isinstance(node, ast.Name):
        made = _last_assignment(scene, event, node)
        return made is not None and _made_on_processor(scene, event, made, depth + 1)
    if isinstance(node, ast.IfExp):
        sides = (node.body, node.orelse)
        return any(_made_on_processor(scene, event, side, depth + 1) for side in sides)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "cpu" and not node.args:
        return True
    module = scene.program.module(event.site.path)
    name = scene.program.resolve(module, dotted_name(node.func)) if dotted_name(node.func) else None
    if isinstance(name, str) and name.startswith("torch."):
        if any(keyword.arg == "device" for keyword in node.keywords):
            return False
        if name in ("torch.tensor", "torch.as_tensor"):
            return bool(node.args) and _of_numbers(node.args[0])
        return bool(_MADE.match(name)) and "cuda" not in name
    if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
        return _made_on_processor(scene, event, node.func.value, depth + 1)
    return False


def _of_numbers(node: ast.expr) -> bool:
    """True for what holds Python numbers: `torch.tensor` of a tensor stays on that tensor's device."""
    if isinstance(node, ast.List | ast.Tuple | ast.ListComp):
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called in ("item", "tolist", "len", "float", "int", "bool", "sum")
    return isinstance(node, ast.BinOp) and (_of_numbers(node.left) or _of_numbers(node.right))


def _last_assignment(scene: Scene, event: Event, name: ast.Name) -> ast.expr | None:
    """What a local name was last bound to before the event, in the text of its function."""
    function = scene.program.function_at(event.site.path, event.site.line)
    tree = function.node if function is not None else scene.program.module(event.site.path).tree
    best: tuple[int, ast.expr] | None = None
    around = {id(e.node) for e in enclosing(scene.program, event.site.path, event.site.line)}
    for node in syntax.walk(tree) if tree is not None else ():
        bound: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            bound = node.targets
        elif isinstance(node, ast.AnnAssign | ast.For | ast.AsyncFor):
            bound = [node.target]
        if not bound or node.lineno >= event.site.line or (best is not None and node.lineno < best[0]):  # type: ignore[attr-defined]
            continue
        names = {n.id for target in bound for n in syntax.walk(target) if isinstance(n, ast.Name)}
        if name.id in names:
            plain = isinstance(node, ast.Assign | ast.AnnAssign) and all(
                isinstance(t, ast.Name) for t in bound
            )
            value = node.value if plain and isinstance(node, ast.Assign | ast.AnnAssign) else None
            outer = enclosing(scene.program, event.site.path, node.lineno)  # type: ignore[attr-defined]
            if not {id(e.node) for e in outer} <= around:
                value = None  # bound on one way of several
            best = (node.lineno, value or ast.Constant(None))  # type: ignore[attr-defined]
    return best[1] if best is not None else None
