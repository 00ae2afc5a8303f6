"""The examples of the pages: found as written, quiet when mended, in each language that people read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allranks.check import engine
from allranks.config import Config
from allranks.faults import catalogue, page
from allranks.findings import Finding, Severity

HEADINGS = {"en": ("Example", "Mended"), "zh": ("错误示例", "修正")}
MARK = "# <- here"
PAGES = [
    (slug, language)
    for slug, fault in catalogue().items()
    if "check" in fault.found_by
    for language in HEADINGS
]


def code(slug: str, language: str, heading: int) -> str:
    """The program under one of a page's two headings."""
    section = page(slug, language).partition(f"## {HEADINGS[language][heading]}\n")[2]
    found = re.search(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def findings(
    slug: str, language: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Finding]:
    """What is found in a page's program, beside the command that the page launches it with."""
    monkeypatch.chdir(folder)
    launch = re.search(r"`(.* )?train\.py`", page(slug, language))
    assert launch is not None
    Path("run.sh").write_text(launch[0].strip("`"), "utf-8")
    Path("train.py").write_text(text, "utf-8")
    report = engine.check([Path("train.py")], Config(root=folder))
    assert report.blind_spots == []
    return report.findings


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_the_example_is_found_and_nothing_else(
    slug: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = code(slug, language, 0)
    (line,) = (number for number, held in enumerate(text.splitlines(), 1) if MARK in held)
    (finding,) = findings(slug, language, text, tmp_path, monkeypatch)
    assert finding.fault == slug
    assert (finding.severity is Severity.INFO) == (catalogue()[slug].severity is Severity.INFO)
    places = [finding.location, *finding.related]
    assert line in [place.line for place in places if place is not None]


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_the_mended_form_is_quiet(
    slug: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(slug, language, code(slug, language, 1), tmp_path, monkeypatch) == []
