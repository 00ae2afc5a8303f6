"""What following a program leaves behind: events, loops, attempts and exits in program order, and the tests met.

A trace is a list of `Item`s. Each knows the lanes that reach it (`guard`), the calls on the way to it (`site`)
and the branches around it (`branch`), through callers too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..findings import Location, Text
from .values import NONE, Kind, Origin, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from pathlib import Path

    from .decisions import Guard


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Where execution stands: a node of a file, inside a function, called from `caller`."""

    path: Path
    node: ast.AST
    function: str
    caller: Site | None = None

    @property
    def line(self) -> int:
        """The line of the node."""
        return int(getattr(self.node, "lineno", 1))

    def chain(self) -> list[Site]:
        """The calls that lead here, outermost first, this site last."""
        found: list[Site] = []
        site: Site | None = self
        while site is not None:
            found.append(site)
            site = site.caller
        return found[::-1]

    def calls(self) -> tuple[Location, ...]:
        """The calls from function to function that lead here, this site last; empty where it takes none. That a
        script calls its own main function says nothing."""
        chain = self.chain()
        if len(chain) > 1 and not chain[0].function and chain[0].path == chain[1].path:
            chain = chain[1:]
        return tuple(site.location() for site in chain) if len(chain) > 1 else ()

    def location(self, role: Text | None = None) -> Location:
        """The place, as findings show it."""
        column = getattr(self.node, "col_offset", None)
        return Location(
            str(self.path),
            self.line,
            None if column is None else column + 1,
            self.function or None,
            getattr(self.node, "end_lineno", None),
            role,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A condition around an item: the lanes before it and those that it let in. `node` is the statement or
    expression that decides, `outer` the branch around it."""

    site: Site
    before: Guard
    after: Guard
    outer: Branch | None

    def chain(self) -> Iterator[Branch]:
        """This branch and those around it, innermost first."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.outer


@dataclass(slots=True, eq=False)
class Event:
    """A call that matters. `kind` is the event kind of its row in `lore`; `name` the callee ("torch.save",
    "ddp.forward"); `operation` the collective it makes; `communicates` is 2 when it surely makes a collective,
    1 when it may, 0 when not; `hidden` says what communicates where the call's name does not say so."""

    kind: str
    name: str
    guard: Guard
    site: Site
    branch: Branch | None
    args: dict[str, Value] = field(default_factory=dict)
    receiver: Value = NONE
    result: Value = NONE
    within: tuple[str, ...] = ()
    operation: str = ""
    communicates: int = 0
    hidden: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    doubt: Kind | None = None
    """How the condition differs between ranks under which it may not be reached at all; None when `guard` says all."""


@dataclass(slots=True, eq=False)
class Loop:
    """A loop, its body followed once. `turns` says how the number of turns may differ between ranks; `again` are
    the lanes that go on to another turn."""

    site: Site
    guard: Guard
    branch: Branch | None
    items: list[Item] = field(default_factory=list)
    turns: Kind = Kind.UNIFORM
    origin: Origin | None = None
    again: Guard = 0
    over: Value = NONE
    within: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Handler:
    """An except clause: `fell` are the lanes that come out of it without raising."""

    node: ast.ExceptHandler
    types: tuple[str, ...]
    items: list[Item] = field(default_factory=list)
    fell: Guard = 0


@dataclass(slots=True, eq=False)
class Attempt:
    """A try statement."""

    site: Site
    guard: Guard
    branch: Branch | None
    items: list[Item] = field(default_factory=list)
    handlers: list[Handler] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Exit:
    """Lanes that leave: `how` is return, break, continue, raise or exit; caught where a handler takes them up;
    error where they are looked at as if they had not raised."""

    how: str
    guard: Guard
    site: Site
    branch: Branch | None


@dataclass(frozen=True, slots=True, eq=False)
class Early:
    """The tensor of an asynchronous collective, used before the collective was waited for."""

    event: Event
    used: Site


Item = Event | Loop | Attempt | Exit


@dataclass(slots=True, eq=False)
class Test:
    """What was seen of one test: how it may differ between ranks, the lanes that pass it, where it began."""

    kind: Kind
    passed: Guard
    active: Guard
    origin: Origin | None


def walk(items: list[Item]) -> Iterator[Item]:
    """Every item, those inside loops, attempts and handlers too, in program order."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from walk(item.items)
        elif isinstance(item, Attempt):
            yield from walk(item.items)
            for handler in item.handlers:
                yield from walk(handler.items)


def events(items: list[Item], *kinds: str) -> Iterator[Event]:
    """Every event of the given kinds (of all kinds when none is given), in program order."""
    for item in walk(items):
        if isinstance(item, Event) and (not kinds or item.kind in kinds):
            yield item
