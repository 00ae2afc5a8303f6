"""What a rank draws from its DataLoaders: a record per batch, so that draws and calls stand on one time line."""

from __future__ import annotations

import itertools
import sys

from . import stack, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_numbers = itertools.count(1)


def wrap(guest: Any, module: Any) -> None:
    """Watches the iterators of `torch.utils.data.dataloader`."""
    iterator = module._BaseDataLoaderIter
    iterator.__init__ = _opening(guest, iterator.__init__)
    iterator.__next__ = _drawing(guest, iterator.__next__)
    iterator.next = iterator.__next__


def _opening(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> Any:
        function(self, *args, **kwargs)
        try:
            if guest.recorder is not None and guest.sink is not None:
                number = next(_numbers)
                site = guest.recorder.site(stack.user_rows(stack.walk(sys._getframe(1))))
                guest.send("loader", number, site)
                self._allranks = [number, 0]
        except Exception as error:
            guest.failed(error)

    return initialise


def _drawing(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def draw(self: Any) -> Any:
        try:
            batch = function(self)
        except BaseException as error:
            _note(guest, self, wire.ISSUED if isinstance(error, StopIteration) else wire.RAISED)
            if not isinstance(error, StopIteration):
                guest.passing(error)
            raise
        _note(guest, self, wire.DONE)
        return batch

    return draw


def _note(guest: Any, iterator: Any, state: int) -> None:
    seen = getattr(iterator, "_allranks", None)
    if seen is None or guest.recorder is None:
        return
    if state == wire.DONE:
        seen[1] += 1
    guest.recorder.write(seen[1], seen[0], 0, state, wire.DRAW)
