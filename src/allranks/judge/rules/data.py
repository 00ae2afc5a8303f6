"""Data: which samples each rank read, in which order, and with which randomness."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, say
from ..case import Case, ranks_text
from ..observed import everywhere, rows
from ..turns import (
    VARIED,
    Turn,
    chances,
    contents_by_index,
    data_parallel,
    informative,
    paired,
    place_of,
    same_data,
    turns,
)
from . import Rules, found

if TYPE_CHECKING:
    from ...world import CallKind, RankState, Site

RULES = Rules()

PER_SAMPLE = 4
"""Fewer random numbers than this are a choice that all ranks may mean to share."""
_TRIMMED = re.compile(r"remove_duplicate|index_copy|gather_for_metrics|total_size|\[\s*:\s*len\(")
"""What a program that takes the padding off again has in its text."""
_CUT = re.compile(r"\[\s*:\s*\w*(n|num|size|total|length|count|samples)\w*\s*\]")
"""And what one has that gathers first."""


def _place(case: Case, site: Site) -> Location | None:
    return case.place(site[-1]) if site else None


def _role(case: Case, site: Site, role: Any) -> tuple[Location, ...]:
    return (case.place(site[-1], role=role),) if site else ()


def _samplers(case: Case) -> list[dict[int, dict[str, Any]]]:
    """DistributedSamplers that are the same one on several ranks: the n-th made at equal lines."""
    groups: dict[Any, dict[int, dict[str, Any]]] = {}
    for rank, state in sorted(case.world.ranks.items()):
        count: dict[Any, int] = {}
        for row in rows(state, "sampler"):
            key = place_of(row.get("site", ()))
            groups.setdefault((key, count.get(key, 0)), {})[rank] = row
            count[key] = count.get(key, 0) + 1
    return list(groups.values())


def _sampler_of(state: RankState, turn: Turn) -> dict[str, Any] | None:
    """The DistributedSampler that a pass draws from, if it does."""
    numbers = [one["sampler"] for one in turn.epochs if one["sampler"]]
    return next((row for row in rows(state, "sampler") if row["sampler"] in numbers), None)


@RULES.finds("sampler-misconfigured")
def sampler_misconfigured(case: Case) -> Finding | None:
    """A sampler that takes a rank for another one, or shards that are more than there are ranks."""
    size = case.world.size or len(case.world.ranks)
    for group in _samplers(case):
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
        row = _sampler_of(case.world.ranks[rank], turn)
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


@RULES.finds("seed-not-shared")
def sampler_seeds(case: Case) -> Finding | None:
    """Shuffling samplers with a seed or epoch of their own on each rank: the shards overlap."""
    for samplers in _samplers(case):
        seeds = {row["seed"] for row in samplers.values() if row["shuffle"] and row["replicas"] > 1}
        if len(seeds) > 1:
            site = next(iter(samplers.values())).get("site", ())
            lines = tuple(f"rank {r}: seed {row['seed']}" for r, row in samplers.items())
            return _not_shared(
                case,
                say("each rank shuffles with a seed of its own, so that shards overlap"),
                site,
                lines,
                samplers,
            )
    for group in paired(case):
        told = {r: (t.epochs[0]["epoch"], t.epochs[0]["seed"]) for r, t in group.items() if _shuffled(t)}
        if len(told) > 1 and len({t for t in told.values() if None not in t}) > 1:
            lines = tuple(f"rank {r}: epoch {epoch}" for r, (epoch, _) in told.items())
            site = next(iter(group.values())).site
            return _not_shared(
                case,
                say("the ranks set different epochs, and so shuffle differently: shards overlap"),
                site,
                lines,
                told,
            )
    return None


def _shuffled(turn: Turn) -> bool:
    return bool(turn.epochs and turn.epochs[0]["sampler"] and turn.epochs[0]["shuffle"])


def _not_shared(
    case: Case, message: Any, site: Site, lines: tuple[str, ...], ranks: Any, related: Any = ()
) -> Finding:
    return found(
        "seed-not-shared", message, _place(case, site), ranks=tuple(ranks), related=tuple(related),
        evidence=(Evidence("counts", say("what each rank drew"), lines, tuple(sorted(ranks))),),
        fix=say("draw it from a generator with one seed for all ranks: torch.Generator().manual_seed(seed)"),
    )  # fmt: skip


@RULES.finds("seed-not-shared")
def splits_differ(case: Case) -> Finding | None:
    """A data set that each rank split in its own way, where what they hold must be the same, or must not overlap."""
    for group in paired(case):
        splits = {r: t.made["split"] for r, t in group.items() if t.made.get("split")}
        if len(splits) < 2 or len({s["digest"] for s in splits.values()}) < 2:
            continue
        rank = min(splits)
        sets = [set(s["sample"]) for s in splits.values()]
        shared, union = set.intersection(*sets), set.union(*sets)
        sampler = _sampler_of(case.world.ranks[rank], group[rank])
        part = splits[rank]["length"] * len(splits) <= (splits[rank]["of"] or 0) + len(splits)
        if (
            not shared
            or len(shared) == len(union)
            or (sampler is None and not (part and group[rank].training))
        ):
            continue
        message = (
            say("each rank splits the data in its own way: what one rank tests on, another trains on")
            if sampler is not None
            else say(
                "each rank draws its part of the data by itself, so that parts overlap and samples are left out"
            )
        )
        site = _subset_site(case, rank, splits[rank]) or group[rank].made_site
        lines = tuple(
            f"rank {r}: {s['length']} of {s['of']} samples, {s['sample'][:8]}..." for r, s in splits.items()
        )
        return _not_shared(case, message, site, lines, splits, _seed_roles(case, rank, "torch"))
    return None


def _subset_site(case: Case, rank: int, split: dict[str, Any]) -> Site:
    made = rows(case.world.ranks[rank], "subset", subset=split["made"])
    return made[0].get("site", ()) if made else ()


def _seeds(case: Case, rank: int, kind: str) -> list[dict[str, Any]]:
    """Where the user's program seeded a generator, in order."""
    found = rows(case.world.ranks[rank], "seed", of=kind)
    return [row for row in found if row.get("site") and row["site"][-1].user]


def _seed_roles(case: Case, rank: int, kind: str) -> tuple[Location, ...]:
    seeds = _seeds(case, rank, kind)
    return _role(case, seeds[-1]["site"], say("seeded here")) if seeds else ()


@RULES.finds("seed-not-shared")
def data_sets_differ(case: Case) -> Finding | None:
    """One index means other samples on other ranks, while samplers share out indices: the order was drawn per rank."""
    held: dict[Any, dict[int, dict[Any, set[int]]]] = {}
    first: dict[Any, Turn] = {}
    for rank, state in sorted(case.world.ranks.items()):
        for turn in turns(state):
            row = _sampler_of(state, turn)
            if row is not None and row["replicas"] > 1 and turn.content:
                key = place_of(turn.made_site)
                first.setdefault(key, turn)
                for index, digest in contents_by_index(turn).items():
                    held.setdefault(key, {}).setdefault(rank, {}).setdefault(index, set()).add(digest)
    for key, by_rank in held.items():
        ranks = sorted(by_rank)
        again = sum(len(d) for r in ranks for d in by_rank[r].values()) > sum(len(by_rank[r]) for r in ranks)
        if len(ranks) < 2 or again:  # augmented: a sample is never the same twice
            continue
        common = [i for i in by_rank[ranks[0]] if i in by_rank[ranks[1]]]
        other = [i for i in common if by_rank[ranks[0]][i] != by_rank[ranks[1]][i]]
        if len(common) < 8 or len(other) * 10 < len(common) * 9 or not _steady(case, key, ranks):
            continue
        site = first[key].made_site
        message = say(
            "the data is in another order on each rank, so the shards that the sampler gives out overlap"
        )
        lines = tuple(f"sample {i} differs between ranks {ranks[0]} and {ranks[1]}" for i in other[:5])
        return _not_shared(case, message, site, lines, ranks, _seed_roles(case, ranks[0], "torch"))
    return None


def _steady(case: Case, key: Any, ranks: list[int]) -> bool:
    """True when a rank drew some samples twice and found them unchanged."""
    for rank in ranks[:2]:
        seen: dict[Any, int] = {}
        for turn in turns(case.world.ranks[rank]):
            if place_of(turn.made_site) == key:
                for index, digest in contents_by_index(turn).items():
                    if seen.get(index) == digest:
                        return True
                    seen[index] = digest
    return False


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


def _inputs(case: Case) -> dict[int, list[dict[str, Any]]]:
    """What the ranks gave their first wrapped model, in the first steps."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rank, row in everywhere(case, "input"):
        before = found.setdefault(rank, [])
        if row["number"] == len(before):
            before.append(row)
    return {rank: given for rank, given in found.items() if len(given) >= 3}


def _same_inputs(case: Case) -> Finding | None:
    """Without a loader: the models are given the same batches, which change from step to step."""
    given = _inputs(case)
    if len(given) < 2 or any(t.training for s in case.world.ranks.values() for t in turns(s)):
        return None
    rank, mine = min(given.items())
    telling = informative(mine)
    same = tuple(r for r, theirs in given.items() if telling and _equal(mine, theirs, telling))
    if len(same) < 2 or all(len({row["leaves"][i][0] for row in mine}) < len(mine) // 2 + 1 for i in telling):
        return None
    seeds = _seeds(case, rank, "torch")
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
    row = _sampler_of(case.world.ranks[rank], turn)
    return _role(case, row.get("site", ()), say("the sampler is made here")) if row is not None else ()


@RULES.finds("seed-not-distinct")
def seed_not_distinct(case: Case) -> Finding | None:
    """Ranks with other samples drew the same random numbers for them."""
    if not data_parallel(case):
        return None
    drawn = chances(case)
    for group in paired(case):
        training = {r: t for r, t in group.items() if t.training}
        if len(training) < 2:
            continue
        (one, mine), *others = sorted(training.items())
        for other, theirs in others:
            if same_data(mine, theirs):
                continue
            kind = _same_chance(drawn, mine, theirs) or _same_workers(mine, theirs)
            if kind:
                return _equal_noise(case, kind, (one, other), mine)
    return _same_leaf(case)


def _same_chance(drawn: dict[Any, dict[str, Any]], mine: Turn, theirs: Turn) -> str:
    """The generator that stood at the same place on both ranks, at two batches at least, and drew for each sample."""
    for where in ("fetch", "step"):
        for kind in ("torch", "numpy", "random"):
            count = 0
            for batch in range(1, len(mine.content) + 1):
                a, b = (
                    drawn.get((t.rank, t.made.get("loader", 0), t.number, batch, where), {}).get(kind)
                    for t in (mine, theirs)
                )
                if a and b and a == b and a[2] >= max(PER_SAMPLE, mine.batch):
                    count += 1
            if count >= 2:
                return kind
    return ""


def _same_workers(mine: Turn, theirs: Turn) -> str:
    """The generator from which workers with equal seeds drew for each sample."""
    if not mine.made.get("workers") or mine.seed is None or mine.seed != theirs.seed:
        return ""
    for kind, a, b in zip(("torch", "numpy", "random"), mine.draws_inside, theirs.draws_inside, strict=False):
        if min(a, b) >= max(PER_SAMPLE, mine.batch):
            return kind
    return ""


def _equal_noise(case: Case, kind: str, ranks: tuple[int, ...], turn: Turn) -> Finding:
    seeds = _seeds(case, ranks[0], kind) or _seeds(case, ranks[0], "torch")
    name = {"torch": "torch", "numpy": "NumPy", "random": "random"}[kind]
    return found(
        "seed-not-distinct",
        say("{ranks} draw the same random numbers ({generator}) for different samples, batch after batch",
            ranks=ranks_text(ranks), generator=name),
        _place(case, seeds[-1]["site"] if seeds else turn.site), ranks=ranks,
        related=_role(case, turn.site, say("trained on here")),
        fix=say("seed each rank differently once the model is made: torch.manual_seed(seed + rank)"),
    )  # fmt: skip


def _same_leaf(case: Case) -> Finding | None:
    """A model is given one tensor that is random, changes with every step, and is the same on all ranks, beside one
    that is not."""
    given = _inputs(case)
    if len(given) < 2:
        return None
    (one, mine), *others = sorted(given.items())
    for other, theirs in others:
        width = min(len(row["leaves"]) for row in (*mine, *theirs))
        count = min(len(mine), len(theirs))
        alike = [[mine[k]["leaves"][i] == theirs[k]["leaves"][i] for k in range(count)] for i in range(width)]
        telling = [i for i in informative(mine) if i < width]
        steady = [
            i for i in telling if all(alike[i]) and len({row["leaves"][i][0] for row in mine}) == len(mine)
        ]
        if steady and any(not any(alike[i]) for i in telling) and _seeds(case, one, "torch"):
            seeds = _seeds(case, one, "torch")
            return found(
                "seed-not-distinct",
                say("{ranks} give the model the same random numbers beside different samples",
                    ranks=ranks_text((one, other))),
                _place(case, seeds[-1]["site"]), ranks=(one, other), confidence=Confidence.INFERRED,
                related=_role(case, mine[0].get("site", ()), say("given to the model here")),
                fix=say("seed each rank differently once the model is made: torch.manual_seed(seed + rank)"),
            )  # fmt: skip
    return None


@RULES.finds("eval-padded")
def eval_padded(case: Case) -> Finding | None:
    """An evaluation over samples of which the sampler repeated some, whose counts are then added up over the ranks."""
    for _, state in sorted(case.world.ranks.items()):
        passes = turns(state)
        for turn in passes:
            row = _sampler_of(state, turn)
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
