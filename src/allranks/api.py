"""check(), run(), explain(): from what a user asks to a Report. The only way from a door to an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from .check.mend import Mended
    from .config import Config
    from .findings import Finding, Report
    from .world import World

OnDeadlock = Literal["kill", "report"]


def run(
    command: Sequence[str],
    *,
    on_deadlock: OnDeadlock = "kill",
    stall_s: float = 60.0,
    overhead: float = 0.01,
    every: int = 0,
    deep: bool = False,
    live: Callable[[World], None] | None = None,
    sink: Callable[[Report], None] | None = None,
    news: Callable[[Finding], None] | None = None,
) -> tuple[Report, int]:
    """Runs `command`, watches every rank of it, and returns what was found with the exit status of design's table.

    `on_deadlock` says whether a job that is proved dead is ended ("kill") or left ("report"); `stall_s` after how
    many seconds a late rank is a finding; `overhead` is the share of the job's time that comparing the ranks may
    take, unless `every` names how many steps lie between two comparisons, or `deep` asks for one after every step;
    `live` is called with the world a few times a second, `news` with an error that the job goes on with; `sink` gets
    the report as soon as there is one, also when the run is interrupted. Raises AllranksError when the command cannot
    be started.
    """
    from .run import watch

    sampling = {
        "ALLRANKS_OVERHEAD": f"{overhead:g}",
        "ALLRANKS_EVERY": str(every),
        "ALLRANKS_DEEP": str(int(deep)),
    }
    return watch(
        list(command),
        on_deadlock=on_deadlock,
        stall_s=stall_s,
        variables=sampling,
        live=live,
        report_sink=sink,
        news=news,
    )


def check(
    paths: Sequence[Path],
    config: Config,
    *,
    progress: Callable[[int, int], None] | None = None,
    texts: Mapping[Path, str] | None = None,
    cache: Path | None = None,
    edits: bool = False,
) -> Report:
    """Reads the programs in `paths`, files and folders, and returns what is wrong with them.

    `texts` stand for the content of files that lie on no disk (`-` among the paths means them); `cache` is the
    folder of kept reports, if there is to be one (see `cache_folder`); with `edits` findings carry the changes
    that mend them; `progress` is called with how much of how much is done. Raises AllranksError for a path
    that does not exist.
    """
    from .check.engine import check as engine

    return engine(paths, config, progress=progress, texts=texts, cache=cache, edits=edits)


def mend(
    paths: Sequence[Path],
    config: Config,
    *,
    write: bool,
    progress: Callable[[int, int], None] | None = None,
    texts: Mapping[Path, str] | None = None,
) -> Mended:
    """Mends what is safe to mend in `paths`, on disk only with `write`; the changes and what is left."""
    from .check.mend import mend as engine

    return engine(paths, config, write=write, progress=progress, texts=texts)


def files(paths: Sequence[Path], config: Config) -> list[str]:
    """The files that `check` would read of `paths`, as a report names them."""
    from .check.discovery import python_files, shown

    return [shown(path) for path in python_files(paths, config)]


def shown(path: Path) -> str:
    """`path` as a report names it."""
    from .check.discovery import shown as name

    return name(path)


def cache_folder() -> Path:
    """Where kept reports lie when the user names no place."""
    from .check.cache import default_folder

    return default_folder()


def explain(paths: Sequence[Path], **options: object) -> Report:
    """Reads what a dead job left (logs, folders, dumps) and returns why it died."""
    from .explain import explain as engine

    return engine(paths, **options)  # type: ignore[arg-type]
