"""The world as the plain values of `Report.world`: a table of ranks, sizes, versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..world import CallKind, Exit, RankState, World


def summary(world: World) -> dict[str, Any]:
    """What a reader of a report wants to know of the ranks, as JSON values."""
    ranks = [state for _, state in sorted(world.ranks.items()) if not state.facts.get("remote")]
    versions = sorted({str(s.facts["torch_version"]) for s in ranks if s.facts.get("torch_version")})
    backends = sorted({str(s.facts["backend"]) for s in ranks if s.facts.get("backend")})
    return {
        "size": world.size,
        "root": world.root,
        "torch": versions,
        "backends": backends,
        "ranks": [_row(world, state) for state in ranks],
    }


def compared(world: World) -> dict[str, int] | None:
    """How much of the training the ranks' gradients and parameters were compared for: steps of optimizers, and those
    that every rank sampled; the rest was left to the budget. None where nothing was."""
    samples = [state.facts.get("observed", {}).get("sample", []) for state in world.ranks.values()]
    samples = [rows for rows in samples if rows]
    if not samples:
        return None
    made = [state.facts.get("steps", 0) for state in world.ranks.values()]
    return {
        "steps": max(*made, *(rows[-1]["total"] for rows in samples)),
        "compared": len(set.intersection(*({(r["optimizer"], r["step"]) for r in rows} for rows in samples))),
    }


def _row(world: World, state: RankState) -> dict[str, Any]:
    return {
        "rank": state.rank,
        "local_rank": state.local_rank,
        "node": state.node,
        "pid": state.pid,
        "state": state.state,
        "positions": {name: history.end for name, history in state.histories.items()},
        "wait": _wait(world, state),
        "site": _site(world, state),
        "exit": _exit(state.exit),
        "calls": sum(h.end for n, h in state.histories.items() if n != "0/setup"),
        "python": state.facts.get("python_version"),
    }


def _wait(world: World, state: RankState) -> dict[str, Any] | None:
    wait = state.wait
    if wait is None:
        return None
    kind = world.kind(wait.call)
    return {
        "kind": wait.kind,
        "group": wait.group,
        "position": wait.position,
        "op": kind.signature.op if kind is not None else None,
        "inside": kind.inside if kind is not None else "",
        "peers": list(wait.peers),
        "for_s": round(max(0, world.now_ns - wait.since_ns) / 1e9, 3),
        "detail": wait.detail,
    }


def _site(world: World, state: RankState) -> dict[str, Any] | None:
    """The user's line at which the rank stands, or made its last call."""
    kind = world.kind(state.wait.call) if state.wait is not None else _last_call(world, state)
    frames = [] if state.stack_is_old() else [f for f in state.stack if f.user]
    if not frames or state.wait is not None:
        frames = list(kind.site if kind is not None and kind.site else frames)
    if not frames:
        return None
    return {"path": frames[-1].path, "line": frames[-1].line, "function": frames[-1].function}


def _last_call(world: World, state: RankState) -> CallKind | None:
    last = [(h.times_ns[-1], h.kinds[-1]) for h in state.histories.values() if h.kinds and h.times_ns]
    return world.kind(max(last)[1]) if last else None


def _exit(end: Exit | None) -> dict[str, Any] | None:
    if end is None:
        return None
    return {
        "status": end.status,
        "signal": end.signal,
        "exception": f"{end.exception.type}: {end.exception.message}" if end.exception is not None else None,
        "clean": end.clean,
        "ended_by_host": end.ended_by_host,
    }
