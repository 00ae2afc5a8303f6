"""Files that a rank writes, and those that it reads while the job writes them; checkpoints and their keys.

`open` is seen by an audit hook, which nothing that opens files in Python gets around; torch.save, torch.load and
safetensors, which open theirs in other languages, by wrappers. Only what is the user's counts: not what lies in an
installation, a cache of compiled code or a device, and what is written under a lock is in order.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from . import stack
from .observe import after, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WRITES = 600
"""Files opened for writing that are told; of one file the first few."""
AGAIN = 3
READS = 4096
"""Files opened for reading that are looked at."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
SYSTEM = ("/dev/", "/proc/", "/sys/", "/run/")
SKIPPED = (
    "/__pycache__/", "/site-packages/", "/dist-packages/", "/torchinductor_",
    "/.triton/", "/.nv/", "/.cache/matplotlib", "/.git/", "/pymp-", "/torch_extensions/", "/wandb/", "/mlruns/",
)  # fmt: skip
"""Parts of paths that are nobody's results; the last two belong to programs that name their files per process."""
LOCKS = (".lock", ".lck", ".pid", ".sock")
PREFIXES = ("module.", "_orig_mod.", "model.", "_fsdp_wrapped_module.")

_here = threading.local()


class Files:
    """What the audit hook of one process remembers."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self.torch_folder = (
            os.path.dirname(os.path.abspath(getattr(guest.torch, "__file__", "") or "/-")) + os.sep
        )
        self.skipped = tuple(
            os.path.abspath(p) + os.sep
            for p in {sys.prefix, sys.base_prefix, os.path.dirname(guest.address or "/-/-")}
            if len(p) > 1
        )
        self.skipped += SYSTEM
        self.written: dict[Any, int] = {}
        self.read: set[str] = set()
        self.locks = 0
        self.told = 0

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        """A file is about to be opened."""
        if type(path) is not str:
            if not isinstance(path, os.PathLike):
                return
            path = os.fspath(path)
            if not isinstance(path, str):
                return
        if any(c in mode for c in "wax+") if isinstance(mode, str) else flags & WRITING:
            self.writes(
                path, sys._getframe(2), mode if isinstance(mode, str) else "a" if flags & os.O_APPEND else "w"
            )
        elif len(self.read) < READS and path not in self.read:
            self.read.add(path)
            self.reads(path)

    def ours(self, path: str) -> str:
        """The absolute path of a file that is the user's; "" for others."""
        full = os.path.abspath(path)
        if full.startswith(self.skipped) or any(part in full for part in SKIPPED) or full.endswith(LOCKS):
            return ""
        return full

    def writes(self, path: str, frame: Any, mode: str, via: str = "open", **more: Any) -> None:
        """Tells of a file that is written."""
        if self.told >= WRITES or self.locks:
            return
        full = self.ours(path)
        if not full:
            return
        key = (full, via, stack.site_key(frame, 4))
        seen = self.written[key] = self.written.get(key, 0) + 1
        if seen > AGAIN and seen & (seen - 1):
            return
        self.told += 1
        tell(
            self.guest,
            "write",
            frame,
            {"path": os.path.realpath(full), "mode": mode, "via": via, "count": seen, **more},
        )

    def reads(self, path: str) -> None:
        """Tells of a file that is read and has changed since the job began."""
        if path.endswith((".py", ".pyc", ".so")) or not self.ours(path):
            return
        try:
            changed = os.stat(path).st_mtime_ns
        except OSError:
            return
        if changed >= self.guest.started_ns - 60_000_000_000:
            row = {"path": os.path.realpath(path), "via": "open"}
            tell(self.guest, "read", sys._getframe(3), row)


def watch(guest: Any) -> None:
    """Looks at every file that this process opens from now on."""
    if getattr(guest, "files", None) is not None:
        return
    files = guest.files = Files(guest)

    def audit(event: str, args: Any) -> None:
        if event == "open":
            if guest.sink is None or guest.off or getattr(_here, "busy", False):
                return
            _here.busy = True
            try:
                files.opened(*args)
            except Exception as error:
                guest.failed(error)
            finally:
                _here.busy = False
        elif event in ("fcntl.flock", "fcntl.lockf"):
            files.locks = max(0, files.locks + (-1 if args[1] & 8 else 1))  # 8: LOCK_UN

    sys.addaudithook(audit)


def _named(file: Any) -> str:
    """The path of what torch.save and torch.load take; "" for a buffer."""
    if isinstance(file, (str, os.PathLike)):
        return str(os.fspath(file))
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else ""


def wrap_torch(guest: Any, module: Any) -> None:
    """Hooks into `torch.serialization`."""
    module.save = _saving(guest, module.save, "torch.save", 1)
    module.load = _loading(guest, module.load)


def wrap_safetensors(guest: Any, module: Any) -> None:
    """Hooks into `safetensors.torch`."""
    module.save_file = _saving(guest, module.save_file, "safetensors", 1)


def _saving(guest: Any, function: Any, via: str, place: int) -> Any:
    @stack.wraps(function)
    def saving_call(*args: Any, **kwargs: Any) -> Any:
        began = time.time_ns()
        result = function(*args, **kwargs)
        try:
            files = getattr(guest, "files", None)
            if files is not None and guest.sink is not None:
                path = _named(args[place] if len(args) > place else kwargs.get("f", kwargs.get("filename")))
                if path:
                    files.writes(path, sys._getframe(1), "w", via, time=began, end=time.time_ns())
        except Exception as error:
            guest.failed(error)
        return result

    return saving_call


def _loading(guest: Any, function: Any) -> Any:
    @stack.wraps(function)
    def loading_call(*args: Any, **kwargs: Any) -> Any:
        path, began, result = "", time.time_ns(), None
        try:
            path = _named(args[0] if args else kwargs.get("f"))
            result = function(*args, **kwargs)
            return result
        finally:
            try:
                files = getattr(guest, "files", None)
                if files is not None and path and files.ours(path):
                    given = (args[1] if len(args) > 1 else kwargs.get("map_location")) is not None
                    row = {
                        "path": os.path.realpath(path),
                        "via": "torch.load",
                        "time": began,
                        "mapped": given,
                        "devices": devices(guest.torch, result),
                        "device": current(guest.torch),
                    }
                    tell(guest, "read", sys._getframe(1), row)
            except Exception as error:
                guest.failed(error)

    return loading_call


def devices(torch: Any, value: Any) -> list[int]:
    """The accelerators on which the tensors of a checkpoint lie."""
    found: set[int] = set()
    todo, seen = [value], 0
    while todo and seen < 2000:
        one = todo.pop()
        seen += 1
        if isinstance(one, torch.Tensor):
            if one.device.type not in ("cpu", "meta") and one.device.index is not None:
                found.add(one.device.index)
        elif isinstance(one, dict):
            todo += list(one.values())[:500]
        elif isinstance(one, (list, tuple)):
            todo += one[:500]
    return sorted(found)


def current(torch: Any) -> int | None:
    """The current CUDA device, where the program has initialised CUDA itself."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "_initialized", False):
        return None
    return int(cuda.current_device())


def wrap_module(guest: Any, module: Any) -> None:
    """Hooks into `torch.nn.modules.module`: keys that a non-strict load_state_dict let pass."""

    def loaded(result: Any, args: Any, kwargs: Any, frame: Any) -> None:
        missing, unexpected = getattr(result, "missing_keys", None), getattr(result, "unexpected_keys", None)
        if not missing or not unexpected:
            return
        row = prefixed(missing, unexpected)
        if row is not None:
            tell(guest, "keys", frame, row)

    module.Module.load_state_dict = after(guest, module.Module.load_state_dict, loaded)


def prefixed(missing: list[str], unexpected: list[str]) -> dict[str, Any] | None:
    """The prefix that tells the keys of a file from those of a model, where it is all that does."""
    for prefix in PREFIXES:
        if {prefix + key for key in missing} & set(unexpected):
            both, side = {prefix + key for key in missing} & set(unexpected), "file"
        elif {prefix + key for key in unexpected} & set(missing):
            both, side = {prefix + key for key in unexpected} & set(missing), "model"
        else:
            continue
        return {"prefix": prefix, "in": side, "count": len(both), "of": len(missing)}
    return None


def wrap_events(guest: Any, module: Any) -> None:
    """Hooks into TensorBoard's writers: each process has a file of its own in a folder that is one log."""

    def made(result: Any, args: Any, kwargs: Any, frame: Any) -> None:
        writer = args[0]
        folder = str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", None) or "")
        given = len(args) > 1 or "log_dir" in kwargs or "logdir" in kwargs
        if folder:
            row = {"path": os.path.realpath(folder), "mode": "a", "via": "events", "given": given}
            tell(guest, "write", frame, row)

    module.SummaryWriter.__init__ = after(guest, module.SummaryWriter.__init__, made)
