"""Mends that let rank 0 alone do something: writing, saving, printing, drawing a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from . import mends
from .file import File, Statement, argument, called_expression, dotted, importing, statement_of, with_argument

if TYPE_CHECKING:
    from ...findings import Finding


@mends("checkpoint-race", "duplicate-writer", "output-from-every-rank")
def only_on_rank_0(file: File, finding: Finding) -> cst.Module | None:
    """The statement is put under `if dist.get_rank() == 0:`; a progress bar gets `disable=`, a run of W&B a mode,
    a file that stays open over other work becomes `os.devnull` elsewhere, and what is read waits for a barrier.

    Declines when what the statement binds is used elsewhere, as it would be missing on the other ranks.
    """
    assert finding.location is not None
    assert finding.location.line is not None
    line = finding.location.line
    statement = file.statement(line)
    dist = file.called("torch.distributed")
    if statement is None or dist is None:
        return None
    test, opposite = _on_rank_0(file, statement, dist)
    for call in file.calls(line, "tqdm", "trange"):
        if argument(call, "disable") is None:
            return file.replaced(call, with_argument(call, "disable", opposite))
    for call in file.calls(line, "init"):
        if dotted(call.func) == file.called("wandb.init") and argument(call, "mode") is None:
            return file.replaced(call, with_argument(call, "mode", f'"online" if {test} else "disabled"'))
    if finding.fault == "checkpoint-race" and file.calls(line, "load"):
        return file.put(statement, [statement_of(f"{dist}.barrier()"), statement])
    if not _alone(file, statement) or _starts_a_run(file, statement):
        return None
    if isinstance(statement, cst.With) and not _only_writes(statement):
        return _nowhere_else(file, statement, test)
    guarded = cst.If(
        cst.parse_expression(test),
        cst.IndentedBlock([statement.with_changes(leading_lines=())]),
        leading_lines=statement.leading_lines,
    )
    return file.put(statement, [guarded])


def _on_rank_0(file: File, statement: Statement, dist: str) -> tuple[str, str]:
    """The test for rank 0 and its opposite, which hold too where there may be no process group."""
    block = file.block(statement)
    inner: cst.CSTNode = statement
    while block is not None:
        if any(_initialises(file, earlier) for earlier in block[1][: block[2]]):
            return f"{dist}.get_rank() == 0", f"{dist}.get_rank() != 0"
        system = file.called("os.environ")
        if system is not None and any(_launched(file, later) for later in block[1][block[2] :]):
            rank = f'int({system}.get("RANK", 0))'
            return f"{rank} == 0", f"{rank} != 0"
        # The statement of the same function around this block.
        inner = next(
            (p for p in file.parents(inner) if isinstance(p, cst.BaseCompoundStatement)), file.module
        )
        block = None if isinstance(inner, cst.FunctionDef | cst.ClassDef | cst.Module) else file.block(inner)
    return (
        f"not {dist}.is_initialized() or {dist}.get_rank() == 0",
        f"{dist}.is_initialized() and {dist}.get_rank() != 0",
    )


def _initialises(file: File, statement: Statement) -> bool:
    call = called_expression(statement)
    return call is not None and dotted(call.func) == file.called("torch.distributed.init_process_group")


def _launched(file: File, statement: Statement) -> bool:
    """The same by the environment of a launcher: spawned processes have no RANK in theirs."""
    call = called_expression(statement)
    return _initialises(file, statement) and call is not None and argument(call, "rank") is None


def _starts_a_run(file: File, statement: Statement) -> bool:
    """True for what starts something in a library that later calls count on: `mlflow.start_run()`."""
    call = called_expression(statement)
    root = dotted(call.func).partition(".")[0] if call is not None else ""
    return root in ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "trackio", "aim")


def _only_writes(statement: cst.With) -> bool:
    """True for a block of plain calls, which only rank 0 need make."""
    return isinstance(statement.body, cst.IndentedBlock) and all(
        called_expression(inner) is not None for inner in statement.body.body
    )


def _nowhere_else(file: File, statement: cst.With, test: str) -> cst.Module | None:
    """`open("x", "w")` -> `open("x" if dist.get_rank() == 0 else os.devnull, "w")`: the block runs on all ranks."""
    opened = statement.items[0].item if len(statement.items) == 1 else None
    if not isinstance(opened, cst.Call) or dotted(opened.func) != "open" or not opened.args:
        return None
    system = file.called("os.devnull")
    path = opened.args[0]
    chosen = cst.parse_expression(f"{file.code(path.value)} if {test} else {system or 'os.devnull'}")
    changed = file.replaced(
        opened, opened.with_changes(args=[path.with_changes(value=chosen), *opened.args[1:]])
    )
    return changed if system is not None else importing(changed, "os")


def _alone(file: File, statement: Statement) -> bool:
    """True for a statement that binds nothing that is used after it."""
    if called_expression(statement) is not None:
        return True
    if not isinstance(statement, cst.With):
        return False
    bound = {
        name.value for item in statement.items if item.asname for name in file.nodes(cst.Name, item.asname)
    }
    for target in file.nodes(cst.AssignTarget, statement):
        bound |= {name.value for name in file.nodes(cst.Name, target)}
    function = file.function(statement) or file.module
    end = file.position(statement).end.line
    after = {name.value for name in file.nodes(cst.Name, function) if file.line(name) > end}
    return not bound & after and not any(True for _ in file.nodes(cst.Return, statement))
