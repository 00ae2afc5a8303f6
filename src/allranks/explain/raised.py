"""Exceptions with their stacks, as they stand in a log."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..world import Frame
    from .logs import Line

_LIBRARY = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python\d[\d.]*)[/\\]|^<(?!ipython|stdin)|[/\\]bin[/\\][\w-]+$"
    r"|[/\\]torch[/\\](?:nn[/\\](?:modules|parallel)|distributed[/\\](?:elastic|launcher|fsdp|algorithms|_\w+|[a-z0-9_]+\.py)"
    r"|utils[/\\](?:data|checkpoint\.py|_\w+)|autograd[/\\]|multiprocessing[/\\]|_dynamo[/\\])"
)
_WINDOWS = re.compile(r"\\[Ll]ib\\(?P<module>\w+)(?:\.py)?(?:\\|$)")


def is_user(path: str) -> bool:
    """False for files of installed packages, the standard library, launch scripts and torch's own tree."""
    if _LIBRARY.search(path):
        return False
    match = _WINDOWS.search(path)
    return match is None or match["module"] not in sys.stdlib_module_names


@dataclass(slots=True)
class Raised:
    """One exception of a chain. `code` holds the frames and source lines as text, `message` its whole text."""

    type: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    first: int = 0
    end: int = 0
    """Numbers of the lines of its header and of its type."""
    more: list[Line] = field(default_factory=list)
    """The lines of the message after its first."""
    ignored: bool = False
    """True where Python itself says that nothing follows from it (a destructor, an exit handler)."""

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame in the user's code."""
        return next((frame for frame in reversed(self.frames) if frame.user), None)

    @property
    def text(self) -> str:
        """Type and message, as printed."""
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True)
class Traceback:
    """A traceback with everything chained to it, the first exception first. `process` is the index that mp.spawn
    gives the child it was raised in."""

    chain: list[Raised]
    lines: list[Line]
    process: int | None = None

    @property
    def final(self) -> Raised:
        """The exception that ended the process: the last of the chain."""
        return self.chain[-1]

    @property
    def whole(self) -> str:
        """The texts of all exceptions of the chain."""
        return "\n".join(raised.text for raised in self.chain)

    @property
    def stack(self) -> str:
        """The frames and source lines of all exceptions of the chain."""
        return "\n".join(line for raised in self.chain for line in raised.code)
