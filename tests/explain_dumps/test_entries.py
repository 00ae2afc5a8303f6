"""Entries that are recognised by their bytes are read as the machine reads them, one by one."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.explain.flight.columns import RankTrace, Table
from allranks.explain.flight.entries import RUN, Book, EntryReader
from allranks.explain.flight.unpickle import Unpickler

from .jobs import Job, Rank, pickled, python_pickled

if TYPE_CHECKING:
    from collections.abc import Callable

ENCODERS: dict[str, Callable[[Any], bytes]] = {"torch": pickled} | {
    f"python {protocol}": python_pickled(protocol) for protocol in (2, 4, 5)
}


def columns(trace: RankTrace, table: Table) -> dict[str, list[tuple[Any, ...]]]:
    """Every entry of a trace, with its call spelled out."""
    lanes = {**trace.calls, **{f"p2p {name}": calls for name, calls in trace.p2p.items()}}
    return {
        name: [
            (seq, table.calls[kind], time, done)
            for seq, kind, time, done in zip(c.seqs, c.kinds, c.times_ns, c.done, strict=True)
        ]
        for name, c in lanes.items()
    }


def plainly(data: bytes) -> dict[str, list[tuple[Any, ...]]]:
    trace, table = RankTrace(0), Table()
    for entry in pickle.loads(data)["entries"]:
        trace.take(entry, table)
    return columns(trace, table)


def read(data: bytes, book: Book) -> tuple[RankTrace, EntryReader]:
    trace = RankTrace(0)
    reader = EntryReader(data, trace, book)
    reader.read()
    assert trace.problem is None
    return trace, reader


@pytest.mark.parametrize("name", ENCODERS)
def test_all_ranks_of_a_job_are_read_as_by_the_machine(name: str) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    for step in range(150):
        for rank in job:
            group = "1" if rank.rank < 2 else "2"
            rank.call("all_reduce", line=10, size=16 << (step % 3))
            rank.call("all_reduce", line=20, group=group, size=[step % 7, 3])
            rank.call("_all_gather_base", line=11, size=8, out=[32])
            if rank.rank < 3 and step % 5 == 0:
                rank.call(f"send {rank.rank}->{rank.rank + 1}", line=30)
    book = Book(Table())
    for rank in job:
        data = ENCODERS[name](rank.dump())
        assert columns(read(data, book)[0], book.table) == plainly(data)


@pytest.mark.parametrize("name", ["torch", "python 2"])
def test_most_entries_do_not_go_through_the_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3)
    job.steps(700)
    book = Book(Table())
    taken: list[int] = []
    finish = EntryReader.finish
    monkeypatch.setattr(EntryReader, "finish", lambda self, pos: (taken.append(pos), finish(self, pos))[1])
    for rank in job:
        taken.clear()
        data = ENCODERS[name](rank.dump())
        assert columns(read(data, book)[0], book.table) == plainly(data)
        assert len(taken) < 30
    assert book.blocks > 0


def test_windows_that_begin_elsewhere_do_not_confuse_the_memo() -> None:
    job = Job(6)
    job.steps(4 * RUN)
    book = Book(Table())
    for rank in job:
        for encode in (pickled, python_pickled(2)):
            data = encode(rank.dump(keep=3 * RUN + 7 * rank.rank))
            assert columns(read(data, book)[0], book.table) == plainly(data)


def test_bytes_that_mean_something_else_in_the_next_file_are_read_anew() -> None:
    book = Book(Table())
    for op, dtype, path in (("all_reduce", "Float", "/a.py"), ("broadcast_", "Half!", "/b.py")):
        job = Job(1)
        for _ in range(3 * RUN):
            job[0].call(op, dtype=dtype, path=path)
        data = pickled(job[0].dump())
        assert columns(read(data, book)[0], book.table) == plainly(data)


CALLS = st.tuples(
    st.sampled_from(["all_reduce", "broadcast", "_all_gather_base", "send 0->1", "barrier"]),
    st.sampled_from([10, 11, 300]),
    st.sampled_from([1, 200, 256, 70_000, 5_000_000_000]),
    st.sampled_from(["0", "1"]),
    st.booleans(),
    st.integers(0, 3),
)


@settings(max_examples=40, deadline=None)
@given(
    programs=st.lists(st.lists(CALLS, min_size=1, max_size=12), min_size=1, max_size=3),
    repeats=st.integers(1, 40),
    name=st.sampled_from(sorted(ENCODERS)),
)
def test_any_programs_are_read_as_by_the_machine(
    programs: list[list[tuple[str, int, int, str, bool, int]]], repeats: int, name: str
) -> None:
    book = Book(Table())
    for number, program in enumerate(programs):
        rank = Rank(number, {"0": ("default_pg", [0, 1]), "1": (f"sub{number}", [number])})
        for _ in range(repeats):
            for op, line, size, group, done, dims in program:
                rank.call(op, line=line, size=[size] * dims, group=group, done=done)
        data = ENCODERS[name](rank.dump())
        assert columns(read(data, book)[0], book.table) == plainly(data)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_cut_dump_gives_the_entries_before_the_cut(name: str) -> None:
    job = Job(1)
    job.steps(40)
    data = ENCODERS[name](job[0].dump())
    whole = plainly(data)["0"]
    book = Book(Table())
    for size in range(1000, len(data), 997):
        trace = RankTrace(0)
        EntryReader(data[:size], trace, book).read()
        entries = columns(trace, book.table).get("0", [])
        assert entries == whole[: len(entries)]
        end = len(data[:size].rstrip(b"\0"))
        assert str(trace.problem) == f"cut off at byte {end}"
        assert trace.readable
    assert len(entries) > 110


def test_a_cut_dump_still_tells_its_groups() -> None:
    job = Job(2)
    job.steps(40)
    data = pickled(job[0].dump())
    dump = EntryReader(data[: len(data) // 2], RankTrace(0), Book(Table())).read()
    assert dump["pg_config"]["0"]["ranks"] == "[0, 1]"
    assert dump["version"] == "2.10"


def test_entries_that_are_none_are_passed_over() -> None:
    dump = Job(1)[0].dump()
    dump["entries"] = [{"profiling_name": 3}, {"profiling_name": "nccl:all_reduce"}, {}, 7, "x"]
    trace = RankTrace(0)
    reader = EntryReader(pickled(dump), trace, Book(Table()))
    reader.read()
    assert reader.malformed_entries == 5
    assert not trace.calls


def test_what_is_no_dump_says_so() -> None:
    for value in (7, "text", None, ("a",)):
        trace = RankTrace(0)
        assert EntryReader(pickle.dumps(value, 2), trace, Book(Table())).read() == {}
        assert str(trace.problem) == "not a flight-recorder dump"
        assert not trace.readable


def test_the_writer_of_these_tests_writes_what_the_standard_library_reads() -> None:
    job = Job(2)
    job.steps(3)
    dump = job[1].dump()
    assert pickle.loads(pickled(dump)) == dump
    assert Unpickler(pickled(dump)).load() == dump
