# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs that were damaged, cut, mixed up or made to harm: no crash, no hang, plain evidence, bounded findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.explain import explain
from allranks.explain.logs import plain
from allranks.explain.match import Story, read
from allranks.explain.stories import report_on
from allranks.explain.streams import BLOCK, Stream
from allranks.findings import fill
from allranks.judge.signatures import match, signatures
from allranks.report import as_json

from .book import BACKWARD, PREFIXES, boxed, c10d, ended, started, trace, woven
from .test_kinds import ROWS, USER, raised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allranks.findings import Report


class Bytes(Stream):
    """Bytes as a stream, in the blocks of a file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Path("x.log"))
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), BLOCK):
            yield self.data[start : start + BLOCK]


def told(data: bytes) -> Report:
    story = Story()
    read(Bytes(data), story)
    return report_on(story)


LOST = trace(
    [*USER, *BACKWARD], "RuntimeError: [../gloo/pair.cc:598] Connection closed by peer [10.1.2.3]:40044"
)
WHOLE = [
    "\n".join(
        [
            *started(),
            *woven({0: LOST, 1: trace(*raised(kind))}, PREFIXES[prefix], "anyhow"),
            *ended({1: 1}, survivors=[0]),
        ]
    )
    for kind, prefix in zip(
        ROWS, [*PREFIXES, *PREFIXES, *PREFIXES, *PREFIXES, *PREFIXES, *PREFIXES], strict=False
    )
] + ["\n".join(boxed([*USER, c10d("barrier")], "KeyError: 'x'"))]
PIECES = [
    *(row.examples[0] for row in signatures() if row.examples), *(row.fragments[0] for row in signatures()),
    "Traceback (most recent call last):", '  File "/srv/x.py", line 3, in f', '  File "/srv/x.py", line 99999999999999999999999, in f',
    "╭─── Traceback (most recent call last) ───╮", "│ /srv/x.py:3 in f │", "╰──╯", "Fatal Python error: Aborted",
    "Current thread 0x1 (most recent call first):", '  File "/srv/x.py", line 3 in f', "[rank99999999999]: x", "[rank3]: ",
    "  rank      : 99999999 (local_rank: 0)", "  exitcode  : -99999 (pid: 5)", "srun: error: a: tasks 0-99999999: Killed",
    "WorkNCCL(SeqNum=3, OpType=", "Ranks 1, 2, 3 failed to pass monitoredBarrier in 5 ms", "world_size=99999999999999",
    'x "py_callstack": "Traceback (most recent call last):\\n  File \\"x.py\\"', "-- Process 99999999999999 terminated with the following error:",
    "[E9999 99:99:99.999 x.cpp:1]", "\x1b]0;owned\x07", "\x1b[2J", "\u202e", "\x00", "\r", "{rank} {0} {", "%s%n",
]  # fmt: skip


def check(report: Report) -> None:
    shown = json.loads(as_json.dumps(report, "en"))
    for finding in shown["findings"]:
        for item in finding["evidence"]:
            assert item["lines"] == [plain(line) for line in item["lines"]]
        assert finding["message"] == plain(finding["message"]).strip() or "\n" not in finding["message"]
    assert len(shown["findings"]) < 60


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_logs(data: st.DataObject) -> None:
    text = bytearray(data.draw(st.sampled_from(WHOLE)).encode())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 300)))
        kind = data.draw(st.sampled_from(["cut", "repeat", "piece", "bytes", "other", "swap"]))
        if kind == "cut":
            del text[at:end]
        elif kind == "repeat":
            text[at:at] = bytes(text[at:end]) * data.draw(st.integers(1, 20))
        elif kind == "piece":
            text[at:at] = data.draw(st.sampled_from(PIECES)).encode("utf-8", "replace") + data.draw(
                st.sampled_from([b"", b"\n"])
            )
        elif kind == "bytes":
            text[at:at] = data.draw(st.binary(max_size=40))
        elif kind == "other":
            text[at:at] = data.draw(st.sampled_from(WHOLE)).encode()[: data.draw(st.integers(0, 2000))]
        else:
            text[at:end] = bytes(text[at:end])[::-1]
    check(told(bytes(text)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_pieces_in_any_order(pieces: list[str]) -> None:
    check(told("\n".join(pieces).encode("utf-8", "replace")))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    check(told(data))


@pytest.mark.parametrize("row", signatures(), ids=lambda row: row.name)
def test_long_texts_cost_little(row: object) -> None:
    # Expressions with two open-ended parts take minutes on these; the suite's time limit is what fails.
    for piece in (*row.fragments, *row.examples, "a.", "(", "[1, ", " ", "rank 1 "):  # type: ignore[attr-defined]
        match((piece * 20_000)[:20_000], stack=piece * 3000)
    for piece in ("1", "a", "_", " "):
        match((f"{row.fragments[0]} {piece * 20_000}")[:20_000], stack=piece * 60_000)  # type: ignore[attr-defined]


def test_long_lines_of_stacks(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    wide = " " * 300_000
    file.write_text(
        f"Process 7: python a.py\nPython v3.11.7\n\nThread 7 (idle)\n{wide}\n    f (a.py:3)\n    {'x(' * 90_000}\n"
    )
    check(explain([file]))


@pytest.mark.parametrize(
    "line",
    [
        "a" * 3_000_000,
        "a." * 1_000_000,
        " " * 3_000_000,
        "~" * 3_000_000,
        "[rank1]: " * 300_000,
        '  File "' * 300_000,
        "(" * 2_000_000,
        "a1" * 1_500_000,
        "9f3a7b" * 500_000,
        "a-1." * 700_000,
        '  File "x.py", line 3, in f ' * 100_000,
        "│ " * 1_000_000,
        "a\r" * 300_000,
    ],
)
def test_endless_lines(line: str) -> None:
    log = (
        f'Traceback (most recent call last):\n{line}\n  File "x.py", line 3, in f\n{line}\nKeyError: {line}\n'
    )
    check(told(log.encode()))


@pytest.mark.parametrize("middle", [" " * 16_000, "│" * 16_000, " │" * 8_000, "x" * 16_000])
def test_wide_boxes(middle: str) -> None:
    wide = "\n".join(f"│{middle}x" for _ in range(200))
    log = f"╭─── Traceback (most recent call last) ───╮\n│ /srv/x.py:3 in f │\n{wide}\n╰──╯\nKeyError: 1\n"
    check(told(log.encode()))


def test_a_million_ranks(tmp_path: Path) -> None:
    rows = "".join(
        f"  rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: {rank})\n"
        for rank in range(0, 3_000_000, 40)
    )
    report = told(f"world_size=99999999\nFailures:\n{rows}".encode())
    assert report.findings[0].fault == "child-failed-first"
    assert len(report.findings[0].ranks) <= 1 << 17


def test_braces_in_messages_are_text() -> None:
    log = "\n".join(trace(USER, "ValueError: {rank} {0.__class__} {")).encode()
    finding = told(log).findings[0]
    assert "{rank} {0.__class__} {" in fill(finding.message.template, finding.message.values)
