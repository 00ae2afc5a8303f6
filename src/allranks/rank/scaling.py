"""GradScaler and zero_grad: the calls around a step whose order decides what the optimizer gets."""

from __future__ import annotations

import sys
import weakref

from . import stack
from .backward import Backward, noting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wrap_scaler(guest: Any, backward: Backward, module: Any) -> None:
    """`torch.amp.GradScaler`."""
    scaler, steps = module.GradScaler, backward.steps
    numbers: Any = weakref.WeakKeyDictionary()

    def number(made: Any) -> int:
        return int(numbers.setdefault(made, len(numbers) + 1))

    def scale(args: Any, kwargs: Any, frame: Any) -> None:
        if args[0]._enabled and steps.live():
            backward.scaler = weakref.ref(args[0])
            backward.scaled = True
            given = args[1] if len(args) > 1 else kwargs.get("outputs")
            backward.unmultiplied = weakref.ref(given) if isinstance(given, steps.torch.Tensor) else None
            steps.event("scale", frame, number(args[0]))

    def unscale(args: Any, kwargs: Any, frame: Any) -> None:
        if args[0]._enabled and steps.live():
            backward.unscaled = True
            if steps.manner != "scaler":
                steps.event("unscale", frame)

    def update(args: Any, kwargs: Any, frame: Any) -> None:
        if args[0]._enabled and steps.live():
            backward.scaled = backward.unscaled = False
            backward.unmultiplied = None
            steps.event("update", frame, number(args[0]))

    scaler.scale = noting(guest, scale, scaler.scale)
    scaler.unscale_ = noting(guest, unscale, scaler.unscale_)
    scaler.update = noting(guest, update, scaler.update)
    scaler.step = _stepping(steps, scaler.step)


def _stepping(steps: Any, original: Any) -> Any:
    torch = sys.modules["torch"]

    @stack.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self._enabled:
            return original(self, *args, **kwargs)
        before, steps.manner = steps.manner, "scaler"
        try:
            return original(self, *args, **kwargs)
        finally:
            steps.manner = before

    return step


def wrap_optimizer(guest: Any, backward: Backward, module: Any) -> None:
    """`Optimizer.__init__`, `zero_grad` and `add_param_group`."""
    optimizer, steps = module.Optimizer, backward.steps

    def made(args: Any, kwargs: Any, frame: Any) -> None:
        if guest.recorder is not None:
            steps.entry(args[0], frame)

    def zero(args: Any, kwargs: Any, frame: Any) -> None:
        backward.zeroed = True
        if steps.live():
            filled = any(p.grad is not None for group in args[0].param_groups for p in group["params"])
            steps.event("zero", frame, steps.entry(args[0]).number, "filled" if filled else "")

    def grown(args: Any, kwargs: Any, frame: Any) -> None:
        entry = steps.optimizers.get(id(args[0]))
        if entry is not None and entry.ref() is args[0] and guest.recorder is not None:
            group = kwargs.get("param_group", args[1] if len(args) > 1 else {})
            steps.tell(
                "grown", optimizer=entry.number, step=entry.steps, site=steps.site(frame), count=_count(group)
            )

    optimizer.__init__ = noting(guest, made, optimizer.__init__, after=True)
    optimizer.zero_grad = noting(guest, zero, optimizer.zero_grad)
    optimizer.add_param_group = noting(guest, grown, optimizer.add_param_group)


def _count(group: Any) -> int:
    given = group.get("params") if isinstance(group, dict) else None
    return len(given) if isinstance(given, (list, tuple)) else 1


def zeroed(backward: Backward, args: Any, frame: Any) -> None:
    """`Module.zero_grad` is about to run."""
    backward.zeroed = True
    if backward.steps.live():
        filled = next((p for p in args[0].parameters() if p.grad is not None), None)
        of = _holder(backward.steps, filled) if filled is not None else 0
        backward.steps.event("zero", frame, of, "filled" if filled is not None else "")


def _holder(steps: Any, parameter: Any) -> int:
    """The number of the optimizer that holds a parameter; 0 for none."""
    for optimizer in steps.living():
        if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
            return int(steps.entry(optimizer).number)
    return 0
