# ruff: noqa: E501 - lines of logs are as long as they are
"""What people paste: cut off in the middle, wrapped by a terminal or by hand, without what stood before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .book import BACKWARD, SITE, Frame, ask, c10d, ended, place, started, trace, verdict

if TYPE_CHECKING:
    from pathlib import Path

MAIN: Frame = ("/srv/job/train.py", 70, "<module>", "main()")
STEP: Frame = ("/srv/job/train.py", 52, "main", "loss.backward()")
LAUNCH: Frame = (f"{SITE}/torch/distributed/launcher/api.py", 264, "launch_agent", "raise ChildFailedError(")


@pytest.mark.parametrize("left", ["torch.distr", "torch.distributed.elastic.multiprocessing.err", "", "to"])
def test_a_launchers_exception_that_is_cut_off_is_no_cause(tmp_path: Path, left: str) -> None:
    log = [
        "torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 2 (pid: 1322) of binary: /usr/bin/python",
        *trace([("/opt/conda/bin/torchrun", 8, "<module>", "sys.exit(main())"), LAUNCH], left),
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("killed-by-signal", (2,))


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (
            (
                f"{SITE}/torch/amp/grad_scaler.py",
                451,
                "step",
                'assert len(state["found_inf_per_device"]) > 0, "No inf checks were recorded for this optimizer."',
            ),
            "scaler-order",
        ),
        (
            (
                f"{SITE}/torch/distributed/distributed_c10d.py",
                286,
                "_get_default_group",
                'raise RuntimeError("Default process group has not been initialized, "',
            ),
            "process-group-missing",
        ),
    ],
)
def test_the_statement_speaks_where_the_message_is_cut_off(tmp_path: Path, frame: Frame, fault: str) -> None:
    found = verdict(ask(tmp_path, trace([MAIN, STEP, frame], "")[:-1]))
    assert (found.fault, place(found)) == (fault, ("train.py", 52))


def test_a_traceback_without_its_message_has_a_place(tmp_path: Path) -> None:
    found = verdict(
        ask(tmp_path, trace([MAIN, ("/srv/job/data.py", 19, "load", "return table[key]")], "")[:-1])
    )
    assert (found.fault, place(found)) == ("child-failed-first", ("data.py", 19))
    assert str(found.message) == "a rank failed; the log does not go on to its message"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Parameter indices which did not receive grad for rank 3: 4 5 6", "unused-parameters"),
        (
            "RuntimeError: one of the variables needed for gradient computation has been modified\n"
            "by an inplace operation: [torch.cuda.FloatTensor [12]] is at version 3; expected version 2\ninstead.",
            "inplace-buffer-conflict",
        ),
        (
            "AssertionError: DistributedDataParallel device_ids and output_device arguments only work\n"
            "with single-device CUDA modules, but got device_ids [0], output_device 0, and\n"
            "module parameters {device(type='cpu')}.",
            "wrapped-before-device",
        ),
        (
            "n07:20:21 [0] transport/net_ib.cc:667 NCCL WARN NET/IB : collective mismatch error local size 64 remote 4096 addr 0",
            "collective-shape",
        ),
        (
            "n07:20:21 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in",
            "rank-env-conflict",
        ),
        (
            "terminate called after throwing an instance of 'std::out_of_range'\n  what():  map::at\nAborted",
            "child-failed-first",
        ),
    ],
)
def test_a_few_lines_are_enough(tmp_path: Path, text: str, fault: str) -> None:
    assert verdict(ask(tmp_path, text)).fault == fault


def test_a_terminated_process_whose_watchdog_said_why_waited(tmp_path: Path) -> None:
    said = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1800000) ran for 1800035 milliseconds before timing out."
    log = [
        f"[E ProcessGroupNCCL.cpp:457] {said}",
        "terminate called after throwing an instance of 'std::runtime_error'",
        f"  what():  {said}",
        "Aborted (core dumped)",
    ]
    assert verdict(ask(tmp_path, log)).fault == "slow-rank"


CLOSED = trace(
    [
        ("/opt/conda/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        (
            f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
            638,
            "run",
            "raise RendezvousClosedError",
        ),
    ],
    "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
)


def test_a_rendezvous_that_fails_first_is_the_cause(tmp_path: Path) -> None:
    found = verdict(ask(tmp_path, [*started(), *CLOSED]))
    assert found.fault == "rendezvous-unreachable"


def test_a_rendezvous_that_fails_after_a_rank_follows_from_it(tmp_path: Path) -> None:
    late = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    stood = trace([MAIN, ("/srv/job/train.py", 60, "main", "dist.barrier()"), c10d("barrier")], late)
    log = [*started(), *(f"[rank1]: {line}" for line in stood), *CLOSED]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, place(found)) == ("slow-rank", ("train.py", 60))
    failed = ended({0: 1})[0]
    found = verdict(ask(tmp_path, [*started(), failed, *CLOSED]))
    assert (found.fault, found.ranks) == ("child-failed-first", (0,))
    own = trace([MAIN, STEP, *BACKWARD], "KeyError: 'x'")
    found = verdict(ask(tmp_path, [*started(), *own, *CLOSED]))
    assert (found.fault, place(found)) == ("child-failed-first", ("train.py", 52))


def test_lightnings_children(tmp_path: Path) -> None:
    line = "Child process with PID 652 terminated with code {}. Forcefully terminating all other processes to avoid zombies"
    assert verdict(ask(tmp_path, line.format(1))).fault == "child-failed-first"
    assert verdict(ask(tmp_path, line.format(-9))).fault == "killed-by-signal"


def test_a_barrier_that_was_passed_is_no_wait(tmp_path: Path) -> None:
    waits = "01/02/2026 13:46:14 - INFO - torch.distributed.distributed_c10d -   Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=6, worker_count=4, timeout=0:30:00)"
    done = "01/02/2026 13:46:15 - INFO - torch.distributed.distributed_c10d -   Rank 5: Completed store-based barrier for key:store_based_barrier_key:1 with 6 nodes."
    assert ask(tmp_path, [waits, done]).loud == []
    assert verdict(ask(tmp_path, [waits])).fault == "rendezvous-unreachable"
    assert verdict(ask(tmp_path, [waits.replace("key:1", "key:2"), done])).fault == "group-membership"


def test_a_watchdog_that_stands_still(tmp_path: Path) -> None:
    stuck = "[rank3]:[F ProcessGroupNCCL.cpp:1153] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives."
    found = verdict(ask(tmp_path, stuck))
    assert (found.fault, found.ranks) == ("slow-rank", (3,))
