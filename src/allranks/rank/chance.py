"""Whose random numbers are whose: where seeds are set, and how far the generators went at the first batches.

Around the fetch of a batch, and between a batch and the model's forward, the states of the CPU generators of torch,
NumPy and `random` are compared. All three are Mersenne twisters: the states tell how many numbers were drawn in
between, so that nothing has to be wrapped and nothing is drawn. Equal states on all ranks and as many numbers as
samples mean equal noise.
"""

from __future__ import annotations

import mmap
import struct
import sys
import zlib

from . import stack
from .contents import contents
from .observe import after, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = ("torch", "numpy", "random")
FETCHES = 4
"""First fetches of a fetcher that are looked at, and at most `LOOKS` in a process."""
LOOKS = 100
SEEDS = 40
INPUTS = 8
"""First inputs of a model that are looked at."""
BLOCK = 624
"""Numbers in one state of a Mersenne twister."""
LOADERS = 256

_SLOT = struct.Struct("<III")
_TORCH = struct.Struct("<QiiQ")
_shared: Any = None
"""Written by the workers that are forked from this process: numbers drawn inside a fetch, by loader."""
_forking = 0
_looks = 0
_fetched: Any = None
_drawn: Any = None


def backwards(guest: Any) -> int:
    """How often backward ran."""
    return int(getattr(guest, "backwards", 0))


def states(torch: Any) -> list[Any]:
    """(checksum of the block, numbers used, numbers left) of each generator; None for one that is not there."""
    raw = torch.get_rng_state()
    data = raw.numpy().tobytes() if "numpy" in sys.modules else bytes(raw.tolist())
    _, left, _, used = _TORCH.unpack_from(data)
    size = _TORCH.size + 8 * BLOCK
    found: list[Any] = [(zlib.crc32(data[_TORCH.size : size]), used, left - 1)]
    module = sys.modules.get("numpy.random")
    state = module.get_state() if module is not None and hasattr(module, "get_state") else None
    if state is None or state[0] != "MT19937":
        found.append(None)
    else:
        found.append((zlib.crc32(state[1].tobytes()), int(state[2]), BLOCK - int(state[2])))
    twister = sys.modules.get("random")
    if twister is None or not hasattr(twister, "getstate"):
        found.append(None)
    else:
        inner = twister.getstate()[1]
        found.append((hash(inner[:-1]) & 0xFFFFFFFF, inner[-1], BLOCK - inner[-1]))
    return found


def between(old: Any, new: Any) -> int:
    """The least number of draws that lead from one state to another."""
    if old is None or new is None:
        return 0
    return int(new[1] - old[1]) if old[0] == new[0] else int(old[2] + new[1])


def _compare(old: list[Any], new: list[Any]) -> dict[str, Any]:
    """Generator -> (state before, numbers drawn), of those that drew."""
    found = {}
    for kind, one, other in zip(KINDS, old, new):  # noqa: B905 - not in Python 3.8
        count = between(one, other)
        if count > 0:
            found[kind] = [one[0], one[1], count]
    return found


def wrap_seed(guest: Any, module: Any, name: str, kind: str) -> None:
    """Watches the function that seeds a global generator."""

    def seeded(result: Any, args: Any, kwargs: Any, frame: Any) -> None:
        guest.seeds = getattr(guest, "seeds", 0) + 1
        if guest.seeds <= SEEDS:
            value = args[0] if args else next(iter(kwargs.values()), None)
            tell(guest, "seed", frame, {"of": kind, "value": str(value)[:40]})

    setattr(module, name, after(guest, getattr(module, name), seeded))


# In the loader


def wrap_fetch(guest: Any, module: Any) -> None:
    """Hooks into `torch.utils.data._utils.fetch`, which runs in the rank itself or in its workers."""
    global _shared
    _shared = mmap.mmap(-1, LOADERS * _SLOT.size)
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(module, name)
        fetcher.fetch = _fetching(guest, fetcher.fetch)


def forking(loader: int) -> None:
    """Workers of this loader may be about to be started."""
    global _forking
    _forking = loader


def in_workers(loader: Any) -> list[int]:
    """The most numbers that a worker of a loader drew for one batch, by generator."""
    if _shared is None or loader.number >= LOADERS:
        return []
    return list(_SLOT.unpack_from(_shared, loader.number * _SLOT.size))


def _fetching(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def fetch(self: Any, index: Any) -> Any:
        torch = sys.modules["torch"]
        seen = self.__dict__.get("_allranks_fetches", 0)
        if seen >= FETCHES or _looks >= LOOKS or guest.off:
            return function(self, index)
        try:
            self._allranks_fetches = seen + 1
            old = states(torch)
        except Exception as error:
            guest.failed(error)
            return function(self, index)
        data = function(self, index)
        try:
            _note(torch, _compare(old, states(torch)))
        except Exception as error:
            guest.failed(error)
        return data

    return fetch


def _note(torch: Any, drawn: dict[str, Any]) -> None:
    global _fetched, _looks
    _looks += 1
    if torch.utils.data.get_worker_info() is None:
        _fetched = drawn
    elif _shared is not None and _forking < LOADERS:
        slot = _SLOT.unpack_from(_shared, _forking * _SLOT.size)
        most = [max(old, drawn[kind][2] if kind in drawn else 0) for kind, old in zip(KINDS, slot)]  # noqa: B905
        _SLOT.pack_into(_shared, _forking * _SLOT.size, *most)


# Between the loader and the model


def drawn(guest: Any, turn: Any, number: int) -> None:
    """A batch whose contents are told has been drawn: what its fetch drew is told, and the step's draws are awaited."""
    global _fetched, _drawn
    fetched, _fetched = _fetched, None
    place = (turn.loader.number, turn.number, number)
    if fetched:
        _tell(guest, place, "fetch", fetched)
    _drawn = (place, states(guest.torch))


def wrap_forward(guest: Any, module: Any) -> None:
    """Hooks into `torch.nn.parallel.distributed`: a model's forward begins."""
    ddp = module.DistributedDataParallel
    if hasattr(ddp, "_pre_forward"):
        ddp._pre_forward = _entering(guest, ddp._pre_forward)


def _entering(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def enter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _drawn is not None and not guest.off and not guest.compiling():
            try:
                _entered(guest)
            except Exception as error:
                guest.failed(error)
        seen = self.__dict__.get("_allranks_inputs", 0)
        if seen < INPUTS and not guest.off and guest.sink is not None and guest.torch.is_grad_enabled():
            try:
                self.__dict__["_allranks_inputs"] = seen + 1
                _input(guest, seen, (args, kwargs), sys._getframe(1))
            except Exception as error:
                guest.failed(error)
        return function(self, *args, **kwargs)

    return enter


def _input(guest: Any, number: int, given: Any, frame: Any) -> None:
    """Tells what a model is given: programs that draw their batches without a DataLoader are seen here."""
    leaves = contents(guest.torch, given, None)["leaves"]
    tell(guest, "input", frame, {"number": number, "leaves": leaves})


def _entered(guest: Any) -> None:
    global _drawn
    (place, old), _drawn = _drawn, None
    found = _compare(old, states(guest.torch))
    if found:
        _tell(guest, place, "step", found)


def _tell(guest: Any, place: tuple[int, int, int], where: str, found: dict[str, Any]) -> None:
    loader, turn, batch = place
    tell(
        guest,
        "chance",
        None,
        {"loader": loader, "turn": turn, "batch": batch, "where": where, "drawn": found},
    )


def wrap_backward(guest: Any, module: Any) -> None:
    """Counts in `torch.autograd`: a loader between whose batches backward runs is one that is trained on."""
    original = module.backward

    @stack.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        guest.backwards = getattr(guest, "backwards", 0) + 1
        return original(*args, **kwargs)

    module.backward = backward
