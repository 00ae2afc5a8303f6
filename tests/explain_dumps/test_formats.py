"""Every version of the format, pickled and as JSON, gives the same columns and the same verdict."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from allranks.explain.dumps import explain_dumps
from allranks.explain.flight.job import groups, world_size
from allranks.explain.flight.reading import read_part, with_ranks

from .jobs import Job, as_json, pickled, python_pickled

if TYPE_CHECKING:
    from pathlib import Path


def left_early() -> Job:
    """Rank 2 of 4 makes two calls less than the others, who wait in the first of them."""
    job = Job(4)
    job.steps(6)
    for rank in job:
        if rank.rank != 2:
            rank.call("all_reduce", line=10, size=16, done=False)
            rank.call("all_reduce", line=12, size=8, done=False)
    return job


def version_2_2(dump: dict[str, Any]) -> list[dict[str, Any]]:
    """torch 2.2.0: the entries alone, times in microseconds."""
    kept = ("pg_id", "profiling_name", "input_sizes", "output_sizes", "state", "retired", "frames")
    return [
        {key: entry[key] for key in kept}
        | {"seq_id": entry["collective_seq_id"], "time_created_us": entry["time_created_ns"] // 1000}
        for entry in dump["entries"]
    ]


def version_1_1(dump: dict[str, Any]) -> dict[str, Any]:
    """Format 1.1: a dictionary; one sequence number, groups by the rank's own number."""
    entries = [
        {k: v for k, v in entry.items() if k not in _LATER} | {"seq_id": entry["collective_seq_id"]}
        for entry in dump["entries"]
    ]
    return {"entries": entries, "version": "1.1"}


_LATER = {
    "record_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "p2p_seq_id", "op_id", "is_p2p",
    "input_dtypes", "output_dtypes", "timeout_ms",
}  # fmt: skip


def version_1_4(dump: dict[str, Any]) -> dict[str, Any]:
    """Format 1.4 (torch 2.3): groups by number with their ranks as a list, and the state of communicators."""
    old = version_1_1(dump)
    return old | {"version": "1.4", "pg_config": {0: [0, 1, 2, 3]}, "nccl_comm_state": {"ab": {"rank": "2"}}}


def version_2_4(dump: dict[str, Any]) -> dict[str, Any]:
    """Format 2.4 (torch 2.4 and 2.5): as today without threads and status."""
    entries = [
        {key: value for key, value in entry.items() if key not in ("thread_name", "thread_id")}
        for entry in dump["entries"]
    ]
    return {"version": "2.4", "pg_config": dump["pg_config"], "entries": entries}


def gloo(dump: dict[str, Any]) -> dict[str, Any]:
    """gloo: always "scheduled", no times, one group without a name; `retired` tells who ended."""
    entries = [
        entry
        | {
            "state": "scheduled",
            "time_discovered_completed_ns": None,
            "profiling_name": entry["profiling_name"].replace("nccl", "gloo"),
        }
        for entry in dump["entries"]
    ]
    return dump | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "entries": entries}


def same(dump: dict[str, Any]) -> dict[str, Any]:
    return dump


VERSIONS = [version_2_2, version_1_1, version_1_4, version_2_4, gloo, same]
ENCODERS = {"torch": pickled, "python 2": python_pickled(2), "python 5": python_pickled(5)}


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: v.__name__)
def test_the_missing_rank_is_found_in_every_version(tmp_path: Path, version: Any, encode: str) -> None:
    left_early().write(tmp_path, encode=lambda dump: ENCODERS[encode](version(dump)))
    report = explain_dumps([tmp_path])
    assert [f.fault for f in report.findings] == ["early-exit"]
    finding = report.findings[0]
    assert finding.ranks == (2,)
    assert finding.location is not None
    assert (finding.location.path, finding.location.line) == ("/home/me/train.py", 12)
    assert [(p.path, p.line, p.ranks) for p in finding.related] == [("/home/me/train.py", 10, (0, 1, 3))]
    assert "call #19" in str(finding.message)
    assert "ranks 0-1, 3 wait" in str(finding.message)


@pytest.mark.parametrize("version", [version_2_4, gloo, same], ids=lambda v: v.__name__)
def test_json_tells_the_same_without_lines(tmp_path: Path, version: Any) -> None:
    left_early().write(tmp_path, encode=lambda dump: as_json(version(dump)))
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks, f.location) for f in report.findings] == [("early-exit", (2,), None)]
    assert "call #19" in str(report.findings[0].message)


def test_json_and_pickle_give_the_same_columns(tmp_path: Path) -> None:
    job = Job(2, {"7": ("sub", [0, 1])})
    job.steps(3)
    for rank in job:
        rank.call("all_reduce", group="7", done=False)
        rank.call("send 0->1" if rank.rank == 0 else "recv 1<-0", size=9)
    traces = []
    for name, encode in (("pickle", pickled), ("json", as_json)):
        (tmp_path / name).mkdir()
        files = with_ranks(job.write(tmp_path / name, encode=encode))[0]
        part = read_part(files)
        rank = part.ranks[1]
        bare = [call._replace(frames=()) for call in part.table.calls]
        lanes = (rank.calls["0"], rank.calls["7"], rank.p2p["0"])
        traces.append([(c.start, [bare[k] for k in c.kinds], list(c.times_ns), bytes(c.done)) for c in lanes])
        assert rank.groups["7"].ranks == (0, 1)
        assert rank.groups["7"].description == "sub"
        assert rank.enqueued == {"0": 9}
    assert traces[0] == traces[1]


def test_cut_json_gives_the_entries_before_the_cut(tmp_path: Path) -> None:
    job = Job(2)
    job.steps(5)
    paths = job.write(tmp_path, encode=as_json)
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[: len(whole) // 2])
    trace = read_part(with_ranks(paths)[0]).ranks[1]
    assert 5 <= len(trace.calls["0"].kinds) <= 8
    assert "cut off" in str(trace.problem)


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"entries": 7}', b"{", b"[[[[", b'{"a": ' * 5000, b"\xff{"])
def test_json_that_is_no_dump_is_no_crash(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(text)
    assert explain_dumps([path]).findings == []


def test_groups_of_gloo_are_inferred_from_who_calls(tmp_path: Path) -> None:
    job = Job(4, {"1": ("pair", [0, 1]), "2": ("pair", [2, 3])})
    job.steps(2)
    for rank in job:
        rank.call("all_reduce", group="1" if rank.rank < 2 else "2")
    job.write(tmp_path, encode=lambda dump: pickled(gloo(dump)))
    found = groups(read_part(with_ranks(sorted(tmp_path.iterdir()))[0]))
    assert [(g.name, g.members, g.known) for g in found] == [
        ("0", (0, 1, 2, 3), False),
        ("1", (0, 1), False),
        ("2", (2, 3), False),
    ]


def test_the_world_size_shows_in_what_gloo_gathers(tmp_path: Path) -> None:
    job = Job(4)
    for rank in job:
        rank.call("all_gather", size=3, out=[4, 3], backend="gloo")
    job.write(tmp_path, encode=lambda dump: pickled(gloo(dump)))
    (tmp_path / "trace_rank_3").unlink()
    assert world_size(read_part(with_ranks(sorted(tmp_path.iterdir()))[0])) == 4


def test_entries_launched_as_one_are_one_call(tmp_path: Path) -> None:
    job = Job(2)
    for _ in range(3):
        for rank in job:
            rank.call("_all_gather_base", size=4, out=[8])
            rank.call("_all_gather_base", size=6, out=[12], same_seq=True)
            rank.call("coalesced", same_seq=True)
            rank.call("all_reduce")
    part = read_part(with_ranks(job.write(tmp_path))[0])
    calls = part.ranks[0].calls["0"]
    assert (calls.start, calls.end) == (1, 7)
    names = [part.table.calls[kind].op for kind in calls.kinds]
    assert names == ["coalesced", "all_reduce"] * 3
    assert [p.input_sizes for p in part.table.calls[calls.kinds[0]].parts] == [((4,),), ((6,),), ((4,),)]
    assert explain_dumps([tmp_path]).findings == []


def test_a_call_that_timed_out_on_nccl_has_not_ended(tmp_path: Path) -> None:
    job = left_early()
    for rank in job:
        for entry in rank.entries:
            entry["retired"] = True
    job.write(tmp_path)
    finding = explain_dumps([tmp_path]).findings[0]
    assert (finding.fault, finding.ranks, finding.severity.value) == ("early-exit", (2,), "error")


def test_old_numbering_with_sends_between_is_left_alone(tmp_path: Path) -> None:
    job = Job(2)
    for step in range(5):
        job[0].call("all_reduce")
        job[1].call("all_reduce")
        if step == 2:
            job[0].call("send 0->1")
    dumps = [version_1_4(rank.dump()) for rank in job]
    for dump in dumps:
        dump["pg_config"] = {0: [0, 1]}
        for number, entry in enumerate(dump["entries"], 1):
            entry["seq_id"] = number
    for rank, dump in enumerate(dumps):
        (tmp_path / f"rank{rank}").write_bytes(pickle.dumps(dump, 2))
    assert explain_dumps([tmp_path]).findings == []


def test_ranks_as_torch_writes_them(tmp_path: Path) -> None:
    dump = Job(3)[0].dump()
    for text in ("[0, 1, 2]", "0,1,2", [0, 1, 2]):
        dump["pg_config"]["0"]["ranks"] = text
        path = tmp_path / "rank0"
        path.write_text(json.dumps(dump))
        assert read_part([(0, path)]).ranks[0].groups["0"].ranks == (0, 1, 2)
