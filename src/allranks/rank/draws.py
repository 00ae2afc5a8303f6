"""What a rank draws from its DataLoaders: which indices in which order, from which sampler, and with what in them.

A *turn* is one pass over a loader. Its row is told when it has drawn 2, 4, 8, ... batches and when it ends; the host
keeps the last. Indices are those of the data set underneath, looked at through `Subset`. Of the first batches of a
turn the contents are told too, as checksums of a few elements: data sets that shard inside have equal indices on all
ranks and other contents.
"""

from __future__ import annotations

import functools
import itertools
import marshal
import sys
import weakref
import zlib

from . import chance, stack
from .contents import contents
from .observe import after, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INDICES = 96
"""Indices of a turn that are told one by one."""
BATCHES = 4
"""First batches of a turn whose contents are told."""
TURNS = 6
"""First turns of a loader whose contents are told."""
SAMPLES = 32
MANY = 200000
"""Indices of a Subset beyond which they are not compared."""

_numbers = itertools.count(1)


class Loader:
    """A DataLoader: its number, and how many turns it has had."""

    __slots__ = ("number", "ref", "turns")

    def __init__(self, loader: Any) -> None:
        self.number = next(_numbers)
        self.turns = 0
        self.ref = weakref.ref(loader)


class Turn:
    """One pass over a loader, as far as it has come."""

    __slots__ = (
        "backwards",
        "batches",
        "content",
        "digest",
        "drawn",
        "epochs",
        "indices",
        "loader",
        "number",
        "samples",
        "seed",
        "source",
        "subsets",
    )

    def __init__(self, loader: Loader, source: Any) -> None:
        self.loader, self.source = loader, source
        self.number = loader.turns
        loader.turns += 1
        self.drawn = self.samples = self.digest = 0
        self.backwards = 0
        self.indices: list[Any] = []
        self.batches: list[Any] = []
        self.content: list[Any] = []
        self.subsets: list[Any] = []
        self.epochs: list[Any] = []
        made = loader.ref()
        if made is not None:
            self.subsets, self.epochs = subsets(getattr(made, "dataset", None)), epochs(made)
        self.seed: Any = None


_loaders: Any = weakref.WeakKeyDictionary()


def known(loader: Any) -> Loader:
    """What is known of a DataLoader."""
    found: Loader | None = _loaders.get(loader)
    if found is None:
        found = _loaders[loader] = Loader(loader)
    return found


# What a loader is made of


def subsets(dataset: Any) -> list[Any]:
    """The index lists of Subsets around a data set, outermost first."""
    found: list[Any] = []
    while type(dataset).__name__ == "Subset" and hasattr(dataset, "indices") and len(found) < 8:
        found.append(dataset.indices)
        dataset = dataset.dataset
    return found


def samplers(loader: Any) -> list[Any]:
    """The samplers that a loader draws from, through batch samplers and wrappers, and a data set that counts epochs."""
    found: list[Any] = []
    todo = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while todo and len(found) < 12:
        one = todo.pop(0)
        if one is None or any(one is other for other in found) or not hasattr(one, "__dict__"):
            continue
        found.append(one)
        todo += [v for k, v in list(vars(one).items()) if "sampler" in k and hasattr(v, "__iter__")]
    dataset = getattr(loader, "dataset", None)
    if hasattr(dataset, "set_epoch"):
        found.append(dataset)
    return found


def epochs(loader: Any) -> list[Any]:
    """Of every sampler that can be told the epoch: class, number, epoch, whether it shuffles, its seed."""
    found = []
    for one in samplers(loader):
        if hasattr(one, "set_epoch"):
            mine = vars(one)
            found.append(
                {
                    "name": type(one).__name__,
                    "sampler": mine.get("_allranks_sampler", 0),
                    "epoch": _whole(mine.get("epoch", mine.get("_epoch"))),
                    "shuffle": bool(mine["shuffle"]) if isinstance(mine.get("shuffle"), bool) else None,
                    "seed": _whole(mine.get("seed")),
                }
            )
    return found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def wrap(guest: Any, module: Any) -> None:
    """Hooks into `torch.utils.data.dataloader`."""
    module.DataLoader.__init__ = after(
        guest, module.DataLoader.__init__, functools.partial(_made, guest, module)
    )
    iterator = module._BaseDataLoaderIter
    iterator.__init__ = _opening(guest, iterator.__init__)
    iterator._next_index = _choosing(guest, iterator._next_index)
    iterator.__next__ = _drawing(guest, iterator.__next__)
    iterator.next = iterator.__next__


def _made(guest: Any, module: Any, result: Any, args: Any, kwargs: Any, frame: Any) -> None:
    loader = args[0]
    dataset = loader.dataset
    iterable = isinstance(dataset, module.IterableDataset)
    row = {
        "loader": known(loader).number,
        "dataset": type(dataset).__name__,
        "length": None if iterable else _length(dataset),
        "sampler": type(loader.sampler).__name__,
        "batch_sampler": type(loader.batch_sampler).__name__,
        "workers": int(loader.num_workers),
        "split": _split(dataset),
    }
    tell(guest, "loader", frame, row)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None


def _split(dataset: Any) -> dict[str, Any] | None:
    """The indices of a Subset: how many of how many, a checksum, and a sample that is the same choice on all ranks."""
    found = subsets(dataset)
    if not found or isinstance(found[0], range) or len(found[0]) > MANY:
        return None
    indices = [int(i) for i in found[0]]
    keep = max(1, len(indices) // 400)
    picked = [i for i in indices if (i * 2654435761 >> 7) % keep == 0][:1000]
    return {
        "length": len(indices),
        "of": _length(dataset.dataset),
        "digest": zlib.crc32(marshal.dumps(indices)),
        "sample": picked,
        "made": vars(dataset).get("_allranks_made", 0),
    }


def wrap_dataset(guest: Any, module: Any) -> None:
    """Hooks into `torch.utils.data.dataset`: where a Subset is made."""

    def made(result: Any, args: Any, kwargs: Any, frame: Any) -> None:
        args[0].__dict__["_allranks_made"] = number = next(_numbers)
        tell(guest, "subset", frame, {"subset": number})

    module.Subset.__init__ = after(guest, module.Subset.__init__, made)


def wrap_sampler(guest: Any, module: Any) -> None:
    """Hooks into `torch.utils.data.distributed`: what a DistributedSampler was told."""

    def made(result: Any, args: Any, kwargs: Any, frame: Any) -> None:
        sampler = args[0]
        sampler.__dict__["_allranks_sampler"] = number = next(_numbers)
        while frame is not None and _builds(frame, sampler):  # the constructor of a class that is derived
            frame = frame.f_back
        row = {
            "own": frame is not None and stack.describe(frame.f_code).owner == stack.USER,
            "sampler": number,
            "name": type(sampler).__name__,
            "replicas": sampler.num_replicas,
            "rank": sampler.rank,
            "shuffle": bool(sampler.shuffle),
            "seed": sampler.seed,
            "drop_last": bool(sampler.drop_last),
            "length": _length(sampler.dataset),
            "total": sampler.total_size,
        }
        tell(guest, "sampler", frame, row)

    module.DistributedSampler.__init__ = after(guest, module.DistributedSampler.__init__, made)


def _builds(frame: Any, made: Any) -> bool:
    """True for a frame of the constructor of `made` itself."""
    code = frame.f_code
    names = code.co_varnames[:1] if code.co_argcount else ()
    return code.co_name == "__init__" and any(frame.f_locals.get(name) is made for name in names)


# Turns


def _opening(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def initialise(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            self._allranks_loader = known(loader)
            chance.forking(self._allranks_loader.number)
        except Exception as error:
            guest.failed(error)
        return function(self, loader, *args, **kwargs)

    return initialise


def _turn(iterator: Any) -> Any:
    """The iterator's present turn; a new one when it begins to draw from its sampler anew."""
    turn = iterator.__dict__.get("_allranks_turn")
    source = getattr(iterator, "_sampler_iter", None)
    if turn is None or turn.source is not source:
        loader = iterator.__dict__.get("_allranks_loader")
        if loader is None:
            return None
        turn = iterator._allranks_turn = Turn(loader, source)
        turn.seed = getattr(iterator, "_base_seed", None)
    return turn


def _choosing(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def choose(self: Any) -> Any:
        index = function(self)
        if guest.sink is not None and not guest.off:
            try:
                _chosen(_turn(self), index)
            except Exception as error:
                guest.failed(error)
        return index

    return choose


def _chosen(turn: Any, index: Any) -> None:
    """Adds the indices of one batch to its turn."""
    if turn is None or index is None:
        return
    chosen = index if type(index) is list else list(index) if isinstance(index, tuple) else [index]
    if not chosen or chosen[0] is None:  # an iterable data set
        return
    room = len(turn.indices) < INDICES
    if room or turn.subsets:
        chosen = underneath(chosen, turn.subsets)
    turn.samples += len(chosen)
    try:
        turn.digest = zlib.crc32(marshal.dumps(chosen), turn.digest)
    except ValueError:
        turn.digest = zlib.crc32(str(chosen).encode(), turn.digest)
    if room:
        turn.indices += chosen[: INDICES - len(turn.indices)]
    if len(turn.batches) < BATCHES:
        turn.batches.append(chosen[:SAMPLES])


def underneath(chosen: Any, levels: list[Any]) -> list[Any]:
    """Indices into the data set under some Subsets; text where a sampler gives anything but whole numbers."""
    try:
        for level in levels:
            chosen = [level[int(i)] for i in chosen]
        return [i if type(i) is int else int(i) for i in chosen]
    except (TypeError, ValueError, IndexError):
        return [str(i)[:40] for i in chosen]


def _drawing(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def draw(self: Any) -> Any:
        try:
            batch = function(self)
        except StopIteration:
            _ended(guest, self, sys._getframe(1))
            raise
        turn = self.__dict__.get("_allranks_turn")
        if turn is not None:
            drawn = turn.drawn = turn.drawn + 1
            if drawn <= BATCHES or not drawn & (drawn - 1):
                try:
                    _drawn(guest, turn, drawn, batch, sys._getframe(1))
                except Exception as error:
                    guest.failed(error)
        return batch

    return draw


def _drawn(guest: Any, turn: Turn, drawn: int, batch: Any, frame: Any) -> None:
    """Looks at one of the first batches of a turn, and tells of it now and then."""
    if drawn == 1:
        turn.backwards = chance.backwards(guest)
    if drawn <= BATCHES and turn.number < TURNS:
        indices = turn.batches[drawn - 1] if len(turn.batches) >= drawn else None
        turn.content.append(contents(guest.torch, batch, indices))
        chance.drawn(guest, turn, drawn)
    if drawn & (drawn - 1) == 0 and drawn > 1:
        _tell(guest, turn, frame, False)


def _ended(guest: Any, iterator: Any, frame: Any) -> None:
    try:
        turn = iterator.__dict__.get("_allranks_turn")
        if turn is not None and turn.drawn and guest.sink is not None:
            _tell(guest, turn, frame, True)
    except Exception as error:
        guest.failed(error)


def _tell(guest: Any, turn: Turn, frame: Any, ended: bool) -> None:
    if turn.number > 64 and turn.number & (turn.number - 1):
        return  # of very many turns only ever rarer ones
    row = {
        "loader": turn.loader.number,
        "turn": turn.number,
        "drawn": turn.drawn,
        "samples": turn.samples,
        "backwards": chance.backwards(guest) - turn.backwards,
        "grad": bool(guest.torch.is_grad_enabled()),
        "ended": ended,
        "digest": turn.digest,
        "indices": turn.indices[:INDICES] if turn.number < TURNS else [],
        "epochs": turn.epochs,
        "content": turn.content,
        "seed": turn.seed,
        "draws_inside": chance.in_workers(turn.loader),
    }
    tell(guest, "turn", frame, row)
