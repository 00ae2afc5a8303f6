from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allranks.judge import judge
from allranks.judge.digests import settle
from allranks.run.guest import Guest, Kinds
from allranks.world import Exit, RankState, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from allranks.findings import Finding

HERE = Path(__file__).parent
SOURCE = (HERE / "programs.py").read_text()
Told = dict[str, tuple[list[tuple[Any, ...]], list[str]]]


class _Connection:
    pid, fd = 1, None


def world_of(told: list[list[tuple[Any, ...]]]) -> World:
    """The world of ranks that have said these things and have ended well."""
    world = World(size=len(told), root=str(HERE))
    kinds = Kinds(world.kinds)
    for rank, messages in enumerate(told):
        guest = Guest(_Connection(), {}, kinds)  # type: ignore[arg-type]
        for message in messages:
            guest.heard(message)
        assert guest.broken == []
        state = world.ranks[rank] = RankState(rank, state="exited", exit=Exit(status=0, clean=True))
        state.facts, state.histories, state.groups = guest.facts, guest.histories, guest.groups
        state.facts["clean"] = state.facts["destroyed"] = True
    settle(world)
    return world


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """What two ranks told while they ran all programs, by program."""
    folder = tmp_path_factory.mktemp("ranks")
    names = re.findall(r"^def (\w+)\(rank: int\)", SOURCE, re.M)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), str(rank), str(folder), *names], env=environment
        )
        for rank in (0, 1)
    ]
    try:
        assert [process.wait(300) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    return [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in (0, 1)]


@pytest.fixture
def notes(told: list[Told]) -> Callable[[str], list[Finding]]:
    """What the judge says about a program, notes included."""

    def of(name: str) -> list[Finding]:
        assert [rank[name][1] for rank in told] == [[], []]
        return judge(world_of([rank[name][0] for rank in told]), final=True)

    return of


@pytest.fixture
def findings(notes: Callable[[str], list[Finding]]) -> Callable[[str], list[Finding]]:
    """What it says loudly."""
    return lambda name: [finding for finding in notes(name) if finding.severity.loud]


def marked(name: str) -> int:
    """The line of a program that is marked `# HERE`, in the program or in a class or function that it uses."""
    lines = SOURCE.splitlines()
    start = next(n for n, line in enumerate(lines, 1) if line.startswith(f"def {name}("))
    text, todo = "", [name]
    seen: set[str] = set()
    while todo:
        one = todo.pop(0)
        if one in seen:
            continue
        seen.add(one)
        match = re.search(rf"^(?:def|class) {one}\b.*?(?=^\S|\Z)", SOURCE, re.M | re.S)
        if match is None:
            continue
        text = match.group()
        if "# HERE" in text:
            return SOURCE[: match.start()].count("\n") + text[: text.index("# HERE")].count("\n") + 1
        todo += re.findall(r"\b([A-Za-z_]\w*)\b", text)
    raise AssertionError(f"no mark in {name} at {start}")
