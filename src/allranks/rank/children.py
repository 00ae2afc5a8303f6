"""How the children of this process ended: only a parent learns it, and it tells the host."""

from __future__ import annotations

import os
import sys

from . import stack, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wrap_subprocess(guest: Any, subprocess: Any) -> None:
    """Every child that `subprocess` reaps."""
    original = subprocess.Popen._handle_exitstatus

    @stack.wraps(original)
    def _handle_exitstatus(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        guest.reaped(self.pid, self.returncode)
        return result

    subprocess.Popen._handle_exitstatus = _handle_exitstatus


def wrap_popen_fork(guest: Any, popen_fork: Any) -> None:
    """Every child that `multiprocessing` reaps (fork and spawn)."""
    original = popen_fork.Popen.poll

    @stack.wraps(original)
    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.returncode
        result = original(self, *args, **kwargs)
        if before is None and self.returncode is not None:
            guest.reaped(self.pid, self.returncode)
        return result

    popen_fork.Popen.poll = poll


def wrap_agent(guest: Any, api: Any) -> None:
    """torchrun's agent: when the host ends a dead job, the agent ends its workers as ever, but what it would print
    about that (its own traceback) would stand around the verdict, and is no news."""
    original = api._terminate_process_handler
    ended = os.path.join(os.path.dirname(guest.address), wire.ENDED)

    @stack.wraps(original)
    def _terminate_process_handler(*args: Any) -> Any:
        if os.path.exists(ended):
            sys.excepthook = lambda *args: None
            sys.modules["logging"].disable()
        return original(*args)

    api._terminate_process_handler = _terminate_process_handler


def wrap_signals(guest: Any, os: Any) -> None:
    """`os.kill` and `os.killpg`: who ended whom; a rank that a launcher ended is a victim."""
    for name in ("kill", "killpg"):
        setattr(os, name, _signalling(guest, getattr(os, name)))


def _signalling(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def signal_call(pid: Any, number: Any) -> Any:
        if number:
            guest.signalled(int(pid), int(number), sys._getframe(1))
        return function(pid, number)

    return signal_call
