"""What a user can meet is said in Chinese too, with the same holes; and languages are picked as POSIX programs do."""

from __future__ import annotations

import importlib.util
import re
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allranks.findings import Text, say
from allranks.messages import pick_language, render

if TYPE_CHECKING:
    from types import ModuleType

TOOL = Path(__file__).resolve().parent.parent / "tools/messages.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    pytest.importorskip("babel")
    spec = importlib.util.spec_from_file_location("tools_messages", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def translations(tool: ModuleType) -> dict[str, str]:
    return {message.id: message.string for message in tool.read() if message.id}


def holes(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def test_every_sentence_of_the_code_has_a_translation(tool: ModuleType) -> None:
    assert tool.missing() == [], "run tools/messages.py and translate what it added"


def test_the_catalogue_holds_no_sentence_that_the_code_has_lost(
    tool: ModuleType, translations: dict[str, str]
) -> None:
    ours = {message.id for message in tool.read() if message.id and ("click", None) not in message.locations}
    assert ours - set(tool.sentences()) == set(), "run tools/messages.py"


def test_translations_have_the_holes_of_the_sentence(translations: dict[str, str]) -> None:
    wrong = {
        sentence: there
        for sentence, there in translations.items()
        if "%(" not in sentence
        and not re.search(r"\{\s*\d|\{\}", sentence)
        and holes(sentence) != holes(there)
    }
    assert wrong == {}


def test_translations_have_chinese_punctuation(translations: dict[str, str]) -> None:
    pattern = r"[\u4e00-\u9fff][,;:?]|[,;:?][\u4e00-\u9fff]"
    assert {there for there in translations.values() if re.search(pattern, there)} == set()


def test_sentences_are_found_where_they_stand(tool: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "one.py").write_text(
        'say("plain {hole}", hole=1)\n'
        'self.say("by a" " method")\n'
        'render(say("left") if x else say("right"), "zh")\n'
        'speak("up" if x else "down")\n'
        "say(template)\n"
        '@click.command()\n@click.option("--x", help="what x does")\n'
        'def command():\n    """One\n    line.\n\n    \\b\n    as it\n    is\n    """\n'
        'def other():\n    """No command."""\n'
    )
    (tmp_path / "signatures.toml").write_text('[[signature]]\nsays = "what"\nadvice = "do"\n')
    monkeypatch.setattr(tool, "PACKAGE", tmp_path)
    assert set(tool.sentences()) == {
        "plain {hole}", "by a method", "left", "right", "up", "down", "what x does", "One line.", "as it\nis",
        "what", "do",
    }  # fmt: skip
    assert tool.sentences()["what"] == ["signatures.toml"]


def test_update_keeps_translations_and_drops_what_is_gone(
    tool: ModuleType, tmp_path: Path, monkeypatch: Any
) -> None:
    source = tmp_path / "one.py"
    source.write_text('say("stays"); say("goes")\n')
    monkeypatch.setattr(tool, "PACKAGE", tmp_path)
    monkeypatch.setattr(tool, "CATALOGUE", tmp_path / "zh/allranks.po")
    catalog = tool.update()
    assert tool.missing() == ["goes", "stays"]
    catalog.get("stays").string = "\N{CJK UNIFIED IDEOGRAPH-7559}"
    with tool.CATALOGUE.open("wb") as target:
        tool.write_po(target, catalog)
    source.write_text('say("stays"); say("comes")\n')
    tool.update()
    assert tool.missing() == ["comes"]
    assert tool.read().get("goes") is None
    assert tool.CATALOGUE.with_suffix(".mo").is_file()


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        ("zh", {}, "zh"),
        ("zh_CN", {"LANG": "en_US.UTF-8"}, "zh"),
        ("ZH-Hans", {}, "zh"),
        ("en", {"LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"LANG": "zh_CN.UTF-8"}, "zh"),
        (None, {"LC_ALL": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"ALLRANKS_LANG": "zh", "LC_ALL": "C"}, "zh"),
        (None, {"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_language_is_picked(asked: str | None, environment: dict[str, str], expected: str) -> None:
    assert pick_language(asked, environment) == expected


def test_a_language_without_a_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="fr"):
        pick_language("fr", {})


def test_nested_sentences_are_translated_too(monkeypatch: Any) -> None:
    class Half:
        def gettext(self, text: str) -> str:
            return {
                "{who} left": "{who} \N{CJK UNIFIED IDEOGRAPH-8D70}",
                "all": "\N{CJK UNIFIED IDEOGRAPH-90FD}",
            }.get(text, text)

    monkeypatch.setattr(sys.modules["allranks.messages"], "_catalogue", lambda _: Half())
    sentence = say("{who} left", who=say("all"))
    assert render(sentence, "zh") == "\N{CJK UNIFIED IDEOGRAPH-90FD} \N{CJK UNIFIED IDEOGRAPH-8D70}"
    assert render(sentence, "en") == "all left"
    assert render(Text("{missing} hole"), "zh") == "{missing} hole"
