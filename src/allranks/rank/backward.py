"""Gradients on their way: from backward through reductions, unscaling and clipping to the step, or to nothing."""

from __future__ import annotations

import math
import sys
import weakref

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WITNESS = 16
"""Elements of one gradient that are remembered to see whether it was changed."""
HOOKS = 4096
"""Hooks on tensors that are remembered until the model they belong to is known."""


class Backward:
    """What is known of the gradients that no optimizer has used yet."""

    def __init__(self, steps: Any, wraps: Any) -> None:
        self.steps, self.wraps = steps, wraps
        self.scaler: Any = None
        """Weak reference to the GradScaler used last."""
        self.scaled = self.unscaled = False
        """Since the scaler's last update: a loss was scaled, gradients were unscaled."""
        self.unmultiplied: Any = None
        """Weak reference to the loss that was given to the scaler last: what it gives back is another tensor."""
        self.zeroed = False
        """zero_grad was called at least once."""
        self.loss = ""
        """How the last loss was made of its terms: "mean", "sum", or "" for anything else."""
        self.hooks: list[tuple[Any, int, list[str]]] = []
        """(weak reference to a leaf, site, names in the code) of hooks on tensors."""
        self.reduced: Any = None
        """(weak reference to a parameter, its gradient after a collective, how, site) since the last step."""
        self._owners: dict[int, Any] = {}
        self._owners_of = -1
        self._sizes: set[int] = set()
        self._losses: list[tuple[int, int, Any]] = []
        self._told = 0
        steps.before.append(self.before_step)
        steps.looks.append(self.after_step)

    # Backward

    def backward(self, tensors: Any, frame: Any) -> None:
        """Backward is about to run."""
        steps = self.steps
        steps.backwards += 1
        local = any(wrap.local() for wrap in self.wraps.living())
        loss = tensors if hasattr(tensors, "grad_fn") else tensors[0] if tensors else None
        plain = self.unmultiplied is not None and self.unmultiplied() is loss
        steps.event("backward", frame, 0, "local" if local else "unscaled" if plain else "")
        if loss is None or loss.numel() != 1:
            self.loss = ""
            return
        if steps.looking:
            self.loss = average(loss.grad_fn)
        self._remember(loss.detach(), frame)
        for entry in steps.optimizers.values():
            if entry.witness is not None:
                self._kept(entry, frame)

    def _remember(self, loss: Any, frame: Any) -> None:
        if loss.device.type == "cpu":
            if not math.isfinite(loss.item()):
                self._tell_loss(self.steps.total + 1, self.steps.site(frame), float(loss))
        elif len(self._losses) < 1024:  # looked at with the next sample: asking now would wait for the device
            self._losses.append((self.steps.total + 1, self.steps.site(frame), loss))

    def _tell_loss(self, step: int, site: int, value: float) -> None:
        self._told += 1
        if self._told <= 8:
            self.steps.tell("loss", step=step, site=site, value=str(value), scaled=self.scaled)

    def _losses_so_far(self) -> None:
        losses, self._losses = self._losses, []
        if losses:
            values = self.steps.torch.stack([v.reshape(()).float() for _, _, v in losses]).tolist()
            for (step, site, _), value in zip(losses, values):  # noqa: B905 - Python 3.8
                if not math.isfinite(value):
                    self._tell_loss(step, site, value)

    def _kept(self, entry: Any, frame: Any) -> None:
        """Whether the gradients that the last step used are still there when the next backward comes."""
        (parameter, grad, head), entry.witness = entry.witness, None
        found = parameter()
        same = found is not None and found.grad is grad() and found.grad is not None
        if self.zeroed or not same or not bool((_head(found.grad) == head).all()):
            entry.kept = -1
        elif entry.kept >= 0:
            entry.kept += 1
            if entry.kept == 3:
                self.steps.tell("kept", optimizer=entry.number, step=entry.steps, site=self.steps.site(frame))

    # Steps

    def before_step(self, entry: Any, optimizer: Any, closure: bool) -> None:
        """Tells of a step that has no gradients to use."""
        if self.scaled and not self.unscaled and not self.steps.manner:
            self.steps.manner = "scaled"
        if closure and not self.steps.manner:
            self.steps.manner = "closure"
        if closure or entry.empty >= 3:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return
        entry.empty += 1
        lost = self.wraps.orphans()
        self.steps.tell("empty", optimizer=entry.number, step=entry.steps + 1, lost=lost)

    def after_step(self, entry: Any, optimizer: Any, pattern: int) -> None:
        """At a sampled step: what the hooks noted in passing."""
        self._losses_so_far()
        if self.reduced is not None:
            self._tell_reduced(entry)
        if entry.kept >= 0 and not self.zeroed and entry.steps <= 8:
            grads = [
                p
                for g in optimizer.param_groups
                for p in g["params"]
                if p.grad is not None and p.grad.numel()
            ]
            head = (
                _head(grads[0].grad).clone()
                if grads and grads[0].grad.layout is self.steps.torch.strided
                else None
            )
            if head is not None and bool(head.any()):
                entry.witness = (weakref.ref(grads[0]), weakref.ref(grads[0].grad), head)
        self._tell_hooks()

    def _tell_reduced(self, entry: Any) -> None:
        (reference, value, how, site, whole), self.reduced = self.reduced, None
        parameter = reference()
        if parameter is None or parameter.grad is None:
            return
        ratio = None
        if value is not None:
            used = _head(parameter.grad).double()
            value = value.double()
            kept = value.abs() > 1e-30
            if bool(kept.any()):
                ratio = float((used[kept] / value[kept]).median())
        wrap = self.wraps.of(parameter)
        self.steps.tell(
            "reduced", optimizer=entry.number, step=entry.steps, wrap=wrap.number if wrap is not None else 0, how=how,
            ratio=ratio, loss=self.loss, site=site, whole=whole,
        )  # fmt: skip

    def _tell_hooks(self) -> None:
        hooks, self.hooks = self.hooks, []
        seen: dict[int, tuple[int, list[str]]] = {}
        for reference, site, names in hooks:
            parameter = reference()
            wrap = self.wraps.of(parameter) if parameter is not None else None
            if wrap is not None:
                seen[site] = (wrap.number, names)
        for site, (number, names) in seen.items():
            self.steps.tell("hooked", wrap=number, site=site, names=names)

    # Collectives on gradients

    def collective(self, tensor: Any, op: Any, asynchronous: bool, frame: Any) -> None:
        """An all_reduce of the user's is done, perhaps on a gradient."""
        if not self.steps.looking or not hasattr(tensor, "data_ptr") or tensor.numel() == 0:
            return
        if self._owners_of != self.steps.backwards:
            self._index()
        parameter = self._owners.get(tensor.data_ptr())
        whole = parameter is None and tensor.numel() in self._sizes and tensor.dim() == 1
        if whole and any(wrap.hooked for wrap in self.wraps.living()):
            return  # a bucket that DDP hands to its hook
        if parameter is None and not whole:
            return
        how = str(op).rpartition(".")[2] or "SUM"
        number = self.steps.event("reduce", frame, 0, how)
        if parameter is not None and number and (self.reduced is None or self.reduced[4]):
            value = None if asynchronous else _head(tensor.detach()).clone()
            self.reduced = (weakref.ref(parameter), value, how, self.steps.site(frame), False)
        elif whole and self.reduced is None and self._owners:
            self.reduced = (
                weakref.ref(next(iter(self._owners.values()))),
                None,
                how,
                self.steps.site(frame),
                True,
            )

    def _index(self) -> None:
        """Which gradient lies where, once per backward."""
        self._owners_of = self.steps.backwards
        self._owners, self._sizes = {}, set()
        for optimizer in self.steps.living():
            total = 0
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    grad = parameter.grad
                    if (
                        grad is not None
                        and grad.layout is self.steps.torch.strided
                        and hasattr(grad, "data_ptr")
                    ):
                        self._owners[grad.data_ptr()] = parameter
                        total += grad.numel()
            if total > 64:
                self._sizes.add(total)


def _head(tensor: Any) -> Any:
    """The first few elements, detached."""
    return (
        tensor.detach().reshape(-1)[:WITNESS]
        if tensor.is_contiguous()
        else tensor.detach().flatten()[:WITNESS]
    )


def average(function: Any, depth: int = 8) -> str:
    """How a loss was made of its terms, from the functions of its graph: "mean" or "sum" where that is certain."""
    while function is not None and depth:
        name = function.name()
        if name.startswith(("ToCopyBackward", "ViewBackward", "AliasBackward")):
            function, depth = function.next_functions[0][0], depth - 1
            continue
        if name.startswith("AddBackward"):
            kinds = {average(f, depth - 1) for f, _ in function.next_functions if f is not None}
            return kinds.pop() if len(kinds) == 1 else ""
        if name.startswith("MeanBackward"):
            return "mean"
        if name.startswith("SumBackward"):
            return "sum"
        return {1: "mean", 2: "sum"}.get(getattr(function, "_saved_reduction", 0), "")
    return ""


def names_in(function: Any) -> list[str]:
    """The names that a function's code uses, those of the functions it calls included."""
    function = getattr(function, "func", function)  # partial
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    names: list[str] = []
    code = getattr(function, "__code__", None)
    codes = [code] if code is not None else []
    if code is not None:
        for name in code.co_names:
            other: Any = getattr(function, "__globals__", {}).get(name)
            if hasattr(other, "__code__") and stack.describe(other.__code__).owner == stack.USER:
                codes.append(other.__code__)
    for one in codes:
        names += [n for n in one.co_names if n not in names]
        codes += [c for c in one.co_consts if hasattr(c, "co_names") and len(codes) < 20]
    return names[:100]


# Where the hooks sit


def noting(guest: Any, note: Any, original: Any, *, after: bool = False) -> Any:
    """`original` with `note(args, kwargs, frame)` before or after it; an error of ours stays ours."""
    torch = sys.modules["torch"]

    @stack.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if not after:
            try:
                note(args, kwargs, sys._getframe(1))
            except Exception as error:
                guest.failed(error)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            note(args, kwargs, sys._getframe(1))
        except Exception as error:
            guest.failed(error)
        return result

    return noted


def wrap_autograd(guest: Any, backward: Backward, module: Any) -> None:
    """`torch.autograd.backward`, which Tensor.backward calls, and `torch.autograd.grad`."""
    steps = backward.steps

    def run(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live():
            backward.backward(kwargs.get("tensors", args[0] if args else None), frame)

    def grad(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live() and not (kwargs.get("create_graph") or len(args) > 4):
            steps.event("grad", frame)

    module.backward = noting(guest, run, module.backward)
    module.grad = noting(guest, grad, module.grad)


def wrap_clip(guest: Any, backward: Backward, module: Any) -> None:
    """`clip_grad_norm_`, `clip_grad_value_`."""
    steps = backward.steps

    def clip(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live():
            steps.event("clip", frame, 0, "scaled" if backward.scaled and not backward.unscaled else "")

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(module, name, noting(guest, clip, getattr(module, name)))


def wrap_collective(guest: Any, backward: Backward, c10d: Any) -> None:
    """`all_reduce`, as the user calls it."""

    def reduce(args: Any, kwargs: Any, frame: Any) -> None:
        if backward.steps.live():
            op = kwargs.get("op", args[1] if len(args) > 1 else "SUM")
            tensor = kwargs.get("tensor", args[0] if args else None)
            backward.collective(tensor, op, bool(kwargs.get("async_op", len(args) > 3 and args[3])), frame)

    c10d.all_reduce = noting(guest, reduce, c10d.all_reduce, after=True)


def wrap_hooks(guest: Any, backward: Backward, module: Any) -> None:
    """`Tensor.register_hook` on leaves: it runs before DDP reduces."""

    def register(args: Any, kwargs: Any, frame: Any) -> None:
        tensor = args[0]
        if guest.recorder is None or not (tensor.is_leaf and tensor.requires_grad):
            return
        if len(backward.hooks) < HOOKS and stack.describe(frame.f_code).owner != stack.TORCH:
            hook = kwargs.get("hook", args[1] if len(args) > 1 else None)
            backward.hooks.append((weakref.ref(tensor), backward.steps.site(frame), names_in(hook)))

    module.Tensor.register_hook = noting(guest, register, module.Tensor.register_hook)
