"""Mends of order: statements that are added, moved or taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
from libcst import matchers as m

from . import mends
from .file import File, Statement, called_expression, dotted, last_name, statement_of

if TYPE_CHECKING:
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
    """`dist.destroy_process_group()` at the end of the function that makes the group and trains with it.

    Declines when the function returns something or leaves early: the group may be of use to whoever called it.
    """
    statement = file.statement(_line(finding))
    dist = file.called("torch.distributed")
    function = file.function(statement) if statement is not None else None
    if statement is None or function is None or dist is None:
        return None
    if not isinstance(function.body, cst.IndentedBlock) or file.nodes(cst.Return, function.body):
        return None
    if not any(isinstance(s, cst.For | cst.While) for s in file.statements if file.function(s) is function):
        return None
    new = statement_of(f"{dist}.destroy_process_group()")
    return file.with_block(function.body, [*function.body.body, new])


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
    """`model = DDP(model)` and the `model = ...(model)` that follows it change places."""
    statement = file.statement(_line(finding))
    found = file.block(statement) if statement is not None else None
    if statement is None or found is None:
        return None
    block, body, index = found
    name = _rebound(statement)
    if name is None or index == 0 or _rebound(body[index - 1]) != name:
        return None
    wrap = body[index - 1]
    calls = [last_name(call.func) for call in file.nodes(cst.Call, wrap)]
    if not {"DDP", "DistributedDataParallel"} & {*calls}:
        return None
    swapped = [*body[: index - 1], statement, wrap, *body[index + 1 :]]
    return file.with_block(block, swapped)


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
