"""A small writer of flight-recorder dumps: what ranks called becomes files as torch writes them.

`Job` plays a program rank by rank; `pickled` encodes as torch's own pickler does (protocol 2, strings and frames
memoized by content, containers not), the standard pickler and JSON stand beside it.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_700_000_000_000_000_000
TORCH = "/env/lib/python3.11/site-packages/torch/distributed"


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    """A stack, innermost first: two frames of torch, then the user's, outermost last."""
    inner = [(f"{TORCH}/distributed_c10d.py", 3245, "all_reduce"), (f"{TORCH}/c10d_logger.py", 83, "wrapper")]
    return [{"name": n, "filename": f, "line": at} for f, at, n in (*inner, *lines)]


@dataclass
class Rank:
    """What one rank recorded."""

    rank: int
    groups: dict[str, tuple[str, list[int]]]
    entries: list[dict[str, Any]] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    p2p_seqs: dict[str, int] = field(default_factory=dict)
    clock_ns: int = T0

    def call(
        self,
        op: str = "all_reduce",
        *,
        line: int = 10,
        size: int | list[int] = 4,
        out: list[int] | None = None,
        dtype: str = "Float",
        group: str = "0",
        done: bool = True,
        late_s: float = 0.0,
        path: str = "/home/me/train.py",
        backend: str = "nccl",
        same_seq: bool = False,
    ) -> None:
        """One more call."""
        self.clock_ns += 1_000_000
        p2p = op.startswith(("send", "recv"))
        counters = self.p2p_seqs if p2p else self.seqs
        if not same_seq:
            counters[group] = counters.get(group, 0) + 1
        shape = [size] if isinstance(size, int) else size
        ended = self.clock_ns + 500_000
        self.entries.append(
            {
                "frames": frames((path, line, "step"), (path, 99, "<module>")),
                "record_id": len(self.entries),
                "pg_id": list(self.groups).index(group),
                "process_group": (group, self.groups[group][0]),
                "thread_name": "pt_main",
                "thread_id": str(140_000_000_000_000 + self.rank),
                "collective_seq_id": self.seqs.get(group, 0),
                "p2p_seq_id": self.p2p_seqs.get(group, 0),
                "op_id": len(self.entries),
                "profiling_name": f"{backend}:{op}",
                "time_created_ns": self.clock_ns + int(late_s * 1e9),
                "input_sizes": [shape],
                "input_dtypes": [dtype],
                "output_sizes": [list(out or shape)],
                "output_dtypes": [dtype],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": ended if done else None,
                "retired": done,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
            }
        )

    def dump(self, *, keep: int | None = None) -> dict[str, Any]:
        """The dump, with the last `keep` entries."""
        config = {name: {"name": name, "desc": d, "ranks": str(r)} for name, (d, r) in self.groups.items()}
        status = {
            str(i): {"last_enqueued_collective": self.seqs.get(name, -1), "last_completed_collective": -1}
            for i, name in enumerate(self.groups)
        }
        return {
            "version": "2.10",
            "pg_config": config,
            "comm_lib_version": "2.27.5",
            "pg_status": status,
            "entries": self.entries[-keep:] if keep else self.entries,
        }


class Job:
    """The ranks of a job; `groups` are subgroups by name, (description, ranks) each."""

    def __init__(self, size: int, groups: dict[str, tuple[str, list[int]]] | None = None) -> None:
        everyone = {"0": ("default_pg", list(range(size)))}
        self.ranks = [
            Rank(r, everyone | {n: g for n, g in (groups or {}).items() if r in g[1]}) for r in range(size)
        ]

    def __iter__(self) -> Any:
        return iter(self.ranks)

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def steps(self, count: int = 4) -> None:
        """Every rank makes `count` steps of three calls each."""
        for _ in range(count):
            for rank in self.ranks:
                rank.call("all_reduce", line=10, size=16)
                rank.call("_all_gather_base", line=11, size=8, out=[8 * len(self.ranks)])
                rank.call("all_reduce", line=12, size=[4, 2])

    def write(self, folder: Path, *, encode: Any = None, prefix: str = "trace_rank_") -> list[Path]:
        """One file per rank."""
        paths = []
        for rank in self.ranks:
            path = folder / f"{prefix}{rank.rank}"
            path.write_bytes((encode or pickled)(rank.dump()))
            paths.append(path)
        return paths


def pickled(value: Any) -> bytes:
    """`value` as torch's pickler writes it."""
    return b"\x80\x02" + _TorchPickler().encode(value) + b"."


def python_pickled(protocol: int) -> Any:
    """An encoder by the standard library's pickler."""
    return lambda value: pickle.dumps(value, protocol)


def as_json(value: dict[str, Any]) -> bytes:
    """`value` as `_dump_fr_trace_json` writes it: keys in order of the alphabet, no frames, 0 for no time."""
    flat = json.loads(json.dumps(value))
    for entry in flat.get("entries", []):
        entry.pop("frames", None)
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
    for status in flat.get("pg_status", {}).values():
        status.update({key: str(number) for key, number in status.items()})
    return json.dumps(flat, sort_keys=True, separators=(",", ":")).encode()


class _TorchPickler:
    def __init__(self) -> None:
        self.memo: dict[Any, int] = {}

    def encode(self, value: Any) -> bytes:
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            return self.memoized(
                ("s", value), lambda: b"X" + struct.pack("<I", len(value.encode())) + value.encode()
            )
        if isinstance(value, tuple):
            return b"".join(map(self.encode, value)) + bytes([0x84 + len(value)])
        if isinstance(value, list):
            return b"](" + b"".join(map(self.encode, value)) + b"e"
        if set(value) == {"name", "filename", "line"}:
            return self.memoized(("f", *value.values()), lambda: self.items(value))
        return self.items(value)

    def items(self, value: dict[Any, Any]) -> bytes:
        return b"}(" + b"".join(self.encode(k) + self.encode(v) for k, v in value.items()) + b"u"

    def number(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if 0 <= value < 65536:
            return b"M" + struct.pack("<H", value)
        if -(2**31) <= value < 2**31:
            return b"J" + struct.pack("<i", value)
        return b"\x8a\x08" + struct.pack("<q", value)

    def memoized(self, key: Any, write: Any) -> bytes:
        if key in self.memo:
            index = self.memo[key]
            return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        content = write()
        index = self.memo[key] = len(self.memo)
        return content + (b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index))
