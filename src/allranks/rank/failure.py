"""Exceptions: what a rank died of, and what it swallowed on the way."""

from __future__ import annotations

import sys
import threading
import time

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SPEAKERS = (__name__, "logging", "traceback")
"""Modules that stand between a user's except block and the guest."""
LIMIT = 200
"""Exceptions told in full; a program that raises thousands tells its story in the first ones and the last."""


class Failures:
    """Reports exceptions once each, however many hooks see them pass."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self.count = 0
        self.at_end: list[Any] = []
        """Functions called before an error that ends the program is told: what was there last may explain it."""

    def tell(self, error: BaseException, how: str) -> None:
        """Reports an exception object; `how` is where it was seen: passing, uncaught, thread, logged, handled.

        The object carries its number, so that a later sighting ("uncaught") refers to the first.
        """
        try:
            if self.guest.sink is None:
                return
            if how == "uncaught":
                for look in self.at_end:
                    look()
            known = getattr(error, "_allranks", None)
            if known is not None:
                if how not in known[1]:
                    known[1].append(how)
                    self.guest.send("again", known[0], how)
                return
            self.count += 1
            if self.count > LIMIT and how not in ("uncaught", "passing"):
                return
            try:
                error._allranks = (self.count, [how])  # type: ignore[attr-defined]
            except Exception:
                pass
            main = threading.current_thread() is threading.main_thread()
            self.guest.send(
                "exception", self.count, how, time.time_ns(), _name(error), _text(error),
                _frames(error.__traceback__), _cause(error), main,
            )  # fmt: skip
        except Exception as problem:
            self.guest.failed(problem)

    def tell_current(self, how: str = "logged") -> None:
        """Reports the exception that the user's code is handling at this moment, if it is the user's code that asks
        to print or log; what libraries catch among themselves is no news."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, (StopIteration, GeneratorExit, SystemExit)):
            return
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_SPEAKERS):
            frame = frame.f_back
        if frame is not None and stack.describe(frame.f_code).owner == stack.USER:
            self.tell(error, how)

    def install(self) -> None:
        """Chains the hooks of the interpreter; called once there is a host to tell."""
        import os

        previous, threads = sys.excepthook, threading.excepthook

        @stack.wraps(previous)
        def excepthook(kind: Any, value: Any, traceback: Any) -> Any:
            if value is not None:
                self.tell(value, "uncaught")
                _hide_guest(value)
            return previous(kind, value, traceback)

        def thread_hook(args: Any) -> Any:
            if args.exc_value is not None:
                self.tell(args.exc_value, "thread")
                _hide_guest(args.exc_value)
            return threads(args)

        sys.excepthook = excepthook
        threading.excepthook = thread_hook
        sys.exit = _leaving(self.guest, "sys.exit", sys.exit)
        os._exit = _leaving(self.guest, "os._exit", os._exit)


def _hide_guest(error: BaseException) -> None:
    """Takes the frames of the guest out of the tracebacks that the user is about to read."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        traceback = one.__traceback__
        while traceback is not None:
            following = traceback.tb_next
            while following is not None and stack.describe(following.tb_frame.f_code).owner == stack.GUEST:
                following = following.tb_next
            traceback.tb_next = following
            traceback = following


def _leaving(guest: Any, how: str, function: Any) -> Any:
    @stack.wraps(function)
    def exit_call(*args: Any) -> Any:
        guest.leaving(how, args[0] if args else None, sys._getframe(1))
        return function(*args)

    return exit_call


def _name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__name__
        if kind.__module__ in ("builtins", "__main__")
        else "%s.%s" % (kind.__module__, kind.__name__)
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "%s: %s" % (_name(cause), _text(cause)[:300]) if cause is not None else ""


def _frames(traceback: Any) -> list[Any]:
    """The frames of an exception, outermost first, as rows; those of the guest left out.

    A traceback that is still on its way holds only the frames it has left; the ones around them are on the stack.
    """
    if traceback is None:
        return []
    found = stack.rows(stack.walk(traceback.tb_frame.f_back))
    while traceback is not None and len(found) < 2 * stack.SITE_DEPTH:
        code = stack.describe(traceback.tb_frame.f_code)
        if code.owner != stack.GUEST:
            found.append(
                (code.path, traceback.tb_lineno, code.function, code.first_line, code.owner == stack.USER)
            )
        traceback = traceback.tb_next
    return found


# What was swallowed


def watch_handled(failures: Failures) -> None:
    """Sees exceptions that user code handles: all of them from Python 3.12 on, before that where it prints."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        import builtins

        builtins.print = _telling(failures, builtins.print)
        return
    for tool in (4, 3):
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "allranks")
            event = monitoring.events.EXCEPTION_HANDLED
            monitoring.register_callback(
                tool, event, lambda code, offset, error: _handled(failures, code, error)
            )
            monitoring.set_events(tool, event)
            return
    failures.guest.send("blind", "handled", "every tool id of sys.monitoring is taken")


def _handled(failures: Failures, code: Any, error: BaseException) -> None:
    """User code handles an exception."""
    try:
        if not isinstance(error, (StopIteration, GeneratorExit)) and stack.describe(code).owner == stack.USER:
            failures.tell(error, "handled")
    except Exception as problem:
        failures.guest.failed(problem)


def _telling(failures: Failures, function: Any) -> Any:
    """A function that is called in except blocks, to say what happened."""

    @stack.wraps(function)
    def telling_call(*args: Any, **kwargs: Any) -> Any:
        if sys.exc_info()[1] is not None:
            failures.tell_current()
        return function(*args, **kwargs)

    return telling_call


def wrap_logging(failures: Failures, logging: Any) -> None:
    """An exception that is logged was handled: in an except block, also where the level is too low to show, or later
    as an argument or with its traceback."""
    make = logging.Logger.makeRecord

    @stack.wraps(make)
    def make_record(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        try:
            values = record.args if isinstance(record.args, tuple) else ()
            for value in (*values, record.msg, *(record.exc_info or ())):
                if isinstance(value, BaseException):
                    failures.tell(value, "logged")
        except Exception as problem:
            failures.guest.failed(problem)
        return record

    logging.Logger.makeRecord = make_record
    logging.Logger.isEnabledFor = _telling(failures, logging.Logger.isEnabledFor)


def wrap_traceback(failures: Failures, traceback: Any) -> None:
    """`traceback.print_exc()` and `format_exc()` in an except block."""
    for name in ("print_exc", "format_exc"):
        setattr(traceback, name, _telling(failures, getattr(traceback, name)))


def wrap_ddp(failures: Failures, module: Any) -> None:
    """Exceptions that leave DDP's forward, where nothing else sees what user code handles."""
    if hasattr(sys, "monitoring"):
        return
    torch = sys.modules["torch"]
    original = module.DistributedDataParallel.forward

    @stack.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            failures.tell(error, "passing")
            raise

    module.DistributedDataParallel.forward = forward


# Child processes


def wrap_spawn(failures: Failures, spawn: Any) -> None:
    """`mp.spawn`: torch turns its children's exceptions into text for the parent; and how many it starts."""
    original, start = spawn._wrap, spawn.start_processes

    @stack.wraps(original)
    def _wrap(fn: Any, *args: Any) -> Any:
        return original(_Guarded(failures, fn), *args)

    @stack.wraps(start)
    def start_processes(*args: Any, **kwargs: Any) -> Any:
        count = kwargs.get("nprocs", args[2] if len(args) > 2 else 1)
        failures.guest.fact("nprocs", int(count))
        return start(*args, **kwargs)

    spawn._wrap = _wrap
    spawn.start_processes = start_processes


def wrap_process(failures: Failures, process: Any) -> None:
    """Children of multiprocessing: the exception of `run`, and an end that runs no atexit handlers."""
    original = process.BaseProcess._bootstrap

    @stack.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = _Guarded(failures, self.run)
        return original(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap


class _Guarded:
    """The function of a child process, whose exceptions are told before they go on."""

    def __init__(self, failures: Failures, function: Any) -> None:
        self._failures, self._function = failures, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # Not before `run`: multiprocessing clears what a fork inherited.
            from multiprocessing import util

            util.Finalize(None, self._failures.guest.goodbye, exitpriority=-1000)
        except Exception as problem:
            self._failures.guest.failed(problem)
        try:
            return self._function(*args, **kwargs)
        except SystemExit:
            raise
        except BaseException as error:
            self._failures.guest.connect()
            self._failures.tell(error, "uncaught")
            raise


def wrap_argparse(failures: Failures, argparse: Any) -> None:
    """A command line that the script does not take: the message and the line that parsed it."""
    original = argparse.ArgumentParser.error

    @stack.wraps(original)
    def error(self: Any, message: Any) -> Any:
        rows = stack.user_rows(stack.walk(sys._getframe(1)))
        failures.guest.fact("argparse", str(message)[:500], rows)
        return original(self, message)

    argparse.ArgumentParser.error = error
