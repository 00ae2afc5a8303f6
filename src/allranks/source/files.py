"""Source files: text and syntax tree of a path, whatever its encoding, kept by content.

A file that cannot be read or parsed is an answer too: `tree` is None and `error` says why.
"""

from __future__ import annotations

import ast
import gc
import io
import os
import tokenize
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTHON_2 = ("print ", "exec ", "except ", "raise ", "<>")
_KEPT = 4096


class SourceFile:
    """One file: `text`, and a `tree` that is parsed when it is first asked for."""

    __slots__ = ("_error", "_lines", "_tree", "path", "text")

    def __init__(self, path: Path, text: str, error: str | None = None) -> None:
        self.path = path
        self.text = text
        self._error = error
        self._lines: list[str] | None = None
        self._tree: ast.Module | bool | None = None if error else False  # False: not parsed yet

    @property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None when the file does not parse, and `error` says why."""
        if isinstance(self._tree, bool):
            self._tree, self._error = parse(self.text)
        return self._tree

    @property
    def error(self) -> str | None:
        """Why there is no tree; None when there is one."""
        return self._error if self.tree is None else None

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without their ends; line n of the file is `lines[n - 1]`."""
        if self._lines is None:
            self._lines = self.text.split("\n")
        return self._lines

    def line(self, number: int) -> str:
        """The text of a 1-based line, stripped; empty when there is no such line."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def segment(self, node: ast.AST, limit: int = 120) -> str:
        """The source text of `node` on one line, cut at `limit` characters."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
        if not line or not end or end > len(self.lines):
            return ""
        parts = [part.encode() for part in self.lines[line - 1 : end]]
        parts[-1] = parts[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        parts[0] = parts[0][node.col_offset :]  # type: ignore[attr-defined]
        text = " ".join(b" ".join(parts).decode(errors="replace").split())
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that holds `line`; a compound statement's header is that statement."""
        found: ast.stmt | None = None
        block: list[ast.stmt] = list(self.tree.body) if self.tree else []
        while block:
            inner = next((s for s in block if first_line(s) <= line <= (s.end_lineno or s.lineno)), None)
            if inner is None:
                break
            found, block = inner, [s for part in blocks(inner) for s in part]
        return found


def first_line(statement: ast.stmt) -> int:
    """The line where a statement begins, its decorators included."""
    decorators = getattr(statement, "decorator_list", None)
    return min(statement.lineno, decorators[0].lineno) if decorators else statement.lineno


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of statements directly inside a compound statement, in order."""
    parts = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
    found = [part for part in parts if isinstance(part, list)]
    found[1:1] = [handler.body for handler in getattr(statement, "handlers", ())]
    return found + [case.body for case in getattr(statement, "cases", ())]


_cache: dict[Path, tuple[tuple[int, int] | None, SourceFile]] = {}


def read(path: str | Path) -> SourceFile:
    """The file at `path`, parsed; read again only when it has changed. Never raises."""
    path = Path(path)
    try:
        status = os.stat(path)
        stamp: tuple[int, int] | None = (status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        stamp = None
    kept = _cache.get(path)
    if kept is not None and (kept[0] == stamp or kept[0] is None):
        return kept[1]
    source = _load(path)
    _keep(path, stamp, source)
    return source


def provide(path: str | Path, text: str) -> SourceFile:
    """Holds `text` as the content of `path` from now on (a notebook's cells, an unsaved buffer)."""
    path = Path(path)
    source = SourceFile(path, text)
    _keep(path, None, source)
    return source


def _keep(path: Path, stamp: tuple[int, int] | None, source: SourceFile) -> None:
    if len(_cache) >= _KEPT:
        _cache.clear()
    _cache[path] = (stamp, source)


def _load(path: Path) -> SourceFile:
    return SourceFile(path, *text_of(path))


def text_of(path: Path) -> tuple[str, str | None]:
    """(text, why there is none): decoded as Python would, line ends made "\\n"."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as error:
        return "", getattr(error, "strerror", None) or str(error)
    return decode(data)


def decode(data: bytes) -> tuple[str, str | None]:
    """(text, why there is none) of a file's bytes by its byte order mark and coding line, UTF-8 without."""
    if b"\0" in data:
        return "", "null bytes"
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        return "", f"not {error.encoding}: {error.reason}"
    except (SyntaxError, LookupError, UnicodeError) as error:
        return "", str(error)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, None


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Runs its body without the garbage collector, which would walk every node of every tree again and again: all
    that is made is kept to the end."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def parse(text: str) -> tuple[ast.Module | None, str | None]:
    """(the syntax tree of `text`, why there is none). Never raises."""
    try:
        with warnings.catch_warnings(), collector_at_rest():
            warnings.simplefilter("ignore")
            return ast.parse(text), None
    except SyntaxError as error:
        return None, _why(text, error)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, str(error) or type(error).__name__


def _why(text: str, error: SyntaxError) -> str:
    where = f"line {error.lineno}: {error.msg}"
    lines = text.split("\n")
    line = lines[error.lineno - 1].lstrip() if error.lineno and error.lineno <= len(lines) else ""
    return f"{where} (Python 2?)" if line.startswith(_PYTHON_2) or "<>" in line else where
