"""The runs of a program: each entry followed once, and single functions alone where no entry reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .machine import Machine, Run
from .program import DISTRIBUTED

if TYPE_CHECKING:
    from pathlib import Path

    from .program import Entry, Function, Program


def run_of(program: Program, entry: Entry) -> Run:
    """The run of one entry, followed when it is first asked for."""
    runs: dict[Path, Run] = program.kept.setdefault("runs", {})
    if entry.path not in runs:
        runs[entry.path] = Machine(program, program.interest).run_entry(entry)
    return runs[entry.path]


def runs(program: Program) -> list[Run]:
    """The runs of all entries."""
    return [run_of(program, entry) for entry in program.entries]


_ON_RANK = ("rank", "is_main", "is_master", "main_process", "master_process", "is_primary", "is_chief")
_MOST_ALONE = 200
ALONE = 20_000
"""Statements that are followed for one function alone."""


def alone(program: Program) -> list[Run]:
    """Functions that no entry reaches and that both communicate and ask for the rank, each followed alone."""
    reached = {node for run in runs(program) for node in run.reached}
    heard = program.interest
    found: list[Run] = []
    for path in program.files:
        text = program.text(path)
        if not any(word in text for word in _ON_RANK) or not DISTRIBUTED.search(text):
            continue
        for function in program.module(path).functions:
            if function.node in reached or not heard.communicates(path, function.line):
                continue
            own = "\n".join(function.module.source.lines[function.line - 1 : function.node.end_lineno])
            if any(word in own for word in _ON_RANK):
                found.append(run_alone(program, function))
                if len(found) >= _MOST_ALONE:
                    return found
    return found


def run_alone(program: Program, function: Function) -> Run:
    """One function, followed with unknown arguments."""
    alone: dict[object, Run] = program.kept.setdefault("alone", {})
    if function.node not in alone:
        if "machine" not in program.kept:
            program.kept["machine"] = Machine(program, program.interest, ALONE)
        alone[function.node] = program.kept["machine"].run_alone(function)
    return alone[function.node]


def entries_with(program: Program, path: Path) -> list[Entry]:
    """The entries whose run may come to `path`: the file itself first."""
    found = [e for e in program.entries if e.path == path or path in program.closure(e.path)]
    return sorted(found, key=lambda e: e.path != path)
