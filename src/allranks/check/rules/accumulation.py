"""Gradients: accumulation under `no_sync`, and whether the step comes with the batch that synchronises."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...findings import Finding, Location, say
from ...source import syntax
from ...source.values import Instance
from ..models import WRAPPED
from ..scene import Scene, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Program
    from ...source.trace import Event, Loop, Site

_WINDOW = 4
"""What every unknown number stands for when tests on the turn are tried out: a window of so many batches."""
_TURNS = 3 * _WINDOW


@finds("accumulation-unsynced")
def accumulation_unsynced(program: Program) -> Iterator[Finding]:
    """`no_sync` around the batch after which the optimizer steps, around every batch, or where it has no effect.

    What decides is the forward: one inside `no_sync` leaves the gradients of its backward unreduced.
    """
    for scene in scenes(program):
        for loop in scene.training_loops:
            steps = [e for e in scene.inside(loop, "step") if scene.loops(e)[-1] is loop]
            forwards = [e for e in scene.inside(loop, "forward") if _wrapped(e) and "no_grad" not in e.within]
            unsynced = [e for e in forwards if "no_sync" in e.within]
            if _reduces_by_hand(scene, loop):
                continue
            backwards = [e for e in scene.inside(loop, "backward") if "no_grad" not in e.within]
            late = [e for e in backwards if "no_sync" in e.within]
            if late and forwards and not unsynced and not any(map(_sharded, forwards)):
                yield _told(
                    scene,
                    late[0],
                    say("no_sync has no effect here: the forward, which decides, stands outside of it"),
                )
            elif unsynced:
                yield from _window(scene, loop, unsynced, forwards, steps or _steps_after(scene, loop))


def _steps_after(scene: Scene, loop: Loop) -> list[Event]:
    """The steps that follow a loop over micro-batches in the loop around it, if nothing else reduces there."""
    around = scene.loops(loop)
    if not around:
        return []
    beside = [e for e in scene.inside(around[-1]) if loop not in scene.loops(e)]
    synced = any(e.kind == "forward" and _wrapped(e) and "no_sync" not in e.within for e in beside)
    if synced or any(e.operation.startswith(("all_reduce", "reduce")) for e in beside):
        return []
    return [e for e in beside if e.kind == "step" and scene.order(e) > scene.order(loop)]


def _wrapped(event: Event) -> bool:
    return isinstance(event.receiver, Instance) and event.receiver.kind in WRAPPED


def _sharded(event: Event) -> bool:
    """True for a forward of FSDP, whose backward looks for itself whether it is inside `no_sync`."""
    return isinstance(event.receiver, Instance) and event.receiver.kind == "fsdp"


def _reduces_by_hand(scene: Scene, loop: Loop) -> bool:
    """True when gradients are reduced in the loop by something else than DDP."""
    return any(
        e.operation.startswith(("all_reduce", "reduce")) and e.site.path
        for e in scene.inside(loop, "collective")
        if _of_gradient(e)
    )


def _of_gradient(event: Event) -> bool:
    return ".grad" in ast.unparse(event.site.node)


def _told(scene: Scene, event: Event, message: object) -> Finding:
    place = _no_sync_at(scene, event)
    return found(
        "accumulation-unsynced",
        place,
        message,  # type: ignore[arg-type]
        related=[scene.location(event, say("inside of it"))],
        call_path=scene.path(event),
        fix=say("enter no_sync for forward and backward of all batches of the window but the last"),
    )


def _no_sync_at(scene: Scene, event: Event) -> Location:
    """Where the context of an event is made."""
    node = _no_sync_node(scene, event)
    if node is None:
        return scene.location(event)
    site = next(s for s in reversed(event.site.chain()) if _last_no_sync(scene, s) is node)
    function = scene.program.function_at(site.path, site.line)
    name = function.name if function is not None else None
    return Location(str(site.path), node.lineno, node.col_offset + 1, name)


def _no_sync_node(scene: Scene, event: Event) -> ast.Attribute | None:
    """The last `no_sync` of the text before an event, in its function or one that called it."""
    for site in reversed(event.site.chain()):
        node = _last_no_sync(scene, site)
        if node is not None:
            return node
    return None


def _last_no_sync(scene: Scene, site: Site) -> ast.Attribute | None:
    function = scene.program.function_at(site.path, site.line)
    tree = function.node if function is not None else scene.program.module(site.path).tree
    named = [
        node
        for node in (syntax.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Attribute) and node.attr == "no_sync" and node.lineno <= site.line
    ]
    return max(named, key=lambda n: n.lineno, default=None)


def _window(
    scene: Scene, loop: Loop, unsynced: list[Event], forwards: list[Event], steps: list[Event]
) -> Iterator[Finding]:
    event = unsynced[0]
    reach = scene.reaches(event)
    if reach.sure and scene.partial(reach.ranks.mask, event):
        yield _told(scene, event, say("only some ranks leave out the reduction that the others wait in"))
        return
    node = _no_sync_node(scene, event)
    if node is None or not isinstance(loop.site.node, ast.For | ast.While):
        return
    turns = Turns(loop.site.node, _function(scene, event))
    quiet = turns.governing(node)
    if not quiet and all("no_sync" in e.within for e in forwards):
        if steps:
            yield _told(
                scene, event, say("every batch runs under no_sync, so the gradients are never averaged")
            )
        return
    for step in steps:
        tests = [(e.node, arm == "if") for (_, arm), e in scene.tests(step, loop).items()]
        for turn in range(_TURNS):
            left_out = [
                turns.holds(test, turn) is arm if turns.holds(test, turn) is not None else None
                for test, arm in quiet
            ]
            stepping = [turns.holds(getattr(n, "test", None), turn) for n, _ in tests]
            counted = [
                value is arm for value, (_, arm) in zip(stepping, tests, strict=True) if value is not None
            ]
            if quiet and None not in left_out and all(left_out) and counted and all(counted):
                yield _told(scene, event, say("the step comes after a batch that was not synchronised"))
                return


def _function(scene: Scene, event: Event) -> ast.AST | None:
    function = scene.program.function_at(event.site.path, event.site.line)
    return function.node if function is not None else scene.program.module(event.site.path).tree


class Turns:
    """Tests on the number of the turn of a loop, tried out with a window of `_WINDOW` batches."""

    def __init__(self, loop: ast.For | ast.While, function: ast.AST | None) -> None:
        self.loop = loop
        self.index, self.start = _counted(loop)
        self.bound: dict[str, ast.expr] = {}
        for node in syntax.walk(loop):
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                self.bound[node.targets[0].id] = node.value
        self.parents = {child: parent for parent in syntax.walk(loop) for child in syntax.children(parent)}

    def governing(self, node: ast.AST) -> list[tuple[ast.expr, bool]]:
        """The tests between the loop and a node in it, each with the answer that leads to the node."""
        found_tests = []
        while node in self.parents:
            parent = self.parents[node]
            if isinstance(parent, ast.IfExp) and node is not parent.test:
                found_tests.append((parent.test, node is parent.body))
            elif isinstance(parent, ast.If) and node is not parent.test:
                found_tests.append((parent.test, node in parent.body))
            node = parent
        return found_tests

    def holds(self, test: ast.expr | None, turn: int) -> bool | None:
        """Whether a test holds in a turn; None when it does not depend on the turn alone."""
        value = self._value(test, turn, 0) if test is not None else None
        return bool(value) if value is not None else None

    def _value(self, node: ast.expr, turn: int, depth: int) -> int | bool | None:
        if depth > 8:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int) else None
        if isinstance(node, ast.Name):
            if node.id == self.index:
                return turn + self.start
            bound = self.bound.get(node.id)
            return self._value(bound, turn, depth + 1) if bound is not None else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._value(node.operand, turn, depth + 1)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            return self._both(node, turn, depth)
        if isinstance(node, ast.BinOp):
            return self._computed(node, turn, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, turn, depth)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len":
            return 10**6  # the end of the loader is far away
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "bool" and node.args:
            return self._value(node.args[0], turn, depth + 1)
        return None

    def _both(self, node: ast.BoolOp, turn: int, depth: int) -> bool | None:
        values = [self._value(part, turn, depth + 1) for part in node.values]
        if isinstance(node.op, ast.And):
            return False if any(v is not None and not v for v in values) else None if None in values else True
        return True if any(values) else None if None in values else False

    def _computed(self, node: ast.BinOp, turn: int, depth: int) -> int | None:
        left, right = self._value(node.left, turn, depth + 1), self._value(node.right, turn, depth + 1)
        if isinstance(node.op, ast.Mod | ast.FloorDiv) and right is None:
            right = _WINDOW
        if isinstance(node.op, ast.Sub) and left is None and isinstance(node.left, ast.Name | ast.Attribute):
            left = _WINDOW if right == 1 else None
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if right == 0:
            return None
        if isinstance(node.op, ast.Mod):
            return left % right
        return left // right if isinstance(node.op, ast.FloorDiv) else None

    def _compared(self, node: ast.Compare, turn: int, depth: int) -> bool | None:
        left, right = (
            self._value(node.left, turn, depth + 1),
            self._value(node.comparators[0], turn, depth + 1),
        )
        if left is None or right is None:
            return None
        answers = {
            ast.Eq: left == right,
            ast.NotEq: left != right,
            ast.Lt: left < right,
            ast.LtE: left <= right,
            ast.Gt: left > right,
            ast.GtE: left >= right,
        }
        return answers.get(type(node.ops[0]))


def _counted(loop: ast.For | ast.While) -> tuple[str | None, int]:
    """(the name that counts the turns, its first value) of a loop over enumerate(...) or range(...)."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return None, 0
    called = getattr(loop.iter.func, "id", getattr(loop.iter.func, "attr", ""))
    target = loop.target
    if (
        called in ("tqdm", "track", "log_every")
        and loop.iter.args
        and isinstance(loop.iter.args[0], ast.Call)
    ):
        return _counted(ast.For(target, loop.iter.args[0], [], []))
    if called == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        given_start = [*loop.iter.args[1:2], *(k.value for k in loop.iter.keywords if k.arg == "start")]
        start = given_start[0].value if given_start and isinstance(given_start[0], ast.Constant) else 0
        return target.elts[0].id, start if isinstance(start, int) else 0
    if called == "range" and isinstance(target, ast.Name) and len(loop.iter.args) == 1:
        return target.id, 0
    return None, 0
