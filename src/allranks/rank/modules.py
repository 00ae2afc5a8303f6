"""torch.nn.Module as the guest sees it: moved, loaded, grown, frozen, normalised."""

from __future__ import annotations

import sys

from . import stack
from .backward import noting
from .scaling import zeroed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wrap(guest: Any, wraps: Any, backward: Any, module: Any) -> None:
    """`Module._apply` (behind to, half, cuda), `apply`, `load_state_dict`, `requires_grad_`, `named_parameters`,
    `zero_grad`, and the hooks that see parameters and submodules being set."""
    kind, steps = module.Module, wraps.steps
    torch = steps.torch
    apply = kind._apply

    @stack.wraps(apply)
    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not wraps.wraps or torch.compiler.is_compiling():
            return apply(self, *args, **kwargs)
        return wraps.moved(apply, self, args, kwargs, sys._getframe(1))

    def loaded(args: Any, kwargs: Any, frame: Any) -> None:
        found = wraps.around(args[0]) if wraps.wraps else None
        if found is not None:
            steps.tell("loaded", wrap=found.number, step=steps.total, site=steps.site(frame))

    def applied(args: Any, kwargs: Any, frame: Any) -> None:
        if wraps.wraps and stack.describe(frame.f_code).owner == stack.USER:  # it calls itself on every child
            found = wraps.around(args[0])
            if found is not None:
                steps.tell("applied", wrap=found.number, step=steps.total, site=steps.site(frame))

    def asked(args: Any, kwargs: Any, frame: Any) -> None:
        if guest.recorder is not None:
            wraps.note(args[0])

    def required(args: Any, kwargs: Any, frame: Any) -> None:
        found = wraps.around(args[0]) if wraps.wraps else None
        if found is not None:
            wanted = bool(kwargs.get("requires_grad", args[1] if len(args) > 1 else True))
            steps.tell("required", wrap=found.number, wanted=wanted, step=steps.total, site=steps.site(frame))

    kind._apply = _apply
    kind.apply = noting(guest, applied, kind.apply)
    kind.load_state_dict = noting(guest, loaded, kind.load_state_dict)
    kind.named_parameters = noting(guest, asked, kind.named_parameters)
    kind.requires_grad_ = noting(guest, required, kind.requires_grad_)
    kind.zero_grad = noting(guest, lambda args, kwargs, frame: zeroed(backward, args, frame), kind.zero_grad)

    def registering(owner: Any, name: str, value: Any) -> None:
        try:
            if wraps.wraps and not torch.compiler.is_compiling():
                wraps.registered(owner, name, value, sys._getframe(1))
        except Exception as error:
            guest.failed(error)

    module.register_module_parameter_registration_hook(registering)
    module.register_module_module_registration_hook(registering)


def wrap_norms(guest: Any, wraps: Any, module: Any) -> None:
    """Batch normalisation: the batch of the first steps, and conversion to SyncBatchNorm."""
    steps = wraps.steps
    torch, original = steps.torch, module._BatchNorm.forward

    @stack.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if self.training and not torch.compiler.is_compiling() and args and torch.is_grad_enabled():
                wraps.normed(self, int(args[0].shape[0]))
                if steps.total > 8 and module._BatchNorm.forward is forward:
                    module._BatchNorm.forward = original
        except Exception as error:
            guest.failed(error)
        return original(self, *args, **kwargs)

    module._BatchNorm.forward = forward
    convert = module.SyncBatchNorm.convert_sync_batchnorm.__func__

    @stack.wraps(convert)
    def convert_sync_batchnorm(cls: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if guest.recorder is not None:
                found = wraps.around(given) if wraps.wraps else None
                wrap = found.number if found is not None else 0
                steps.tell("converted", wrap=wrap, site=steps.site(sys._getframe(1)))
        except Exception as error:
            guest.failed(error)
        return convert(cls, given, *args, **kwargs)

    module.SyncBatchNorm.convert_sync_batchnorm = classmethod(convert_sync_batchnorm)
