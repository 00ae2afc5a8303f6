"""Randomness: what all ranks must draw alike, and what each must draw for itself."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, say
from ..case import Case, ranks_text
from ..observed import rows
from ..turns import (
    Turn,
    chances,
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
    from ...world import Site

RULES = Rules()

ELSEWHERE = 3
"""Samples that must be found under other indices on another rank before it is said that the order differs."""
PER_SAMPLE = 4
"""Fewer random numbers than this are a choice that all ranks may mean to share."""


def _place(case: Case, site: Site) -> Location | None:
    return case.place(site[-1]) if site else None


def _role(case: Case, site: Site, role: Any) -> tuple[Location, ...]:
    return (case.place(site[-1], role=role),) if site else ()


@RULES.finds("seed-not-shared")
def sampler_seeds(case: Case) -> Finding | None:
    """Shuffling samplers with a seed or epoch of their own on each rank: the shards overlap."""
    for samplers in made_samplers(case):
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
        sampler = sampler_of(case.world.ranks[rank], group[rank])
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


def _seed_roles(case: Case, rank: int, kind: str) -> tuple[Location, ...]:
    seeds = seeded(case, rank, kind)
    return _role(case, seeds[-1]["site"], say("seeded here")) if seeds else ()


OF_TORCH = (
    "DistributedSampler",
    "RandomSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
)


@RULES.finds("seed-not-shared")
def shares_overlap(case: Case) -> Finding | None:
    """A sampler of the user's gives each rank its share of an order that each rank has drawn for itself."""
    if not data_parallel(case):
        return None
    for group in paired(case):
        training = {r: t for r, t in group.items() if t.training and t.ended and t.indices}
        if len(training) < 2:
            continue
        (rank, mine), *others = sorted(training.items())
        name, length = mine.made.get("sampler"), mine.made.get("length") or 0
        whole = sum(t.samples for t in training.values())
        if (
            name in OF_TORCH
            or not length * 9 <= whole * 10 <= length * 11
            or len(training) < len(case.world.ranks)
        ):
            continue
        sets = [set(t.indices) for t in training.values()]
        shared = min(len(sets[0] & other) for other in sets[1:])
        if any(len(s) < len(t.indices) for s, t in zip(sets, training.values(), strict=True)):
            continue  # drawn with replacement
        if shared * 8 < len(sets[0]) or any(mine.indices == t.indices for _, t in others):
            continue
        lines = tuple(f"rank {r}: samples {t.indices[:10]}..." for r, t in training.items())
        message = say(
            "each rank draws its part of the data by itself, so that parts overlap and samples are left out"
        )
        finding = _not_shared(
            case, message, mine.made_site, lines, training, _seed_roles(case, rank, "torch")
        )
        drawn = _drawn_in(case, mine.made_site, str(name))
        return replace(finding, location=drawn) if drawn is not None else finding
    return None


@RULES.finds("seed-not-shared")
def data_sets_differ(case: Case) -> Finding | None:
    """One index means other samples on other ranks, while samplers share out indices: the order was drawn per rank."""
    held: dict[Any, dict[int, dict[Any, set[int]]]] = {}
    first: dict[Any, Turn] = {}
    for rank, state in sorted(case.world.ranks.items()):
        for turn in turns(state):
            row = sampler_of(state, turn)
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
        if len(_elsewhere(by_rank[ranks[0]], by_rank[ranks[1]])) < ELSEWHERE:
            continue  # other data altogether, such as that of a program that makes it up
        site = first[key].made_site
        message = say(
            "the data is in another order on each rank, so the shards that the sampler gives out overlap"
        )
        lines = tuple(f"sample {i} differs between ranks {ranks[0]} and {ranks[1]}" for i in other[:5])
        drawn = _drawn_in(case, site)
        finding = _not_shared(case, message, site, lines, ranks, _seed_roles(case, ranks[0], "torch"))
        return replace(finding, location=drawn) if drawn is not None else finding
    return None


_DRAWS = re.compile(
    r"(?:permutation|\bshuffle|randperm|\bsample|train_test_split|\bchoice|\bchoices|KFold|listdir|\bglob)\("
)


def _drawn_in(case: Case, site: Site, owner: str = "") -> Location | None:
    """The first line of the program, or of its class `owner`, that draws an order or a part, where its text shows
    one."""
    if not site:
        return None
    for path in case.program.closure(Path(site[0].path)):
        tree = case.program.module(path).tree if owner else None
        nodes = ast.walk(tree) if tree is not None else ()
        spans = [
            (n.lineno, n.end_lineno or 0) for n in nodes if isinstance(n, ast.ClassDef) and n.name == owner
        ]
        for number, text in enumerate(case.program.text(path).splitlines(), 1):
            if owner and not any(first <= number <= end for first, end in spans):
                continue
            if _DRAWS.search(text.partition("#")[0]):
                return Location(case.path(str(path)), number, role=None)
    return None


def _elsewhere(mine: dict[Any, set[int]], theirs: dict[Any, set[int]]) -> set[int]:
    """Samples that two ranks hold under different indices."""
    one = {digest: index for index, digests in mine.items() for digest in digests}
    other = {digest: index for index, digests in theirs.items() for digest in digests}
    return {digest for digest in one.keys() & other.keys() if one[digest] != other[digest]}


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
    seeds = seeded(case, ranks[0], kind) or seeded(case, ranks[0], "torch")
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
    given = inputs(case)
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
        if steady and any(not any(alike[i]) for i in telling) and seeded(case, one, "torch"):
            seeds = seeded(case, one, "torch")
            return found(
                "seed-not-distinct",
                say("{ranks} give the model the same random numbers beside different samples",
                    ranks=ranks_text((one, other))),
                _place(case, seeds[-1]["site"]), ranks=(one, other), confidence=Confidence.INFERRED,
                related=_role(case, mine[0].get("site", ()), say("given to the model here")),
                fix=say("seed each rank differently once the model is made: torch.manual_seed(seed + rank)"),
            )  # fmt: skip
    return None
