"""What /proc tells of processes: descendants, CPU time, how a zombie ended."""

from __future__ import annotations

import os
from pathlib import Path


def descendants(pids: list[int]) -> list[int]:
    """The living descendants of some processes, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = list(pids)
    while todo:
        more = children.get(todo.pop(0), [])
        found += more
        todo += more
    return found


def children(pid: int) -> list[int]:
    """The children of one process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def state(pid: int) -> str | None:
    """The process's state letter ("R", "S", "D", "T", "Z", ...), or None when it is gone."""
    fields = _stat(pid)
    return fields[0] if fields is not None else None


def gone(pid: int) -> bool:
    """True when the process has ended, reaped or not."""
    return state(pid) in (None, "Z", "X")


def zombie_status(pid: int) -> int | None:
    """The wait status of a process that has ended and is not reaped yet, where the kernel tells it."""
    fields = _stat(pid)
    if fields is None or fields[0] != "Z" or len(fields) < 50:
        return None
    return int(fields[49])


def cpu_ns(pid: int, tid: int) -> int | None:
    """CPU time of one thread so far in ns, or None where it cannot be read."""
    seen = scheduled(pid, tid)
    if seen is not None:
        return seen[0]
    fields = _stat(pid, tid)
    if fields is None:
        return None
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def scheduled(pid: int, tid: int) -> tuple[int, int] | None:
    """For how long one thread has run, and has waited for a processor, in ns; None where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            run, waited = file.read().split()[:2]
        return int(run), int(waited)
    except (OSError, ValueError):
        return None


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def command(pid: int) -> list[str]:
    """The command line of a process; empty where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def _stat(pid: int, tid: int | None = None) -> list[str] | None:
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    try:
        with open(path, "rb") as file:
            return file.read().decode("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
