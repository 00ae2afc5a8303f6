"""The host's end of the side channel: a Unix socket in a private folder, read by a thread of its own.

Guests wait for nobody, so the thread only reads and queues; everything that is known is changed by one thread,
the one that calls `take`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import struct
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

from ..rank import wire

PATH_LIMIT = 100
"""`sun_path` holds 108 bytes."""

Message = tuple[Any, ...]


class Connection:
    """One guest. `pid` is the process as the host sees it; `fd` the ring that came with the first message."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.socket = sock
        self.pid = pid
        self.fd: int | None = None
        self.known = False
        self._decoder = wire.Decoder()

    def read(self) -> list[Message] | None:
        """The messages that have come; None at the end, or when the other side speaks something else."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        for fd in fds:
            if self.fd is None:
                self.fd = fd
            else:
                os.close(fd)
        if not data:
            return None
        try:
            return self._decoder.feed(data)
        except (ValueError, EOFError, TypeError):
            return None

    def ask(self, number: int, name: str) -> bool:
        """Sends a question; False when the guest does not take it."""
        try:
            data = wire.encode(("ask", number, name))
            return self.socket.send(data) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        """Closes the socket. A ring stays with whoever mapped it."""
        self.socket.close()


class Server:
    """Listens for guests. `environment` is what a child needs to find it."""

    def __init__(self, token: str) -> None:
        _sweep()
        self.folder = _folder()
        self.address = os.path.join(self.folder, "s")
        self._token = token
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, self._wake_end = socket.socketpair()
        self._selector.register(self._wake_end, selectors.EVENT_READ, None)
        self._queue: deque[tuple[Connection, Message | None]] = deque()
        self.arrived = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="allranks-server", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which guests find this server."""
        return {"ALLRANKS_SOCKET": self.address, "ALLRANKS_TOKEN": self._token}

    def start(self) -> None:
        """Begins to read; connections made before wait in the listener's queue."""
        self._thread.start()

    def take(self) -> list[tuple[Connection, Message | None]]:
        """All that has come since the last call, in order; None as a message is the end of a connection."""
        self.arrived.clear()
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def announce_end(self) -> None:
        """Tells launch agents that whatever ends them now was sent by the host, on a verdict."""
        with contextlib.suppress(OSError):
            Path(self.folder, wire.ENDED).touch()

    def close(self) -> None:
        """Ends the thread and removes the folder; guests notice and fall silent."""
        self._wake.send(b"x")
        if self._thread.ident is not None:
            self._thread.join(5)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Connection):
                key.data.close()
        self._selector.close()
        for sock in (self._listener, self._wake, self._wake_end):
            sock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_end:
                    return
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            self.arrived.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in (os.getuid(), 0):
                sock.close()
                return
            self._selector.register(sock, selectors.EVENT_READ, Connection(sock, pid))

    def _read(self, connection: Connection) -> None:
        messages = connection.read()
        for message in messages or ():
            if not connection.known:
                hello = message[1] if message[0] == "hello" and len(message) == 2 else None
                if not isinstance(hello, dict) or hello.get("token") != self._token:
                    messages = None
                    break
                connection.known = True
            self._queue.append((connection, message))
        if messages is None:
            self._selector.unregister(connection.socket)
            connection.close()
            if connection.known:
                self._queue.append((connection, None))


def _folder() -> str:
    """A new folder that only this user can enter, with a path short enough for a socket. The host's pid is in its
    name, so that what a killed host left behind can be told and removed."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if parent and len(parent) < PATH_LIMIT - 40 and os.access(parent, os.W_OK):
            try:
                return tempfile.mkdtemp(prefix=f"allranks-{os.getpid()}-", dir=parent)
            except OSError:
                continue
    return tempfile.mkdtemp(prefix=f"allranks-{os.getpid()}-")


def _sweep() -> None:
    """Removes folders of hosts of this user that were killed."""
    for parent in {os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"} - {None}:
        for folder in Path(str(parent)).glob("allranks-*-*"):
            pid = folder.name.split("-")[1]
            with contextlib.suppress(OSError):
                if (
                    pid.isdigit()
                    and not Path(f"/proc/{pid}").exists()
                    and folder.stat().st_uid == os.getuid()
                ):
                    shutil.rmtree(folder, ignore_errors=True)
