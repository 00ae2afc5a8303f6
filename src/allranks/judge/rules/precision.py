"""The way of the gradients from backward to the step: scaled, reduced, clipped, cleared, not finite."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, say
from ..case import Case, ranks_text
from ..observed import Event, event, everywhere, first, last, patterns, place, torn
from . import Rules, found

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = Rules()
NONLINEAR = frozenset(
    ("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_", "norm", "vector_norm",
     "normalize", "sign", "sign_", "tanh", "tanh_", "hardtanh", "clip_grad_norm_", "clip_grad_value_",
     "minimum", "maximum")
)  # fmt: skip
"""Functions that do not commute with averaging: what they do to each rank's gradient is not done to the mean."""
CLIPS = frozenset(("clamp", "clamp_", "clip", "clip_", "clip_grad_norm_", "clip_grad_value_"))


def _every_pattern(case: Case) -> Iterator[tuple[dict[str, Any], tuple[Event, ...]]]:
    for state in case.world.ranks.values():
        yield from patterns(state)


@RULES.finds("reduced-twice-or-unscaled")
def reduced_twice(case: Case) -> Finding | None:
    """A reduction by hand beside DDP's, or a sum that stays a sum."""
    size = case.world.size or len(case.world.ranks)
    for _, row in everywhere(case, "reduced"):
        if row["how"] not in ("SUM", "AVG") or (row["wrap"] and not _ddp_reduced(case, row)):
            continue
        divided = row["how"] == "AVG" or (row["ratio"] is not None and abs(row["ratio"] * size - 1) < 0.02)
        summed = row["how"] == "SUM" and row["ratio"] is not None and abs(row["ratio"] - 1) < 1e-3
        if row["wrap"]:
            severity = Severity.ERROR if summed else Severity.INFO if divided else Severity.WARNING
            message = say(
                "gradients that DDP has averaged are summed once more over the ranks: they are {size} times too large",
                size=size,
            ) if summed else say("gradients that DDP has averaged are reduced once more by hand")  # fmt: skip
            fix = say("leave the reduction to DDP and drop this one")
        elif summed and row["loss"] == "mean" and not torn(case):
            severity = Severity.WARNING
            message = say(
                "the gradients of a mean loss are summed over the ranks and not divided by their number: they are "
                "{size} times those of the global batch",
                size=size,
            )
            fix = say("divide by dist.get_world_size(), or reduce with ReduceOp.AVG")
        else:
            continue
        return found(
            "reduced-twice-or-unscaled", message, place(case, row["site"]), severity=severity, fix=fix
        )
    return _summing_hook(case)


def _ddp_reduced(case: Case, row: dict[str, Any]) -> bool:
    """True when the backward before this reduction was DDP's own, with its reduction."""
    for _, events in _every_pattern(case):
        reduce = last(events, "reduce")
        forward = last(events, "forward", row["wrap"])
        if 0 <= forward < reduce and events[forward].flag == "sync":
            return True
    return False


def _summing_hook(case: Case) -> Finding | None:
    """A communication hook of the user's that reduces and nowhere divides."""
    hook = _hook(case)
    if hook is None:
        return None
    row, function = hook
    text = ast.unparse(function)
    divides = any(isinstance(n, ast.Div) for n in ast.walk(function))
    words = ("div", "mul", "AVG", "mean", "average", "allreduce_hook", "compress")
    if divides or any(word in text for word in words) or "reduce" not in text:
        return None
    message = say(
        "this communication hook sums the gradients and nowhere divides them by the number of ranks"
    )
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call) and "reduce" in ast.unparse(n.func))
    line = next((call.lineno for call in calls), row["line"])
    return found(
        "reduced-twice-or-unscaled", message, Location(case.path(row["file"]), line),
        confidence=Confidence.INFERRED, fix=say("divide the bucket by the world size before or after the reduction"),
    )  # fmt: skip


def _hook(case: Case) -> tuple[dict[str, Any], ast.AST] | None:
    """The user's own communication hook: what the guest says of it, and its text."""
    row = first(case, "comm_hook")
    if row is None or row["home"].startswith("torch.") or not row["file"]:
        return None
    tree = case.program.module(row["file"]).tree
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.Lambda) and node.lineno == row["line"]:
            return row, node
    return None


def _clipping_hook(case: Case) -> Finding | None:
    """A communication hook that clips its bucket and reduces what is left."""
    hook = _hook(case)
    if hook is None:
        return None
    row, function = hook
    calls = [(n.lineno, ast.unparse(n.func)) for n in ast.walk(function) if isinstance(n, ast.Call)]
    reduced = min((line for line, name in calls if "reduce" in name), default=0)
    clipped = min((line for line, name in calls if name.rpartition(".")[2] in CLIPS), default=0)
    if not 0 < clipped < reduced or "finfo" in ast.unparse(function):  # the range of a type is no limit
        return None
    return found(
        "clip-before-sync", say("this communication hook clips each rank's own gradients before they are reduced"),
        Location(case.path(row["file"]), clipped),
        fix=say("clip between backward and step, where the gradients are averaged already"),
    )  # fmt: skip


@RULES.finds("clip-before-sync")
def clip_before_sync(case: Case) -> Finding | None:
    """Every rank clips its own gradient, and the mean is taken of what is left."""
    for _, row in everywhere(case, "hooked"):
        used = [name for name in row["names"] if name in NONLINEAR]
        if used:
            message = say(
                "a hook on the parameters ({names}) changes each rank's own gradient before DDP averages it: the mean "
                "of clipped gradients is not the clipped mean",
                names=", ".join(used),
            )
            return found(
                "clip-before-sync", message, place(case, row["site"]),
                fix=say("clip between backward and step, where the gradients are averaged already"),
            )  # fmt: skip
    return _clipping_hook(case) or _clipped_first(case) or _clipped_in_part(case)


def _clipped_first(case: Case) -> Finding | None:
    """Clipping before a reduction by hand."""
    for _, events in _every_pattern(case):
        clip, reduce = last(events, "clip"), last(events, "reduce")
        if 0 <= clip < reduce and not any(e.what == "backward" for e in events[clip:reduce]):
            message = say("the gradients are clipped on each rank before they are reduced")
            return found(
                "clip-before-sync", message, place(case, events[clip].site),
                related=(case.place(events[reduce].site[-1], role=say("reduced here")),) if events[reduce].site else (),
                fix=say("reduce first, then clip"),
            )  # fmt: skip
    return None


def _clipped_in_part(case: Case) -> Finding | None:
    """Clipping after each micro-batch of a window whose gradients are reduced with the last one only."""
    for _, events in _every_pattern(case):
        local = False
        clip = None
        for one in events:
            if one.what == "backward":
                if clip is not None:
                    return found(
                        "clip-before-sync",
                        say("micro-batches under no_sync clip what each rank has accumulated, before it is reduced"),
                        place(case, clip.site),
                        fix=say("clip once per step, after the backward that reduces"),
                    )  # fmt: skip
                local = one.flag == "local"
            elif one.what == "step":
                clip = None
            elif one.what == "clip" and local:
                clip = one
    return None


@RULES.finds("gradients-cleared")
def gradients_cleared(case: Case) -> Finding | None:
    """zero_grad between backward and step, or never."""
    empties = {(rank, row["optimizer"]) for rank, row in everywhere(case, "empty") if not row["lost"]}
    for rank, state in case.world.ranks.items():
        for row, events in patterns(state):
            zero, backward = last(events, "zero"), last(events, "backward")
            closure = any(e.what == "step" and e.flag == "closure" for e in events)
            if closure or backward < 0 or zero < 0:
                continue
            event_ = events[zero]
            own = event_.of == row["optimizer"] or (rank, row["optimizer"]) in empties
            if zero > backward and event_.flag == "filled" and own:
                message = say(
                    "the gradients that backward has filled are cleared before the step, which uses nothing"
                )
                return found(
                    "gradients-cleared", message, place(case, event_.site),
                    related=_with(case, events[backward], events[-1]),
                    fix=say("call zero_grad before backward or after step"),
                )  # fmt: skip
    return _cleared_in_window(case) or _never_cleared(case)


def _with(case: Case, backward: Event, step: Event) -> tuple[Location, ...]:
    pairs = ((backward, say("filled here")), (step, say("used here")))
    return tuple(case.place(e.site[-1], role=role) for e, role in pairs if e.site)


def _cleared_in_window(case: Case) -> Finding | None:
    """Accumulation over micro-batches each of which clears what the ones before it have left."""
    for state in case.world.ranks.values():
        seen: dict[int, list[Event | None]] = {}
        for row, events in patterns(state):
            seen.setdefault(row["optimizer"], []).append(_wiped(row["optimizer"], events))
        for wiped in seen.values():
            late = wiped[1:]  # the first window may begin with leftovers
            if late and all(late) and (zero := late[0]) is not None:
                message = say(
                    "zero_grad runs in every micro-batch between two steps, so only the last one's gradients are used"
                )
                return found(
                    "gradients-cleared", message, place(case, zero.site), confidence=Confidence.INFERRED,
                    fix=say("call zero_grad once per step, after it"),
                )  # fmt: skip
    return None


def _wiped(optimizer: int, events: tuple[Event, ...]) -> Event | None:
    """A zero_grad of this optimizer between two backwards of the same line."""
    if any(e.what == "step" and e.flag == "closure" for e in events):
        return None
    before: set[object] = set()
    zero = None
    for one in events:
        if one.what == "zero" and one.of == optimizer and one.flag == "filled" and before:
            zero = one
        elif one.what == "backward":
            if zero is not None and one.site in before:
                return zero
            before.add(one.site)
        elif one.what == "step":  # of another optimizer, for which the backward before it was
            before, zero = set(), None
    return None


def _never_cleared(case: Case) -> Finding | None:
    row = first(case, "kept")
    if row is None or any(e["what"] == "zero" for _, e in everywhere(case, "event")):
        return None
    message = say(
        "nothing clears the gradients: every step uses the sum of all gradients since the beginning"
    )
    return found(
        "gradients-cleared", message, place(case, row["site"]), fix=say("call zero_grad after every step")
    )


@RULES.finds("scaler-order")
def scaler_order(case: Case) -> Finding | None:
    """Steps on gradients that are scaled still, or ranks whose scales differ."""
    for _, events in _every_pattern(case):
        step = event(events, "step")
        if step is not None and step.flag == "scaled":
            message = say("the optimizer steps on gradients that are still multiplied by the loss scale")
            return found(
                "scaler-order", message, place(case, step.site),
                fix=say("use scaler.step(optimizer), then scaler.update()"),
            )  # fmt: skip
        backwards = [e for e in events if e.what == "backward"]
        if step is not None and step.flag == "scaler" and {e.flag for e in backwards} == {"unscaled"}:
            message = say(
                "backward runs on the loss that was given to scaler.scale, not on what it gave back: scaler.step "
                "divides the gradients by a scale that they never had"
            )
            return found(
                "scaler-order", message, place(case, backwards[-1].site),
                related=(case.place(step.site[-1], role=say("used here")),) if step.site else (),
                fix=say("call backward on what scaler.scale gives back: scaler.scale(loss).backward()"),
            )  # fmt: skip
    early = _updated_early(case)
    if early is not None:
        message = say(
            "scaler.update() runs between the steps of two optimizers whose losses it scaled together"
        )
        return found(
            "scaler-order", message, place(case, early.site),
            fix=say("call scaler.update() once, after the steps of all optimizers"),
        )  # fmt: skip
    scales: dict[tuple[int, int], dict[int, float]] = {}
    for rank, row in everywhere(case, "options"):
        if row["scale"] is not None:
            scales.setdefault((row["optimizer"], row["step"]), {})[rank] = row["scale"]
    for (_, number), by_rank in sorted(scales.items()):
        if len(set(by_rank.values())) > 1:
            lines = tuple(f"rank {rank}: {scale:g}" for rank, scale in sorted(by_rank.items()))
            site = next((e["site"] for _, e in everywhere(case, "event", what="scale")), None)
            message = say(
                "the loss scales of the ranks differ at step {step}: their gradients are averaged with other weights",
                step=number,
            )
            return found(
                "scaler-order", message, place(case, site),
                evidence=(Evidence("counts", say("loss scales"), lines, tuple(sorted(by_rank))),),
                fix=say("build the scaler alike on every rank, and load its state on every rank"),
            )  # fmt: skip
    return None


def _updated_early(case: Case) -> Event | None:
    """An update of a scaler after one optimizer's step and before another's, with no loss scaled in between."""
    for _, events in _every_pattern(case):
        scale, update = last(events, "scale"), last(events, "update")
        scalers = {e.of for e in events if e.what in ("scale", "update")}
        stepped = any(e.what == "step" and e.flag == "scaler" for e in events[scale:update])
        if 0 <= scale < update and stepped and len(scalers) == 1 and events[-1].flag == "scaler":
            return events[update]
    return None


@RULES.finds("clip-scaled")
def clip_scaled(case: Case) -> Finding | None:
    """Clipping between the scaled backward and unscale_."""
    for _, events in _every_pattern(case):
        step = event(events, "step")
        clips = [e for e in events if e.what == "clip" and e.flag == "scaled"]
        if clips and step is not None and step.flag in ("scaler", "scaled"):
            message = say(
                "the gradients are clipped while they are multiplied by the loss scale: the limit means something "
                "else in every step"
            )
            return found(
                "clip-scaled", message, place(case, clips[0].site),
                fix=say("call scaler.unscale_(optimizer) before the gradients are clipped or read"),
            )  # fmt: skip
    return None


@RULES.finds("non-finite")
def non_finite(case: Case) -> Finding | None:
    """A NaN or an infinity has got into the parameters: where it came from."""
    spoilt = everywhere(case, "not_finite")
    if not spoilt:
        return None
    total = min(row["total"] for _, row in spoilt)
    losses = [(row["step"], rank, row) for rank, row in everywhere(case, "loss") if row["step"] <= total]
    names = _names(case, spoilt[0][1])
    if losses:
        step = min(number for number, _, _ in losses)
        ranks = tuple(sorted({rank for number, rank, _ in losses if number == step}))
        row = next(row for number, rank, row in losses if (number, rank) == (step, ranks[0]))
        message = say(
            "the loss of step {step} is {value} on {ranks}; the reduction spreads it, and the step puts it into the "
            "parameters ({names})",
            step=step, value=row["value"], ranks=ranks_text(ranks), names=names,
        )  # fmt: skip
        return found(
            "non-finite", message, place(case, row["site"]), ranks=ranks,
            fix=say("look at this rank's batch: an empty mask, a division by zero, a logarithm of zero"),
        )  # fmt: skip
    rank, row = min(spoilt, key=lambda pair: (pair[1]["total"], pair[0]))
    step = next(
        (e["site"] for e in case.world.ranks[rank].facts["observed"].get("event", ()) if e["what"] == "step"),
        None,
    )
    message = say(
        "the gradients of step {step} are not finite although the loss is, first in {names}",
        step=row["step"], names=names,
    )  # fmt: skip
    return found(
        "non-finite", message, place(case, step), ranks=tuple(sorted({r for r, _ in spoilt})),
        fix=say("torch.autograd.detect_anomaly names the operation whose backward makes them"),
    )  # fmt: skip


def _names(case: Case, row: dict[str, Any]) -> str:
    part = first(case, "part", key=row["key"])
    names = (
        [part["names"][i] for i in row["gradients"][:3] if i < len(part["names"])] if part is not None else []
    )
    return ", ".join(name or "?" for name in names) + (", ..." if row["count"] > 3 else "")
