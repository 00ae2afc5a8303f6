"""The guest's life: waits for the imports it cares about, connects, hooks in, and says goodbye."""

from __future__ import annotations

import os
import sys
import time

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 20
"""Errors of our own after which the guest takes itself out."""


class Guest:
    """The guest of one process. Nothing here raises into the caller."""

    def __init__(self) -> None:
        self.off = False
        self.sink: Any = None
        self.recorder: Any = None
        self.failures: Any = None
        self.clock: Any = None
        self.torch: Any = None
        self.c10d: Any = None
        self.destroyed = False
        self.address = os.environ.get("ALLRANKS_SOCKET", "")
        self.token = os.environ.get("ALLRANKS_TOKEN", "")
        self.started_ns = time.time_ns()
        self._library: Any = None
        self._errors = 0
        self._refused = False
        self._gone = False

    # Connection

    def connect(self) -> bool:
        """Connects to the host, once; True when there is one."""
        if self.sink is not None:
            return bool(self.sink.alive)
        if self._refused or not self.address:
            return False
        self._refused = True  # until it has worked: a host that is gone is asked once
        try:
            import atexit

            from . import record, sink

            made = sink.Sink(self.address)
            made.greet(self._hello(), os.path.dirname(self.address))
            self.sink = made
            if self.recorder is None:
                self.recorder = record.Recorder(self.send, made.ring)
                self._hook_in()
            else:
                self.recorder.restart(made.ring)
            atexit.register(self.goodbye)
            self._refused = False
            return True
        except Exception:
            return False

    def _hook_in(self) -> None:
        from . import children

        self.failures.install()
        children.wrap_signals(self, os)

    def _hello(self) -> dict[str, Any]:
        from . import setup, wire

        process = sys.modules.get("multiprocessing.process")
        current = process.current_process() if process is not None else None
        return {
            "protocol": wire.PROTOCOL,
            "token": self.token,
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "tid": os.getpid(),  # of the main thread; threading keeps the parent's after a fork
            "argv": _argv(),
            "executable": sys.executable or "",
            "python": "%d.%d.%d" % sys.version_info[:3],
            "cwd": os.getcwd(),
            "environment": setup.environment(),
            "child": getattr(current, "name", "") if getattr(current, "_parent_pid", None) else "",
            "started_ns": self.started_ns,
        }

    def send(self, *message: Any) -> None:
        """Tells the host something, if there is one."""
        sink = self.sink
        if sink is not None:
            sink.send(*message)

    def listen(self) -> None:
        """From now on the host's questions are answered."""
        if self.sink is not None and self.recorder is not None:
            from . import answer

            self.sink.listen(answer.Answers(self.recorder))

    def joins(self) -> None:
        """The process is about to become a rank: now it must be heard, and its calls seen."""
        if not self.connect():  # asked again in a forked child
            return
        self.listen()
        if self._library is not None:
            return
        from . import failure, kernel, late, method, observe

        observe.begin(self)
        failure.watch_handled(self.failures)
        try:
            self._library = kernel.register(self, self.torch, self.c10d)
            self.recorder.watched = True
            late.hide()
        except Exception as error:
            self._library = False
            self.send("blind", "operators", "%s: %s" % (type(error).__name__, str(error)[:300]))
            try:
                method.record(self, self.c10d)
            except Exception as problem:
                self.failed(problem)

    def compiling(self) -> bool:
        """True while torch.compile traces the caller."""
        compiler: Any = getattr(self.torch, "compiler", None)
        return hasattr(compiler, "is_compiling") and bool(compiler.is_compiling())

    # What hooks report

    def fact(self, name: str, *values: Any) -> None:
        """One observation, on a connection made for it if need be."""
        if self.connect():
            self.send("fact", name, *values)

    def passing(self, error: BaseException) -> None:
        """An exception leaves a call that is watched."""
        if not isinstance(error, (SystemExit, GeneratorExit, StopIteration)):
            self.failures.tell(error, "passing")

    def outsider(self, name: str, frame: Any) -> None:
        """A collective by a rank that is not in the group: PyTorch makes it a no-op."""
        try:
            self.send("fact", "outsider", name, stack.user_rows(stack.walk(frame)))
        except Exception as error:
            self.failed(error)

    def leaving(self, how: str, status: Any, frame: Any) -> None:
        """The program asks to end, at this frame."""
        try:
            if self.sink is not None:
                code = status if isinstance(status, int) else 0 if status is None else 1
                text = str(status)[:200] if isinstance(status, str) else ""
                self.send("fact", "exit_call", how, code, text, stack.user_rows(stack.walk(frame)))
        except Exception as error:
            self.failed(error)

    def reaped(self, pid: int, status: int | None) -> None:
        """A child ended: `status` as subprocess has it, negative for a signal."""
        try:
            if status is not None and (self.sink is not None or status != 0) and self.connect():
                self.send("child", pid, int(status))
        except Exception as error:
            self.failed(error)

    def signalled(self, pid: int, number: int, frame: Any) -> None:
        """This process sends a signal."""
        try:
            if pid == os.getpid():
                self.leaving("os.kill", -number, frame)
            else:
                self.send("signalled", pid, number)
        except Exception as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """An error of ours: told to the host, and too many of them end the guest's work."""
        self._errors += 1
        if self._errors > LIMIT:
            self.off = True
        try:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            place = (
                "%s:%d" % (os.path.basename(where.tb_frame.f_code.co_filename), where.tb_lineno)
                if where
                else ""
            )
            self.send("broken", "%s: %s" % (type(error).__name__, str(error)[:300]), place, self.off)
        except Exception:
            pass

    # Life

    def goodbye(self) -> None:
        """The interpreter runs to its end."""
        if self._gone:
            return
        self._gone = True
        try:
            alive = bool(self.c10d is not None and self.c10d.is_initialized())
            last = getattr(sys, "last_value", None)
            if last is not None:
                self.failures.tell(last, "uncaught")
            steps = {"steps": self.clock.total} if self.clock is not None and self.clock.total else {}
            self.send("goodbye", {"destroyed": self.destroyed, "group_alive": alive, **steps})
            if self.recorder is not None:
                self.recorder.forget_groups()  # a Work or backend that outlives its group aborts the process
            if self.sink is not None:
                self.sink.close()
        except Exception:
            pass

    def forked(self) -> None:
        """In a forked child: connection and ring belong to the parent; begin anew when there is reason to."""
        try:
            if self.sink is not None:
                self.sink.abandon()
            ring = self.recorder.ring if self.recorder is not None else None
            self.sink = None
            self._refused = self._gone = False
            self.started_ns = time.time_ns()
            if self.recorder is not None:
                self.recorder.restart(None)
            if ring is not None and hasattr(ring, "close"):
                ring.close()
        except Exception:
            self.off = True


def _argv() -> list[str]:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")[:-1]
        return [word[:300] for word in words[:60]]
    except OSError:
        return [str(word)[:300] for word in getattr(sys, "argv", [])[:60]]


def boot() -> None:
    """Called by sitecustomize: puts the finder in place and leaves everything else for later."""
    from . import late

    late.install(Guest())
