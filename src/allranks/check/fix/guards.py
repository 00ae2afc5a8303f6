"""Mends that let rank 0 alone do something: writing, saving, printing, drawing a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from . import mends
from .file import File, Statement, argument, called_expression, with_argument

if TYPE_CHECKING:
    from ...findings import Finding


@mends("checkpoint-race", "duplicate-writer", "output-from-every-rank")
def only_on_rank_0(file: File, finding: Finding) -> cst.Module | None:
    """The statement is put under `if dist.get_rank() == 0:`; a progress bar gets `disable=`.

    Declines when what the statement binds is used elsewhere, as it would be missing on the other ranks.
    """
    assert finding.location is not None
    assert finding.location.line is not None
    test = _on_rank_0(file)
    if test is None:
        return None
    for call in file.calls(finding.location.line, "tqdm", "trange"):
        if argument(call, "disable") is None:
            return file.replaced(
                call, with_argument(call, "disable", f"not ({test})" if " " in test else test)
            )
    statement = file.statement(finding.location.line)
    if statement is None or not _alone(file, statement):
        return None
    found = file.block(statement)
    if found is None:
        return None
    block, body, index = found
    guarded = cst.If(
        cst.parse_expression(test),
        cst.IndentedBlock([statement.with_changes(leading_lines=())]),
        leading_lines=statement.leading_lines,
    )
    return file.with_block(block, [*body[:index], guarded, *body[index + 1 :]])


def _on_rank_0(file: File) -> str | None:
    """The test for rank 0, which holds too where there is no process group."""
    dist = file.called("torch.distributed")
    if dist is None:
        return None
    return f"not {dist}.is_initialized() or {dist}.get_rank() == 0"


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
