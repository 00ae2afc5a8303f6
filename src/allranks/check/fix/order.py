"""Mends of order: statements that are added, moved or taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
from libcst import matchers as m

from . import mends
from .file import File, Statement, called_expression, dotted, last_name, statement_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...findings import Finding


@mends("epoch-not-set")
def set_epoch(file: File, finding: Finding) -> cst.Module | None:
    """`loader.sampler.set_epoch(epoch)` as the first statement of the loop over epochs.

    Declines unless the loop over the loader stands in that of the epochs, in one function, and the loader has a
    plain name that the loop over the epochs does not bind.
    """
    loop = file.statement(_line(finding))
    if not isinstance(loop, cst.For):
        return None
    loader = _iterated(loop.iter)
    outer = file.around(loop, cst.For)
    if not loader or outer is None or file.function(outer) is not file.function(loop):
        return None
    if not isinstance(outer.target, cst.Name) or not m.matches(outer.iter, m.Call(func=m.Name("range"))):
        return None
    bound = {dotted(target.target) for target in file.nodes(cst.AssignTarget, outer)}
    if loader in bound or not isinstance(outer.body, cst.IndentedBlock):
        return None
    first = statement_of(f"{loader}.sampler.set_epoch({outer.target.value})")
    return file.with_block(outer.body, [first, *outer.body.body])


@mends("clip-scaled")
def unscale(file: File, finding: Finding) -> cst.Module | None:
    """`scaler.unscale_(optimizer)` before the clipping; the two are those of the next `scaler.step(optimizer)`."""
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    if statement is None or found is None:
        return None
    block, body, index = found
    for later in body[index + 1 :]:
        call = called_expression(later)
        if call is None or last_name(call.func) != "step" or len(call.args) != 1:
            continue
        assert isinstance(call.func, cst.Attribute)
        scaler, optimizer = dotted(call.func.value), dotted(call.args[0].value)
        if not scaler or not optimizer:
            return None
        rest = [s for s in body[index:] if not _is_call(s, f"{scaler}.unscale_")]
        new = statement_of(f"{scaler}.unscale_({optimizer})").with_changes(
            leading_lines=statement.leading_lines
        )
        rest[0] = rest[0].with_changes(leading_lines=())
        return file.with_block(block, [*body[:index], new, *rest])
    return None


@mends("gradients-cleared")
def clear_after_step(file: File, finding: Finding) -> cst.Module | None:
    """A `zero_grad` between backward and step moves behind the step; one that is missing is added there."""
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    call = called_expression(statement) if statement is not None else None
    if statement is None or found is None or call is None or not isinstance(call.func, cst.Attribute):
        return None
    block, body, index = found
    if last_name(call.func) == "step":
        optimizer = dotted(call.func.value)
        if not optimizer or call.args:
            return None
        new = statement_of(f"{optimizer}.zero_grad()")
        return file.with_block(block, [*body[: index + 1], new, *body[index + 1 :]])
    if last_name(call.func) != "zero_grad":
        return None
    for later in range(index + 1, len(body)):
        step = called_expression(body[later])
        if step is not None and last_name(step.func) == "step" and isinstance(step.func, cst.Attribute):
            moved = [*body[:index], *body[index + 1 : later + 1], statement, *body[later + 1 :]]
            return file.with_block(block, moved)
    return None


@mends("process-group-not-destroyed")
def destroy(file: File, finding: Finding) -> cst.Module | None:
    """`dist.destroy_process_group()` at the end of the script, or of the function that makes the group and trains.

    Declines when the function returns something or leaves early, or only sets up the group: it may be of use to
    whoever called it.
    """
    statement = file.statement(_line(finding))
    dist = file.called("torch.distributed")
    found = file.block(statement) if statement is not None else None
    if statement is None or found is None or dist is None:
        return None
    block, function = found[0], file.function(statement)
    new = statement_of(f"{dist}.destroy_process_group()")
    if function is None:
        return file.with_block(block, [*found[1], new]) if _is_script(file, block) else None
    if not isinstance(function.body, cst.IndentedBlock) or file.nodes(cst.Return, function.body):
        return None
    loops = any(isinstance(s, cst.For | cst.While) for s in file.statements if file.function(s) is function)
    if not loops and not _is_all(file, function):
        return None
    return file.with_block(function.body, [*function.body.body, new])


def _is_script(file: File, block: cst.CSTNode) -> bool:
    """True for the top level of a file, or what it does as `__main__`."""
    parent = next(file.parents(block), None)
    main = isinstance(parent, cst.If) and "__name__" in file.code(parent.test) and parent in file.module.body
    return block is file.module or main


def _is_all(file: File, function: cst.FunctionDef) -> bool:
    """True for a function that is all that the script calls."""
    called = [
        call
        for s in file.statements
        if file.function(s) is None and (call := called_expression(s)) is not None
    ]
    return len(called) == 1 and dotted(called[0].func) == function.name.value


@mends("needless-barrier")
def drop(file: File, finding: Finding) -> cst.Module | None:
    """The barrier goes; a block that would be empty keeps a `pass`."""
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    if statement is None or found is None or called_expression(statement) is None:
        return None
    block, body, index = found
    rest = [*body[:index], *body[index + 1 :]]
    return file.with_block(block, rest or [statement_of("pass")])


@mends("sync-batch-norm-misplaced", "moved-after-wrap")
def before_wrap(file: File, finding: Finding) -> cst.Module | None:
    """What changes a model behind `model = DDP(model)` goes before it: `model = model.to(device)`. Of a model that
    has another name inside, it goes into the call: `model = DDP(net); model.double()` -> `DDP(net.double())`.

    Declines unless both stand in one block, and nothing between them binds what the change uses.
    """
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    change = _change(statement) if statement is not None else None
    if statement is None or found is None or change is None:
        return None
    block, body, index = found
    name, value = change
    at = max((i for i, s in enumerate(body[:index]) if _rebound(s, anything=True) == name), default=-1)
    wrap = body[at]
    calls = (
        [call for call in file.nodes(cst.Call, wrap) if last_name(call.func) in _WRAPPERS] if at >= 0 else []
    )
    between = [*body[at + 1 : index]]
    if len(calls) != 1 or not calls[0].args or _bound(file, between) & _names(file, value):
        return None
    if _rebound(wrap) == name and _rebound(statement) == name:
        return file.with_block(block, [*body[:at], statement, wrap, *between, *body[index + 1 :]])
    inner = calls[0].args[0]
    changed = inner.with_changes(value=_in_place_of(value, name, inner.value))
    call = calls[0].with_changes(args=[changed, *calls[0].args[1:]])
    new = cst.ensure_type(wrap.deep_replace(calls[0], call), cst.SimpleStatementLine)
    return file.with_block(block, [*body[:at], new, *between, *body[index + 1 :]])


_WRAPPERS = ("DDP", "DistributedDataParallel")


def _change(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """(name, expression) of `name = f(name)`, `name = name.f()` or `name.f()`."""
    name = _rebound(statement)
    if name is not None:
        assert isinstance(statement, cst.SimpleStatementLine)
        assert isinstance(statement.body[0], cst.Assign)
        return name, statement.body[0].value
    call = called_expression(statement)
    if call is None or not isinstance(call.func, cst.Attribute) or not dotted(call.func.value):
        return None
    return dotted(call.func.value), call


def _in_place_of(node: cst.BaseExpression, name: str, new: cst.BaseExpression) -> cst.BaseExpression:
    """`node` with `new` for the first `name` in it."""
    old = next(part for part in m.findall(node, m.Name() | m.Attribute()) if dotted(part) == name)  # type: ignore[arg-type]
    changed = node.deep_replace(old, new)
    assert isinstance(changed, cst.BaseExpression)
    return changed


def _bound(file: File, statements: Sequence[cst.CSTNode]) -> set[str]:
    """The names that statements bind."""
    targets = [target.target for s in statements for target in file.nodes(cst.AssignTarget, s)]
    return {name for target in targets for name in _names(file, target)}


def _names(file: File, node: cst.CSTNode) -> set[str]:
    return {name.value for name in file.nodes(cst.Name, node)}


@mends("optimizer-mismatch")
def optimizer_last(file: File, finding: Finding) -> cst.Module | None:
    """An optimizer made before the model is replaced moves behind the replacement (the first related place)."""
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    places = [
        p.line for p in finding.related if finding.location and p.path == finding.location.path and p.line
    ]
    if statement is None or found is None or not places:
        return None
    block, body, index = found
    target = _rebound(statement, anything=True)
    last = max((i for i, s in enumerate(body) if file.line(s) in places), default=-1)
    if target is None or last <= index:
        return None
    between = {name.value for s in body[index + 1 : last + 1] for name in file.nodes(cst.Name, s)}
    if target in between:
        return None
    return file.with_block(block, [*body[:index], *body[index + 1 : last + 1], statement, *body[last + 1 :]])


@mends("spawn-without-main-guard")
def guard_main(file: File, finding: Finding) -> cst.Module | None:
    """Everything from the statement that starts processes to the end goes under `if __name__ == "__main__":`."""
    statement = file.statement(_line(finding))
    top = (
        next((p for p in [statement, *file.parents(statement)] if p in file.module.body), None)
        if statement
        else None
    )
    if top is None:
        return None
    body: list[Statement] = list(file.module.body)
    index = body.index(top)  # type: ignore[arg-type]
    moved = body[index:]
    if any(isinstance(s, cst.FunctionDef | cst.ClassDef) for s in moved):
        return None
    first = moved[0]
    guarded = cst.If(
        cst.parse_expression('__name__ == "__main__"'),
        cst.IndentedBlock([first.with_changes(leading_lines=()), *moved[1:]]),
        leading_lines=first.leading_lines,
    )
    return file.module.with_changes(body=[*body[:index], guarded])


def _line(finding: Finding) -> int:
    assert finding.location is not None
    assert finding.location.line is not None
    return finding.location.line


def _iterated(node: cst.BaseExpression) -> str:
    """The dotted name that a loop goes over, through enumerate and tqdm."""
    if isinstance(node, cst.Call) and last_name(node.func) in ("enumerate", "tqdm") and node.args:
        return _iterated(node.args[0].value)
    return dotted(node)


def _is_call(statement: cst.CSTNode, name: str) -> bool:
    call = called_expression(statement)
    return call is not None and dotted(call.func) == name


def _rebound(statement: cst.CSTNode, *, anything: bool = False) -> str | None:
    """The name that `name = f(name)` binds; with `anything`, that any plain assignment binds."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    name = dotted(assign.targets[0].target)
    if anything:
        return name or None
    used = {node.value for node in m.findall(assign.value, m.Name())}  # type: ignore[attr-defined]
    return name if name and name in used else None
