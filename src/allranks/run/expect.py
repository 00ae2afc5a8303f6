"""Who is still to come: ranks of the world that have not been heard from, and whether they ever will."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..world import Exit, RankState, World
from . import process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .collect import Collector
    from .launch import Job

LOOPBACK = ("127.", "localhost", "[::1]", "::1")


class Expectation:
    """Gives every rank of the world a state, unless it is certain that it will never come."""

    def __init__(self, collector: Collector, job: Job) -> None:
        self.collector = collector
        self.job = job
        self.processes: list[int] = []

    def look_around(self, world: World) -> None:
        """Looks at the processes of the job while ranks are missing; cheap enough for once a second."""
        if world.size is None or self._missing(world):
            self.processes = self.job.descendants()
            self.collector.unheard(self.processes)

    def fill(self, world: World) -> None:
        """Adds the ranks that have not been heard from as "starting" or "exited"; who will never come is left out."""
        missing = self._missing(world)
        if not missing:
            return
        unheard = {int(v["RANK"]): pid for pid, v in self.collector.unseen.items()}
        never = self._nobody_comes(world)
        for rank in missing:
            pid = unheard.get(rank, 0)
            if never and not pid:
                world.ranks.pop(rank, None)
                continue
            if rank not in world.ranks or world.ranks[rank].pid != pid:
                world.ranks[rank] = RankState(rank, pid=pid, state="starting")
            state = world.ranks[rank]
            state.facts = {"unheard" if pid else "remote" if self._elsewhere(world) else "expected": True}
            if pid and process.gone(pid):
                status = self.collector.statuses.get(pid)
                signal = -status if status is not None and status < 0 else None
                state.state = "exited"
                state.exit = Exit(world.now_ns, None if signal else status, signal)

    def _missing(self, world: World) -> list[int]:
        return [rank for rank in range(world.size or 0) if rank not in self.collector.ranks]

    def _elsewhere(self, world: World) -> bool:
        """True unless all ranks of the world are on this node."""
        for state in world.ranks.values():
            variables = state.environment
            local, size = variables.get("LOCAL_WORLD_SIZE", ""), variables.get("WORLD_SIZE", "")
            if local.isdigit() and size.isdigit():
                return int(local) < int(size)
            address = str(state.facts.get("init_arguments", {}).get("address", "")).split("://")[-1]
            if address.startswith(LOOPBACK):
                return False
        return True

    def _nobody_comes(self, world: World) -> bool:
        """True when every process that could still become a rank, or start one, is known not to."""
        if self._elsewhere(world):
            return False
        guests = list(self.collector.ranks.values())
        if not guests or any(g.environment.get("LOCAL_WORLD_SIZE") for g in guests):
            return False  # a launch agent starts as many as it says
        if any(
            s.state not in ("blocked", "exited")
            for s in world.ranks.values()
            if s.rank in self.collector.ranks
        ):
            return False
        ranks, known = {g.pid for g in guests}, [g.environment for g in guests]
        below = set(process.descendants(sorted(ranks)))
        if any(
            _named(process.environment(pid)) not in ((None, None), *map(_named, known))
            for pid in below - ranks
        ):
            return False  # a rank that starts the others itself, as Lightning does
        for pid in self.processes:
            if pid in ranks or pid in below or process.gone(pid):
                continue
            guest = self.collector.by_pid.get(pid)
            started = guest.facts.get("nprocs") if guest is not None else None
            if isinstance(started, int):
                children = [g for g in guests if g.hello.get("ppid") == pid]
                if len(children) >= started:
                    continue
            if not _waits_for_children(pid) and not _tracker(pid):
                return False
        return True


def _named(variables: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The rank that an environment gives to its process."""
    return variables.get("RANK"), variables.get("LOCAL_RANK")


def _waits_for_children(pid: int) -> bool:
    """True for a process inside wait4 or waitid: it does nothing until a child ends."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "do_wait"
    except OSError:
        return False


def _tracker(pid: int) -> bool:
    return any("resource_tracker" in word or "forkserver" in word for word in process.command(pid))
