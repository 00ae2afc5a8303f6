"""Batch normalisation over what one rank sees, and statistics of which every rank keeps its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...findings import Finding, Severity, say
from ..digests import agreed, differences
from ..observed import event, everywhere, first, patterns, place
from . import Rules, found

if TYPE_CHECKING:
    from ..case import Case

RULES = Rules()
SMALL = 4
"""Samples per rank up to which the statistics of a batch are noise: Wu and He, Group Normalization (2018), figure 1."""


@RULES.finds("sync-batch-norm-misplaced")
def sync_batch_norm_misplaced(case: Case) -> Finding | None:
    """Layers exchanged for SyncBatchNorm under a DDP that was built over the old ones."""
    row = next((row for _, row in everywhere(case, "converted") if row["wrap"]), None)
    if row is None:
        return None
    wrap = first(case, "wrap", number=row["wrap"])
    return found(
        "sync-batch-norm-misplaced",
        say("convert_sync_batchnorm exchanges layers of a model that DDP already wraps"),
        place(case, row["site"]),
        related=(case.place(wrap["site"][-1], role=say("DDP is built here")),)
        if wrap and wrap["site"]
        else (),
        fix=say("convert first, then wrap"),
    )


def converted(case: Case, died: Finding) -> Finding | None:
    """A forward that died of SyncBatchNorm on a device that cannot run it, placed where the layers were exchanged."""
    row = first(case, "converted")
    where = place(case, row["site"]) if row is not None else None
    if where is None:
        return None
    forward = (replace(died.location, role=say("it fails here")),) if died.location is not None else ()
    return replace(died, location=where, related=(*died.related, *forward))


@RULES.finds("local-batch-norm")
def local_batch_norm(case: Case) -> Finding | None:
    """Batch normalisation in training over a handful of samples per rank."""
    seen = [row for _, row in everywhere(case, "norms")]
    if not seen or max(row["batch"] for row in seen) > SMALL:
        return None
    row = seen[0]
    wrap = first(case, "wrap", number=row["wrap"])
    seen_by = [events for state in case.world.ranks.values() for _, events in patterns(state)]
    forward = next((e for events in seen_by if (e := event(events, "forward"))), None)
    message = say(
        "{count} {name} layers take their statistics over {batch} samples, those of one rank: they are noise, and "
        "every rank normalises by its own",
        count=row["count"], name=row["name"], batch=row["batch"],
    )  # fmt: skip
    return found(
        "local-batch-norm",
        message,
        place(case, wrap["site"] if wrap else None),
        related=(case.place(forward.site[-1], role=say("the forward")),) if forward and forward.site else (),
        fix=say(
            "convert to SyncBatchNorm before wrapping, use GroupNorm or LayerNorm, or freeze the statistics"
        ),
    )


@RULES.finds("replicas-diverged")
def statistics_apart(case: Case) -> Finding | None:
    """Replicas with equal parameters whose running statistics part, since nothing exchanges them: whether that matters
    depends on what is done with them, so it is a note."""
    for _, row in everywhere(case, "statistics"):
        wrap = first(case, "wrap", number=row["wrap"]) if row["wrap"] else None
        among = tuple(wrap["ranks"]) if wrap else ()
        apart = differences(case.world, row["key"], among)
        trained = [part["key"] for _, part in everywhere(case, "part", optimizer=row["optimizer"])]
        if not apart or not any(agreed(case.world, key) for key in trained):
            continue
        made = first(case, "optimizer", number=row["optimizer"])
        message = say(
            "the parameters are equal on all ranks, the running statistics of {count} {name} layers are not: each "
            "rank normalises by its own in evaluation, and a checkpoint holds those of the rank that saves it",
            count=row["count"], name=row["name"],
        )  # fmt: skip
        return found(
            "replicas-diverged",
            message,
            place(case, wrap["site"] if wrap else None, made["site"] if made else None),
            severity=Severity.INFO,
            ranks=apart[0].ranks,
            fix=say(
                "convert to SyncBatchNorm before wrapping, or average or broadcast the statistics before evaluation"
            ),
        )
    return None
