"""One run of a program as rules look at it: events in order, the loops around them, who reaches them.

Built once for each run and shared by all rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..source.decisions import kind_of
from ..source.execution import runs
from ..source.flow import Enclosure, enclosing
from ..source.lanes import ALL, LANES, MANY_NODES, WORLDS, RankSet
from ..source.trace import Attempt, Event, Item, Loop, Site
from ..source.values import (
    NONE,
    Const,
    Either,
    Instance,
    Items,
    Kind,
    Mixed,
    PerLane,
    Table,
    Unknown,
    Value,
    Walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..findings import Location, Text
    from ..source.decisions import Guard
    from ..source.machine import Run
    from ..source.program import Program

_HERE = re.compile(r"127\.|localhost$")
NOBODY, ONE, PER_NODE, SEVERAL = 0, 1, 2, 3
"""How many ranks do something: none, one, one of each node, several of a node."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Who reaches an event: `many` is one of the numbers above, `ranks` those that do, `sure` is False when an
    unknown condition that may differ between ranks decides."""

    many: int
    ranks: RankSet
    sure: bool


def scenes(program: Program) -> list[Scene]:
    """The runs of all entries of a program."""
    kept: list[Scene] | None = program.kept.get("scenes")
    if kept is None:
        kept = program.kept["scenes"] = [Scene(program, run) for run in runs(program)]
    return kept


class Scene:
    """The events of one run, in program order."""

    def __init__(self, program: Program, run: Run) -> None:
        self.program = program
        self.run = run
        self.events: list[Event] = []
        self.items: list[Item] = []
        self._loops: dict[Item, tuple[Loop, ...]] = {}
        self._order: dict[Item, int] = {}
        self._collect(run.items, ())

    def _collect(self, items: list[Item], around: tuple[Loop, ...]) -> None:
        for item in items:
            self._order[item] = len(self.items)
            self._loops[item] = around
            self.items.append(item)
            if isinstance(item, Event):
                self.events.append(item)
            elif isinstance(item, Loop):
                self._collect(item.items, (*around, item))
            elif isinstance(item, Attempt):
                self._collect(item.items, around)
                for handler in item.handlers:
                    self._collect(handler.items, around)

    # Events

    def of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def loops(self, item: Item) -> tuple[Loop, ...]:
        """The loops around an item, outermost first."""
        return self._loops[item]

    def order(self, item: Item) -> int:
        """The place of an item among all: smaller is earlier."""
        return self._order[item]

    def inside(self, loop: Loop, *kinds: str) -> list[Event]:
        """The events in a loop, those of loops inside it too, in order."""
        return [e for e in self.events if (not kinds or e.kind in kinds) and loop in self._loops[e]]

    @cached_property
    def all_loops(self) -> list[Loop]:
        """Every loop, in order."""
        return [item for item in self.items if isinstance(item, Loop)]

    @cached_property
    def training_loops(self) -> list[Loop]:
        """The innermost loops that run a backward."""
        found: dict[Loop, None] = {}
        for event in self.of("backward"):
            if self._loops[event]:
                found[self._loops[event][-1]] = None
        return list(found)

    def between(self, first: Item, last: Item) -> list[Event]:
        """The events after one item and before another."""
        begin, end = self._order[first], self._order[last]
        return [event for event in self.events if begin < self._order[event] < end]

    # Who

    def reaches(self, event: Event, *, files: bool = False) -> Reach:
        """Who reaches an event, whatever the uniform conditions turn out to be.

        With `files`, a condition on whether a file is there counts as uniform: the ranks share their disk.
        """
        found = self.reach(event.guard, files=files)
        if event.doubt is not None and event.doubt > Kind.UNIFORM:
            return Reach(
                found.many, found.ranks, files and event.doubt in (Kind.UNKNOWN, Kind.DATA) and found.sure
            )
        return found

    def by_all(self, event: Event) -> bool:
        """True when several ranks of one node surely reach an event."""
        found = self.reaches(event)
        return found.many == SEVERAL and found.sure

    def partial(self, mask: int, event: Event) -> bool:
        """True when lanes are some of those of a world that is there, but not all of them."""
        worlds = [world & ~MANY_NODES if self.one_node else world for world in WORLDS]
        return any(0 < bin(mask & world).count("1") < bin(world).count("1") for world in worlds if world)

    def reach(self, guard: Guard, *, files: bool = False) -> Reach:
        """The same for what stands under `guard`."""
        if isinstance(guard, int):
            mask = guard & ~MANY_NODES if self.one_node else guard
            return Reach(_many(mask), RankSet(mask), True)
        high, low = self.reach(guard.high, files=files), self.reach(guard.low, files=files)
        sure = high.sure and low.sure
        if self._parts(guard.symbol, files):
            if sure and high.ranks == low.ranks:
                return high
            # Some ranks may go one way and some the other.
            return Reach(NOBODY, RankSet(0), sure and not high.ranks.mask and not low.ranks.mask)
        if high.sure is not low.sure:
            # All ranks go the same way here: what is sure on one of them is enough.
            known, other = (high, low) if high.sure else (low, high)
            if known.many > NOBODY and known.many >= other.many:
                return known
        many = max(high.many, low.many)
        return Reach(many, RankSet(high.ranks.mask | low.ranks.mask), sure)

    def where(self, value: Value, holds: Callable[[Value], bool]) -> Guard:
        """The lanes on which a value passes a test, under each outcome of its conditions."""
        decisions = self.run.decisions
        if isinstance(value, Either):
            symbol = decisions.choice(value.symbol, ALL, 0)
            high = decisions.both(symbol, self.where(value.high, holds))
            return decisions.either(high, decisions.minus(self.where(value.low, holds), symbol))
        if isinstance(value, PerLane):
            return sum(1 << i for i, item in enumerate(value.items) if holds(item))
        return ALL if holds(value) else 0

    def _parts(self, number: int, files: bool) -> bool:
        """True for a condition that may differ between ranks."""
        symbol = self.run.decisions.symbols[number]
        if files and symbol.origin is not None and symbol.origin.cause == "file":
            return False
        return symbol.kind > Kind.UNIFORM

    def differs(self, value: Value, depth: int = 0) -> Kind:
        """How a value differs between ranks; of an object or container, how anything in it does."""
        kind = kind_of(value, decisions=self.run.decisions)
        parts: list[Value] = []
        if isinstance(value, Instance):
            parts = [*value.fields.values(), *([value.vague] if value.vague is not None else [])]
        elif isinstance(value, Items):
            parts = [*value.items, *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Table):
            parts = [*value.items.values(), *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Walk):
            parts = list(value.over)
        elif isinstance(value, Mixed):
            parts = list(value.options)
        if depth < 3:
            kind = max([kind, *(self.differs(part, depth + 1) for part in parts[:16])])
        return kind

    def comes_from(self, value: Value, origin: Value) -> bool:
        """True when `value` is `origin`, an item of it or what a method of it gave."""
        if not isinstance(value, Unknown) or not isinstance(origin, Unknown):
            return False
        key: object = value.key
        for _ in range(8):
            if key == origin.key:
                return True
            derivation = self.run.derivations.get(key) if isinstance(key, int) else None
            if derivation is None or derivation[0] not in ("item", "method", "attribute", "element"):
                return False
            key = derivation[1]
        return False

    # Processes

    @cached_property
    def one_node(self) -> bool:
        """True when the ranks are joined under the local one, in a group of one machine: its job has one node."""
        for event in self.of("init"):
            local = _is_local_rank(event.args.get("rank", NONE))
            if local and (self.child(event.site) or _of_one_node(event)):
                return True
        return False

    @cached_property
    def _spawned(self) -> frozenset[object]:
        return frozenset(event.site.node for event in self.of("spawn"))

    def child(self, site: Site) -> bool:
        """True for what runs in a process that the program itself starts."""
        return any(s.node in self._spawned for s in site.chain()[:-1])

    @cached_property
    def launched(self) -> bool:
        """True when the script itself joins a process group of more than itself: a launcher starts it several
        times, and not the script by os.fork."""
        if self.of("fork") or self._starts_alone:
            return False
        return any(not self.child(event.site) and not _of_one(event) for event in self.of("init"))

    @cached_property
    def _starts_alone(self) -> bool:
        """True for a script that names itself rank 0 and its own machine the one to meet at."""
        named = {}
        for event in self.of("environ"):
            key, value = event.args.get("key"), event.args.get("value")
            if event.guard != ALL or self.child(event.site):
                continue
            if isinstance(key, Const) and isinstance(value, Const):
                named[key.value] = str(value.value)
        return named.get("RANK") == "0" and bool(_HERE.match(named.get("MASTER_ADDR", "")))

    def shared(self, event: Event) -> bool:
        """True for what several processes of one job run: all of a launched script, or what it spawns."""
        return self.run.initialised and (self.launched or self.child(event.site))

    # Conditions

    def tests(self, event: Event, loop: Loop) -> dict[tuple[int, str], Enclosure]:
        """The tests between a loop and an event in it, through the calls on the way: (node, arm) -> enclosure."""
        found: dict[tuple[int, str], Enclosure] = {}
        for site in event.site.chain():
            around = enclosing(self.program, site.path, site.line)
            for enclosure in reversed(around):
                if enclosure.node is loop.site.node:
                    found.clear()
                elif enclosure.kind in ("if", "elif", "else"):
                    found[id(enclosure.node), "else" if enclosure.kind == "else" else "if"] = enclosure
        return found

    def exclusive(self, one: Event, other: Event) -> bool:
        """True when two events stand in different arms of one test, or of two that read the same, or no lane
        reaches both."""
        if self.run.decisions.both(one.guard, other.guard) == 0:
            return True
        mine = {arm for site in one.site.chain() for arm in self._arms(site)}
        others = {arm for site in other.site.chain() for arm in self._arms(site)}
        return any((place, test, not otherwise) in others for place, test, otherwise in mine)

    def _arms(self, site: Site) -> Iterator[tuple[object, str, bool]]:
        """(function, test, whether it is the arm for when the test fails) of the tests around a call."""
        for e in enclosing(self.program, site.path, site.line):
            if e.kind in ("if", "elif", "else"):
                yield self.function(site), e.test, e.kind == "else"

    # Places

    def function(self, site: Site) -> object:
        """What stands for the function around a call; at module level, for the module."""
        function = self.program.function_at(site.path, site.line)
        return function.node if function is not None else site.path

    def location(self, event: Event, role: Text | None = None) -> Location:
        """The place of an event."""
        return event.site.location(role)

    def path(self, event: Event) -> tuple[Location, ...]:
        """The calls that lead to an event in another function, outermost first; empty where it takes none."""
        return event.site.calls()


def _of_one(event: Event) -> bool:
    """True for a group of one process."""
    size = event.args.get("world_size", NONE)
    return isinstance(size, Const) and size.value == 1


def _of_one_node(event: Event) -> bool:
    """True for a group that is met on the machine itself, or is as large as it has devices."""
    address, size = event.args.get("init_method", NONE), event.args.get("world_size", NONE)
    met = isinstance(address, Const) and re.match(r"tcp://(127\.|localhost)", str(address.value))
    devices = [lane.local_size for lane in LANES]
    held = [getattr(item, "value", None) for item in size.items] if isinstance(size, PerLane) else []
    return bool(met) or held == devices


def _is_local_rank(value: Value) -> bool:
    """True for the local rank on every lane, in one case at least."""
    if isinstance(value, Either):
        return _is_local_rank(value.high) or _is_local_rank(value.low)
    if not isinstance(value, PerLane):
        return False
    return [getattr(item, "value", None) for item in value.items] == [lane.local_rank for lane in LANES]


def _many(mask: int) -> int:
    """How many ranks of one world a mask of lanes holds."""
    if mask == 0:
        return NOBODY
    found = ONE
    for world in WORLDS:
        lanes = [LANES[i] for i in range(len(LANES)) if mask & world & (1 << i)]
        nodes = [lane.node_rank for lane in lanes]
        if len(nodes) > len(set(nodes)):
            return SEVERAL
        if len(nodes) > 1:
            found = PER_NODE
    return found


def leaves(value: Value) -> Iterator[Value]:
    """Every alternative of a value."""
    if isinstance(value, Either):
        yield from leaves(value.high)
        yield from leaves(value.low)
    elif isinstance(value, PerLane):
        yield from value.items
    elif isinstance(value, Mixed):
        yield from value.options
    else:
        yield value


def key_of(value: Value) -> int | None:
    """The key of an unknown."""
    return value.key if isinstance(value, Unknown) else None
