"""The stack of a process that does not answer, taken from outside by py-spy, where that is installed and allowed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from typing import Any

from ..world import Frame

LIMIT_S = 10.0


class Spy:
    """Takes one stack at a time, in a thread of its own. `stacks` holds the last of each process."""

    def __init__(self) -> None:
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self._program = _program()
        self._busy = threading.Lock()

    def look(self, pid: int) -> None:
        """Begins to take the stack of a process, unless another is being taken."""
        if self._program is not None and self._busy.acquire(blocking=False):
            threading.Thread(target=self._look, args=(pid,), name="allranks-spy", daemon=True).start()

    def _look(self, pid: int) -> None:
        try:
            assert self._program is not None
            done = subprocess.run(
                [self._program, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                capture_output=True, text=True, timeout=LIMIT_S, check=True,
            )  # fmt: skip
            stack = main_stack(json.loads(done.stdout), pid)
            if stack:
                self.stacks[pid] = stack
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            pass  # not allowed here, or the process is gone
        finally:
            self._busy.release()


def main_stack(threads: list[dict[str, Any]], pid: int) -> tuple[Frame, ...]:
    """The main thread's frames of a py-spy dump, outermost first; the guest's own are left out."""
    for thread in threads:
        if thread.get("os_thread_id") in (pid, None):
            frames = [
                Frame(
                    str(f["filename"]),
                    int(f["line"]),
                    str(f["name"]),
                    user=_users(str(f["filename"])),
                )
                for f in reversed(thread["frames"])
            ]
            return tuple(f for f in frames if "/allranks/rank/" not in f.path)
    return ()


def _users(path: str) -> bool:
    library = "-packages/" in path or path.startswith("<") or f"/lib/python{sys.version_info.major}." in path
    return not library


def _program() -> str | None:
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
