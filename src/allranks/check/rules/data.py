"""Data: which samples each rank reads, in which order, and with which randomness."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, Location, Severity, say
from ...source import syntax
from ...source.lanes import LANES
from ...source.values import NONE, Const, Instance, Items, Kind, PerLane, Unknown, Value
from ..loaders import Share, constant, distributed_sampler, given, loaders_of, samplers_of, share
from ..scene import PER_NODE, Scene, leaves, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Program
    from ...source.trace import Event, Loop

NODES = say("with several nodes")

_SIZED = re.compile(r"torch\.(rand|randn|randint|normal|bernoulli|rand_like|randn_like|randint_like)$")
"""Draws of whole tensors: noise, masks, latent vectors. Single numbers are often meant to be shared."""
_DROPPED = re.compile(
    r"remove_duplicate|unique|\[\s*:\s*len\(|index_copy|gather_for_metrics|total_size|num_samples|\[\s*:\s*\w*(n|size|total)\w*\s*\]"
)
"""What a program that takes the padding off again has in its text."""


@finds("data-not-sharded")
def data_not_sharded(program: Program) -> Iterator[Finding]:
    """Several ranks train on a loader that gives all of them the same samples.

    Quiet when the loader, its sampler or data set may tell ranks apart in a way that is not seen here.
    """
    for scene in scenes(program):
        for loop in scene.training_loops:
            yield from _same_samples(scene, loop)


def _same_samples(scene: Scene, loop: Loop) -> Iterator[Finding]:
    backward = next(e for e in scene.inside(loop, "backward"))
    if not scene.by_all(backward) or not scene.shared(backward) or not _data_parallel(scene):
        return
    for loader in loaders_of(loop.over):
        made = next((e for e in scene.of("loader") if e.result is loader), None)
        if made is None or share(scene, loader) is not Share.SAME:
            continue
        shuffled = constant(given(loader, "shuffle")) is True
        yield found(
            "data-not-sharded",
            scene.location(made),
            say("every rank goes through the whole data set, in an order of its own")
            if shuffled
            else say("every rank trains on the same batches"),
            related=[loop.site.location(say("trained on here"))],
            call_path=scene.path(made),
            fix=say(
                "DataLoader(..., sampler=DistributedSampler(dataset)), and sampler.set_epoch(epoch) in every epoch"
            ),
        )


def _data_parallel(scene: Scene) -> bool:
    """True when the ranks average what they learn: DDP, FSDP, or gradients reduced by hand."""
    return any(event.communicates == 2 for event in scene.of("wrap", "backward", "forward"))


@finds("epoch-not-set")
def epoch_not_set(program: Program) -> Iterator[Finding]:
    """A loader with a shuffling DistributedSampler is gone through again and again without `set_epoch`."""
    for scene in scenes(program):
        told: set[Instance] = set()
        for loop in scene.all_loops:
            if not scene.inside(loop, "backward"):
                continue
            for loader in loaders_of(loop.over):
                yield from _order_kept(
                    scene, loader, loop.site.location(), scene.loops(loop), loop.guard, told
                )
        for event in scene.of("iter"):
            if not _goes_to_training(scene, event):
                continue
            for value in event.extra.get("args", ()):
                for loader in loaders_of(value):
                    yield from _order_kept(
                        scene, loader, scene.location(event), scene.loops(event), event.guard, told
                    )


def _goes_to_training(scene: Scene, event: Event) -> bool:
    """True when the innermost function around an `iter` that loops at all trains in a loop."""
    calls = [site.node for site in event.site.chain()]
    deepest, trains = -1, False
    for loop in scene.all_loops:
        outer = [site.node for site in loop.site.chain()[:-1]]
        if outer == calls[: len(outer)] and len(outer) >= deepest:
            trains = bool(scene.inside(loop, "backward")) or (trains and len(outer) == deepest)
            deepest = len(outer)
    return trains


def _order_kept(
    scene: Scene,
    loader: Instance,
    place: Location,
    around: tuple[Loop, ...],
    guard: object,
    told: set[Instance],
) -> Iterator[Finding]:
    sampler = distributed_sampler(loader)
    if sampler is None or sampler in told or not around:
        return
    shuffle = given(sampler, "shuffle")
    seed = given(sampler, "seed")
    if any(constant(v) is False for v in leaves(shuffle)) or (
        isinstance(seed, Unknown) and _made_in(scene, sampler, around)
    ):
        return
    epochs = around[0]
    if _made_in(scene, sampler, around) or not scene.inside(epochs, "backward"):
        return
    told.add(sampler)
    vain: Event | None = None
    alternatives = {sampler, *samplers_of(loader)}
    for event in scene.of("set_epoch"):
        receivers = list(leaves(event.receiver))
        if epochs in scene.loops(event) and any(r in alternatives for r in receivers):
            return
        if not all(isinstance(r, Instance) for r in receivers):
            if not _beside(loader, event):
                return  # of something that is not known: it may be this one
            vain = event
    heard = {event.site.node for event in scene.of("set_epoch")}
    if any(node not in heard for node in _set_epochs(scene)):
        return  # of one of several samplers, or under a condition that was not followed
    yield found(
        "epoch-not-set",
        scene.location(vain) if vain is not None else place,
        say(
            "set_epoch does not reach the sampler, which sits inside the batch sampler: every epoch has one order"
        )
        if vain is not None
        else say("set_epoch is never called, so every epoch has the same order"),
        related=[_made_at(scene, sampler, "sampler")],
        call_path=scene.path(vain) if vain is not None else (),
        fix=say("call sampler.set_epoch(epoch) at the head of every epoch"),
    )


def _set_epochs(scene: Scene) -> Iterator[ast.Call]:
    """The calls of `set_epoch` in functions that the run comes through."""
    for path in scene.program.closure(scene.run.entry.path):
        open_nodes: list[ast.AST] = []
        if "set_epoch(" in scene.program.text(path):
            open_nodes.append(scene.program.module(path).tree or ast.Module([], []))
        while open_nodes:
            node = open_nodes.pop()
            if isinstance(node, ast.FunctionDef) and (
                node not in scene.run.reached or node.name == "set_epoch"
            ):
                continue
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "set_epoch":
                yield node
            open_nodes.extend(syntax.children(node))


def _made_in(scene: Scene, made: Instance, around: tuple[Loop, ...]) -> bool:
    """True when an object is made anew inside the loops."""
    event = next((e for e in scene.of("sampler") if e.result is made), None)
    return event is not None and bool(set(scene.loops(event)) & set(around))


def _made_at(scene: Scene, made: Instance, kind: str) -> Location:
    event = next((e for e in scene.of(kind) if e.result is made), None)
    role = say("the sampler is made here")
    return scene.location(event, role) if event is not None else Location(made.path, made.line, role=role)


def _beside(loader: Instance, event: Event) -> bool:
    """True for `loader.sampler.set_epoch(...)` where the loader has a batch sampler, and so no such sampler."""
    node = event.site.node
    callee = node.func if isinstance(node, ast.Call) else None
    owner = callee.value if isinstance(callee, ast.Attribute) else None
    return (
        given(loader, "batch_sampler") is not NONE
        and isinstance(owner, ast.Attribute)
        and owner.attr == "sampler"
    )


@finds("sampler-misconfigured")
def sampler_misconfigured(program: Program) -> Iterator[Finding]:
    """A sampler told another rank or size than the group's, or a loader that is to shuffle beside its sampler."""
    for scene in scenes(program):
        for event in scene.of("loader"):
            if _shuffles_beside(scene, event):
                yield found(
                    "sampler-misconfigured",
                    scene.location(event),
                    say("shuffle=True and a sampler exclude each other: DataLoader raises ValueError"),
                    call_path=scene.path(event),
                    fix=say("leave shuffle to the sampler: shuffle=(sampler is None)"),
                )
        for event in scene.of("sampler"):
            made = event.result
            if isinstance(made, Instance) and made.kind == "distributed_sampler" and scene.shared(event):
                yield from _told_wrong(scene, event)


def _shuffles_beside(scene: Scene, event: Event) -> bool:
    """True when on some ranks, under one outcome of every condition, a loader has a sampler and shuffle=True."""
    sampler, shuffle = event.args.get("sampler", NONE), event.args.get("shuffle", NONE)
    if "batch_sampler" in event.args:
        return False
    both = scene.run.decisions.both
    shuffles = scene.where(shuffle, lambda v: constant(v) is True)
    has = scene.where(sampler, lambda v: isinstance(v, Instance))
    return scene.reach(both(event.guard, both(shuffles, has))).many >= PER_NODE


def _told_wrong(scene: Scene, event: Event) -> Iterator[Finding]:
    rank, size = event.args.get("rank", NONE), event.args.get("num_replicas", NONE)
    if isinstance(constant(rank), int):
        # A literal 0 of 1 switches the sharding off in a loader that every rank is to read whole.
        yield found(
            "sampler-misconfigured",
            scene.location(event),
            say("every rank says that it is rank {rank}, and reads the same shard", rank=constant(rank)),
            call_path=scene.path(event),
            fix=say("leave rank and num_replicas out: the sampler asks the group"),
        )
        return
    wrong = _differs_from(rank, "rank") or _differs_from(size, "world_size")
    if wrong and not scene.one_node:
        yield found(
            "sampler-misconfigured",
            scene.location(event),
            say("the sampler is told the local rank for the rank")
            if wrong == "rank"
            else say("the sampler is told the processes of one node for the number of replicas"),
            severity=Severity.WARNING,
            condition=NODES,
            call_path=scene.path(event),
            fix=say("leave rank and num_replicas out: the sampler asks the group"),
        )


def _differs_from(value: Value, name: str) -> str:
    """`name` when a value that is known on each lane is not the lane's `name`, but its local sibling."""
    sibling = {"rank": "local_rank", "world_size": "local_size"}[name]
    if not isinstance(value, PerLane):
        return ""
    items = [constant(item) for item in value.items]
    if items != [getattr(lane, name) for lane in LANES] and items == [
        getattr(lane, sibling) for lane in LANES
    ]:
        return name
    return ""


@finds("seed-not-shared")
def seed_not_shared(program: Program) -> Iterator[Finding]:
    """A split or order that all ranks must agree on is drawn by each with a randomness of its own."""
    for scene in scenes(program):
        for event in scene.of("split"):
            if "generator" in event.args or not scene.by_all(event) or not scene.shared(event):
                continue
            seed = last_seed(scene, event, "torch.")
            if seed is None or _own_seed(_seed(seed)):
                yield found(
                    "seed-not-shared",
                    scene.location(event),
                    say(
                        "each rank splits the data in its own way: what one rank tests on, another trains on"
                    ),
                    related=[scene.location(seed, say("seeded differently on every rank"))]
                    if seed is not None
                    else [],
                    call_path=scene.path(event),
                    fix=say(
                        "random_split(..., generator=torch.Generator().manual_seed(seed)), with one seed for all ranks"
                    ),
                )
        for event in scene.of("sampler"):
            made = event.result
            seed_value = event.args.get("seed", NONE)
            if isinstance(made, Instance) and made.kind == "distributed_sampler" and _own_seed(seed_value):
                yield found(
                    "seed-not-shared",
                    scene.location(event),
                    say("each rank shuffles with a seed of its own, so that shards overlap"),
                    call_path=scene.path(event),
                    fix=say("DistributedSampler wants one seed for all ranks"),
                )
        yield from _drawn_orders(scene)


def _own_seed(value: Value) -> bool:
    """True for a seed that surely is each rank's own: computed from the rank, the time, what was drawn."""
    if isinstance(value, PerLane):
        # Anything but constants may be one value that reached the ranks by two ways.
        return all(isinstance(item, Const) for item in value.items)
    return isinstance(value, Unknown) and value.kind >= Kind.NODE


def _drawn_orders(scene: Scene) -> Iterator[Finding]:
    """Indices that each rank draws for itself, of which a DistributedSampler then takes shards."""
    told: set[tuple[str, int]] = set()
    for event in scene.of("sampler"):
        made = event.result
        if not isinstance(made, Instance) or made.kind != "distributed_sampler" or not scene.shared(event):
            continue
        for value in _inside(given(made, "dataset")):
            origin = value.origin if isinstance(value, Unknown) and value.kind is Kind.DATA else None
            if origin is None or origin.cause != "random" or (origin.path, origin.line) in told:
                continue
            draws = [e for e in scene.of("random") if (str(e.site.path), e.site.line) == origin[:2]]
            if any(not scene.by_all(e) or scene.order(e) > scene.order(event) for e in draws):
                continue  # one rank draws for all
            told.add((origin.path, origin.line))
            yield found(
                "seed-not-shared",
                Location(origin.path, origin.line),
                say("each rank draws the order of the data for itself, so that shards of it overlap"),
                related=[scene.location(event, say("sharded here"))],
                fix=say("draw it from a generator with one seed for all ranks, or broadcast it from rank 0"),
            )


def _inside(value: Value, depth: int = 0) -> Iterator[Value]:
    """The indices that a data set is made of."""
    for leaf in leaves(value):
        if isinstance(leaf, Instance) and depth < 4:
            if "indices" in leaf.fields:
                yield from _inside(leaf.fields["indices"], depth + 1)
            if "dataset" in leaf.fields:
                yield from _inside(leaf.fields["dataset"], depth + 1)
        elif isinstance(leaf, Items):
            for item in [*leaf.items[:4], *([leaf.rest] if leaf.rest is not None else [])]:
                yield from leaves(item)
        elif not isinstance(leaf, Const | Instance):
            yield leaf


def last_seed(scene: Scene, event: Event, library: str) -> Event | None:
    """The seeding of a library's global generator that holds at an event; None when there is none."""
    order = scene.order(event)
    before = [
        e
        for e in scene.of("seed")
        if scene.order(e) < order
        and (e.name.startswith(library) or e.name.startswith(("accelerate", "lightning", "transformers")))
    ]
    return before[-1] if before else None


def _seed(event: Event) -> Value:
    """What a generator is seeded with; no argument stands for something that differs."""
    values = list(event.args.values()) or list(event.extra.get("args", ()))
    return values[0] if values else Unknown(-1, Kind.DATA)


@finds("seed-not-distinct")
def seed_not_distinct(program: Program) -> Iterator[Finding]:
    """Noise that is drawn in the training step with one seed on all ranks: each rank sees the same noise.

    Whole tensors only: a single number is often meant to be the same everywhere. Quiet for what is broadcast, and
    when the seed is not known to be shared.
    """
    for scene in scenes(program):
        told: set[int] = set()
        for event in scene.of("random"):
            name = event.name if event.name.startswith("torch.") else ""
            loops = scene.loops(event)
            if not _SIZED.match(name) or not loops or event.args.get("generator", NONE) is not NONE:
                continue
            trains = any(scene.inside(loop, "backward") for loop in loops)
            if not trains or not scene.by_all(event) or not scene.shared(event):
                continue
            seed = last_seed(scene, event, "torch.")
            if (
                seed is None
                or not _shared_seed(scene, seed)
                or _broadcast(scene, event)
                or seed.site.line in told
            ):
                continue
            if not _data_parallel(scene) or not any(
                e.communicates for e in scene.inside(loops[-1], "backward", "forward")
            ):
                continue
            told.add(seed.site.line)
            yield found(
                "seed-not-distinct",
                scene.location(event),
                say("every rank draws the same random numbers: the generators have one seed"),
                related=[scene.location(seed, say("seeded alike on every rank"))],
                call_path=scene.path(event),
                fix=say("after the model is built, seed with seed + rank"),
            )


def _shared_seed(scene: Scene, seed: Event) -> bool:
    """True when a seeding surely gives all ranks one seed."""
    value = _seed(seed)
    if isinstance(value, Const) and value.value is None:
        return False
    specific = seed.args.get("device_specific", NONE)
    return scene.differs(value) is Kind.UNIFORM and specific is NONE


def _broadcast(scene: Scene, event: Event) -> bool:
    """True when what was drawn goes straight into a collective."""
    node = event.site.node
    for later in scene.of("collective"):
        if 0 < scene.order(later) - scene.order(event) <= 4 and later.operation.startswith("broadcast"):
            return True
    return getattr(node, "lineno", 0) == 0


@finds("eval-padded")
def eval_padded(program: Program) -> Iterator[Finding]:
    """An exact metric over a DistributedSampler, which repeats samples until every rank has as many.

    Quiet when the sampler drops instead of padding, and where the program's text takes the padding off again.
    """
    for scene in scenes(program):
        told: set[Instance] = set()
        for loop in scene.all_loops:
            inside = scene.inside(loop, "backward", "forward")
            if not any(e.kind == "forward" for e in inside) or any(e.kind == "backward" for e in inside):
                continue
            for loader in loaders_of(loop.over):
                sampler = next((s for s in samplers_of(loader) if s.kind == "distributed_sampler"), None)
                if sampler is None or sampler in told or sampler.cls is not None:
                    continue
                if (
                    constant(given(sampler, "drop_last")) is True
                    or constant(given(loader, "drop_last")) is True
                ):
                    continue
                if not _summed(scene, loop) or _takes_off(scene, loop):
                    continue
                told.add(sampler)
                made = next((e for e in scene.of("sampler") if e.result is sampler), None)
                if made is None:
                    continue
                size = _size(scene, given(sampler, "dataset"))
                if size is not None and size % 2 == 0:
                    continue
                yield found(
                    "eval-padded",
                    scene.location(made),
                    say(
                        "the sampler repeats samples until every rank has as many, and the metric counts them twice"
                    ),
                    severity=Severity.WARNING if size is not None else Severity.INFO,
                    related=[loop.site.location(say("evaluated here"))],
                    condition=say("when the number of samples is not a multiple of the number of ranks"),
                    call_path=scene.path(made),
                    fix=say(
                        "give each rank a slice without padding, or drop what was repeated before counting"
                    ),
                )


def _size(scene: Scene, dataset: Value) -> int | None:
    """The number of samples of a data set that is told it; None when it is not to be seen.

    An even number may fit any usual number of ranks; an odd one fits none.
    """
    if not isinstance(dataset, Instance):
        return None
    made = next((e for e in scene.of("dataset", "iterable_dataset") if e.result is dataset), None)
    drawn = {e.result.key: e for e in scene.of("random") if isinstance(e.result, Unknown)}
    for name, value in [*dataset.fields.items(), *(made.args.items() if made is not None else ())]:
        rows = _rows(drawn[value.key]) if isinstance(value, Unknown) and value.key in drawn else None
        if rows is not None:
            return rows
        number = constant(value)
        if (
            type(number) is int
            and number > 1
            and (name in ("0", "size", "length") or re.search(r"^n$|num|samples", name))
        ):
            return number
    return None


def _rows(draw: Event) -> int | None:
    """The first dimension of a tensor that is drawn: that of `torch.randn(75, 8)` or `torch.randint(2, (75,))`."""
    args = draw.extra.get("args", ())
    shapes = [value.items[0] for value in args if isinstance(value, Items) and value.items]
    first = shapes or (args[:1] if draw.name in ("torch.randn", "torch.rand") else [])
    number = constant(first[0]) if first else None
    return number if type(number) is int else None


def _summed(scene: Scene, loop: Loop) -> bool:
    """True when a metric of the loop is brought together over the ranks, in it or after it."""
    end = scene.order(loop)
    for event in scene.of("collective"):
        inside = loop in scene.loops(event)
        after = scene.order(event) > end and scene.loops(event) == scene.loops(loop)
        if (inside or after) and event.operation.startswith(("all_reduce", "all_gather", "reduce", "gather")):
            return True
    return False


def _takes_off(scene: Scene, loop: Loop) -> bool:
    """True when the text around the loop speaks of samples that are there twice."""
    function = scene.program.function_at(loop.site.path, loop.site.line)
    source = scene.program.read(loop.site.path)
    text = source.text if function is None else ast.get_source_segment(source.text, function.node) or ""
    return bool(_DROPPED.search(text))
