"""NCCL's watchdog lines, compared over ranks: who waits in which call, who is in another one, who is in none."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .logs import Line

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d{1,12}), )?OpType=(?P<op>\w+)(?:, (?:NumelIn=(?P<numel>\d+), NumelOut=(?P<out>\d+)"
    r"|TensorShape=\[(?P<shape>[\d, ]*)\]))?(?:, [^)]*?)?(?:, Timeout\(ms\)=(?P<timeout>\d+)\))"
)
_TORN = re.compile(
    r"WorkNCCL\([^)]*$|WorkNCCL\([^)]*\(ms\)[^)]*$|last enqueued[^,]*$|last completed [^:]*:?\s*$"
)
_LONGEST = 2000
_P2P = frozenset(["SEND", "RECV", "RECVANYSOURCE", "BATCHSENDRECV"])
_QUEUE = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,12}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,12})"
)
_RANK = re.compile(
    r"\[(?:PG (?:ID )?(?P<pg>\S+)(?: PG GUID (?P<guid>\S+?))?(?: ?\([^)]*\))? )?Rank (?P<rank>\d{1,7})\]"
)
_ABSENT = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<done>\d+), but didn't join collective #(?P<next>\d+)"
)
_STARTED = re.compile(r"\[(?P<ranks>[\d, ]+)\] (?P<what>started|finished|joined) (?P<op>[A-Z_]{4,})\b")


@dataclass(slots=True)
class Watch:
    """What one rank's watchdog said of the first call that timed out in a group."""

    line: Line
    seq: int | None = None
    op: str = ""
    sizes: tuple[str, ...] = ()
    timeout_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """How the ranks of a group differ. `kind`: "order" (other calls at one number, or other numbers), "shape" (one
    call with other sizes), "missing" (ranks that did not make the call), "none" (all wait in the same call)."""

    kind: str
    ranks: tuple[int, ...]
    calls: dict[int, str]
    seq: int | None
    timeout_ms: int | None
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Watchdogs:
    """Watchdog lines by group and rank; `absent` are the ranks that a desync report says did not join."""

    groups: dict[str, dict[int, Watch]] = field(default_factory=dict)
    absent: dict[int, Line] = field(default_factory=dict)
    torn: Line | None = None
    """A line that ends inside `WorkNCCL(...)`: a terminal's width, or a mail, has broken it."""

    def feed(self, line: Line) -> None:
        """Takes a line that names NCCL's work, or the one after a torn line."""
        if self.torn is not None:
            line = replace(self.torn, text=self.torn.text + line.text.strip())
        text = line.text
        self.torn = line if _TORN.search(text) and len(text) < _LONGEST else None
        if self.torn is not None:
            return
        if match := _ABSENT.search(text):
            for rank in re.findall(r"\d{1,7}", match["ranks"]):
                self.absent.setdefault(int(rank), line)
            return
        who = _RANK.search(text)
        rank = int(who["rank"]) if who else line.origin.rank
        work, queue = _WORK.search(text), _QUEUE.search(text)
        if rank is None or (work is None and queue is None):
            return
        group = self.groups.setdefault("" if not who else who["guid"] or "", {})
        watch = group.setdefault(rank, Watch(line))
        if work and not watch.op:
            watch.line = line
            watch.seq = int(work["seq"]) if work["seq"] else None
            watch.op = work["op"]
            watch.sizes = tuple(filter(None, (work["numel"], work["out"], work["shape"])))
            watch.timeout_ms = int(work["timeout"][:12])
        if queue and watch.enqueued is None:
            watch.enqueued, watch.completed = int(queue["enqueued"]), int(queue["completed"])

    def difference(self, size: int | None) -> Difference | None:
        """What parts the ranks of the group that has most to say; None without a timed-out call."""
        groups = [g for g in self._joined() if any(watch.op for watch in g.values())]
        if not groups:
            return None
        return _compare(max(groups, key=lambda g: sum(bool(w.op) for w in g.values())), size, self.absent)

    def all_point_to_point(self, difference: Difference) -> bool:
        """True when every rank of the comparison waits in a send or a receive."""
        return all(call.split(" (")[0].split()[-1] in _P2P for call in difference.calls.values())

    def _joined(self) -> list[dict[int, Watch]]:
        """The groups; lines of older torch name none and go with the only one that is named."""
        named = {name: dict(group) for name, group in self.groups.items() if name}
        bare = self.groups.get("", {})
        if len(named) == 1:
            only = next(iter(named.values()))
            for rank, watch in bare.items():
                known = only.setdefault(rank, watch)
                if watch.op and known is not watch:
                    only[rank] = replace(watch, enqueued=known.enqueued, completed=known.completed)
            return [only]
        return [*named.values(), *([dict(bare)] if bare else [])]


def _compare(group: dict[int, Watch], size: int | None, absent: dict[int, Line]) -> Difference:
    waiting = {rank: watch for rank, watch in sorted(group.items()) if watch.op}
    calls = {rank: _call(watch) for rank, watch in waiting.items()}
    lines = tuple(watch.line for watch in waiting.values())
    first = next(iter(waiting.values()))

    def differ(kind: str, ranks: tuple[int, ...]) -> Difference:
        return Difference(kind, ranks, calls, first.seq, first.timeout_ms, lines)

    for kind, trait in (("order", "op"), ("order", "seq"), ("shape", "sizes")):
        traits = {rank: getattr(watch, trait) for rank, watch in waiting.items()}
        if len(set(traits.values())) > 1:
            return differ(kind, _minority(traits))
    behind = tuple(
        rank for rank, watch in sorted(group.items()) if _is_behind(watch, first.seq) and rank not in waiting
    )
    if behind or absent:
        return differ("missing", tuple(sorted({*behind, *absent} - set(waiting))) or tuple(sorted(absent)))
    # Ranks of a subgroup are not known: only a timeout that nearly all ranks report names the others.
    others = tuple(rank for rank in range(size or 0) if rank not in waiting)
    if others and len(waiting) >= len(others):
        return differ("missing", others)
    return differ("none" if not others else "missing", ())


def _is_behind(watch: Watch, seq: int | None) -> bool:
    return seq is not None and watch.enqueued is not None and watch.enqueued < seq


def _minority(traits: dict[int, object]) -> tuple[int, ...]:
    """The ranks that differ from most; all of them where no side is larger."""
    counts = Counter(traits.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return tuple(sorted(traits))
    return tuple(sorted(rank for rank, trait in traits.items() if trait != counts[0][0]))


def _call(watch: Watch) -> str:
    sizes = f" ({' -> '.join(watch.sizes)})" if watch.sizes else ""
    return f"#{watch.seq} {watch.op}{sizes}" if watch.seq is not None else f"{watch.op}{sizes}"
