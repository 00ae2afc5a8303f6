"""`allranks explain` at the command line: statuses, forms, saved reports, standard input."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from allranks.api import explain
from allranks.cli import main

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
    assert capfd.readouterr().out == "No sign of a failure. Lines read: 2.\n"


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"train.py": "print(1)"}, ["train.py is a program, not a log", "`allranks check train.py`"]),
        ({"empty.log": ""}, ["there is nothing to read in empty.log"]),
        ({"core": "\0\1\2" * 999}, ["core holds no text"]),
    ],
)
def test_what_is_no_log(content: dict[str, str], says: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in content.items():
        Path(name).write_text(text)
        assert run(name) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert all(part in said.err for part in says)


def test_a_program_among_logs_is_passed_over(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text('raise KeyError("RANK")')
    assert run("job.out", "train.py") == 1
    out = capfd.readouterr().out
    assert out.startswith("/srv/data.py:19: error [child-failed-first]")
    assert "note: train.py is a program, not a log: it was not read" in out


def test_an_empty_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    assert run("logs") == 2
    assert "there is nothing to read in logs" in capfd.readouterr().err


def test_nothing_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert run("-") == 2
    assert "nothing came from standard input" in capfd.readouterr().err


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "more.out").write_text(LOG * 20_000)
    told: list[tuple[int, int]] = []
    explain([tmp_path / "job.out", tmp_path / "more.out"], progress=lambda *at: told.append(at))
    size = len(LOG) * 20_001
    assert {total for _, total in told} == {size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) > 5
    assert told[-1] == (size, size)


def test_a_pipe_of_the_shell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(LOG,))
    writer.start()
    assert run("-q", "pipe") == 1
    writer.join()
    assert "child-failed-first" in capfd.readouterr().out
