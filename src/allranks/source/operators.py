"""Operators: arithmetic, comparisons, `and` and `or`, conditional expressions. Constants are computed, per lane too."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any

from . import trace
from .conditions import Conditions
from .decisions import Guard, origin_of, symbols_of
from .lanes import ALL, LANES
from .values import (
    ABSENT,
    FALSE,
    NONE,
    TRUE,
    Const,
    Either,
    External,
    Items,
    Kind,
    Mixed,
    Origin,
    PerLane,
    Table,
    Unknown,
    Value,
    merged,
    per_lane,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.IsNot: ast.Is,
    ast.NotIn: ast.In,
}
_SIZE_NAME = re.compile(
    r"(?i)^_?(world_?size|n_?gpus?|ngpus\w*|num_?gpus?|gpu_?nums?|num_?processes|n_?procs|nprocs?|num_replicas"
    r"|dist_world_size|distributed_world_size|num_tasks|dp_size|dp_world_size)$"
)
"""An unknown of such a name is taken as more than 1."""
_HELPERS = ("fabric", "accelerator")
"""An unknown of such a name is taken to be there: it is the distributed run that is looked at."""
_LONGEST = 200
"""Constants longer than this are not computed."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{3}|\*)")
"""A format that may write at length."""


class Operators(Conditions):
    """Evaluates operators, and remembers what was seen of tests."""

    def _binary(self, node: ast.BinOp) -> Value:
        return self.binary(node.op, self.evaluate(node.left), self.evaluate(node.right), node)

    def binary(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        """`left op right`."""
        if self.pending:
            self.uses(left, node)
            self.uses(right, node)
        operate = _BINARY.get(type(op))
        if operate is not None:
            if type(op) is ast.Mod and _numbers_devices(left, right):
                return per_lane(lambda lane: lane.local_rank, origin_of(left))
            if type(left) in (Const, PerLane) and type(right) in (Const, PerLane):
                found = self._compute(operate, left, right)
                if found is not None:
                    return found
            if type(op) is ast.Add and type(left) is Items and type(right) is Items:
                rest = left.rest or right.rest
                return Items(left.type, [*left.items, *right.items], rest)
            repeats = (
                type(op) is ast.Mult and type(left) is Items and left.type == "list" and len(left.items) == 1
            )
            if repeats and type(left) is Items and type(right) is not Const:
                return Items("list", [], left.items[0])
        key = ("binary", type(op).__name__, self.key_of(left), self.key_of(right))
        return self.derived(key, (left, right))

    def _compute(self, operate: Callable[[Any, Any], Any], left: Value, right: Value) -> Value | None:
        """The result on each lane, where both sides are constants."""
        results: list[Value] = []
        lefts = left.items if type(left) is PerLane else (left,)
        rights = right.items if type(right) is PerLane else (right,)
        many = max(len(lefts), len(rights))
        for i in range(many):
            a, b = lefts[i if len(lefts) > 1 else 0], rights[i if len(rights) > 1 else 0]
            if type(a) is not Const or type(b) is not Const:
                return None
            found = compute(operate, a.value, b.value)
            if found is ABSENT:
                return None
            results.append(Const(found))
        if many == 1:
            return results[0]
        return merged(results, origin_of(left) or origin_of(right))

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if type(node.op) is ast.Not:
            if self.frame.rough and type(value) is Unknown:
                return self.derived(("not", value.key), (value,))
            return self.condition(self.decisions.minus(ALL, self.truth(value)))
        if type(value) is Const and type(value.value) in (int, float) and type(node.op) is ast.USub:
            return Const(-value.value)
        return self.derived(("unary", type(node.op).__name__, self.key_of(value)), (value,))

    def _bool(self, node: ast.BoolOp) -> Value:
        """`a and b`, `a or b`: what follows is evaluated only on the lanes that get there."""
        conjunction = type(node.op) is ast.And
        entry, branch = self.guard, self.branch
        outside: Guard = 0
        result = self.evaluate(node.values[0])
        for part in node.values[1:]:
            doubt = self.unknown_condition(result)
            if doubt is not None:
                other = self.evaluate(part)
                result = self.mix(
                    [result, other], max(self.kind(result), self.kind(other)), origin_of(result)
                )
                continue
            holds = self.truth(result)
            goes_on = holds if conjunction else self.decisions.minus(ALL, holds)
            active = self.decisions.both(self.guard, goes_on)
            if active == 0:
                break
            outside = self.decisions.either(outside, self.decisions.minus(self.guard, goes_on))
            self.branch = trace.Branch(self.here(node), entry, active, self.branch)
            self.guard = active
            result = self.decisions.select(goes_on, self.evaluate(part), result)
        self.guard, self.branch = self.decisions.either(outside, self.guard), branch
        return result

    def _compare(self, node: ast.Compare) -> Value:
        left = self.evaluate(node.left)
        result: Value = TRUE
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(comparator)
            found = self.compare(op, left, right)
            result = found if result is TRUE else self._conjunction(result, found)
            left = right
        return result

    def _conjunction(self, one: Value, other: Value) -> Value:
        return self.condition(self.decisions.both(self.truth(one), self.truth(other)))

    def compare(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        """`left op right`: a constant for each lane, or an unknown that is the same for the same question."""
        if type(left) is Either or type(right) is Either:
            split = left if type(left) is Either else right
            assert type(split) is Either
            high = self.compare(op, *(v.high if v is split else v for v in (left, right)))
            low = self.compare(op, *(v.low if v is split else v for v in (left, right)))
            holds = self.decisions.choice(split.symbol, ALL, 0)
            return self.decisions.select(holds, high, low)
        if type(op) in _COMPARE and type(left) in (Const, PerLane) and type(right) in (Const, PerLane):
            found = self._compute(_COMPARE[type(op)], left, right)
            if found is not None:
                return found
        if type(op) in (ast.Is, ast.IsNot) or right is NONE or left is NONE:
            return self._identity(op, left, right)
        if type(op) in (ast.In, ast.NotIn):
            return self._membership(op, left, right)
        assumed = self._assumed_size(op, left, right)
        return assumed if assumed is not None else self._undecided(op, left, right)

    def _undecided(self, op: ast.cmpop, left: Value, right: Value, kind: Kind | None = None) -> Value:
        """A comparison that cannot be decided; `a != b` is the opposite of the same `a == b`."""
        base = _OPPOSITE.get(type(op), type(op))
        key = ("compare", base.__name__, self.key_of(left), self.key_of(right))
        if kind is None:
            found: Value = self.derived(key, (left, right))
        else:
            found = self.derived(key, (), kind)
        if base is not type(op) and not self.frame.rough:
            return self.condition(self.decisions.minus(ALL, self.truth(found)))
        return found

    def _identity(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        """`is`, and comparison with None."""
        negated = type(op) in (ast.IsNot, ast.NotEq)
        if type(left) is PerLane or type(right) is PerLane:
            origin = origin_of(left) or origin_of(right)
            lefts = left.items if type(left) is PerLane else (left,) * len(LANES)
            rights = right.items if type(right) is PerLane else (right,) * len(LANES)
            return merged([self._identity(op, a, b) for a, b in zip(lefts, rights, strict=True)], origin)
        other = left if right is NONE else right
        if right is NONE or left is NONE:
            if other is NONE or other is ABSENT:
                return FALSE if negated else TRUE
            if type(other) is Unknown and other.label in _HELPERS:
                return TRUE if negated else FALSE
            if type(other) is Unknown:
                # Whether a value is there at all is a matter of the program, not of the rank or the data, unless it
                # is what a loader gave.
                kind = other.kind if other.label == "batch" else min(other.kind, Kind.UNKNOWN)
                return self._undecided(op, other, NONE, kind)
            if type(other) is not Mixed:
                return TRUE if negated else FALSE
            if other.kind is Kind.DATA:
                # The values are each rank's own; which of them it is need not be.
                return self._undecided(op, other, NONE, Kind.UNKNOWN)
        if same(left, right):
            return FALSE if negated else TRUE
        if type(left) is Const and type(right) is Const:
            return TRUE if negated else FALSE
        return self._undecided(op, left, right)

    def _membership(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        negated = type(op) is ast.NotIn
        if type(right) is PerLane or (type(left) is PerLane and type(right) is Items):
            lefts = left.items if type(left) is PerLane else (left,) * len(LANES)
            rights = right.items if type(right) is PerLane else (right,) * len(LANES)
            answers = [self._membership(op, a, b) for a, b in zip(lefts, rights, strict=True)]
            if all(type(a) is Const for a in answers):
                return merged(answers, origin_of(left) or origin_of(right))
        listed = type(right) is Items and right.rest is None and all(type(i) is Const for i in right.items)
        if type(left) is Const and type(right) is Items and listed:
            found = any(left.value == getattr(item, "value", ABSENT) for item in right.items)
            return TRUE if found is not negated else FALSE
        if type(left) is Const and type(right) is Table and hashable(left.value):
            held = right.items.get(left.value)
            if held is not None or right.rest is None:
                there = self.decisions.minus(ALL, self.missing(held)) if held is not None else 0
                return self.condition(self.decisions.minus(ALL, there) if negated else there)
        if (
            type(left) is Const
            and type(right) is Const
            and isinstance(right.value, str)
            and isinstance(left.value, str)
        ):
            return TRUE if (left.value in right.value) is not negated else FALSE
        if type(right) is External and right.name == "os.environ" and type(left) is Const:
            return self._in_environment(op, str(left.value))
        kind = min(self.kind(right), Kind.UNKNOWN) if type(left) is Const else None
        return self._undecided(op, left, right, kind)

    def _in_environment(self, op: ast.cmpop, name: str) -> Value:
        """A variable of the launcher is set in the run that is looked at; of another launcher, that is not known."""
        negated = type(op) is ast.NotIn
        launched = name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "LOCAL_WORLD_SIZE",
        )
        if launched and self.launch == "torchrun":
            return FALSE if negated else TRUE
        return self._undecided(op, External("os.environ"), Const(name), Kind.UNIFORM)

    def _assumed_size(self, op: ast.cmpop, left: Value, right: Value) -> Value | None:
        """`world_size > 1` for an unknown world size: it is the distributed run that is looked at."""
        if type(left) is not Unknown or type(right) is not Const or not _SIZE_NAME.match(left.label):
            return None
        if right.value not in (0, 1, 2) or left.kind is not Kind.UNIFORM:
            return None
        answers = [compute(_COMPARE[type(op)], size, right.value) for size in (2, 3, 4)]
        if all(a is True for a in answers):
            return TRUE
        return FALSE if all(a is False for a in answers) else None

    def _if_expression(self, node: ast.IfExp) -> Value:
        value = self.evaluate(node.test)
        doubt = self.unknown_condition(value)
        if doubt is not None:
            self.note_doubt(node, node.test, doubt, value)
            both = [self.evaluate(node.body), self.evaluate(node.orelse)]
            return self.mix(both, max(doubt, *map(self.kind, both)), origin_of(value))
        holds = self.truth(value)
        self.remember(node, node.test, holds, value)
        entry, branch = self.guard, self.branch
        yes = self.decisions.both(entry, holds)
        no = self.decisions.minus(entry, holds)
        site = self.here(node)
        result: Value = ABSENT
        after: Guard = 0
        if yes != 0:
            self.guard, self.branch = yes, trace.Branch(site, entry, yes, branch)
            result = self.evaluate(node.body)
            after = self.guard
        if no != 0:
            self.guard, self.branch = no, trace.Branch(site, entry, no, branch)
            other = self.evaluate(node.orelse)
            result = self.decisions.select(holds, result, other) if yes != 0 else other
            after = self.decisions.either(after, self.guard)
        self.guard, self.branch = after, branch
        return result

    def test(self, test: ast.expr, node: ast.AST) -> Guard:
        """The lanes on which the test of `node` holds; remembers how it differs between ranks."""
        value = self.evaluate(test)
        holds = self.truth(value)
        self.remember(node, test, holds, value)
        return holds

    def note_doubt(self, node: ast.AST, test: ast.AST, kind: Kind, value: Value) -> None:
        """Keeps the same of a test whose sides are not told apart."""
        seen = trace.Test(kind, self.guard, self.guard, origin_of(value))
        path = self.frame.home.module.path
        for line in {getattr(node, "lineno", 0), getattr(test, "lineno", 0)}:
            self.tests.setdefault((path, line), []).append(seen)

    def remember(self, node: ast.AST, test: ast.AST, holds: Guard, value: Value) -> None:
        """Keeps what was seen of a test, for the lines of the statement and of its condition."""
        kind = self.decisions.kind_of_guard(holds, self.guard)
        seen = trace.Test(
            kind, self.decisions.both(holds, self.guard), self.guard, self.cause_of(value, holds)
        )
        path = self.frame.home.module.path
        for line in {getattr(node, "lineno", 0), getattr(test, "lineno", 0)}:
            self.tests.setdefault((path, line), []).append(seen)

    def cause_of(self, value: Value, holds: Guard) -> Origin | None:
        """Where a condition began to differ between ranks."""
        found = origin_of(value)
        if found is not None:
            return found
        origins = [self.decisions.symbols[s] for s in symbols_of(holds)]
        origins.sort(key=lambda s: -s.kind)
        return origins[0].origin if origins else None


def _numbers_devices(left: Value, right: Value) -> bool:
    """True for the rank modulo a number written into the program, as `rank % 8`: the devices of a node, which in the
    small worlds that are looked at are fewer."""
    if type(left) is not PerLane or type(right) is not Const or type(right.value) is not int:
        return False
    ranks = [getattr(item, "value", None) for item in left.items]
    return right.value > max(lane.world_size for lane in LANES) and ranks == [lane.rank for lane in LANES]


def compute(operate: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`operate(a, b)` of two constants; `ABSENT` when it fails or grows too long."""
    if any(isinstance(v, str | bytes) for v in (a, b)):
        many = operate is operator.mul and any(isinstance(v, int) and abs(v) > _LONGEST for v in (a, b))
        if many or (operate is operator.mod and _WIDE.search(str(a))):
            return ABSENT
    try:
        found = operate(a, b)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, MemoryError):
        return ABSENT
    if isinstance(found, str | bytes) and len(found) > 8 * _LONGEST:
        return ABSENT
    return found if not isinstance(found, int) or abs(found) < 1 << 128 else ABSENT


def hashable(value: object) -> bool:
    """True for a constant that can be a key."""
    return isinstance(value, str | int | float | bool | bytes | None)
