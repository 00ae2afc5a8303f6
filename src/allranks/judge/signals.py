"""Signals that kill a process: their names, and what to do about each."""

from __future__ import annotations

import signal

from ..findings import Text, say

_NATIVE = say(
    "Native code crashed: PYTHONFAULTHANDLER=1 shows the Python line, and an extension, a driver or a library that was "
    "built for another version of torch is the usual suspect."
)
_REMEDIES: dict[int, Text] = {
    signal.SIGKILL: say(
        "Nothing but the kernel's out-of-memory killer, a memory limit or a person sends SIGKILL: look in `dmesg` "
        'for "Out of memory: Killed process", or in the scheduler\'s accounting. Hold less in host memory: fewer '
        "loader workers, memory-mapped data, one copy per node."
    ),
    signal.SIGSEGV: _NATIVE,
    signal.SIGFPE: _NATIVE,
    signal.SIGBUS: say(
        "Give /dev/shm more room (docker run --shm-size=16g or --ipc=host) or use fewer loader workers; a file that "
        "was cut off while it was mapped does the same."
    ),
    signal.SIGABRT: say(
        "Native code gave up by itself, and its last lines say why: `terminate called`, a failed check of gloo, NCCL's "
        "watchdog. PYTHONFAULTHANDLER=1 shows the Python line."
    ),
    signal.SIGILL: say("Install builds of torch and its extensions that are made for this processor."),
}


def signal_name(number: int) -> str:
    """SIGKILL and the like; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def remedy(number: int) -> Text | None:
    """What to do about processes that a signal killed; None for signals that only somebody sends."""
    return _REMEDIES.get(number)
