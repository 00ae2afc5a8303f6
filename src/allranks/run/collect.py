"""From guests to the `World`: who is which rank, and what is known of each.

Keys of `RankState.facts` (absent where not known):

| key | value |
| --- | --- |
| torch_version, python_version, executable | text |
| backend, world_size, device | of the default group; the current CUDA device if CUDA was initialised by then |
| init_arguments | given to init_process_group: backend, init_method, rank, world_size, address, timeout (s), ... |
| init_site | the call site of init_process_group (Site) |
| destroyed, group_alive | destroy_process_group was called last; a group was alive at the end |
| steps | steps that its optimizers made in all, once it said goodbye |
| clean | True once the interpreter ran to its end, whatever signal came after |
| exit_site, exit_call | where sys.exit, os._exit or os.kill(self) was called (Site); {how, status, text, site} |
| no_script | the script that it was started with, where there is no such file |
| argparse | {message, site}: the command line that the script did not take |
| loaders | [{site, drawn, exhausted, exception, without_calls}] per iterator over a DataLoader, oldest first |
| outsider_calls | [{op, site}]: collectives on a group that this rank is not in; PyTorch makes them no-ops |
| causes | {index in `exceptions`: "Type: message" of its cause} |
| thread_exceptions | indices in `exceptions` of those that ended a thread |
| unheard | True: launched as a rank, and its recorder never said hello |
| expected, remote | True: not heard from yet; on another node |
| locals | [{path, line, variables}] of the user's frames, outermost first, when asked for a verdict |
| same_rank | ranks that two living processes claim |
| pending | (group, position) of every call that is not known to be complete |
| unresponsive_s | for how long the guest has not answered: the process holds the GIL or is frozen |
| process_state | state letter of /proc when it is "T" (stopped) or "D" (in the kernel) |
| sigterm | True when SIGTERM ended it |
| records_lost | records overwritten before they were read |
| late_stacks | [(time_ns, Site)]: where it stood, while it was the last to come to most calls (run/lateness.py) |
| scheduled | [(time_ns, ns that the main thread has run, ns that it has waited for a processor)] |
| observed | {topic: [row, ...]}: what hooks saw, in order; `site` and `..._site` of a row that is a dict are Sites |
| digests | {part of an optimizer: {step: sample}}: see judge/digests.py; samples in which all agree are dropped |
| agreed | {part: last sampled step after which all ranks had the same parameters} |
| observed_beyond | {topic: rows that came when the topic held as many as it may} |

`World.agents` has a row per process that is not a rank: {pid, role ("agent", "launcher", "worker", "process"), argv,
exit (Exit or None), exceptions, nprocs, children: {pid: status}}.
"""

from __future__ import annotations

import os
import signal as signals
import time
from typing import TYPE_CHECKING, Any

from ..findings import BlindSpot, say
from ..judge.digests import settle
from ..world import RankState, World
from . import process
from .guest import Guest, Kinds

if TYPE_CHECKING:
    from .server import Connection, Message

STATUS_PATIENCE_S = 0.3
"""How long after a process is gone its parent may take to say with which status."""


class Collector:
    """Takes messages in and keeps `world` true. All methods are called by one thread."""

    def __init__(self, root: str) -> None:
        self.world = World(root=root, live=True)
        self.kinds = Kinds(self.world.kinds)
        self.guests: dict[Connection, Guest] = {}
        self.by_pid: dict[int, Guest] = {}
        self.answers: list[tuple[Guest, int, dict[str, Any]]] = []
        self.blind_spots: list[BlindSpot] = []
        self.ranks: dict[int, Guest] = {}
        self.unseen: dict[int, dict[str, str]] = {}
        self.statuses: dict[int, int] = {}
        self._signalled: dict[int, int] = {}
        self._gone_since: dict[int, float] = {}
        self.records = 0

    # Messages

    def take(self, queue: list[tuple[Connection, Message | None]]) -> None:
        """Takes in what the server queued."""
        for connection, message in queue:
            guest = self.guests.get(connection)
            if message is None:
                if guest is not None:
                    guest.connected = False
            elif guest is None:
                if message[0] == "hello":
                    self._hello(connection, message[1])
            elif message[0] == "answer" and len(message) == 3:
                self.answers.append((guest, message[1], message[2]))
            elif message[0] == "child":
                self.reaped(int(message[1]), int(message[2]))
                guest.facts.setdefault("children", {})[int(message[1])] = int(message[2])
            elif message[0] == "signalled":
                self._signalled[int(message[1])] = guest.pid
            else:
                guest.heard(message)
                if message[0] in ("init", "ready"):
                    self._claim(guest)

    def _hello(self, connection: Connection, hello: dict[str, Any]) -> None:
        guest = Guest(connection, hello, self.kinds)
        before = self.by_pid.get(guest.pid)
        if before is not None:  # the process has replaced itself (exec)
            before.ended(None)
            self.ranks = {r: g for r, g in self.ranks.items() if g is not before}
        guest.facts.update(python_version=hello.get("python"), executable=hello.get("executable"))
        self.guests[connection] = guest
        self.by_pid[guest.pid] = guest
        rank = guest.environment.get("RANK", "")
        if (
            rank.isdigit()
            and not hello.get("child")
            and not self._below_same_rank(guest)
            and not _helper(guest)
        ):
            guest.rank = int(rank)
            self._claim(guest)

    def _below_same_rank(self, guest: Guest) -> bool:
        """True when a process above already has this RANK: a worker of a rank inherits its environment."""
        above = self.by_pid.get(int(guest.hello.get("ppid") or 0))
        return above is not None and above.environment.get("RANK") == guest.environment.get("RANK")

    def _claim(self, guest: Guest) -> None:
        """A process says that it is a rank."""
        rank = guest.rank
        if rank is None:
            return
        holder = self.ranks.get(rank)
        if holder is guest:
            return
        if holder is not None and self._alive(holder):
            if not holder.ready and "init_arguments" not in holder.facts and "init_arguments" in guest.facts:
                pass  # a wrapper script with the same environment gives way to the process that joins the group
            else:
                for one in (holder, guest):
                    one.facts.setdefault("same_rank", []).append(rank)
                return
        elif holder is not None or self._older_round(guest):
            # A new round of the job (elastic restart, or the next launch of a script): the old one is history.
            self.ranks = {r: g for r, g in self.ranks.items() if self._alive(g) and not self._older(g, guest)}
            self.world.ranks = {r: s for r, s in self.world.ranks.items() if r in self.ranks}
        self.ranks[rank] = guest

    def _older_round(self, guest: Guest) -> bool:
        return any(self._older(other, guest) for other in self.ranks.values())

    @staticmethod
    def _older(one: Guest, other: Guest) -> bool:
        name = "TORCHELASTIC_RESTART_COUNT"
        a, b = one.environment.get(name, ""), other.environment.get(name, "")
        return a.isdigit() and b.isdigit() and int(a) < int(b)

    @staticmethod
    def _alive(guest: Guest) -> bool:
        return not guest.ended_ns and not guest.facts.get("clean")

    # Processes

    def reaped(self, pid: int, status: int) -> None:
        """Someone reaped a child: `status` as subprocess has it, negative for a signal."""
        self.statuses[pid] = status
        guest = self.by_pid.get(pid)
        if guest is not None:
            guest.ended(status, by=self._signalled.get(pid))

    def look(self) -> None:
        """Reads the rings, and finds out which processes are gone."""
        now = time.monotonic()
        for guest in self.by_pid.values():
            if guest.read_out:
                continue
            self.records += guest.read()
            guest.read_out = bool(guest.ended_ns) and not guest.connected
            if guest.ended_ns:
                continue
            if guest.rank is not None:
                guest.schedule()
            if guest.connected or not process.gone(guest.pid):
                continue
            self.records += guest.read()
            status = process.zombie_status(guest.pid)
            if status is not None:
                guest.ended(os.waitstatus_to_exitcode(status), by=self._signalled.get(guest.pid))
            elif now - self._gone_since.setdefault(guest.pid, now) > STATUS_PATIENCE_S:
                guest.ended(self.statuses.get(guest.pid), by=self._signalled.get(guest.pid))

    def unheard(self, pids: list[int]) -> None:
        """Remembers descendants that were launched as ranks and never said hello (`python -I`, `-E`, `-S`)."""
        for pid in pids:
            if pid in self.by_pid or pid in self.unseen:
                continue
            variables = process.environment(pid)
            command = process.command(pid)
            python = bool(command) and "python" in os.path.basename(command[0])
            if python and variables.get("RANK", "").isdigit() and "ALLRANKS_SOCKET" in variables:
                self.unseen[pid] = variables

    # The world

    def update(self) -> World:
        """Brings `world` up to date with what is known of the guests; waits are set by the watch."""
        world = self.world
        world.now_ns = time.time_ns()
        for rank, guest in self.ranks.items():
            state = world.ranks.get(rank)
            if state is None or state.pid != guest.pid:
                state = world.ranks[rank] = RankState(rank, pid=guest.pid, state="starting")
            self._fill(state, guest)
        world.size = self._size(world)
        settle(world)
        claimed = {guest.pid for guest in self.ranks.values()}
        world.agents = [_agent(guest) for guest in self.by_pid.values() if guest.pid not in claimed]
        return world

    def _size(self, world: World) -> int | None:
        """The world size: as the groups have it, else as the ranks were told."""
        facts = [state.facts for state in world.ranks.values()]
        sizes = [f["world_size"] for f in facts if "world_size" in f]
        sizes = sizes or [f["init_arguments"]["world_size"] for f in facts if "init_arguments" in f]
        told = [s.environment for s in world.ranks.values()] + list(self.unseen.values())
        sizes = [n for n in sizes if n] or [
            int(v["WORLD_SIZE"]) for v in told if v.get("WORLD_SIZE", "").isdigit()
        ]
        return max(sizes, default=None)

    def _fill(self, state: RankState, guest: Guest) -> None:
        local = guest.environment.get("LOCAL_RANK", "")
        state.local_rank = int(local) if local.isdigit() else None
        state.node = os.uname().nodename
        state.histories, state.groups = guest.histories, guest.groups
        state.environment, state.facts = guest.environment, guest.facts
        state.exceptions = guest.exceptions
        state.facts["loaders"] = guest.loader_facts()
        state.exit = guest.exit()
        if state.exit is not None:
            state.state, state.wait = "exited", None
            state.facts["sigterm"] = state.exit.signal == signals.SIGTERM
        elif state.state in ("starting", "exited"):
            state.state = "running" if guest.ready else "starting"

    def spots(self) -> list[BlindSpot]:
        """What was not seen, and why."""
        found = list(self.blind_spots)
        silent = tuple(sorted(r for r, s in self.world.ranks.items() if s.facts.get("unheard")))
        if silent:
            found.append(BlindSpot("rank-not-heard", say(
                "the recorder did not start in these ranks (python -I, -E or -S, a Python older than 3.8): "
                "nothing is known of their calls"), silent))  # fmt: skip
        for rank, guest in sorted(self.ranks.items()):
            for what, why in guest.blind:
                found.append(
                    BlindSpot(
                        f"no-{what}",
                        say("not seen on rank {rank}: {what} ({why})", rank=rank, what=what, why=why),
                        (rank,),
                    )
                )
            if guest.broken:
                found.append(BlindSpot("recorder-error", say(
                    "the recorder of rank {rank} met an error: {error}", rank=rank, error=guest.broken[0]), (rank,),
                    len(guest.broken)))  # fmt: skip
            if guest.ring is None:
                found.append(
                    BlindSpot(
                        "no-shared-memory",
                        say("rank {rank} has no shared memory to record to", rank=rank),
                        (rank,),
                    )
                )
        return found

    def close(self) -> None:
        """Lets the rings go."""
        for guest in self.by_pid.values():
            if guest.ring is not None:
                guest.ring.close()
                guest.ring = None


def _helper(guest: Guest) -> bool:
    """True for the helpers of torch.compile and of multiprocessing, which inherit a rank's environment."""
    return any("compile_worker" in word or "resource_tracker" in word for word in guest.hello.get("argv", ()))


def _agent(guest: Guest) -> dict[str, Any]:
    argv = [str(word) for word in guest.hello.get("argv", ())]
    line = " ".join(argv)
    role = "process"
    if guest.hello.get("child") or "--multiprocessing-fork" in argv or _helper(guest):
        role = "worker"
    elif any(
        mark in line
        for mark in (
            "torchrun",
            "torch.distributed.run",
            "torch.distributed.launch",
            "accelerate",
            "deepspeed",
        )
    ):
        role = "agent"
    elif guest.facts.get("nprocs") or guest.facts.get("children"):
        role = "launcher"
    return {
        "pid": guest.pid, "role": role, "argv": argv, "exit": guest.exit(), "exceptions": list(guest.exceptions),
        "nprocs": guest.facts.get("nprocs"), "children": dict(guest.facts.get("children", {})),
        "facts": guest.facts, "environment": guest.environment,
    }  # fmt: skip
