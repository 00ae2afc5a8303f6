"""The catalogue and its pages: complete, equal in both languages, and in the one form that readers learn."""

from __future__ import annotations

import ast
import io
import re
import tokenize

import pytest

from allranks.faults import GROUPS, catalogue, page
from allranks.findings import Severity

HEADINGS = {
    "en": ("What happens", "Why", "Example", "Mended", "How to tell it apart", "What people say", "See also"),
    "zh": ("现象", "原因", "错误示例", "修正", "如何区分", "常见说法", "另见"),
}
OPTIONAL = {"What people say", "常见说法"}
LAUNCH = {"en": "Launch: ", "zh": "启动\N{FULLWIDTH COLON}"}
MARK = "# <- here"
SLUGS = tuple(catalogue())
PAGES = [(slug, language) for slug in SLUGS for language in HEADINGS]


def sections(slug: str, language: str) -> dict[str, str]:
    """The page's sections by heading, in their order."""
    parts = re.split(r"^## (.+)$", page(slug, language), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fences(text: str, kind: str = "python") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """`text` without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def without_comments(code: str) -> str:
    """The tokens of `code` as text, so that only comments may differ between languages."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return " ".join(token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))


def test_the_rows_are_whole_and_stand_in_the_order_of_the_groups() -> None:
    faults = catalogue().values()
    assert len(SLUGS) == 63
    assert {fault.group for fault in faults} == set(GROUPS)
    order = [GROUPS.index(fault.group) for fault in faults]
    assert order == sorted(order)
    for fault in faults:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|straggler", fault.slug)
        assert fault.found_by
        assert set(fault.found_by) <= {"check", "run", "explain"}


def test_what_is_only_untidy_is_not_loud() -> None:
    quiet = {fault.slug for fault in catalogue().values() if fault.severity is Severity.INFO}
    assert quiet == {"process-group-not-destroyed"}


@pytest.mark.parametrize("slug", SLUGS)
def test_titles_are_short_and_different(slug: str) -> None:
    fault = catalogue()[slug]
    for title in (fault.title_en, fault.title_zh):
        assert 0 < len(title) <= 90
        assert title == title.strip()
        assert not title.endswith((".", "。"))
    assert re.search(r"[\u4e00-\u9fff]", fault.title_zh)
    assert not re.search(r"[\u4e00-\u9fff]", fault.title_en)
    assert not re.search(r"[,;]", re.sub(r"\(\)", "", fault.title_zh)), "Chinese has punctuation of its own"


def test_no_two_faults_have_the_same_title() -> None:
    for language in HEADINGS:
        titles = [fault.title(language) for fault in catalogue().values()]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_a_page_has_its_title_and_all_headings_in_order(slug: str, language: str) -> None:
    text = page(slug, language)
    assert text.splitlines()[0] == f"# {catalogue()[slug].title(language)}"
    found = list(sections(slug, language))
    assert found == [heading for heading in HEADINGS[language] if heading in found or heading not in OPTIONAL]
    assert all(body.strip() for body in sections(slug, language).values())
    assert 40 <= text.count("\n") <= 120


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_example_and_mended_are_one_python_script_each(slug: str, language: str) -> None:
    parts = sections(slug, language)
    example, mended = HEADINGS[language][2], HEADINGS[language][3]
    for heading, body in parts.items():
        expected = 1 if heading in (example, mended) else 0
        assert len(fences(body)) == expected, heading
    for heading in (example, mended):
        ast.parse(fences(parts[heading])[0])
    assert fences(parts[example])[0].count(MARK) == 1
    assert MARK not in fences(parts[mended])[0]


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_an_example_says_how_it_is_launched(slug: str, language: str) -> None:
    body = sections(slug, language)[HEADINGS[language][2]]
    launches = [line for line in body.splitlines() if line.startswith(LAUNCH[language])]
    assert len(launches) == 1
    command = launches[0].removeprefix(LAUNCH[language])
    assert re.fullmatch(r"`(torchrun|python) .*\btrain\.py`", command)


@pytest.mark.parametrize("slug", SLUGS)
def test_both_languages_show_the_same_code(slug: str) -> None:
    english, chinese = (fences(page(slug, language)) for language in ("en", "zh"))
    assert [without_comments(code) for code in english] == [without_comments(code) for code in chinese]
    marked = [[MARK in line for line in "".join(blocks).splitlines()] for blocks in (english, chinese)]
    assert marked[0] == marked[1]
    assert fences(page(slug, "en"), "text") == fences(page(slug, "zh"), "text"), "messages are not translated"


@pytest.mark.parametrize("slug", SLUGS)
def test_both_languages_say_as_much(slug: str) -> None:
    english, chinese = (sections(slug, language) for language in ("en", "zh"))
    assert len(english) == len(chinese)
    for here, there in zip(english.values(), chinese.values(), strict=True):
        items = [len(re.findall(r"^- ", body, flags=re.MULTILINE)) for body in (here, there)]
        assert items[0] == items[1]


@pytest.mark.parametrize(("slug", "language"), PAGES)
def test_see_also_names_other_faults_that_exist(slug: str, language: str) -> None:
    named = re.findall(r"`([a-z0-9-]+)`", sections(slug, language)[HEADINGS[language][6]])
    assert named
    assert slug not in named
    assert set(named) <= set(SLUGS)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("slug", SLUGS)
def test_both_languages_see_the_same(slug: str) -> None:
    named = [re.findall(r"`([a-z0-9-]+)`", sections(slug, lang)[HEADINGS[lang][6]]) for lang in HEADINGS]
    assert named[0] == named[1]


@pytest.mark.parametrize("slug", SLUGS)
def test_chinese_prose_has_chinese_punctuation(slug: str) -> None:
    text = prose(page(slug, "zh"))
    assert re.findall(r"[\u4e00-\u9fff][,;:?]|[,;:?][\u4e00-\u9fff]", text) == []
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 200


@pytest.mark.parametrize("slug", SLUGS)
def test_every_slug_that_a_page_mentions_exists(slug: str) -> None:
    """A code span that looks like a slug is one: a renamed fault must not leave dead references."""
    known = set(SLUGS)
    prefixes = {name.split("-")[0] for name in known}
    for language in HEADINGS:
        for span in re.findall(r"`([a-z]+(?:-[a-z0-9]+)+)`", page(slug, language)):
            assert span in known or span.split("-")[0] not in prefixes, span


def test_an_unknown_fault_has_no_page() -> None:
    with pytest.raises(KeyError):
        page("no-such-fault")
    with pytest.raises(KeyError):
        page(SLUGS[0], "fr")
