"""Calls that pair by luck: the same operation on both sides, made by different statements.

That is right where two arms of a branch make the same call (rank 0 broadcasts what the others receive), and wrong
where one side skipped a call or swapped two: PyTorch computes garbage and says nothing. What comes after tells.
"""

from __future__ import annotations

import ast
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..source.files import read
from . import places

if TYPE_CHECKING:
    from ..world import CallKind, History, World
    from .compare import Deviation

_FOLLOWING = 3
"""Calls that must match one position apart before a call counts as skipped; a repeated loop could fool fewer."""

_OPERATIONS = frozenset(
    {
        "all_reduce", "broadcast", "barrier", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
        "all_to_all", "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
        "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    }
)  # fmt: skip


class Luck(Enum):
    """What a difference of statements alone means."""

    HARMLESS = auto()
    SKIPPED = auto()
    """One side's calls are the other's, one position later."""
    SWAPPED = auto()
    """Two calls are exchanged and those behind them match."""
    OPEN = auto()
    """Not enough calls yet to tell."""


def luck(world: World, deviation: Deviation, *, settled: bool = False) -> Luck:
    """What the "site" deviation is, from the calls that follow it and the branch that holds both statements.

    `settled` says that no more calls will come (the job is dead or over): what there is must do.
    """
    (one, call), (other, otherwise) = _two(deviation)
    a, b = world.kinds[call], world.kinds[otherwise]
    arms = _arms(a, b)
    if arms is not None:
        mine, theirs = arms
        return Luck.SWAPPED if mine != theirs and sorted(mine) == sorted(theirs) else Luck.HARMLESS
    name = deviation.group.name
    first, second = world.ranks[one].histories[name], world.ranks[other].histories[name]
    return _following(first, second, deviation.position, 1 if settled else _FOLLOWING)


def _two(deviation: Deviation) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two ranks with different calls, as (rank, call id)."""
    items = sorted(deviation.calls.items())
    lead = items[0]
    return lead, next(item for item in items if item[1] != lead[1])


def _following(one: History, other: History, position: int, enough: int) -> Luck:
    mine = one.kinds[position - one.start :]
    theirs = other.kinds[position - other.start :]
    if len(mine) > 1 and len(theirs) > 1 and mine[0] == theirs[1] and mine[1] == theirs[0]:
        behind = min(len(mine), len(theirs), 2 + _FOLLOWING)
        if behind >= 2 + enough and mine[2:behind] == theirs[2:behind]:
            return Luck.SWAPPED
    for ahead, late in ((mine, theirs), (theirs, mine)):
        # `late` made ahead's next calls, one position earlier: it skipped ahead's first.
        length = min(len(ahead) - 1, len(late))
        if length >= enough and ahead[1 : 1 + length] == late[:length]:
            return Luck.SKIPPED
        # Or until `late` made one more in its turn, after which both are in step again.
        again = next((i for i, (x, y) in enumerate(zip(ahead, late, strict=False)) if i and x != y), 0)
        if again >= enough and ahead[1 : 1 + again] == late[:again]:
            return Luck.SKIPPED
    return Luck.OPEN if min(len(mine), len(theirs)) < 4 * enough else Luck.HARMLESS


def _arms(a: CallKind, b: CallKind) -> tuple[list[str], list[str]] | None:
    """The collectives of the two arms of the branch that holds both statements, as source text; None when they do
    not stand in two arms of one branch."""
    for one, other in zip(a.site, b.site, strict=False):
        if (one.path, one.function, one.first_line) != (other.path, other.function, other.first_line):
            return None
        if one.line == other.line:
            continue
        tree = read(one.path).tree
        if tree is None:
            return None
        function = places.function_of(tree, one)
        chains = places.chain(function, one.line), places.chain(function, other.line)
        for c, d in zip(*chains, strict=False):
            if c.node is d.node and c.arm != d.arm and isinstance(c.node, ast.If):
                return (
                    places.collective_texts(c.node.body, _OPERATIONS),
                    places.collective_texts(c.node.orelse, _OPERATIONS),
                )
        return None
    return None
