"""Walks over syntax trees. What analyses ask of a whole file is asked often, so each file is walked once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = frozenset(
    (
        "ctx",
        "id",
        "arg",
        "attr",
        "asname",
        "module",
        "level",
        "kind",
        "type_comment",
        "is_async",
        "simple",
        "conversion",
    )
)
"""Fields that hold no node, or only the mark of how a name is used."""
_BARE: tuple[type[ast.AST], ...] = (
    ast.Constant,
    ast.Global,
    ast.Nonlocal,
    ast.Import,
    ast.ImportFrom,
    ast.Name,
)
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
"""The fields of each type of node that may hold nodes."""


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly inside `node`, in order; without contexts, and without the names of imports."""
    kind = type(node)
    names = _FIELDS.get(kind)
    if names is None:
        plain = kind._fields if kind in _BARE else _PLAIN
        names = _FIELDS[kind] = tuple(name for name in kind._fields if name not in plain)
    found: list[ast.AST] = []
    for name in names:
        part = getattr(node, name, None)
        if type(part) is list:
            found += [item for item in part if isinstance(item, ast.AST)]
        elif isinstance(part, ast.AST):
            found.append(part)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all nodes below it, level by level as `ast.walk` gives them."""
    level = [node]
    while level:
        yield from level
        level = [child for node in level for child in children(node)]
