"""`allranks check` as a user meets it: options, forms, exit statuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from allranks.check import rules
from allranks.check.rules import Rule, found
from allranks.cli import main
from allranks.findings import Edit, Finding, Location, Severity, say

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.source.program import Program

Run = Callable[..., tuple[int, str, str]]

SCRIPT = "import torch.distributed as dist\n\ndist.barrier()\n"


def barriers(program: Program) -> Iterator[Finding]:
    """A rule for these tests: a warning for each line that calls barrier, an info for each print."""
    for path in program.files:
        for number, line in enumerate(program.text(path).split("\n"), 1):
            if "barrier()" in line:
                place = Location(str(path), number, 1)
                edit = Edit(str(path), number, number, "pass\n")
                yield found("early-exit", place, say("here"), severity=Severity.WARNING, edits=(edit,))
            if "print(" in line:
                yield found(
                    "needless-barrier", Location(str(path), number, 1), say("there"), severity=Severity.INFO
                )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALLRANKS_LANG", "en")
    monkeypatch.setenv("ALLRANKS_CACHE_DIR", str(tmp_path / ".cache"))
    monkeypatch.setattr(rules, "_RULES", [Rule(("early-exit", "needless-barrier"), barriers)])
    (tmp_path / "train.py").write_text(SCRIPT)

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main(["check", *arguments])
        out, err = capfdbinary.readouterr()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, out.decode(), err.decode()

    return call


def test_findings_end_with_status_1_and_are_shown_with_code(run: Run) -> None:
    status, out, _ = run()
    assert status == 1
    assert out.splitlines()[:5] == [
        "train.py:3:1: warning [early-exit] here",
        "1 | import torch.distributed as dist",
        "2 | ",
        "3 | dist.barrier()",
        "  | ^^^^^^^^^^^^^^",
    ]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 1),
        (("--fail-on", "error"), 0),
        (("--fail-on", "warning"), 1),
        (("--fail-on", "never"), 0),
        (("--exit-zero",), 0),
        (("--ignore", "early-exit"), 0),
        (("--select", "waste,data"), 0),
        (("--select", "step", "--select", "data"), 1),
        (("--exclude", "train.py", "."), 0),
        (("--extend-exclude", "*.py", "."), 0),
    ],
)
def test_options_decide_the_status(run: Run, arguments: tuple[str, ...], status: int) -> None:
    assert run(*arguments)[0] == status


def test_infos_fail_only_when_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed\nprint(1)\n")
    assert run()[0] == 0
    assert run("--fail-on", "info")[0] == 1


def test_a_configuration_file_counts_and_flags_win(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.allranks]\nfail-on = "never"\noutput-format = "json"\n')
    status, out, _ = run()
    assert status == 0
    assert json.loads(out)["command"] == "check"
    assert run("--fail-on", "warning")[0] == 1
    assert run("--isolated")[0] == 1
    (tmp_path / "other.toml").write_text('ignore = ["step"]\n')
    (tmp_path / "other.toml").rename(tmp_path / "allranks.toml")
    assert run("--config", "allranks.toml", "--fail-on", "info")[0] == 0


def test_mistakes_end_with_status_2_and_a_suggestion(run: Run, tmp_path: Path) -> None:
    assert run("gone.py") == (
        2,
        "",
        "allranks: gone.py does not exist\n  give a script, a notebook or a folder\n",
    )
    status, _, err = run("--select", "erly-exit")
    assert (status, err) == (
        2,
        'allranks: --select: there is no fault or group "erly-exit"\n  did you mean "early-exit"?\n',
    )
    assert run("--no-such-option")[0] == 2
    assert run("-", "train.py")[0] == 2
    (tmp_path / "allranks.toml").write_text("selct = []\n")
    status, _, err = run()
    assert status == 2
    assert 'did you mean "select"?' in err


def test_json_has_relative_paths_and_edits(run: Run) -> None:
    status, out, _ = run("--output-format", "json", "./train.py")
    (finding,) = json.loads(out)["findings"]
    assert status == 1
    assert finding["location"] == {"path": "train.py", "line": 3, "column": 1}
    assert finding["edits"] == [{"path": "train.py", "start_line": 3, "end_line": 3, "text": "pass\n"}]


@pytest.mark.parametrize(("form", "start"), [("sarif", "{"), ("github", "::warning file=train.py,line=3")])
def test_other_forms(run: Run, form: str, start: str) -> None:
    assert run("--output-format", form)[1].startswith(start)


def test_the_report_can_go_to_a_file(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("-o", "deep/report.txt", "--quiet")
    assert (status, out) == (1, "")
    text = (tmp_path / "deep" / "report.txt").read_text()
    assert text == "train.py:3:1: warning [early-exit] here\n"
    assert run("-o", "train.py/x")[0] == 2


def test_statistics_and_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(SCRIPT * 2)
    assert run("--statistics", "-q")[1] == "3 warning early-exit\n"
    assert run("--show-files") == (0, "b.py\ntrain.py\n", "")


def test_standard_input_goes_by_its_name(run: Run) -> None:
    status, out, _ = run("-q", "--stdin-filename", "sub/new.py", "-", stdin="\nbarrier()\n")
    assert (status, out) == (1, "sub/new.py:2:1: warning [early-exit] here\n")


def test_a_diff_changes_nothing(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("--diff")
    assert status == 1
    assert out == (
        "--- train.py\n+++ train.py\n@@ -1,3 +1,3 @@\n import torch.distributed as dist\n \n-dist.barrier()\n+pass\n"
    )
    assert (tmp_path / "train.py").read_text() == SCRIPT
    assert run("--diff", "--ignore", "step") == (0, "", "")


def test_fix_mends_and_reports_what_is_left(run: Run, tmp_path: Path) -> None:
    status, out, err = run("--fix", "--quiet")
    assert (status, out) == (0, "")
    assert (tmp_path / "train.py").read_text() == "import torch.distributed as dist\n\npass\n"
    (tmp_path / "train.py").write_bytes(
        b"# coding: latin-1\r\nimport torch.distributed # \xe9\r\nbarrier()\r\n"
    )
    _, _, err = run("--fix")
    assert err == "Mended 1 (files: 1).\n"
    assert (tmp_path / "train.py").read_bytes() == (
        b"# coding: latin-1\r\nimport torch.distributed # \xe9\r\npass\r\n"
    )


def test_fix_of_standard_input_is_printed(run: Run) -> None:
    assert run("--fix", "-q", "-", stdin="barrier()\n")[1] == "pass\n"
    assert run("--fix", "-q", "-", stdin="x = 1\n")[1] == "x = 1\n"


def test_the_language_of_the_command_wins(run: Run, tmp_path: Path) -> None:
    (tmp_path / "allranks.toml").write_text('lang = "zh"\n')
    assert json.loads(run("--output-format", "json")[1])["language"] == "zh"
    assert json.loads(run("--output-format", "json", "--lang", "en")[1])["language"] == "en"


def test_no_cache_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    run("--no-cache")
    assert not (tmp_path / ".cache").exists()
    run()
    assert list((tmp_path / ".cache").iterdir())


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"train{number}.py").write_text(SCRIPT)
    program = f"{sys.executable} -m allranks check --no-cache --output-format json . | head -c 1; echo"
    done = subprocess.run(
        program, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("{")
    assert "Traceback" not in done.stderr


def test_a_working_folder_that_is_gone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    expected = "allranks: the working folder is gone\n  change to one that exists: cd\n"
    assert run() == (2, "", expected)
    assert run(str(tmp_path / "train.py")) == (2, "", expected)


def test_a_path_that_cannot_be_read(run: Run) -> None:
    status, out, err = run("train.py/below")
    assert (status, out) == (2, "")
    assert err == (
        "allranks: train.py/below cannot be read: Not a directory\n"
        "  look at its permissions, or copy it to where you may read it\n"
    )


def test_the_advice_names_the_worst(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed\nprint(1)\nbarrier()\n")
    assert run()[1].splitlines()[-1] == "`allranks faults early-exit` explains a kind of fault."
