"""The guest's end of the side channel: a Unix socket, and the ring that outlives the process."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import threading

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PATIENCE = struct.pack("ll", 1, 0)
"""A send waits at most this long (a struct timeval) for a host that does not read, then the guest falls silent."""


def create_ring(folder: str) -> Any:
    """(map, file descriptor) of a new ring; (None, -1) where memory or disk do not allow it."""
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("allranks", os.MFD_CLOEXEC)
        else:
            path = os.path.join(folder, "ring-%d" % os.getpid())
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
        # Allocated now: a full disk must fail here and not as SIGBUS in the user's process.
        os.posix_fallocate(fd, 0, wire.RING_BYTES)
        return mmap.mmap(fd, wire.RING_BYTES), fd
    except (OSError, ValueError):
        return None, -1


class Sink:
    """The connection to the host. `send` never raises; `alive` turns False for good when the host is gone."""

    def __init__(self, address: str) -> None:
        self.alive = False
        self._lock = threading.RLock()  # a signal handler of the user may run a collective inside a send
        self._answer: Any = None
        self._thread: Any = None
        self.ring: Any = None
        self._ring_fd = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        self._socket.connect(address)
        self.alive = True

    def greet(self, hello: dict[str, Any], folder: str) -> None:
        """Sends the first message, and with it the ring."""
        self.ring, self._ring_fd = create_ring(folder)
        rights = []
        if self._ring_fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._ring_fd]))]
        data = wire.encode(("hello", hello))
        sent = self._socket.sendmsg([data], rights)
        if sent < len(data):
            self._socket.sendall(data[sent:])
        if self._ring_fd >= 0:
            os.close(self._ring_fd)  # both sides have it mapped or in flight
            self._ring_fd = -1

    def send(self, *message: Any) -> None:
        """Sends one message: a name and plain values."""
        if not self.alive:
            return
        try:
            with self._lock:
                self._socket.sendall(wire.encode(message))
        except Exception:
            self.close()

    def listen(self, answer: Any) -> None:
        """Starts the thread that answers the host's questions: `answer(name, number)` gives a dict."""
        if self._thread is not None or not self.alive:
            return
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, name="allranks", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        decoder = wire.Decoder()
        try:
            while self.alive:
                data = self._socket.recv(4096)
                if not data:
                    break
                for question in decoder.feed(data):
                    self.send("answer", question[1], self._answer(*question[2:]))
        except Exception:
            pass
        self.alive = False

    def close(self) -> None:
        """Ends the connection; the thread's recv returns."""
        self.alive = False
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def abandon(self) -> None:
        """Lets go of what a forked child inherited, without a word to the host: it belongs to the parent."""
        self.alive = False
        try:
            os.close(self._socket.detach())
        except OSError:
            pass
