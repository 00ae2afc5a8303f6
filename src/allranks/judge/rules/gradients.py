"""Replicas that do not stay equal: why the gradients or parameters of two ranks differ.

Each rule explains differences that the digests show; what none explains is `replicas-diverged`.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, Text, say
from ...world import SETUP
from .. import edits
from ..case import Case, ranks_text
from ..digests import agreed
from ..observed import Torn, assignment, event, everywhere, first, last, place, rows, torn
from . import Rules, found

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...world import Site

RULES = Rules()
EVERYBODY = 16
"""Elements that a metric may have: a larger collective of the user's may carry gradients or parameters."""


def _wrap_site(case: Case, wrap: int) -> Site:
    row = first(case, "wrap", number=wrap)
    return row["site"] if row is not None else ()


def _optimizer_site(case: Case, number: int) -> Site:
    row = first(case, "optimizer", number=number)
    return row["site"] if row is not None else ()


def _apart(case: Case, wrap: int | None = None) -> list[Torn]:
    """The parts of a DDP model (0: of none, None: of any) whose gradients differ."""
    return [t for t in torn(case, "gradients") if (t.wrap == wrap if wrap is not None else t.wrap)]


def _digests(torn_part: Torn) -> Evidence:
    """What differs, where and when."""
    difference = torn_part.difference
    total = len(torn_part.part["names"])
    lines = [f"step {difference.step}: {len(difference.places) or '?'} of {total} {difference.what} differ"]
    lines += [f"  {torn_part.part['names'][i] or i}" for i in difference.places[:10] if i < total]
    return Evidence("digest", say("digests that differ between ranks"), tuple(lines), difference.ranks)


def _related(case: Case, *places: tuple[Site | None, Text]) -> tuple[Location, ...]:
    return tuple(case.place(site[-1], role=role) for site, role in places if site)


def _order(torn_part: Torn) -> list[str]:
    return [e.what for e in torn_part.events]


@RULES.finds("moved-after-wrap")
def moved_after_wrap(case: Case) -> Finding | None:
    """The parameters changed type or device after DDP had hooked into them."""
    row = first(case, "moved")
    if row is None or (not first(case, "step") and not everywhere(case, "sample")):
        return None
    apart = _apart(case, row["wrap"])
    meta = any(kind.endswith("meta") for kind in row["before"])
    message = say(
        "the model is changed from {before} to {after} after DDP was built over it: DDP's hooks on the old "
        "parameters are gone, and gradients are no longer reduced",
        before=", ".join(row["before"]), after=", ".join(row["after"]),
    )  # fmt: skip
    return found(
        "wrapped-before-device" if meta else "moved-after-wrap", message, place(case, row["site"]),
        confidence=Confidence.MEASURED if apart else Confidence.INFERRED,
        related=_related(case, (_wrap_site(case, row["wrap"]), say("DDP is built here"))),
        evidence=tuple(_digests(t) for t in apart[:1]),
        fix=say("move and convert the model first, then wrap it, then build the optimizer"),
    )  # fmt: skip


@RULES.finds("changed-after-wrap")
def changed_after_wrap(case: Case) -> Finding | None:
    """Parameters that were added, replaced or unfrozen after DDP had taken its list of them."""
    for how in ("replaced", "added", "unfrozen"):
        row = first(case, "changed", how=how)
        if row is None:
            continue
        apart = [t for t in torn(case, "gradients") if t.wrap in (0, row["wrap"])]
        if not apart:
            continue
        words = {
            "replaced": say("replaced"), "added": say("added"), "unfrozen": say("unfrozen (requires_grad)"),
        }  # fmt: skip
        message = say(
            "{count} parameters ({names}) were {how} after DDP was built: it does not know them, and every rank "
            "trains them on its own gradients",
            count=row["count"], names=_few(row["names"]), how=words[how],
        )  # fmt: skip
        step = event(apart[0].events, "step")
        return found(
            "changed-after-wrap", message, _where_changed(case, row, how) or place(case, step.site if step else None),
            related=_related(case, (_wrap_site(case, row["wrap"]), say("DDP is built here"))),
            evidence=(_digests(apart[0]),),
            fix=say("change the model first and wrap it again after every such change: model = DDP(model.module)"),
        )  # fmt: skip
    return None


def changed(case: Case, root: Finding) -> Finding | None:
    """DDP waits in vain for the gradients of parameters that were exchanged or frozen after it was built."""
    for how, word in (("replaced", say("replaced")), ("frozen", say("frozen"))):
        row = first(case, "changed", how=how)
        if row is not None:
            message = say(
                "{count} parameters ({names}) were {how} after DDP was built: it waits for gradients that never come",
                count=row["count"], names=_few(row["names"]), how=word,
            )  # fmt: skip
            return replace(
                root, fault="changed-after-wrap", message=message,
                location=_where_changed(case, row, how) or root.location,
                fix=say("change the model first and wrap it again after every such change: model = DDP(model.module)"),
            )  # fmt: skip
    return None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _where_changed(case: Case, row: dict[str, Any], how: str) -> Location | None:
    """The line that changed the model: seen as it ran, or the only one in the program that can have."""
    wrap = row["wrap"]
    if how in ("unfrozen", "frozen"):
        thaw = how == "unfrozen"
        seen = first(case, "required", wrap=wrap, wanted=thaw)
        if seen is None:
            written = _sets_flag(case, thaw)
            if written is not None:
                return written
            seen = first(case, "grown") if thaw else None
    else:
        seen = first(case, "registered", wrap=wrap)
    return place(case, seen["site"]) if seen is not None else None


def _sets_flag(case: Case, thaw: bool) -> Location | None:
    """The one line in the files seen on stacks that sets `requires_grad`, to False or (`thaw`) to anything else."""
    files = dict.fromkeys(f.path for _, row in everywhere(case, "event") for f in row["site"] if f.user)
    lines = []
    for path in files:
        tree = case.program.module(path).tree
        for node in ast.walk(tree) if tree is not None else ():
            value = _flag(node)
            if value is not None and (value == "False") is not thaw:
                lines.append(Location(case.path(path), getattr(node, "lineno", 1)))
    return lines[0] if len(lines) == 1 else None


def _flag(node: ast.AST) -> str | None:
    """The value that a statement or call gives to `requires_grad`, as it is written."""
    if isinstance(node, ast.Assign):
        if any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in node.targets):
            return ast.unparse(node.value)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "requires_grad_"
    ):
        given = [*node.args, *(k.value for k in node.keywords)]
        return ast.unparse(given[0]) if given else "True"
    return None


def _explained(case: Case) -> bool:
    return moved_after_wrap(case) is not None or changed_after_wrap(case) is not None


@RULES.finds("ddp-bypassed")
def ddp_bypassed(case: Case) -> Finding | None:
    """Backward through the inner model: no forward of DDP prepared a reduction."""
    for t in _apart(case):
        forwards = last(t.events, "forward", t.wrap)
        if forwards >= 0 or not {"backward", "grad"} & set(_order(t)) or _explained(case):
            continue
        row = first(case, "bypass", wrap=t.wrap)
        ran = event(t.events, "backward") or event(t.events, "grad")
        message = say(
            "the loss of step {step} comes from the inner model and not from a forward of its DDP wrapper, so the "
            "gradients of {names} are not reduced: each rank trains on its own",
            step=t.difference.step, names=t.names(),
        )  # fmt: skip
        return found(
            "ddp-bypassed", message, place(case, row["site"] if row else None, ran.site if ran else None),
            related=_related(
                case, (ran.site if ran else None, say("backward without a reduction")),
                (_wrap_site(case, t.wrap), say("DDP is built here")),
            ),
            evidence=(_digests(t),),
            fix=say("call the DDP model itself while training; make what else you need part of its forward"),
        )  # fmt: skip
    return None


@RULES.finds("accumulation-unsynced")
def accumulation_unsynced(case: Case) -> Finding | None:
    """The last forward before the step stood inside no_sync: what it adds is never reduced."""
    for t in _apart(case):
        place_of = last(t.events, "forward", t.wrap)
        if place_of < 0 or t.events[place_of].flag != "local" or _explained(case):
            continue
        forwards = [e for e in t.events if e.what == "forward" and e.of == t.wrap]
        synced = sum(e.flag == "sync" for e in forwards)
        entered = event(t.events, "no_sync")
        names = {"step": t.difference.step, "count": len(forwards), "synced": synced}
        if synced:
            message = say(
                "of the {count} forwards before step {step} the last one is inside no_sync: the optimizer steps on "
                "gradients of which each rank has added its own since the last reduction",
                **names,
            )
        else:
            message = say(
                "all {count} forwards before step {step} are inside no_sync: the gradients are never reduced",
                **names,
            )
        return found(
            "accumulation-unsynced", message,
            place(case, entered.site if entered else None, forwards[-1].site),
            related=_related(case, (forwards[-1].site, say("the last forward before the step"))),
            evidence=(_digests(t),),
            fix=say("leave no_sync for the last micro-batch of every window, the short one at the end included"),
        )  # fmt: skip
    return None


@RULES.finds("unregistered-parameter")
def unregistered_parameter(case: Case) -> Finding | None:
    """Tensors or modules that take part in training and that the model does not know."""
    row = first(case, "unregistered")
    if row is not None:
        line = assignment(case, row["file"], row["owner"], row["attribute"])
        if row["modules"]:
            message = say(
                "{owner}.{attribute} holds modules in a plain container: their {count} parameters get gradients, "
                "but the model does not know them, so DDP neither broadcasts nor reduces them",
                **{k: row[k] for k in ("owner", "attribute", "count")},
            )
        else:
            message = say(
                "{owner}.{attribute} is a plain tensor that gets gradients: it is no parameter of the model, so DDP "
                "neither broadcasts nor reduces it",
                owner=row["owner"], attribute=row["attribute"],
            )  # fmt: skip
        location = (
            Location(case.path(row["file"]), line) if line else place(case, _wrap_site(case, row["wrap"]))
        )
        return found(
            "unregistered-parameter", message, location,
            related=_related(case, (_wrap_site(case, row["wrap"]), say("DDP is built here"))),
            fix=say("use nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.Parameter"),
        )  # fmt: skip
    for t in _apart(case, 0):
        bare = t.part["bare"] == len(t.part["names"])
        if bare and everywhere(case, "wrap") and _own_way(case, t):
            message = say(
                "the optimizer trains {count} tensors that no module holds: DDP does not know them, and every rank "
                "trains its own",
                count=t.part["bare"],
            )
            return found(
                "unregistered-parameter", message, place(case, _optimizer_site(case, t.part["optimizer"])),
                evidence=(_digests(t),), fix=say("make them nn.Parameters of the model before it is wrapped"),
            )  # fmt: skip
    return None


@RULES.finds("model-not-wrapped")
def model_not_wrapped(case: Case) -> Finding | None:
    """Every rank trains the same model on its own, and nothing makes the replicas equal."""
    for t in _apart(case, 0):
        if t.part["bare"] == len(t.part["names"]) and everywhere(case, "wrap"):
            continue
        if first(case, "changed") is not None or not _own_way(case, t) or len(_settings(case, t)) > 1:
            continue  # other settings on every rank: a search, in which other models are wanted
        owner = t.part["owner"] or t.part["key"].split(" ")[1]
        message = say(
            "{owner} is trained on every rank without DDP, and no call reduces its gradients or averages its "
            "parameters: from step {step} on every rank has another model",
            owner=owner, step=t.difference.step,
        )  # fmt: skip
        step = event(t.events, "step")
        return found(
            "model-not-wrapped", message,
            place(case, _optimizer_site(case, t.part["optimizer"]), step.site if step else None),
            related=_related(case, (step.site if step else None, say("the step on local gradients"))),
            evidence=(_digests(t),), fix=say("wrap it: model = DistributedDataParallel(model)"),
        )  # fmt: skip
    return None


def _settings(case: Case, t: Torn) -> dict[str, dict[int, Any]]:
    """The settings of a part's optimizer at its first step -> the ranks that have them."""
    found: dict[str, dict[int, Any]] = {}
    for rank, row in everywhere(case, "options", optimizer=t.part["optimizer"], step=1):
        found.setdefault(str(row["groups"]), {})[rank] = row["groups"]
    return found


def _own_way(case: Case, t: Torn) -> bool:
    """True when nothing that a rank called can have made these parameters equal, now or later: they were never equal
    after a step, and no collective of the user's or of a library carries more than a metric."""
    if agreed(case.world, t.part["key"]):
        return False
    for state in case.world.ranks.values():
        for name, history in state.histories.items():
            if name == SETUP:
                continue
            if name.endswith("/p2p") and len(history.kinds):
                return False
            for kind in {case.world.kinds[k] for k in set(history.kinds)}:
                if kind.hidden and not kind.inside.startswith("DDP"):
                    return False
                if not kind.hidden and _elements(kind.signature.shape) > EVERYBODY:
                    return False
    return True


def _elements(shapes: tuple[tuple[int, ...], ...] | None) -> int:
    total = 0
    for shape in shapes or ():
        count = 1
        for size in shape:
            count *= size
        total += count
    return total


@RULES.finds("optimizer-mismatch")
def optimizer_mismatch(case: Case) -> Finding | None:
    """Parameters that get gradients and that no optimizer holds, or an optimizer of parameters that get none."""
    row = first(case, "empty")
    if row is not None and row["lost"]:
        message = say(
            "no parameter of the optimizer has a gradient at step {step}, while {count} parameters of the DDP model "
            "have one and no optimizer: it was built over others",
            step=row["step"], count=row["lost"],
        )  # fmt: skip
        return found(
            "optimizer-mismatch", message, place(case, _optimizer_site(case, row["optimizer"])),
            fix=say("build the optimizer from the parameters of the model that is trained, after it has its form"),
        )  # fmt: skip
    row = first(case, "left_out")
    if row is not None and row.get("strangers") == row["count"]:  # one for one: layers were exchanged
        message = say(
            "the optimizer was built before the model had its form: {count} of {of} parameters that get gradients are "
            "in no optimizer ({names}), and as many that it holds are no longer the model's",
            count=row["count"], of=row["of"], names=_few(row["names"]),
        )  # fmt: skip
        return found(
            "optimizer-mismatch", message, place(case, _optimizer_site(case, row["optimizer"])),
            fix=say("build the optimizer from the parameters of the model that is trained, after it has its form"),
        )  # fmt: skip
    if row is None or 2 * row["count"] >= row["of"] or 2 * row["elements"] >= row["of_elements"]:
        return None  # a head that is trained on a body that is not: by intention
    if first(case, "grown") is not None:
        return None  # they may come later
    message = say(
        "{count} of {of} parameters that get gradients are in no optimizer and never change: {names}",
        count=row["count"], of=row["of"], names=_few(row["names"]),
    )  # fmt: skip
    return found(
        "optimizer-mismatch", message, place(case, _optimizer_site(case, row["optimizer"])),
        fix=say("give every trained parameter to an optimizer, or set requires_grad to False where it is frozen"),
    )  # fmt: skip


@RULES.finds("needless-unused-search")
def needless_unused_search(case: Case) -> Finding | None:
    """DDP looks for unused parameters in every step and never finds one."""
    for rank, wrap in everywhere(case, "wrap", find_unused=True, static=False):
        seen = rows(case.world.ranks[rank], "unused", wrap=wrap["number"])
        others = [row for _, row in everywhere(case, "unused", wrap=wrap["number"])]
        if len(seen) < 5 or any(row["bytes"] or row["none"] for row in others):
            continue
        message = say(
            "find_unused_parameters=True makes DDP walk the graph after every forward, and in {count} steps looked "
            "at no parameter was unused",
            count=len(seen),
        )
        return found(
            "needless-unused-search", message, place(case, wrap["site"]),
            fix=say("leave find_unused_parameters out"),
        )  # fmt: skip
    return None


@RULES.finds("replicas-diverged")
def replicas_diverged(case: Case) -> Finding | None:
    """Replicas that differ; told where no other rule knows why (see `silent`)."""
    for t in [t for t in torn(case) if t.wrap]:
        return _loaded(case, t) or _restored(case, t) or _options(case, t) or _diverged(case, t)
    return _never_equal(case) or _never_steps(case)


def _never_equal(case: Case) -> Finding | None:
    """Gradients averaged by hand, over models that were not made equal before."""
    apart = {t.part["key"] for t in torn(case, "gradients")}
    for t in torn(case, "parameters"):
        by_hand = any(row["optimizer"] == t.part["optimizer"] for _, row in everywhere(case, "reduced"))
        if (
            t.wrap
            or t.difference.step
            or t.part["key"] in apart
            or not by_hand
            or agreed(case.world, t.part["key"])
        ):
            continue
        message = say(
            "the gradients are averaged over the ranks, but the parameters {names} differ between them before the "
            "first step, and so ever after: every rank trains another model",
            names=t.names(),
        )
        return found(
            "replicas-diverged", message, place(case, _optimizer_site(case, t.part["optimizer"])),
            ranks=t.difference.ranks, evidence=(_digests(t),), severity=Severity.ERROR,
            fix=say("draw them with one seed on every rank, or broadcast what rank 0 has before training"),
        )  # fmt: skip
    return None


def _loaded(case: Case, t: Torn) -> Finding | None:
    """State that only some ranks load into the wrapped model."""
    loads = everywhere(case, "loaded", wrap=t.wrap)
    ranks = tuple(sorted({rank for rank, _ in loads}))
    if not ranks or len(ranks) == len(case.world.ranks):
        return None
    message = say(
        "{ranks} loads a state into the model after DDP has made the replicas equal, the others do not: they differ "
        "from then on ({names})",
        ranks=ranks_text(ranks), names=t.names(),
    )  # fmt: skip
    return found(
        "replicas-diverged", message, place(case, loads[0][1]["site"]), ranks=ranks, evidence=(_digests(t),),
        related=_related(case, (_wrap_site(case, t.wrap), say("DDP is built here"))),
        fix=say("load on every rank, or before DDP is built, which broadcasts what rank 0 has"),
    )  # fmt: skip


def _restored(case: Case, t: Torn) -> Finding | None:
    """The state of an optimizer that only some ranks load: equal gradients give unequal steps."""
    loads = everywhere(case, "restored", optimizer=t.part["optimizer"])
    ranks = tuple(sorted({rank for rank, _ in loads}))
    if not ranks or len(ranks) == len(case.world.ranks) or t.difference.what != "parameters":
        return None
    message = say(
        "{ranks} loads a state into the optimizer, the others do not: equal gradients move the replicas apart",
        ranks=ranks_text(ranks),
    )
    return found(
        "replicas-diverged", message, place(case, loads[0][1]["site"]), ranks=ranks, evidence=(_digests(t),),
        fix=say("load the optimizer's state on every rank"),
    )  # fmt: skip


def _options(case: Case, t: Torn) -> Finding | None:
    """Optimizers that step differently on equal gradients."""
    if t.difference.what != "parameters" or t.difference.step < 1:
        return None
    settings = _settings(case, t)
    if len(settings) < 2:
        return None
    given = {rank: groups for by in settings.values() for rank, groups in by.items()}
    lines = tuple(
        f"rank {r}: " + "; ".join(", ".join(f"{k}={v}" for k, v in g) for g in gs) for r, gs in given.items()
    )
    message = say("the optimizer's settings differ between ranks, so equal gradients move the replicas apart")
    return found(
        "replicas-diverged", message, place(case, _optimizer_site(case, t.part["optimizer"])), ranks=t.difference.ranks,
        evidence=(_digests(t), Evidence("counts", say("settings of the optimizer"), lines)),
        fix=say("give every rank the same learning rate and settings"),
    )  # fmt: skip


def _diverged(case: Case, t: Torn) -> Finding:
    number = t.part["optimizer"]
    steps = [e["site"] for _, e in everywhere(case, "event", what="step", of=number) if e["site"]]
    if t.difference.step == 0:
        message = say(
            "the parameters {names} differ between ranks before the first step: something changed them on some ranks "
            "after DDP had made them equal",
            names=t.names(),
        )
    else:
        message = say(
            "{what} differ between ranks at step {step} ({names}), where they must be equal",
            what=say("gradients") if t.difference.what == "gradients" else say("parameters"),
            step=t.difference.step, names=t.names(),
        )  # fmt: skip
    site = steps[0] if steps else _optimizer_site(case, number)
    return found(
        "replicas-diverged", message, _edited(case, t) or place(case, site), ranks=t.difference.ranks,
        evidence=(_digests(t),),
        related=_related(case, (_wrap_site(case, t.wrap), say("DDP is built here"))),
        fix=say("look for what is done on some ranks only between DDP's construction and this step"),
    )  # fmt: skip


def _edited(case: Case, t: Torn) -> Location | None:
    """The line that changed what differs beside autograd and the optimizer: seen as it ran, or the only one in the
    program."""
    if t.difference.what == "gradients":
        return _only(case, t, edits.of_gradients) if t.wrap else None  # DDP had made them equal
    applied = [row for _, row in everywhere(case, "applied", wrap=t.wrap) if row["step"] <= t.difference.step]
    if applied:
        return place(case, applied[0]["site"])
    return _only(case, t, edits.in_place)


def _only(case: Case, t: Torn, written: Callable[[ast.AST], list[ast.stmt]]) -> Location | None:
    """The only statement of a kind in the functions that train, else in the files that do."""
    lines: dict[str, set[int]] = {}
    for _, row in [*everywhere(case, "event"), *everywhere(case, "wrap", number=t.wrap)]:
        for frame in row["site"]:
            if frame.user:
                lines.setdefault(frame.path, set()).add(frame.line)
    trees = {path: tree for path in lines if (tree := case.program.module(path).tree) is not None}
    near = [(p, e) for p, tree in trees.items() for f in edits.around(tree, lines[p]) for e in written(f)]
    anywhere = [(p, e) for p, tree in trees.items() for e in written(tree)]
    only = next((pairs for pairs in (near, anywhere) if len(pairs) == 1), None)
    return Location(case.path(only[0][0]), only[0][1].lineno) if only else None


def _never_steps(case: Case) -> Finding | None:
    """A rank that takes part in the backward and never updates its replica."""
    for _, wrap in everywhere(case, "wrap"):
        stepping = {
            r: len(rows(case.world.ranks[r], "sample")) for r in wrap["ranks"] if r in case.world.ranks
        }
        idle = tuple(r for r, count in stepping.items() if not count and _trains(case, r, wrap["number"]))
        active = [r for r, count in stepping.items() if count > 1]
        if not idle or not active or case.failures:
            continue
        site = next((e["site"] for e in rows(case.world.ranks[active[0]], "event", what="step")), ())
        message = say(
            "{ranks} runs forward and backward but never makes an optimizer step: its replica stays as it was",
            ranks=ranks_text(idle),
        )
        return found(
            "replicas-diverged", message, place(case, site), ranks=idle, confidence=Confidence.MEASURED,
            severity=Severity.ERROR, fix=say("make the step on every rank"),
        )  # fmt: skip
    return None


def _trains(case: Case, rank: int, wrap: int) -> bool:
    state = case.world.ranks[rank]
    return bool(rows(state, "event", what="forward", of=wrap)) and bool(rows(state, "event", what="backward"))
