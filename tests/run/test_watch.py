"""Verdicts on live jobs: who waits for whom, and that only the dead are ended."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from allranks.findings import Confidence, Finding, Report, Severity, say
from allranks.run import process, watch
from allranks.run.collect import Collector

from .conftest import JOBS, Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch


def assert_all_gone(run: Run) -> None:
    pids = [s.pid for s in run.world.ranks.values()] + [a["pid"] for a in run.world.agents]
    assert [pid for pid in pids if process.state(pid) not in (None, "Z")] == []


def test_a_mismatch_is_dead_and_ended(torchrun: Callable[..., Run]) -> None:
    run = torchrun("waits.py", "mismatch")
    assert run.status == 4
    assert run.report.statistics["dead"] is True
    first, last = run.reports[0], run.reports[-1]
    assert [f.fault for f in first.findings] == [f.fault for f in last.findings] == ["early-exit"]
    for rank, peer in ((0, 1), (1, 0)):
        wait = run.world.ranks[rank].wait
        assert wait is not None
        assert (wait.kind, wait.group, wait.position, wait.peers) == ("collective", "0", 1, (peer,))
    rows = run.report.world["ranks"]
    assert [(row["rank"], row["state"], row["wait"]["op"]) for row in rows] == [
        (0, "blocked", "barrier"), (1, "blocked", "allreduce"),
    ]  # fmt: skip
    assert {n: v for n, v in run.world.ranks[0].facts["locals"][-1]["variables"].items() if n in ("rank", "CASE")} == {
        "rank": 0, "CASE": "mismatch",
    }  # fmt: skip
    assert_all_gone(run)


def test_report_leaves_the_dead_job_alone(torchrun: Callable[..., Run]) -> None:
    run = torchrun("waits.py", "timeout", on_deadlock="report")
    assert run.status == 1  # it ended by its own timeout, seconds after the verdict
    assert run.report.statistics["dead"] is True
    assert [f.fault for f in run.report.findings] == ["early-exit"]


def test_a_rank_that_left(torchrun: Callable[..., Run]) -> None:
    run = torchrun("waits.py", "exit")
    left, waits = run.world.ranks[1], run.world.ranks[0]
    assert left.exit is not None
    assert (left.state, left.exit.clean, left.exit.exception) == ("exited", True, None)
    assert left.facts["exit_site"][-1].line == 1 + (JOBS / "waits.py").read_text().splitlines().index(
        "    sys.exit(0)"
    )
    assert left.facts["group_alive"] is True
    # Gloo notices the lost connection itself; whichever was first, the waiting rank is known to have been in call 1.
    assert waits.histories["0"].end == 2
    assert run.status in (1, 4)


@pytest.mark.parametrize(
    ("case", "waits"),
    [
        ("work", {0: ("collective", "0", (1,)), 1: ("p2p", "0", (0,))}),
        ("store", {0: ("store", None, ()), 1: ("store", None, ())}),
        ("group", {0: ("store", "0/setup", (1,)), 1: ("collective", "0", (0,))}),
    ],
)
def test_what_is_waited_for(torchrun: Callable[..., Run], case: str, waits: dict[int, object]) -> None:
    seen: dict[int, object] = {}

    def live(world: object) -> None:
        found = {r: s.wait for r, s in world.ranks.items() if s.wait is not None}  # type: ignore[attr-defined]
        if len(found) == 2 and not seen:
            seen.update({r: (w.kind, w.group, w.peers) for r, w in found.items()})
            for state in world.ranks.values():  # type: ignore[attr-defined]
                os.kill(state.pid, 9)

    torchrun("waits.py", case, on_deadlock="report", live=live)
    assert seen == waits


@pytest.mark.parametrize("case", ["sleep", "compute", "fork", "exec", "restart"])
def test_jobs_that_are_well_are_left_alone(
    torchrun: Callable[..., Run], run: Callable[..., Run], case: str
) -> None:
    if case == "restart":
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
        seen = run(sys.executable, *launch, str(JOBS / "waits.py"), case)
    else:
        seen = torchrun("waits.py", case)
    assert (seen.status, seen.report.findings, seen.slugs()) == (0, [], [])
    for state in seen.world.ranks.values():
        assert state.exit is not None
        assert (state.exit.status, state.exit.clean, state.facts["destroyed"]) == (0, True, True)
        assert [op for op, _ in seen.ops(state.rank)] == ["allreduce", "allreduce"]
        assert state.exceptions == []


def test_a_killed_rank_leaves_its_last_calls(torchrun: Callable[..., Run]) -> None:
    run = torchrun("waits.py", "killed")
    killed = run.world.ranks[1]
    assert killed.exit is not None
    assert (killed.exit.signal, killed.exit.status, killed.exit.clean, killed.exit.ended_by_host) == (
        9,
        None,
        False,
        False,
    )
    assert [op for op, _ in run.ops(1)] == ["allreduce"]
    assert killed.facts["exit_call"]["how"] == "os.kill"


def test_ranks_of_mp_spawn(run: Callable[..., Run]) -> None:
    seen = run(sys.executable, str(JOBS / "spawned.py"), "2", "2")
    assert (seen.status, sorted(seen.world.ranks), seen.world.size) == (0, [0, 1], 2)
    assert [seen.ops(r) for r in (0, 1)] == [[("allreduce", 12)]] * 2
    (launcher,) = [a for a in seen.world.agents if a["role"] == "launcher"]
    assert launcher["nprocs"] == 2
    assert sorted(launcher["children"].values()) == [0, 0]


def test_a_world_that_is_larger_than_its_launch(run: Callable[..., Run]) -> None:
    seen = run(sys.executable, str(JOBS / "spawned.py"), "2", "3")
    assert seen.status == 4
    for rank in (0, 1):
        wait = seen.world.ranks[rank].wait
        assert wait is not None
        assert (wait.kind, wait.peers) == ("init", (2,))
    assert sorted(seen.world.ranks) == [0, 1]


def test_a_rank_whose_guest_never_starts_is_a_blind_spot(run: Callable[..., Run]) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    seen = run(sys.executable, *launch, sys.executable, "-I", str(JOBS / "waits.py"), "sleep")
    assert (seen.status, seen.report.findings) == (0, [])
    (spot,) = seen.report.blind_spots
    assert (spot.slug, spot.ranks) == ("rank-not-heard", (0, 1))


def test_training_is_bitwise_the_same(run: Callable[..., Run], tmp_path: Path) -> None:
    import subprocess

    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(JOBS / "trains.py"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, str(tmp_path / "alone")], check=True, env=environment, timeout=120)
    seen = run(*launch, str(tmp_path / "watched"))
    assert (seen.status, seen.report.findings) == (0, [])
    for rank in (0, 1):
        alone, watched = (tmp_path / f"alone-{rank}").read_text(), (tmp_path / f"watched-{rank}").read_text()
        assert alone == watched
        assert len(alone.split()) == 2


def test_an_error_of_the_watch_leaves_the_job_alone(
    torchrun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Collector, queue: object) -> None:
        raise ValueError("of ours")

    monkeypatch.setattr(Collector, "take", broken)
    run = torchrun("waits.py", "compute")
    assert (run.status, run.report.findings) == (0, [])
    assert [str(spot.message) for spot in run.report.blind_spots] == [
        "the watch met an error: ValueError: of ours"
    ]
    assert run.reports == [run.report]


def test_a_script_that_is_not_there(torchrun: Callable[..., Run]) -> None:
    run = torchrun("no_such_job.py")
    assert run.status == 1
    # torchrun may end the other rank before it has looked for its script.
    missing = {state.facts.get("no_script") for state in run.world.ranks.values()} - {None}
    assert missing == {str(JOBS / "no_such_job.py")}


def test_an_error_that_the_job_goes_on_with_is_told_once_while_it_runs() -> None:
    finding = Finding("model-not-wrapped", Severity.ERROR, Confidence.MEASURED, say("alone"))
    told: list[Finding] = []
    reports: list[Report] = []
    report, status = watch(
        ["sleep", "6"],
        judge=lambda world, final: [finding] if final else [],
        dead=lambda world: False,
        so_far=lambda world: [finding],
        news=told.append,
        report_sink=reports.append,
    )
    assert (status, told, report.findings) == (0, [finding], [finding])
    assert len(reports) == 2
