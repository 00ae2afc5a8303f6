"""Every error that a user can meet says what happened and what to do, in sentences that can be translated."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import allranks

PACKAGE = Path(allranks.__file__).parent
RAISED = [
    pytest.param(call, function, id=f"{file.relative_to(PACKAGE)}:{call.lineno}")
    for file in sorted(PACKAGE.rglob("*.py"))
    for function in ast.walk(ast.parse(file.read_text("utf-8")))
    if isinstance(function, ast.FunctionDef)
    for call in ast.walk(function)
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "AllranksError"
]


def sentence(node: ast.expr, function: ast.FunctionDef) -> bool:
    """True for `say(...)`, a choice of such, and a name that is bound to nothing else in the function."""
    match node:
        case ast.Call(func=ast.Name(id="say")):
            return True
        case ast.IfExp():
            return sentence(node.body, function) and sentence(node.orelse, function)
        case ast.Subscript(value=ast.Dict(values=values)):
            return all(sentence(value, function) for value in values)
        case ast.Name():
            bound = [
                one.value
                for one in ast.walk(function)
                if isinstance(one, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == node.id for target in one.targets)
            ]
            return bool(bound) and all(sentence(value, function) for value in bound)
    return False


@pytest.mark.parametrize(("call", "function"), RAISED)
def test_an_error_says_what_happened_and_what_to_do(call: ast.Call, function: ast.FunctionDef) -> None:
    slug, message, advice = call.args
    assert isinstance(slug, ast.Constant)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", slug.value)
    assert sentence(message, function)
    assert sentence(advice, function)
