"""Exceptions and endings: what a rank died of, what it swallowed, and that it ran to its end."""

from __future__ import annotations

import functools
import sys
import threading

from . import stack

LIMIT = 200
"""Exceptions told in full; a program that raises thousands tells its story in the first ones and the last."""


class Failures:
    """Reports exceptions once each, however many hooks see them pass."""

    def __init__(self, guest) -> None:
        self.guest = guest
        self.count = 0

    def tell(self, error, how: str) -> None:
        """Reports an exception object; `how` is where it was seen: passing, uncaught, thread, logged, handled.

        The object carries its number, so that a later sighting ("uncaught") refers to the first.
        """
        try:
            known = getattr(error, "_allranks", None)
            if known is not None:
                if how not in known[1]:
                    known[1].append(how)
                    self.guest.send("again", known[0], how)
                return
            self.count += 1
            if self.count > LIMIT and how not in ("uncaught", "child"):
                return
            number = self.count
            try:
                error._allranks = (number, [how])
            except Exception:
                pass
            cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            name = type(error).__name__ if type(error).__module__ in ("builtins", "__main__") else (
                "%s.%s" % (type(error).__module__, type(error).__name__)
            )  # fmt: skip
            self.guest.send(
                "exception", number, how, name, _text(error), _frames(error.__traceback__),
                "%s: %s" % (type(cause).__name__, _text(cause)) if cause is not None else "",
                threading.current_thread() is threading.main_thread(),
            )  # fmt: skip
        except Exception as problem:
            self.guest.failed(problem)

    def install(self) -> None:
        """Chains the hooks of the interpreter."""
        previous, threads = sys.excepthook, threading.excepthook

        @functools.wraps(previous)
        def excepthook(kind, value, traceback):
            if value is not None and not issubclass(kind, KeyboardInterrupt):
                self.tell(value, "uncaught")
            elif value is not None:
                self.tell(value, "interrupted")
            previous(kind, value, traceback)

        def thread_hook(args):
            if args.exc_value is not None:
                self.tell(args.exc_value, "thread")
            threads(args)

        sys.excepthook = excepthook
        threading.excepthook = thread_hook
        leave = sys.exit

        @functools.wraps(leave)
        def exit_call(*args):
            self.guest.leaving("sys.exit", args[0] if args else None, sys._getframe(1))
            leave(*args)

        sys.exit = exit_call

    def raised_to(self, code, offset, error) -> None:
        """`sys.monitoring` callback: user code handles an exception."""
        try:
            if stack.describe(code).owner == stack.USER and not isinstance(
                error, (StopIteration, GeneratorExit)
            ):
                self.tell(error, "handled")
        except Exception as problem:
            self.guest.failed(problem)


def _text(error) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""


def _frames(traceback) -> list:
    """The frames of a traceback, outermost first, as rows; those of the guest left out."""
    found = []
    while traceback is not None and len(found) < 200:
        code = stack.describe(traceback.tb_frame.f_code)
        if code.owner != stack.GUEST:
            found.append(
                (code.path, traceback.tb_lineno, code.function, code.first_line, code.owner == stack.USER)
            )
        traceback = traceback.tb_next
    return found


def monitor(failures: Failures) -> bool:
    """Sees exceptions that user code swallows without a word; Python 3.12 and newer."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return False
    for tool in (4, 3):
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "allranks")
            event = monitoring.events.EXCEPTION_HANDLED
            monitoring.register_callback(tool, event, failures.raised_to)
            monitoring.set_events(tool, event)
            return True
    return False


def wrap_logging(failures: Failures, logging) -> None:
    """An exception that is logged was handled: as an argument, or with its traceback."""
    original = logging.Logger.makeRecord

    @functools.wraps(original)
    def makeRecord(*args, **kwargs):  # noqa: N802
        record = original(*args, **kwargs)
        try:
            if isinstance(record.args, tuple):
                for value in record.args:
                    if isinstance(value, BaseException):
                        failures.tell(value, "logged")
            if isinstance(record.msg, BaseException):
                failures.tell(record.msg, "logged")
            if record.exc_info and record.exc_info[1] is not None:
                failures.tell(record.exc_info[1], "logged")
            elif record.levelno >= 30 and sys.exc_info()[1] is not None:
                # Logged inside an except block, its text put into the message by hand.
                failures.tell(sys.exc_info()[1], "logged")
        except Exception as problem:
            failures.guest.failed(problem)
        return record

    logging.Logger.makeRecord = makeRecord


def wrap_traceback(failures: Failures, traceback) -> None:
    """`traceback.print_exc()` and `format_exc()` in an except block."""
    for name in ("print_exc", "format_exc"):
        setattr(traceback, name, _telling(failures, getattr(traceback, name)))


def _telling(failures: Failures, function):
    @functools.wraps(function)
    def traceback_call(*args, **kwargs):
        error = sys.exc_info()[1]
        if error is not None:
            failures.tell(error, "logged")
        return function(*args, **kwargs)

    return traceback_call


def wrap_spawn(failures: Failures, spawn) -> None:
    """The children of `mp.spawn`: torch swallows their exceptions to hand them to the parent as text."""
    original = spawn._wrap

    @functools.wraps(original)
    def _wrap(fn, *args):
        return original(_Guarded(failures, fn), *args)

    spawn._wrap = _wrap


def wrap_process(failures: Failures, process) -> None:
    """Children of multiprocessing: the exception of `run`, and an end that runs no atexit handlers."""
    original = process.BaseProcess._bootstrap

    @functools.wraps(original)
    def _bootstrap(self, *args, **kwargs):
        self.run = _Guarded(failures, self.run)
        return original(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap


class _Guarded:
    """A function whose exceptions are told before they go on."""

    def __init__(self, failures: Failures, function) -> None:
        self._failures, self._function = failures, function

    def __call__(self, *args, **kwargs):
        try:
            # Not before the start of `run`: multiprocessing clears what a fork inherited.
            from multiprocessing import util

            util.Finalize(None, self._failures.guest.goodbye, exitpriority=-1000)
        except Exception as problem:
            self._failures.guest.failed(problem)
        try:
            return self._function(*args, **kwargs)
        except SystemExit:
            raise
        except BaseException as error:
            self._failures.tell(error, "uncaught")
            raise


def wrap_argparse(failures: Failures, argparse) -> None:
    """A command line that the script does not take: the message and the line that parsed it."""
    original = argparse.ArgumentParser.error

    @functools.wraps(original)
    def error(self, message):
        failures.guest.fact("argparse", str(message)[:500], stack.user_rows(stack.walk(sys._getframe(1))))
        return original(self, message)

    argparse.ArgumentParser.error = error
