"""Launch faults: ranks that never come together, and groups that are never ended."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...findings import Confidence, Evidence, Finding, Location, Severity, Text, say
from ...world import SETUP
from ..case import Case, ranks_text, user_frames
from . import Rules, found

if TYPE_CHECKING:
    from ...world import RankState, Site

RULES = Rules()
"""For jobs that are stuck or died before their ranks met."""
FIRST = Rules()
"""For what explains all that follows: programs that refused their command line, ranks numbered against each other."""
NOTES = Rules()
"""For jobs that are over: what was left untidy."""


def _waiting_to_meet(case: Case) -> list[RankState]:
    """The ranks stuck in init_process_group."""
    stuck = [s for s in case.world.ranks.values() if s.wait is not None and s.wait.kind in ("init", "store")]
    return stuck if case.dead or case.final else []


def _place(case: Case, state: RankState, role: Text | None = None) -> Location | None:
    """Where the rank called init_process_group."""
    site: Site = tuple(state.facts.get("init_site", ())) or user_frames(state.stack)
    return case.place(site[-1], role=role) if site else None


def _settings(state: RankState) -> dict[str, Any]:
    """What init_process_group was given on this rank, from its arguments or the environment."""
    arguments = state.facts.get("init_arguments") or {}
    return dict(arguments)


def _rows(states: list[RankState], *names: str) -> tuple[str, ...]:
    return tuple(f"rank {s.rank}: " + ", ".join(f"{n}={_settings(s).get(n)}" for n in names) for s in states)


@FIRST.finds("local-rank-argument")
def local_rank_argument(case: Case) -> Finding | None:
    """The launcher passed --local-rank or --local_rank, and the script's parser does not know it or wanted it."""
    processes = [(s.rank, s.facts) for s in case.world.ranks.values()]
    processes += [(-1, a.get("facts", {})) for a in case.world.agents]
    refused = [(rank, facts["argparse"]) for rank, facts in processes if _LOCAL_RANK.search(_refusal(facts))]
    if not refused:
        return None
    first = refused[0][1]
    return found(
        "local-rank-argument",
        say("the script refused its command line: {error}", error=first["message"]),
        case.place(first["site"][-1]) if first["site"] else None,
        ranks=tuple(rank for rank, _ in refused if rank >= 0), severity=Severity.ERROR,
        fix=say(
            "read LOCAL_RANK from the environment, which every launcher of PyTorch sets, and accept both spellings: "
            'add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))'
        ),
    )  # fmt: skip


_LOCAL_RANK = re.compile(r"--?local[-_]rank")


def _refusal(facts: dict[str, Any]) -> str:
    return str(facts.get("argparse", {}).get("message", ""))


@FIRST.finds("rank-env-conflict")
def world_sizes_differ(case: Case) -> Finding | None:
    """Ranks that meet at one address with other world sizes, or twice with one rank number."""
    if not case.dead and not case.failures:
        return None
    states = [s for s in case.world.ranks.values() if _settings(s).get("world_size")]
    twice = tuple(s.rank for s in states if _comes_twice(case, s))
    if twice:
        message = say("two processes say that they are {ranks}", ranks=ranks_text(twice))
        return _found(case, "rank-env-conflict", message, states, twice, "rank", "world_size")
    # Ranks that meet again after destroy_process_group may do so with another size, each in its time.
    meetings = Counter((_settings(s).get("address"), _times_joined(case, s)) for s in states)
    place = meetings.most_common(1)[0][0] if meetings else None
    states = [s for s in states if (_settings(s).get("address"), _times_joined(case, s)) == place]
    sizes = Counter(_settings(s)["world_size"] for s in states)
    if len(sizes) < 2:
        return None
    message = say(
        "the ranks were given different world sizes: {sizes}", sizes=", ".join(map(str, sorted(sizes)))
    )
    rare = min(sizes.values())
    odd = tuple(s.rank for s in states if sizes[_settings(s)["world_size"]] == rare)
    return _found(case, "rank-env-conflict", message, states, odd, "rank", "world_size")


def _comes_twice(case: Case, state: RankState) -> bool:
    """True when another process came to init_process_group as the same rank, at the same address. That two processes
    have one RANK in their environment says less: a rank's own helpers inherit it."""
    others = (a.get("facts", {}) for a in case.world.agents)
    mine = _settings(state)
    return state.rank in state.facts.get("same_rank", ()) and any(
        state.rank in facts.get("same_rank", ())
        and (facts.get("init_arguments") or {}).get("address", "") == mine.get("address")
        and facts["init_arguments"].get("rank") == mine.get("rank")
        for facts in others
    )


def _times_joined(case: Case, state: RankState) -> int:
    """How often the rank has called init_process_group."""
    history = state.histories.get(SETUP)
    kinds = (case.world.kinds[call] for call in history.kinds) if history is not None else iter(())
    return sum(kind.signature.op == "init_process_group" for kind in kinds)


@RULES.finds("child-failed-first")
def left_before_meeting(case: Case) -> Finding | None:
    """Ranks that the others wait for in init_process_group and that ended by themselves before they came there."""
    stuck = _waiting_to_meet(case)
    missing = sorted({p for s in stuck if s.wait and s.wait.kind == "init" for p in s.wait.peers})
    left = [s for p in missing if (s := case.world.ranks.get(p)) is not None and _left(s)]
    if not left:
        return None
    first = left[0]
    assert first.exit is not None
    called = first.facts.get("exit_call") or {}
    status = first.exit.status if first.exit.status is not None else called.get("status")
    site: Site = user_frames(tuple(first.facts.get("exit_site", ())))
    names: dict[str, object] = {
        "ranks": ranks_text(tuple(s.rank for s in left)), "waiting": ranks_text(tuple(s.rank for s in stuck)),
    }  # fmt: skip
    if called:
        message = say(
            "{ranks} left by {how} with status {status} before init_process_group, where {waiting} wait for it",
            how=called["how"], status=status, **names,
        )  # fmt: skip
    else:
        message = say("{ranks} ended before init_process_group, where {waiting} wait for it", **names)
    meeting = _place(case, stuck[0], say("the others wait here"))
    return found(
        "child-failed-first" if status else "early-exit", message,
        case.place(site[-1]) if site else meeting, ranks=tuple(s.rank for s in left),
        severity=Severity.ERROR, evidence=(case.cycle(),),
        related=(meeting,) if site and meeting is not None else (),
        fix=say("see why it leaves there: what it printed last stands above"),
    )  # fmt: skip


def _left(state: RankState) -> bool:
    """True when the rank ended without an error or a signal, and never was in a group."""
    end = state.exit
    if state.state != "exited" or end is None or not state.seen() or "backend" in state.facts:
        return False
    return end.exception is None and end.signal is None and not end.ended_by_host


@RULES.finds("rendezvous-unreachable")
def addresses_differ(case: Case) -> Finding | None:
    """Ranks that wait for each other at different addresses."""
    stuck = _waiting_to_meet(case)
    addresses = Counter(a for s in stuck if (a := _settings(s).get("address")))
    if len(addresses) < 2:
        return None
    shown = ", ".join(str(address) for address in addresses)
    message = say(
        "the ranks look for each other at different addresses ({addresses}), so none finds the others",
        addresses=shown,
    )
    return _found(case, "rendezvous-unreachable", message, stuck, tuple(s.rank for s in stuck), "address")


@RULES.finds("rank-env-conflict")
def too_few_started(case: Case) -> Finding | None:
    """A world larger than the number of processes that the launch starts."""
    stuck = _waiting_to_meet(case)
    started = [a["nprocs"] for a in case.world.agents if a.get("nprocs")]
    sizes = {_settings(s).get("world_size") for s in stuck}
    if not stuck or len(sizes) != 1:
        return None
    size = sizes.pop()
    absent = sorted({p for s in stuck if s.wait for p in s.wait.peers if p not in case.world.ranks})
    if not absent or not isinstance(size, int):
        return None
    count = started[0] if started else len(case.world.ranks)
    message = say(
        "init_process_group waits for {size} ranks, and this launch started {count} processes: "
        "{absent} will never come",
        size=size, count=count, absent=ranks_text(tuple(absent)),
    )  # fmt: skip
    return _found(
        case, "rank-env-conflict", message, stuck, tuple(s.rank for s in stuck), "rank", "world_size"
    )


@RULES.finds("rendezvous-unreachable")
def never_met(case: Case) -> Finding | None:
    """Ranks stuck in init_process_group for ranks that ended or never came."""
    stuck = _waiting_to_meet(case)
    if not stuck:
        return None
    missing = tuple(sorted({p for s in stuck if s.wait for p in s.wait.peers}))
    message = say(
        "{ranks} waits in init_process_group for {missing}, which is not there",
        ranks=ranks_text(tuple(s.rank for s in stuck)),
        missing=ranks_text(missing) if missing else say("the others"),
    )
    return _found(case, "rendezvous-unreachable", message, stuck, missing, "rank", "world_size", "address")


def _found(
    case: Case, fault: str, message: Any, states: list[RankState], ranks: tuple[int, ...], *names: str
) -> Finding:
    fix = {
        "rank-env-conflict": say(
            "start as many processes as the world size says, and let one place set both: "
            "torchrun sets RANK and WORLD_SIZE"
        ),
        "rendezvous-unreachable": say(
            "choose MASTER_ADDR and MASTER_PORT once, before the processes are started, and give all of them the same"
        ),
    }[fault]  # fmt: skip
    return found(
        fault, message, _place(case, states[0]), ranks=ranks,
        confidence=Confidence.PROVED if case.dead else Confidence.MEASURED, severity=Severity.ERROR,
        evidence=(Evidence("environment", say("what each rank was given"), _rows(states[:16], *names)), case.cycle()),
        fix=fix,
    )  # fmt: skip


@NOTES.finds("group-membership")
def collective_of_an_outsider(case: Case) -> Finding | None:
    """A collective on a group that the calling rank is not in: PyTorch warns and does nothing."""
    calls = [(s.rank, row) for s in case.world.ranks.values() for row in s.facts.get("outsider_calls", ())]
    if not calls:
        return None
    first = calls[0][1]
    ranks = tuple(sorted({rank for rank, row in calls if row["site"] == first["site"]}))
    return found(
        "group-membership",
        say(
            "{ranks} called {op} on a group that it is not in: the call does nothing there",
            ranks=ranks_text(ranks), op=first["op"],
        ),
        case.place(first["site"][-1]) if first["site"] else None,
        ranks=ranks, severity=Severity.WARNING,
        fix=say("call it on the members only, or use a group that holds every rank that calls"),
    )  # fmt: skip


@NOTES.finds("process-group-not-destroyed")
def group_not_destroyed(case: Case) -> Finding | None:
    """Ranks that ended cleanly with a live process group."""
    left = [
        s for s in case.world.ranks.values()
        if s.exit is not None and s.exit.clean and s.exit.exception is None
        and s.facts.get("group_alive") and not s.facts.get("destroyed")
    ]  # fmt: skip
    if not left or any(f.rank is not None for f in case.failures):
        return None
    return found(
        "process-group-not-destroyed",
        say("{ranks} ended without destroy_process_group", ranks=ranks_text(tuple(s.rank for s in left))),
        _place(case, left[0]), ranks=tuple(s.rank for s in left),
        fix=say("call torch.distributed.destroy_process_group() at the end of the program"),
    )  # fmt: skip
