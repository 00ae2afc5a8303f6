"""Silent faults of outputs, in worlds in which the hooks observed files, checkpoints and lines."""

from __future__ import annotations

from typing import Any

import pytest
from observations import Seen, verdicts
from worlds import SECOND, call, site

from allranks.findings import Confidence, Finding, Severity, say
from allranks.judge.rules import outputs
from allranks.judge.silent import refined
from allranks.world import ExceptionInfo

BARRIER = call("barrier", "main:50")


def write(seen: Seen, rank: int, path: str, line: int, time: float, **row: Any) -> Seen:
    values = {"path": path, "mode": "w", "via": "open", **row}
    return seen.saw(rank, "write", "main:90", f"log:{line}", time=time, **values)


# duplicate-writer


def test_one_log_of_two_ranks() -> None:
    seen = write(write(Seen(), 0, "/out/train.log", 5, 2.0), 1, "/out/train.log", 5, 2.1)
    assert verdicts(seen.found(outputs.RULES)) == [("duplicate-writer", 5, (0, 1))]


def test_from_two_lines() -> None:
    seen = write(write(Seen(3), 0, "/out/r.json", 5, 2.0, mode="a"), 2, "/out/r.json", 9, 2.1, mode="a")
    finding = seen.found(outputs.RULES)[0]
    assert (finding.ranks, [place.line for place in finding.related]) == ((0, 2), [9])


def test_a_file_per_rank() -> None:
    seen = write(write(Seen(), 0, "/out/train.0.log", 5, 2.0), 1, "/out/train.1.log", 5, 2.0)
    assert seen.found(outputs.RULES) == []


def test_one_rank_after_the_other() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.calls(rank, [BARRIER], at=3)
    write(write(seen, 0, "/out/parts.txt", 5, 2.0, mode="a"), 1, "/out/parts.txt", 5, 4.0, mode="a")
    assert seen.found(outputs.RULES) == []


def test_event_files_in_one_folder_stay_open() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.calls(rank, [BARRIER], at=3)
    write(seen, 0, "/tb/run", 5, 2.0, via="events", given=True)
    write(seen, 1, "/tb/run", 5, 4.0, via="events", given=True)
    assert verdicts(seen.found(outputs.RULES)) == [("duplicate-writer", 5, (0, 1))]


def test_event_files_in_folders_of_their_own() -> None:
    seen = write(Seen(), 0, "/tb/rank0", 5, 2.0, via="events", given=True)
    assert write(seen, 1, "/tb/rank1", 5, 2.0, via="events", given=True).found(outputs.RULES) == []


def test_event_folders_named_after_the_second() -> None:
    seen = write(Seen(), 0, "/w/runs/Jan01_10-00-01_host", 5, 2.0, via="events", given=False)
    write(seen, 1, "/w/runs/Jan01_10-00-02_host", 5, 3.0, via="events", given=False)
    assert verdicts(seen.found(outputs.RULES)) == [("duplicate-writer", 5, (0, 1))]


@pytest.mark.parametrize("mode", ["x", "r+"])
def test_a_claim_and_an_update_in_place(mode: str) -> None:
    seen = write(write(Seen(), 0, "/out/claim", 5, 2.0, mode=mode), 1, "/out/claim", 5, 2.0, mode=mode)
    assert seen.found(outputs.RULES) == []


def test_two_nodes_with_disks_of_their_own() -> None:
    seen = write(write(Seen(), 0, "/tmp/log", 5, 2.0), 1, "/tmp/log", 5, 2.0)
    seen.world.ranks[0].node, seen.world.ranks[1].node = "a", "b"
    assert seen.found(outputs.RULES) == []


# checkpoint-race


@pytest.mark.parametrize(
    ("path", "via"), [("/c/m.dat", "torch.save"), ("/c/m.safetensors", "open"), ("/c/m.pt", "open")]
)
def test_every_rank_saves(path: str, via: str) -> None:
    seen = write(write(Seen(), 0, path, 15, 2.0, via=via, end=2.5), 1, path, 15, 2.1, via=via, end=2.6)
    assert verdicts(seen.found(outputs.RULES)) == [("checkpoint-race", 15, (0, 1))]


@pytest.mark.parametrize(("barrier", "expected"), [(False, [("checkpoint-race", 33, (1,))]), (True, [])])
def test_a_rank_reads_what_another_writes(barrier: bool, expected: list[Any]) -> None:
    seen = write(Seen(), 0, "/c/best.pt", 15, 2.0, via="torch.save", end=2.4)
    if barrier:
        for rank in seen.everyone:
            seen.calls(rank, [BARRIER], at=3)
    seen.saw(
        1,
        "read",
        "main:33",
        path="/c/best.pt",
        via="torch.load",
        mapped=True,
        devices=[],
        device=None,
        time=4.0,
    )
    assert verdicts(seen.found(outputs.RULES)) == expected


def test_what_was_read_at_the_start_is_written_at_the_end() -> None:
    seen = Seen()
    seen.saw(
        1,
        "read",
        "main:33",
        path="/c/last.pt",
        via="torch.load",
        mapped=True,
        devices=[],
        device=None,
        time=2.0,
    )
    for rank in seen.everyone:
        seen.calls(rank, [BARRIER], at=3)
    assert write(seen, 0, "/c/last.pt", 15, 4.0, via="torch.save", end=4.5).found(outputs.RULES) == []


def test_a_rank_that_died_of_a_file_that_was_not_there() -> None:
    seen = write(Seen(), 0, "/c/best.pt", 15, 4.0, via="torch.save", end=4.5)
    error = ExceptionInfo("FileNotFoundError", "No such file: 'best.pt'", site("main:33"), 3 * SECOND)
    seen.world.ranks[1].exceptions.append(error)
    died = Finding("child-failed-first", Severity.ERROR, Confidence.PROVED, say("died"), ranks=(1,))
    assert verdicts([refined(seen.case(), died)]) == [("checkpoint-race", 33, (1,))]


def test_a_rank_that_died_of_something_else() -> None:
    seen = write(Seen(), 0, "/c/best.pt", 15, 4.0, via="torch.save", end=4.5)
    seen.world.ranks[1].exceptions.append(ExceptionInfo("ValueError", "best.pt", site("main:33"), 3 * SECOND))
    died = Finding("child-failed-first", Severity.ERROR, Confidence.PROVED, say("died"), ranks=(1,))
    assert refined(seen.case(), died) is died


# load-on-one-device, state-dict-prefix


@pytest.mark.parametrize(
    ("mapped", "devices", "expected"),
    [(False, (0, 1), [("load-on-one-device", 33, (1,))]), (True, (0, 1), []), (False, (0, 0), [])],
)
def test_loads_onto_the_device_of_rank_zero(
    mapped: bool, devices: tuple[int, int], expected: list[Any]
) -> None:
    seen = Seen()
    for rank in seen.everyone:
        row = {
            "path": "/c/a.pt",
            "via": "torch.load",
            "mapped": mapped,
            "devices": [0],
            "device": devices[rank],
        }
        seen.saw(rank, "read", "main:33", **row)
    assert verdicts(seen.found(outputs.RULES)) == expected


def test_keys_that_a_lax_load_left_out() -> None:
    seen = Seen()
    for rank in seen.everyone:
        seen.saw(rank, "keys", "main:44", prefix="module.", **{"in": "file"}, count=12, of=12)
    finding = seen.found(outputs.RULES)[0]
    assert verdicts([finding]) == [("state-dict-prefix", 44, (0, 1))]
    assert str(finding.message).startswith(
        "12 of the model's keys stand in the file with the prefix 'module.'"
    )


def test_one_rank_renames_what_all_have_written() -> None:
    seen = Seen()
    for rank in seen.everyone:
        write(seen, rank, "/c/last.pt.tmp", 28, 3, via="torch.save")
    error = ExceptionInfo(
        "FileNotFoundError", "[Errno 2] No such file: '/c/last.pt.tmp'", site("main:29"), 4 * SECOND
    )
    seen.world.ranks[1].exceptions.append(error)
    died = Finding("child-failed-first", Severity.ERROR, Confidence.PROVED, say("died"), None, ranks=(1,))
    assert verdicts([refined(seen.case(), died)]) == [("checkpoint-race", 28, (0, 1))]


# output-from-every-rank


def printed(*texts: list[str], ranks: int = 2, **row: Any) -> Seen:
    seen = Seen(ranks)
    for rank, mine in enumerate(texts):
        if mine:
            seen.saw(rank, "line", "main:60", place=1, count=len(mine), texts=mine, stream="stdout", **row)
    return seen


@pytest.mark.parametrize(
    "texts",
    [
        (["epoch 1 loss 0.31", "epoch 2 loss 0.2"], ["epoch 1 loss 0.35", "epoch 2 loss 0.22"]),
        (
            ["train: 10%|#    | 1/10", "train: 20%|##   | 2/10"],
            ["train: 10%|#    | 1/10", "train: 30%|###  | 3/10"],
        ),
        (["done", "done"], ["done", "done"]),
    ],
    ids=["losses", "bars", "words"],
)
def test_the_same_lines_on_every_rank(texts: Any) -> None:
    assert verdicts(printed(*texts).found(outputs.RULES)) == [("output-from-every-rank", 60, (0, 1))]


@pytest.mark.parametrize(
    "texts",
    [
        (
            ["[0] epoch 1 loss 0.31", "[0] epoch 2 loss 0.2"],
            ["[1] epoch 1 loss 0.35", "[1] epoch 2 loss 0.2"],
        ),
        (["pid 411 step 1", "pid 411 step 2"], ["pid 412 step 1", "pid 412 step 2"]),
        (["main: saved 1", "main: saved 2"], ["worker: waits 1", "worker: waits 2"]),
        (["epoch 1", "epoch 2"], []),
    ],
    ids=["rank", "process", "other words", "one rank"],
)
def test_lines_that_tell_the_ranks_apart(texts: Any) -> None:
    assert printed(*texts).found(outputs.RULES) == []
