"""Lines of a log as text, each with who printed it: node, rank or local rank, from the prefixes that launchers put
in front (torchrun, slurm, mpirun, kubernetes, docker compose, ray), one inside the other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .scan import Window

LONGEST = 16_384
"""Characters of one line that are kept, half from either end."""

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
"""Colours, cursor movements, window titles and links, as ECMA-48 builds them."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What a terminal could act on, direction overrides included; the tabulator stays."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who printed a line, as far as its prefixes tell. `rank` is global, `task` the number that srun or mpirun gives:
    a rank when each rank is a task, else a node."""

    file: str = ""
    node: str = ""
    rank: int | None = None
    local: int | None = None
    task: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `raw` as it was printed, without what a terminal acts on; `text` the same without its prefixes."""

    number: int
    raw: str
    text: str
    origin: Origin
    time: float | None = None
    """Seconds since the beginning of a year, to compare lines of one log; None where the line bears no stamp."""


def lines(windows: Iterable[Window], file: str, base: Origin | None = None) -> Iterator[Line | None]:
    """The lines of a log's windows, None between windows that do not touch. `base` is what the file's name tells of
    its origin."""
    prefixes = Prefixes(replace(base or Origin(), file=file))
    expected = 1
    for window in windows:
        if window.first != expected:
            yield None
        expected = window.first + len(window.lines)
        texts = [decode(raw) for raw in window.lines]
        if texts and not texts[-1]:
            # What follows the last line feed is the next window's, or nothing.
            texts.pop()
            expected -= 1
        prefixes.learn(texts)
        for number, whole in enumerate(texts, window.first):
            for text in _pieces(whole):
                yield prefixes.line(number, text)


def decode(raw: bytes) -> str:
    """Text of a line in UTF-8, else in GB 18030 (what Chinese Windows and older clusters write), else as far as it
    can be read; without what a terminal acts on, carriage returns excepted."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        try:
            text = raw.decode("gb18030")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text


def plain(text: str) -> str:
    """`text` without any character that a terminal acts on."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text) if "\x1b" in text else text)


def _pieces(text: str) -> Iterator[str]:
    """The parts between carriage returns: each redraw of a progress bar, and what was printed after the last."""
    for piece in text.split("\r") if "\r" in text else (text,):
        if piece or piece is text:
            clean = plain(piece)
            yield clean if len(clean) <= LONGEST else f"{clean[: LONGEST // 2]} … {clean[-LONGEST // 2 :]}"


_CERTAIN = (
    re.compile(r"\[pod/(?P<node>[^/\]\s]+)/[^\]\s]*\] ?"),
    re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] "),
    re.compile(r"\[\d+,(?P<task>\d+)\](?:<std(?:err|out|diag)>)?:"),
    re.compile(r"\((?:[\w.-]+)(?:\([^)]*\))? (?:pid|PID)=(?P<pid>\d+)(?:, ip=(?P<node>[\w.:-]+))?\) ?"),
    re.compile(r"\[rank(?P<rank>\d+)\]: ?"),
    re.compile(r"\[(?:default|trainer|worker|local_?rank|gpu|proc(?:ess)?)_?(?P<local>\d+)\]:"),
)
"""Prefixes that nothing else looks like, in any order and nesting: kubectl logs --prefix, the container runtime's,
mpirun --tag-output, ray, torch's exception hook (2.2), torchrun --tee."""
_CERTAIN_START = frozenset("[(012")
_FAR_RANK = re.compile(r".{0,100}?\[rank(?P<rank>\d{1,7})\]:(?P<end> ?|\[|$)")
_RANK_LOG = re.compile(r"\[rank(?P<rank>\d+)\]:(?=\[[EWIF])")
_TASK = re.compile(r" {0,5}(?P<task>\d{1,5}): ?")
_HOST = re.compile(r"(?P<node>[A-Za-z][\w.-]{0,80}?\d[\w.-]{0,80}|\d{1,3}(?:\.\d{1,3}){3}) ?(?:: |\| ?)")
_ISO = re.compile(r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)) ")
_USUALLY = 0.6
"""Share of the lines that must bear a prefix which ordinary text could also begin with ("3: ", "node1: ")."""
_SAMPLE = 400


class Prefixes:
    """Splits prefixes from lines; learns from the first lines which of the ambiguous ones this log uses."""

    def __init__(self, base: Origin) -> None:
        self.base = base
        self._learned: tuple[re.Pattern[str], ...] = ()
        self._seen = 0
        self._origins: dict[tuple[tuple[str, str], ...], Origin] = {}
        self._known: dict[Origin, Origin] = {base: base}

    def learn(self, texts: list[str]) -> None:
        """Decides by a sample; later windows count until there were enough lines."""
        if self._seen >= _SAMPLE:
            return
        sample = [text[:LONGEST] for text in texts if text.strip()][:_SAMPLE]
        if len(sample) < self._seen or not sample:
            return
        self._seen = len(sample)
        learned: list[re.Pattern[str]] = []
        for pattern in (_ISO, _HOST, _TASK):
            stripped = [_after(text, learned) for text in sample]
            found = [match for text in stripped if (match := pattern.match(text))]
            words = Counter(match.group(0) for match in found) if pattern is not _ISO else Counter()
            # A prefix repeats: "3: " of a numbered list or "model1: " of a summary stands there once.
            if len(found) >= _USUALLY * len(sample) and len(found) >= 2 * len(words):
                learned.append(pattern)
        self._learned = tuple(learned)

    def line(self, number: int, raw: str) -> Line:
        """The line with its prefixes taken off."""
        text, found = raw, {}
        for _ in range(5):
            match = self._match(text)
            if match is None:
                break
            found.update({key: value for key, value in match.groupdict().items() if value})
            text = text[match.end() :]
        # Whatever else stands before it (a job's name, a pid, a stream), torch's own prefix tells the rank.
        if "[rank" in text and "rank" not in found and (match := _FAR_RANK.match(text)):
            found["rank"] = match["rank"]
            text = text[match.end() :] if match["end"] == " " else text[match.end() - len(match["end"]) :]
        iso = found.pop("iso", None)
        return Line(number, raw, text, self._origin(found) if found else self.base, stamp(iso or text))

    def _match(self, text: str) -> re.Match[str] | None:
        if text[:1] in _CERTAIN_START:
            for pattern in (_RANK_LOG, *_CERTAIN):
                if match := pattern.match(text):
                    return match
        for pattern in self._learned:
            if match := pattern.match(text):
                return match
        return None

    def _origin(self, found: dict[str, str]) -> Origin:
        """The origin of lines with these prefixes: one object for all of them, which is its key where lines are put
        together."""
        key = tuple(found.items())
        origin = self._origins.get(key)
        if origin is None:
            made = self._made(found)
            origin = self._origins[key] = self._known.setdefault(made, made)
        return origin

    def _made(self, found: dict[str, str]) -> Origin:
        def number(key: str) -> int | None:
            return int(found[key]) if key in found and len(found[key]) < 9 else None

        base = self.base
        return Origin(
            file=base.file,
            node=found.get("node", base.node),
            rank=number("rank") if "rank" in found else base.rank,
            local=number("local") if "local" in found else base.local,
            task=number("task") if "task" in found else base.task,
            pid=number("pid") if "pid" in found else base.pid,
        )


def _after(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    for pattern in patterns:
        if match := pattern.match(text):
            text = text[match.end() :]
    return text


_STAMPS = (
    # glog, as torch's C++ and Python loggers write it: [E1106 17:20:41.204, W0903 09:43:15.940 and the old [W131 ...
    re.compile(r"\[?[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"),
    # ISO and Python's logging: 2024-01-09 08:15:20,006
    re.compile(
        r"\[?\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"
    ),
    # accelerate and transformers: 01/09/2024 08:15:20
    re.compile(r"\[?(?P<month>\d\d)/(?P<day>\d\d)/\d{4} (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
)
_STAMP_START = frozenset("[IWEF0123456789")


def stamp(text: str) -> float | None:
    """The time at the beginning of a line in seconds since the beginning of the year, or None."""
    if text[:1] not in _STAMP_START:
        return None
    for pattern in _STAMPS:
        if match := pattern.match(text):
            return seconds(match)
    return None


def seconds(match: re.Match[str]) -> float:
    """Seconds since the beginning of the year, of a match with month, day, h, m and s."""
    # Months of 31 days: only differences within one job matter, and their order.
    days = (int(match["month"]) - 1) * 31 + int(match["day"]) - 1
    clock = int(match["h"]) * 3600 + int(match["m"]) * 60 + float(match["s"].replace(",", "."))
    return days * 86_400 + clock


_MENTION = re.compile(
    r"\W{0,3}(?:(?:[Gg]lobal|GLOBAL|[Pp]rocess|[Ww]orker)[- _])?(?:[Rr]ank|RANK)[ :=#]{0,2}(?P<rank>\d{1,6})\b"
)


def mentioned_rank(text: str) -> int | None:
    """The rank that a line of the user's program names at its beginning: "[rank 3] step 10", "rank 3: loading"."""
    match = _MENTION.match(text)
    return int(match["rank"]) if match else None


_FILE_RANK = re.compile(r"(?:^|[._-])(?:global[_-]?)?rank[_.-]?(\d{1,6})(?=[._-]|$)", re.IGNORECASE)
_FILE_LOCAL = re.compile(r"(?:^|/)attempt_\d+/(\d{1,5})/")
_FILE_NODE = re.compile(r"(?:^|[._-])((?:node|host|worker|pod)[_.-]?\d{1,5})(?=[._-]|$)", re.IGNORECASE)


def origins_of_files(names: Iterable[str]) -> dict[str, Origin]:
    """What the paths of a job's logs tell: torchrun's attempt_0/3/stderr.log, rank_3.log, node-1/train.log. A rank or
    node counts only where it tells files apart: one log called after a rank holds the lines of all."""
    found: dict[str, Origin] = {}
    for name in names:
        path = name.replace("\\", "/")
        local = _FILE_LOCAL.search(path)
        parts = path.split("/")[-2:]
        ranks = [match[1] for part in parts if (match := _FILE_RANK.search(part))]
        nodes = [match[1] for part in parts if (match := _FILE_NODE.search(part))]
        found[name] = Origin(
            file=name,
            node=nodes[-1] if nodes else "",
            rank=int(ranks[-1]) if ranks else None,
            local=int(local[1]) if local else None,
        )
    if len({origin.rank for origin in found.values()} - {None}) < 2:
        found = {name: replace(origin, rank=None) for name, origin in found.items()}
    if len({origin.node for origin in found.values()} - {""}) < 2:
        found = {name: replace(origin, node="") for name, origin in found.items()}
    return found
