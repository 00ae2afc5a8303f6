"""Dumps with bytes changed, cut, repeated or made up: no execution, no crash, no hang, memory bounded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.explain.dumps import judge_job
from allranks.explain.flight.job import JobTrace
from allranks.explain.flight.reading import read_part

from .jobs import Job, as_json, pickled, python_pickled

RECORDED = Path(__file__).parent / "recorded"


def seeds() -> list[bytes]:
    job = Job(2, {"1": ("tp", [0, 1])})
    job.steps(30)
    for rank in job:
        rank.call("send 0->1" if rank.rank == 0 else "recv 1<-0", done=False)
        rank.call("all_reduce", group="1", done=rank.rank == 0)
    made = [encode(job[1].dump()) for encode in (pickled, python_pickled(2), python_pickled(4), as_json)]
    return [*made, *(path.read_bytes() for path in sorted(RECORDED.glob("left*/trace_*"))[:8])]


SEEDS = seeds()


def mutated(random: random.Random) -> bytes:
    """One of the seeds, changed in one to eight places."""
    data = bytearray(random.choice(SEEDS))
    for _ in range(random.randint(1, 8)):
        at = random.randrange(len(data) + 1)
        what = random.randrange(6)
        if what == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif what == 1:
            data[at:at] = random.randbytes(random.randint(1, 9))
        elif what == 2:
            del data[at : at + random.randint(1, 60)]
        elif what == 3:
            data[at:at] = data[at : at + random.randint(1, 2000)]
        elif what == 4:
            other = random.choice(SEEDS)
            begin = random.randrange(len(other))
            data[at : at + 100] = other[begin : begin + 100]
        else:
            data[at : at + 4] = random.choice(
                [b"\xff" * 4, b"\x00" * 4, b"\xff\xff\xff\x7f", b"cos\n", b"\x93R.("]
            )
        if not data:
            break
    return bytes(data)


def judge(contents: list[bytes], folder: Path) -> None:
    files = []
    for rank, content in enumerate(contents):
        path = folder / f"rank_{rank}"
        path.write_bytes(content)
        files.append((rank, path))
    job = JobTrace()
    for file in files:
        job.merge(read_part([file]))
    report = judge_job(job)
    for finding in report.findings:
        str(finding.message), str(finding.fix), [str(e.title) for e in finding.evidence]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=150, deadline=None)
@given(randoms=st.randoms(use_true_random=False))
def test_changed_dumps_are_judged_or_refused(folder: Path, randoms: random.Random) -> None:
    judge([mutated(randoms) for _ in range(3)], folder)


@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(max_size=400),
    start=st.sampled_from([b"\x80\x02}(X\x07\x00\x00\x00entries](", b"\x80\x04", b'{"entries":[']),
)
def test_made_up_dumps_are_judged_or_refused(folder: Path, data: bytes, start: bytes) -> None:
    judge([start + data], folder)


ENTRY = st.fixed_dictionaries(
    {
        "profiling_name": st.sampled_from(["nccl:all_reduce", "gloo:broadcast", "nccl:send 0->1", "x", ""])
        | st.integers(),
        "collective_seq_id": st.integers(-3, 6) | st.sampled_from([2**62, -(2**63), 2**80]) | st.none(),
        "p2p_seq_id": st.integers(0, 3),
        "time_created_ns": st.sampled_from([0, -1, 1, 2**62, 2**63, 2**70]) | st.none() | st.text(max_size=2),
        "input_sizes": st.lists(st.lists(st.integers(-1, 2**70), max_size=3), max_size=3)
        | st.integers()
        | st.none(),
        "process_group": st.tuples(st.sampled_from(["0", "1", ""]), st.text(max_size=3))
        | st.integers()
        | st.just(()),
        "state": st.sampled_from(["completed", "started", "scheduled", "?"]) | st.none(),
        "retired": st.booleans() | st.integers(0, 1),
        "is_p2p": st.booleans() | st.none(),
        "frames": st.lists(
            st.fixed_dictionaries(
                {"name": st.text(max_size=3), "filename": st.text(max_size=5), "line": st.integers()}
            ),
            max_size=3,
        )
        | st.none(),
    }
)
DUMP = st.fixed_dictionaries(
    {
        "version": st.sampled_from(["2.10", "1.4", 3, None]),
        "pg_config": st.dictionaries(
            st.sampled_from(["0", "1"]),
            st.fixed_dictionaries(
                {"desc": st.text(max_size=3), "ranks": st.text(max_size=9) | st.lists(st.integers(-2, 9))}
            )
            | st.lists(st.integers(-3, 3))
            | st.none(),
        ),
        "pg_status": st.dictionaries(st.text(max_size=1), st.dictionaries(st.text(), st.integers())),
        "entries": st.lists(ENTRY, max_size=8) | st.text() | st.none(),
    }
)


@settings(max_examples=150, deadline=None)
@given(dumps=st.lists(DUMP, min_size=1, max_size=4), protocol=st.sampled_from([2, 4]))
def test_dumps_with_values_of_any_kind_are_judged(folder: Path, dumps: list[dict], protocol: int) -> None:
    judge([python_pickled(protocol)(dump) for dump in dumps], folder)


def test_no_mutation_takes_much_memory(folder: Path) -> None:
    chance = random.Random(1)
    tracemalloc.start()
    try:
        for _ in range(60):
            judge([mutated(chance)], folder)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


def test_sequence_numbers_far_apart_take_no_memory(folder: Path) -> None:
    job = Job(2)
    job.steps(2)
    for rank in job:
        rank.entries[-1]["collective_seq_id"] = 2**60
    tracemalloc.start()
    try:
        judge([pickled(rank.dump()) for rank in job], folder)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


WATCHED = """
import sys
forbidden = ("import", "open", "exec", "compile", "os.system", "subprocess.Popen", "os.posix_spawn", "os.fork",
    "socket.connect", "os.remove", "os.rename", "os.mkdir")
armed = False
def watch(event, arguments):
    if armed and event in forbidden and not (event == "open" and arguments[0] == sys.argv[1]):
        sys.stdout.write(f"{event} {arguments}\\n")
sys.addaudithook(watch)
from pathlib import Path
from allranks.explain.flight import json_dump
from allranks.explain.flight.reading import read_part
path = Path(sys.argv[1])
armed = True
read_part([(0, path)])
armed = False
sys.stdout.write("read\\n")
"""


def test_reading_a_hostile_dump_does_nothing_but_read_it(tmp_path: Path) -> None:
    """The interpreter's own audit events show whether anything was imported, opened or started."""

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path}/made",)

    path = tmp_path / "rank0"
    for protocol in (2, 3, 4, 5):
        path.write_bytes(python_pickled(protocol)({"pg_config": {}, "entries": [Bomb()], "version": Bomb()}))
        ran = subprocess.run(
            [sys.executable, "-c", WATCHED, str(path)], capture_output=True, text=True, check=True
        )
        assert ran.stdout == "read\n"
    assert not (tmp_path / "made").exists()
