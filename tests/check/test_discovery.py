"""Which files a check reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.check.discovery import python_files, shown
from allranks.config import Config
from allranks.errors import AllranksError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "train.py",
        "a/b.py",
        "a/n.ipynb",
        "a/readme.md",
        ".git/x.py",
        "venv/y.py",
        "old/z.py",
        "build/w.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def names(paths: list[Path], config: Config, root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in python_files(paths, config)]


def test_a_folder_is_searched_without_what_is_not_the_users(tree: Path) -> None:
    config = Config(root=tree, extend_exclude=("old",))
    assert names([tree], config, tree) == ["a/b.py", "a/n.ipynb", "train.py"]


def test_a_named_file_is_checked_whatever_it_is_called(tree: Path) -> None:
    config = Config(root=tree)
    assert names([tree / "a/readme.md", tree / "venv/y.py"], config, tree) == ["a/readme.md", "venv/y.py"]


def test_a_named_folder_is_searched_even_when_its_name_is_excluded(tree: Path) -> None:
    assert names([tree / "build"], Config(root=tree), tree) == ["build/w.py"]


def test_each_file_once(tree: Path) -> None:
    assert names([tree / "a", tree / "a/b.py", tree / "a"], Config(root=tree), tree) == [
        "a/b.py",
        "a/n.ipynb",
    ]


def test_links_to_folders_are_not_followed(tree: Path) -> None:
    (tree / "a" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "a" / "gone.py").symlink_to(tree / "nowhere.py")
    assert names([tree / "a"], Config(root=tree), tree) == ["a/b.py", "a/n.ipynb"]


def test_a_path_that_does_not_exist(tree: Path) -> None:
    with pytest.raises(AllranksError) as caught:
        python_files([tree / "nope.py"], Config(root=tree))
    assert (caught.value.slug, caught.value.status) == ("path-missing", 2)
    assert str(caught.value) == f"{tree / 'nope.py'} does not exist"


def test_paths_are_shown_from_the_working_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "a")
    assert shown(Path("./b.py")) == "b.py"
    assert shown(tree / "a" / "b.py") == "b.py"
    assert shown(Path("../train.py")) == (tree / "train.py").as_posix()
