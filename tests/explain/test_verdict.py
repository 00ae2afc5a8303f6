# ruff: noqa: E501 - lines of logs are as long as they are
"""The first cause, not the loudest line: who failed, who followed, who was missing, who was killed by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks.findings import Severity

from .book import (
    BACKWARD,
    C10D,
    DDP_FORWARD,
    PREFIXES,
    SITE,
    Frame,
    ask,
    c10d,
    ended,
    place,
    started,
    trace,
    verdict,
    woven,
)

if TYPE_CHECKING:
    from pathlib import Path

MAIN: Frame = ("/srv/job/train.py", 70, "<module>", "main()")
STEP: Frame = ("/srv/job/train.py", 52, "main", "loss.backward()")
GONE = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.2.3]:40044"
RESET = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.1.2.3]:30112: Connection reset by peer"
LATE = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
OWN = trace([MAIN, ("/srv/job/data.py", 19, "__getitem__", "return table[key]")], "KeyError: 'n0147'")
LOST = trace([MAIN, STEP, *BACKWARD], GONE)


def stands(line: int, call: str, error: str) -> list[str]:
    return trace([MAIN, ("/srv/job/train.py", line, "main", f"dist.{call}(x)"), C10D, c10d(call)], error)


@pytest.mark.parametrize("prefix", ["excepthook", "tee", "slurm", "mpirun", "compose and excepthook"])
@pytest.mark.parametrize("weave", ["after", "alternately", "anyhow"])
def test_victims_follow_from_the_rank_that_failed(tmp_path: Path, prefix: str, weave: str) -> None:
    # The victims' lines stand first: what is first in the file is not what came first.
    ranks = {0: ["epoch 3", *LOST], 3: LOST, 2: OWN, 1: LOST}
    report = ask(tmp_path, [*woven(ranks, PREFIXES[prefix], weave)])
    first, *rest = report.findings
    assert (first.fault, first.ranks, place(first)) == ("child-failed-first", (2,), ("data.py", 19))
    assert [(one.ranks, one.severity, one.consequence_of) for one in rest] == [((0, 1, 3), Severity.INFO, 0)]


@pytest.mark.parametrize("era", ["2.13", "2.1", "1.12"])
def test_the_table_names_the_rank_that_unprefixed_lines_leave_out(tmp_path: Path, era: str) -> None:
    ranks = {0: LOST, 2: OWN, 1: LOST}
    log = [*started(era), *woven(ranks, PREFIXES["none"], "anyhow", 1), *ended({2: 1}, era, survivors=[0, 1])]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (2,), ("data.py", 19))


def test_two_nodes_one_fails(tmp_path: Path) -> None:
    log = [
        f"node1: {line}"
        for line in [*started(), *trace([MAIN, STEP, *DDP_FORWARD], RESET), *ended({2: 1, 3: 1})]
    ]
    log += [f"node0: {line}" for line in [*started(), *OWN, *ended({1: 1}, survivors=[0])]]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, place(found)) == ("child-failed-first", ("data.py", 19))


def test_what_a_victim_raises_while_it_cleans_up_is_no_cause(tmp_path: Path) -> None:
    cleanup = trace(
        [MAIN, ("/srv/job/train.py", 61, "main", "save(state)")],
        "AttributeError: 'NoneType' object has no attribute 'state_dict'",
    )
    ranks = {
        0: [*LOST, "", "During handling of the above exception, another exception occurred:", "", *cleanup],
        1: OWN,
    }
    found = verdict(ask(tmp_path, woven(ranks, PREFIXES["excepthook"], "after")))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (1,), ("data.py", 19))


def test_the_cause_stands_in_the_worker_process_of_a_loader(tmp_path: Path) -> None:
    fetch: Frame = (
        f"{SITE}/torch/utils/data/_utils/fetch.py",
        49,
        "fetch",
        "data = [self.dataset[idx] for idx in possibly_batched_index]",
    )
    inner = trace([fetch, ("/srv/job/data.py", 19, "__getitem__", "return table[key]")], "KeyError: 'n0147'")
    outer = trace(
        [
            MAIN,
            ("/srv/job/train.py", 44, "main", "for batch in loader:"),
            (f"{SITE}/torch/_utils.py", 644, "reraise", "raise exception"),
        ],
        "KeyError: Caught KeyError in DataLoader worker process 3.",
    )
    log = woven(
        {0: LOST, 1: [*outer, f"Original {inner[0]}", *inner[1:], ""]}, PREFIXES["excepthook"], "after"
    )
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (1,), ("data.py", 19))


def test_the_first_exception_of_a_chain_is_the_cause(tmp_path: Path) -> None:
    late = trace(
        [MAIN, ("/srv/job/train.py", 58, "main", "raise RuntimeError('bad sample') from error")],
        "RuntimeError: bad sample",
    )
    chain = [*OWN, "", "The above exception was the direct cause of the following exception:", "", *late]
    found = verdict(ask(tmp_path, [*started(), *chain, *ended({1: 1}, survivors=[0])]))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (1,), ("data.py", 19))
    assert "KeyError: 'n0147'" in str(found.message)


def test_the_child_of_spawn(tmp_path: Path) -> None:
    parent = trace(
        [
            ("/srv/job/train.py", 90, "<module>", "mp.spawn(main, nprocs=4)"),
            (f"{SITE}/torch/multiprocessing/spawn.py", 158, "join", "raise ProcessRaisedException("),
        ],
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
    )
    child = [
        OWN[0],
        f'  File "{SITE}/torch/multiprocessing/spawn.py", line 69, in _wrap',
        "    fn(i, *args)",
        *OWN[1:],
    ]
    log = [*parent, "", "-- Process 3 terminated with the following error:", *child, ""]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (3,), ("data.py", 19))


def test_the_recorded_error_in_torchruns_table(tmp_path: Path) -> None:
    log = ended({2: 1}, survivors=[0, 1])
    at = next(i for i, line in enumerate(log) if "To enable traceback" in line)
    log[at : at + 1] = [f"  traceback : {OWN[0]}", *(f"  {line}" for line in OWN[1:])]
    found = verdict(ask(tmp_path, [*started(), *log]))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (2,), ("data.py", 19))


def test_the_error_handlers_json(tmp_path: Path) -> None:
    stack = "\\n".join(OWN).replace('"', '\\"')
    log = [
        "ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{", '  "message": {',
        '    "message": "KeyError: \'n0147\'",', '    "extraInfo": {', f'      "py_callstack": "{stack}\\n",',
        '      "timestamp": "1664773201"', "    }", "  }", "}",
    ]  # fmt: skip
    found = verdict(ask(tmp_path, [*log, *ended({0: 1}, "1.12")]))
    assert (found.fault, place(found)) == ("child-failed-first", ("data.py", 19))


def test_tracebacks_behind_a_prefix_of_another_program(tmp_path: Path) -> None:
    log = [f"resnet.D1.cn-d003 [stderr] {line}" for line in ["hello", *OWN, "bye"]]
    assert place(verdict(ask(tmp_path, log))) == ("data.py", 19)
    log = [f"2024-05-01 10:00:{i:02} | ERROR | {line}" for i, line in enumerate(OWN)]
    assert place(verdict(ask(tmp_path, log))) == ("data.py", 19)


# ------------------------------------------------------------------------------------------------- killed, ended


@pytest.mark.parametrize("era", ["2.13", "2.1", "1.12"])
@pytest.mark.parametrize(("status", "name"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-7, "SIGBUS")])
def test_a_rank_that_was_killed(tmp_path: Path, era: str, status: int, name: str) -> None:
    log = [*started(era), *LOST, *ended({3: status}, era, survivors=[0, 1, 2])]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("killed-by-signal", (3,))
    assert name in str(found.message)


@pytest.mark.parametrize(
    ("lines", "fault", "ranks"),
    [
        (["srun: error: gpu-07: task 5: Killed", "srun: Terminating StepId=811.0"], "killed-by-signal", (5,)),
        (["srun: error: gpu-07: task 5: Segmentation fault (core dumped)"], "killed-by-signal", (5,)),
        (["srun: error: gpu-07: task 5: Out Of Memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=811.0. Some of the step tasks have been OOM Killed."], "out-of-memory", (5,)),
        (["mpirun noticed that process rank 2 with PID 0 on node gpu3 exited on signal 9 (Killed)."], "killed-by-signal", (2,)),
        (["[2024-05-01 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 811", "[2024-05-01 10:00:00,001] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = -9"], "killed-by-signal", ()),
        (["torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"], "killed-by-signal", (1,)),
        (["run.sh: line 12: 31337 Killed                  python train.py"], "killed-by-signal", ()),
        (["Killed"], "killed-by-signal", ()),
        (["[86341.12] Out of memory: Killed process 31337 (python) total-vm:98765432kB, anon-rss:61234567kB, file-rss:0kB"], "out-of-memory", ()),
        (["Memory cgroup out of memory: Killed process 31337 (python3) total-vm:1kB, anon-rss:1kB"], "out-of-memory", ()),
        (["slurmstepd: error: *** JOB 811 ON gpu-07 CANCELLED AT 2024-03-01T12:00:00 DUE TO TIME LIMIT ***"], "killed-by-signal", ()),
        (["    State:          Terminated", "      Reason:       OOMKilled", "      Exit Code:    137"], "out-of-memory", ()),
        (["Fatal Python error: Bus error", "", "Current thread 0x00007f0 (most recent call first):", '  File "/srv/job/data.py", line 9 in read', '  File "/srv/job/train.py", line 70 in <module>', ""], "killed-by-signal", ()),
    ],
)  # fmt: skip
def test_other_launchers_and_the_kernel(
    tmp_path: Path, lines: list[str], fault: str, ranks: tuple[int, ...]
) -> None:
    found = verdict(ask(tmp_path, ["step 10 loss 0.3", *lines]))
    assert (found.fault, found.ranks) == (fault, ranks)


def test_the_oom_killers_text_explains_a_killed_rank(tmp_path: Path) -> None:
    log = [
        *started(),
        *ended({1: -9}, survivors=[0]),
        "Out of memory: Killed process 1001 (python) total-vm:9kB",
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("out-of-memory", (1,))


def test_a_terminal_that_was_closed(tmp_path: Path) -> None:
    signal = trace(
        [
            ("/opt/conda/bin/torchrun", 8, "<module>", "sys.exit(main())"),
            (
                f"{SITE}/torch/distributed/elastic/multiprocessing/api.py",
                76,
                "_terminate_process_handler",
                "raise SignalException(",
            ),
        ],
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 1",
    )
    found = verdict(ask(tmp_path, [*started(), "epoch 3", *signal]))
    assert found.fault == "killed-by-signal"
    assert found.fix is not None
    assert "SIGHUP" in str(found.fix)


# --------------------------------------------------------------------------------------------------------- waits


def test_a_rank_that_left_early(tmp_path: Path) -> None:
    # Three ranks printed; torchrun lists one failure and ended one process: the third had left with status 0.
    log = [*started(), "[rank 0] epoch 1", "[rank 1] epoch 1", "[rank 2] epoch 1"]
    log += [*woven({0: LOST}, PREFIXES["excepthook"], "after"), *ended({0: 1}, survivors=[2])]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks, place(found)) == ("early-exit", (1,), ("train.py", 52))


def test_a_rank_that_left_with_a_status_and_no_word(tmp_path: Path) -> None:
    log = [
        *started(),
        *woven({0: LOST, 2: LOST}, PREFIXES["excepthook"], "after"),
        *ended({1: 3, 0: 1, 2: 1}),
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks) == ("early-exit", (1,))


def test_a_rank_that_came_too_late(tmp_path: Path) -> None:
    log = [
        *started(),
        *woven(
            {1: stands(40, "barrier", LATE), 2: stands(40, "barrier", LATE)}, PREFIXES["excepthook"], "after"
        ),
    ]
    found = verdict(ask(tmp_path, [*log, *ended({1: 1, 2: 1}, survivors=[0])]))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (0,), ("train.py", 40))


def test_ranks_in_different_calls(tmp_path: Path) -> None:
    ranks = {
        0: stands(40, "broadcast", LATE),
        1: stands(48, "all_reduce", LATE),
        2: stands(48, "all_reduce", LATE),
    }
    found = verdict(
        ask(tmp_path, [*woven(ranks, PREFIXES["excepthook"], "alternately"), *ended({0: 1, 1: 1, 2: 1})])
    )
    assert (found.fault, found.ranks) == ("collective-order", (0,))


def test_uneven_epochs_end_in_different_calls(tmp_path: Path) -> None:
    late = trace([MAIN, STEP, *BACKWARD], LATE)
    ranks = {0: stands(60, "barrier", LATE), 1: late}
    found = verdict(ask(tmp_path, woven(ranks, PREFIXES["excepthook"], "after")))
    assert (found.fault, found.ranks) == ("collective-order", (0, 1))


@pytest.mark.parametrize(
    "calls", [("recv", "recv"), ("send", "send"), ("recv", None), ("batch_isend_irecv", "recv")]
)
def test_point_to_point_calls_that_do_not_meet(tmp_path: Path, calls: tuple[str, str | None]) -> None:
    ranks = {rank: stands(33 + rank, call, LATE) for rank, call in enumerate(calls) if call}
    found = verdict(
        ask(tmp_path, [*woven(ranks, PREFIXES["excepthook"], "after"), *ended({0: 1}, survivors=[1])])
    )
    assert (found.fault, place(found)) == ("unmatched-p2p", ("train.py", 33))


def test_new_group_that_not_all_call(tmp_path: Path) -> None:
    error = "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//1//cpu//0/3"
    found = verdict(
        ask(tmp_path, [*woven({0: stands(21, "new_group", error)}, PREFIXES["excepthook"], "after")])
    )
    assert (found.fault, found.ranks, place(found)) == ("group-membership", (3,), ("train.py", 21))


def test_a_rank_that_does_not_come_to_the_first_meeting(tmp_path: Path) -> None:
    error = "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/2"
    found = verdict(ask(tmp_path, [*stands(21, "init_process_group", error), *ended({0: 1}, survivors=[1])]))
    assert (found.fault, found.ranks, place(found)) == ("rendezvous-unreachable", (2,), ("train.py", 21))


def test_two_processes_with_one_rank(tmp_path: Path) -> None:
    error = "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/1"
    log = [
        *stands(21, "init_process_group", error),
        *stands(21, "init_process_group", error),
        *ended({0: 1, 1: 1}),
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, place(found)) == ("rank-env-conflict", ("train.py", 21))


def test_gloo_aborts_the_innocent_rank(tmp_path: Path) -> None:
    abort = [
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 800 vs 256",
    ]
    log = [*started(), *abort, *woven({0: stands(37, "all_gather", RESET)}, PREFIXES["excepthook"], "after")]
    report = ask(tmp_path, [*log, *ended({1: -6}, survivors=[0])])
    assert (report.findings[0].fault, place(report.findings[0])) == ("collective-shape", ("train.py", 37))
    assert report.findings[1].fault == "collective-order"


def test_monitored_barrier_names_the_late_rank(tmp_path: Path) -> None:
    late = stands(
        30,
        "monitored_barrier",
        "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 60000 ms",
    )
    other = stands(
        30,
        "monitored_barrier",
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.2.3]:1",
    )
    log = [
        *woven({2: other, 0: late}, PREFIXES["excepthook"], "after"),
        *ended({0: 1, 2: 1}, survivors=[1, 3]),
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (1, 3), ("train.py", 30))


def test_an_interrupted_hang_shows_where_each_rank_stood(tmp_path: Path) -> None:
    there = trace(
        [MAIN, ("/srv/job/data.py", 88, "build_index", "index.append(parse(line))")], "KeyboardInterrupt"
    )
    ranks = {
        0: there,
        1: stands(40, "barrier", "KeyboardInterrupt"),
        2: stands(40, "barrier", "KeyboardInterrupt"),
    }
    found = verdict(ask(tmp_path, woven(ranks, PREFIXES["excepthook"], "alternately")))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (0,), ("data.py", 88))


def test_only_a_status_is_known(tmp_path: Path) -> None:
    found = verdict(ask(tmp_path, [*started(), "epoch 1", *ended({1: 1}, survivors=[0])]))
    assert (found.fault, found.ranks) == ("child-failed-first", (1,))


def test_what_goes_on_and_is_wrong_is_found_in_a_long_log(tmp_path: Path) -> None:
    warning = [
        f"{SITE}/torch/distributed/distributed_c10d.py:2054: UserWarning: Running all_reduce on global rank 2 which does not belong to the given group.",
        "  warnings.warn(",
    ]
    found = verdict(ask(tmp_path, ["epoch 1", *warning, *(f"epoch {i} loss 0.3" for i in range(2, 400))]))
    assert (found.fault, found.ranks, found.severity) == ("group-membership", (2,), Severity.ERROR)
    keys = [
        "The model and loaded state dict do not match exactly",
        "",
        "unexpected key in source state_dict: module.backbone.conv1.weight",
    ]
    assert (
        verdict(ask(tmp_path, [*keys, *(f"epoch {i} loss 0.3" for i in range(400))])).fault
        == "state-dict-prefix"
    )


def test_all_ranks_out_of_memory_on_one_device(tmp_path: Path) -> None:
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB"
    ranks = {
        rank: trace([MAIN, ("/srv/job/train.py", 31, "main", "model.cuda()")], error) for rank in range(3)
    }
    report = ask(tmp_path, woven(ranks, PREFIXES["excepthook"], "after"))
    assert [(one.fault, one.ranks) for one in report.findings[:2]] == [
        ("out-of-memory", (0, 1, 2)),
        ("device-not-bound", (0, 1, 2)),
    ]


def test_a_kernels_check_and_the_place_of_its_exception(tmp_path: Path) -> None:
    check = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."
    log = [
        check,
        check,
        *trace(
            [MAIN, ("/srv/job/train.py", 44, "main", "loss.item()")],
            "RuntimeError: CUDA error: device-side assert triggered",
        ),
    ]
    found = verdict(ask(tmp_path, [*log, *ended({0: 1})]))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (0,), ("train.py", 44))


def test_a_traceback_of_a_notebook(tmp_path: Path) -> None:
    log = [
        "---------------------------------------------------------------------------",
        "KeyError                                  Traceback (most recent call last)",
        "File /srv/job/train.py:70, in main(args)",
        "     68 def main(args):",
        "---> 70     table[key]",
        "",
        "KeyError: 'n0147'",
    ]
    found = verdict(ask(tmp_path, log))
    assert (found.fault, place(found)) == ("child-failed-first", ("train.py", 70))


def test_a_size_mismatch_between_two_calls_is_one_of_order(tmp_path: Path) -> None:
    abort = "  what():  [enforce fail at ../gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 800 vs 4"
    ranks = {
        0: stands(37, "all_gather", RESET),
        1: stands(41, "all_reduce", RESET),
        2: stands(41, "all_reduce", RESET),
    }
    report = ask(
        tmp_path,
        [
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
            abort,
            *woven(ranks, PREFIXES["excepthook"], "after"),
        ],
    )
    assert [one.fault for one in report.findings[:2]] == ["collective-order", "collective-shape"]


def test_one_line_with_two_calls(tmp_path: Path) -> None:
    at = ("/srv/job/train.py", 52, "main", "dist.all_reduce(x) if rank else dist.broadcast(x, 0)")
    ranks = {0: trace([MAIN, at, c10d("broadcast")], LATE), 1: trace([MAIN, at, c10d("all_reduce")], LATE)}
    found = verdict(ask(tmp_path, woven(ranks, PREFIXES["excepthook"], "after")))
    assert (found.fault, found.ranks, place(found)) == ("collective-order", (0, 1), ("train.py", 52))


def test_a_bus_error_may_be_shared_memory(tmp_path: Path) -> None:
    report = ask(tmp_path, [*started(), *ended({1: -7}, survivors=[0])])
    assert [one.fault for one in report.findings[:2]] == ["killed-by-signal", "shared-memory-too-small"]
    assert "/dev/shm" in str(report.findings[0].fix)
