"""Compiles the message catalogues (.po) into the .mo files that gettext reads, at build and editable install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MessagesHook(BuildHookInterface):  # type: ignore[misc]
    """Hatchling hook: `messages/<lang>/LC_MESSAGES/*.po` -> `*.mo` beside it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile every catalogue; called for wheels, sdists and editable installs alike."""
        from babel.messages.mofile import write_mo
        from babel.messages.pofile import read_po

        for po in sorted(Path(self.root, "src/allranks/messages").glob("*/LC_MESSAGES/*.po")):
            with po.open("rb") as source:
                catalog = read_po(source)
            with po.with_suffix(".mo").open("wb") as target:
                write_mo(target, catalog)
