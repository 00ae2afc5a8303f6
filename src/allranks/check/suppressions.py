"""Comments that hide findings: `# allranks: ignore[slug] reason`, `# allranks: ignore-file[slug] reason`.

A comment on a line of a statement covers the statement; alone on its line, the next statement. One that hides
nothing is itself noted, so that none outlives its cause.
"""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..faults import GROUPS, catalogue
from ..findings import BlindSpot, Finding, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..config import Config

_COMMENT = re.compile(
    r"#\s*allranks\s*:\s*(?P<word>[\w-]*)\s*(?:\[(?P<faults>[^]]*)\])?[\s:,-]*(?P<reason>[^#]*)"
)


@dataclass(slots=True)
class Suppression:
    """One comment: the lines it covers (`last` None: the whole file), faults or groups, its reason."""

    line: int
    first: int
    last: int | None
    faults: tuple[str, ...]
    reason: str
    used: set[str] = field(default_factory=set)

    def covers(self, finding: Finding) -> bool:
        """True when `finding` stands in these lines and is of these faults; notes that it was of use."""
        place = finding.location
        assert place is not None
        line = place.line or 1
        if self.last is not None and not (self.first <= line <= self.last):
            return False
        names = {finding.fault, catalogue()[finding.fault].group} & set(self.faults)
        self.used |= names
        return bool(names)


def parse(text: str) -> list[Suppression]:
    """Every suppression in the Python source `text`; comments in strings are not taken for one."""
    if "allranks" not in text:
        return []
    return [
        Suppression(
            line, first, None if match["word"] == "ignore-file" else last, faults, match["reason"].strip()
        )
        for line, first, last, comment in _comments(text)
        for match in _COMMENT.finditer(comment)
        if (faults := tuple(name.strip() for name in (match["faults"] or "").split(",") if name.strip()))
        is not None
        and match["word"] in ("ignore", "ignore-file")
    ]


def _comments(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Every comment with its line and the first and last line of the statement that it stands in or above."""
    waiting: list[tuple[int, bool, str]] = []
    first = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                waiting.append((token.start[0], first == 0, token.string))
            elif token.type == tokenize.NEWLINE:
                for line, _, comment in waiting:
                    yield line, first, token.end[0], comment
                waiting, first = [], 0
            elif first == 0 and token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                first = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        pass  # a file that does not parse has no findings to hide
    for line, _, comment in waiting:
        yield line, line, line, comment


def apply(
    findings: Iterable[Finding], suppressions: Mapping[str, Sequence[Suppression]]
) -> tuple[list[Finding], list[Finding]]:
    """(shown, hidden) findings under the suppressions of each path; the hidden ones carry the reason."""
    shown, hidden = [], []
    for finding in findings:
        path = finding.location.path if finding.location else ""
        covering = [comment for comment in suppressions.get(path, ()) if comment.covers(finding)]
        if covering:
            hidden.append(replace(finding, suppression=covering[0].reason))
        else:
            shown.append(finding)
    return shown, hidden


def notes(path: str, suppressions: Sequence[Suppression], config: Config) -> Iterator[BlindSpot]:
    """What is wrong with the comments of a file: no fault named, one that there is not, nothing hidden."""
    known = [*GROUPS, *catalogue()]
    for comment in suppressions:
        place = {"path": path, "line": comment.line}
        if not comment.faults:
            yield BlindSpot(
                "unknown-suppression",
                say("{path}:{line}: `allranks: ignore` must name what it hides: ignore[fault, ...]", **place),
            )
        for name in comment.faults:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = say('; did you mean "{name}"?', name=near[0]) if near else ""
                sentence = say(
                    '{path}:{line}: there is no fault "{name}" to ignore{hint}', name=name, hint=hint, **place
                )
                yield BlindSpot("unknown-suppression", sentence)
            elif name not in comment.used and any(
                config.wants(fault.slug)
                for fault in catalogue().values()
                if name in (fault.slug, fault.group)
            ):
                yield BlindSpot(
                    "unused-suppression",
                    say("{path}:{line}: ignore[{name}] hides nothing: remove it", name=name, **place),
                )
