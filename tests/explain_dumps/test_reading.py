"""Which files are dumps, of which rank, and what becomes of those that cannot be read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from allranks.errors import AllranksError
from allranks.explain.dumps import explain_dumps
from allranks.explain.flight import reading
from allranks.explain.flight.reading import find_dumps, is_dump, rank_of, read_part, with_ranks

from .jobs import Job, as_json, pickled, python_pickled


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_7", 7),
        ("comm_lib_trace_rank_12", 12),
        ("rank_3", 3),
        ("rank-3.pkl", 3),
        ("trace0.json", 0),
        ("job2_trace_rank_5_1718000000", 5),
        ("fr_4", 4),
        ("node1-9", 9),
        ("Rank11.pickle", 11),
        ("dump", None),
    ],
)
def test_the_rank_stands_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(Path("/logs/1/2") / name) == rank


def test_dumps_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    dump = Job(1)[0].dump()
    for name, data in (
        ("a", pickled(dump)),
        ("b", python_pickled(5)(dump)),
        ("c", as_json(dump)),
        ("d", b" \n" + as_json(dump)),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert is_dump(path), name


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        pickle.dumps({"weights": [1]}),
        b'{"a": 1}',
        b"\x80",
        b"PK\x03\x04pg_config",
        b"",
        b"pg_config: yes",
    ],
)
def test_other_files_are_not_dumps(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(data)
    assert not is_dump(path)
    assert not is_dump(tmp_path)
    assert not is_dump(tmp_path / "absent")


def test_an_empty_file_with_the_name_of_a_dump_is_one(tmp_path: Path) -> None:
    for name, expected in (
        ("nccl_trace_rank_3", True),
        ("rank_3", True),
        ("rank_3.log", False),
        ("stderr", False),
    ):
        (tmp_path / name).touch()
        assert is_dump(tmp_path / name) is expected, name


def test_dumps_are_found_among_other_files_and_below_folders(tmp_path: Path) -> None:
    job = Job(2)
    job.steps(1)
    (tmp_path / "node0").mkdir()
    paths = job.write(tmp_path / "node0")
    (tmp_path / "node0" / "train.log").write_text("step 1\n")
    (tmp_path / "README.md").write_text("pg_config")
    assert find_dumps([tmp_path]) == paths
    assert find_dumps([paths[0], tmp_path]) == paths


def test_of_several_dumps_of_a_rank_the_newest_counts(tmp_path: Path) -> None:
    job = Job(1)
    job.steps(1)
    for age, folder in ((300, "old"), (0, "new")):
        (tmp_path / folder).mkdir()
        path = job.write(tmp_path / folder)[0]
        os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    files, spots = with_ranks(find_dumps([tmp_path]))
    assert files == [(0, tmp_path / "new" / "trace_rank_0")]
    assert [(s.slug, s.count) for s in spots] == [("dump-repeated", 1)]


def test_of_json_and_pickle_of_one_moment_the_pickle_counts(tmp_path: Path) -> None:
    job = Job(1)
    job.steps(1)
    path = job.write(tmp_path)[0]
    other = tmp_path / "trace_rank_0.json"
    other.write_bytes(as_json(job[0].dump()))
    for file, time in ((path, 1_700_000_000), (other, 1_700_000_005)):
        os.utime(file, (time, time))
    assert with_ranks([other, path])[0] == [(0, path)]


def test_a_dump_that_would_run_code_is_refused_and_the_others_are_judged(tmp_path: Path) -> None:
    job = Job(3)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=10, done=False)
    paths = job.write(tmp_path)
    paths[1].write_bytes(b"\x80\x02}X\x09\x00\x00\x00pg_configcposix\nsystem\nX\x04\x00\x00\x00true\x85Rs.")
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks) for f in report.findings] == [("early-exit", (1,))]
    assert [(b.slug, b.ranks) for b in report.blind_spots] == [("dump-unreadable", (1,))]
    assert "asks to run code (GLOBAL)" in str(report.blind_spots[0].message)


def test_a_file_too_large_to_be_a_dump_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(1)
    job.steps(2)
    paths = job.write(tmp_path)
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    trace = read_part(with_ranks(paths)[0]).ranks[0]
    assert not trace.readable
    assert "larger than" in str(trace.problem)


def test_no_dump_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x")
    with pytest.raises(AllranksError) as error:
        explain_dumps([tmp_path])
    assert error.value.slug == "no-dumps"
    assert "TORCH_FR_DUMP_TEMP_FILE" in str(error.value.advice)


def test_progress_is_told(tmp_path: Path) -> None:
    job = Job(130)
    job.steps(1)
    told: list[tuple[int, int]] = []
    explain_dumps(job.write(tmp_path), progress=lambda done, total: told.append((done, total)))
    assert told == [(64, 130), (128, 130), (130, 130)]


def test_nested_values_beside_the_entries_are_not_spelled_out(tmp_path: Path) -> None:
    """A list that holds itself thirty times over, thirty deep, as a version: its text would fill any memory."""
    bomb = b"]" + b"q\x00"
    for depth in range(30):
        index = bytes([depth])
        bomb += b"0](h" + index + b"h" + index + b"e" + b"q" + bytes([depth + 1])
    path = tmp_path / "rank0"
    for key in ("version", "pg_config", "pg_status", "entries", "comm_lib_version"):
        name = key.encode()
        path.write_bytes(b"\x80\x02}(X" + len(name).to_bytes(4, "little") + name + bomb + b"u.")
        trace = read_part([(0, path)]).ranks[0]
        assert trace.version == ""
        assert trace.calls == {}
