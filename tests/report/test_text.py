"""The lines that a terminal shows, whole."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from allranks.findings import BlindSpot, Confidence, Finding, Location, Report, Severity, say
from allranks.report import text
from allranks.report.code import Sources

if TYPE_CHECKING:
    from pathlib import Path


def shown(report: Report, sources: Sources, **options: bool) -> str:
    stream = io.StringIO()
    text.show(report, text.console(stream), sources=sources, **options)
    return stream.getvalue()


def finding(line: int, column: int | None, path: str = "train.py", cell: int | None = None) -> Finding:
    return Finding(
        "rank-conditional-collective",
        Severity.ERROR,
        Confidence.INFERRED,
        say("only rank {rank} reaches the barrier", rank=0),
        Location(path, line, column, cell=cell),
        related=(Location("utils.py", 3, role=say("the others go on here")),),
        call_path=(Location("main.py", 7, 1, "main"),),
        condition=say("with several nodes"),
        fix=say("call it on every rank"),
    )


CODE = "import x\nif rank == 0:\n\tdist.barrier()  # why\nprint(1)\nprint(2)\n"


def test_a_finding_with_its_code() -> None:
    assert shown(Report("check", [finding(3, 2)]), Sources({"train.py": CODE})) == (
        "train.py:3:2: error [rank-conditional-collective] only rank 0 reaches the barrier\n"
        "1 | import x\n"
        "2 | if rank == 0:\n"
        "3 |     dist.barrier()  # why\n"
        "  |     ^^^^^^^^^^^^^^\n"
        "4 | print(1)\n"
        "  = when: with several nodes\n"
        "  = see: utils.py:3 the others go on here\n"
        "  = path: main.py:7:1 in main\n"
        "  = fix: call it on every rank\n"
        "\n"
        "Found 1 (error: 1, warning: 0, info: 0).\n"
        "`allranks faults rank-conditional-collective` explains a kind of fault.\n"
    )


def test_wide_characters_do_not_move_the_mark() -> None:
    code = 's = "训练"; f()\n'
    lines = shown(Report("check", [finding(1, 11)]), Sources({"train.py": code})).splitlines()
    assert lines[1:3] == ['1 | s = "训练"; f()', "  |             ^^^"]


def test_a_cell_of_a_notebook() -> None:
    notebook = json.dumps({"cells": [{"source": ["# title\n"]}, {"source": ["a = 1\n", "f()\n"]}]})
    report = Report("check", [finding(2, 1, "n.ipynb", cell=2)])
    lines = shown(report, Sources({"n.ipynb": notebook})).splitlines()
    assert lines[0].startswith("n.ipynb:cell 2:2:1: error")
    assert lines[1:4] == ["1 | a = 1", "2 | f()", "  | ^^^"]


def test_a_file_that_is_gone_is_shown_without_code(tmp_path: Path) -> None:
    lines = shown(Report("check", [finding(3, 2)]), Sources(root=tmp_path)).splitlines()
    assert lines[1] == "   = when: with several nodes"


def test_quiet_is_one_line_a_finding() -> None:
    report = Report("check", [finding(3, 2), finding(9, None)], [BlindSpot("x", say("not seen"))])
    assert shown(report, Sources({}), quiet=True) == (
        "train.py:3:2: error [rank-conditional-collective] only rank 0 reaches the barrier\n"
        "train.py:9: error [rank-conditional-collective] only rank 0 reaches the barrier\n"
    )


def test_statistics_count_by_kind() -> None:
    report = Report("check", [finding(3, 2), finding(9, None)])
    assert shown(report, Sources({}), statistics=True, quiet=True) == "2 error rank-conditional-collective\n"


def test_nothing_found_says_what_was_not_seen_once() -> None:
    spots = [BlindSpot("broken", say("{path} is not Python 3", path="a.py"), count=2)] * 2
    assert (
        shown(Report("check", [], spots), Sources({})) == "note: a.py is not Python 3 (x4)\nNothing found.\n"
    )
