"""Worlds in which hooks observed something: rows by topic, as the guests tell them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from worlds import SECOND, Builder, call, site

from allranks.judge.case import Case
from allranks.source.program import Program

if TYPE_CHECKING:
    from allranks.findings import Finding
    from allranks.judge.rules import Rule

BACKWARD = call("allreduce", "main:20", hidden=True, inside="DDP.backward", dtype="float32")


class Seen(Builder):
    """A job of ranks whose gradients DDP averages."""

    def __init__(self, size: int = 2, *, ddp: bool = True) -> None:
        super().__init__(size)
        self.world.live = True
        self._clock = SECOND
        if ddp:
            for rank in self.everyone:
                self.calls(rank, [BACKWARD], at=0)

    def saw(self, rank: int, topic: str, /, *places: str, **row: Any) -> Seen:
        """One row of a rank; `places` are its call site, `time` in seconds (else one after the other)."""
        self._clock += SECOND // 100
        if places:
            row["site"] = site(*places)
        if "time" in row:
            row["time"] = int(row["time"] * SECOND)
        if "end" in row:
            row["end"] = int(row["end"] * SECOND)
        row.setdefault("time", self._clock)
        facts = self.world.ranks[rank].facts
        facts.setdefault("observed", {}).setdefault(topic, []).append(row)
        return self

    def loader(self, rank: int, /, *places: str, number: int = 1, **row: Any) -> Seen:
        values = {
            "dataset": "TensorDataset",
            "length": 64,
            "sampler": "DistributedSampler",
            "batch_sampler": "BatchSampler",
            "workers": 0,
            "split": None,
        }
        return self.saw(rank, "loader", *(places or ("main:8",)), loader=number, **{**values, **row})

    def sampler(self, index: int, /, *places: str, number: int = 1, **row: Any) -> Seen:
        values = {
            "own": True,
            "name": "DistributedSampler",
            "replicas": len(self.everyone),
            "rank": index,
            "shuffle": True,
            "seed": 0,
            "drop_last": False,
            "length": 64,
            "total": 64,
        }
        return self.saw(index, "sampler", *(places or ("main:7",)), sampler=number, **{**values, **row})

    def turn(self, rank: int, indices: list[int], /, *places: str, number: int = 0, **row: Any) -> Seen:
        """A pass in batches of four that was trained on; `content` gives the content of a sample from its index."""
        content = row.pop("content", lambda index: index * 7)
        batches = [indices[i : i + 4] for i in range(0, len(indices), 4)]
        shown = [
            {
                "leaves": [[hash(tuple(content(i) for i in batch)) & 0xFFFFFFFF, 16], [1, 1]],
                "samples": [[i, content(i)] for i in batch],
            }
            for batch in batches[:4]
        ]
        values = {
            "loader": 1,
            "drawn": len(batches),
            "samples": len(indices),
            "backwards": len(batches),
            "grad": True,
            "ended": True,
            "digest": hash(tuple(indices)) & 0xFFFFFFFF,
            "indices": indices,
            "epochs": [],
            "content": shown,
            "seed": 5,
            "draws_inside": [0, 0, 0],
        }
        return self.saw(rank, "turn", *(places or ("main:18",)), turn=number, **{**values, **row})

    def case(self, root: Path | None = None) -> Case:
        self.world.root = str(root or "/nowhere")
        return Case(self.world, Program(root or Path("/nowhere")), final=True)

    def found(self, rules: list[Rule], root: Path | None = None) -> list[Finding]:
        """What the rules of a group say."""
        case = self.case(root)
        return [finding for rule in rules if (finding := rule.judge(case)) is not None]


def told(epoch: int = 0, *, sampler: int = 1, shuffle: bool = True) -> list[dict[str, Any]]:
    """The state of a DistributedSampler when a pass began."""
    return [{"name": "DistributedSampler", "sampler": sampler, "epoch": epoch, "shuffle": shuffle, "seed": 0}]


def verdicts(findings: list[Finding]) -> list[tuple[str, int | None, tuple[int, ...]]]:
    """(fault, line, ranks) of findings."""
    return [(f.fault, f.location.line if f.location else None, f.ranks) for f in findings]
