"""What the hooks on data and outputs tell the host, and in which modules they sit."""

from __future__ import annotations

import sys
import time

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Hook = Callable[[Any], None]


def tell(guest: Any, topic: str, frame: Any, row: dict[str, Any]) -> None:
    """One observation with the time and, where `frame` is given, the user's lines that lead to it."""
    if guest.sink is None or guest.recorder is None or guest.off:
        return
    if frame is not None:
        row["site"] = guest.recorder.site(stack.user_rows(stack.walk(frame)))
    row["time"] = row.get("time") or time.time_ns()
    guest.send("observed", topic, row)


def after(guest: Any, original: Any, look: Any) -> Any:
    """`original`, and then `look(result, args, kwargs, frame of the caller)`; an error of ours stays ours."""

    @stack.wraps(original)
    def observed_call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if guest.sink is not None and not guest.off and not guest.compiling():
            try:
                look(result, args, kwargs, sys._getframe(1))
            except Exception as error:
                guest.failed(error)
        return result

    return observed_call


def hooks(guest: Any) -> dict[str, Hook]:
    """Modules whose import the hooks on data and outputs wait for."""
    from . import chance, draws, files

    return {
        "torch.utils.data.dataset": lambda module: draws.wrap_dataset(guest, module),
        "torch.utils.data.distributed": lambda module: draws.wrap_sampler(guest, module),
        "torch.utils.data._utils.fetch": lambda module: chance.wrap_fetch(guest, module),
        "torch.utils.data.dataloader": lambda module: draws.wrap(guest, module),
        "torch.nn.parallel.distributed": lambda module: chance.wrap_forward(guest, module),
        "torch.autograd": lambda module: chance.wrap_backward(guest, module),
        "torch.random": lambda module: chance.wrap_seed(guest, module, "manual_seed", "torch"),
        "numpy.random": lambda module: chance.wrap_seed(guest, module, "seed", "numpy"),
        "random": lambda module: chance.wrap_seed(guest, module, "seed", "random"),
        "torch.serialization": lambda module: files.wrap_torch(guest, module),
        "torch.nn.modules.module": lambda module: files.wrap_module(guest, module),
        "safetensors.torch": lambda module: files.wrap_safetensors(guest, module),
        "torch.utils.tensorboard.writer": lambda module: files.wrap_events(guest, module),
        "tensorboardX.writer": lambda module: files.wrap_events(guest, module),
    }


def begin(guest: Any) -> None:
    """The process becomes a rank: from now on its files and lines of text are looked at."""
    from . import files, lines

    files.watch(guest)
    lines.watch(guest)
