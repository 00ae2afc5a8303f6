"""Bytes of a log, whatever it is packed in: plain, gzip, zstd, xz, bzip2, UTF-16; streamed, never whole in memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..errors import AllranksError
from ..findings import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCK = 256 * 1024
"""Bytes read at a time: small enough to stay in the processor's cache while several fragments are looked for."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class _Readable(Protocol):
    """What all decompressors share."""

    def read(self, size: int = ..., /) -> bytes: ...


class Stream:
    """The decompressed bytes of one log. `cut` is True once it turned out that the rest cannot be read."""

    def __init__(
        self, path: Path | None, text: str | None = None, heard: Callable[[int], None] | None = None
    ) -> None:
        """`path` None is standard input. `text` is what was already read out of the file. `heard` is called with how
        many bytes of the file have been read, packed as they are."""
        self.path = path
        self.text = text
        self.heard = heard
        self.cut = False

    @property
    def name(self) -> str:
        """The path as the user gave it; "-" for standard input."""
        return str(self.path) if self.path is not None else "-"

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of at most BLOCK decompressed bytes. Raises AllranksError when the file cannot be opened."""
        if self.text is not None:
            yield self.text.encode("utf-8", "replace")
            return
        with _opened(self.path) as raw, _unpacked(raw, self.name) as plain:
            # `read1` hands out what is there before it stumbles over a damaged or missing rest.
            read = getattr(plain, "read1", plain.read)
            decoder = None
            first = True
            while True:
                try:
                    block = read(BLOCK)
                except Exception:  # damaged or cut off: each decompressor has errors of its own
                    self.cut = True
                    return
                if not block:
                    return
                if first:
                    first = False
                    encoding = _UTF16.get(block[:2])
                    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
                if self.heard is not None and self.path is not None and raw.seekable():
                    self.heard(raw.tell())
                yield decoder.decode(block).encode("utf-8", "replace") if decoder else block


def peek(path: Path, size: int = 4096) -> bytes:
    """The first decompressed bytes of a file; empty when it cannot be read."""
    try:
        return next(iter(Stream(path)), b"")[:size]
    except AllranksError:
        return b""


@contextmanager
def _opened(path: Path | None) -> Iterator[io.BufferedReader[Any]]:
    if path is None:
        # Read through a buffer of our own, which can look ahead, and leave the real one open.
        standard = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer), BLOCK)
        yield standard
        standard.detach()
        return
    try:
        raw = io.BufferedReader(io.FileIO(path), BLOCK)
    except OSError as error:
        raise _unreadable(path, error) from error
    with raw:
        yield raw


def _unreadable(path: object, error: OSError) -> AllranksError:
    return AllranksError(
        "input-unreadable",
        say("{path} cannot be read: {error}", path=path, error=error.strerror or error),
        say("look at its permissions, or copy it to where you may read it"),
    )


@contextmanager
def _unpacked(raw: io.BufferedReader[Any], name: str) -> Iterator[_Readable]:
    """The reader behind the compression that the first bytes announce."""
    try:
        head = raw.peek(8)[:8]
    except OSError as error:
        raise _unreadable(name, error) from error
    if head.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=raw) as plain:
            yield plain
    elif head.startswith(b"\xfd7zXZ\x00"):
        with lzma.LZMAFile(raw) as plain:
            yield plain
    elif head.startswith(b"BZh"):
        with bz2.BZ2File(raw) as plain:
            yield plain
    elif head.startswith(_ZSTD):
        with _zstd(raw, name) as plain:
            yield plain
    else:
        yield raw


@contextmanager
def _zstd(raw: io.BufferedReader[Any], name: str) -> Iterator[_Readable]:
    """Zstandard: the standard library from 3.14 on, the zstandard package, or the zstd program."""
    if (module := _imported("compression.zstd")) is not None:
        with module.ZstdFile(raw) as plain:
            yield plain
        return
    if (module := _imported("zstandard")) is not None:
        with module.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False) as plain:
            yield plain
        return
    program = shutil.which("zstd")
    if program is None or name == "-":
        raise AllranksError(
            "zstd-missing",
            say("{path} is packed with zstd, and nothing here can unpack it", path=name),
            say("install the `zstandard` package or the `zstd` program"),
        )
    with subprocess.Popen(
        [program, "-dcq", "--", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.stdout.close()
            process.kill()


def _imported(name: str) -> Any:
    """The module of that name, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None
