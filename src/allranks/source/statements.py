"""Statements: branches, attempts, contexts, definitions, and the ways of leaving."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from . import syntax, trace
from .decisions import origin_of
from .interest import NOT_FINITE
from .lanes import ALL
from .modules import Modules
from .state import Catcher, worse
from .values import (
    ABSENT,
    NONE,
    ClassValue,
    Const,
    Either,
    GeneratorValue,
    Kind,
    PerLane,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .decisions import Guard

_SAME_EVERYWHERE = frozenset(
    ("ImportError", "ModuleNotFoundError", "KeyboardInterrupt", "StopIteration", "AttributeError",
     "NotImplementedError", "SystemExit", "NameError", "GeneratorExit", "ArgumentError", "PackageNotFoundError",
     "FileNotFoundError", "FileExistsError")
)  # fmt: skip
"""Errors that come of the environment or the end of something: every rank meets them alike."""


_READERS = frozenset(
    ("int", "str", "bool", "float", "os.getenv", "os.environ.get", "os.environ.pop", "print")
)
"""What is called to read the environment."""


def _is_flag(node: ast.expr) -> bool:
    """True for a name or attribute, or the opposite of one."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else node
    return isinstance(inner, ast.Name | ast.Attribute)


class Statements(Modules):
    """Runs statements."""

    def run_block(self, body: list[ast.stmt]) -> None:
        """Runs statements until no lane is left."""
        for statement in body:
            if self.guard == 0 or self.steps <= 0:
                return
            self.steps -= 1
            handle = _HANDLERS.get(type(statement))
            if handle is not None:
                handle(self, statement)

    # Simple statements

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.unused = node.value
            self.evaluate(node.value)

    # Leaving

    def _return(self, node: ast.Return) -> None:
        value = self.evaluate(node.value) if node.value is not None else NONE
        frame = self.frame
        if self.guard == 0:
            return
        if self.unsure:
            frame.maybe.append(self.doubtful(ABSENT, value))
            frame.left = worse(frame.left, self.doubt)
            return
        if (
            frame.unused
            and self.guard != ALL
            and type(self.guard) is not int
            and self.decisions.for_all(self.guard)
        ):
            # All ranks leave together, or none: what follows is looked at as if they had not.
            self.items.append(trace.Exit("return", self.absolute, self.here(node), self.branch))
            return
        if frame.maybe:
            frame.maybe.append(value)
            value = self._one_of(frame.maybe)
        frame.result = (
            self.decisions.select(self.guard, value, frame.result) if frame.returned != 0 else value
        )
        if frame.returned != 0 or self.guard != ALL:
            self.items.append(trace.Exit("return", self.absolute, self.here(node), self.branch))
        frame.returned = self.decisions.either(frame.returned, self.guard)
        self.guard = 0

    def _break(self, node: ast.Break) -> None:
        if self.frame.loops and not self.unsure:
            state = self.frame.loops[-1]
            state.broke = self.decisions.either(state.broke, self.guard)
        self.leave("break", node)

    def _continue(self, node: ast.Continue) -> None:
        if self.frame.loops and not self.unsure:
            state = self.frame.loops[-1]
            state.continued = self.decisions.either(state.continued, self.guard)
        self.leave("continue", node)

    def _raise(self, node: ast.Raise) -> None:
        name = ""
        if node.exc is not None:
            callee = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
            if isinstance(node.exc, ast.Call):
                for arg in node.exc.args:
                    self.evaluate(arg)
        self.raised(name, node)

    def raised(self, name: str, node: ast.AST) -> None:
        """The active lanes raise `name` at `node`."""
        for catcher in reversed(self.catchers):
            caught = (
                not catcher.types
                or name in catcher.types
                or {"Exception", "BaseException"} & {*catcher.types}
            )
            if caught and (name != "SystemExit" or "SystemExit" in catcher.types):
                catcher.raised = self.decisions.either(catcher.raised, self.absolute)
                self.leave("caught", node)
                return
        if self._in_handler():
            self.given_up("raise", node)
        elif not self.frame.rough and self.branch is not None and self._not_finite(self.branch):
            self.leave("raise", node)
        else:
            # An error ends the job, loudly: what is looked at is the run that has none.
            self.items.append(trace.Exit("error", self.absolute, self.here(node), self.branch))

    def _in_handler(self) -> bool:
        """True for what stands in an except clause, under no further condition."""
        branch = self.branch
        return (
            branch is not None
            and branch.site.caller is self.site
            and isinstance(branch.site.node, ast.ExceptHandler)
        )

    def given_up(self, how: str, node: ast.AST) -> None:
        """The active lanes end in an except clause. What is looked at is the run in which they met no error."""
        self.items.append(trace.Exit("error", self.absolute, self.here(node), self.branch))
        self.ended = self.decisions.either(self.ended, self.guard)
        self.guard = 0

    def _not_finite(self, branch: trace.Branch) -> bool:
        """True for a test for a loss that is not finite: one rank goes down for it while the others wait."""
        test = getattr(branch.site.node, "test", None)
        text = self.program.module(branch.site.path).source.segment(test) if test is not None else ""
        return bool(NOT_FINITE.search(text))

    def _assert(self, node: ast.Assert) -> None:
        value = self.evaluate(node.test)
        if type(value) is not Const:
            self.note_doubt(node, node.test, self.kind(value), value)
        if type(value) not in (Const, PerLane, Either) and not _is_flag(node.test):
            return
        holds = self.truth(value)
        past = self.decisions.both(self.guard, holds)
        if past == 0 and self.absolute != ALL:
            self.guard = 0  # nobody gets past it on this way
        elif type(holds) is int or self.frame.rough:
            return
        elif self.decisions.kind_of_guard(holds) is Kind.UNIFORM and self.decisions.for_all(self.absolute):
            self.guard = past

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and self.guard == ALL:
                self.frame.scope.names.pop(target.id, None)

    # Branches

    def _if(self, node: ast.If) -> None:
        entry, branch = self.guard, self.branch
        value = self.evaluate(node.test)
        doubt = self.unknown_condition(value, node)
        if doubt is not None:
            self.note_doubt(node, node.test, doubt, value)
            self._either_arm(node, doubt, value)
            return
        holds = self.truth(value)
        self.remember(node, node.test, holds, value)
        active = self.guard
        yes = self.decisions.both(active, holds)
        no = self.decisions.minus(active, holds)
        self._arm(node, node.body, entry, yes)
        after = self.guard
        self.branch = branch
        self._arm(node, node.orelse, entry, no)
        self.branch = branch
        self.guard = self.decisions.either(after, self.guard)

    def _either_arm(self, node: ast.If, doubt: Kind, value: Value) -> None:
        """Runs both arms without knowing which one runs. A key that only one of them sets may be missing."""
        outer = self.keys_set
        with self.doubting(doubt, origin_of(value)):
            one = self.keys_set = {}
            self.run_block(node.body)
            other = self.keys_set = {}
            self.run_block(node.orelse)
        self.keys_set = outer
        for key, table in (one | other).items():
            if key in one and key in other:
                outer[key] = table
            elif doubt > Kind.UNKNOWN and key[1] not in table.sure:
                table.uneven = (doubt, origin_of(value))

    def _arm(self, node: ast.AST, body: list[ast.stmt], entry: Guard, lanes: Guard) -> None:
        self.guard = lanes
        if body and lanes != 0:
            if lanes != entry:
                self.branch = trace.Branch(self.here(node), entry, lanes, self.branch)
            self.run_block(body)

    def _match(self, node: ast.Match) -> None:
        subject = self.evaluate(node.subject)
        branch, after = self.branch, 0
        rest = self.guard
        after_all: Guard = after
        for case in node.cases:
            if isinstance(case.pattern, ast.MatchValue):
                value: Value = self.compare(ast.Eq(), subject, self.evaluate(case.pattern.value))
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                value = Const(True)
                if case.pattern.name:
                    self._assign_name(case.pattern.name, subject)
            else:
                value = self.fresh(like=(subject,))
            doubt = self.unknown_condition(value)
            if doubt is not None:
                with self.doubting(doubt, origin_of(value)):
                    self.run_block(case.body)
                continue
            holds = self.truth(value)
            self.remember(node, node.subject, holds, subject)
            entry = rest
            self._arm(case.pattern, case.body, entry, self.decisions.both(rest, holds))
            after_all = self.decisions.either(after_all, self.guard)
            self.branch = branch
            rest = self.decisions.minus(rest, holds)
        self.guard = self.decisions.either(after_all, rest)

    # Attempts

    def _roughly(self, node: ast.Try) -> None:
        """An attempt in code that does not communicate."""
        self.run_block(node.body)
        for handler in node.handlers:
            if handler.name:
                self._assign_name(
                    handler.name, self.fresh(Kind.DATA, self.origin(handler, "error"), handler.name)
                )
            with self.doubting(Kind.UNKNOWN, None):
                self.run_block(handler.body)
        self.run_block(node.orelse)
        self.run_block(node.finalbody)

    def _try(self, node: ast.Try) -> None:
        if self.frame.rough:
            self._roughly(node)
            return
        entry, branch = self.guard, self.branch
        attempt = trace.Attempt(self.here(node), self.absolute, branch)
        self.items.append(attempt)
        outer = self.items
        names = [_names(h.type) for h in node.handlers]
        catcher = Catcher(tuple(n for types in names for n in types) if all(names) else ())
        if node.handlers:
            self.catchers.append(catcher)
        self.items = attempt.items
        self.run_block(node.body)
        if node.handlers:
            self.catchers.pop()
        if node.orelse and self.guard != 0:
            self.run_block(node.orelse)
        self.items = outer
        through, after = self.guard, 0
        after_all: Guard = after
        for handler, types in zip(node.handlers, names, strict=True):
            met = self._met(node, handler, types)
            through = self.decisions.minus(through, met)
            lanes = self.decisions.either(catcher.raised, self.decisions.both(entry, met))
            outer_ended, self.ended = self.ended, 0
            attempt.handlers.append(self._handler(handler, types, entry, lanes))
            through = self.decisions.either(through, self.ended)
            self.ended = outer_ended
            after_all = self.decisions.either(after_all, self.guard)
            self.branch = branch
        self.guard = self.decisions.either(through, after_all)
        after_all = self.guard
        if node.finalbody:
            # What leaves the body still runs its end.
            self.guard = entry
            self.run_block(node.finalbody)
            self.guard = self.decisions.both(after_all, self.guard)

    def _met(self, node: ast.Try, handler: ast.ExceptHandler, types: tuple[str, ...]) -> Guard:
        """The lanes on which the body may have met an error of this handler."""
        uniform = bool(types) and all(t in _SAME_EVERYWHERE for t in types)
        alike = _asks_environment(node.body) or _asks_all(node.body)
        kind = Kind.UNIFORM if uniform else Kind.UNKNOWN if alike else Kind.DATA
        return self.decisions.symbol(
            ("error", handler, self.site), kind, self.origin(handler, "error"), "error"
        )

    def _handler(
        self, handler: ast.ExceptHandler, types: tuple[str, ...], entry: Guard, lanes: Guard
    ) -> trace.Handler:
        """Runs an except clause."""
        found = trace.Handler(handler, types)
        outer, self.items = self.items, found.items
        self.guard = lanes
        self.branch = trace.Branch(self.here(handler), entry, lanes, self.branch)
        if handler.name:
            origin = self.origin(handler, "error")
            self._assign_name(handler.name, self.fresh(Kind.DATA, origin, handler.name))
        self.run_block(handler.body)
        found.fell = self.absolute
        self.items = outer
        return found

    # Contexts

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        self.enter(node, list(node.items), lambda: self.run_block(node.body))

    def enter(self, node: ast.AST, managers: list[ast.withitem], body: Callable[[], None]) -> None:
        """Runs `body` inside the context managers."""
        if not managers:
            body()
            return
        item, rest = managers[0], managers[1:]
        self.enter_value(
            self.evaluate(item.context_expr), item.optional_vars, node, lambda: self.enter(node, rest, body)
        )

    def enter_value(
        self, manager: Value, target: ast.expr | None, node: ast.AST, body: Callable[[], None]
    ) -> None:
        """Runs `body` inside a context manager."""
        manager = self.settle(manager)
        if type(manager) is Either:
            symbol = self.decisions.choice(manager.symbol, ALL, 0)
            for part, lanes in ((manager.high, symbol), (manager.low, self.decisions.minus(ALL, symbol))):
                with self.under(self.decisions.both(self.guard, lanes)):
                    if self.guard != 0:
                        self.enter_value(part, target, node, body)
            return
        if type(manager) is GeneratorValue:

            def at_yield(value: Value) -> None:
                if target is not None:
                    self.assign(target, value)
                body()

            self.run_generator(manager, node, at_yield)
            return
        self.enter_object(manager, target, node, body)

    def enter_object(
        self, manager: Value, target: ast.expr | None, node: ast.AST, body: Callable[[], None]
    ) -> None:
        """Runs `body` inside an object that is a context manager."""
        raise NotImplementedError

    # Definitions

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._assign_name(node.name, self.define_function(node))

    def _class(self, node: ast.ClassDef) -> None:
        home = self.frame.home
        closure = None if self.frame.scope.names is home.names else self.frame.scope
        cls = ClassValue(node, home, closure)
        self._assign_name(node.name, cls)
        self.define_class(cls)

    def define_class(self, cls: ClassValue) -> None:
        """Fills a class with its methods and fields."""
        raise NotImplementedError

    def _global(self, node: ast.Global) -> None:
        self.frame.scope.declared_global.update(node.names)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            outer = self.frame.scope.outer
            while outer is not None and name not in outer.names:
                outer = outer.outer
            if outer is not None:
                self.frame.scope.nonlocals[name] = outer


def _asks_environment(body: list[ast.stmt]) -> bool:
    """True for statements that only read variables of the environment: a launcher sets them for all ranks or none."""
    called = [
        ast.unparse(n.func) for statement in body for n in syntax.walk(statement) if isinstance(n, ast.Call)
    ]
    return "environ" in "".join(map(ast.unparse, body)) and set(called) <= _READERS


def _asks_all(body: list[ast.stmt]) -> bool:
    """True for a monitored_barrier alone: it is there to fail, and fails on every rank."""
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "monitored_barrier"


def _names(node: ast.expr | None) -> tuple[str, ...]:
    """The last names of the exception types of a handler; empty for a bare except."""
    if node is None:
        return ()
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(p.attr if isinstance(p, ast.Attribute) else getattr(p, "id", "?") for p in parts)


_HANDLERS: dict[type[ast.stmt], Callable[[Any, Any], None]] = {
    ast.Expr: Statements._expression,
    ast.Assign: Statements._assignment,
    ast.AnnAssign: Statements._annotated,
    ast.AugAssign: Statements._augmented,
    ast.Return: Statements._return,
    ast.Break: Statements._break,
    ast.Continue: Statements._continue,
    ast.Raise: Statements._raise,
    ast.Assert: Statements._assert,
    ast.Delete: Statements._delete,
    ast.If: Statements._if,
    ast.Match: Statements._match,
    ast.For: Statements.run_for,
    ast.AsyncFor: Statements.run_for,
    ast.While: Statements.run_while,
    ast.Try: Statements._try,
    ast.With: Statements._with,
    ast.AsyncWith: Statements._with,
    ast.FunctionDef: Statements._function,
    ast.AsyncFunctionDef: Statements._function,
    ast.ClassDef: Statements._class,
    ast.Global: Statements._global,
    ast.Nonlocal: Statements._nonlocal,
    ast.Import: Statements._import,
    ast.ImportFrom: Statements._import_from,
}
