"""check(), run(), explain(): from what a user asks to a Report. The only way from a door to an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .config import Config
    from .findings import Report
    from .world import World

OnDeadlock = Literal["kill", "report"]


def run(
    command: Sequence[str],
    *,
    on_deadlock: OnDeadlock = "kill",
    stall_s: float = 60.0,
    live: Callable[[World], None] | None = None,
    sink: Callable[[Report], None] | None = None,
) -> tuple[Report, int]:
    """Runs `command`, watches every rank of it, and returns what was found with the exit status of design's table.

    `on_deadlock` says whether a job that is proved dead is ended ("kill") or left ("report"); `stall_s` after how
    many seconds a late rank is a finding; `live` is called with the world a few times a second; `sink` gets the
    report as soon as there is one, also when the run is interrupted. Raises AllranksError when the command
    cannot be started.
    """
    from .run import watch

    return watch(list(command), on_deadlock=on_deadlock, stall_s=stall_s, live=live, report_sink=sink)


def check(
    paths: Sequence[Path], config: Config, *, progress: Callable[[int, int], None] | None = None, **options: object
) -> Report:
    """Reads the programs in `paths`, files and folders, and returns what is wrong with them."""
    from .check.engine import check as engine

    return engine(paths, config, progress=progress, **options)  # type: ignore[arg-type]


def explain(paths: Sequence[Path], **options: object) -> Report:
    """Reads what a dead job left (logs, folders, dumps) and returns why it died."""
    from .explain import explain as engine

    return engine(paths, **options)  # type: ignore[arg-type]
