"""Context managers that are objects: of libraries, of the program, and stacks of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from . import lore, trace
from .lanes import ALL, LOCAL_ZERO, RANK_ZERO
from .objects import Objects
from .values import (
    NONE,
    ClassValue,
    External,
    GeneratorValue,
    Instance,
    Items,
    Kind,
    Mixed,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_TAGS = frozenset(("no_grad", "no_sync", "autocast", "join", "accumulate"))
"""Contexts that change what is done inside; events remember them."""


class Contexts(Objects):
    """Runs with statements over objects."""

    def enter_object(
        self, manager: Value, target: ast.expr | None, node: ast.AST, body: Callable[[], None]
    ) -> None:
        """Runs `body` inside an object that is a context manager."""
        if type(manager) is Mixed:
            manager = manager.options[0]
        if type(manager) is External:
            row = lore.effect(manager.name)
            manager = self.perform(row, manager.name, NONE, [], {}, node) if row is not None else manager
        if type(manager) is Instance:
            if manager.cls is not None and self.method_of(manager.cls, "__enter__") is not None:
                self._enter_own(manager, target, node, body)
                return
            if manager.kind == "exit_stack":
                self._enter_stack(manager, target, node, body)
                return
            if manager.kind == "rank_first":
                self._enter_rank_first(manager, node, body)
                return
            if manager.kind == "suppress":
                self._enter_suppress(node, body)
                return
        if target is not None:
            self.assign(target, self._entered(manager))
        outer = self.within
        if type(manager) is Instance and manager.kind in _TAGS:
            self.within = (*outer, manager.kind)
        body()
        self.within = outer

    def _entered(self, manager: Value) -> Value:
        """What `as` binds."""
        if type(manager) is Instance:
            if manager.kind == "nullcontext":
                return manager.fields.get("enter_result", NONE)
            return manager
        return self.fresh(like=(manager,)) if type(manager) is Unknown else self.fresh(Kind.UNKNOWN)

    def _enter_own(
        self, manager: Instance, target: ast.expr | None, node: ast.AST, body: Callable[[], None]
    ) -> None:
        """An object whose class of the program has `__enter__` and `__exit__`."""
        assert isinstance(manager.cls, ClassValue)
        enter, leave = self.method_of(manager.cls, "__enter__"), self.method_of(manager.cls, "__exit__")
        assert enter is not None
        value = self.call_function(enter, [manager], {}, node)
        if target is not None:
            self.assign(target, value if type(value) is not Unknown else manager)
        body()
        if leave is not None and self.guard != 0:
            self.call_function(leave, [manager, NONE, NONE, NONE], {}, node)

    def _enter_rank_first(self, manager: Instance, node: ast.AST, body: Callable[[], None]) -> None:
        """accelerate's main_process_first and its like: the others wait at a barrier until the first is through."""
        first = LOCAL_ZERO if "local" in manager.name else RANK_ZERO
        branch = self.branch
        for lanes in (ALL & ~first, first):
            entry = self.guard
            active = self.decisions.both(entry, lanes)
            if active == 0:
                continue
            self.branch = trace.Branch(self.here(node), entry, active, branch)
            with self.under(active):
                if lanes != first:
                    self._barrier(node)
                body()
                if lanes == first:
                    self._barrier(node)
            self.branch = branch

    def _barrier(self, node: ast.AST) -> None:
        self.record("collective", "barrier", node, operation="barrier", communicates=2)

    def _enter_suppress(self, node: ast.AST, body: Callable[[], None]) -> None:
        """contextlib.suppress: an attempt whose handler does nothing."""
        attempt = trace.Attempt(self.here(node), self.absolute, self.branch)
        self.items.append(attempt)
        outer, self.items = self.items, attempt.items
        body()
        self.items = outer
        handler = ast.ExceptHandler(None, None, [])
        ast.copy_location(handler, node)
        attempt.handlers.append(trace.Handler(handler, ("Exception",), fell=attempt.guard))

    def _enter_stack(
        self, manager: Instance, target: ast.expr | None, node: ast.AST, body: Callable[[], None]
    ) -> None:
        """contextlib.ExitStack: what was entered inside ends with it, last first."""
        outer = self.within
        entered = manager.fields["entered"] = Items("list", [])
        if target is not None:
            self.assign(target, manager)
        body()
        for value in reversed(entered.items):
            if type(value) is GeneratorValue and self.guard != 0:
                self._second_half(value, node)
        self.within = outer

    def enter_in_stack(self, stack: Value, manager: Value, node: ast.AST) -> Value:
        """ExitStack.enter_context: the first half of a context manager now, the second when the stack ends."""
        manager = self.settle(manager)
        if type(manager) is GeneratorValue:
            entered: list[Value] = []
            held = self.guard

            def at_yield(value: Value) -> None:
                nonlocal held
                entered.append(value)
                held, self.guard = self.guard, 0

            self.run_generator(manager, node, at_yield)
            self.guard = self.decisions.either(self.guard, held)
            if type(stack) is Instance and type(stack.fields.get("entered")) is Items:
                stack.fields["entered"].items.append(manager)  # type: ignore[attr-defined]
            return entered[0] if entered else NONE
        if type(manager) is Instance and manager.kind in _TAGS:
            self.within = (*self.within, manager.kind)
        return self._entered(manager)

    def _second_half(self, manager: GeneratorValue, node: ast.AST) -> None:
        """Runs what a generator does after its yield."""
        kept, self.items = self.items, []

        def at_yield(_: Value) -> None:
            self.items = kept

        self.run_generator(manager, node, at_yield)
        self.items = kept
