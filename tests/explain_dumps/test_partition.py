"""A job read in parts, here or on a cluster, is the job read at once."""

from __future__ import annotations

import builtins
import itertools
import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import AllranksError
from allranks.explain.dumps import explain_dumps, judge_job
from allranks.explain.flight import partition
from allranks.explain.flight.job import JobTrace
from allranks.explain.flight.partition import read_all
from allranks.explain.flight.reading import read_part, with_ranks

from .jobs import Job


def merge(parts: list[JobTrace]) -> JobTrace:
    return reduce(JobTrace.merge, parts, JobTrace())


def told(report: Any) -> Any:
    return (
        [(f.fault, f.ranks, str(f.message), f.location, f.severity) for f in report.findings],
        [(str(b.message), b.ranks) for b in report.blind_spots],
        report.world,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = Job(12, {"1": ("tp", [0, 1, 2]), "2": ("tp", [3, 4, 5])})
    job.steps(5)
    for rank in job:
        if rank.rank < 6:
            rank.call("all_reduce", group="1" if rank.rank < 3 else "2", line=30, done=rank.rank < 3)
    job[4].entries.pop()
    job.write(tmp_path)[9].write_bytes(b"\x80\x02]")
    return tmp_path


def test_parts_merge_in_any_order(folder: Path) -> None:
    files = with_ranks(sorted(folder.iterdir()))[0]
    whole = told(judge_job(read_part(files)))
    assert whole[0][0][:2] == ("early-exit", (4,))
    for order in itertools.permutations(range(3)):
        parts = [pickle.loads(pickle.dumps(read_part(files[at::3]))) for at in order]
        assert told(judge_job(merge(parts))) == whole


def test_equal_columns_are_held_once(tmp_path: Path) -> None:
    job = Job(6)
    job.steps(5)
    files = with_ranks(job.write(tmp_path))[0]
    merged = merge([read_part(files[:3]), read_part(files[3:])])
    assert len({id(trace.calls["0"].kinds) for trace in merged.ranks.values()}) == 1
    assert len({id(trace.calls["0"].done) for trace in merged.ranks.values()}) == 1


def test_a_local_dask_cluster_gives_the_same_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(partition, "PART", 5)
    progress: list[tuple[int, int]] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        report = explain_dumps(
            [folder], cluster=cluster.scheduler_address, progress=lambda *at: progress.append(at)
        )
    assert told(report) == told(explain_dumps([folder]))
    assert progress[-1] == (12, 12)
    assert len(progress) == 3


def test_without_dask_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "dask":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(AllranksError) as error:
        read_all([(0, Path("rank0"))], cluster="tcp://127.0.0.1:9")
    assert error.value.slug == "dask-missing"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_a_cluster_that_does_not_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "PATIENCE_S", 0.5)
    with pytest.raises(AllranksError) as error:
        read_all([(0, Path("rank0"))], cluster=address)
    assert error.value.slug == "cluster-unreachable"


def test_nothing_is_a_job_without_ranks() -> None:
    assert merge([]).ranks == {}
    assert told(judge_job(JobTrace()))[0] == []
