"""DDP models: when and over what each was built, what became of its parameters since, and who went around it."""

from __future__ import annotations

import sys
import weakref

from . import stack
from .backward import noting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = 20
"""Names that one observation lists."""


class Wrap:
    """One DistributedDataParallel and its parameters as they were when it was built."""

    def __init__(self, ddp: Any, number: int) -> None:
        self.ref: Any = weakref.ref(ddp)
        self._inner: Any = weakref.ref(ddp.module)
        self.number = number
        ignored = getattr(ddp, "parameters_to_ignore", None) or set()
        self.before = {
            name: (id(p), p.requires_grad, str(p.dtype), str(p.device))
            for name, p in ddp.module.named_parameters()
            if name not in ignored
        }
        self.ids = {row[0]: name for name, row in self.before.items()}
        self.told: set[str] = set()
        self.forwards = self.seen = 0
        """Forwards that prepared a backward: all, and those until the last sample."""
        self.armed = self.hooked = False
        """Waiting for a call that goes around DDP; with a communication hook of its own."""

    def inner(self) -> Any:
        """The module inside; one without members once it is gone, which the garbage collector decides at any time."""
        found = self._inner()
        return found if found is not None else sys.modules["torch"].nn.Module()

    def local(self) -> bool:
        """True inside no_sync."""
        ddp = self.ref()
        return ddp is not None and not ddp.require_backward_grad_sync

    def joined(self) -> bool:
        """True once the model was in `join()`: its ranks make different numbers of steps, so that steps of one number
        are not one step."""
        config = getattr(self.ref(), "_join_config", None)
        return bool(getattr(config, "enable", False))

    def kinds(self) -> set[tuple[str, str]]:
        """The types and devices of the parameters now."""
        return {(str(p.dtype), str(p.device)) for p in self.inner().parameters()}


class Wraps:
    """All DDP models of the process, and the modules that are trained without one."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps
        self.wraps: list[Wrap] = []
        self.roots: dict[int, Any] = {}
        """Weak references to modules whose parameters were asked for: where optimizers get theirs."""
        self.norms: dict[int, int] = {}
        """id of a batch normalisation in training -> samples of its last batch."""
        self.statistics: list[Any] = []
        """Weak references to batch normalisations that keep running statistics, in the order of their first forward."""
        self.ddp_code: Any = None
        """The code of DDP's forward, by which it is found on the stack."""
        self._moving = False
        steps.looks.append(self.look)
        steps.guest.failures.at_end.append(self.changes)

    def living(self) -> list[Wrap]:
        """The wraps whose DDP still exists."""
        return [wrap for wrap in self.wraps if wrap.ref() is not None]

    def of(self, parameter: Any) -> Wrap | None:
        """The wrap that holds a parameter, the newest first."""
        for wrap in reversed(self.wraps):
            if id(parameter) in wrap.ids and wrap.ref() is not None:
                return wrap
        return None

    def uneven(self, number: int) -> bool:
        """True when the wrap of this number was in `join()`."""
        return any(wrap.number == number and wrap.joined() for wrap in self.wraps)

    def around(self, module: Any) -> Wrap | None:
        """The wrap that a module belongs to, or that belongs to it."""
        for wrap in reversed(self.living()):
            ddp, inner = wrap.ref(), wrap.inner()
            if (
                module is ddp
                or any(m is module for m in inner.modules())
                or any(m is ddp for m in module.modules())
            ):
                return wrap
        return None

    # What hooks report

    def wrapped(self, ddp: Any, frame: Any) -> None:
        """A DDP is built."""
        steps = self.steps
        wrap = Wrap(ddp, len(self.wraps) + 1)
        self.wraps.append(wrap)
        group = steps.guest.recorder.group(ddp.process_group, steps.guest.c10d)
        steps.tell(
            "wrap", number=wrap.number, site=steps.site(frame), name=type(ddp.module).__name__, ranks=list(group.ranks),
            find_unused=bool(ddp.find_unused_parameters), static=bool(getattr(ddp, "static_graph", False)),
            buffers=_syncs_buffers(ddp), count=len(wrap.before), step=steps.total,
        )  # fmt: skip

    def forward(self, ddp: Any, frame: Any) -> None:
        """A DDP's forward runs; with gradients it prepares the reduction."""
        if not self.steps.torch.is_grad_enabled():
            return
        for wrap in self.wraps:
            if wrap.ref() is ddp:
                wrap.forwards += 1
                self.steps.event(
                    "forward", frame, wrap.number, "sync" if ddp.require_backward_grad_sync else "local"
                )

    def moved(self, original: Any, module: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        """`Module._apply` of any module: tells when it changes what a DDP was built over."""
        if self._moving or not self.wraps:
            return original(module, *args, **kwargs)
        self._moving = True
        try:
            wrap = self.around(module)
            before = wrap.kinds() if wrap is not None else None
            result = original(module, *args, **kwargs)
        finally:
            self._moving = False
        if wrap is not None and wrap.kinds() != before:
            self.steps.tell(
                "moved", wrap=wrap.number, step=self.steps.total, site=self.steps.site(frame), before=_shown(before),
                after=_shown(wrap.kinds()), forwards=wrap.forwards,
            )  # fmt: skip
        return result

    def registered(self, module: Any, name: str, value: Any, frame: Any) -> None:
        """A parameter or a submodule is set on a module."""
        for wrap in self.living():
            inner = wrap.inner()
            if value is not None and any(m is module for m in inner.modules()):
                self.steps.tell("registered", wrap=wrap.number, name=name, site=self.steps.site(frame))

    def note(self, module: Any) -> None:
        """Someone asks a module for its parameters."""
        if id(module) not in self.roots and len(self.roots) < 256:
            self.roots[id(module)] = weakref.ref(module)

    def normed(self, layer: Any, batch: int) -> None:
        """A batch normalisation in training runs over so many samples."""
        if id(layer) not in self.norms and getattr(layer, "running_mean", None) is not None:
            self.statistics.append(weakref.ref(layer))
        self.norms[id(layer)] = batch

    def own_statistics(self) -> list[Any]:
        """The batch normalisations whose running statistics no DDP takes over from rank 0."""
        synced = {
            id(m)
            for wrap in self.living() if _syncs_buffers(wrap.ref())
            for m in wrap.inner().modules()
        }  # fmt: skip
        layers = [reference() for reference in self.statistics]
        return [m for m in layers if m is not None and m.running_mean is not None and id(m) not in synced]

    # What samples show

    def look(self, entry: Any, optimizer: Any, pattern: int) -> None:
        """At a sampled step: whether the models are still what DDP was built over, and were reached through it."""
        trained = {id(p) for g in optimizer.param_groups for p in g["params"]}
        for wrap in self.living():
            if not trained.isdisjoint(wrap.ids):
                self._changes(wrap)
                self._around(wrap)
                self._unused(wrap, entry)
                if entry.steps in (2, 4):
                    self._left_out(wrap, entry)
                    self._unregistered(wrap.inner(), wrap.number)
                    self._norms(wrap)

    def changes(self) -> None:
        """Whether the models are still what DDP was built over: asked anew when an error ends the program."""
        for wrap in self.living():
            self._changes(wrap)

    def _changes(self, wrap: Wrap) -> None:
        now = dict(wrap.inner().named_parameters())
        found: dict[str, list[str]] = {}
        for name, p in now.items():
            old = wrap.before.get(name)
            if old is None:
                ignored = getattr(wrap.ref(), "parameters_to_ignore", None) or ()
                how = "added" if p.requires_grad and name not in ignored else ""
            elif old[0] != id(p):
                how = "replaced"
            else:
                how = "" if old[1] == p.requires_grad else "unfrozen" if p.requires_grad else "frozen"
            if how:
                found.setdefault(how, []).append(name)
        for how, names in found.items():
            if how not in wrap.told:
                wrap.told.add(how)
                self.steps.tell(
                    "changed",
                    wrap=wrap.number,
                    how=how,
                    names=names[:NAMES],
                    count=len(names),
                    step=self.steps.total,
                )

    def _around(self, wrap: Wrap) -> None:
        """Gradients without a forward through DDP: the next call of an inner module shows where they come from."""
        bypassed = wrap.forwards == wrap.seen and any(p.grad is not None for p in wrap.inner().parameters())
        wrap.seen = wrap.forwards
        if bypassed and not wrap.armed and "bypass" not in wrap.told:
            wrap.armed = True
            _arm(self, wrap)

    def bypass(self, wrap: Wrap, frame: Any) -> None:
        """An inner module is called outside DDP's forward."""
        wrap.armed = False
        wrap.told.add("bypass")
        inner = wrap.inner()
        members = {id(m) for m in inner.modules()}
        entered = frame
        while frame is not None:
            code = frame.f_code
            if code.co_argcount and stack.describe(code).owner != stack.GUEST:
                values = frame.f_locals
                mine = id(values.get(code.co_varnames[0])) in members
                stack.release(frame, values)
                if mine:
                    entered = frame.f_back
            frame = frame.f_back
        self.steps.tell("bypass", wrap=wrap.number, site=self.steps.site(entered), step=self.steps.total)

    def _unused(self, wrap: Wrap, entry: Any) -> None:
        ddp = wrap.ref()
        if not ddp.find_unused_parameters:
            return
        data = ddp._get_ddp_logging_data()
        if "unused_parameter_size" not in data:  # nothing measured yet
            return
        self.steps.tell(
            "unused", wrap=wrap.number, step=entry.steps, bytes=int(data["unused_parameter_size"]),
            none=len([p for p in wrap.inner().parameters() if p.requires_grad and p.grad is None]),
        )  # fmt: skip

    def _left_out(self, wrap: Wrap, entry: Any) -> None:
        held = {id(p) for o in self.steps.living() for g in o.param_groups for p in g["params"]}
        trained = {n: p for n, p in wrap.inner().named_parameters() if p.requires_grad and p.grad is not None}
        out = [n for n, p in trained.items() if id(p) not in held]
        if out and "left out" not in wrap.told:
            wrap.told.add("left out")
            tops: dict[str, list[bool]] = {}
            for name in trained:
                tops.setdefault(name.partition(".")[0], []).append(name in out)
            self.steps.tell(
                "left_out", wrap=wrap.number, optimizer=entry.number, names=out[:NAMES], count=len(out),
                of=len(trained), elements=sum(trained[n].numel() for n in out),
                of_elements=sum(p.numel() for p in trained.values()),
                whole=[top for top, flags in tops.items() if all(flags)], strangers=self._strangers(entry.ref()),
            )  # fmt: skip

    def _strangers(self, optimizer: Any) -> int:
        """Parameters of an optimizer that get no gradient though they want one, and belong to no model seen here."""
        models = [reference() for reference in self.roots.values()]
        ours = {id(p) for model in models if model is not None for p in model.parameters()}
        ours.update(id(p) for wrap in self.living() for p in wrap.inner().parameters())
        held = [p for group in optimizer.param_groups for p in group["params"]]
        return sum(p.grad is None and p.requires_grad and id(p) not in ours for p in held)

    def orphans(self) -> int:
        """Parameters of DDP models that have a gradient and no optimizer."""
        held = {id(p) for o in self.steps.living() for g in o.param_groups for p in g["params"]}
        return sum(
            len([p for p in wrap.inner().parameters() if p.grad is not None and id(p) not in held])
            for wrap in self.living()
        )

    def _unregistered(self, root: Any, number: int) -> None:
        known = {id(p) for p in root.parameters()}
        for module in root.modules():
            for name, value in list(vars(module).items()):
                if name not in ("_parameters", "_buffers", "_modules"):
                    lost = [
                        p
                        for p in _leaves(self.steps.torch, value)
                        if id(p) not in known and p.grad is not None
                    ]
                    if lost:
                        kind = type(module)
                        self.steps.tell(
                            "unregistered", wrap=number, owner=kind.__qualname__, attribute=name, count=len(lost),
                            file=getattr(sys.modules.get(kind.__module__), "__file__", None) or "",
                            modules=not isinstance(value, self.steps.torch.Tensor),
                        )  # fmt: skip

    def _norms(self, wrap: Wrap) -> None:
        kinds = self.steps.torch.nn.modules.batchnorm
        members = [
            m for m in wrap.inner().modules() if id(m) in self.norms and type(m) is not kinds.SyncBatchNorm
        ]
        if members and "norms" not in wrap.told:
            wrap.told.add("norms")
            self.steps.tell(
                "norms", wrap=wrap.number, count=len(members), name=type(members[0]).__name__,
                batch=max(self.norms[id(m)] for m in members),
            )  # fmt: skip


def _syncs_buffers(ddp: Any) -> bool:
    """True where every forward takes the buffers over from rank 0; the flag has another name since torch 2.13."""
    return bool(getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True)))


def _shown(kinds: Any) -> list[str]:
    return sorted(" ".join(pair).replace("torch.", "") for pair in kinds or ())


def _leaves(torch: Any, value: Any, depth: int = 3) -> list[Any]:
    """The leaf tensors that want gradients in a plain tensor, in plain modules, or in lists and dicts of them."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_leaf and value.requires_grad else []
    if isinstance(value, torch.nn.Module):
        return [p for p in value.parameters() if p.requires_grad]
    if depth and type(value) in (list, tuple, dict, set) and len(value) <= 10000:
        found = []
        for one in list(value.values() if type(value) is dict else value):
            found += _leaves(torch, one, depth - 1)
        return found
    return []


def _arm(wraps: Wraps, wrap: Wrap) -> None:
    """Watches the classes of a wrap's inner modules until one is called outside DDP's forward."""
    torch, guest = wraps.steps.torch, wraps.steps.guest
    members = {id(m) for m in wrap.inner().modules()}
    classes = {type(m) for m in wrap.inner().modules()}
    own = {kind: kind.__dict__.get("__call__") for kind in classes}
    ddp_code = wraps.ddp_code

    def disarm() -> None:
        for kind, call in own.items():
            if call is not None:
                kind.__call__ = call
            elif "__call__" in kind.__dict__:
                del kind.__call__

    def watch(kind: Any) -> None:
        original = kind.__call__

        @stack.wraps(original)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if (
                    wrap.armed
                    and id(self) in members
                    and torch.is_grad_enabled()
                    and not torch.compiler.is_compiling()
                ):
                    frame = sys._getframe(1)
                    if not _within(frame, ddp_code):
                        disarm()
                        wraps.bypass(wrap, frame)
            except Exception as error:
                guest.failed(error)
            return original(self, *args, **kwargs)

        kind.__call__ = watched

    for kind in classes:
        watch(kind)


def _within(frame: Any, code: Any) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


# Where the hooks sit


def wrap_ddp(guest: Any, wraps: Wraps, module: Any) -> None:
    """`DistributedDataParallel`."""
    ddp, steps = module.DistributedDataParallel, wraps.steps
    function = ddp.forward
    wraps.ddp_code = getattr(function, "__wrapped__", function).__code__

    def made(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live():
            wraps.wrapped(args[0], frame)

    def forward(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live():
            wraps.forward(args[0], frame)

    def no_sync(args: Any, kwargs: Any, frame: Any) -> None:
        if steps.live():
            steps.event("no_sync", frame)

    def hook(args: Any, kwargs: Any, frame: Any) -> None:
        wrap = next((w for w in wraps.wraps if w.ref() is args[0]), None)
        if wrap is not None:
            wrap.hooked = True
            given = kwargs.get("hook", args[2] if len(args) > 2 else None)
            code = getattr(given, "__code__", None)
            file, line = (stack.describe(code).path, code.co_firstlineno) if code is not None else ("", 0)
            home = getattr(given, "__module__", "") or ""
            steps.tell("comm_hook", wrap=wrap.number, home=home, file=file, line=line, site=steps.site(frame))

    ddp.__init__ = noting(guest, made, ddp.__init__, after=True)
    ddp.forward = noting(guest, forward, ddp.forward)
    ddp.no_sync = noting(guest, no_sync, ddp.no_sync)
    ddp.register_comm_hook = noting(guest, hook, ddp.register_comm_hook)
