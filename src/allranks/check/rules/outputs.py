"""Outputs: files, checkpoints, metrics and lines of text that several ranks write, read or report."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, Severity, Text, say
from ...source import syntax
from ...source.decisions import symbols_of
from ...source.flow import enclosing
from ...source.lanes import RANK_ZERO
from ...source.values import NONE, Const, External, Instance, Kind, PerLane, Table, Unknown, Value
from ..loaders import Share, loaders_of, share
from ..models import Part, part_of
from ..scene import NOBODY, ONE, PER_NODE, SEVERAL, Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...source.program import Program
    from ...source.trace import Event, Loop
    from ...source.values import Origin

NODES = say("with several nodes that share the folder")

_NOWHERE = re.compile(r"^(/dev/|nul$|con$|-$)", re.IGNORECASE)
_WRITES = re.compile(r"[wax]")
_CUDA = re.compile(r"\.cuda\(|[\"']cuda|nccl")
_PREFIX = re.compile(r"[\"']module\.|consume_prefix|[\"']module[\"']\s*(in|not in)")
_ON_RANKS = re.compile(r"rank|master|main_process|is_main|gpu", re.IGNORECASE)
_SENT_AWAY = re.compile(r"stdout\s*=\s*(?!\S*PIPE)")
_LABELLED = re.compile(r"rank|gpu|device|process", re.IGNORECASE)


@finds("duplicate-writer")
def duplicate_writer(program: Program) -> Iterator[Finding]:
    """A file, event folder or tracker that several ranks open for writing under one name.

    A name that differs between ranks is right, and so is one that nobody can tell: from a call that is not known.
    """
    for scene in scenes(program):
        for event in scene.of("writer", "tracker", "file_handler", "open", "write"):
            many = _shared_target(scene, event)
            if not scene.reaches(event).ranks.mask & RANK_ZERO:
                continue  # what only the others write was thought of for them
            if many in (SEVERAL, PER_NODE) and _opens(event):
                place, related = _decided_at(scene, event)
                yield found(
                    "duplicate-writer",
                    place,
                    _writing(event, many),
                    related=related,
                    severity=Severity.WARNING if many == PER_NODE else None,
                    condition=NODES if many == PER_NODE else None,
                    call_path=scene.path(event),
                    fix=say("open it on rank 0 only, or put the rank into its name"),
                )


def _decided_at(scene: Scene, event: Event) -> tuple[Location, list[Location]]:
    """Where it is decided which ranks write: the event, or the call of a helper under a test on ranks.

    The second is the event itself, where the first is a call.
    """
    for site in reversed(event.site.chain()):
        tests = [
            e for e in enclosing(scene.program, site.path, site.line) if e.kind in ("if", "elif", "else")
        ]
        if any(_ON_RANKS.search(test.test) for test in tests):
            if site.node is event.site.node:
                break
            return site.location(), [scene.location(event, say("written here"))]
    return scene.location(event), []


def _opens(event: Event) -> bool:
    """True for an event that opens something for writing."""
    if event.kind == "open":
        mode = event.args.get("mode", NONE)
        return isinstance(mode, Const) and isinstance(mode.value, str) and bool(_WRITES.search(mode.value))
    return True


def _writing(event: Event, many: int) -> Text:
    who = say("every rank") if many == SEVERAL else say("one rank of every node")
    if event.kind == "writer":
        return say("{who} opens a writer of events in one folder", who=who)
    if event.kind == "tracker":
        return say("{who} starts a run of its own with {call}", who=who, call=event.operation or event.name)
    if event.kind == "file_handler":
        return say("{who} logs into one file", who=who)
    return say("{who} writes one file", who=who)


def _shared_target(scene: Scene, event: Event) -> int:
    """How many ranks surely write the one target of an event; NOBODY when it is a rank's own or not known."""
    reach = scene.reaches(event, files=event.kind == "load")
    if event.kind == "tracker" and any(scene.differs(v) is not Kind.UNIFORM for v in event.args.values()):
        return NOBODY  # a name, a group or a mode for each rank
    if not reach.sure or reach.many in (NOBODY, ONE) or not scene.shared(event):
        return NOBODY
    for target in _targets(event):
        kind = scene.differs(target)
        if kind is not Kind.UNIFORM:
            return NOBODY
        if isinstance(target, Const) and isinstance(target.value, str) and _NOWHERE.match(target.value):
            return NOBODY
        if isinstance(target, External):
            return NOBODY  # os.devnull, sys.stderr
        if isinstance(target, Instance) and target.kind not in ("path", ""):
            return NOBODY  # an object in memory, or one that is opened elsewhere
        if isinstance(target, Instance) and re.search(r"IO$|[Tt]emp", target.name):
            return NOBODY
    return reach.many


def _targets(event: Event) -> list[Value]:
    """What says where an event writes."""
    names = {
        "writer": ("log_dir", "logdir"),
        "file_handler": ("filename",),
        "open": ("file",),
        "save": ("f",),
        "load": ("f",),
        "write": ("dst", "file"),
    }.get(event.kind, ())
    given = [event.args[name] for name in names if name in event.args]
    if event.name.endswith((".write_text", ".write_bytes", "path.open")):
        return [event.receiver]
    return given


@finds("checkpoint-race")
def checkpoint_race(program: Program) -> Iterator[Finding]:
    """A checkpoint that several ranks write under one name, or that one reads while another still writes."""
    for scene in scenes(program):
        saves = scene.of("save")
        for event in saves:
            many = _shared_target(scene, event)
            if many in (SEVERAL, PER_NODE):
                who = say("every rank") if many == SEVERAL else say("one rank of every node")
                place, related = _decided_at(scene, event)
                yield found(
                    "checkpoint-race",
                    place,
                    say("{who} saves to one file, at the same time", who=who),
                    related=related,
                    severity=Severity.WARNING if many == PER_NODE else None,
                    condition=NODES if many == PER_NODE else None,
                    call_path=scene.path(event),
                    fix=say("save on rank 0 only (dist.get_rank() == 0)"),
                )
        for event in scene.of("load"):
            yield from _read_too_soon(scene, event, saves)


def _read_too_soon(scene: Scene, event: Event, saves: list[Event]) -> Iterator[Finding]:
    """A load on several ranks of what one rank has just saved, without a collective between them."""
    if scene.reaches(event).many < PER_NODE or not scene.shared(event):
        return
    for save in reversed(saves):
        if scene.order(save) > scene.order(event) or not _same_target(save, event):
            continue
        between = scene.between(save, event)
        one = scene.reaches(save).many == ONE
        if one and not any(e.communicates == 2 for e in between):
            yield found(
                "checkpoint-race",
                scene.location(event),
                say("the other ranks may read the checkpoint before rank 0 has written it"),
                related=[scene.location(save, say("written here, on one rank"))],
                call_path=scene.path(event),
                fix=say("put dist.barrier() between saving and loading"),
            )
        return


def _same_target(one: Event, other: Event) -> bool:
    """True when two events surely mean one file."""
    a, b = one.args.get("f", NONE), other.args.get("f", NONE)
    if isinstance(a, Const) and isinstance(b, Const):
        return bool(a.value == b.value)
    return isinstance(a, Unknown) and isinstance(b, Unknown) and a.key == b.key


@finds("load-on-one-device")
def load_on_one_device(program: Program) -> Iterator[Finding]:
    """A checkpoint that every rank loads onto the device it was saved from, in a program that uses accelerators.

    Only what goes into a model or optimizer is looked at: other files hold tensors of the processor, mostly.
    """
    for scene in scenes(program):
        for event in scene.of("load"):
            many = _shared_target(scene, event) if _targets(event) else NOBODY
            if many < PER_NODE or not _uses_cuda(scene) or not _restores(scene, event):
                continue
            if _saved_from_processor(scene, event):
                continue
            place = event.args.get("map_location", NONE)
            options = [v.value if isinstance(v, Const) else v for v in leaves(place)]
            if all(option is None for option in options):
                message = say("every rank loads the checkpoint onto the device that it was saved from")
            elif all(isinstance(option, str) and option in ("cuda", "cuda:0") for option in options):
                if any(option == "cuda" for option in options):
                    continue  # the current device of each rank
                message = say("every rank loads the checkpoint onto the first device")
            else:
                continue
            yield found(
                "load-on-one-device",
                scene.location(event),
                message,
                call_path=scene.path(event),
                fix=say('torch.load(..., map_location="cpu"), or the rank\'s own device'),
            )


def _saved_from_processor(scene: Scene, load: Event) -> bool:
    """True for a file that the same run saves, of a model that it moved to the processor before."""
    saves = [save for save in scene.of("save") if _same_target(save, load)]
    return any(
        event.name.endswith(".cpu") and event.site.caller is save.site.caller
        for save in saves
        for event in scene.of("move")
        if scene.order(event) < scene.order(save)
    )


def _uses_cuda(scene: Scene) -> bool:
    """True when the program speaks of an accelerator."""
    return scene.program.speaks(scene.run.entry.path, _CUDA)


def _restores(scene: Scene, load: Event) -> bool:
    """True when what was loaded goes into load_state_dict."""
    for event in scene.of("load_state"):
        state = event.args.get("state_dict", NONE)
        if any(scene.comes_from(leaf, load.result) for leaf in leaves(state)) or _by_name(scene, load, event):
            return True
    return False


def _by_name(scene: Scene, load: Event, use: Event) -> bool:
    """True when a name that a load binds is used in a later call of the same function."""
    function = scene.program.function_at(load.site.path, load.site.line)
    tree = function.node if function is not None else scene.program.module(load.site.path).tree
    if tree is None or not isinstance(use.site.node, ast.Call) or use.site.path != load.site.path:
        return False
    bound = {
        target.id
        for node in syntax.walk(tree)
        if isinstance(node, ast.Assign) and any(part is load.site.node for part in syntax.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    inside = any(node is use.site.node for node in syntax.walk(tree))
    names = {n.id for arg in use.site.node.args for n in syntax.walk(arg) if isinstance(n, ast.Name)}
    return inside and bool(bound & names)


@finds("state-dict-prefix")
def state_dict_prefix(program: Program) -> Iterator[Finding]:
    """A state dict of the wrapper loaded into a model without, or the reverse: every key is off by "module.".

    Quiet where the program speaks of the prefix: it takes it off or puts it on somewhere.
    """
    for scene in scenes(program):
        if program.speaks(scene.run.entry.path, _PREFIX):
            continue
        for event in scene.of("load_state"):
            target = _one(part_of(scene, leaf) for leaf in leaves(event.receiver))
            strict = event.args.get("strict", NONE)
            if target is None or target.path or (isinstance(strict, Const) and strict.value is False):
                continue
            for source, saved in _saved(scene, event):
                if source.path or source.what != "state_dict" or source.wrapped == target.wrapped:
                    continue
                yield found(
                    "state-dict-prefix",
                    scene.location(event),
                    say('the state dict was taken of the wrapper and has "module." before every key')
                    if source.wrapped
                    else say(
                        'the state dict was taken of the model, and the wrapper wants "module." before every key'
                    ),
                    related=[scene.location(saved, say("saved here"))] if saved is not None else [],
                    call_path=scene.path(event),
                    fix=say("save and load model.module.state_dict(), with and without DDP"),
                )
                break


def _one(parts: Iterable[Part | None]) -> Part | None:
    """The part that all are; None when they differ or one is not known."""
    found_parts = list(parts)
    first = found_parts[0] if found_parts else None
    return first if first is not None and all(part == first for part in found_parts) else None


def _saved(scene: Scene, event: Event) -> Iterator[tuple[Part, Event | None]]:
    """The state dicts that an event may load: given to it in this run, or saved to the file that it reads."""
    state = event.args.get("state_dict", NONE)
    direct = _one(part_of(scene, leaf) for leaf in leaves(state))
    if direct is not None and direct.what == "state_dict":
        yield direct, None
        return
    for leaf in leaves(state):
        for load in scene.of("load"):
            if not scene.comes_from(leaf, load.result) or not isinstance(leaf, Unknown):
                continue
            for save in scene.of("save"):
                if not _same_target(save, load):
                    continue
                kept = _kept_under(scene, save.args.get("obj", NONE), leaf, load.result)
                part = _one(part_of(scene, option) for option in leaves(kept)) if kept is not None else None
                if part is not None:
                    yield part, save


def _kept_under(scene: Scene, saved: Value, loaded: Unknown, whole: Value) -> Value | None:
    """What of `saved` comes back as `loaded`: all of it, or the item of one key."""
    if isinstance(whole, Unknown) and loaded.key == whole.key:
        return saved
    derivation = scene.run.derivations.get(loaded.key)
    if derivation is not None and derivation[0] == "item" and isinstance(saved, Table):
        index = derivation[2]
        return saved.items.get(index[2]) if isinstance(index, tuple) and index[0] == "c" else None
    return None


@finds("metric-not-reduced")
def metric_not_reduced(program: Program) -> Iterator[Finding]:
    """A number of one rank's own samples decides for all: the learning rate, or which checkpoint is the best."""
    for scene in scenes(program):
        for event in scene.of("scheduler_step"):
            metric = event.args.get("metrics", NONE)
            loop = _own_samples(scene, metric, event)
            if loop is not None and scene.reaches(event).many >= PER_NODE and scene.shared(event):
                yield found(
                    "metric-not-reduced",
                    scene.location(event),
                    say(
                        "each rank steps the schedule by a metric of its own samples, so learning rates part"
                    ),
                    related=[loop.site.location(say("computed over this rank's samples"))],
                    call_path=scene.path(event),
                    fix=say("all_reduce the metric first"),
                )
        for event in scene.of("save"):
            yield from _best_of_one_rank(scene, event)


def _best_of_one_rank(scene: Scene, event: Event) -> Iterator[Finding]:
    """A checkpoint that rank 0 saves because its own metric is the best so far."""
    decisions = scene.run.decisions
    for branch in event.branch.chain() if event.branch is not None else ():
        if not isinstance(branch.site.node, ast.If) or "best" not in ast.unparse(branch.site.node.test):
            continue
        for number in symbols_of(branch.after):
            symbol = decisions.symbols[number]
            loop = _loop_at(scene, symbol.origin, event) if symbol.kind is Kind.DATA else None
            if loop is not None and scene.shared(event):
                yield found(
                    "metric-not-reduced",
                    branch.site.location(),
                    say("what rank 0 has seen of the samples decides which checkpoint is the best"),
                    related=[loop.site.location(say("computed over this rank's samples"))],
                    call_path=scene.path(event),
                    fix=say("all_reduce the metric first"),
                )
                return


def _own_samples(scene: Scene, value: Value, event: Event) -> Loop | None:
    """The loop over a rank's own samples that a value was computed in; None when it was reduced or is not known."""
    for leaf in leaves(value):
        if isinstance(leaf, Unknown) and leaf.kind is Kind.DATA:
            return _loop_at(scene, leaf.origin, event) or _last_own_loop(scene, event)
    return None


def _last_own_loop(scene: Scene, event: Event) -> Loop | None:
    """The last loop over a rank's own samples before an event, if nothing was reduced since."""
    for loop in reversed(scene.all_loops):
        loaders = list(loaders_of(loop.over))
        drawn = not loaders and _draws_samples(scene, loop)
        if scene.order(loop) > scene.order(event) or not (loaders or drawn):
            continue
        if any(e.kind == "collective" for e in scene.between(loop, event)):
            return None
        return loop if drawn or all(share(scene, loader) is Share.OWN for loader in loaders) else None
    return None


def _draws_samples(scene: Scene, loop: Loop) -> bool:
    """True for a loop that trains or evaluates on random numbers, which each rank draws for itself."""
    draws = [e.result for e in scene.inside(loop, "random") if scene.loops(e)[-1] is loop]
    return bool(scene.inside(loop, "forward")) and any(
        isinstance(drawn, Unknown) and drawn.kind is Kind.DATA for drawn in draws
    )


def _loop_at(scene: Scene, origin: Origin | None, event: Event) -> Loop | None:
    """The loop over a rank's own samples at a place, if nothing was reduced between it and an event."""
    if origin is None or origin.cause not in ("batch", "loss"):
        return None
    held = [
        loop
        for loop in scene.all_loops
        if (str(loop.site.path), loop.site.line) == (origin.path, origin.line)
        and scene.order(loop) < scene.order(event)
    ]
    # A generator's loop serves several loaders.
    loaders = [loader for loop in held for loader in loaders_of(loop.over)]
    if not loaders or any(share(scene, loader) is not Share.OWN for loader in loaders):
        return None
    reduced = any(e.kind == "collective" for e in scene.between(held[-1], event))
    return None if reduced else held[-1]


@finds("output-from-every-rank")
def output_from_every_rank(program: Program) -> Iterator[Finding]:
    """A line or progress bar of the training loop that every rank shows; once for each script and kind.

    Quiet when print is replaced, when the line says whose it is, and outside of loops: a word at the start of
    each rank does no harm.
    """
    for scene in scenes(program):
        if any(event.name == "builtins.print" for event in scene.of("patch")) or _redirected(scene):
            continue
        for kind in ("print", "progress"):
            event = next((e for e in scene.of(kind) if _shown_by_all(scene, e)), None)
            if event is not None:
                yield found(
                    "output-from-every-rank",
                    _in_loop(scene, event),
                    say("every rank prints the same progress")
                    if kind == "print"
                    else say("every rank draws this progress bar"),
                    call_path=scene.path(event),
                    fix=say("print on rank 0 only")
                    if kind == "print"
                    else say("tqdm(..., disable=rank != 0)"),
                )


def _redirected(scene: Scene) -> bool:
    """True beside a launcher of the program's own that sends away what the processes print."""
    texts = [scene.program.text(path) for path in sorted(scene.run.entry.path.parent.glob("*.py"))]
    return any("Popen(" in t and "sys.executable" in t and _SENT_AWAY.search(t) for t in texts)


def _in_loop(scene: Scene, event: Event) -> Location:
    """The call in the loop itself that shows something, through a helper or not."""
    loops = scene.loops(event)
    if loops:
        nodes = {node for node in syntax.walk(loops[-1].site.node) if isinstance(node, ast.Call)}
        for site in event.site.chain():
            if site.node in nodes:
                return site.location()
    return scene.location(event)


def _shown_by_all(scene: Scene, event: Event) -> bool:
    reach = scene.reaches(event)
    if reach.many != SEVERAL or not reach.sure or not scene.shared(event):
        return False
    args = [*event.extra.get("args", ()), *event.args.values()]
    if event.kind == "progress":
        disable = event.args.get("disable", NONE)
        if isinstance(event.args.get("iterable", NONE), PerLane):
            return False  # some ranks have nothing to go over
        return _trains(scene, event) and all(isinstance(v, Const) and not v.value for v in leaves(disable))
    if any(scene.differs(arg) in (Kind.NODE, Kind.RANK, Kind.GROUP) for arg in args):
        return False
    if not isinstance(event.args.get("file", NONE), Const | External):
        return False  # a line of a file
    if _once(scene, event) or _of_data(scene, event):
        return False
    named = ast.unparse(event.site.node)
    return bool(scene.loops(event)) and _trains(scene, event) and not _LABELLED.search(named)


def _once(scene: Scene, event: Event) -> bool:
    """True for what is said right before a loop is left."""
    around = enclosing(scene.program, event.site.path, event.site.line)
    body: list[ast.stmt] = getattr(around[0].node, "body", []) if around else []
    inside = any(event.site.node is node for statement in body for node in syntax.walk(statement))
    return inside and isinstance(body[-1], ast.Break | ast.Return | ast.Raise)


def _of_data(scene: Scene, event: Event) -> bool:
    """True for what a rank says of its own samples alone."""
    symbols = scene.run.decisions.symbols
    return event.doubt is Kind.DATA or any(symbols[n].kind is Kind.DATA for n in symbols_of(event.guard))


def _trains(scene: Scene, event: Event) -> bool:
    """True for an event in the loop over epochs or steps, or at the head of one."""
    child = scene.child(event.site)
    around = next((loop for loop in scene.loops(event) if scene.child(loop.site) or not child), None)
    if around is not None:
        return bool(scene.inside(around, "backward", "step"))
    nodes = {node for loop in scene.training_loops for node in syntax.walk(loop.site.node)}
    return event.site.node in nodes
