"""The catalogue of faults: a row per kind in faults.toml, a page per kind and language under pages/."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same module under its old name
    import tomli as tomllib

from ..findings import Severity

GROUPS = ("launch", "step", "gradients", "data", "outputs", "precision", "buffers", "waste", "crash")
"""The groups of the catalogue, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: its slug, group, where it can be found (check, run, explain), usual severity, titles."""

    slug: str
    group: str
    found_by: tuple[str, ...]
    severity: Severity
    title_en: str
    title_zh: str

    def title(self, language: str = "en") -> str:
        """The one-line title in `language` ("en" or "zh")."""
        return self.title_zh if language == "zh" else self.title_en


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Fault]:
    """Every fault by slug, in the catalogue's order."""
    rows: dict[str, Any] = tomllib.loads(files(__package__).joinpath("faults.toml").read_text("utf-8"))
    return {
        slug: Fault(
            slug=slug,
            group=row["group"],
            found_by=tuple(row["found_by"]),
            severity=Severity(row["severity"]),
            title_en=row["title"]["en"],
            title_zh=row["title"]["zh"],
        )
        for slug, row in rows.items()
    }


def page(slug: str, language: str = "en") -> str:
    """The Markdown page of a fault in `language`; KeyError when there is no such fault or page."""
    if slug not in catalogue():
        raise KeyError(slug)
    file = files(__package__).joinpath("pages").joinpath(language).joinpath(f"{slug}.md")
    if not file.is_file():
        raise KeyError(slug)
    return file.read_text("utf-8")
