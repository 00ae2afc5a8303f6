"""Logs as launchers of several versions write them, for tests: ranks, prefixes, interleavings, failure tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from allranks.explain import explain

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.findings import Finding, Report

SITE = "/opt/conda/lib/python3.10/site-packages"
Frame = tuple[str, int, str, str]
"""Path, line, function, source."""

C10D = (f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)")


def c10d(function: str, line: int = 4287) -> Frame:
    return (f"{SITE}/torch/distributed/distributed_c10d.py", line, function, "work.wait()")


BACKWARD: tuple[Frame, ...] = (
    (f"{SITE}/torch/_tensor.py", 525, "backward", "torch.autograd.backward("),
    (f"{SITE}/torch/autograd/__init__.py", 267, "backward", "_engine_run_backward("),
    (
        f"{SITE}/torch/autograd/graph.py",
        744,
        "_engine_run_backward",
        "return Variable._execution_engine.run_backward(",
    ),
)
DDP_INIT: Frame = (
    f"{SITE}/torch/nn/parallel/distributed.py",
    795,
    "__init__",
    "_verify_param_shape_across_processes(",
)
DDP_FORWARD: tuple[Frame, ...] = (
    (
        f"{SITE}/torch/nn/modules/module.py",
        1518,
        "_wrapped_call_impl",
        "return self._call_impl(*args, **kwargs)",
    ),
    (
        f"{SITE}/torch/nn/parallel/distributed.py",
        1515,
        "forward",
        "inputs, kwargs = self._pre_forward(*inputs, **kwargs)",
    ),
)


def trace(frames: Iterable[Frame], error: str) -> list[str]:
    """A traceback as Python prints it; `error` may have several lines."""
    lines = ["Traceback (most recent call last):"]
    for path, line, function, source in frames:
        lines += [f'  File "{path}", line {line}, in {function}', *([f"    {source}"] if source else [])]
    return [*lines, *error.split("\n")]


def boxed(frames: Iterable[Frame], error: str) -> list[str]:
    """A traceback as rich draws it."""
    width = 98
    lines = [f"╭{' Traceback (most recent call last) ':─^{width}}╮"]
    for path, line, function, source in frames:
        shown = (f" {path}:{line} in {function}", "", f" ❱ {line} │   {source}", "")
        lines += [f"│{text:<{width}}│" for text in shown]
    return [*lines, f"╰{'─' * width}╯", *error.split("\n")]


# ------------------------------------------------------------------------------------------------------- prefixes

Prefix = Callable[[int], str]
PREFIXES: dict[str, Prefix] = {
    "none": lambda rank: "",
    "excepthook": lambda rank: f"[rank{rank}]: ",
    "tee": lambda rank: f"[default{rank}]:",
    "tee and excepthook": lambda rank: f"[default{rank}]:[rank{rank}]: ",
    "slurm": lambda rank: f"{rank}: ",
    "slurm wide": lambda rank: f"{rank:>3}: ",
    "mpirun": lambda rank: f"[1,{rank}]<stderr>:",
    "pid and excepthook": lambda rank: f"[{80700 + rank}] [rank{rank}]: ",
    "kubectl and excepthook": lambda rank: f"[pod/train-worker-{rank // 2}/pytorch] [rank{rank}]: ",
    "compose and excepthook": lambda rank: f"node{rank // 2}-1  | [rank{rank}]: ",
    "cri and excepthook": lambda rank: f"2024-05-01T10:00:0{rank % 10}.123456789Z stderr F [rank{rank}]: ",
}
"""Prefixes by which a rank's lines are known (but for "none")."""


def woven(ranks: dict[int, list[str]], prefix: Prefix, weave: str, seed: int = 0) -> list[str]:
    """The ranks' lines in one file: "after" each other, "alternately", or "anyhow"."""
    rest = {rank: [prefix(rank) + line for line in lines] for rank, lines in ranks.items()}
    if weave == "after":
        return [line for lines in rest.values() for line in lines]
    drawn = random.Random(seed)
    woven: list[str] = []
    while any(rest.values()):
        alive = [rank for rank, lines in rest.items() if lines]
        for rank in alive if weave == "alternately" else [drawn.choice(alive)]:
            count = 1 if weave == "alternately" else drawn.randint(1, 3)
            woven += rest[rank][:count]
            del rest[rank][:count]
    return woven


def torn(ranks: dict[int, list[str]], seed: int, burst: int = 60) -> str:
    """The ranks' tracebacks as they stand in one file when every process writes them in pieces, as Python does: the
    indentation, the source line, each mark below it, the type and the message apart. `burst` pieces at a time."""
    drawn = random.Random(seed)
    rest = {rank: [piece for line in lines for piece in _pieces(line)] for rank, lines in ranks.items()}
    written = ""
    while any(rest.values()):
        rank = drawn.choice([rank for rank, pieces in rest.items() if pieces])
        count = 1 + int(drawn.expovariate(1 / burst))
        written += "".join(rest[rank][:count])
        del rest[rank][:count]
    return written


def _pieces(line: str) -> list[str]:
    if line.startswith("    "):
        return ["    ", line[4:], "\n", "    ", *"^" * min(len(line) - 4, 30), "\n"]
    kind, colon, message = line.partition(": ")
    if colon and not line.startswith((" ", "\t", "Traceback")):
        return [kind, ": ", message, "\n"]
    return [f"{line}\n"]


# ------------------------------------------------------------------------------------------------------ launchers


def _said(era: str, level: str, module: str, text: str, second: int = 0) -> str:
    if era == "2.13":
        return f"{level[0]}0903 09:43:{second:02}.025000 14222 torch/distributed/{module}] {text}"
    if era == "2.1":
        return f"[2023-12-04 22:36:{second:02},904] torch.distributed.{module.replace('/', '.')[:-7]}: [{level}] {text}"
    return f"{level}:torch.distributed.{module.replace('/', '.')[:-7]}:{text}"


def started(era: str = "2.13") -> list[str]:
    """torchrun's banner."""
    text = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    return [_said(era, "WARNING", "run.py:874", line) for line in ("", "*" * 41, text, "*" * 41)]


def ended(
    statuses: dict[int, int], era: str = "2.13", first: int | None = None, survivors: Iterable[int] = ()
) -> list[str]:
    """What torchrun prints at the end: `statuses` by rank, `survivors` are ended by it. Old versions do not list
    those in the table."""
    root = first if first is not None else next(iter(statuses))
    module = "elastic/multiprocessing/api.py:1028"
    lines = [
        _said(era, "WARNING", module, f"Sending process {1000 + rank} closing signal SIGTERM", 50)
        for rank in survivors
    ]
    failed = f"failed (exitcode: {statuses[root]}) local_rank: {root} (pid: {1000 + root}) of binary: /usr/bin/python"
    lines.append(_said(era, "ERROR", module, failed, 51))
    launch = [
        ("/opt/conda/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        (f"{SITE}/torch/distributed/run.py", 806, "main", "run(args)"),
        (f"{SITE}/torch/distributed/launcher/api.py", 264, "launch_agent", "raise ChildFailedError("),
    ]
    lines += trace(launch, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    rows = dict(statuses)
    if era == "2.13":
        rows |= {rank: -15 for rank in survivors if rank not in rows}
    lines += ["=" * 60, "train.py FAILED", "-" * 60, "Failures:"]
    others = [rank for rank in rows if rank != root]
    if not others:
        lines.append("  <NO_OTHER_FAILURES>")
    for index, rank in enumerate([*others, root], 1):
        if rank == root:
            lines += ["-" * 60, "Root Cause (first observed failure):"]
        status = rows[rank]
        signal = (
            f"Signal {-status} (SIG) received by PID {1000 + rank}"
            if status < 0
            else "To enable traceback see: https://x"
        )
        lines += [
            f"[{0 if rank == root else index}]:", "  time      : 2026-09-03_09:43:52", "  host      : node0",
            f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {status} (pid: {1000 + rank})",
            "  error_file: <N/A>", f"  traceback : {signal}",
        ]  # fmt: skip
    return [*lines, "=" * 60]


# ---------------------------------------------------------------------------------------------------------- asking


def ask(folder: Path, lines: Iterable[str] | str, name: str = "plain.log") -> Report:
    """The report on a log of these lines."""
    file = folder / name
    file.write_text(lines if isinstance(lines, str) else "\n".join(lines) + "\n", encoding="utf-8")
    return explain([file])


def verdict(report: Report) -> Finding:
    """The first finding."""
    assert report.findings, "nothing was found"
    return report.findings[0]


def place(finding: Finding) -> tuple[str, int | None] | None:
    """The last part of the path, and the line."""
    if finding.location is None:
        return None
    return finding.location.path.rsplit("/", 1)[-1], finding.location.line
