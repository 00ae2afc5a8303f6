"""What is in a batch, as checksums of a few elements of each tensor.

Data sets that shard inside have equal indices on all ranks and other contents; equal contents are the same samples.
"""

from __future__ import annotations

import marshal
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ELEMENTS = 256
"""Elements of a tensor that are looked at, spread over all of it."""
PER_SAMPLE = 16
LEAVES = 6


def contents(torch: Any, batch: Any, indices: Any) -> dict[str, Any]:
    """Checksums of a batch: per leaf (checksum, how many values differ), and per sample where there are indices.

    Batches may hold anything: what cannot be read is left out."""
    leaves: list[Any] = []
    rows: list[Any] = []
    try:
        _leaves(torch, batch, leaves, 0)
        for leaf in leaves if indices else ():
            rows = _samples(torch, leaf, indices)
            if rows:
                break
        return {"leaves": [_leaf(torch, leaf) for leaf in leaves], "samples": rows}
    except Exception:
        return {"leaves": [], "samples": []}


def _leaves(torch: Any, value: Any, found: list[Any], depth: int) -> None:
    if len(found) >= LEAVES or depth > 4:
        return
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta" and value.layout is torch.strided and value.numel():
            found.append(value.detach())
    elif isinstance(value, dict) or hasattr(value, "items"):
        for one in list(value.values()):
            _leaves(torch, one, found, depth + 1)
    elif isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (str, bytes)):
            found.append([str(one)[:200] for one in value[:64]])
        else:
            for one in value[:LEAVES]:
                _leaves(torch, one, found, depth + 1)


def _leaf(torch: Any, leaf: Any) -> list[Any]:
    """[checksum, how many different values were seen]."""
    if isinstance(leaf, list):
        return [zlib.crc32(repr(leaf).encode()), len(set(leaf))]
    count = leaf.numel()
    flat = leaf.reshape(-1) if leaf.is_contiguous() or count < 1 << 20 else leaf.flatten()
    values = flat[:: max(1, count // ELEMENTS) | 1][:ELEMENTS].tolist()
    return [zlib.crc32(marshal.dumps(values)), len(set(values))]


def _samples(torch: Any, leaf: Any, indices: Any) -> list[Any]:
    """[index, checksum] per sample of a leaf whose first dimension is the batch's; [] where they are all alike."""
    if isinstance(leaf, list) or leaf.dim() == 0 or not leaf.is_contiguous():
        return []
    if leaf.shape[0] < len(indices) or len(indices) < 2:
        return []
    rows = leaf[: len(indices)].reshape(len(indices), -1)
    values = rows[:, :: max(1, rows.shape[1] // PER_SAMPLE)][:, :PER_SAMPLE].tolist()
    sums = [zlib.crc32(marshal.dumps(value)) for value in values]
    if len(set(sums)) * 2 < len(sums):
        return []
    return [[index, one] for index, one in zip(indices, sums)]  # noqa: B905 - not in Python 3.8
