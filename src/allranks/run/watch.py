"""The loop around a running job: read, see who is blocked, judge, and end the job when it is proved dead."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..findings import BlindSpot, Finding, Report, Severity, say
from ..world import RankState, World
from . import process
from .collect import Collector
from .expect import Expectation
from .lateness import Lateness
from .launch import GRACE_S, LEFT_S, Job, environment, exit_status
from .server import Server
from .spy import Spy
from .standing import Standing, absent_from
from .summary import compared, summary

if TYPE_CHECKING:
    from .guest import Guest

TICK_S = 0.05
CALM_S = 0.15
"""A turn while every rank makes calls: a look takes time from training where all processors are in use."""
LOOK_AROUND_S = 1.0
REMEMBER_S = 0.25
NEWS_S = 2.0
"""How long a finding on a job that goes on must stand before it is told while the job runs."""
SETTLE_S = 0.35
CONFIRM_S = 0.6
"""How long the guests may take to confirm, before a verdict, that they still stand where they stood."""
LAUNCHER_S = 5.0
"""How long a launch agent may take to act when a rank has failed, before the others are ended for it."""
DEAD = 4
"""Exit status of a run that was ended because it was proved dead."""

Judge = Callable[..., "list[Finding]"]
Live = Callable[[World], None]
Sink = Callable[[Report], None]
News = Callable[[Finding], None]


@dataclass(slots=True)
class Verdict:
    """What the judge said last, and when the job was found dead."""

    findings: list[Finding] = field(default_factory=list)
    dead: bool = False
    time_ns: int = 0
    since_ns: int = 0


class Watch:
    """One run of one command."""

    def __init__(
        self, job: Job, server: Server, root: str, judge: Judge, dead: Callable[[World], bool]
    ) -> None:
        self.job = job
        self.server = server
        self.collector = Collector(root)
        self.expectation = Expectation(self.collector, job)
        self.spy = Spy()
        self.judge = judge
        self.dead = dead
        self.standings: dict[Guest, Standing] = {}
        self.lateness = Lateness()
        self.verdict = Verdict()
        self.problems: list[BlindSpot] = []
        self.stood: dict[str, Any] | None = None
        """Where the ranks were shortly before the job was interrupted, if it was: then they are gone at once."""
        self._next_look = 0.0
        self._since: dict[object, float] = {}
        self._told: set[object] = set()
        self._next_news = time.monotonic() + NEWS_S
        self._number = 0
        self._judged: object = None
        self._slow: Finding | None = None
        self._next_judgement = 0.0
        self._look_around_at = 0.0

    # One turn

    def turn(self) -> None:
        """Takes in all that is new."""
        living = self._living()
        calm = bool(living) and all(standing.active_s() < TICK_S for standing in living)
        self.server.arrived.wait(CALM_S if calm else TICK_S)
        self.refresh()
        for standing in self._living():
            if standing.due():
                self._number += 1
                standing.ask(self._number)
        self.lateness.sample(self.collector.world, self.collector.ranks)

    def remember(self) -> None:
        """Keeps where the ranks are, in case that the job is interrupted."""
        if self.job.interrupted is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + REMEMBER_S
            self.stood = summary(self.collector.world)

    def refresh(self) -> World:
        """Messages, rings and processes into the world."""
        collector = self.collector
        collector.take(self.server.take())
        self.job.poll()
        for pid, status in list(self.job.statuses.items()):
            if pid not in collector.statuses:
                collector.reaped(pid, status)
        collector.look()
        now = time.monotonic()
        if now >= self._look_around_at:
            self._look_around_at = now + LOOK_AROUND_S
            self.job.reap_orphans()
            self.expectation.look_around(collector.world)
        world = collector.update()
        for standing in self._living():
            standing.moved()
        answers, collector.answers = collector.answers, []
        for guest, number, answer in answers:
            self._answer(guest, number, answer)
        for rank, guest in collector.ranks.items():
            self._stand(world.ranks[rank], guest)
        self.expectation.fill(world)
        for state in world.ranks.values():
            if state.wait is not None and state.wait.kind in ("init", "store") and not state.wait.peers:
                state.wait = replace(state.wait, peers=absent_from(state.wait, state, world))
        return world

    def _living(self) -> list[Standing]:
        found = []
        for guest in self.collector.ranks.values():
            if not guest.ended_ns and not guest.facts.get("clean"):
                if guest not in self.standings:
                    self.standings[guest] = Standing(guest)
                found.append(self.standings[guest])
        return found

    def _answer(self, guest: Guest, number: int, answer: dict[str, Any]) -> None:
        standing = self.standings.get(guest)
        if standing is None or self.lateness.answered(guest, number, answer):
            return
        if "locals" in answer:
            guest.facts["locals"] = [
                {"path": path, "line": line, "variables": variables}
                for path, line, variables in answer["locals"]
            ]
        elif standing.asked == number:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                standing.answered(answer, self.collector.world)
                guest.facts["pending"] = [
                    (found[1], found[0].position)
                    for serial in answer["pending"] if (found := guest.call_of(serial)) is not None
                ]  # fmt: skip

    def _stand(self, state: RankState, guest: Guest) -> None:
        standing = self.standings.get(guest)
        if state.state == "exited" or standing is None:
            return
        state.stack, state.stack_since_ns = standing.stack, standing.stack_since_ns
        waited = standing.unresponsive_s()
        if waited > 1:
            guest.facts["unresponsive_s"] = waited
            if guest.pid not in self.spy.stacks or waited > 10:
                self.spy.look(guest.pid)
            state.stack = self.spy.stacks.get(guest.pid, state.stack)
            letter = process.state(guest.pid)
            guest.facts["process_state"] = letter if letter in ("T", "D") else None
        else:
            guest.facts.pop("unresponsive_s", None)
            self.spy.stacks.pop(guest.pid, None)
        if standing.wait is not None:
            state.state = "blocked"
            state.wait = standing.wait if state.wait is None or _moved(state, standing) else state.wait
        else:
            state.state, state.wait = "running" if guest.ready else "starting", None

    def stumbled(self, error: Exception) -> None:
        """An error of the watch itself: said, and the job is not harmed."""
        text = f"{type(error).__name__}: {error}"
        if not any(spot.slug == "watch-error" for spot in self.problems):
            self.problems.append(BlindSpot("watch-error", say("the watch met an error: {error}", error=text)))

    # Judging

    def consider(self) -> bool:
        """Judges when something changed; True when the job is dead."""
        world = self.collector.world
        now = time.monotonic()
        situation = tuple(
            (
                r,
                s.state,
                s.wait and (s.wait.kind, s.wait.group, s.wait.position, s.wait.peers),
                len(s.exceptions),
            )
            for r, s in sorted(world.ranks.items())
        )
        changed = situation != self._judged
        if not changed and (now < self._next_judgement or not self.collector.records):
            return False
        started = time.monotonic()
        findings = self.ask_judge(final=False)
        took = time.monotonic() - started
        # At most one part in twenty of the host's time goes into judging a job that runs on.
        self._next_judgement = time.monotonic() + max(0.5, 20 * took)
        self._judged = situation
        if not any(f.severity is Severity.ERROR for f in findings) or not self.dead(world):
            self.verdict.findings = findings
            self._slow = next((f for f in findings if f.fault == "slow-rank"), self._slow)
            return False
        if self._launcher_acts(world):
            self._judged = None
            return False
        return self._confirmed()

    def news(self, so_far: Callable[[World], list[Finding]]) -> list[Finding]:
        """Errors that have stood for a while in a job that goes on, and have not been told."""
        now = time.monotonic()
        if now < self._next_news:
            return []
        try:
            found = so_far(self.collector.world)
        except Exception as error:
            self.stumbled(error)
            found = []
        # Nobody waits for this: one part in two hundred of the host's time is enough.
        self._next_news = time.monotonic() + max(NEWS_S, 200 * (time.monotonic() - now))
        keyed = {_key(f): f for f in found}
        self._since = {key: self._since.get(key, now) for key in keyed}
        fresh = [key for key in keyed if key not in self._told and now - self._since[key] >= NEWS_S]
        self._told.update(fresh)
        return [keyed[key] for key in fresh]

    def _launcher_acts(self, world: World) -> bool:
        """True when a rank has just failed: its launcher ends the others, or starts all of them anew."""
        fresh = world.now_ns - int(LAUNCHER_S * 1e9)
        return any(
            s.exit is not None
            and s.exit.time_ns > fresh
            and (s.exit.exception or s.exit.status or not s.exit.clean)
            for s in world.ranks.values()
        )

    def ask_judge(self, *, final: bool) -> list[Finding]:
        """The judge's findings; an error of its own is a blind spot and no findings."""
        try:
            return self.judge(self.collector.world, final=final)
        except Exception as error:
            if not any(spot.slug == "judge-error" for spot in self.problems):
                self.problems.append(
                    BlindSpot(
                        "judge-error",
                        say("the judge met an error: {error}", error=f"{type(error).__name__}: {error}"),
                    )
                )
            return []

    def _confirmed(self) -> bool:
        """Asks all blocked ranks once more; True when the job is still dead and they still stand there.

        Where two calls do not pair, one blocked rank proves it; the others may have a moment to block as well, so
        that the report can say where.
        """
        settled = time.monotonic() + SETTLE_S
        while any(s.wait is None for s in self._living()) and time.monotonic() < settled:
            self.turn()
        blocked = [s for s in self._living() if s.wait is not None]
        for standing in blocked:
            self._number += 1
            standing.ask(self._number)
            standing.guest.facts.pop("locals", None)
            standing.guest.connection.ask(self._number + 1_000_000_000, "locals")
        deadline = time.monotonic() + CONFIRM_S
        while (
            any(s.asked is not None or "locals" not in s.guest.facts for s in blocked)
            and time.monotonic() < deadline
        ):
            self.server.arrived.wait(0.02)
            self.refresh()
        world = self.refresh()
        if any(s.wait is None for s in blocked) or not self.dead(world):
            self._judged = None
            return False
        findings = self.ask_judge(final=False)
        if not any(f.severity is Severity.ERROR for f in findings):
            return False
        waits = [s.wait.since_ns for s in world.ranks.values() if s.wait is not None]
        exits = [s.exit.time_ns for s in world.ranks.values() if s.exit is not None]
        self.verdict = Verdict(findings, True, time.time_ns(), max([*waits, *exits], default=0))
        return True

    # The end

    def report(self, *, final: bool, started_ns: int) -> Report:
        """All that is known now, as a report."""
        world = self.collector.world
        findings = self.verdict.findings if self.verdict.dead else self.ask_judge(final=final)
        if self._slow is not None and not any(f.fault == "slow-rank" for f in findings):
            findings = [*findings, self._slow]  # it has come by now, and the others have waited for it
        statistics: dict[str, Any] = {
            "wall_s": round((time.time_ns() - started_ns) / 1e9, 3),
            "events": self.collector.records,
            "dead": self.verdict.dead,
        }
        if self.verdict.dead:
            statistics["verdict_latency_s"] = round((self.verdict.time_ns - self.verdict.since_ns) / 1e9, 3)
        seen = compared(world)
        if seen is not None:
            statistics["optimizer_steps"] = seen
        if self.job.interrupted is not None:
            statistics["interrupted"] = self.job.interrupted.name
        stood = self.stood if self.job.interrupted is not None else None
        spots = [*self.collector.spots(), *self.problems]
        return Report("run", findings, spots, stood or summary(world), statistics)


def _key(finding: Finding) -> object:
    place = finding.location
    return finding.fault, place and (place.path, place.line)


def _moved(state: RankState, standing: Standing) -> bool:
    old, new = state.wait, standing.wait
    assert old is not None
    assert new is not None
    return (old.kind, old.group, old.position, old.call) != (
        new.kind,
        new.group,
        new.position,
        new.call,
    ) or old.kind in ("init", "store")


def watch(
    command: list[str],
    *,
    on_deadlock: str = "kill",
    stall_s: float = 60.0,
    variables: Mapping[str, str] | None = None,
    live: Live | None = None,
    report_sink: Sink | None = None,
    news: News | None = None,
    judge: Judge | None = None,
    dead: Callable[[World], bool] | None = None,
    so_far: Callable[[World], list[Finding]] | None = None,
    root: str | None = None,
) -> tuple[Report, int]:
    """Runs `command` under watch; gives the report and the exit status for `allranks run`.

    `on_deadlock` "kill" ends a job that is proved dead, "report" leaves it alone. `variables` are settings of the
    guests, added to the job's environment. `so_far` gives the errors of a job that goes on with them, which `news`
    is given once each. `live` is called with the world a few times a second. `report_sink` is given the report when
    there is a verdict or news, and again at the end, also on Ctrl-C or an error of the watch. Raises AllranksError
    when the command cannot be started.
    """
    if judge is None or dead is None:
        from .. import judge as standard

        judge = judge or partial(standard.judge, stall_s=stall_s)
        dead = dead or (lambda world: bool(standard.dead_set(world)))
        so_far = so_far or standard.so_far
    started_ns = time.time_ns()
    server = Server(secrets.token_hex(16))
    try:
        job = Job(command, environment({**server.environment, **(variables or {})}))
    except BaseException:
        server.close()
        raise
    server.start()
    watching = Watch(job, server, root or os.getcwd(), judge, dead)
    watching.collector.world.agents = []
    try:
        tell = partial(_tell, watching, so_far, news) if so_far is not None else None
        _loop(watching, on_deadlock, live, tell, lambda: _deliver(watching, report_sink, False, started_ns))
    except Exception as error:
        watching.stumbled(error)
        while job.poll() is None:  # the job goes on as if alone
            time.sleep(0.1)
    finally:
        if job.status is None:
            job.end()
        job.end_rest(GRACE_S if watching.verdict.dead else LEFT_S)
        try:
            report = _deliver(watching, report_sink, True, started_ns)
        except Exception as error:
            watching.stumbled(error)
            report = Report("run", watching.verdict.findings, watching.problems)
            if report_sink is not None:
                report_sink(report)
        job.close()
        server.close()
        watching.collector.close()
    ended = watching.verdict.dead and on_deadlock != "report"
    return report, DEAD if ended else exit_status(job.status if job.status is not None else 1)


def _loop(
    watching: Watch,
    on_deadlock: str,
    live: Live | None,
    tell: Callable[[], bool] | None,
    deliver: Callable[[], object],
) -> None:
    shown_at = 0.0
    while watching.job.status is None:
        watching.remember()
        watching.turn()
        if live is not None and time.monotonic() - shown_at > 0.2:
            shown_at = time.monotonic()
            live(watching.collector.world)
        if not watching.verdict.dead and watching.consider():
            deliver()
            if on_deadlock != "report":
                for guest in watching.collector.ranks.values():
                    guest.ended_by_host = not guest.ended_ns
                watching.server.announce_end()
                watching.job.end()
                return
        if tell is not None and not watching.verdict.dead and tell():
            deliver()
    watching.refresh()


def _tell(watching: Watch, so_far: Callable[[World], list[Finding]], news: News | None) -> bool:
    fresh = watching.news(so_far)
    if news is not None:
        for finding in fresh:
            news(finding)
    return bool(fresh)


def _deliver(watching: Watch, sink: Sink | None, final: bool, started_ns: int) -> Report:
    watching.job.reap_orphans()
    if final and not watching.verdict.dead:
        for _ in range(20):  # the last words of ranks and the statuses that their parents tell
            watching.refresh()
            if all(
                s.state in ("exited", "silent", "starting") for s in watching.collector.world.ranks.values()
            ):
                break
            watching.server.arrived.wait(0.02)
    report = watching.report(final=final, started_ns=started_ns)
    if sink is not None:
        sink(report)
    return report
