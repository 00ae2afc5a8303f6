"""Who waits for whom, and the proof that a wait is hopeless. No timeout takes part.

A rank blocked in a collective waits for every member of the group to make that call. Follow the waits: a rank
that computes may still come; a rank that has exited never will. Blocked ranks that no computing rank can free,
directly or through others, form a dead set (the AND-wait-for graph of distributed deadlock detection; MUST uses
it for MPI).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..world import SETUP, RankState, Signature, Wait, World, p2p
from .compare import mismatch


@dataclass(frozen=True, slots=True)
class Edge:
    """`waiter` needs `peer` to act, and `reason` says why it has not: "exited", "elsewhere", "mismatch", "absent"."""

    waiter: int
    peer: int
    reason: str


@dataclass(slots=True)
class DeadSet:
    """Ranks that can only be freed by each other or by ranks that are gone, and the edges that prove it."""

    ranks: tuple[int, ...] = ()
    edges: tuple[Edge, ...] = ()
    since_ns: int = 0
    """When the last of them blocked."""
    gone: tuple[int, ...] = field(default=())
    """Ranks that they wait for and that have exited."""

    def __bool__(self) -> bool:
        return bool(self.ranks)

    def cycle(self) -> tuple[int, ...]:
        """A shortest circle of ranks that wait for each other, or a chain that ends at a rank that is gone."""
        following: dict[int, list[int]] = {}
        for edge in self.edges:
            following.setdefault(edge.waiter, []).append(edge.peer)
        best: tuple[int, ...] = ()
        for start in self.ranks[:64]:  # one short circle is all a reader needs, also of thousands of ranks
            path = _shortest_circle(start, following)
            if path and (not best or len(path) < len(best)):
                best = path
        return best


def _shortest_circle(start: int, following: dict[int, list[int]]) -> tuple[int, ...]:
    paths: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    while paths:
        path = paths.pop(0)
        for peer in following.get(path[-1], ()):
            if peer == start or peer not in following:
                return (*path, peer)
            if peer not in seen:
                seen.add(peer)
                paths.append((*path, peer))
    return ()


def dead_set(world: World) -> DeadSet:
    """The blocked ranks of `world` that nothing alive can free; empty while any of them still has a chance."""
    blocked = {r: s for r, s in world.ranks.items() if s.state == "blocked" and s.wait is not None}
    edges: dict[int, list[Edge]] = {rank: _edges(world, state) for rank, state in blocked.items()}
    # Least fixed point: whoever computes can act; a blocked rank can be freed once all it waits for can act.
    # A rank without a recorder may have done, or be doing, all that is asked of it.
    able = {r for r, s in world.ranks.items() if s.state in ("running", "starting") or not s.seen()}
    changed = True
    while changed:
        changed = False
        for rank, needs in edges.items():
            if rank not in able and _can_be_freed(blocked[rank], needs, able):
                able.add(rank)
                changed = True
    dead = tuple(sorted(rank for rank in blocked if rank not in able))
    proof = tuple(edge for rank in dead for edge in edges[rank] if edge.peer not in able)
    waits = [blocked[rank].wait for rank in dead]
    return DeadSet(
        ranks=dead,
        edges=proof,
        since_ns=max((wait.since_ns for wait in waits if wait is not None), default=0),
        gone=tuple(sorted({e.peer for e in proof if e.reason in ("exited", "absent")})),
    )


def _can_be_freed(state: RankState, needs: list[Edge], able: set[int]) -> bool:
    assert state.wait is not None
    hopeful = [edge.peer in able and edge.reason != "mismatch" for edge in needs]
    if state.wait.detail == "any":  # a receive from anyone: one sender is enough
        return not needs or any(hopeful)
    return all(hopeful)


def _edges(world: World, state: RankState) -> list[Edge]:
    """One edge for each rank that has not yet done what `state` waits for."""
    wait = state.wait
    assert wait is not None
    found = []
    for peer in sorted(world.ranks) if _makes_group(world, wait) else wait.peers:
        if peer == state.rank:
            continue
        other = world.ranks.get(peer)
        if other is None:
            found.append(Edge(state.rank, peer, "absent"))
            continue
        reason = _unmet(world, state, wait, other)
        if reason is not None:
            found.append(Edge(state.rank, peer, reason))
    return found


def _makes_group(world: World, wait: Wait) -> bool:
    """True for a new_group that every rank of the world must make, in the same order."""
    kind = world.kind(wait.call) if wait.group == SETUP else None
    return (
        kind is not None
        and kind.signature.op in ("new_group", "split_group")
        and not (kind.signature.detail or "").endswith("local")
    )


def _unmet(world: World, state: RankState, wait: Wait, peer: RankState) -> str | None:
    """Why `peer` has not done its part of `wait`; None when it has."""
    arrived = _arrived(world, state, wait, peer)
    if arrived == "yes":
        return None
    if arrived == "mismatch":
        return "mismatch"
    return "exited" if peer.state == "exited" else "elsewhere"


def _arrived(world: World, state: RankState, wait: Wait, peer: RankState) -> str:
    """ "yes" when the peer has made the matching call, "mismatch" when it made another in its place, else "no"."""
    if wait.kind == "collective" and wait.group is not None and wait.position is not None:
        history = peer.histories.get(wait.group)
        if history is None or history.end <= wait.position:
            return "no"
        theirs, mine = world.kind(history.at(wait.position)), world.kind(wait.call)
        if theirs is not None and mine is not None and _never_completes(theirs.signature, mine.signature):
            return "mismatch"
        if _torn_group(world, state, wait.group):
            return "mismatch"
        # A rank that died inside this very call never finished its part.
        died_inside = (
            peer.state == "exited"
            and history.end == wait.position + 1
            and not (peer.exit and peer.exit.clean)
        )
        return "no" if died_inside else "yes"
    if wait.kind == "p2p" and wait.group is not None:
        return "yes" if _posted(world, state, wait, peer) else "no"
    if _makes_group(world, wait) and wait.position is not None:
        history = peer.histories.get(SETUP)
        made = world.kind(history.at(wait.position)) if history is not None else None
        mine = world.kind(wait.call)
        if made is None or mine is None:
            return "no"
        return "yes" if made.signature == mine.signature else "mismatch"
    return "no"  # of other waits at a store `run` lists as peers only those ranks that have not set their key


_ROOTED = frozenset({"broadcast", "scatter", "gather"})
"""Operations in which the root's part and the others' are different: with two roots, none is served."""


def _never_completes(theirs: Signature, mine: Signature) -> bool:
    """True when a wait for the pair of calls cannot end: other operations, other amounts of data, or two roots. Another
    ReduceOp, or another root of a reduce, computes garbage, but it ends."""
    what = mismatch(theirs, mine)
    return what in ("op", "shape") or (what == "root" and mine.op in _ROOTED)


def _torn_group(world: World, state: RankState, name: str) -> bool:
    """True when other ranks made another group in place of this one: its members may have met strangers, and a call
    that all of them have made need not end."""
    group, mine = state.groups.get(name), state.histories.get(SETUP)
    if group is None or mine is None or len(group.ranks) == len(world.ranks):
        return False
    wanted = str(list(group.ranks))
    for position in range(mine.start, mine.end):
        made = world.kind(mine.at(position))
        if made is None or made.signature.op != "new_group" or made.signature.detail != wanted:
            continue
        others = (r.histories.get(SETUP) for r in world.ranks.values())
        instead = [
            world.kind(h.at(position)) for h in others if h is not None and h.start <= position < h.end
        ]
        if any(
            k is not None and k.signature.op == "new_group" and k.signature != made.signature for k in instead
        ):
            return True
    return False


def _posted(world: World, state: RankState, wait: Wait, peer: RankState) -> bool:
    """True when the peer has posted at least as many matching calls as this rank has made towards it."""
    mine = world.kind(wait.call)
    if mine is None or wait.group is None:
        return False
    sending = mine.signature.op == "send"
    wanted = ("recv", "recv_any") if sending else ("send",)
    made = _count(world, state, wait.group, (mine.signature.op,), peer.rank, mine.signature.tag)
    posted = _count(world, peer, wait.group, wanted, state.rank, mine.signature.tag)
    return posted >= made


def _count(
    world: World, state: RankState, group: str, ops: tuple[str, ...], peer: int, tag: int | None
) -> int:
    history = state.histories.get(p2p(group))
    if history is None:
        return 0
    matching = {
        key
        for key, kind in world.kinds.items()
        if kind.signature.op in ops
        and (kind.signature.peer in (peer, None))
        and (tag is None or kind.signature.tag in (tag, None))
    }
    return sum(1 for call in history.kinds if call in matching)
