"""Modules: import statements, and the top level of what they import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .assignment import Assignment
from .lanes import ALL
from .state import Frame
from .values import Const, External, Kind, LocalModule, Scope, Value

if TYPE_CHECKING:
    import ast


class Modules(Assignment):
    """Imports and runs modules."""

    def _import(self, node: ast.Import) -> None:
        module = self.frame.home.module
        for alias in node.names:
            path = self.program.locate(module, 0, alias.name)
            if path is None:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                local = self._package(whole, alias.name) if not alias.asname else None
                self._assign_name(alias.asname or whole, local or External(whole))
                continue
            found = self.import_module(path)
            if alias.asname or "." not in alias.name:
                self._assign_name(alias.asname or alias.name, found)
            else:
                self._assign_name(alias.name.partition(".")[0], self._nested(alias.name, found))

    def _package(self, whole: str, name: str) -> Value | None:
        path = self.program.locate(self.frame.home.module, 0, whole) if whole != name else None
        return self.import_module(path) if path is not None else None

    def _nested(self, name: str, module: LocalModule) -> Value:
        """What `import a.b.c` binds to `a`."""
        parts = name.split(".")
        found: Value = module
        for i in range(len(parts) - 1, 0, -1):
            path = self.program.locate(self.frame.home.module, 0, ".".join(parts[:i]))
            if path is not None:
                package = self.import_module(path)
                package.names.setdefault(parts[i], found)
                found = package
            else:
                holder = LocalModule(module.module)
                holder.names[parts[i]] = found
                found = holder
        return found

    def _import_from(self, node: ast.ImportFrom) -> None:
        module, name = self.frame.home.module, node.module or ""
        path = self.program.locate(module, node.level, name)
        found = self.import_module(path) if path is not None and path != module.path else None
        for alias in node.names:
            if alias.name == "*":
                if found is not None:
                    for key, value in list(found.names.items()):
                        if not key.startswith("_"):
                            self._assign_name(key, value)
                continue
            self._assign_name(alias.asname or alias.name, self._imported(node, name, alias.name, found))

    def _imported(self, node: ast.ImportFrom, name: str, member: str, found: LocalModule | None) -> Value:
        held = found.names.get(member) if found is not None else None
        if held is not None:
            return held
        inner = f"{name}.{member}" if name else member
        path = self.program.locate(self.frame.home.module, node.level, inner)
        if path is not None:
            return self.import_module(path)
        if found is not None or node.level:
            return self.derived(("name", id(found), node.level, inner), (), Kind.UNKNOWN, member)
        return External(inner)

    def import_module(self, path: object) -> LocalModule:
        """The module at `path`, run if it was not yet."""
        module = self.program.module(path)  # type: ignore[arg-type]
        found = self.modules.get(module.path)
        if found is None:
            found = self.modules[module.path] = LocalModule(module)
            self.run_module(found)
        return found

    def run_module(self, value: LocalModule, name: str | None = None) -> None:
        """Runs the top level of a module, as `name` ("__main__" for a script)."""
        if value.started:
            return
        value.started = True
        tree = value.module.tree
        if tree is None:
            self.missed("syntax")
            return
        if name is not None:
            value.names["__name__"] = Const(name)
        outer = self.frame, self.guard, self.site, self.branch, self.catchers
        scope = Scope()
        scope.names = value.names
        self.frame, self.guard = Frame(scope, value, None, ALL, name="", doubts=self.doubts), ALL
        self.site, self.branch, self.catchers = None, None, []
        self.run_block(tree.body)
        self.frame, guard, self.site, self.branch, self.catchers = outer
        self.guard = guard
