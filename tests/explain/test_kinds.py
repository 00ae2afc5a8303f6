"""Every kind that a log can show, in the words of several torch versions, launchers and interleavings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from .book import PREFIXES, SITE, Frame, ask, boxed, ended, place, started, torn, trace, verdict, woven

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text("utf-8"))
USER: list[Frame] = [
    ("/workspace/train.py", 88, "<module>", "main()"),
    ("/workspace/train.py", 61, "main", "train_one_epoch(model, loader, optimizer, scaler)"),
    ("/workspace/lib/engine.py", 33, "step", "out = step(batch)"),
]


def raised(kind: str) -> tuple[list[Frame], str]:
    row = ROWS[kind]
    below = [
        (path if path.startswith("/") else f"{SITE}/{path}", line, function, source)
        for path, line, function, source in row.get("below", [])
    ]
    return [*USER, *below], row["error"]


def check(kind: str, tmp_path: Path, log: list[str]) -> None:
    found = verdict(ask(tmp_path, log))
    assert (found.fault, place(found)) == (ROWS[kind]["fault"], ("engine.py", 33))
    assert found.severity.loud


@pytest.mark.parametrize("prefix", ["none", "excepthook", "tee", "slurm"])
@pytest.mark.parametrize("kind", ROWS)
def test_all_ranks_raise(tmp_path: Path, kind: str, prefix: str) -> None:
    lines = ["step 1", *trace(*raised(kind))]
    check(kind, tmp_path, woven({0: lines, 1: lines}, PREFIXES[prefix], "alternately"))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", ["own", "duplicate", "module prefix"])
def test_every_prefix(tmp_path: Path, kind: str, prefix: str) -> None:
    lines = ["step 1", *trace(*raised(kind))]
    log = woven({0: lines, 1: lines, 2: lines, 3: lines}, PREFIXES[prefix], "anyhow")
    check(kind, tmp_path, log)
    found = verdict(ask(tmp_path, log))
    if prefix != "none":
        assert found.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("era", "weave"), [("2.13", "after"), ("2.1", "alternately"), ("1.12", "anyhow"), ("2.13", "anyhow")]
)
@pytest.mark.parametrize("kind", ROWS)
def test_torchrun_without_prefixes(tmp_path: Path, kind: str, weave: str, era: str) -> None:
    lines = trace(*raised(kind))
    ranks = dict.fromkeys(range(3), lines)
    ends = ended({1: 1, 0: 1, 2: 1}, era)
    check(kind, tmp_path, [*started(era), "epoch 1/10", *woven(ranks, PREFIXES["none"], weave, 3), *ends])


@pytest.mark.parametrize("kind", ROWS)
def test_boxes_of_rich(tmp_path: Path, kind: str) -> None:
    check(kind, tmp_path, [*started(), *boxed(*raised(kind)), *ended({0: 1}, survivors=[1])])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ROWS)
def test_tracebacks_written_in_pieces(tmp_path: Path, kind: str, seed: int) -> None:
    lines = trace(*raised(kind))
    check(kind, tmp_path, torn({0: lines, 1: lines}, seed).split("\n"))
