"""Starts the user's command as it is, passes signals on, and ends all of it when that is asked for.

On a terminal the job shares the host's process group, so that Ctrl-C and Ctrl-Z reach it as they always did;
elsewhere it has a group of its own and the host passes signals on. The host is the job's subreaper: whatever a
launcher orphans stays findable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ..errors import AllranksError
from ..findings import say
from . import process

BOOT = Path(__file__).resolve().parent.parent / "rank" / "boot"
PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGTSTP, signal.SIGCONT}
)
TO_GROUP = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT})
"""What a terminal sends to a whole process group; the others go to the command alone."""
FROM_KERNEL = 128
"""`si_code` of a signal that the terminal sent: the job, in the same group, has it already."""
GRACE_S = 3.0
LEFT_S = 10.0
"""How long what an interrupted command left behind may take to end by itself: it may be saving its work."""
_SUBREAPER = 36


class Job:
    """The running command. `status` is its exit status once it has ended (negative: the signal that killed it)."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.command = command
        self.status: int | None = None
        self.statuses: dict[int, int] = {}
        """pid -> wait status of orphans that the host reaped."""
        self.interrupted: signal.Signals | None = None
        """The last signal that asked the job to end."""
        self._foreign = set(process.children(os.getpid()))
        self._shared_group = _on_terminal()
        self._main = threading.current_thread() is threading.main_thread()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON) if self._main else None
        _subreaper(True)
        try:
            self._popen = subprocess.Popen(command, env=environment, preexec_fn=self._prepare)
        except (OSError, ValueError) as error:
            self._restore()
            raise AllranksError(
                "command-not-started",
                say(
                    "{command} cannot be started: {error}",
                    command=command[0],
                    error=getattr(error, "strerror", None) or error,
                ),
                say("look at the command after `--`"),
                status=127 if isinstance(error, FileNotFoundError) else 126,
            ) from None
        self.pid = self._popen.pid
        self._closing = False
        if self._main:
            self._thread = threading.Thread(target=self._pass_signals, name="allranks-signals", daemon=True)
            self._thread.start()

    def _prepare(self) -> None:
        """In the child, before the command: its own group where there is no terminal, and signals as they were."""
        if not self._shared_group:
            os.setpgid(0, 0)
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    # Signals

    def _pass_signals(self) -> None:
        while not self._closing:
            info = signal.sigtimedwait(PASSED_ON, 3600)
            if info is None or self._closing:
                continue
            number = signal.Signals(info.si_signo)
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                self.interrupted = number
            if not (self._shared_group and info.si_code == FROM_KERNEL):
                self._send(number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            if self.status is not None:
                return
            if number in TO_GROUP and not self._shared_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    # Ending

    def poll(self) -> int | None:
        """The command's status, once it has ended."""
        if self.status is None:
            self._reap(self.pid)
        return self.status

    def reap_orphans(self) -> None:
        """Reaps what has ended among the processes that came to the host when their parent ended."""
        for pid in process.children(os.getpid()):
            if pid not in self._foreign:
                self._reap(pid)

    def _reap(self, pid: int) -> None:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if done:
            code = os.waitstatus_to_exitcode(status)
            self.statuses[pid] = code
            if pid == self.pid:
                self.status = self._popen.returncode = code

    def descendants(self) -> list[int]:
        """The living processes of the job, parents first."""
        # By the parents that all processes name: a list of children misses some while others end.
        foreign = {*self._foreign, *process.descendants(list(self._foreign))}
        found = (pid for pid in process.descendants([os.getpid()]) if pid not in foreign)
        return [pid for pid in found if not process.gone(pid)]

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ends every process of the job: SIGTERM, and SIGKILL to what is left after `grace_s` seconds."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while not self._all_gone() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(250):
            if self._all_gone():
                break
            self._signal_all(signal.SIGKILL)
            time.sleep(0.02)

    def end_rest(self, patience_s: float = LEFT_S) -> None:
        """After a signal that asks the job to end has ended the command: ends what it left behind, as a shell script
        does with the ranks it started. SIGHUP asks nothing of a job that was told to outlive its terminal."""
        if self.interrupted not in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            return
        if self.interrupted not in TO_GROUP:
            self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while not self._all_gone() and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self._all_gone():
            self.end()

    def _all_gone(self) -> bool:
        self.reap_orphans()
        return self.poll() is not None and not self.descendants()

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                if number == signal.SIGTERM:
                    os.kill(pid, signal.SIGCONT)  # a stopped process takes no SIGTERM

    def close(self) -> None:
        """Gives signals back to the caller. The command must have ended."""
        self._closing = True
        if self._main:
            signal.pthread_kill(self._thread.ident or 0, signal.SIGCONT)
            self._thread.join(1)
        self._restore()

    def _restore(self) -> None:
        _subreaper(False)
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def environment(server: dict[str, str]) -> dict[str, str]:
    """The job's environment: the caller's, with the guest's folder first on PYTHONPATH and the way to the host."""
    found = dict(os.environ)
    paths = [str(BOOT), *(p for p in found.get("PYTHONPATH", "").split(os.pathsep) if p)]
    found["PYTHONPATH"] = os.pathsep.join(paths)
    found.update(server)
    return found


def exit_status(status: int) -> int:
    """A status as a shell shows it: 128 + n for a command that signal n killed."""
    return status if status >= 0 else 128 - status


def _on_terminal() -> bool:
    """True when the host is in the foreground group of a terminal."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _subreaper(on: bool) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, int(on), 0, 0, 0)
