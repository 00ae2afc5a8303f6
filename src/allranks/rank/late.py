"""Hooks that wait for their module: nothing is imported for the guest's sake."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Hook = Callable[[Any], None]


class _Finder:
    """First on `sys.meta_path`: lets the others find a module, and looks at it once it has run."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module that is waited for, its loader wrapped; None for all others."""
        hook = self.hooks.get(name)
        if hook is None or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, hook)
                    return spec
            return None
        finally:
            self._busy.discard(name)


class _Loader:
    """Runs a module by its own loader, then the hook, and leaves no trace on the module."""

    def __init__(self, loader: Any, hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: Any) -> Any:
        """As the real loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Runs the module, then the hook on it."""
        module.__loader__ = self._loader
        if getattr(module, "__spec__", None) is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install(guest: Any) -> None:
    """Watches for the modules that the guest hooks into."""
    from . import children, failure, observe, silent

    failures = guest.failures = failure.Failures(guest)
    wanted: dict[str, Hook] = {
        "torch.distributed.distributed_c10d": lambda module: _distributed(guest, module),
        "torch._dynamo.eval_frame": lambda module: hide(),
        "torch.nn.parallel.distributed": lambda module: failure.wrap_ddp(failures, module),
        "torch.utils.data.dataloader": lambda module: _loaders(guest, module),
        "torch.multiprocessing.spawn": lambda module: failure.wrap_spawn(failures, module),
        "multiprocessing.process": lambda module: failure.wrap_process(failures, module),
        "logging": lambda module: failure.wrap_logging(failures, module),
        "traceback": lambda module: failure.wrap_traceback(failures, module),
        "argparse": lambda module: failure.wrap_argparse(failures, module),
        "subprocess": lambda module: children.wrap_subprocess(guest, module),
        "torch.distributed.elastic.multiprocessing.api": lambda module: children.wrap_agent(guest, module),
        "multiprocessing.popen_fork": lambda module: children.wrap_popen_fork(guest, module),
    }
    hooks = {name: _guarded(guest, function) for name, function in wanted.items()}
    for name, function in [*silent.Silent(guest).hooks().items(), *observe.hooks(guest).items()]:
        hooks[name] = _both(hooks.get(name), _guarded(guest, function))
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _Finder(hooks))
    os.register_at_fork(after_in_child=guest.forked)
    if "RANK" in os.environ:
        guest.connect()


def _guarded(guest: Any, function: Hook) -> Hook:
    def hook(module: Any) -> None:
        if guest.off:
            return
        try:
            function(module)
        except Exception as error:
            guest.failed(error)

    return hook


def _both(one: Hook | None, other: Hook) -> Hook:
    def hook(module: Any) -> None:
        if one is not None:
            one(module)
        other(module)

    return hook


def hide() -> None:
    """Keeps torch.compile from compiling the guest's own functions: a kernel called from C++ is a frame like any
    other to it. Called when either of the two has come."""
    homes = ("torch._dynamo.eval_frame", "torch._C._dynamo.eval_frame")  # it moved between versions
    skips: list[Any] = [getattr(sys.modules.get(name), "skip_code", None) for name in homes]
    skip = skips[0] or skips[1]
    if skip is None:
        return
    package = __name__.rpartition(".")[0] + "."
    mine = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith(package)
        for value in list(vars(module).values())
        if getattr(value, "__module__", "") == name
    ]
    mine += [method for value in mine if isinstance(value, type) for method in list(vars(value).values())]
    todo = [value.__code__ for value in mine if hasattr(value, "__code__")]
    while todo:
        code = todo.pop()
        skip(code)
        todo += [inner for inner in code.co_consts if hasattr(inner, "co_code")]


def _loaders(guest: Any, module: Any) -> None:
    from . import loaders

    loaders.wrap(guest, module)


def _distributed(guest: Any, c10d: Any) -> None:
    """torch.distributed is there: this process may be a rank."""
    from . import hook, method, observe, setup

    if not guest.connect():
        return
    torch = sys.modules["torch"]
    guest.torch, guest.c10d = torch, c10d
    guest.send("torch", str(getattr(torch, "__version__", "") or sys.modules["torch.version"].__version__))
    # One by one: a torch that has changed in one place is still seen in the others.
    _guarded(guest, lambda module: setup.wrap(guest, module))(c10d)
    _guarded(guest, lambda module: hook.wrap(guest, module))(c10d)
    _guarded(guest, lambda module: method.wrap(guest, torch, module))(c10d)
    if "RANK" in os.environ:
        guest.listen()
        observe.begin(guest)  # logs and configurations are often written before the group is made
