"""A program: its modules, how they import each other, what names mean, and the scripts that start it.

Nothing is parsed before it is asked for. Which files matter is decided on their text: a script is an entry
when it runs as `__main__` and something it imports speaks of torch.distributed or a library that uses it.
"""

from __future__ import annotations

import ast
import os
import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import syntax
from .files import SourceFile, collector_at_rest, first_line, read
from .interest import Interest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DISTRIBUTED = re.compile(
    r"init_process_group|DistributedDataParallel|torch\.distributed|torch import distributed|[Aa]ccelerat"
    r"|deepspeed|horovod|lightning|fully_shard|init_device_mesh|apex\.parallel|ray\.train|mpi4py"
    r"|FullyShardedDataParallel|mp\.spawn|fairscale"
)
"""What the text of a program has that several processes may run."""

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_MAIN = re.compile(r"^if\b.*__name__\s*==|^if\b.*==\s*__name__", re.MULTILINE)
_SYS_PATH = re.compile(r"sys\.path\.(?:append|insert|extend)\((.*)")
_STRING = re.compile(r"""["']([^"'\n]+)["']""")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function or method of a module; `name` is qualified inside the module ("Trainer.fit", "main")."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: Module
    owner: ast.ClassDef | None = None

    @property
    def line(self) -> int:
        """The line of its `def`."""
        return self.node.lineno


@dataclass(slots=True, eq=False)
class Module:
    """A file of the program under the name by which it is imported."""

    path: Path
    program: Program = field(repr=False)
    _functions: list[Function] | None = field(default=None, repr=False)
    _imports: dict[str, tuple[Any, ...]] | None = field(default=None, repr=False)
    _names: dict[str, Function | ast.ClassDef] | None = field(default=None, repr=False)

    @property
    def source(self) -> SourceFile:
        """The file."""
        return self.program.read(self.path)

    @property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None when the file does not parse."""
        return self.source.tree

    @property
    def functions(self) -> list[Function]:
        """Every function and method, nested ones after the one that holds them."""
        if self._functions is None:
            self._functions = list(_functions(self)) if self.tree else []
        return self._functions

    @property
    def names(self) -> dict[str, Function | ast.ClassDef]:
        """The classes and functions at its top level."""
        if self._names is None:
            self._names = {function.name: function for function in reversed(self.functions)}
            statements = self.tree.body if self.tree else []
            self._names |= {s.name: s for s in reversed(statements) if isinstance(s, ast.ClassDef)}
        return self._names

    @property
    def imports(self) -> dict[str, tuple[Any, ...]]:
        """What its import statements bind, wherever they stand: local name -> (level, module, member)."""
        if self._imports is None:
            self._imports = {}
            for node in _statements(self.tree) if self.tree else ():
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        bound = alias.asname or alias.name.split(".")[0]
                        self._imports[bound] = (0, alias.name if alias.asname else bound, None)
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        self._imports[alias.asname or alias.name] = (
                            node.level,
                            node.module or "",
                            alias.name,
                        )
        return self._imports


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, the outer ones first."""
    todo: deque[ast.AST] = deque(tree.body)
    while todo:
        node = todo.popleft()
        yield node
        todo += _inside(node)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The statements, handlers and cases of a statement, in order."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, block, ())


def _functions(module: Module) -> Iterator[Function]:
    assert module.tree is not None
    todo: list[tuple[ast.stmt, str, ast.ClassDef | None]] = [
        (s, "", None) for s in reversed(module.tree.body)
    ]
    while todo:
        node, prefix, owner = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(prefix + node.name, node, module, owner)
            prefix, owner = f"{prefix}{node.name}.", None
        elif isinstance(node, ast.ClassDef):
            prefix, owner = f"{prefix}{node.name}.", node
        todo += [(c, prefix, owner) for c in reversed(list(_inside(node)))]  # type: ignore[misc]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A script that starts a distributed run. `launch` says how its processes come to be: "spawn" when the
    script starts them itself, else "torchrun" (each process runs the whole script)."""

    module: Module
    launch: str

    @property
    def path(self) -> Path:
        """The script."""
        return self.module.path


class Program:
    """The Python files below `root` (a folder, or one script and what it imports).

    `files` limits what is looked at for entries; local modules are found on disk all the same.
    """

    def __init__(self, root: Path, files: Iterable[Path] | None = None) -> None:
        root = Path(os.path.abspath(root))
        if files is None and not root.is_dir():
            files = [root]
        self.root = root if root.is_dir() else root.parent
        self._files = None if files is None else [Path(os.path.abspath(f)) for f in files]
        self._modules: dict[Path, Module] = {}
        self._sources: dict[Path, SourceFile] = {}
        self._found: dict[tuple[Path, str], Path | None] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self._entries: list[Entry] | None = None
        self.kept: dict[str, Any] = {}
        """What analyses keep for the life of the program."""

    # Files and modules

    @property
    def files(self) -> list[Path]:
        """The files that were asked for; all Python files below the root when none were named."""
        if self._files is None:
            self._files = []
            for place, folders, names in os.walk(self.root):
                folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
                self._files += [Path(place, name) for name in sorted(names) if name.endswith(".py")]
        return self._files

    def read(self, path: Path) -> SourceFile:
        """The file at `path`, read once for this program."""
        source = self._sources.get(path)
        if source is None:
            source = self._sources[path] = read(path)
        return source

    def provide(self, path: Path, text: str) -> SourceFile:
        """Holds `text` as the content of `path` for this program (a notebook's cells, an unsaved buffer)."""
        source = self._sources[path] = SourceFile(path, text)
        return source

    def module(self, path: str | Path) -> Module:
        """The module at `path`; its tree is None when the file does not parse or is not there."""
        module = self._modules.get(path)  # type: ignore[arg-type]
        if module is None:
            full = Path(os.path.abspath(path))
            module = self._modules.get(full)
            if module is None:
                module = self._modules[full] = Module(full, self)
        return module

    # Imports

    def locate(self, module: Module, level: int, name: str) -> Path | None:
        """The local file that `name`, imported from `module` with `level` leading dots, stands for; None when
        it is not a file of the program."""
        folder = module.path.parent
        key = (module.path if level else folder, "." * level + name)
        if key not in self._found:
            self._found[key] = self._locate(module, level, name)
        return self._found[key]

    def _locate(self, module: Module, level: int, name: str) -> Path | None:
        folder = module.path.parent
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            return self._below(folder, name)
        for place in self._search(module):
            found = self._below(place, name)
            if found is not None and found != module.path:
                return found
        return None

    def _search(self, module: Module) -> Iterator[Path]:
        """Where absolute imports are looked for: beside the module, in its package's root and above, up to
        the program's root, in `src`, and where the module puts sys.path. Beside a module of a package that is no
        script they are looked for last."""
        beside = folder = module.path.parent
        imported = self._has(folder, "__init__.py") and "__main__" not in self.text(module.path)
        if not imported:
            yield beside
        for parent in folder.parents:
            # A package that begins above the root is still the program's own.
            if not parent.is_relative_to(self.root) and not self._has(folder, "__init__.py"):
                break
            yield parent
            folder = parent
        yield self.root
        yield self.root / "src"
        for hack in _SYS_PATH.findall(self.text(module.path)):
            for part in _STRING.findall(hack):
                yield Path(os.path.normpath(module.path.parent / part))
                yield Path(os.path.normpath(self.root / part))
        if imported:
            yield beside

    def _below(self, folder: Path, name: str) -> Path | None:
        parts = name.split(".") if name else []
        for part in parts[:-1]:
            if not self._has(folder, part):
                return None
            folder = folder / part
        if not parts:
            return folder / "__init__.py" if self._has(folder, "__init__.py") else None
        last = parts[-1]
        if self._has(folder, f"{last}.py"):
            return folder / f"{last}.py"
        if self._has(folder, last) and self._has(folder / last, "__init__.py"):
            return folder / last / "__init__.py"
        return None

    def folder(self, module: Module, level: int, name: str) -> Path | None:
        """The folder of a package without `__init__.py` that `name` stands for."""
        places = [module.path.parents[level - 1]] if level else self._search(module)
        for place in places:
            folder = place.joinpath(*name.split(".")) if name else place
            if name and self._has(folder.parent, folder.name) and self._names(str(folder)):
                return folder
        return None

    def _has(self, folder: Path, name: str) -> bool:
        return name in self._names(str(folder))

    def _names(self, folder: str) -> frozenset[str]:
        names = self._folders.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder))
            except OSError:
                names = frozenset()
            self._folders[folder] = names
        return names

    def resolve(self, module: Module, name: str) -> Function | ast.ClassDef | Module | str | None:
        """What a dotted name means at the top level of `module`: a function, class or module of the program,
        the qualified name of something foreign ("torch.distributed.all_reduce"), or None."""
        head, _, rest = name.partition(".")
        found: Function | ast.ClassDef | Module | str | None = self._top(module, head, 0)
        for part in rest.split(".") if rest else ():
            if isinstance(found, Module):
                found = self._top(found, part, 0) or self._submodule(found, part)
            elif isinstance(found, str):
                found = f"{found}.{part}"
            elif isinstance(found, ast.ClassDef):
                found = self._method(module, found, part)
            else:
                return None
        return found

    def _top(self, module: Module, name: str, depth: int) -> Function | ast.ClassDef | Module | str | None:
        own = module.names.get(name)
        if own is not None:
            return own
        if name not in module.imports or depth > 8:
            return None
        level, target, member = module.imports[name]
        path = self.locate(module, level, target)
        if member is None:
            return self.module(path) if path else str(target)
        inner = self.locate(module, level, f"{target}.{member}" if target else member)
        if path is not None and path != module.path:
            found = self._top(self.module(path), member, depth + 1)
            if found is not None:
                return found
        if inner is not None:
            return self.module(inner)
        return None if level or path else f"{target}.{member}"

    def _submodule(self, module: Module, name: str) -> Module | None:
        path = self._below(module.path.parent, name) if module.path.name == "__init__.py" else None
        return self.module(path) if path else None

    def _method(self, module: Module, owner: ast.ClassDef, name: str) -> Function | None:
        return next((f for f in module.functions if f.owner is owner and f.node.name == name), None)

    # What the program has

    @property
    def functions(self) -> Iterator[Function]:
        """Every function of the files that were asked for."""
        for path in self.files:
            yield from self.module(path).functions

    def function_at(self, path: str | Path, line: int) -> Function | None:
        """The innermost function that holds `line`."""
        found = None
        for function in self.module(path).functions:
            if first_line(function.node) <= line <= (function.node.end_lineno or 0):
                found = function
        return found

    def callers(self, function: Function) -> list[tuple[Module, ast.Call]]:
        """The calls, in the files that were asked for, that name this function (by its last name where
        the receiver is not known)."""
        word = re.compile(rf"\b{re.escape(function.node.name)}\s*\(")
        found = []
        for path in self.files:
            if word.search(self.text(path)):
                module = self.module(path)
                nodes = syntax.walk(module.tree) if module.tree else ()
                calls = (node for node in nodes if isinstance(node, ast.Call))
                found += [
                    (module, call) for call in calls if self._names_function(module, call.func, function)
                ]
        return found

    def _names_function(self, module: Module, callee: ast.expr, function: Function) -> bool:
        if isinstance(callee, ast.Attribute):
            if callee.attr != function.node.name:
                return False
            if function.owner is not None:
                return True
            target = self.resolve(module, dotted) if (dotted := dotted_name(callee)) else None
            return target is function
        return (
            isinstance(callee, ast.Name)
            and callee.id == function.node.name
            and (self.resolve(module, callee.id) is function or module is function.module)
        )

    # Entries

    def text(self, path: Path) -> str:
        """The text of a file; empty when it cannot be read. Does not parse more than it must."""
        return self.read(path).text

    @property
    def entries(self) -> list[Entry]:
        """The scripts that start a distributed run, in the order of the files."""
        if self._entries is None:
            with collector_at_rest():
                self._entries = list(self._find_entries())
        return self._entries

    def _find_entries(self) -> Iterator[Entry]:
        imported = {target for path in self.files for target in self.imported(path)}
        for path in self.files:
            text = self.text(path)
            runs = _MAIN.search(text) or (path not in imported and path.name != "__init__.py")
            if not runs or (self._is_test(path) and len(self.files) > 1):
                continue
            closure = self.closure(path)
            if self.speaks(path, DISTRIBUTED):
                self.interest.add(closure)
                if not self.interest.starts(path):
                    continue
                spawns = re.search(r"\bspawn\(|start_processes\(|\bProcess\(|\blaunch\(", text)
                yield Entry(self.module(path), "spawn" if spawns else "torchrun")

    def _is_test(self, path: Path) -> bool:
        """True for a file of the program's own tests, which one process runs."""
        folders = path.parts[len(self.root.parts) : -1]
        return path.name.startswith(("test_", "conftest")) or not {"tests", "test"}.isdisjoint(folders)

    @cached_property
    def interest(self) -> Interest:
        """Which functions of the program matter, told from text."""
        return Interest(self)

    def imported(self, path: Path) -> tuple[Path, ...]:
        """The local files that the import statements of `path` name, found on its text."""
        kept = self.kept.setdefault("imported", {})
        if path not in kept:
            kept[path] = tuple(dict.fromkeys(self._imported(self.module(path))))
        return kept[path]  # type: ignore[no-any-return]

    def _imported(self, module: Module) -> Iterator[Path]:
        for origin, members, names in _IMPORT.findall(self.text(module.path)):
            if names:
                for name in names.split(","):
                    dotted = name.split(" as ")[0].strip()
                    while dotted:
                        found = self.locate(module, 0, dotted)
                        if found:
                            yield found
                        dotted = dotted.rpartition(".")[0]
                continue
            level = len(origin) - len(origin.lstrip("."))
            target = origin[level:]
            found = self.locate(module, level, target)
            if found:
                yield found
            for member in members.strip("()").split(","):
                word = member.split(" as ")[0].strip()
                if word.isidentifier():
                    found = self.locate(module, level, f"{target}.{word}" if target else word)
                    if found:
                        yield found

    def speaks(self, path: Path, of: re.Pattern[str]) -> bool:
        """True when the text of `path`, or of a local file that it imports, matches."""
        heard: dict[tuple[Path, re.Pattern[str]], bool] = self.kept.setdefault("speaks", {})
        for part in self.closure(path):
            if (part, of) not in heard:
                heard[part, of] = bool(of.search(self.text(part)))
            if heard[part, of]:
                return True
        return False

    def closure(self, path: Path) -> list[Path]:
        """`path` and every local file that it imports, directly or not."""
        kept: dict[Path, list[Path]] = self.kept.setdefault("closures", {})
        if path not in kept:
            kept[path] = self._closure(path)
        return kept[path]

    def _closure(self, path: Path) -> list[Path]:
        seen = {path: None}
        todo = [path]
        while todo:
            for target in self.imported(todo.pop()):
                if target not in seen:
                    seen[target] = None
                    todo.append(target)
        return list(seen)


def dotted_name(node: ast.expr) -> str:
    """ "a.b.c" of a name or attribute chain; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))
