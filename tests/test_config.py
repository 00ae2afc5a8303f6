"""Configuration files, flags over them, and what a mistake in them says."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks import config
from allranks.config import Config, matches
from allranks.errors import AllranksError
from allranks.findings import Severity


def write(folder: Path, text: str, name: str = "pyproject.toml") -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    found = config.load(tmp_path)
    assert found.wants("early-exit")
    assert found.fail_on is None
    assert found.root == tmp_path


def test_the_nearest_file_upwards_wins_and_foreign_ones_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, '[tool.allranks]\nfail-on = "error"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[tool.ruff]\nline-length = 9\n")
    found = config.load(inner / "train.py")
    assert (found.root, found.fail_on) == (tmp_path, "error")


def test_allranks_toml_wins_over_pyproject_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path, '[tool.allranks]\nlang = "en"\n')
    write(tmp_path, 'lang = "zh"\nselect = ["step", "epoch-not-set"]\n', "allranks.toml")
    found = config.load(tmp_path)
    assert found.lang == "zh"
    assert found.wants("early-exit")
    assert found.wants("epoch-not-set")
    assert not found.wants("data-not-sharded")


def test_every_key_is_understood(tmp_path: Path) -> None:
    write(
        tmp_path,
        """[tool.allranks]
select = ["all"]
ignore = ["waste"]
exclude = ["old"]
extend-exclude = ["gen/*.py"]
fail-on = "never"
output-format = "sarif"
lang = "zh"
[tool.allranks.per-file-ignores]
"tests/**" = ["output-from-every-rank", "data"]
""",
    )
    assert config.load(tmp_path) == Config(
        root=tmp_path,
        select=("all",),
        ignore=("waste",),
        exclude=("old",),
        extend_exclude=("gen/*.py",),
        per_file_ignores={"tests/**": ("output-from-every-rank", "data")},
        fail_on="never",
        output_format="sarif",
        lang="zh",
    )


EXAMPLE = 'for example: exclude = ["old/"], per-file-ignores = {"tests/**" = ["launch"]}'


def test_the_example_in_the_advice_is_right(tmp_path: Path) -> None:
    lines = EXAMPLE.removeprefix("for example: ").replace(", per-file", "\nper-file")
    write(tmp_path, f"[tool.allranks]\n{lines}\n")
    chosen = config.load(tmp_path)
    assert (chosen.exclude, chosen.per_file_ignores) == (("old/",), {"tests/**": ("launch",)})


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ('selct = ["all"]', 'there is no key "selct"', 'did you mean "select"?'),
        (
            'select = ["epoch-notset"]',
            'select: there is no fault or group "epoch-notset"',
            'did you mean "epoch-not-set"?',
        ),
        (
            'ignore = ["zzzzzz"]',
            'ignore: there is no fault or group "zzzzzz"',
            "see `allranks faults` for their names",
        ),
        (
            'fail-on = "warn"',
            'fail-on: "warn" is not one of error, warning, info, never',
            'did you mean "warning"?',
        ),
        ('select = "all"', "select must be a list of strings", EXAMPLE),
        ("exclude = [1]", "exclude must be a list of strings", EXAMPLE),
        ("per-file-ignores = []", "per-file-ignores must be a table of patterns", EXAMPLE),
        ("lang = [", "cannot be read", "it must be a TOML file that can be read"),
    ],
)
def test_a_mistake_is_named_with_a_suggestion(tmp_path: Path, line: str, message: str, advice: str) -> None:
    write(tmp_path, f"[tool.allranks]\n{line}\n")
    with pytest.raises(AllranksError) as caught:
        config.load(tmp_path)
    assert caught.value.slug == "config-invalid"
    assert message in str(caught.value)
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
    assert str(caught.value.advice) == advice


def test_someone_elses_broken_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    write(tmp_path, "[tool.ruff\n")
    assert config.load(tmp_path).root == tmp_path


def test_flags_win_and_extend_exclude_adds(tmp_path: Path) -> None:
    written = Config(root=tmp_path, select=("step",), extend_exclude=("a",), fail_on="error")
    found = written.with_flags(select=("data",), extend_exclude=("b",), fail_on=None, lang="zh")
    assert (found.select, found.extend_exclude, found.fail_on, found.lang) == (
        ("data",),
        ("a", "b"),
        "error",
        "zh",
    )


def test_a_flag_with_an_unknown_fault_is_an_error() -> None:
    with pytest.raises(AllranksError, match="--select: there is no fault or group"):
        Config().with_flags(select=("nope",))


def test_paths_on_the_command_line_are_meant_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    found = Config(root=tmp_path).with_flags(exclude=("gen/*.py", "old"))
    assert found.excludes(inner / "gen" / "a.py")
    assert found.excludes(tmp_path / "old")
    assert not found.excludes(tmp_path / "gen" / "a.py")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("build", "a/build", True),
        ("build/", "a/build", True),
        ("build", "a/rebuild", False),
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/c/b.py", False),
        ("a/**/*.py", "a/b.py", True),
        ("a/**", "a/c/b.py", True),
        ("/a", "a", True),
        ("./a/b", "a/b", True),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("a?c", "abc", True),
        ("a.c", "abc", False),
        ("[z-a]", "[z-a]", True),
    ],
)
def test_patterns_follow_gitignore(pattern: str, path: str, expected: bool) -> None:
    root = Path("/repo")
    assert matches(pattern, root / path, root) is expected


def test_per_file_ignores_cover_what_lies_below(tmp_path: Path) -> None:
    found = Config(root=tmp_path, per_file_ignores={"tests": ("data",), "a/*.py": ("all",)})
    assert not found.wants("epoch-not-set", tmp_path / "tests" / "deep" / "t.py")
    assert found.wants("early-exit", tmp_path / "tests" / "t.py")
    assert not found.wants("early-exit", tmp_path / "a" / "t.py")
    assert found.wants("epoch-not-set", tmp_path / "b.py")


def test_a_package_named_dist_is_source(tmp_path: Path) -> None:
    for name in ("dist", "build", "venv"):
        (tmp_path / name).mkdir()
    (tmp_path / "dist" / "__init__.py").touch()
    (tmp_path / "venv" / "__init__.py").touch()
    found = Config(root=tmp_path)
    assert not found.excludes(tmp_path / "dist")
    assert found.excludes(tmp_path / "build")
    assert found.excludes(tmp_path / "venv")
    assert found.excludes(tmp_path / ".git")
    assert Config(root=tmp_path, exclude=("dist",)).excludes(tmp_path / "dist")


@pytest.mark.parametrize(
    ("severity", "fail_on", "fails"),
    [
        (None, "info", False),
        (Severity.INFO, "info", True),
        (Severity.INFO, "warning", False),
        (Severity.WARNING, "warning", True),
        (Severity.WARNING, "error", False),
        (Severity.ERROR, "error", True),
        (Severity.ERROR, "never", False),
    ],
)
def test_fail_on_is_a_threshold(severity: Severity | None, fail_on: str, fails: bool) -> None:
    assert config.severity_at_or_above(severity, fail_on) is fails
