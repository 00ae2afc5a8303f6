"""Carries the English sentences that a user can meet into the Chinese catalogue, and compiles it.

    python tools/messages.py            update src/allranks/messages/zh/LC_MESSAGES/allranks.po and its .mo
    python tools/messages.py --missing  print what has no translation yet; status 1 when there is any

A sentence is: the first argument of `say`, `speak` or `render`; `says` and `advice` of a signature; a help text or a
paragraph of a docstring of a command; and what click says itself. Translations are kept by their English sentence:
one that the code no longer has is dropped.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from allranks import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/allranks"
CATALOGUE = PACKAGE / "messages/zh/LC_MESSAGES/allranks.po"
MARKERS = frozenset({"say", "speak", "render"})
HEADER = """\
# Chinese (simplified) sentences of allranks.
# Kept by tools/messages.py: it adds the sentences of the code and drops those that are gone."""


def sentences() -> dict[str, list[str]]:
    """Every English sentence of allranks -> the files that say it, relative to the package."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        for sentence in _of_source(ast.parse(file.read_text("utf-8"))):
            if place not in found[sentence]:
                found[sentence].append(place)
    for file in sorted(PACKAGE.rglob("signatures.toml")):
        place = file.relative_to(PACKAGE).as_posix()
        for row in tomllib.loads(file.read_text("utf-8"))["signature"]:
            for sentence in (row["says"], row["advice"]):
                if place not in found[sentence]:
                    found[sentence].append(place)
    return found


def of_click() -> set[str]:
    """The sentences of the installed click: it asks for a translation of each by `_("...")`."""
    spec = find_spec("click")
    assert spec is not None
    assert spec.origin is not None
    found = set()
    for file in Path(spec.origin).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_":
                found.update(_literals(node.args[0]))
    return found


def _of_source(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name in MARKERS and node.args:
                yield from _literals(node.args[0])
            if name == "option":
                yield from (
                    text for word in node.keywords if word.arg == "help" for text in _literals(word.value)
                )
        elif isinstance(node, ast.FunctionDef) and any(
            _name(decorator) in ("command", "group") for decorator in node.decorator_list
        ):
            yield from _paragraphs(ast.get_docstring(node) or "")


def _paragraphs(text: str) -> Iterator[str]:
    r"""The paragraphs of a command's help, as they are looked up: one line each, unless marked by `\b`."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        stripped = paragraph.strip()
        if stripped.startswith("\b"):
            yield stripped.removeprefix("\b").strip("\n")
        elif stripped:
            yield " ".join(stripped.split())


def _name(node: ast.expr) -> str:
    """The last part of a called name: `say` of `say(...)` and of `self.say(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _literals(value)


def read() -> Catalog:
    """The catalogue as it stands; an empty one when there is none."""
    if not CATALOGUE.is_file():
        return Catalog(locale="zh")
    with CATALOGUE.open("rb") as source:
        return read_po(source, locale="zh")


def update() -> Catalog:
    """The catalogue with exactly the present sentences, and the translations that it had for them."""
    old, now, click = read(), sentences(), of_click()
    catalog = Catalog(
        locale="zh",
        project="allranks",
        version=__version__,
        last_translator="The allranks developers",
        language_team="Chinese (simplified)",
        msgid_bugs_address="see the project page",
        header_comment=HEADER,
        creation_date=old.creation_date,
        fuzzy=False,
    )
    for sentence in sorted(now):
        held = old.get(sentence)
        catalog.add(sentence, held.string if held else "", [(place, None) for place in now[sentence]])
    for sentence in sorted(click - set(now)):
        held = old.get(sentence)
        if held and held.string:
            catalog.add(sentence, held.string, [("click", None)])
    CATALOGUE.parent.mkdir(parents=True, exist_ok=True)
    with CATALOGUE.open("wb") as target:
        write_po(target, catalog, width=0, include_lineno=False, ignore_obsolete=True, sort_output=True)
    with CATALOGUE.with_suffix(".mo").open("wb") as target:
        write_mo(target, catalog)
    return catalog


def missing() -> list[str]:
    """The sentences without a translation, sorted."""
    catalog = read()
    return sorted(s for s in sentences() if (held := catalog.get(s)) is None or not held.string)


def main(arguments: list[str]) -> int:
    """Updates the catalogue, or lists what is missing."""
    if "--missing" not in arguments:
        update()
    lacking = missing()
    print(
        "\n".join(lacking) if "--missing" in arguments else f"{len(lacking)} sentences without a translation"
    )
    return 1 if "--missing" in arguments and lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
