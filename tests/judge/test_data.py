"""Silent faults of data, in worlds in which the hooks observed what ranks drew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from observations import Seen, told, verdicts
from worlds import call, site

from allranks.judge.rules import data, randomness

if TYPE_CHECKING:
    from pathlib import Path

RULES = [*data.RULES, *randomness.RULES]
ORDER = [9, 4, 60, 33, 2, 17, 8, 51, 44, 30, 21, 12]
OTHER = [1, 5, 61, 34, 3, 18, 7, 50, 45, 31, 20, 13]


def both(seen: Seen, method: str, *args: Any, **row: Any) -> Seen:
    for rank in seen.everyone:
        getattr(seen, method)(rank, *args, **row)
    return seen


# data-not-sharded


def test_the_same_batches_on_two_ranks() -> None:
    seen = both(Seen(), "loader", "main:30", "build:8", sampler="RandomSampler")
    both(seen, "turn", ORDER)
    assert verdicts(seen.found(RULES)) == [("data-not-sharded", 8, (0, 1))]


def test_two_of_three_ranks_share_batches() -> None:
    seen = both(Seen(3), "loader", sampler="RandomSampler")
    seen.turn(0, ORDER).turn(1, OTHER).turn(2, ORDER)
    assert verdicts(seen.found(RULES)) == [("data-not-sharded", 8, (0, 2))]


def test_equal_indices_into_a_data_set_that_shards_inside() -> None:
    seen = both(Seen(), "loader", sampler="RandomSampler")
    seen.turn(0, ORDER).turn(1, ORDER, content=lambda index: index * 11)
    assert seen.found(RULES) == []


def test_the_same_validation_set_on_every_rank() -> None:
    seen = both(Seen(), "loader", sampler="SequentialSampler")
    both(seen, "turn", ORDER, backwards=0)
    assert seen.found(RULES) == []


def test_tensor_parallel_ranks_read_the_same() -> None:
    seen = both(Seen(), "loader", sampler="RandomSampler")
    both(seen, "turn", ORDER)
    seen.id(call("allreduce", "main:19", hidden=True, inside="DTensor"))
    assert seen.found(RULES) == []


def test_model_parallel_pairs_read_the_same() -> None:
    seen = both(Seen(4), "loader", sampler="RandomSampler")
    seen.group("tp0", (0, 1)).group("tp1", (2, 3))
    for rank in range(4):
        seen.turn(rank, ORDER if rank < 2 else OTHER)
    assert seen.found(RULES) == []


def test_ranks_that_do_not_average_anything() -> None:
    seen = both(Seen(ddp=False), "loader", sampler="RandomSampler")
    both(seen, "turn", ORDER)
    assert seen.found(RULES) == []


def test_each_rank_reads_all_in_an_order_of_its_own() -> None:
    seen = both(Seen(), "loader", sampler="RandomSampler", length=12)
    seen.turn(0, ORDER).turn(1, ORDER[::-1])
    finding = seen.found(RULES)[0]
    assert (finding.fault, str(finding.message)) == (
        "data-not-sharded",
        "every rank goes through the whole data set, in an order of its own",
    )


def test_streams_without_indices() -> None:
    seen = both(Seen(), "loader", sampler="_InfiniteConstantSampler", length=None)
    content = [{"leaves": [[100 + k, 16], [7, 16]], "samples": []} for k in range(4)]
    both(seen, "turn", [], drawn=4, backwards=4)
    for rank in seen.everyone:
        seen.world.ranks[rank].facts["observed"]["turn"][0]["content"] = content
    assert verdicts(seen.found(RULES)) == [("data-not-sharded", 8, (0, 1))]


@pytest.mark.parametrize(("shift", "expected"), [(0, [("data-not-sharded", 3, (0, 1))]), (1, [])])
def test_batches_drawn_without_a_loader(shift: int, expected: list[Any]) -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.saw(rank, "seed", "main:3", of="torch", value="1337")
        for number in range(6):
            leaf = [1000 * number + shift * rank, 64]
            seen.saw(rank, "input", "main:15", number=number, leaves=[leaf])
    assert verdicts(seen.found(RULES)) == expected


# sampler-misconfigured


def test_every_sampler_takes_the_first_shard() -> None:
    seen = both(Seen(), "loader")
    both(seen, "sampler", replicas=2)
    seen.world.ranks[1].facts["observed"]["sampler"][0]["rank"] = 0
    both(seen, "turn", ORDER, epochs=told())
    assert verdicts(seen.found(RULES)) == [("sampler-misconfigured", 7, (1,))]


def test_more_shards_than_ranks() -> None:
    seen = both(Seen(), "sampler", replicas=8)
    assert verdicts(seen.found(RULES)) == [("sampler-misconfigured", 7, (0, 1))]


def test_one_replica_on_purpose() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.sampler(rank, replicas=1, rank=0, shuffle=False)
    assert seen.found(RULES) == []


def test_one_replica_for_every_rank_that_trains() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.loader(rank).sampler(rank, replicas=1, rank=0).turn(rank, ORDER, epochs=told())
    assert verdicts(seen.found(RULES)) == [("sampler-misconfigured", 7, (0, 1))]


def test_sharded_twice() -> None:
    seen = both(Seen(), "sampler", length=32, total=32)
    for rank, part in ((0, [0, 2, 4, 6]), (1, [1, 3, 5, 7])):
        split = {"length": 32, "of": 64, "digest": rank, "sample": part, "made": 0}
        seen.loader(rank, split=split).turn(rank, part * 3, epochs=told())
    assert [f.fault for f in seen.found(RULES)] == ["sampler-misconfigured"]


# seed-not-shared


def split(digest: int, sample: list[int], length: int = 320) -> dict[str, Any]:
    return {"length": length, "of": 400, "digest": digest, "sample": sample, "made": 3}


@pytest.mark.parametrize(("second", "faults"), [([1, 2, 5, 9], ["seed-not-shared"]), ([1, 2, 3, 4], [])])
def test_splits_drawn_per_rank(second: list[int], faults: list[str]) -> None:
    seen = both(Seen(), "sampler", drop_last=True)
    both(seen, "saw", "subset", "main:40", "split:5", subset=3)
    seen.loader(0, split=split(11, [1, 2, 3, 4])).turn(0, ORDER, epochs=told())
    seen.loader(1, split=split(sum(second), second)).turn(1, OTHER, epochs=told())
    seen.world.ranks[0].facts["observed"]["loader"][0]["split"]["digest"] = 10
    found = seen.found(RULES)
    assert [f.fault for f in found] == faults
    assert all(f.location is not None and f.location.line == 5 for f in found)


SAMPLER = """\
class Mine:
    def __iter__(self):
        order = torch.randperm(24).tolist()
        return iter(order[self.rank :: 2])
"""


@pytest.mark.parametrize(
    ("second", "name", "expected"),
    [
        ([9, 4, 61, 34, 3, 18, 7, 50, 45, 31, 20, 13], "Mine", [("seed-not-shared", 3, (0, 1))]),
        (OTHER, "Mine", []),
        ([9, 9, 61, 34, 3, 18, 7, 50, 45, 31, 20, 13], "Mine", []),
        ([9, 4, 61, 34, 3, 18, 7, 50, 45, 31, 20, 13], "RandomSampler", []),
    ],
    ids=["overlap", "apart", "with replacement", "of torch"],
)
def test_shares_of_an_order_that_each_rank_draws(
    second: list[int], name: str, expected: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SAMPLER)
    seen = both(Seen(), "loader", sampler=name, length=24)
    seen.turn(0, ORDER).turn(1, second)
    path = str(tmp_path / "train.py")
    for state in seen.world.ranks.values():
        for topic in ("loader", "turn"):
            for row in state.facts["observed"][topic]:
                row["site"] = site("main:8" if topic == "loader" else "main:18", path=path)
    assert verdicts(seen.found(RULES, tmp_path)) == expected


def test_a_strided_part_per_rank() -> None:
    seen = Seen()
    for rank, part in ((0, [0, 2, 4, 6]), (1, [1, 3, 5, 7])):
        seen.loader(rank, sampler="RandomSampler", split=split(rank, part, 200)).turn(rank, part * 3)
    assert seen.found(RULES) == []


def test_parts_drawn_per_rank_overlap() -> None:
    seen = both(Seen(), "saw", "subset", "main:5", subset=3)
    for rank, part in ((0, [0, 2, 4, 6]), (1, [1, 2, 5, 6])):
        seen.loader(rank, sampler="RandomSampler", split=split(rank, part, 200)).turn(
            rank, part * 3, content=lambda index, rank=rank: index * (5 + rank)
        )
    assert verdicts(seen.found(RULES)) == [("seed-not-shared", 5, (0, 1))]


def test_samplers_with_seeds_of_their_own() -> None:
    seen = both(Seen(), "loader")
    seen.sampler(0, seed=0).sampler(1, seed=1)
    seen.turn(0, ORDER, epochs=told()).turn(1, OTHER, epochs=told())
    assert verdicts(seen.found(RULES)) == [("seed-not-shared", 7, (0, 1))]


def test_epochs_of_their_own() -> None:
    seen = both(both(Seen(), "loader"), "sampler")
    seen.turn(0, ORDER, epochs=told(0)).turn(1, OTHER, epochs=told(1))
    assert verdicts(seen.found(RULES)) == [("seed-not-shared", 18, (0, 1))]


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (lambda index: (index * 5 % 64) * 7, ["seed-not-shared"]),
        (lambda index: index * 7, []),
        (lambda index: index * 7 + 1, []),
    ],
    ids=["another order", "the same", "other data"],
)
def test_one_index_is_another_sample_elsewhere(content: Any, faults: list[str]) -> None:
    seen = both(both(Seen(), "loader"), "sampler")
    for epoch, (one, other) in enumerate(((ORDER, OTHER), (OTHER, ORDER), (ORDER, OTHER))):
        seen.turn(0, one, number=epoch, epochs=told(epoch))
        seen.turn(1, other, number=epoch, epochs=told(epoch), content=content)
    assert [f.fault for f in seen.found(RULES)] == faults


# epoch-not-set


@pytest.mark.parametrize(
    ("orders", "epochs", "shuffle", "faults"),
    [
        ((ORDER, ORDER, ORDER), (0, 0, 0), True, ["epoch-not-set"]),
        ((ORDER, OTHER, ORDER), (0, 1, 2), True, []),
        ((ORDER, ORDER), (0, 0), False, []),
        ((sorted(ORDER), sorted(ORDER)), (0, 0), True, []),
        ((ORDER,), (0,), True, []),
    ],
)
def test_orders_of_epochs(orders: Any, epochs: Any, shuffle: bool, faults: list[str]) -> None:
    seen = both(both(Seen(), "loader"), "sampler", shuffle=shuffle)
    for number, (order, epoch) in enumerate(zip(orders, epochs, strict=True)):
        for rank in seen.everyone:
            mine = [i + rank * 64 for i in order]
            seen.turn(rank, mine, number=number, epochs=told(epoch, shuffle=shuffle))
    assert [f.fault for f in seen.found(RULES)] == faults


def test_the_same_order_of_every_evaluation() -> None:
    seen = both(both(Seen(), "loader"), "sampler")
    for number in range(3):
        for rank in seen.everyone:
            seen.turn(rank, [i + rank * 64 for i in ORDER], number=number, epochs=told(), backwards=0)
    assert seen.found(RULES) == []


# seed-not-distinct


def noisy(where: str, counts: list[int], *, kind: str = "torch", shift: int = 0) -> Seen:
    seen = both(both(Seen(), "loader"), "sampler")
    for rank, order in enumerate((ORDER, OTHER)):
        seen.saw(rank, "seed", "main:4", of=kind, value="3").turn(rank, order, epochs=told())
        for batch, count in enumerate(counts, 1):
            state = [99, 40 * batch + shift * rank, count]
            seen.saw(rank, "chance", loader=1, turn=0, batch=batch, where=where, drawn={kind: state})
    return seen


@pytest.mark.parametrize("where", ["fetch", "step"])
@pytest.mark.parametrize("kind", ["torch", "numpy", "random"])
def test_equal_noise(where: str, kind: str) -> None:
    assert verdicts(noisy(where, [40, 40], kind=kind).found(RULES)) == [("seed-not-distinct", 4, (0, 1))]


@pytest.mark.parametrize(
    ("counts", "shift"),
    [([40, 40], 1), ([1, 1, 1], 0), ([40], 0)],
    ids=["of their own", "one choice for all", "once"],
)
def test_noise_that_is_right(counts: list[int], shift: int) -> None:
    assert noisy("step", counts, shift=shift).found(RULES) == []


@pytest.mark.parametrize(("seeds", "faults"), [((5, 5), ["seed-not-distinct"]), ((5, 6), [])])
def test_noise_of_workers(seeds: tuple[int, int], faults: list[str]) -> None:
    seen = both(both(Seen(), "loader", workers=2), "sampler")
    for rank, order in enumerate((ORDER, OTHER)):
        seen.turn(rank, order, epochs=told(), seed=seeds[rank], draws_inside=[32, 0, 0])
    assert [f.fault for f in seen.found(RULES)] == faults


@pytest.mark.parametrize(("moves", "faults"), [(True, ["seed-not-distinct"]), (False, [])])
def test_one_input_is_equal_on_all_ranks(moves: bool, faults: list[str]) -> None:
    seen = both(both(Seen(), "loader"), "sampler")
    for rank, order in enumerate((ORDER, OTHER)):
        seen.saw(rank, "seed", "main:4", of="torch", value="3").turn(rank, order, epochs=told())
        for number in range(5):
            steps = [500 + number * moves, 30]
            seen.saw(rank, "input", "main:19", number=number, leaves=[[number * 2 + rank, 64], steps])
    assert [f.fault for f in seen.found(RULES)] == faults


# eval-padded


def evaluated(
    *, length: int = 75, op: str = "allreduce", drop_last: bool = False, shown: str = "main:30"
) -> Seen:
    seen = both(Seen(), "loader", "main:9", length=length)
    both(
        seen, "sampler", "main:8", length=length, total=76 - 2 * drop_last, shuffle=False, drop_last=drop_last
    )
    for rank in seen.everyone:
        seen.turn(
            rank, list(range(rank, 40, 2)), "main:25", backwards=0, epochs=told(shuffle=False), time=1.5
        )
        seen.calls(rank, [call(op, shown, reduce_op="SUM" if op == "allreduce" else None)], at=2)
    return seen


def test_counts_over_repeated_samples() -> None:
    assert verdicts(evaluated().found(RULES)) == [("eval-padded", 8, (0, 1))]


def test_an_evaluation_that_needs_no_padding() -> None:
    assert evaluated(length=76).found(RULES) == []
    assert evaluated(length=75, drop_last=True).found(RULES) == []


def test_an_evaluation_that_adds_nothing_up() -> None:
    assert evaluated(op="broadcast").found(RULES) == []


@pytest.mark.parametrize(
    ("text", "faults"), [("x = parts[:len(val)]\n", []), ("x = parts.mean()\n", ["eval-padded"])]
)
def test_gathered_predictions(tmp_path: Path, text: str, faults: list[str]) -> None:
    seen = evaluated(op="allgather")
    (tmp_path / "train.py").write_text(text)
    kinds = seen.world.kinds
    frames = tuple(f for kind in kinds.values() for f in kind.site)
    assert {f.path for f in frames} == {"train.py"}
    for rows in (
        seen.world.ranks[r].facts["observed"][t] for r in seen.everyone for t in ("turn", "sampler")
    ):
        for row in rows:
            row["site"] = tuple(type(f)(str(tmp_path / f.path), f.line, f.function) for f in row["site"])
    assert [f.fault for f in seen.found(RULES, tmp_path)] == faults
