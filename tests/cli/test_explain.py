"""`allranks explain` at the command line: statuses, forms, saved reports, standard input."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from allranks.cli import main

if TYPE_CHECKING:
    from pathlib import Path

LOG = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/data.py", line 19, in get
[rank1]:     return table[key]
[rank1]: KeyError: 'n0147'
"""


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.out"
    file.write_text(LOG)
    return file


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(["explain", *arguments, "--lang", "en"])
    assert isinstance(done.value.code, int)
    return done.value.code


def test_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("job.out") == 1
    out = capfd.readouterr().out
    assert out.startswith(
        "/srv/data.py:19: error [child-failed-first] rank 1 failed first: KeyError: 'n0147'\n"
    )
    assert "4: [rank1]: KeyError: 'n0147'" in out


def test_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("-q", "job.out") == 1
    assert len(capfd.readouterr().out.splitlines()) == 1


def test_json_and_sarif(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--output-format", "json", "job.out") == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["command"], report["findings"][0]["location"]["line"]) == ("explain", 19)
    assert run("--output-format", "sarif", "job.out") == 1
    assert json.loads(capfd.readouterr().out)["runs"][0]["results"][0]["ruleId"] == "child-failed-first"


def test_statuses(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--fail-on", "never", "job.out") == 0
    assert run("--exit-zero", "job.out") == 0
    assert run("nowhere.out") == 2
    assert "nowhere.out" in capfd.readouterr().err
    log.write_text("step 1 loss 0.3\nstep 2 loss 0.2\n")
    assert run("job.out") == 0
    assert capfd.readouterr().out == "No sign of a failure in 2 lines.\n"


def test_a_file_for_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("job.out", "-o", "out/report.txt") == 1
    assert capfd.readouterr().out == ""
    assert "child-failed-first" in (tmp_path / "out/report.txt").read_text()


@pytest.mark.parametrize("path", ["saved", "saved/report.json"])
def test_a_saved_report_is_shown_again(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    run("--output-format", "json", "job.out", "-o", "saved/report.json")
    assert run(path) == 1
    assert "rank 1 failed first: KeyError: 'n0147'" in capfd.readouterr().out


def test_other_json_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"findings": 3}')
    assert run("report.json") == 0


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert run("-") == 1
    assert "child-failed-first" in capfd.readouterr().out


def test_nothing_that_a_terminal_acts_on_is_printed(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log.write_text(
        LOG.replace("n0147", "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ex").replace("/srv/", "/srv/\x1b[31m")
    )
    run("job.out")
    out = capfd.readouterr().out
    assert "KeyError" in out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)
