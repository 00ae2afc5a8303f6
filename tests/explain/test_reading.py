# ruff: noqa: E501 - lines of logs are as long as they are
"""Bytes to lines: windows of long logs, packings, encodings, what a terminal acts on, who printed a line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
from typing import TYPE_CHECKING

import pytest
import zstandard

from allranks.errors import AllranksError
from allranks.explain import explain, scan
from allranks.explain.logs import (
    Origin,
    Prefixes,
    decode,
    lines,
    mentioned_rank,
    origins_of_files,
    plain,
    stamp,
)
from allranks.explain.raised import is_user
from allranks.explain.streams import Stream

from .book import PREFIXES, ask, place, trace, verdict, woven

if TYPE_CHECKING:
    from pathlib import Path

OWN = trace(
    [("/srv/train.py", 70, "<module>", "main()"), ("/srv/data.py", 19, "get", "return table[key]")],
    "KeyError: 'n0147'",
)
TEXT = "\n".join(["step 1", *woven({2: OWN}, PREFIXES["excepthook"], "after"), "bye", ""])


def right(file: Path) -> bool:
    found = verdict(explain([file]))
    return (found.fault, found.ranks, place(found)) == ("child-failed-first", (2,), ("data.py", 19))


# ----------------------------------------------------------------------------------------------------- windows


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"HEAD": 300, "BEFORE": 200, "AFTER": 400, "TAIL": 500}.items():
        monkeypatch.setattr(scan, name, size)


@pytest.mark.usefixtures("small_windows")
def test_windows_hold_whole_lines_with_their_numbers() -> None:
    for seed in range(400):
        drawn = random.Random(seed)
        whole = [
            scan.TRIGGERS[0]
            if drawn.random() < 0.01
            else b"x" * drawn.randrange(60 if drawn.random() < 0.99 else 900)
            for _ in range(drawn.randrange(400))
        ]
        data = b"\n".join(whole) + (b"\n" if drawn.random() < 0.5 else b"")
        true = data.split(b"\n")
        if not true[-1]:
            true.pop()
        block, count, seen = drawn.choice([64, 333, 1000, 5000]), scan.Count(), {}
        for window in scan.windows((data[i : i + block] for i in range(0, len(data), block)), count):
            for number, line in enumerate(window.lines, window.first):
                if line:
                    assert true[number - 1] == line or block < len(true[number - 1])
                    assert number not in seen
                    seen[number] = line
        assert (count.lines, count.size) == (len(true), len(data))
        hits = [number for number, line in enumerate(true, 1) if line == scan.TRIGGERS[0]]
        assert set(hits) <= set(seen)


@pytest.mark.usefixtures("small_windows")
def test_what_stands_before_and_after_a_hit_is_read() -> None:
    quiet = [f"step {i}".encode() for i in range(5000)]
    quiet[2500] = b"Traceback (most recent call last):"
    data = b"\n".join(quiet)
    numbers = set()
    for window in scan.windows((data[i : i + 1000] for i in range(0, len(data), 1000)), scan.Count()):
        numbers |= set(range(window.first, window.first + len(window.lines)))
    assert set(range(2490, 2520)) <= numbers
    assert {1, 2, 5000} <= numbers
    assert len(numbers) < 400


def test_of_many_windows_the_first_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WHOLE", 4_000_000)
    monkeypatch.setattr(scan, "LAST", 400_000)
    block = b"Traceback (most recent call last):\n" * 3000
    count = scan.Count()
    held = sum(len(line) for window in scan.windows([block] * 400, count) for line in window.lines)
    assert count.skipped
    assert held < 6_000_000
    assert count.size == len(block) * 400


def test_a_failure_deep_in_a_long_log(tmp_path: Path) -> None:
    ordinary = "".join(
        f"2024-01-09 08:15:20,006 INFO step {i} loss 0.4127 error 0.1\n" for i in range(18_000)
    )
    file = tmp_path / "long.log"
    with file.open("w") as out:
        for at in range(3):
            out.write(ordinary)
            out.write(TEXT if at == 1 else "")
    assert right(file)
    found = verdict(explain([file]))
    assert found.evidence[0].lines[-1].startswith("36007: ")


@pytest.mark.parametrize("trigger", scan.TRIGGERS)
def test_every_trigger_is_found_in_the_middle(trigger: bytes) -> None:
    quiet = b"step\n" * 1_000_000
    data = quiet + b"here: " + trigger + b"\n" + quiet
    seen = [
        line
        for window in scan.windows([data], scan.Count())
        for line in window.lines
        if line.startswith(b"here")
    ]
    assert seen == [b"here: " + trigger]


def test_a_line_without_an_end(tmp_path: Path) -> None:
    bar = "".join(f"{i}%|####| {i}/100 [00:01<00:02]\r" for i in range(200_000))
    file = tmp_path / "bar.log"
    file.write_text(bar + TEXT)
    assert right(file)


# ---------------------------------------------------------------------------------------- packings and encodings


PACK = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@pytest.mark.parametrize("name", PACK)
def test_packed_logs(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"plain.log.{name}"
    file.write_bytes(PACK[name](TEXT.encode()))
    assert right(file)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_packed_log_that_was_cut_off(tmp_path: Path, share: float) -> None:
    noise = "".join(f"{random.Random(i).random()}\n" for i in range(2000))
    whole = gzip.compress((TEXT + noise).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: int(len(whole) * share)])
    report = explain([tmp_path / "cut.gz"])
    assert [spot.slug for spot in report.blind_spots] == ["log-cut"]
    assert verdict(report).ranks == (2,)


@pytest.mark.parametrize("name", PACK)
def test_a_packed_log_that_was_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / "good.log").write_text(TEXT)
    noise = random.Random(1).randbytes(3_000_000).hex()
    whole = bytearray(PACK[name](noise.encode()))
    middle = len(whole) // 2
    whole[middle : middle + 4000] = bytes(4000)
    (tmp_path / f"bad.{name}").write_bytes(whole)
    report = explain([tmp_path / "good.log", tmp_path / f"bad.{name}"])
    assert [spot.slug for spot in report.blind_spots] == ["log-cut"]
    assert verdict(report).ranks == (2,)


def test_utf_16(tmp_path: Path) -> None:
    (tmp_path / "plain.log").write_text(TEXT, encoding="utf-16")
    assert right(tmp_path / "plain.log")


def test_what_is_not_utf_8() -> None:
    assert decode("训练失败 3".encode("gb18030")) == "训练失败 3"
    assert decode("训练失败 3".encode()) == "训练失败 3"
    assert decode(b"abc \xff\xfe\xfa") == "abc \ufffd\ufffd\ufffd"


def test_a_log_in_gbk(tmp_path: Path) -> None:
    (tmp_path / "plain.log").write_bytes(("开始训练 第1轮\n" + TEXT).encode("gb18030"))
    assert right(tmp_path / "plain.log")


def zstd_of_zeros(size: int) -> bytes:
    """A Zstandard frame that holds `size` zeros: blocks of one repeated byte (RFC 8878), a window of 1 MiB."""
    block = 1 << 17
    count = size // block
    blocks = (
        (block << 3 | 1 << 1 | (number == count - 1)).to_bytes(3, "little") + b"\0" for number in range(count)
    )
    return b"\x28\xb5\x2f\xfd" + b"\0" + bytes([10 << 3]) + b"".join(blocks)


ZEROS = 32 << 20
BOMBS = {
    "gz": lambda: gzip.compress(bytes(ZEROS), 1),
    "xz": lambda: lzma.compress(bytes(ZEROS), preset=0),
    "bz2": lambda: bz2.compress(bytes(ZEROS)),
    "zst": lambda: zstd_of_zeros(ZEROS),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_streamed(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"bomb.{name}"
    file.write_bytes(BOMBS[name]())
    assert file.stat().st_size < 1 << 20
    sizes = list(map(len, Stream(file)))
    assert sum(sizes) == ZEROS
    assert max(sizes) <= 256 * 1024


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(TEXT.encode()))))
    assert verdict(explain(["-"])).ranks == (2,)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AllranksError) as caught:
        explain([tmp_path / "nowhere.log"])
    assert caught.value.slug == "input-missing"
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\0\0\0")
    with pytest.raises(AllranksError) as caught:
        explain([tmp_path / "picture.png"])
    assert caught.value.slug == "input-empty"
    (tmp_path / "job.log").write_text("epoch 1\n")
    report = explain([tmp_path / "picture.png", tmp_path / "job.log"])
    assert [spot.slug for spot in report.blind_spots] == ["not-text"]


# ------------------------------------------------------------------------------------------------------- terminals


def test_nothing_that_a_terminal_acts_on_is_left() -> None:
    evil = "a\x1b[31mred\x1b[0m \x1b]0;title\x07b \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x9b2J \x08\x7f \u202egnp.exe \x1bP+q\x1b\\end\x1b"
    assert plain(evil) == "ared b link 2J  gnp.exe end"


def test_evidence_is_plain(tmp_path: Path) -> None:
    log = [
        line.replace("KeyError", "\x1b[31mKeyError\x1b[0m").replace("n0147", "\x1b]0;owned\x07n\u202e0147")
        for line in OWN
    ]
    report = ask(tmp_path, log)
    shown = [line for one in report.findings for item in one.evidence for line in item.lines] + [
        str(verdict(report).message)
    ]
    assert "KeyError: 'n0147'" in shown[-1]
    assert not [line for line in shown if "\x1b" in line or "\x07" in line or "\u202e" in line]


def test_coloured_tracebacks_are_read(tmp_path: Path) -> None:
    # Python 3.13 colours paths, line numbers and types.
    log = [
        line.replace('"/srv/data.py"', '\x1b[35m"/srv/data.py"\x1b[0m').replace(
            "line 19", "line \x1b[35m19\x1b[0m"
        )
        for line in OWN
    ]
    assert place(verdict(ask(tmp_path, log))) == ("data.py", 19)


# ---------------------------------------------------------------------------------------------------- who printed it


@pytest.mark.parametrize(
    ("raw", "origin", "text"),
    [
        ("[rank3]:   File x", Origin(rank=3), "  File x"),
        ("[rank3]:[E1106 17:20:41.2 x.cpp:1] y", Origin(rank=3), "[E1106 17:20:41.2 x.cpp:1] y"),
        ("[default1]:  File x", Origin(local=1), "  File x"),
        ("[default1]:[rank5]: File x", Origin(local=1, rank=5), "File x"),
        ("[1,7]<stderr>:  File x", Origin(task=7), "  File x"),
        ("(RayTrainWorker pid=811, ip=10.0.0.2) File x", Origin(pid=811, node="10.0.0.2"), "File x"),
        ("[pod/job-0-1/pytorch] [rank2]: x", Origin(node="job-0-1", rank=2), "x"),
        ("2024-05-01T10:00:00.123456789Z stderr F [rank2]: x", Origin(rank=2), "x"),
        ("[80746] [rank0]: x", Origin(rank=0), "x"),
        ("[Epoch 3] loss", Origin(), "[Epoch 3] loss"),
        ("[epoch3]: loss", Origin(), "[epoch3]: loss"),
        ("3: loss", Origin(), "3: loss"),
    ],
)
def test_prefixes_that_nothing_else_looks_like(raw: str, origin: Origin, text: str) -> None:
    line = Prefixes(Origin()).line(1, raw)
    assert (line.origin, line.text, line.raw) == (origin, text, raw)


def test_prefixes_that_are_learned() -> None:
    prefixes = Prefixes(Origin())
    prefixes.learn([f"{i % 4}: step {i}" for i in range(100)])
    assert prefixes.line(1, "12:   File x").origin == Origin(task=12)
    prefixes = Prefixes(Origin())
    prefixes.learn([f"node{i % 2}: {i % 3}: step {i}" for i in range(100)])
    assert prefixes.line(1, "node1: 2: x").origin == Origin(node="node1", task=2)
    prefixes = Prefixes(Origin())
    prefixes.learn([f"{i}: a numbered list" for i in range(100)])
    assert prefixes.line(1, "12: x").origin == Origin()


def test_time_stamps_are_comparable() -> None:
    early, late = (
        stamp("[E1106 17:20:41.204418830 x.cpp:1]"),
        stamp("W1106 17:20:42.117000 90144 torch/distributed/run.py:793] "),
    )
    assert early is not None
    assert late is not None
    assert 0.9 < late - early < 1
    assert stamp("[2024-11-06 17:20:41,204] x") == pytest.approx(early)
    assert stamp("2024-11-06T17:20:41.204Z x") == pytest.approx(early)
    assert stamp("11/06/2024 17:20:41 - INFO") == pytest.approx(early, abs=1)
    assert stamp("Epoch 3") is None


def test_ranks_that_a_program_names() -> None:
    said = [
        "[rank 3] step",
        "rank 3: step",
        "Rank=3 step",
        "[Rank 3]",
        "(rank: 3) x",
        "global rank 3 x",
        "frank 3",
        "x rank 3",
    ]
    assert [mentioned_rank(text) for text in said] == [3, 3, 3, 3, 3, 3, None, None]


def test_origins_of_files() -> None:
    found = origins_of_files(["out/attempt_0/0/stderr.log", "out/attempt_0/3/stderr.log"])
    assert [origin.local for origin in found.values()] == [0, 3]
    assert [o.rank for o in origins_of_files(["a/rank_0.log", "a/rank_10.log"]).values()] == [0, 10]
    assert [o.node for o in origins_of_files(["node-0/train.log", "node-1/train.log"]).values()] == [
        "node-0",
        "node-1",
    ]
    assert [o.rank for o in origins_of_files(["hang-on-rank0/plain.log"]).values()] == [None]


def test_lines_count_line_feeds_only() -> None:
    window = scan.Window(1, [b"a\rb\rc", b"d", b""])
    assert [(line.number, line.text) for line in lines([window], "x") if line] == [
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (2, "d"),
    ]


@pytest.mark.parametrize(
    ("path", "user"),
    [
        ("/workspace/train.py", True),
        ("train.py", True),
        ("/workspace/bin/train.py", True),
        ("/home/u/torch/utils/metrics.py", True),
        ("/tmp/ipykernel_812/1.py", True),
        ("<ipython-input-3-ab>", True),
        ("C:\\proj\\train.py", True),
        ("C:\\proj\\lib\\model.py", True),
        ("/opt/conda/lib/python3.10/site-packages/mmengine/runner.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/opt/conda/lib/python3.9/queue.py", False),
        ("/opt/conda/bin/torchrun", False),
        ("/pytorch/torch/nn/modules/module.py", False),
        ("/pytorch/torch/distributed/distributed_c10d.py", False),
        ("<frozen runpy>", False),
        ("<string>", False),
        ("C:\\Users\\u\\anaconda3\\lib\\multiprocessing\\spawn.py", False),
    ],
)
def test_whose_code_a_frame_is(path: str, user: bool) -> None:
    assert is_user(path.replace("\\", "\\")) is user
