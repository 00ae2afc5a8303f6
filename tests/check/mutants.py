"""Inputs that no user meant: real programs with something broken, random bytes, and constructions that go too far."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOKENS = (
    "if rank == 0:", "dist.barrier()", "return", "break", "continue", "raise", "yield", "await x", "lambda: 0", "*",
    "**", ":", "=", ":=", "(", ")", "[", "]", "{", "}", ",", ".", "@", "->", "not", "in", "is", "None", "self", "rank",
    "args", "model", "loader", "dist.all_reduce(x)", "model = DDP(model)", "loss.backward()", "optimizer.step()",
    "global rank", "nonlocal x", "del model", "import train", "from . import *", "from train import main",
    "try:", "except:", "else:",
    "finally:", "with model.no_sync():", "while True:", "for x in loader:", "match x:", "case _:", "async def f():",
    "class A(A):", "def main():", "main()", "f'{rank!r:>{width}}'", "0xFFFFFFFFFFFFFFFFFFFF", "1e999", "1j", "...",
    "10 ** 10 ** 10", "'x' * 10 ** 9", "1 << 10 ** 9", "x[rank:]", "x[...]", "print >>f, x", "exec 'x'", "`x`", "<>",
)  # fmt: skip
CODINGS = (
    b"# -*- coding: latin-1 -*-\n", b"# coding: utf-16\n", b"# coding: cp1252\n", b"# coding: gbk\n",
    b"# coding: nothing\n", b"# coding: utf-7\n", b"# coding: rot13\n", b"# coding: utf-8-sig\n", b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xfe\xff", b"#!/usr/bin/python2\n", b"\x0c\n", b"# coding: idna\n", b"# coding: undefined\n",
)  # fmt: skip

LOOP = "import torch.distributed as dist\ndist.init_process_group()\nrank = dist.get_rank()\n"
FAR: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "x = " + "(" * n + "1" + ")" * n,
    "lists": lambda n: "x = " + "[" * n + "rank" + "]" * n,
    "sum": lambda n: "x = " + " + ".join(["rank"] * n),
    "attributes": lambda n: "x = rank" + ".a" * n,
    "calls": lambda n: "x = f" + "()" * n,
    "nots": lambda n: "x = " + "not " * n + "rank",
    "comparisons": lambda n: "x = rank" + " == rank" * n,
    "conjunction": lambda n: "if " + " and ".join(f"a{i} or rank == {i}" for i in range(n)) + ":\n    dist.barrier()",
    "branches": lambda n: "".join(f"if flag{i}:\n    dist.barrier()\n" for i in range(n)),
    "alternatives": lambda n: "if a:\n    pass\n" + "".join(f"elif rank == {i}:\n    x = {i}\n" for i in range(n)),
    "nested": lambda n: "".join(" " * i + f"if a{i}:\n" for i in range(min(n, 95))) + " " * 96 + "dist.barrier()",
    "loops": lambda n: "".join(" " * i + f"for a{i} in x:\n" for i in range(min(n, 19))) + " " * 20 + "dist.barrier()",
    "functions": lambda n: "".join(f"def f{i}(x):\n    return f{i + 1}(x) or rank\n" for i in range(n)) + "f0(1)",
    "doubling": lambda n: "".join(f"def f{i}():\n    f{i + 1}()\n    f{i + 1}(dist.barrier())\n" for i in range(n))
    + "f0()",
    "names": lambda n: "".join(f"a{i} = a{i - 1} + rank\n" for i in range(1, n)),
    "table": lambda n: "x = {" + ", ".join(f"{i}: rank" for i in range(n)) + "}",
    "string": lambda n: "x = '" + "y" * (100 * n) + "'",
    "itself": lambda n: "x = []\nx.append(x)\ny = {}\ny['y'] = y\ny.update(y)\nz = (x, y)\nx += [z] * 3\nprint(x == y)",
    "ancestry": lambda n: "class A(B): pass\nclass B(A): pass\nA().run(rank)\nclass C(C): pass\nC()",
    "decorators": lambda n: "def d(f):\n    return d(f)\n" + "@d\n" * min(n, 500) + "def g():\n    dist.barrier()\ng()",
    "recursion": lambda n: "def f(n):\n    dist.barrier()\n    return f(n - 1) if rank else f(n + 1)\nf(9)",
    "generator": lambda n: "def g():\n    yield from g()\n    yield rank\nfor x in g():\n    dist.barrier()",
    "unpacking": lambda n: "(" + "".join(f"a{i}, " for i in range(n)) + ") = *x, rank",
    "comprehension": lambda n: "x = [a " + "".join(f"for a{i} in range(10 ** 9) " for i in range(min(n, 100))) + "]",
    "format": lambda n: "x = f'" + "{rank}" * n + "' % (rank,) * 9",
    "handlers": lambda n: "try:\n    dist.barrier()\n" + "".join(f"except E{i}:\n    raise\n" for i in range(n)),
}  # fmt: skip
"""Constructions by how far they go: nothing may crash or take long on them."""


def far(drawn: random.Random) -> tuple[str, bytes]:
    """One construction, in a program that communicates."""
    name = drawn.choice(list(FAR))
    return "train.py", (LOOP + FAR[name](drawn.choice((1, 10, 100, 1000))) + "\n").encode()


def broken(drawn: random.Random, sources: Sequence[bytes]) -> tuple[str, bytes]:
    """A program with one to six changes."""
    data = drawn.choice(sources)
    for _ in range(drawn.randint(1, 6)):
        data = drawn.choice(CHANGES)(drawn, data, sources)
    if drawn.random() < 0.1:
        return "train.ipynb", notebook(drawn, data)
    return "train.py", data


def notebook(drawn: random.Random, data: bytes) -> bytes:
    """`data` as cells of a notebook, mostly a sound one."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    at = drawn.randrange(len(lines) + 1)
    whole = {"nbformat": 4, "cells": [cell(drawn, lines[:at]), cell(drawn, lines[at:])]}
    text = json.dumps(whole)
    return (text if drawn.random() < 0.7 else text[: drawn.randrange(len(text))]).encode()


def cell(drawn: random.Random, lines: list[str]) -> object:
    """A cell, or something that stands where one is expected."""
    odd: tuple[object, ...] = (None, [], {"cell_type": "code"}, {"cell_type": "code", "source": 7}, "code")
    kept: object = {
        "cell_type": drawn.choice(("code", "markdown")),
        "source": drawn.choice((lines, "".join(lines))),
    }
    return kept if drawn.random() < 0.8 else drawn.choice(odd)


def mutants(seed: int, count: int, sources: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of `count` inputs, the same ones for the same seed."""
    drawn = random.Random(seed)
    for _ in range(count):
        chance = drawn.random()
        if chance < 0.04:
            yield "train.py", drawn.randbytes(drawn.randrange(400))
        elif chance < 0.08:
            yield far(drawn)
        else:
            yield broken(drawn, sources)


# Changes


def _cut(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    a = drawn.randrange(len(data) + 1)
    return data[:a] + data[a + drawn.randrange(60) :]


def _end(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    return data[: drawn.randrange(len(data) + 1)]


def _bytes(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    a = drawn.randrange(len(data) + 1)
    return (
        data[:a]
        + drawn.choice((b"\0", b"\xff", b"\xc3", b"\x0c", b"\x1a", b"\r", b"\t", drawn.randbytes(3)))
        + data[a:]
    )


def _coding(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    return drawn.choice(CODINGS) + data


def _ends(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    return data.replace(b"\n", drawn.choice((b"\r\n", b"\r", b"\n\n", b"\n\x0c", b";\n")))


def _lines(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    """Lines are dropped, doubled, swapped, moved in or out, or made of something else."""
    lines = data.split(b"\n")
    a, b = drawn.randrange(len(lines)), drawn.randrange(len(lines))
    what = drawn.randrange(6)
    if what == 0:
        del lines[a]
    elif what == 1:
        lines.insert(b, lines[a])
    elif what == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif what == 3:
        lines[a] = b"    " + lines[a]
    elif what == 4:
        lines[a] = lines[a].removeprefix(b"    ")
    else:
        space = lines[a][: len(lines[a]) - len(lines[a].lstrip())]
        lines.insert(a, space + drawn.choice(TOKENS).encode())
    return b"\n".join(lines)


def _word(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    """A word becomes another one of the program, or a token."""
    words = data.split(b" ")
    a = drawn.randrange(len(words))
    words[a] = drawn.choice(words) if drawn.random() < 0.5 else drawn.choice(TOKENS).encode()
    return b" ".join(words)


def _other(drawn: random.Random, data: bytes, sources: Sequence[bytes]) -> bytes:
    """Lines of another program, put in between."""
    other, lines = drawn.choice(sources).split(b"\n"), data.split(b"\n")
    a, b = drawn.randrange(len(lines)), drawn.randrange(len(other))
    return b"\n".join([*lines[:a], *other[b : b + drawn.randrange(12)], *lines[a:]])


CHANGES = (
    _cut,
    _end,
    _bytes,
    _coding,
    _ends,
    _lines,
    _lines,
    _lines,
    _lines,
    _word,
    _word,
    _word,
    _other,
    _other,
)
