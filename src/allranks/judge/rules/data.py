"""Data: which samples each rank read, in which order, and with which randomness."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, say
from ..case import Case, ranks_text
from ..turns import (
    VARIED,
    Turn,
    contents_by_index,
    data_parallel,
    informative,
    inputs,
    made_samplers,
    paired,
    place_of,
    same_data,
    sampler_of,
    seeded,
    turns,
)
from . import Rules, found

if TYPE_CHECKING:
    from ...world import CallKind, RankState, Site

RULES = Rules()

_TRIMMED = re.compile(r"remove_duplicate|index_copy|gather_for_metrics|total_size|\[\s*:\s*len\(")
"""What a program that takes the padding off again has in its text."""
_CUT = re.compile(r"\[\s*:\s*\w*(n|num|size|total|length|count|samples)\w*\s*\]")
"""And what one has that gathers first."""


def _place(case: Case, site: Site) -> Location | None:
    return case.place(site[-1]) if site else None


def _role(case: Case, site: Site, role: Any) -> tuple[Location, ...]:
    return (case.place(site[-1], role=role),) if site else ()


@RULES.finds("sampler-misconfigured")
def sampler_misconfigured(case: Case) -> Finding | None:
    """A sampler that takes a rank for another one, or shards that are more than there are ranks."""
    size = case.world.size or len(case.world.ranks)
    whole = _whole_for_each(case)
    for group in made_samplers(case):
        shards: dict[tuple[int, int], list[int]] = {}
        for rank, row in group.items():
            shards.setdefault((row["replicas"], row["rank"]), []).append(rank)
        site = next(iter(group.values())).get("site", ())
        twice = next((ranks for (n, _), ranks in shards.items() if n > 1 and len(ranks) > 1), None)
        beyond = sorted(r for r, row in group.items() if row["replicas"] > size)
        lines = tuple(f"rank {r}: shard {w['rank']} of {w['replicas']}" for r, w in group.items())
        if twice and data_parallel(case):
            shard = group[twice[0]]
            message = say(
                "the samplers of {ranks} all take shard {shard} of {count}: they read the same samples, and some are "
                "read by no rank",
                ranks=ranks_text(tuple(twice)), shard=shard["rank"], count=shard["replicas"],
            )  # fmt: skip
            wrong = tuple(r for r in twice if group[r]["rank"] != r) or tuple(twice)
        elif size > 1 and any((r, row["sampler"]) in whole for r, row in group.items()):
            message = say(
                "the sampler was told that there is one replica, while {size} ranks train: each reads all samples, and "
                "the same ones",
                size=size,
            )
            wrong = tuple(group)
        elif beyond:
            message = say(
                "the sampler cuts the data into {count} shards for {size} ranks: the rest is never read",
                count=group[beyond[0]]["replicas"], size=size,
            )  # fmt: skip
            wrong = tuple(beyond)
        else:
            continue
        return found(
            "sampler-misconfigured", message, _place(case, site), ranks=wrong, confidence=Confidence.PROVED,
            evidence=(Evidence("counts", say("what each sampler was told"), lines, tuple(group)),),
            fix=say("leave rank and num_replicas out: the sampler asks the group"),
        )  # fmt: skip
    return None


def _whole_for_each(case: Case) -> set[tuple[int, int]]:
    """(rank, sampler) of samplers for one replica from which several ranks train on the same samples."""
    found: set[tuple[int, int]] = set()
    for group in paired(case) if data_parallel(case) else ():
        rank, turn = min(group.items())
        row = sampler_of(case.world.ranks[rank], turn)
        if row is None or row["replicas"] != 1 or not row["own"] or not turn.training:
            continue
        if any(r != rank and t.training and same_data(turn, t) for r, t in group.items()):
            found.add((rank, row["sampler"]))
    return found


def _sharded_twice(case: Case, group: dict[int, Turn]) -> bool:
    splits = [turn.made.get("split") for turn in group.values()]
    if not all(splits):
        return False
    seen = [set(s["sample"]) for s in splits if s]
    return all(seen) and sum(map(len, seen)) == len(set.union(*seen))


@RULES.finds("sampler-misconfigured")
def sharded_twice(case: Case) -> Finding | None:
    """Each rank has a part of the data of its own, and a DistributedSampler reads one part in so many of that."""
    for group in paired(case):
        rank, turn = min(group.items())
        row = sampler_of(case.world.ranks[rank], turn)
        if row is None or row["replicas"] < 2 or not _sharded_twice(case, group):
            continue
        return found(
            "sampler-misconfigured",
            say("the data is sharded twice: each rank has its own part, and its sampler reads one in {count} of it",
                count=row["replicas"]),
            _place(case, row.get("site", ())), ranks=tuple(group),
            related=_role(case, turn.made_site, say("the loader is made here")),
            fix=say("shard once: give every rank the whole data set and the sampler, or its part and no sampler"),
        )  # fmt: skip
    return None


@RULES.finds("data-not-sharded")
def data_not_sharded(case: Case) -> Finding | None:
    """Ranks that average their gradients train on the same samples."""
    if not data_parallel(case) or sampler_misconfigured(case) is not None:
        return None
    for group in paired(case):
        training = {r: t for r, t in group.items() if t.training}
        if len(training) < 2:
            continue
        rank, turn = min(training.items())
        same = tuple(r for r, t in training.items() if r == rank or same_data(turn, t))
        whole = len(same) < 2 and _all_read_all(training)
        if len(same) > 1 or whole:
            message = (
                say("every rank goes through the whole data set, in an order of its own")
                if whole
                else say("{ranks} train on the same batches", ranks=ranks_text(same))
            )
            ranks = tuple(training) if whole else same
            lines = tuple(
                f"rank {r}: samples {training[r].indices[:10]}..." for r in ranks if training[r].indices
            )
            return found(
                "data-not-sharded", message, _place(case, turn.made_site or turn.site), ranks=ranks,
                related=_role(case, turn.site, say("trained on here")),
                evidence=(Evidence("digest", say("what each rank drew first"), lines, ranks),),
                fix=say(
                    "DataLoader(..., sampler=DistributedSampler(dataset)), and sampler.set_epoch(epoch) in every epoch"
                ),
            )  # fmt: skip
    return _same_inputs(case)


def _all_read_all(group: dict[int, Turn]) -> bool:
    """True when every rank drew all samples of the same data set, each in its own order."""
    lengths = {(t.made.get("length"), t.samples) for t in group.values()}
    length, samples = next(iter(lengths))
    if len(lengths) != 1 or not length or samples < length or not all(t.ended for t in group.values()):
        return False
    one, *others = [contents_by_index(turn) for turn in group.values()]
    for other in others:
        common = [i for i in one if i in other]
        if len(common) < 4 or sum(one[i] == other[i] for i in common) * 10 < len(common) * 9:
            return False
    return all(t.made.get("sampler") in ("RandomSampler", "SequentialSampler") for t in group.values())


def _same_inputs(case: Case) -> Finding | None:
    """Without a loader: the models are given the same batches, which change from step to step."""
    given = inputs(case)
    if len(given) < 2 or any(t.training for s in case.world.ranks.values() for t in turns(s)):
        return None
    rank, mine = min(given.items())
    telling = informative(mine)
    same = tuple(r for r, theirs in given.items() if telling and _equal(mine, theirs, telling))
    if len(same) < 2 or all(len({row["leaves"][i][0] for row in mine}) < len(mine) // 2 + 1 for i in telling):
        return None
    seeds = seeded(case, rank, "torch")
    return found(
        "data-not-sharded", say("{ranks} train on the same batches", ranks=ranks_text(same)),
        _place(case, seeds[-1]["site"] if seeds else mine[0].get("site", ())), ranks=same,
        related=_role(case, mine[0].get("site", ()), say("trained on here")),
        fix=say("let each rank draw samples of its own: a seed that contains the rank, or indices rank::world_size"),
    )  # fmt: skip


def _equal(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], leaves: list[int]) -> bool:
    return all(
        i < len(a["leaves"]) and i < len(b["leaves"]) and a["leaves"][i] == b["leaves"][i]
        for a, b in zip(mine, theirs, strict=False)
        for i in leaves
    )


@RULES.finds("epoch-not-set")
def epoch_not_set(case: Case) -> Finding | None:
    """Every pass of training over a shuffling sampler has the same order, and its epoch never changed."""
    for rank, state in sorted(case.world.ranks.items()):
        groups: dict[Any, list[Turn]] = {}
        for turn in turns(state):
            if turn.training and turn.epochs and len(turn.indices) >= VARIED:
                groups.setdefault((place_of(turn.made_site), place_of(turn.site)), []).append(turn)
        for passes in groups.values():
            one = passes[0]
            orders = {tuple(t.indices[: min(len(p.indices) for p in passes)]) for t in passes}
            told = {tuple(e["epoch"] for e in t.epochs) for t in passes}
            ordered = sorted(one.indices) == one.indices or any(e["shuffle"] is False for e in one.epochs)
            if len(passes) < 2 or len(orders) > 1 or len(told) > 1 or ordered:
                continue
            name = one.epochs[0]["name"]
            lines = tuple(
                f"pass {t.number}: epoch {t.epochs[0]['epoch']}, samples {t.indices[:10]}..."
                for t in passes[:4]
            )
            return found(
                "epoch-not-set",
                say("{count} epochs had the same order: set_epoch never reached the {name}",
                    count=len(passes), name=name),
                _place(case, one.site), ranks=tuple(case.world.ranks), related=_sampler_role(case, rank, one),
                evidence=(Evidence("digest", say("the order of each pass"), lines, (rank,)),),
                fix=say("call sampler.set_epoch(epoch) at the head of every epoch"),
            )  # fmt: skip
    return None


def _sampler_role(case: Case, rank: int, turn: Turn) -> tuple[Location, ...]:
    row = sampler_of(case.world.ranks[rank], turn)
    return _role(case, row.get("site", ()), say("the sampler is made here")) if row is not None else ()


@RULES.finds("eval-padded")
def eval_padded(case: Case) -> Finding | None:
    """An evaluation over samples of which the sampler repeated some, whose counts are then added up over the ranks."""
    for _, state in sorted(case.world.ranks.items()):
        passes = turns(state)
        for turn in passes:
            row = sampler_of(state, turn)
            if row is None or turn.training or not turn.ended or row["drop_last"] or row["replicas"] < 2:
                continue
            extra = (row["total"] or 0) - (row["length"] or 0)
            if extra <= 0 or not row["own"] or row["name"] != "DistributedSampler":
                continue  # classes that are derived from it may count otherwise, and libraries know theirs
            reduced = _reduced_after(case, state, turn, passes)
            if reduced is None or _trimmed(case, reduced, turn.site, row["site"]):
                continue
            return found(
                "eval-padded",
                say("{length} samples over {count} ranks: the sampler repeats {extra} of them, and they count twice in "
                    "what the ranks add up", length=row["length"], count=row["replicas"], extra=extra),
                _place(case, row["site"]), ranks=tuple(case.world.ranks), severity=Severity.WARNING,
                related=(
                    *_role(case, turn.site, say("evaluated here")),
                    *_role(case, reduced.site, say("added up here")),
                ),
                fix=say("give each rank its part without repeats: Subset(dataset, range(rank, len(dataset), "
                        "world_size)), or take the repeats off before counting"),
            )  # fmt: skip
    return None


def _reduced_after(case: Case, state: RankState, turn: Turn, passes: list[Turn]) -> CallKind | None:
    """The call that adds up over the ranks while the pass lasts or right after it, before the next pass begins."""
    end = min((t.times[0] for t in passes if t.times[0] > turn.times[1]), default=1 << 63)
    for name, history in state.histories.items():
        if "/" in name:
            continue
        for call, time_ns in zip(reversed(history.kinds), reversed(history.times_ns), strict=False):
            if time_ns < turn.times[0]:
                break
            kind = case.world.kind(call)
            if time_ns > end or kind is None or (kind.hidden and not kind.inside.startswith("torchmetrics")):
                continue
            adds = kind.signature.op in ("allreduce", "reduce") and kind.signature.reduce_op in (
                None,
                "SUM",
                "AVG",
            )
            if adds or "gather" in kind.signature.op:
                return kind
    return None


def _trimmed(case: Case, reduced: CallKind, *sites: Site) -> bool:
    """True when the program's text shows that it may take the repeated samples off."""
    gathers = "gather" in reduced.signature.op
    texts = [case.program.text(Path(frame.path)) for site in (*sites, reduced.site) for frame in site[-2:]]
    return any(_TRIMMED.search(text) or (gathers and _CUT.search(text)) for text in texts)
