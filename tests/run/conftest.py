from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allranks.findings import Confidence, Finding, Report, Severity, say
from allranks.judge.waits import dead_set
from allranks.run import watch
from allranks.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = Path(__file__).parent / "jobs"


@dataclass
class Run:
    """What one watched run gave."""

    report: Report
    status: int
    world: World
    reports: list[Report] = field(default_factory=list)

    def ops(self, rank: int, history: str = "0") -> list[tuple[str, int]]:
        """(operation, line of the user's call) of every call of a rank, in order."""
        kinds = (self.world.kinds[k] for k in self.world.ranks[rank].histories[history].kinds)
        return [(kind.signature.op, kind.site[-1].line if kind.site else 0) for kind in kinds]

    def call(self, rank: int, op: str, history: str = "0") -> Any:
        """The first call of a rank with this operation."""
        kinds = (self.world.kinds[k] for k in self.world.ranks[rank].histories[history].kinds)
        return next(kind for kind in kinds if kind.signature.op == op)

    def slugs(self) -> list[str]:
        return [spot.slug for spot in self.report.blind_spots]


@pytest.fixture(scope="session")
def run() -> Iterator[Callable[..., Run]]:
    """Runs a command under watch, with a judge that only says that a dead job is dead."""

    def watched(*command: str, **options: Any) -> Run:
        seen: list[World] = []
        reports: list[Report] = []

        def judge(world: World, *, final: bool = False) -> list[Finding]:
            seen[:] = [world]
            if not dead_set(world):
                return []
            return [Finding("early-exit", Severity.ERROR, Confidence.PROVED, say("dead"))]

        report, status = watch(
            list(command),
            judge=judge,
            dead=lambda world: bool(dead_set(world)),
            report_sink=reports.append,
            **options,
        )
        return Run(report, status, seen[0] if seen else World(), reports)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield watched


@pytest.fixture(scope="session")
def torchrun(run: Callable[..., Run]) -> Callable[..., Run]:
    """Runs a job of `jobs/` by torchrun with 2 ranks."""

    def launched(job: str, *arguments: str, ranks: int = 2, **options: Any) -> Run:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return run(*launch, str(JOBS / job), *arguments, **options)

    return launched
