"""A host for guests under test: the real server, and the messages of every guest by process."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from allranks.run.launch import BOOT
from allranks.run.ring import Record, Ring
from allranks.run.server import Connection, Server

FAKE = Path(__file__).parent / "fake"


class Host:
    """Runs programs with a guest and keeps all that the guests say."""

    def __init__(self) -> None:
        self.server = Server("token")
        self.server.start()
        self.messages: dict[Connection, list[tuple[Any, ...]]] = defaultdict(list)
        self.rings: dict[Connection, Ring] = {}

    def environment(self, *paths: Path, **variables: str) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if n in ("PATH", "HOME", "LANG", "TMPDIR")}
        path = os.pathsep.join(str(p) for p in (BOOT, *paths))
        return {
            **kept,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.server.environment,
            **variables,
        }

    def run(
        self, python: str, code: str, *arguments: str, paths: tuple[Path, ...] = (FAKE,), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [python, *arguments, "-c", code], env=self.environment(*paths, **variables), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        self.collect()
        return done

    def collect(self, seconds: float = 5.0) -> None:
        """Takes in what has come, until every connection has ended."""
        deadline = time.monotonic() + seconds
        open_ones: set[Connection] = set()
        while True:
            for connection, message in self.server.take():
                if connection not in self.messages and connection.fd is not None:
                    self.rings[connection] = Ring(connection.fd)
                if message is None:
                    open_ones.discard(connection)
                else:
                    open_ones.add(connection)
                    self.messages[connection].append(message)
            if not open_ones or time.monotonic() > deadline:
                return
            self.server.arrived.wait(0.05)

    def said(self, name: str) -> list[tuple[Any, ...]]:
        """The messages of this name, from all guests, in order."""
        return [m for messages in self.messages.values() for m in messages if m[0] == name]

    def records(self) -> list[Record]:
        """What is in the ring of the only guest."""
        (ring,) = self.rings.values()
        return ring.read()

    def close(self) -> None:
        for ring in self.rings.values():
            ring.close()
        self.server.close()
