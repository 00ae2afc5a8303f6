"""Statements that change parameters or gradients in place, read from the program: what hooks do not see."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS = ("parameters", "named_parameters")
_HARMLESS = frozenset({"requires_grad_", "detach_", "zero_grad_", "share_memory_"})
"""Methods whose name ends as those that write do."""
_PARAMETERS = ("data", "weight", "bias")


def in_place(tree: ast.AST) -> list[ast.stmt]:
    """The statements that write into parameters: `p.add_(...)` or `p.data = ...` in a loop over `parameters()`, and
    writes through `.data`, or into a `weight` or `bias`. Loops over two models at once are left out: they keep an
    average of one in the other."""
    found: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and _lists(node.iter) == 1:
            names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            for statement in _statements(node.body):
                if _writes(statement, names):
                    found[statement.lineno] = statement
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.For) and _writes(node, set()):
            found.setdefault(node.lineno, node)
    return [found[line] for line in sorted(found)]


def of_gradients(tree: ast.AST) -> list[ast.stmt]:
    """The statements that write into a gradient: `p.grad += ...`, `p.grad.mul_(...)`; not those that clear it."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _writes_gradient(node)]


def _writes_gradient(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if not isinstance(function, ast.Attribute) or function.attr in _HARMLESS or function.attr == "zero_":
            return False
        return function.attr.endswith("_") and not function.attr.endswith("__") and _gradient(function.value)
    if isinstance(statement, ast.Assign):
        cleared = isinstance(statement.value, ast.Constant)
        return not cleared and any(_gradient(target) for target in statement.targets)
    return isinstance(statement, ast.AugAssign) and _gradient(statement.target)


def _gradient(node: ast.expr) -> bool:
    """True for `x.grad`, and what is reached through it."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return True
        node = node.value
    return False


def around(tree: ast.Module, lines: set[int]) -> list[ast.AST]:
    """The innermost functions that hold these lines; the module itself for those that none holds."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: dict[int, ast.AST] = {}
    for line in lines:
        holding = [f for f in functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
        innermost = max(holding, key=lambda f: f.lineno) if holding else tree
        found[id(innermost)] = innermost
    return list(found.values())


def _lists(node: ast.expr) -> int:
    """How many models' parameters an expression goes through."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr in _LISTS for call in calls)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign):
                yield node


def _writes(statement: ast.stmt, names: set[str]) -> bool:
    """True when a statement writes into one of the tensors called `names`, or through `.data`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if not isinstance(function, ast.Attribute) or not function.attr.endswith("_"):
            return False
        return (
            not function.attr.endswith("__")
            and function.attr not in _HARMLESS
            and _parameter(function.value, names)
        )
    if isinstance(statement, ast.Assign):
        return any(
            isinstance(t, ast.Attribute | ast.Subscript) and _parameter(t, names) for t in statement.targets
        )
    if isinstance(statement, ast.AugAssign):
        return _parameter(statement.target, names)
    return False


def _parameter(node: ast.expr, names: set[str]) -> bool:
    """True for one of `names`, or anything reached through `.data`; a gradient is no parameter."""
    through = False
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            if node.attr == "grad":
                return False
            through = through or node.attr in _PARAMETERS
        node = node.value
    return through or (isinstance(node, ast.Name) and node.id in names)
