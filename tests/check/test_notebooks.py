"""Notebooks become Python whose lines find the way back to their cells."""

from __future__ import annotations

import ast
import json

import pytest

from allranks.check.notebooks import convert


def notebook(*cells: object) -> str:
    return json.dumps({"cells": list(cells), "nbformat": 4})


def code(*lines: str) -> dict[str, object]:
    return {"cell_type": "code", "source": [f"{line}\n" for line in lines]}


def test_lines_keep_their_cell() -> None:
    found = convert(
        notebook({"cell_type": "markdown", "source": "# hi"}, code("a = 1", "b = 2"), code("c = 3"))
    )
    assert found.text.split("\n")[:6] == ["a = 1", "b = 2", "", "c = 3", "", ""]
    assert found.place(2) == (2, 2)
    assert found.place(4) == (3, 1)
    assert found.place(999) == (3, 2)


def test_magics_become_statements_of_the_same_line() -> None:
    found = convert(
        notebook(
            code(
                "%matplotlib inline",
                "!pip install x",
                "if a:",
                "    %time f()",
                "files = !ls",
                "print?",
                "x = 7 % 3",
            )
        )
    )
    assert found.text.splitlines() == [
        "pass",
        "pass",
        "if a:",
        "    pass",
        "files = None",
        "pass",
        "x = 7 % 3",
        "",
    ]
    ast.parse(found.text)


def test_a_percent_sign_in_python_is_no_magic() -> None:
    lines = ['s = """', "%d percent", '"""', "y = (a", "     % b)"]
    found = convert(notebook(code(*lines)))
    assert found.text.splitlines()[:3] == lines[:3]


def test_cells_in_other_languages_are_left_out() -> None:
    found = convert(notebook(code("%%bash", "ls -l"), code("%%time", "f()")))
    assert found.text.splitlines() == ["pass", "pass", "f()", ""]
    assert found.place(3) == (2, 2)


def test_format_three() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "a = 1\nb = 2"}]}]}
    assert convert(json.dumps(old)).text == "a = 1\nb = 2\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', "not json", '{"worksheets": {}}'])
def test_what_is_no_notebook_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        convert(text)


def test_strange_cells_are_passed_over() -> None:
    assert (
        convert(notebook(3, None, {"cell_type": "code"}, {"cell_type": "code", "source": [1, "x"]})).text
        == "\n1x\n"
    )
