"""Comments that hide findings: what they cover, and what is said of useless ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks.check.suppressions import apply, notes, parse
from allranks.config import Config
from allranks.findings import Confidence, Finding, Location, Severity, say

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''\
import os
dist.barrier()  # allranks: ignore[rank-conditional-collective] rank 1 waits below
# allranks: ignore[early-exit, epoch-not-set]

# another comment
for epoch in range(3):  # a loop
    train(
        model,  # allranks:ignore[data]
        loader,
    )
text = """
# allranks: ignore[early-exit]
"""
x = 1
'''


def finding(line: int, fault: str) -> Finding:
    return Finding(fault, Severity.ERROR, Confidence.INFERRED, say("x"), Location("t.py", line))


@pytest.mark.parametrize(
    ("line", "fault", "hidden"),
    [
        (2, "rank-conditional-collective", True),
        (2, "early-exit", False),
        (3, "early-exit", False),
        (6, "early-exit", True),
        (6, "epoch-not-set", True),
        (6, "data-not-sharded", False),
        (7, "data-not-sharded", True),
        (9, "epoch-not-set", True),
        (10, "early-exit", False),
        (12, "early-exit", False),
        (14, "early-exit", False),
    ],
)
def test_a_comment_covers_its_statement_or_the_next(line: int, fault: str, hidden: bool) -> None:
    shown, suppressed = apply([finding(line, fault)], {"t.py": parse(SOURCE)})
    assert (len(shown), len(suppressed)) == ((0, 1) if hidden else (1, 0))


def test_the_reason_is_kept() -> None:
    _, (hidden,) = apply([finding(2, "rank-conditional-collective")], {"t.py": parse(SOURCE)})
    assert hidden.suppression == "rank 1 waits below"


def test_a_whole_file_by_group() -> None:
    comments = parse("x = 1\n# allranks: ignore-file[step]\n")
    shown, hidden = apply([finding(900, "early-exit"), finding(1, "epoch-not-set")], {"t.py": comments})
    assert [f.fault for f in hidden] == ["early-exit"]
    assert [f.fault for f in shown] == ["epoch-not-set"]


def test_other_files_are_not_covered() -> None:
    shown, _ = apply([finding(2, "rank-conditional-collective")], {"other.py": parse(SOURCE)})
    assert len(shown) == 1


def said(text: str, config: Config, findings: tuple[Finding, ...] = ()) -> list[str]:
    comments = parse(text)
    apply(findings, {"t.py": comments})
    return [str(note.message) for note in notes("t.py", comments, config)]


def test_a_comment_that_hides_nothing_is_noted(tmp_path: Path) -> None:
    text = "f()  # allranks: ignore[early-exit, epoch-not-set]\n"
    config = Config(root=tmp_path)
    assert said(text, config, (finding(1, "early-exit"),)) == [
        "t.py:1: ignore[epoch-not-set] hides nothing: remove it"
    ]
    assert said(text, Config(root=tmp_path, select=("waste",))) == []


@pytest.mark.parametrize(
    ("comment", "note"),
    [
        ("# allranks: ignore", "t.py:1: `allranks: ignore` must name what it hides: ignore[fault, ...]"),
        (
            "# allranks: ignore[] why",
            "t.py:1: `allranks: ignore` must name what it hides: ignore[fault, ...]",
        ),
        (
            "# allranks: ignore[early-exits]",
            't.py:1: there is no fault "early-exits" to ignore; did you mean "early-exit"?',
        ),
        ("# allranks: ignore[qqq]", 't.py:1: there is no fault "qqq" to ignore'),
    ],
)
def test_a_mistaken_comment_is_noted(tmp_path: Path, comment: str, note: str) -> None:
    assert said(f"f()  {comment}\n", Config(root=tmp_path)) == [note]


@pytest.mark.parametrize(
    "text", ["", "# allranks\n", "x = (  # allranks: ignore[early-exit]\n", "  x\n # allranks: ignore[step]"]
)
def test_broken_source_is_no_reason_to_fail(text: str) -> None:
    parse(text)
