"""Launch: processes, environment, process groups, devices."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ...findings import Finding, Severity, say
from ...source import syntax
from ...source.files import read
from ...source.flow import enclosing
from ...source.lanes import ALL, LANES
from ...source.values import NONE, Const, Kind, PerLane, Unknown, Value
from ..launchers import Launcher, launchers_of
from ..loaders import constant
from ..scene import Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...source.program import Program
    from ...source.trace import Event

NODES = say("with several nodes")

_INITIALISES = re.compile(
    r"init_process_group|init_distributed|init_device_mesh|Accelerator\(|PartialState|Fabric\(|Trainer\(|deepspeed"
    r"|hvd\.|init_rpc|notebook_launcher|setup_(ddp|dist|distributed|process)|ddp_setup|initialize_"
)
"""What makes a process group, here or in a library."""
_ADDRESS = re.compile(r"tcp://.*:(\d+)$")
_LAST_PORT = 65535


@finds("process-group-missing")
def process_group_missing(program: Program) -> Iterator[Finding]:
    """A group is used before it is made, or although nothing in the program makes one; the first use is told."""
    for scene in scenes(program):
        event = next((e for e in scene.events if _wants_group(e)), None)
        inits = scene.of("init")
        first = inits[0] if inits else None
        if event is None or not _without_group(scene, event, first) or _asks_first(scene, event):
            continue
        related = [scene.location(first, say("made here"))] if first is not None else []
        yield found(
            "process-group-missing",
            scene.location(event),
            say("{call} asks for a process group that is not there yet", call=_called(event))
            if first is not None
            else say(
                "{call} asks for a process group, and nothing in the program makes one", call=_called(event)
            ),
            related=related,
            call_path=scene.path(event),
            fix=say("call init_process_group first"),
        )


def _wants_group(event: Event) -> bool:
    if event.kind == "sampler" and event.name.endswith("DistributedSampler"):
        return not {"num_replicas", "rank"} <= event.args.keys()
    if event.kind == "wrap":
        return event.name.endswith("DistributedDataParallel") and not event.name.startswith("apex")
    return event.name.startswith("torch.distributed.") and event.kind in (
        "collective",
        "rank",
        "new_group",
        "p2p",
    )


def _asks_first(scene: Scene, event: Event) -> bool:
    """True under a test for whether there is a group, of the call itself or around it."""
    for site in event.site.chain():
        source = scene.program.module(site.path).source
        statement = source.statement_at(site.line)
        tests = [e.test for e in enclosing(scene.program, site.path, site.line)]
        said = getattr(statement, "test", None) or getattr(statement, "value", None)
        if isinstance(said, ast.expr):
            tests.append(source.segment(said))
        if any("initialized" in test for test in tests):
            return True
    return False


def _without_group(scene: Scene, event: Event, first: Event | None) -> bool:
    """True when no group can be there at an event: the earliest is made later, on the same ranks, or never."""
    if first is not None:
        later = scene.order(first) > scene.order(event)
        if not later or scene.child(first.site) != scene.child(event.site):
            return False
        # Made under another condition, it may have been made by a call that was not followed.
        return not scene.run.blind.get("call") and scene.by_all(event)
    texts = [scene.program.text(path) for path in scene.program.closure(scene.run.entry.path)]
    if any(_INITIALISES.search(text) for text in texts) or scene.run.blind.get("call"):
        return False
    return scene.by_all(event)


def _called(event: Event) -> str:
    return event.name.rpartition(".")[2]


@finds("rank-env-conflict")
def rank_env_conflict(program: Program) -> Iterator[Finding]:
    """Ranks or sizes that contradict the launcher, the number of spawned processes, or each other."""
    for scene in scenes(program):
        for event in scene.of("init"):
            if event.operation == "init_process_group":
                yield from _conflicts(scene, event)
        for event in scene.of("environ"):
            key, value = constant(event.args.get("key", NONE)), event.args.get("value", NONE)
            whole = event.guard == ALL and event.doubt is None and not scene.child(event.site)
            if (
                key == "RANK"
                and isinstance(value, Const)
                and whole
                and scene.launched
                and not scene.of("spawn")
            ):
                if event.name.endswith("setdefault"):
                    continue
                yield found(
                    "rank-env-conflict",
                    scene.location(event),
                    say(
                        "every process says that it is rank {rank}, whatever the launcher told it",
                        rank=value.value,
                    ),
                    call_path=scene.path(event),
                    fix=say("leave RANK and WORLD_SIZE to the launcher"),
                )


def _conflicts(scene: Scene, event: Event) -> Iterator[Finding]:
    rank, size = event.args.get("rank", NONE), event.args.get("world_size", NONE)
    spawn = _spawned_by(scene, event)
    if isinstance(constant(rank), int) and constant(rank) != -1:
        if scene.by_all(event) and constant(size) not in (1, None):
            yield found(
                "rank-env-conflict",
                scene.location(event),
                say("every process joins as rank {rank}", rank=constant(rank)),
                call_path=scene.path(event),
                fix=say("pass each process its own rank, or none: env:// reads it"),
            )
        return
    count = constant(spawn.args.get("nprocs", NONE)) if spawn is not None else None
    if (
        spawn is not None
        and isinstance(count, int)
        and isinstance(constant(size), int)
        and constant(size) != count
    ):
        if _is_local_rank(rank) and not scene.partial(scene.reaches(event).ranks.mask, event):
            yield found(
                "rank-env-conflict",
                scene.location(event),
                say(
                    "{spawned} processes are started for a group of {size}: it waits for the rest",
                    spawned=count,
                    size=constant(size),
                ),
                related=[scene.location(spawn, say("started here"))],
                call_path=scene.path(event),
                fix=say("let nprocs and world_size be one number"),
            )
        return
    if spawn is None and _is_local_rank(rank) and _is_world_size(size):
        yield found(
            "rank-env-conflict",
            scene.location(event),
            say("the group is joined under the local rank: two nodes have the same ranks"),
            severity=Severity.WARNING,
            condition=NODES,
            call_path=scene.path(event),
            fix=say("pass RANK, or neither rank nor world_size: env:// reads them"),
        )


def _spawned_by(scene: Scene, event: Event) -> Event | None:
    nodes = {site.node for site in event.site.chain()[:-1]}
    return next((e for e in scene.of("spawn") if e.site.node in nodes), None)


def _per_lane(value: Value) -> list[object]:
    return [constant(item) for item in value.items] if isinstance(value, PerLane) else []


def _is_local_rank(value: Value) -> bool:
    return _per_lane(value) == [lane.local_rank for lane in LANES]


def _is_world_size(value: Value) -> bool:
    return _per_lane(value) == [lane.world_size for lane in LANES]


@finds("local-rank-argument")
def local_rank_argument(program: Program) -> Iterator[Finding]:
    """A script that takes --local_rank under a spelling that its launcher does not pass.

    Which launcher is told by the files beside it. Without a word about it this is only a note: under torchrun an
    argument that nobody uses does no harm.
    """
    for scene in scenes(program):
        spelled: dict[str, Event] = {}
        for event in scene.of("add_argument"):
            for value in event.extra.get("args", ()):
                if constant(value) in ("--local_rank", "--local-rank") and not _by_version(scene, event):
                    spelled[str(constant(value))] = event
        if len(spelled) != 1:
            continue
        name, event = next(iter(spelled.items()))
        yield from _misspelled(scene, name, event)


def _by_version(scene: Scene, event: Event) -> bool:
    """True under a test on a version: the program knows that spellings differ."""
    around = enclosing(scene.program, event.site.path, event.site.line)
    return any(
        e.kind in ("if", "elif", "else") and re.search("version", e.test, re.IGNORECASE) for e in around
    )


def _misspelled(scene: Scene, name: str, event: Event) -> Iterator[Finding]:
    launchers = launchers_of(scene.program, scene.run.entry.path)
    default = ast.unparse(event.site.node)
    reads = any(
        re.search(r"LOCAL_RANK", scene.program.text(p)) for p in scene.program.closure(scene.run.entry.path)
    )
    if Launcher.LAUNCH in launchers and name == "--local_rank":
        severity, condition = Severity.ERROR, say("torch >= 2")
        message = say("torch.distributed.launch passes --local-rank, which this parser does not know")
    elif Launcher.TORCHRUN in launchers and constant(event.args.get("required", NONE)) is True:
        severity, condition = Severity.ERROR, None
        message = say("torchrun passes no {name}, and the parser insists on it", name=name)
    elif Launcher.TORCHRUN in launchers and not reads and _sets_device(scene):
        severity, condition = Severity.ERROR, None
        message = say("torchrun passes no {name}: every rank takes the default, and one device", name=name)
    elif name == "--local_rank" and "LOCAL_RANK" not in default:
        severity, condition = Severity.INFO, say("started by torch.distributed.launch of torch >= 2")
        message = say("torch.distributed.launch passes --local-rank, which this parser does not know")
    else:
        return
    yield found(
        "local-rank-argument",
        scene.location(event),
        message,
        severity=severity,
        condition=condition,
        call_path=scene.path(event),
        fix=say("read LOCAL_RANK from the environment; take both spellings where the old launcher is used"),
    )


def _sets_device(scene: Scene) -> bool:
    """True when the local rank of the arguments chooses the device."""
    for event in scene.of("set_device"):
        for leaf in leaves(event.args.get("device", NONE)):
            if isinstance(leaf, Unknown) and "local_rank" in leaf.label:
                return True
        if "local_rank" in ast.unparse(event.site.node):
            return True
    return False


@finds("process-group-not-destroyed")
def process_group_not_destroyed(program: Program) -> Iterator[Finding]:
    """A group that is never destroyed, or by some ranks only. Most programs do without, so this is a note."""
    for scene in scenes(program):
        inits = [e for e in scene.of("init") if e.operation == "init_process_group"]
        destroys = scene.of("destroy")
        if not inits or not scene.by_all(inits[0]):
            continue
        if not destroys:
            yield found(
                "process-group-not-destroyed",
                scene.location(inits[0]),
                say("the process group is never destroyed"),
                call_path=scene.path(inits[0]),
                fix=say("call destroy_process_group() at the end"),
            )
            continue
        reached: object = 0
        for event in destroys:
            reached = scene.run.decisions.either(reached, event.guard)  # type: ignore[arg-type]
        reach = scene.reach(reached)  # type: ignore[arg-type]
        if reach.sure and scene.partial(reach.ranks.mask, destroys[0]):
            yield found(
                "process-group-not-destroyed",
                scene.location(destroys[0]),
                say("only {ranks} destroys the process group", ranks=str(reach.ranks)),
                call_path=scene.path(destroys[0]),
                fix=say("let every rank destroy it"),
            )


@finds("spawn-without-main-guard")
def spawn_without_main_guard(program: Program) -> Iterator[Finding]:
    """Processes started by `spawn` while the script is imported: each child imports it, and would start more."""
    for scene in scenes(program):
        if scene.run.entry.path.suffix == ".ipynb":
            continue
        for event in scene.of("spawn"):
            outermost = event.site.chain()[0]
            if outermost.path != scene.run.entry.path or not _spawns(scene, event):
                continue
            around = enclosing(program, outermost.path, outermost.line)
            if outermost.function or any("__name__" in enclosure.test for enclosure in around):
                continue
            yield found(
                "spawn-without-main-guard",
                _started_at(event),
                say("every spawned process imports the script, comes here again and fails"),
                call_path=scene.path(event),
                fix=say('put it under if __name__ == "__main__":'),
            )
            break


def _spawns(scene: Scene, event: Event) -> bool:
    """True when processes are started anew rather than forked."""
    if "Process" not in event.name:
        return "fork" not in str(constant(event.args.get("start_method", NONE)))
    text = scene.program.text(event.site.path)
    return bool(
        re.search(r"(set_start_method|get_context)\(\s*(method\s*=\s*)?[\"'](spawn|forkserver)", text)
    )


def _started_at(event: Event) -> Location:
    """Where the processes start: the call itself, or the first `.start()` after a Process is made."""
    place = event.site.location()
    node = event.site.node
    if "Process" not in event.name or event.site.chain()[0] is not event.site:
        return place
    source = read(event.site.path)
    for call in syntax.walk(source.tree) if source.tree is not None else ():
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "start"
            and getattr(node, "lineno", 0) <= call.lineno
        ):
            return replace(place, line=call.lineno, column=call.col_offset + 1, end_line=call.end_lineno)
    return place


@finds("rendezvous-unreachable")
def rendezvous_unreachable(program: Program) -> Iterator[Finding]:
    """A port that cannot be, larger than 65535, or that each process draws for itself."""
    for scene in scenes(program):
        for event in scene.of("environ", "init"):
            if event.kind == "environ" and constant(event.args.get("key", NONE)) == "MASTER_PORT":
                value = event.args.get("value", NONE)
                port = constant(value)
            else:
                value = event.args.get("init_method", NONE)
                address = _ADDRESS.match(str(constant(value)))
                port = address[1] if address is not None else None
            draw = _drawn_by_each(scene, value)
            if draw is not None and scene.by_all(event):
                yield found(
                    "rendezvous-unreachable",
                    scene.location(draw),
                    say("each process draws a port of its own, so that they do not meet"),
                    related=[scene.location(event, say("the rendezvous is there"))],
                    call_path=scene.path(draw),
                    fix=say("draw the port once, before the processes are started, and hand it to them"),
                )
            if isinstance(port, str | int) and str(port).isdecimal() and int(port) > _LAST_PORT:
                yield found(
                    "rendezvous-unreachable",
                    scene.location(event),
                    say("there is no port {port}: the last one is {last}", port=port, last=_LAST_PORT),
                    call_path=scene.path(event),
                    fix=say("choose a free port below {last}, or let torchrun choose one", last=_LAST_PORT),
                )


def _drawn_by_each(scene: Scene, value: Value) -> Event | None:
    """The draw of random numbers, made in every process, that a value comes from."""
    starts = {event.site.node for event in scene.of("spawn")}
    for leaf in leaves(value):
        origin = leaf.origin if isinstance(leaf, Unknown) and leaf.kind is Kind.DATA else None
        for draw in scene.of("random"):
            if origin is None or (str(draw.site.path), draw.site.line) != (origin.path, origin.line):
                continue
            # What is drawn before processes are started, all of them are given.
            inside = not starts or any(site.node in starts for site in draw.site.chain())
            if origin.cause == "random" and inside and scene.by_all(draw):
                return draw
    return None
