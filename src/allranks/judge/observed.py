"""What hooks in the ranks observed of training, as the rules ask for it: events, patterns, models, optimizers."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .digests import Difference, differences, keys, ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location
    from ..world import RankState, Site
    from .case import Case


@dataclass(frozen=True, slots=True)
class Event:
    """Something on the way to a step: `what` ("forward", "backward", "zero", ...) of which object, from where."""

    what: str
    of: int
    flag: str
    site: Site


@dataclass(frozen=True, slots=True)
class Torn:
    """Parameters that one DDP model, or none (`wrap` 0), holds, and their first difference between ranks."""

    part: dict[str, Any]
    difference: Difference
    events: tuple[Event, ...]
    """What one rank did between the steps before."""

    @property
    def wrap(self) -> int:
        """The number of the DDP model; 0 for none."""
        return int(self.part["wrap"])

    def names(self, limit: int = 3) -> str:
        """The first parameters that differ, in words."""
        names = [self.part["names"][i] for i in self.difference.places if i < len(self.part["names"])]
        shown = ", ".join(name or "?" for name in names[:limit])
        return f"{shown}, ..." if len(names) > limit else shown


def rows(state: RankState, topic: str, **wanted: Any) -> list[dict[str, Any]]:
    """The observations of one topic whose values are those wanted, in order."""
    found = state.facts.get("observed", {}).get(topic, [])
    return [row for row in found if all(row.get(key) == value for key, value in wanted.items())]


def everywhere(case: Case, topic: str, **wanted: Any) -> list[tuple[int, dict[str, Any]]]:
    """(rank, observation) of all ranks, by rank."""
    return [(r, row) for r, state in sorted(case.world.ranks.items()) for row in rows(state, topic, **wanted)]


def first(case: Case, topic: str, **wanted: Any) -> dict[str, Any] | None:
    """The first such observation of the lowest rank that has one."""
    return next((row for _, row in everywhere(case, topic, **wanted)), None)


def pattern(state: RankState, number: int) -> tuple[Event, ...]:
    """The events of a pattern."""
    kinds = {row["number"]: row for row in rows(state, "event")}
    row = next(iter(rows(state, "pattern", number=number)), None)
    found = [kinds[n] for n in row["events"] if n in kinds] if row is not None else []
    return tuple(Event(e["what"], e["of"], e["flag"], e["site"]) for e in found)


def patterns(state: RankState) -> Iterator[tuple[dict[str, Any], tuple[Event, ...]]]:
    """(row, events) of every pattern of a rank."""
    for row in rows(state, "pattern"):
        yield row, pattern(state, row["number"])


def torn(case: Case, what: str = "") -> list[Torn]:
    """The parts in which ranks differ, each with its first difference (in `what`: "gradients" or "parameters");
    gradients come before the parameters of their step."""
    found = []
    for key in keys(case.world):
        members = ranks_of(case.world, key)
        state = case.world.ranks[members[0]]
        part = next(iter(rows(state, "part", key=key)), None)
        if part is None or part["sharded"]:
            continue
        for among in _groups(case, int(part["wrap"]), members):
            apart = [d for d in differences(case.world, key, among) if what in ("", d.what)]
            if apart:
                state = case.world.ranks[among[0]]
                number = state.facts["digests"][key][apart[0].step][4]
                found.append(Torn(part, apart[0], pattern(state, number)))
    return found


def _groups(case: Case, wrap: int, members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The ranks among which a DDP model is replicated: one set of ranks per process group."""
    if not wrap:
        return [members]
    groups = {
        tuple(row["ranks"]) for _, row in everywhere(case, "wrap", number=wrap) if len(row["ranks"]) > 1
    }
    return [shared for group in sorted(groups) if len(shared := tuple(r for r in members if r in group)) > 1]


def last(events: tuple[Event, ...], what: str, of: int | None = None) -> int:
    """The place of the last event of this kind, or -1."""
    return max((i for i, e in enumerate(events) if e.what == what and of in (None, e.of)), default=-1)


def event(events: tuple[Event, ...], what: str) -> Event | None:
    """The last event of this kind."""
    place = last(events, what)
    return events[place] if place >= 0 else None


def place(case: Case, *sites: Site | None) -> Location | None:
    """The innermost line of the first site that is known."""
    return next((case.place(site[-1]) for site in sites if site), None)


def assignment(case: Case, file: str, owner: str, attribute: str) -> int | None:
    """The line at which a class sets an attribute of itself, or None."""
    tree = case.program.module(file).tree if file else None
    if tree is None:
        return None
    wanted = owner.rpartition(".")[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            for child in ast.walk(node):
                targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
                if any(isinstance(t, ast.Attribute) and t.attr == attribute for t in targets):
                    return int(getattr(child, "lineno", 0)) or None
    return None
