# ruff: noqa: E501 - lines of logs are as long as they are
"""What a job leaves behind besides a log: folders, error files, stacks of living processes; and its source at hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from allranks.explain import explain

from .book import BACKWARD, PREFIXES, Frame, ask, c10d, ended, place, started, trace, verdict, woven

if TYPE_CHECKING:
    from pathlib import Path

OWN = trace(
    [("/srv/train.py", 70, "<module>", "main()"), ("/srv/data.py", 19, "get", "return table[key]")],
    "KeyError: 'n0147'",
)
GONE = "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.2.3]:40044"
LATE = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"


def write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def test_a_log_folder_of_torchrun(tmp_path: Path) -> None:
    lost = trace([("/srv/train.py", 70, "<module>", "main()"), *BACKWARD], GONE)
    for local, lines in enumerate([lost, lost, OWN]):
        write(tmp_path / f"none_x/attempt_0/{local}/stderr.log", lines)
        write(tmp_path / f"none_x/attempt_0/{local}/stdout.log", ["step 1"])
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\0\0")
    report = explain([tmp_path])
    first, second = report.findings
    assert (first.fault, first.ranks, place(first)) == ("child-failed-first", (2,), ("data.py", 19))
    assert (second.ranks, second.consequence_of) == ((0, 1), 0)
    assert first.evidence[0].lines[0].startswith(f"{tmp_path}/none_x/attempt_0/2/stderr.log:4: ")


def test_logs_by_rank(tmp_path: Path) -> None:
    for rank in range(12):
        write(tmp_path / f"job.rank{rank}.log", OWN if rank == 10 else ["step 1"])
    assert verdict(explain([tmp_path])).ranks == (10,)


def test_time_stamps_order_failures_of_several_files(tmp_path: Path) -> None:
    later = [
        "2024-05-01 10:09:00,000 INFO x",
        *trace([("/srv/train.py", 9, "main", "f()")], "ValueError: later"),
    ]
    write(tmp_path / "a.log", later)
    write(tmp_path / "b.log", ["2024-05-01 10:08:00,000 INFO x", *OWN])
    assert place(verdict(explain([tmp_path]))) == ("data.py", 19)


def test_error_files(tmp_path: Path) -> None:
    for local, (stack, stamp) in enumerate(
        [(trace([("/srv/train.py", 3, "main", "f()")], "ValueError: later"), 200), (OWN, 100)]
    ):
        content = {
            "message": {
                "message": "x",
                "extraInfo": {"py_callstack": "\n".join(stack), "timestamp": str(1664773000 + stamp)},
            }
        }
        write(tmp_path / f"attempt_0/{local}/error.json", [json.dumps(content)])
    found = verdict(explain([tmp_path]))
    assert (found.fault, found.ranks, place(found)) == ("child-failed-first", (1,), ("data.py", 19))


@pytest.mark.parametrize(
    "content", ["{", '{"message": 3}', '{"message": {"extraInfo": []}}', '{"message": ' + "[" * 5000]
)
def test_damaged_error_files(tmp_path: Path, content: str) -> None:
    write(tmp_path / "error.json", [content])
    assert explain([tmp_path / "error.json"]).loud == []


def stacks(pid: int, rank: int, frames: list[str]) -> list[str]:
    return [
        f"Process {pid}: /usr/bin/python -u train.py --local-rank={rank}", "Python v3.11.7 (/usr/bin/python3.11)", "",
        f'Thread {pid} (idle): "MainThread"', *(f"    {frame}" for frame in frames),
        f'Thread {pid + 1} (idle): "pt_autograd_0"', "    backward (torch/autograd/function.py:325)",
    ]  # fmt: skip


def test_stacks_of_living_processes(tmp_path: Path) -> None:
    wait = [
        "wait (torch/_ops.py:1)",
        "barrier (/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4159)",
        "main (/srv/train.py:40)",
        "<module> (/srv/train.py:70)",
    ]
    work = [
        "match (re.py:166)",
        "clean (/srv/text.py:12)",
        "main (/srv/train.py:38)",
        "<module> (/srv/train.py:70)",
    ]
    write(tmp_path / "stacks.txt", [*stacks(100, 0, wait), *stacks(200, 1, work), *stacks(300, 2, wait)])
    found = verdict(explain([tmp_path / "stacks.txt"]))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (1,), ("text.py", 12))


def test_stacks_of_a_healthy_job_say_nothing(tmp_path: Path) -> None:
    work = ["forward (/srv/model.py:12)", "main (/srv/train.py:38)", "<module> (/srv/train.py:70)"]
    write(tmp_path / "stacks.txt", [*stacks(100, 0, work), *stacks(200, 1, work)])
    assert explain([tmp_path / "stacks.txt"]).findings == []


# -------------------------------------------------------------------------------------------------- source at hand

EARLY = """\
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    best = None
    for epoch in range(10):
        loss = train(epoch)
        if best is not None and loss > best:
            break
        best = loss
        dist.barrier()


main()
"""
SLOW = """\
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        tokenize("corpus")
    dist.barrier()


main()
"""
BRANCH = """\
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank != 2:
        save()
        dist.barrier()


main()
"""


def barrier(line: int, top: int, source: str = "dist.barrier()") -> list[Frame]:
    return [
        ("/job/code/train.py", top, "<module>", "main()"),
        ("/job/code/train.py", line, "main", source),
        c10d("barrier"),
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_way_out_that_a_rank_took(here: Path) -> None:
    (here / "train.py").write_text(EARLY)
    log = [
        "[rank 0] epoch 1",
        "[rank 1] epoch 1",
        *woven({0: trace(barrier(12, 15), GONE)}, PREFIXES["excepthook"], "after"),
    ]
    found = verdict(ask(here, [*started(), *log, *ended({0: 1})]))
    assert (found.fault, found.ranks, place(found)) == ("early-exit", (1,), ("train.py", 10))
    assert [(one.path, one.line) for one in found.related] == [("/job/code/train.py", 12)]


def test_work_that_only_the_late_rank_does(here: Path) -> None:
    (here / "code").mkdir()
    (here / "code/train.py").write_text(SLOW)
    ranks = {rank: trace(barrier(9, 12), LATE) for rank in (1, 2, 3)}
    log = [*woven(ranks, PREFIXES["excepthook"], "after"), *ended({1: 1, 2: 1, 3: 1}, survivors=[0])]
    found = verdict(ask(here, log))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (0,), ("train.py", 7))


def test_a_branch_that_leaves_a_rank_out(here: Path) -> None:
    (here / "train.py").write_text(BRANCH)
    ranks = {rank: trace(barrier(9, 12), LATE) for rank in (0, 1)}
    log = [*woven(ranks, PREFIXES["excepthook"], "after"), *ended({0: 1, 1: 1}, survivors=[2])]
    found = verdict(ask(here, log))
    assert (found.fault, found.ranks, place(found)) == ("slow-rank", (2,), ("train.py", 7))
    assert "rank != 2" in str(found.message)


def test_another_version_of_the_source_says_nothing(here: Path) -> None:
    (here / "train.py").write_text(f"# one more line\n{SLOW}")
    log = woven({1: trace(barrier(9, 12), LATE)}, PREFIXES["excepthook"], "after")
    assert place(verdict(ask(here, [*log, *ended({1: 1}, survivors=[0])]))) == ("train.py", 9)


@pytest.mark.parametrize("source", ["def main(:\n" * 12, "\0" * 900, "x = " + "(" * 3000 + "\n" * 12])
def test_source_that_does_not_parse(here: Path, source: str) -> None:
    (here / "train.py").write_text(source)
    log = woven({1: trace(barrier(9, 12, ""), LATE)}, PREFIXES["excepthook"], "after")
    assert verdict(ask(here, [*log, *ended({1: 1}, survivors=[0])])).fault == "slow-rank"
