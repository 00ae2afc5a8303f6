"""One parsed file for menders: statements by line, the block around them, names that stand for libraries."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import libcst as cst
from libcst import matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Node = TypeVar("Node", bound=cst.CSTNode)


class File:
    """The syntax tree of a text, formatting included. Raises libcst.ParserSyntaxError for what is no Python 3."""

    def __init__(self, text: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions: Any = wrapper.resolve(PositionProvider)
        self._parents: Any = wrapper.resolve(ParentNodeProvider)

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Where a node stands."""
        found: CodeRange = self._positions[node]
        return found

    def line(self, node: cst.CSTNode) -> int:
        """The 1-based line on which a node begins."""
        return int(self.position(node).start.line)

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.module.code_for_node(node).strip()

    # Going up

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What a node stands in, innermost first."""
        found = self._parents.get(node)
        while found is not None:
            yield found
            found = self._parents.get(found)

    def around(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The innermost node of `kind` around `node`."""
        return next((p for p in self.parents(node) if isinstance(p, kind)), None)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that a node stands in."""
        return self.around(node, cst.FunctionDef)

    # Going down

    @cached_property
    def statements(self) -> list[Statement]:
        """Every statement, in order."""
        found = m.findall(self.module, m.OneOf(m.SimpleStatementLine(), m.MatchIfTrue(_is_compound)))
        return sorted(found, key=self.line)  # type: ignore[arg-type]

    def statement(self, line: int) -> Statement | None:
        """The innermost statement that stands on `line`: begins on it, or else holds it."""
        best: Statement | None = None
        for found in self.statements:
            start, end = self.line(found), int(self.position(found).end.line)
            if start <= line <= end and (best is None or start >= self.line(best)):
                best = found
        return best

    def nodes(self, kind: type[Node], within: cst.CSTNode | None = None) -> list[Node]:
        """Every node of `kind` in `within` (the file when it is not given), in order."""
        found = m.findall(within or self.module, m.MatchIfTrue(lambda n: isinstance(n, kind)))
        return sorted(found, key=lambda n: (self.line(n), int(self.position(n).start.column)))  # type: ignore[arg-type]

    def calls(self, line: int, *names: str) -> list[cst.Call]:
        """The calls in the statement on `line` whose callee's last name is one of `names`; the nearest first."""
        statement = self.statement(line)
        if statement is None:
            return []
        found = [call for call in self.nodes(cst.Call, statement) if last_name(call.func) in names]
        return sorted(found, key=lambda call: abs(self.line(call) - line))

    # Blocks

    def block(self, statement: cst.CSTNode) -> tuple[cst.CSTNode, list[Statement], int] | None:
        """(block, its statements, the index of `statement` in it); None in a block on the line of its header."""
        parent = self._parents.get(statement)
        if not isinstance(parent, cst.IndentedBlock | cst.Module):
            return None
        body = list(parent.body)
        return parent, body, next(i for i, s in enumerate(body) if s is statement)  # type: ignore[return-value]

    def put(self, statement: Statement, new: Sequence[Statement]) -> cst.Module | None:
        """The module with `new` in the place of a statement; None in a block on the line of its header."""
        found = self.block(statement)
        if found is None:
            return None
        block, body, index = found
        return self.with_block(block, [*body[:index], *new, *body[index + 1 :]])

    def with_block(self, block: cst.CSTNode, body: Sequence[Any]) -> cst.Module:
        """The module with another body for `block`."""
        if block is self.module:
            return self.module.with_changes(body=body)
        return self.replaced(block, block.with_changes(body=body))

    def replaced(self, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
        """The module with `new` for `old`."""
        changed = self.module.deep_replace(old, new)
        assert isinstance(changed, cst.Module)
        return changed

    # Names

    @cached_property
    def imports(self) -> dict[str, str]:
        """What the imports at the top level bind: name here -> dotted name."""
        found: dict[str, str] = {}
        for node in self.nodes(cst.Import):
            for alias in node.names:
                name = dotted(alias.name)
                if alias.asname is not None:
                    found[self.code(alias.asname.name)] = name
                else:
                    found[name] = name
        for source in self.nodes(cst.ImportFrom):
            if source.module is None or source.relative or isinstance(source.names, cst.ImportStar):
                continue
            for alias in source.names:
                bound = self.code(alias.asname.name) if alias.asname is not None else dotted(alias.name)
                found[bound] = f"{dotted(source.module)}.{dotted(alias.name)}"
        return found

    def called(self, name: str) -> str | None:
        """What the dotted name `name` is called here; None when no import reaches it."""
        best: str | None = None
        for bound, meant in self.imports.items():
            if name == meant or name.startswith(f"{meant}."):
                here = bound + name[len(meant) :]
                if best is None or len(here) < len(best):
                    best = here
        return best


def importing(module: cst.Module, home: str, name: str = "") -> cst.Module:
    """`module` with `from home import name`, or `import home`, in the order in which imports are sorted."""
    body = list(module.body)
    for index, statement in enumerate(body):
        if not name or not isinstance(statement, cst.SimpleStatementLine) or _imported(statement) != home:
            continue
        found = statement.body[0]
        if isinstance(found, cst.ImportFrom) and not isinstance(found.names, cst.ImportStar):
            more = found.with_changes(names=_with_alias(list(found.names), name))
            body[index] = statement.with_changes(body=[more, *statement.body[1:]])
            return module.with_changes(body=body)
    at = next((i for i, statement in enumerate(body) if _imported(statement) not in ("", "__future__")), 0)
    first = at
    while at < len(body) and "" < _imported(body[at]) < home:
        at += 1
    new = cst.parse_statement(f"from {home} import {name}" if name else f"import {home}")
    assert isinstance(new, cst.SimpleStatementLine)
    if at == first and body:
        new = new.with_changes(leading_lines=body[at].leading_lines)
        apart = [] if _imported(body[at]).partition(".")[0] in sys.stdlib_module_names else [cst.EmptyLine()]
        body[at] = body[at].with_changes(leading_lines=apart)
    return module.with_changes(body=[*body[:at], new, *body[at:]])


def _imported(statement: cst.CSTNode) -> str:
    """The module that a statement imports, or imports from; empty for other statements."""
    found = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(found, cst.Import):
        return dotted(found.names[0].name)
    return dotted(found.module) if isinstance(found, cst.ImportFrom) else ""


def _with_alias(names: list[cst.ImportAlias], name: str) -> list[cst.ImportAlias]:
    """The names of an import with one more, before the first that sorts behind it."""
    at = next((i for i, alias in enumerate(names) if dotted(alias.name) > name), len(names))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if len(names) > 1 and isinstance(names[0].comma, cst.Comma):
        comma = names[0].comma
    if at < len(names):
        return [*names[:at], cst.ImportAlias(cst.Name(name), comma=comma), *names[at:]]
    last = names[-1]
    return [*names[:-1], last.with_changes(comma=comma), cst.ImportAlias(cst.Name(name), comma=last.comma)]


def _is_compound(node: object) -> bool:
    return isinstance(node, cst.BaseCompoundStatement)


def dotted(node: cst.BaseExpression | cst.BaseAssignTargetExpression | None) -> str:
    """ "a.b.c" of a name or attribute chain; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr.value}" if inner else ""
    return ""


def last_name(node: cst.BaseExpression) -> str:
    """The last part of a callee's name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """The argument `name` of a call, or the one at `position`."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    if position is not None and position < len(call.args):
        arg = call.args[position]
        if arg.keyword is None and not arg.star:
            return arg
    return None


def with_argument(call: cst.Call, name: str, value: str) -> cst.Call:
    """`call` with the keyword argument `name` set to the expression `value`, in the layout that the call has."""
    new = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    args = list(call.args)
    for index, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[index] = arg.with_changes(value=new.value)
            return call.with_changes(args=args)
    if args:
        last = args[-1]
        before = args[-2].comma if len(args) > 1 else None
        trailing = last.comma
        args[-1] = last.with_changes(comma=_comma(before, trailing))
        new = new.with_changes(comma=trailing, whitespace_after_arg=last.whitespace_after_arg)
        if not isinstance(trailing, cst.Comma):
            args[-1] = args[-1].with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def _comma(before: object, trailing: object) -> cst.Comma:
    """The comma between two arguments, as the call writes them."""
    if isinstance(before, cst.Comma):
        return before
    if isinstance(trailing, cst.Comma) and isinstance(trailing.whitespace_after, cst.ParenthesizedWhitespace):
        return trailing
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def statement_of(code: str) -> cst.SimpleStatementLine:
    """One simple statement."""
    found = cst.parse_statement(code)
    assert isinstance(found, cst.SimpleStatementLine)
    return found


def simple(statement: cst.CSTNode, test: Callable[[cst.BaseSmallStatement], bool]) -> bool:
    """True for a line of one small statement that passes `test`."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and test(statement.body[0])
    )


def called_expression(statement: cst.CSTNode) -> cst.Call | None:
    """The call that a statement is made of."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            return small.value
    return None
