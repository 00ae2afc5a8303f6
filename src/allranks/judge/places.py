"""Where a line stands inside its function: the control statements around it, and the ways out of them.

Works on one parsed file at a time. A `Control` is a compound statement together with the arm of it that holds
the line; an `Escape` is a statement that leaves a loop turn, a loop or the function before the line is reached.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..world import Frame

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
_ARMS = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True)
class Control:
    """A compound statement around a line; `arm` is "body", "orelse", "finalbody", "handler" or "case"."""

    node: ast.stmt
    arm: str
    handler: ast.ExceptHandler | None = None

    @property
    def line(self) -> int:
        """The line at which the statement begins."""
        return self.node.lineno

    @property
    def is_loop(self) -> bool:
        """True for the body of for and while."""
        return isinstance(self.node, ast.For | ast.AsyncFor | ast.While) and self.arm == "body"

    @property
    def is_branch(self) -> bool:
        """True for if/else and match."""
        return isinstance(self.node, ast.If | ast.Match)

    @property
    def guards(self) -> bool:
        """True inside the body of a try that has a handler which does not raise again: an error there is swallowed."""
        return (
            isinstance(self.node, ast.Try) and self.arm == "body" and any(map(swallows, self.node.handlers))
        )


@dataclass(frozen=True, slots=True)
class Escape:
    """A way past a line: `node` leaves, `branch` is the innermost if that decides it (None: always)."""

    node: ast.stmt
    branch: ast.If | None
    kind: str
    """"continue", "break", "return", "raise" or "exit"."""
    handler: ast.ExceptHandler | None = None
    """The except clause in which it stands, if it stands in one."""


def function_of(tree: ast.Module, frame: Frame) -> Function:
    """The function that `frame` runs, found by its first line (decorators included) or else by the line it is at."""
    best: Function = tree
    if frame.function == "<module>":
        return best
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if frame.first_line and frame.first_line in (first, node.lineno) and _holds(node, frame.line, first):
            return node
        if _holds(node, frame.line, first) and getattr(node, "name", "<lambda>") == frame.function:
            best = node
    return best


def _holds(
    node: ast.stmt | ast.expr | ast.ExceptHandler | ast.match_case, line: int, first: int | None = None
) -> bool:
    begin = first if first is not None else getattr(node, "lineno", 0)
    return begin <= line <= (getattr(node, "end_lineno", None) or begin)


def chain(function: Function, line: int) -> list[Control]:
    """The control statements around `line` inside `function`, outermost first. The header of a statement (a loop's
    iterable, a branch's test) is not inside it."""
    found: list[Control] = []
    body: list[ast.stmt] = [] if isinstance(function, ast.Lambda) else function.body
    while True:
        statement = next((s for s in body if _holds(s, line)), None)
        if statement is None or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return found
        inside = _inside(statement, line)
        if inside is None:
            return found
        control, body = inside
        found.append(control)


def _inside(statement: ast.stmt, line: int) -> tuple[Control, list[ast.stmt]] | None:
    for arm in _ARMS:
        block: list[ast.stmt] | None = getattr(statement, arm, None)
        if isinstance(block, list) and block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
            return Control(statement, arm), block
    for handler in getattr(statement, "handlers", []):
        if _holds(handler, line):
            return Control(statement, "handler", handler), handler.body
    for case in getattr(statement, "cases", []):
        if case.body[0].lineno <= line <= (case.body[-1].end_lineno or 0):
            return Control(statement, "case"), case.body
    return None


def swallows(handler: ast.ExceptHandler) -> bool:
    """True when the handler can end without raising: the error goes no further."""
    last = handler.body[-1]
    return not isinstance(last, ast.Raise) and not _is_exit(last)


def statement_at(function: Function, line: int) -> ast.stmt | None:
    """The innermost statement of `function` that holds `line` (for a compound statement's header, that statement)."""
    controls = chain(function, line)
    if controls:
        block = _block(controls[-1])
    else:
        block = [] if isinstance(function, ast.Lambda) else function.body
    return next((s for s in block if _holds(s, line)), None)


def _block(control: Control) -> list[ast.stmt]:
    if control.handler is not None:
        return control.handler.body
    block = getattr(control.node, control.arm, [])
    return block if isinstance(block, list) else []


def escapes(function: Function, line: int) -> list[Escape]:
    """The ways in which a rank can get past `line` without running it: conditional exits that stand before it in an
    enclosing block, and anywhere in an enclosing loop (a break at the end of a turn ends the later turns too)."""
    found: list[Escape] = []
    controls = chain(function, line)
    blocks = [[] if isinstance(function, ast.Lambda) else function.body, *map(_block, controls)]
    loops = [_block(c) for c in controls if c.is_loop]
    for block in blocks:
        for statement in block:
            if statement.lineno > line or _holds(statement, line):
                break
            found += _leaving(statement, within_loop=bool(loops))
    for loop in loops:
        found += [e for e in _leaving_block(loop, True) if e.kind != "continue" and e not in found]
    return found


def _leaving_block(block: list[ast.stmt], within_loop: bool) -> Iterator[Escape]:
    for statement in block:
        yield from _leaving(statement, within_loop=within_loop)


def _leaving(
    statement: ast.stmt,
    *,
    within_loop: bool,
    branch: ast.If | None = None,
    handler: ast.ExceptHandler | None = None,
) -> Iterator[Escape]:
    """Every statement below `statement` that leaves; a break or continue counts only for the loop outside it."""
    kind = _exit_kind(statement)
    if kind is not None:
        if within_loop or kind not in ("break", "continue"):
            yield Escape(statement, branch, kind, handler)
        return
    if isinstance(statement, ast.If):
        branch = statement
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        within_loop = False
    elif not isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
        return
    for name in _ARMS:
        for child in getattr(statement, name, []):
            yield from _leaving(child, within_loop=within_loop, branch=branch, handler=handler)
    for clause in getattr(statement, "handlers", []):
        for child in clause.body:
            yield from _leaving(child, within_loop=within_loop, branch=None, handler=clause)


def _exit_kind(statement: ast.stmt) -> str | None:
    for kind, types in (
        ("return", ast.Return),
        ("raise", ast.Raise),
        ("break", ast.Break),
        ("continue", ast.Continue),
    ):
        if isinstance(statement, types):
            return kind
    return "exit" if _is_exit(statement) else None


def tries(function: Function, line: int) -> list[ast.Try]:
    """The try statements that `line` comes after, or shares a loop with, and whose handlers swallow: what fails in
    them can change whether `line` is reached."""
    controls = chain(function, line)
    loop = next((c.node for c in controls if c.is_loop), function)
    inside = [node for node in ast.walk(loop) if isinstance(node, ast.Try)]
    return [node for node in inside if any(map(swallows, node.handlers))]


def _is_exit(statement: ast.stmt) -> bool:
    """sys.exit(), exit(), quit(), os._exit()."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    return ast.unparse(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit", "os.abort")


def is_step_loop(node: ast.stmt) -> bool:
    """True when a loop's turns are steps of training or evaluation: its body runs backward, an optimizer's step, or
    it goes over something named like a loader or batches."""
    text = ast.unparse(node.iter) if isinstance(node, ast.For | ast.AsyncFor) else ""
    if any(word in text.lower() for word in ("loader", "batch", "dataset", "epoch", "steps", "iter(")):
        return True
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and child.func.attr in ("backward", "step", "zero_grad")
        ):
            return True
    return False


def is_wrapper(tree: ast.Module, function: Function, line: int) -> bool:
    """True when `line` stands in a function made inside another one and calls a parameter of that outer function:
    the body of a decorator, which decides whether the decorated function runs."""
    outer = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node is not function
            and any(child is function for child in ast.walk(node))
        ),
        None,
    )
    statement = statement_at(function, line)
    if outer is None or statement is None:
        return False
    parameters = {a.arg for a in (*outer.args.posonlyargs, *outer.args.args, *outer.args.kwonlyargs)}
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters
        for node in ast.walk(statement)
    )


def collective_texts(block: list[ast.stmt], names: frozenset[str]) -> list[str]:
    """The source text of the calls in `block`, in order, whose last name is one of `names`."""
    calls = [node for statement in block for node in ast.walk(statement) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    return [ast.unparse(c) for c in calls if ast.unparse(c.func).rpartition(".")[2] in names]
