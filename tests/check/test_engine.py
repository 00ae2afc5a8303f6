"""The engine around the rules: what it reads, sorts, hides, keeps and survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.check import cache, engine, rules
from allranks.check.rules import Rule, found
from allranks.config import Config
from allranks.errors import AllranksError
from allranks.findings import Confidence, Finding, Location, Severity, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allranks.source.program import Program

SCRIPT = """\
import torch.distributed as dist
import part

dist.init_process_group("gloo")
dist.barrier()  # allranks: ignore[early-exit] meant
dist.barrier()
"""


def barriers(program: Program) -> Iterator[Finding]:
    """A rule for these tests: every line that calls barrier."""
    for path in program.files:
        for number, line in enumerate(program.text(path).split("\n"), 1):
            if "barrier()" in line:
                yield found("early-exit", Location(str(path), number, 1), say("here"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rules, "_RULES", [Rule(("early-exit",), barriers)])
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "part.py").write_text("import torch.distributed as dist\ndist.barrier()\n")
    return tmp_path


def places(findings: list[Finding]) -> list[tuple[str, int | None]]:
    return [(f.location.path, f.location.line) for f in findings if f.location]


def test_findings_are_placed_from_the_working_folder_and_sorted(folder: Path) -> None:
    report = engine.check([Path(".")], Config(root=folder))
    assert places(report.findings) == [("part.py", 2), ("train.py", 6)]
    assert report.command == "check"


def test_a_suppressed_finding_is_kept_apart(folder: Path) -> None:
    report = engine.check([Path("train.py")], Config(root=folder))
    assert places(report.suppressed) == [("train.py", 5)]
    assert report.suppressed[0].suppression == "meant"


def test_a_rule_that_fails_is_a_blind_spot_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(program: Program) -> Iterator[Finding]:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(rules, "_RULES", [Rule(("epoch-not-set",), broken), *rules._RULES])
    report = engine.check([Path("train.py")], Config(root=folder))
    assert places(report.findings) == [("train.py", 6)]
    (spot,) = [spot for spot in report.blind_spots if spot.slug == "rule-failed"]
    assert str(spot.message) == (
        "the rule broken failed (RuntimeError: no such luck): nothing is known of epoch-not-set; please report this"
    )


def test_a_rule_whose_faults_are_not_wanted_is_not_asked(folder: Path) -> None:
    assert engine.check([Path(".")], Config(root=folder, ignore=("step",))).findings == []


def test_faults_can_be_ignored_per_file(folder: Path) -> None:
    report = engine.check([Path(".")], Config(root=folder, per_file_ignores={"part.py": ("early-exit",)}))
    assert places(report.findings) == [("train.py", 6)]


def test_one_finding_a_line_and_fault_the_surest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(program: Program) -> Iterator[Finding]:
        place = Location(str(program.files[0]), 3)
        yield found("early-exit", place, say("maybe"))
        yield found("early-exit", place, say("surely"), confidence=Confidence.PROVED)
        yield found("early-exit", place, say("worst"), severity=Severity.INFO, confidence=Confidence.PROVED)

    monkeypatch.setattr(rules, "_RULES", [Rule(("early-exit",), twice)])
    report = engine.check([Path("train.py")], Config(root=folder))
    assert [str(f.message) for f in report.findings] == ["surely"]


def test_files_that_are_not_python_3_are_passed_over_and_named(folder: Path) -> None:
    (folder / "part.py").write_text("print 'two'\n")
    (folder / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\nbarrier()\n")
    report = engine.check([Path(".")], Config(root=folder))
    (spot,) = report.blind_spots
    assert spot.slug == "unreadable-file"
    assert str(spot.message).startswith("part.py is passed over: line 1:")
    assert ("latin.py", 3) in places(report.findings)


def test_a_finding_in_a_notebook_names_cell_and_line(folder: Path) -> None:
    cells = [{"cell_type": "markdown", "source": "# x"}, {"cell_type": "code", "source": "%pip\n\nbarrier()"}]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells}))
    (finding,) = engine.check([Path("n.ipynb")], Config(root=folder)).findings
    assert finding.location == Location("n.ipynb", 3, 1, cell=2)


def test_a_broken_notebook_is_passed_over(folder: Path) -> None:
    (folder / "n.ipynb").write_text("{")
    (spot,) = engine.check([Path("n.ipynb")], Config(root=folder)).blind_spots
    assert str(spot.message) == "n.ipynb is passed over: not a notebook"


def test_text_that_lies_in_no_file(folder: Path) -> None:
    report = engine.check([Path("-")], Config(root=folder), texts={Path("new.py"): "barrier()\n"})
    assert places(report.findings) == [("new.py", 1)]
    report = engine.check([Path("train.py")], Config(root=folder), texts={Path("train.py"): "\nbarrier()\n"})
    assert places(report.findings) == [("train.py", 2)]
    assert places(engine.check([Path("train.py")], Config(root=folder)).findings) == [("train.py", 6)]


def test_a_path_that_is_not_there(folder: Path) -> None:
    with pytest.raises(AllranksError, match=r"gone\.py does not exist"):
        engine.check([Path("gone.py")], Config(root=folder))


def test_files_that_are_excluded_are_silent_even_when_they_are_imported(folder: Path) -> None:
    report = engine.check([Path(".")], Config(root=folder, extend_exclude=("part.py",)))
    assert places(report.findings) == [("train.py", 6)]


class Counted:
    """A rule that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, program: Program) -> Iterator[Finding]:
        self.asked += 1
        return barriers(program)


@pytest.fixture
def counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    rule = Counted()
    monkeypatch.setattr(rules, "_RULES", [Rule(("early-exit",), rule)])
    return rule


def test_the_cache_answers_for_the_same_content_only(folder: Path, counted: Counted) -> None:
    kept, config, paths = folder / ".cache", Config(root=folder), [Path("train.py")]
    first = engine.check(paths, config, cache=kept)
    assert engine.check(paths, config, cache=kept) == first
    assert counted.asked == 1
    (folder / "train.py").write_text(SCRIPT + "dist.barrier()\n")
    assert len(engine.check(paths, config, cache=kept).findings) == 2
    assert counted.asked == 2


def test_the_cache_sees_modules_that_were_not_named(folder: Path, counted: Counted) -> None:
    kept, config, paths = folder / ".cache", Config(root=folder), [Path("train.py")]
    engine.check(paths, config, cache=kept)
    (folder / "part.py").write_text("x = 1\n")
    engine.check(paths, config, cache=kept)
    assert counted.asked == 2
    (folder / "torch").mkdir()
    engine.check(paths, config, cache=kept)
    assert counted.asked == 3


def test_the_cache_tells_configurations_apart(folder: Path, counted: Counted) -> None:
    kept, paths = folder / ".cache", [Path("train.py")]
    engine.check(paths, Config(root=folder), cache=kept)
    assert engine.check(paths, Config(root=folder, select=("data",)), cache=kept).findings == []
    assert len(engine.check(paths, Config(root=folder, lang="zh"), cache=kept).findings) == 1
    assert counted.asked == 1


@pytest.mark.parametrize("damage", [b"", b"\x00\x01garbage", b"\x82\xa6report\x80\xa4read\x80"])
def test_a_damaged_cache_counts_as_none(folder: Path, counted: Counted, damage: bytes) -> None:
    kept, config, paths = folder / ".cache", Config(root=folder), [Path("train.py")]
    first = engine.check(paths, config, cache=kept)
    (file,) = kept.iterdir()
    file.write_bytes(damage)
    assert engine.check(paths, config, cache=kept) == first
    assert counted.asked == 2


def test_a_cache_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    (folder / "file").touch()
    report = engine.check([Path("train.py")], Config(root=folder), cache=folder / "file")
    assert places(report.findings) == [("train.py", 6)]


def test_the_cache_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, config = folder / ".cache", Config(root=folder)
    monkeypatch.setattr(cache, "LIMIT_BYTES", 3000)
    for number in range(20):
        text = f"barrier()\nx = {number}\n"
        engine.check([Path("-")], config, cache=kept, texts={Path("new.py"): text})
    sizes = [file.stat().st_size for file in kept.iterdir()]
    assert 1 <= len(sizes) < 20
    assert sum(sizes) <= 3000


def test_sentences_inside_sentences_survive_the_cache(tmp_path: Path) -> None:
    message = say("{what} is {how}", what=say("the {x}", x=1), how=("a", 2))
    report = engine.Report("check", [found("early-exit", Location("a.py", 1), message)])
    store = cache.Cache(tmp_path)
    store.put("name", report, [])
    kept = store.get("name")
    assert kept is not None
    assert str(kept.findings[0].message) == str(message)
    assert kept.findings[0].message.values["what"] == say("the {x}", x=1)
