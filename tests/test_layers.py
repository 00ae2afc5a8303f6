"""The import table of layers.toml holds: read from the AST, so that a local import cannot hide a circle."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "allranks"
TABLE: dict[str, Any] = tomllib.loads((ROOT / "layers.toml").read_text())
ROOMS: dict[str, Any] = TABLE["room"]


def room_of(path: Path) -> str:
    """The room a file stands in: the first part of its path below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Absolute dotted names of everything that a file imports, local imports included."""
    package = ("allranks", *path.relative_to(PACKAGE).parent.parts)
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*prefix, *(node.module.split(".") if node.module else ())])
            names += [f"{stem}.{alias.name}" for alias in node.names]
    return names


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name != "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} has no row in layers.toml"
    row = ROOMS[room]
    allowed, foreign, never = row["rooms"], row.get("foreign", []), row.get("never", [])
    wrong = []
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "allranks":
            inside = rest == room or rest.startswith(f"{room}.") or rest == "__version__"
            if not inside and not any(rest == a or rest.startswith(f"{a}.") for a in allowed):
                wrong.append(name)
        elif any(name == n or name.startswith(f"{n}.") for n in never) or (
            top not in sys.stdlib_module_names and top not in foreign
        ):
            wrong.append(name)
    assert not wrong, f"{room} may not import {wrong}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= TABLE["max_lines"]


def test_the_guest_imports_relatively_only() -> None:
    for path in (PACKAGE / "rank").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert not (node.module or "").startswith("allranks"), path
