"""Hand-built worlds: what the ranks called, where they stand, without torch and without sleeping."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from allranks.world import (
    SETUP,
    CallKind,
    Exit,
    Frame,
    Group,
    History,
    RankState,
    Signature,
    Site,
    Wait,
    World,
    p2p,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECOND = 1_000_000_000


def site(*places: str, path: str = "train.py") -> Site:
    """`site("main:12", "evaluate:5")`: frames of one file, outermost first."""
    frames = []
    for place in places:
        function, _, line = place.rpartition(":")
        frames.append(Frame(path, int(line), function))
    return tuple(frames)


def call(op: str, *places: str, hidden: bool = False, inside: str = "", **signature: object) -> CallKind:
    """A call of `op` from the given places."""
    return CallKind(Signature(op, **signature), site(*places), hidden, inside)  # type: ignore[arg-type]


class Builder:
    """Builds a World rank by rank; ids are interned in order of appearance."""

    def __init__(self, size: int = 2) -> None:
        self.world = World(size=size, now_ns=100 * SECOND)
        self.ids: dict[CallKind, int] = {}
        self.everyone = tuple(range(size))
        for rank in self.everyone:
            state = RankState(rank)
            state.groups["0"] = Group("0", self.everyone)
            state.histories["0"] = History()
            self.world.ranks[rank] = state

    def id(self, kind: CallKind) -> int:
        if kind not in self.ids:
            self.ids[kind] = len(self.ids) + 1
            self.world.kinds[self.ids[kind]] = kind
        return self.ids[kind]

    def group(self, name: str, ranks: Sequence[int]) -> Builder:
        for rank in ranks:
            self.world.ranks[rank].groups[name] = Group(name, tuple(ranks))
            self.world.ranks[rank].histories[name] = History()
        return self

    def calls(self, rank: int, kinds: Sequence[CallKind], group: str = "0", at: int = 1) -> Builder:
        """Appends calls to a rank's history, one second apart from second `at` on."""
        history = self.world.ranks[rank].histories.setdefault(group, History())
        for index, kind in enumerate(kinds):
            history.kinds.append(self.id(kind))
            history.times_ns.append((at + index) * SECOND)
        return self

    def blocked(
        self, rank: int, group: str = "0", since: int = 10, peers: Sequence[int] | None = None
    ) -> Builder:
        """The rank waits in the last call of its history in `group`."""
        state = self.world.ranks[rank]
        history = state.histories[group]
        name = group.removesuffix("/p2p")
        kind = "p2p" if group.endswith("/p2p") else "collective"
        members = state.groups[name].ranks
        others = tuple(peers) if peers is not None else tuple(r for r in members if r != rank)
        state.state = "blocked"
        state.wait = Wait(kind, name, history.end - 1, history.kinds[-1], others, since * SECOND)
        return self

    def waits(self, rank: int, kind: str, peers: Sequence[int], since: int = 10, detail: str = "") -> Builder:
        state = self.world.ranks[rank]
        state.state = "blocked"
        state.wait = Wait(kind, None, None, None, tuple(peers), since * SECOND, detail)
        return self

    def making_group(self, rank: int, since: int = 10) -> Builder:
        """The rank waits in the last new_group that it called."""
        state = self.world.ranks[rank]
        history = state.histories[SETUP]
        state.state = "blocked"
        state.wait = Wait("store", SETUP, history.end - 1, history.kinds[-1], (), since * SECOND, "new_group")
        return self

    def exited(self, rank: int, exit: Exit | None = None) -> Builder:
        state = self.world.ranks[rank]
        state.state = "exited"
        state.exit = exit or Exit(time_ns=9 * SECOND, status=0, clean=True)
        return self


def history(*ids: int, start: int = 0) -> History:
    return History(start, array("Q", ids))


def facts(builder: Builder, by_rank: Mapping[int, Mapping[str, object]]) -> None:
    for rank, values in by_rank.items():
        builder.world.ranks[rank].facts.update(values)


__all__ = ["SECOND", "Builder", "call", "facts", "history", "p2p", "site"]
