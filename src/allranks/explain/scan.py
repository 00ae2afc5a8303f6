"""Finds the parts of a log that are worth reading: lines around words that only failures print.

A log of many gigabytes is mostly progress. Blocks are searched for a few literal fragments with `bytes.find`,
which runs at memory speed; only windows around hits, the beginning and the end are cut into lines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TRIGGERS = (
    b"Traceback (most",
    b"terminate called",
    b"NCCL WARN",
    b"ProcessGroupNCCL",
    b"ProcessGroupGloo",
    b"slurmstepd: error",
    b"srun: error: ",
    b"ut of memory: Kill",
    b"ion fault",
    b"exitcode",
    b"store based barrier",
    b"source state_dict",
    b"does not belong to the given",
    b"find_unused_parameters=True was",
    b"Fatal Python error",
    b"unexpected bus error",
)
"""A failure that stands deep inside a large log prints one of these within the reach of a window: an exception its
traceback, a killed rank the launcher's exit code. Short logs are read whole and need no trigger."""

BEFORE = 32 * 1024
"""Bytes of context read before a hit: what the ranks said last."""
AFTER = 64 * 1024
"""Bytes read after a hit: the rest of a traceback and what follows from it."""
HEAD = 1024 * 1024
"""Bytes at the beginning that are always read: the launch command, the world size, and whole short logs."""
TAIL = 128 * 1024
"""Bytes at the end that are always read: how the log ends."""
WHOLE = 32 * 1024 * 1024
"""Bytes in windows that are handed on as they are found; of what comes later only the last LAST are kept. The first
cause stands early, and how the job ended stands last."""
LAST = 8 * 1024 * 1024
_LONGEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive lines of a log, without line ends; `first` is the 1-based number of the first."""

    first: int
    lines: list[bytes]


@dataclass(slots=True)
class Count:
    """What the whole log amounts to, known after the last window."""

    lines: int = 0
    size: int = 0
    skipped: bool = False
    """True when there was more to read than WHOLE and LAST hold."""


def windows(blocks: Iterable[bytes], count: Count) -> Iterator[Window]:
    """The windows of a log in order; `count` is filled on the way. Memory is bounded by the constants above."""
    late: deque[Window] = deque()
    early = held = 0
    for window in _windows(blocks, count):
        size = sum(map(len, window.lines))
        if early < WHOLE:
            early += size
            yield window
            continue
        late.append(window)
        held += size
        while held > LAST and len(late) > 1:
            held -= sum(map(len, late.popleft().lines))
            count.skipped = True
    yield from late


def _windows(blocks: Iterable[bytes], count: Count) -> Iterator[Window]:
    unread = b""
    """The end of what was not handed out: context of a hit at the start of the next block, or the log's last lines."""
    reach = HEAD
    """Bytes from the next block's start on that are wanted whatever they hold."""
    number = 1
    """Number of the line at which the next block starts."""
    block = b""
    for block in _whole_lines(blocks):
        spans = _spans(block, reach)
        reach = max((end for _, end in spans), default=0) - len(block)
        done = 0
        for start, end in spans:
            lead = _last_lines(unread, -start) if start < 0 else b""
            start, done = max(_line_start(block, start), done), _line_end(block, end)
            first = number + block.count(b"\n", 0, start) - lead.count(b"\n")
            yield Window(first, (lead + block[start:done]).split(b"\n"))
        rest = block[done:]
        unread = _last_lines(rest if done or len(rest) > TAIL else unread + rest, TAIL)
        number += block.count(b"\n")
        count.size += len(block)
    count.lines = number - (1 if not block or block.endswith(b"\n") else 0)
    if unread:
        yield Window(number - unread.count(b"\n"), unread.split(b"\n"))


def _spans(block: bytes, reach: int) -> list[tuple[int, int]]:
    """The parts of a block that are wanted, in order and apart from each other. The first may begin before the block
    (a negative start), the last may end after it."""
    hits: list[int] = []
    for trigger in TRIGGERS:
        hit = block.find(trigger)
        while hit >= 0:
            # The first and the last within one reach: what stands between them is wanted anyway.
            hits += hit, block.rfind(trigger, hit, hit + AFTER + len(trigger))
            hit = block.find(trigger, hit + AFTER)
    spans = [(0, reach)] if reach > 0 else []
    for hit in sorted(hits):
        start, end = hit - BEFORE, hit + AFTER
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks that end with a line feed. A line longer than a few blocks (a progress bar that only
    returns the carriage) is handed out in parts."""
    carry = b""
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if cut == 0 and len(carry) + len(block) < _LONGEST:
            carry += block
            continue
        cut = cut or block.rfind(b"\r") + 1 or len(block)
        yield carry + block[:cut]
        carry = block[cut:]
    if carry:
        yield carry


def _last_lines(text: bytes, size: int) -> bytes:
    """The last whole lines of `text` within `size` bytes."""
    if len(text) <= size:
        return text
    return text[text.find(b"\n", len(text) - size - 1) + 1 :]


def _line_start(block: bytes, at: int) -> int:
    return block.rfind(b"\n", 0, at) + 1 if at > 0 else 0


def _line_end(block: bytes, at: int) -> int:
    return block.find(b"\n", at - 1) + 1 or len(block) if at < len(block) else len(block)
