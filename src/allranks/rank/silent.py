"""The hooks that see a job go wrong without a word: which modules of torch they wait for."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .late import Hook

OLDEST = (2, 1)
"""Torch before this lacks what the hooks need."""


class Silent:
    """Builds the observers once torch is being imported, and hooks them in module by module."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self._made: Any = None

    def hooks(self) -> dict[str, Hook]:
        """What to do with which module once it has run."""
        from . import backward, modules, scaling, wraps

        guest = self.guest
        return {
            "torch.autograd": self._on(lambda s, w, b, m: backward.wrap_autograd(guest, b, m)),
            "torch._tensor": self._on(lambda s, w, b, m: backward.wrap_hooks(guest, b, m)),
            "torch.nn.utils.clip_grad": self._on(lambda s, w, b, m: backward.wrap_clip(guest, b, m)),
            "torch.distributed.distributed_c10d": self._on(
                lambda s, w, b, m: backward.wrap_collective(guest, b, m)
            ),
            "torch.amp.grad_scaler": self._on(lambda s, w, b, m: scaling.wrap_scaler(guest, b, m)),
            "torch.optim.optimizer": self._on(lambda s, w, b, m: _optimizer(guest, s, b, m)),
            "torch.nn.modules.module": self._on(lambda s, w, b, m: modules.wrap(guest, w, b, m)),
            "torch.nn.modules.batchnorm": self._on(lambda s, w, b, m: modules.wrap_norms(guest, w, m)),
            "torch.nn.parallel.distributed": self._on(lambda s, w, b, m: wraps.wrap_ddp(guest, w, m)),
        }

    def _on(self, function: Any) -> Hook:
        def hook(module: Any) -> None:
            made = self._observers()
            if made is not None:
                function(*made, module)

        return hook

    def _observers(self) -> Any:
        """(steps, wraps, backward), or None where torch is too old."""
        if self._made is None:
            from . import backward, compare, steps, wraps

            torch = sys.modules["torch"]
            version = tuple(int(n) for n in str(torch.__version__).split(".")[:2])
            if version < OLDEST:
                self._made = ()
            else:
                clock = self.guest.clock = steps.Steps(self.guest, torch)
                models = wraps.Wraps(clock)
                grads = backward.Backward(clock, models)
                compare.Compare(clock, models, grads)
                self._made = (clock, models, grads)
        return self._made or None


def _optimizer(guest: Any, clock: Any, grads: Any, module: Any) -> None:
    from . import scaling, steps

    steps.wrap(guest, clock, module)
    scaling.wrap_optimizer(guest, grads, module)
