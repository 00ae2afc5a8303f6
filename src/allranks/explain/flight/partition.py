"""Reads the dumps of a job in parts, here or on a cluster, and merges the parts.

The map is `read_part`: some files become columns. The reduction is `JobTrace.merge`, in any order. They are the same
wherever they run; an engine only spreads them. Supported are dask (`dask`, or `dask:ADDRESS` of a scheduler) and ray
(`ray`, or `ray:ADDRESS`). The files must have the same paths on every worker.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

from ...errors import AllranksError
from .job import JobTrace
from .reading import Progress, read_part

PART = 256
"""Files of a part: some seconds of work."""

Files = list[tuple[int, Path]]


def read_all(files: Files, progress: Progress | None = None, engine: str = "") -> JobTrace:
    """The trace of all ranks in `files`. `engine` says where they are read: "" in this process.
    Raises `AllranksError` ("engine-missing") when the engine is not installed or not known."""
    if not engine:
        return read_part(files, progress)
    name, _, address = engine.partition(":")
    parts = [files[at : at + PART] for at in range(0, len(files), PART)]
    if name == "dask":
        return _read_on_dask(parts, address, progress)
    if name == "ray":
        return _read_on_ray(parts, address, progress)
    raise AllranksError("engine-missing", f"{name} is not an engine that allranks knows.", "Use dask or ray.")


def _missing(name: str) -> AllranksError:
    return AllranksError(
        "engine-missing", f"{name} is not installed.", f"Install it with: pip install {name}"
    )


def _read_on_dask(parts: list[Files], address: str, progress: Progress | None) -> JobTrace:
    try:
        from dask import distributed
    except ImportError:
        raise _missing("distributed") from None
    dask: Any = distributed
    with dask.Client(address) if address else dask.Client(processes=True, dashboard_address=None) as client:
        futures = client.map(read_part, parts)
        return _merged((future.result() for future in dask.as_completed(futures)), parts, progress)


def _read_on_ray(parts: list[Files], address: str, progress: Progress | None) -> JobTrace:
    try:
        import ray
    except ImportError:
        raise _missing("ray") from None
    ray.init(address=address or None, ignore_reinit_error=True)
    read = ray.remote(read_part)
    waiting = [read.remote(part) for part in parts]

    def done() -> Any:
        rest = waiting
        while rest:
            ready, rest = ray.wait(rest)
            yield from ray.get(ready)

    return _merged(done(), parts, progress)


def _merged(done: Any, parts: list[Files], progress: Progress | None) -> JobTrace:
    total = sum(map(len, parts))
    job = JobTrace()
    for part in done:
        job.merge(part)
        if progress is not None:
            progress(len(job.ranks), total)
    return job


def merge(parts: list[JobTrace]) -> JobTrace:
    """Parts of a job as one."""
    return reduce(JobTrace.merge, parts, JobTrace())
