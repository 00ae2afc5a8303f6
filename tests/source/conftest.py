"""Small programs, followed."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from allranks.source import execution, flow
from allranks.source.partings import Parting, partings
from allranks.source.program import Program
from allranks.source.trace import Event, events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from allranks.source.machine import Run


@dataclass
class Followed:
    """A program on disk and what was found of it."""

    program: Program
    main: Path

    @property
    def run(self) -> Run:
        """The run of main.py."""
        entry = next(e for e in self.program.entries if e.path == self.main)
        return execution.run_of(self.program, entry)

    def line(self, mark: str, file: str = "main.py") -> int:
        """The number of the line that ends with the comment `# mark`."""
        lines = self.program.text(self.main.parent / file).split("\n")
        return next(i for i, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))

    def variation(self, mark: str, file: str = "main.py") -> flow.Variation:
        """How the test at a marked line differs between ranks."""
        return flow.variation(self.program, self.main.parent / file, self.line(mark, file))

    @property
    def partings(self) -> list[Parting]:
        """Where its ranks part."""
        return partings(self.run.items, self.run.decisions)

    def events(self, *kinds: str) -> list[Event]:
        """The events of some kinds."""
        return list(events(self.run.items, *kinds))

    @property
    def collectives(self) -> list[str]:
        """The operations that surely communicate, in order."""
        return [e.operation for e in self.events() if e.communicates == 2]


@pytest.fixture
def follow(tmp_path: Path) -> Callable[..., Followed]:
    """Writes a program (main.py and modules by name) and follows it."""

    def build(main: str, **modules: str) -> Followed:
        for name, text in {"main": main, **modules}.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")
        return Followed(Program(tmp_path), tmp_path / "main.py")

    return build
