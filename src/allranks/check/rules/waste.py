"""Waste: time that every rank spends for nothing."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...findings import Finding, say
from ..loaders import loaders_of
from ..scene import Scene, scenes
from . import finds, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...source.program import Program
    from ...source.trace import Event, Loop

_ORDERED = (
    "save",
    "load",
    "open",
    "write",
    "dump",
    "file_write",
    "makedirs",
    "remove",
    "shell",
    "writer",
    "p2p",
)
"""What one rank may have to wait for until another has done it."""
_CLOCK = re.compile(r"\btime\.|perf_counter|\.elapsed|Event\(|\.record\(|[Tt]imer")


@finds("needless-barrier")
def needless_barrier(program: Program) -> Iterator[Finding]:
    """A barrier in every step, though nothing in the step has to wait for another rank.

    Quiet where the step touches files, and beside a clock: a measurement wants all ranks to begin together.
    """
    for scene in scenes(program):
        for event in scene.of("collective"):
            if event.operation != "barrier" or not scene.by_all(event) or not scene.shared(event):
                continue
            loops = scene.loops(event)
            if not loops or not _is_step(scene, loops[-1]) or not _every_turn(scene, event, loops[-1]):
                continue
            if scene.inside(loops[-1], *_ORDERED) or _beside_clock(scene, event):
                continue
            yield found(
                "needless-barrier",
                scene.location(event),
                say(
                    "every step waits at this barrier, which orders nothing: collectives wait for each other anyway"
                ),
                call_path=scene.path(event),
                fix=say("take it out"),
            )


def _is_step(scene: Scene, loop: Loop) -> bool:
    """True for a loop over batches."""
    if any(True for _ in loaders_of(loop.over)):
        return True
    kinds = {event.kind for event in scene.inside(loop)}
    return "backward" in kinds and not any(
        scene.loops(inner) == (*scene.loops(loop), loop) for inner in scene.all_loops
    )


def _every_turn(scene: Scene, event: Event, loop: Loop) -> bool:
    """True when an event happens in every turn of a loop."""
    return event.doubt is None and (event.guard is loop.guard or event.guard == loop.guard)


def _beside_clock(scene: Scene, event: Event) -> bool:
    """True when the line before or after a barrier, where it is called or made, looks at a clock."""
    for site in event.site.chain()[-2:]:
        source = scene.program.read(site.path)
        last = getattr(site.node, "end_lineno", site.line) or site.line
        if any(_CLOCK.search(source.line(number)) for number in (site.line - 1, site.line, last, last + 1)):
            return True
    return isinstance(event.site.node, ast.With)
