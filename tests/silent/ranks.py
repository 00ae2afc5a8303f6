"""Runs programs of `programs.py` on two ranks in one pair of processes, with the guest's hooks on torch, and writes
what each rank would have told the host. Run as `python ranks.py RANK FOLDER NAME...`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from allranks.rank import failure, record
from allranks.rank.silent import Silent


class Guest:
    """As much of the real guest as the hooks use; keeps what is sent."""

    def __init__(self) -> None:
        self.off = False
        self.torch, self.c10d = torch, c10d
        self.sent: list[tuple[Any, ...]] = []
        self.errors: list[str] = []
        self.recorder = record.Recorder(self.send, None)
        self.failures = failure.Failures(self)

    def send(self, *message: Any) -> None:
        self.sent.append(message)

    def failed(self, error: BaseException) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")


class Session:
    """The hooks, put in place once and begun anew for every program."""

    def __init__(self) -> None:
        self.guest = Guest()
        silent = Silent(self.guest)
        for name, hook in silent.hooks().items():
            hook(sys.modules[name])
        torch.distributed.all_reduce = c10d.all_reduce  # copied before the hooks came
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            setattr(torch.nn.utils, name, getattr(sys.modules["torch.nn.utils.clip_grad"], name))
        self.observers = silent._made
        self.compare = next(
            look.__self__ for look in self.observers[0].samples if type(look.__self__).__name__ == "Compare"
        )

    def anew(self) -> None:
        steps, wraps, backward = self.observers
        self.guest.__init__()  # type: ignore[misc]
        steps.__init__(self.guest, torch)
        steps.schedule.deep = True
        wraps.__init__(steps)
        wraps.ddp_code = self.code
        backward.__init__(steps, wraps)
        self.compare.__init__(steps, wraps, backward)

    @property
    def code(self) -> Any:
        function: Any = torch.nn.parallel.DistributedDataParallel.forward
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        return function.__code__


def main() -> None:
    rank, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    session = Session()
    import programs

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name in names:
        session.anew()
        torch.manual_seed(100 + rank)
        getattr(programs, name)(rank)
        found[name] = (list(session.guest.sent), session.guest.errors)
        dist.barrier()
    (folder / f"rank{rank}").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
