"""Reads the dumps of a job in parts, here or on a cluster, and merges the parts.

The map is `read_part`: some files become columns. The reduction is `JobTrace.merge`, in any order. They are the same
wherever they run; dask only spreads them. The files must have the same paths on every worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import AllranksError
from ...findings import say
from .job import JobTrace
from .reading import Progress, read_part

PART = 256
"""Files of a part: some seconds of work."""
PATIENCE_S = 10
"""For how long a scheduler is asked."""

Files = list[tuple[int, Path]]


def read_all(files: Files, progress: Progress | None = None, cluster: str | None = None) -> JobTrace:
    """The trace of all ranks in `files`, read here, or on the `cluster` whose dask scheduler has this address. Raises
    `AllranksError`: "dask-missing" when dask is not installed, "cluster-unreachable" when nobody answers there."""
    return read_part(files, progress) if cluster is None else _read_on(cluster, files, progress)


def _read_on(cluster: str, files: Files, progress: Progress | None) -> JobTrace:
    try:
        from dask import distributed
    except ImportError:
        raise AllranksError(
            "dask-missing",
            say("dask, which reads dumps on a cluster, is not installed"),
            say("pip install 'allranks[scale]'"),
        ) from None
    dask: Any = distributed
    try:
        client = dask.Client(cluster, timeout=PATIENCE_S)
    except (OSError, ValueError) as error:
        raise AllranksError(
            "cluster-unreachable",
            say("no dask scheduler answers at {address}: {error}", address=cluster, error=error),
            say("give the address that `dask scheduler` prints when it starts, such as tcp://HOST:8786"),
        ) from error
    with client:
        parts = [files[at : at + PART] for at in range(0, len(files), PART)]
        job = JobTrace()
        for future in dask.as_completed(client.map(read_part, parts)):
            job.merge(future.result())
            if progress is not None:
                progress(len(job.ranks), len(files))
        return job
