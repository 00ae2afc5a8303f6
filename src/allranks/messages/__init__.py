"""What the tool says, in English and Chinese: picks the language, translates and fills sentences.

English message ids stand in the code as `say("...")`; `zh/LC_MESSAGES/allranks.po` holds the Chinese.
"""

from __future__ import annotations

import gettext
import locale
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import Text, fill

if TYPE_CHECKING:
    from collections.abc import Mapping

LANGUAGES = ("en", "zh")


def pick_language(asked: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The language to speak: `asked` ("en", "zh", "zh_CN", ...) if given, else the locale's, else English.

    ValueError when `asked` names a language that there is no catalogue for.
    """
    if asked:
        language = asked.lower().replace("-", "_").split("_")[0].split(".")[0]
        if language not in LANGUAGES:
            raise ValueError(asked)
        return language
    # The order in which POSIX programs look.
    for name in ("ALLRANKS_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = environment.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "zh" if (locale.getlocale()[0] or "").lower().startswith(("zh", "chinese")) else "en"


@lru_cache(maxsize=4)
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation("allranks", Path(__file__).parent, [language], fallback=True)


def render(text: Text | str, language: str = "en") -> str:
    """`text` in `language`, holes filled; sentences nested in the values are translated too."""
    if isinstance(text, str):
        return text if language == "en" or not text else _catalogue(language).gettext(text)
    template = text.template if language == "en" else _catalogue(language).gettext(text.template)
    values = {
        key: render(value, language) if isinstance(value, Text) else value
        for key, value in text.values.items()
    }
    return fill(template, values)
