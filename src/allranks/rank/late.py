"""Hooks that wait for their module: nothing is imported for the guest's sake."""

from __future__ import annotations

import os
import sys


class _Finder:
    """First on `sys.meta_path`: lets the others find a module, and looks at it once it has run."""

    def __init__(self, hooks: dict) -> None:
        self.hooks = hooks
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        """The spec of a module that is waited for, its loader wrapped; None for all others."""
        hook = self.hooks.get(name)
        if hook is None or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, hook)
                    return spec
            return None
        finally:
            self._busy.discard(name)


class _Loader:
    """Runs a module by its own loader, then the hook, and leaves no trace on the module."""

    def __init__(self, loader, hook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec):
        """As the real loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        """Runs the module, then the hook on it."""
        module.__loader__ = self._loader
        if getattr(module, "__spec__", None) is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def install(guest) -> None:
    """Watches for the modules that the guest hooks into."""
    from . import children

    def guarded(function):
        def hook(module) -> None:
            if guest.off:
                return
            try:
                function(module)
            except Exception as error:
                guest.failed(error)

        return hook

    hooks = {
        "torch.distributed.distributed_c10d": lambda module: _distributed(guest, module),
        "torch.utils.data.dataloader": lambda module: _loaders(guest, module),
        "torch.multiprocessing.spawn": lambda module: _failures(guest).wrap_spawn(guest.failures, module),
        "multiprocessing.process": lambda module: _failures(guest).wrap_process(guest.failures, module),
        "logging": lambda module: _failures(guest).wrap_logging(guest.failures, module),
        "traceback": lambda module: _failures(guest).wrap_traceback(guest.failures, module),
        "argparse": lambda module: _failures(guest).wrap_argparse(guest.failures, module),
        "subprocess": lambda module: children.wrap_subprocess(guest, module),
        "multiprocessing.popen_fork": lambda module: children.wrap_popen_fork(guest, module),
    }
    hooks = {name: guarded(function) for name, function in hooks.items()}
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _Finder(hooks))
    os.register_at_fork(after_in_child=guest.forked)
    if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
        guest.connect()


def _failures(guest):
    from . import failure

    if guest.failures is None:
        guest.failures = failure.Failures(guest)
    return failure


def _loaders(guest, module) -> None:
    from . import loaders

    loaders.wrap(guest, module)


def _distributed(guest, c10d) -> None:
    """torch.distributed is there: this process may be a rank."""
    from . import hook, setup

    torch = sys.modules["torch"]
    if not guest.connect():
        return
    guest.c10d = c10d
    failure = _failures(guest)
    version = getattr(torch, "__version__", None) or sys.modules["torch.version"].__version__
    guest.send("torch", str(version))
    guest.hooks = hook.Hooks(guest, c10d)
    guest.hooks.wrap_all()
    setup.wrap(guest, c10d)
    setup.wrap_stores(c10d.Store)
    if "RANK" in os.environ:
        guest.listen()
    if not failure.monitor(guest.failures) and sys.version_info >= (3, 12):
        guest.send("blind", "handled", "no free tool id of sys.monitoring")
