"""The table of error messages: what a text that a multi-process job printed says, captures and means.

The rows stand in signatures.toml. One table serves logs (`explain`) and live exceptions (`run`).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from string import Formatter
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same module under its old name
    import tomli as tomllib

from ..findings import Text, say

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = ("cause", "victim", "note")
"""What a message is evidence of: a first cause, a consequence of something elsewhere, or no failure."""

LONGEST = 20_000
"""Characters of a text that are searched: a message that says what failed says it sooner."""
LONGEST_STACK = 60_000


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table; see the head of signatures.toml for what the fields mean."""

    name: str
    pattern: re.Pattern[str]
    fragments: tuple[str, ...]
    within: re.Pattern[str] | None
    also: re.Pattern[str] | None
    role: str
    goes_on: bool
    faults: tuple[tuple[str, float], ...]
    says: str
    advice: str
    where: str
    torch: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """One reading of a text: the `fault` it may be, and with what `likelihood` (a share of cases).

    `captures` are what the text says (never empty values), `role` is one of ROLES, `start` where it stands.
    """

    signature: str
    fault: str
    captures: dict[str, str]
    likelihood: float
    message: Text
    advice: Text
    role: str = "cause"
    start: int = 0
    goes_on: bool = False
    """True when the job does not end of it: it goes on, and is wrong."""


@lru_cache(maxsize=1)
def signatures() -> tuple[Signature, ...]:
    """Every row, in the table's order: specific texts stand before general ones."""
    rows: list[dict[str, Any]] = tomllib.loads(
        files(__package__).joinpath("signatures.toml").read_text("utf-8")
    )["signature"]
    return tuple(
        Signature(
            name=row["name"],
            pattern=re.compile(row["pattern"], re.MULTILINE),
            fragments=tuple(row["fragments"]),
            within=re.compile(row["within"]) if "within" in row else None,
            also=re.compile(row["also"], re.MULTILINE) if "also" in row else None,
            role=row["role"],
            goes_on=row.get("goes_on", False),
            faults=tuple(row["faults"].items()),
            says=row["says"],
            advice=row["advice"],
            where=row["where"],
            torch=row["torch"],
            examples=tuple(row["examples"]),
        )
        for row in rows
    )


@lru_cache(maxsize=1)
def fragment_pattern() -> re.Pattern[str]:
    """Any fragment of any row: what a line must hold before `match` can say anything of it."""
    fragments = sorted({fragment for row in signatures() for fragment in row.fragments})
    return re.compile("|".join(map(re.escape, fragments)))


def match(text: str, stack: str = "") -> list[Match]:
    """Every reading of `text`, the first signature's first; of one signature the most likely fault first.

    `stack` is what stands beside the text and only decides between readings: the frames and source lines of
    the traceback that ends in it.
    """
    return list(_readings(text[:LONGEST], stack[-LONGEST_STACK:]))


def _readings(text: str, stack: str) -> Iterator[Match]:
    for row in _candidates(text):
        found = row.pattern.search(text)
        if found is None:
            continue
        captures = _captures(found)
        if row.within is not None:
            beside = row.within.search(stack) or row.within.search(text)
            if beside is None:
                continue
            captures = {**_captures(beside), **captures}
        if row.also is not None:
            for more in row.also.finditer(text):
                captures = {**_captures(more), **captures}
        for fault, likelihood in row.faults:
            yield Match(
                signature=row.name,
                fault=fault,
                captures=captures,
                likelihood=likelihood,
                message=_sentence(row.says, captures),
                advice=_sentence(row.advice, captures),
                role=row.role,
                start=found.start(),
                goes_on=row.goes_on,
            )


def _candidates(text: str) -> list[Signature]:
    """The rows of which a fragment occurs in `text`, in the table's order."""
    rows, numbers = signatures(), set()
    for fragment, number in _fragments():
        if fragment in text:
            numbers.add(number)
    return [rows[number] for number in sorted(numbers)]


@lru_cache(maxsize=1)
def _fragments() -> tuple[tuple[str, int], ...]:
    """Every fragment with the number of its row: one flat loop over them is what `match` costs on most texts."""
    return tuple((fragment, number) for number, row in enumerate(signatures()) for fragment in row.fragments)


def _sentence(template: str, captures: dict[str, str]) -> Text:
    """The sentence with its holes filled: what an older wording of the message did not tell becomes "?"."""
    holes = [name for _, name, _, _ in Formatter().parse(template) if name]
    return say(template, **{name: captures.get(name, "?") for name in holes})


def _captures(found: re.Match[str]) -> dict[str, str]:
    """The named groups that took part, without the digit that tells alternatives apart."""
    captures: dict[str, str] = {}
    for name, value in found.groupdict().items():
        if value:
            captures.setdefault(name.rstrip("0123456789"), " ".join(value.split()))
    return captures


def speaks(name: str, text: str) -> bool:
    """True when one line of a message holds what the row of that name reads: its fragments or its captures."""
    row = next((row for row in signatures() if row.name == name), None)
    if row is None:
        return False
    return any(fragment in text for fragment in row.fragments) or bool(row.also and row.also.search(text))


def classify_exception(type_name: str, message: str, stack: str = "") -> Match | None:
    """The likeliest reading of an exception, or None when the table does not know it.

    `type_name` may be qualified ("torch.distributed.DistBackendError"); `stack` as for `match`. A reading
    whose role is "victim" means that the exception follows from what happened on another rank.
    """
    text = f"{type_name}: {message}" if message else type_name
    return next((found for found in match(text, stack) if found.role != "note"), None)


def templates() -> list[str]:
    """Every sentence of the table, for the message catalogue."""
    return [sentence for row in signatures() for sentence in (row.says, row.advice)]
