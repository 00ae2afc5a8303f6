"""Exact digests of tensors: equal bits, equal digest; a single changed bit always gives another.

A tensor is read as 32-bit words. Each word is multiplied by a 64-bit number that belongs to its place, and the
products are added modulo 2**64 (multilinear hashing), so that two elements that swap places, two signs that flip
and two kinds of NaN all show. It runs where the tensor lives, a chunk at a time, and needs no more than the weights
and one chunk of 64-bit words.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 16
"""Words of a chunk on the CPU: weights and products stay in the cache."""
CHUNK_DEVICE = 1 << 20
"""Words of a chunk on an accelerator, where each chunk is a launch."""
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)


class Digester:
    """Digests of tensors of one process; keeps one set of weights per device."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._weights: dict[Any, Any] = {}
        self._buffer: Any = None

    def digests(self, tensors: list[Any]) -> list[int | None]:
        """One number per tensor, or None for what cannot be read as plain memory (sharded, sparse, meta, absent)."""
        torch = self.torch
        found: list[int | None] = [None] * len(tensors)
        waiting: dict[Any, tuple[list[int], list[Any]]] = {}
        for index, tensor in enumerate(tensors):
            words = self._words(tensor)
            if words is None:
                continue
            places, values = waiting.setdefault(words.device, ([], []))
            places.append(index)
            values.append(self._sum(words))
        for places, values in waiting.values():  # one wait for the device, not one per tensor
            for index, value in zip(places, torch.stack(values).tolist()):  # noqa: B905 - Python 3.8
                found[index] = value
        return found

    def _words(self, tensor: Any) -> Any:
        """The memory of a tensor as a flat tensor of integers."""
        torch = self.torch
        if tensor is None or tensor.layout is not torch.strided or tensor.device.type == "meta":
            return None
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_quantized:
            return None
        flat = _flat(torch, tensor.detach())
        if flat.is_complex():
            flat = torch.view_as_real(flat).view(-1)
        size = flat.element_size()
        if size != 4 and (flat.numel() * size) % 4 == 0:
            if (flat.storage_offset() * size) % 4:
                flat = flat.clone()  # equal bits are read alike wherever they lie
            return flat.view(torch.int32)
        return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}[size])

    def _sum(self, words: Any) -> Any:
        """The digest of a flat tensor of integers, as a tensor on its device."""
        torch, count = self.torch, words.numel()
        weights = self.weights(words.device)
        if count == 0:
            return torch.zeros((), dtype=torch.int64, device=words.device)
        chunk = weights.numel()
        total: Any = None
        for start in range(0, count, chunk):
            part = self._chunk(words[start : start + chunk], weights)
            # The place of a chunk counts too: Horner's rule with an odd factor.
            total = part if total is None else total * _ODD + part
        return total * _MIX + count

    def _chunk(self, words: Any, weights: Any) -> Any:
        torch, count = self.torch, words.numel()
        if words.device.type != "cpu":
            return (words * weights[:count]).sum()
        if self._buffer is None:
            self._buffer = torch.empty(CHUNK, dtype=torch.int64)
        wide = self._buffer[:count]
        wide.copy_(words)
        return torch.dot(wide, weights[:count])

    def weights(self, device: Any) -> Any:
        """The numbers of the places in a chunk: the same in every process, drawn from no generator of the user's."""
        found = self._weights.get(device)
        if found is None:
            torch = self.torch
            count = CHUNK if device.type == "cpu" else CHUNK_DEVICE
            mixed = (torch.arange(1, count + 1, dtype=torch.int64)) * _ODD
            for shift in (30, 27):
                mixed = (mixed ^ (mixed >> shift)) * _MIX
            found = self._weights[device] = ((mixed ^ (mixed >> 31)) | 1).to(device)
        return found


def _flat(torch: Any, tensor: Any) -> Any:
    """All elements in the order of memory where they fill it without gaps, else in logical order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    expected = 1
    shape = tensor.shape
    for stride, size in sorted((tensor.stride(d), n) for d, n in enumerate(shape) if n != 1):
        if stride != expected:
            return tensor.contiguous().view(-1)
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))


def combined(digests: list[int | None]) -> int:
    """One number for many tensors: the order of the list counts by position, gaps count too."""
    total = 0
    for position, digest in enumerate(digests):
        value = 0x5851F42D4C957F2D if digest is None else digest
        total += (value ^ (value >> 29)) * ((position * _ODD + _MIX) | 1)
    return (total & ((1 << 64) - 1)) - (1 << 63)


def not_finite(torch: Any, tensors: list[Any]) -> list[int]:
    """Positions of the tensors that hold a NaN or an infinity."""
    sums: dict[Any, tuple[list[int], list[Any]]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            places, values = sums.setdefault(tensor.device, ([], []))
            places.append(index)
            values.append(tensor.detach().sum(dtype=torch.float32))
    found = []
    for places, values in sums.values():
        # A sum is finite only if all its terms are; one that overflowed by itself is looked at again.
        finite = torch.isfinite(torch.stack(values)).tolist()
        suspects = [index for position, index in enumerate(places) if not finite[position]]
        found += [index for index in suspects if not bool(torch.isfinite(tensors[index]).all())]
    return found
