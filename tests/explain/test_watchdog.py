# ruff: noqa: E501 - lines of logs are as long as they are
"""NCCL's watchdog lines, compared over ranks, in the forms of several torch versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .book import ask, ended, started, verdict

if TYPE_CHECKING:
    from pathlib import Path


def work(rank: int, seq: int, op: str, sizes: tuple[int, int], form: str = "2.5") -> list[str]:
    """What the watchdog of one rank prints."""
    numel = f", NumelIn={sizes[0]}, NumelOut={sizes[1]}" if form not in ("1.9", "2.0") else ""
    number = f"SeqNum={seq}, " if form != "1.9" else ""
    if form == "2.0":
        numel = f", TensorShape=[{sizes[0]}]"
    call = f"WorkNCCL({number}OpType={op}{numel}, Timeout(ms)=600000) ran for 600{rank:03} milliseconds before timing out."
    head = f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}]"
    if form == "2.5":
        head = f"[rank{rank}]:[E1106 17:20:41.{rank:09} ProcessGroupNCCL.cpp:616] [Rank {rank}]"
    elif form == "2.3":
        head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}]"
    return [f"{head} Watchdog caught collective operation timeout: {call}"]


def queue(rank: int, at: int, enqueued: int, completed: int) -> list[str]:
    return [
        f"[rank{rank}]:[E1106 17:20:41.{rank:09} ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {at}, last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}."
    ]


DOWN = [
    "[rank0]:[E ProcessGroupNCCL.cpp:630] [Rank 0] Some NCCL operations have failed or timed out. Due to the asynchronous "
    "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "[rank0]:[E ProcessGroupNCCL.cpp:636] [Rank 0] To avoid data inconsistency, we are taking the entire process down.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
]
FORMS = ["2.5", "2.3", "2.0", "1.12"]


@pytest.mark.parametrize("form", [*FORMS, "1.9"])
def test_another_operation_on_one_rank(tmp_path: Path, form: str) -> None:
    log = [line for rank in (1, 2, 3) for line in work(rank, 88, "ALLREDUCE", (512, 512), form)]
    log += work(0, 88, "BROADCAST", (512, 512), form)
    found = verdict(ask(tmp_path, [*started(), *log, *DOWN, *ended(dict.fromkeys(range(4), -6))]))
    assert (found.fault, found.ranks) == ("collective-order", (0,))


@pytest.mark.parametrize("form", FORMS)
def test_another_number_on_one_rank(tmp_path: Path, form: str) -> None:
    log = [line for rank in (0, 1, 3) for line in work(rank, 88, "ALLREDUCE", (512, 512), form)]
    log += work(2, 87, "ALLREDUCE", (512, 512), form)
    found = verdict(ask(tmp_path, [*log, *DOWN]))
    assert (found.fault, found.ranks) == ("collective-order", (2,))


@pytest.mark.parametrize("form", ["2.5", "2.3", "2.0"])
def test_another_size_on_one_rank(tmp_path: Path, form: str) -> None:
    log = [line for rank in (0, 1, 2) for line in work(rank, 88, "_ALLGATHER_BASE", (512, 2048), form)]
    log += work(3, 88, "_ALLGATHER_BASE", (300, 1200), form)
    found = verdict(ask(tmp_path, [*log, *DOWN]))
    assert (found.fault, found.ranks) == ("collective-shape", (3,))


def test_two_ranks_that_differ_are_both_named(tmp_path: Path) -> None:
    log = [*work(0, 9, "ALLREDUCE", (4, 4)), *work(1, 9, "BROADCAST", (4, 4))]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("collective-order", (0, 1))


def test_the_rank_without_a_timeout_is_late(tmp_path: Path) -> None:
    log = [line for rank in (0, 1, 3) for line in work(rank, 88, "ALLREDUCE", (512, 512))]
    found = verdict(ask(tmp_path, [*started(), *log, *DOWN, *ended({0: -6, 1: -6, 3: -6}, survivors=[2])]))
    assert (found.fault, found.ranks) == ("slow-rank", (2,))


def test_the_rank_without_a_timeout_had_left(tmp_path: Path) -> None:
    log = [line for rank in (0, 1, 2) for line in work(rank, 88, "ALLREDUCE", (512, 512))]
    log = ["[rank 3] evaluation done, bye", *started(), *log, *DOWN, *ended({0: -6, 1: -6, 2: -6})]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("early-exit", (3,))


def test_the_smallest_enqueued_number_is_the_late_rank(tmp_path: Path) -> None:
    log = [
        line
        for rank in (0, 1)
        for line in [*work(rank, 88, "ALLREDUCE", (512, 512)), *queue(rank, 88, 90, 87)]
    ]
    found = verdict(ask(tmp_path, [*log, *queue(2, 88, 87, 87), *queue(3, 88, 90, 87), *DOWN]))
    assert (found.fault, found.ranks) == ("slow-rank", (2,))


def test_an_exception_before_the_timeouts_is_the_cause(tmp_path: Path) -> None:
    own = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/srv/job/data.py", line 19, in load',
        "[rank2]: KeyError: 'x'",
    ]
    log = [line for rank in (0, 1, 3) for line in work(rank, 88, "ALLREDUCE", (512, 512))]
    found = verdict(ask(tmp_path, [*own, *log, *DOWN, *ended({0: -6, 1: -6, 3: -6, 2: 1})]))
    assert (found.fault, found.ranks) == ("child-failed-first", (2,))


def test_all_ranks_in_one_call(tmp_path: Path) -> None:
    log = [line for rank in range(4) for line in work(rank, 88, "ALLREDUCE", (512, 512))]
    found = verdict(ask(tmp_path, [*log, *DOWN, *ended(dict.fromkeys(range(4), -6))]))
    assert (found.fault, found.ranks) == ("slow-rank", ())
    assert "which does not finish; no rank is seen elsewhere" in str(found.message)


def test_lines_that_a_terminal_has_broken(tmp_path: Path) -> None:
    whole = [
        *work(0, 4, "BROADCAST", (112, 112)),
        *work(1, 4, "ALLREDUCE", (112, 112)),
        *work(2, 4, "BROADCAST", (112, 112)),
    ]
    log = [part for line in whole for part in (line[:140], line[140:])]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("collective-order", (1,))


def test_a_desync_report(tmp_path: Path) -> None:
    log = [
        *work(1, 3, "ALLREDUCE", (2, 2)),
        "\t - [1] joined but didn't finish collective #3 (count from 1)",
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t   - [0, 2] finished collective #2, but didn't join collective #3 (count from 1)",
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("slow-rank", (0, 2))


def test_subgroups_do_not_accuse_the_ranks_of_other_groups(tmp_path: Path) -> None:
    # Ranks 0 and 4 of eight wait in a group of their own, of which the log says no members.
    log = ["world_size=8", *work(0, 5, "ALLREDUCE", (2, 2)), *work(4, 5, "ALLREDUCE", (2, 2))]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("slow-rank", ())


@pytest.mark.parametrize("era", ["2.1", "1.12"])
def test_old_tables_leave_out_whom_the_launcher_ended(tmp_path: Path, era: str) -> None:
    # Four ranks; one failed, the launcher ended the others: whoever is counted nowhere had left before.
    log = [line for rank in (0, 1, 2) for line in work(rank, 88, "ALLREDUCE", (512, 512), "2.0")]
    said = [*started(era), "world_size=4", *log, *DOWN]
    found = verdict(ask(tmp_path, [*said, *ended({0: -6}, era, survivors=[1, 2])]))
    assert (found.fault, found.ranks) == ("early-exit", (3,))
    found = verdict(ask(tmp_path, [*said, *ended({0: -6}, era, survivors=[1, 2, 3])]))
    assert (found.fault, found.ranks) == ("slow-rank", (3,))


def test_sends_that_do_not_meet(tmp_path: Path) -> None:
    found = verdict(ask(tmp_path, [*work(0, 9, "SEND", (4, 4)), *work(1, 9, "SEND", (4, 4))]))
    assert (found.fault, found.ranks) == ("unmatched-p2p", (0, 1))


def test_an_exception_without_prefix_far_above_the_timeouts(tmp_path: Path) -> None:
    own = [
        "Traceback (most recent call last):",
        '  File "/srv/job/data.py", line 19, in load',
        "KeyError: 'x'",
    ]
    frames = [f"frame #{i}: <unknown function> + 0x{i} (0x7f in /lib/libc.so.6)" for i in range(120)]
    log = [line for rank in (0, 1, 3) for line in [*work(rank, 88, "ALLREDUCE", (512, 512), "2.0"), *frames]]
    found = verdict(ask(tmp_path, [*own, *log, *DOWN]))
    assert found.fault == "child-failed-first"
