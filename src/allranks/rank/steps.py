"""The step clock: what happened between two steps of an optimizer, and at which steps the ranks are compared.

Between steps the hooks note events: a forward through DDP, a backward, a zero_grad, each as the number of its kind
(what, of which object, from which line). At a step the events since the optimizer's last one are its *pattern*; a
program has few patterns, and each is told once.

Which steps are sampled is decided by the step's number alone, so that all ranks sample the same ones without asking
each other: the first two, the next two and all powers of two while that is cheap, and the multiples of a gap. The gap
is a power of two that each rank chooses for itself so that its own samples cost no more than their share of the budget.
Gaps nest: the steps that the slowest rank samples are sampled by all.
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST = 4
"""First steps after which what the hooks noted is looked at, sampled or not: that is cheap."""
CERTAIN = 2
"""First steps that are always sampled."""
CHEAP_S = 0.1
"""What samples may have taken in all before the first steps and powers of two are held to the budget too."""
SHARE = 0.5
"""Part of the budget that is for samples; the rest goes into noting every step and call."""
OCTAVE = 9
"""At most 2**OCTAVE samples while the number of steps doubles: then the time between samples is a fixed share of it."""
PATTERNS = 200
EVENTS = 400
"""Kinds of events that are told apart."""
LOG = 4096


class Schedule:
    """Which steps are sampled. Times in seconds; `budget` is the share of the time that samples may take."""

    def __init__(self, variables: Any) -> None:
        self.budget = _number(variables.get("ALLRANKS_OVERHEAD"), 0.01)
        self.every = int(_number(variables.get("ALLRANKS_EVERY"), 0))
        self.deep = variables.get("ALLRANKS_DEEP") == "1"
        self.gap = 1
        self._cost = self._after = self._pace = self._spent = 0.0

    def due(self, step: int) -> bool:
        """True when `step` (from 1) is sampled."""
        if self.deep or step <= CERTAIN:
            return True
        if self.every:
            return step <= FIRST or step % self.every == 0
        early = step <= FIRST or step & (step - 1) == 0
        if early and self._spent <= max(CHEAP_S, SHARE * self.budget * self._pace * step):
            return True
        return step % max(self.gap, 1 << max(0, step.bit_length() - OCTAVE - 1)) == 0

    def spent(self, cost: float) -> None:
        """A sample took `cost` in all."""
        self._spent += cost

    def took(self, cost: float, pace: float) -> None:
        """A sample took `cost`, and a step without one takes `pace`."""
        self.spent(cost)
        self._cost = cost if not self._cost else (self._cost + cost) / 2
        self._pace = pace if not self._pace else (self._pace + pace) / 2
        self._fit()

    def followed(self, seconds: float) -> None:
        """The step after a sample took so long. What it takes longer than others is the sample's doing too: caches are
        cold, and a rank waits for one whose sample took longer. Single steps vary, so it is the mean that counts."""
        most = 4 * self._cost
        self._after += (min(most, max(-most, seconds - self._pace)) - self._after) / 8
        self._fit()

    def _fit(self) -> None:
        share = max(SHARE * self.budget * self._pace, 1e-9)
        cost = self._cost + max(0.0, self._after)
        self.gap = 1 << min(30, max(0, math.ceil(math.log2(max(cost / share, 1e-9)))))


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text) if text else otherwise
    except ValueError:
        return otherwise


class Entry:
    """One optimizer: how often it stepped, and where its last step left the log."""

    __slots__ = (
        "empty", "kept", "name", "number", "parts", "ref", "sampled", "shape", "site", "start", "steps", "witness",
    )  # fmt: skip

    def __init__(self, optimizer: Any, number: int, site: int) -> None:
        self.ref = weakref.ref(optimizer)
        self.number, self.site, self.name = number, site, type(optimizer).__name__
        self.steps = self.start = self.empty = self.kept = 0
        self.sampled = (0, 0.0)
        """The last sampled step, and when the sample was done."""
        self.shape: Any = None
        self.parts: list[Any] = []
        self.witness: Any = None


class Steps:
    """Events, optimizers and samples of one process."""

    def __init__(self, guest: Any, torch: Any) -> None:
        self.guest, self.torch = guest, torch
        self.schedule = Schedule(os.environ)
        self.total = self.backwards = 0
        """Steps of all optimizers; calls of backward."""
        self.looking = True
        """The coming step will be sampled: what costs more may be looked at."""
        self.looks: list[Any] = []
        """Functions (entry, optimizer, number of the pattern) called after the first steps and each sampled one."""
        self.samples: list[Any] = []
        """As `looks`, at sampled steps only: what is dear."""
        self.before: list[Any] = []
        """Functions (entry, optimizer, has a closure) called before every step."""
        self.manner = ""
        """How the running step is made: "scaler" inside GradScaler.step, "scaled" while gradients are scaled,
        "closure" with a function that computes them."""
        self.optimizers: dict[int, Entry] = {}
        self._kinds: dict[Any, int] = {}
        self._log: list[int] = []
        self._dropped = 0
        self._patterns: dict[Any, int] = {}
        self._size = 0

    def live(self) -> bool:
        """True in a rank of a job of several ranks, outside torch.compile's tracing."""
        guest = self.guest
        if guest.off or guest.recorder is None or guest.c10d is None or not guest.c10d.is_initialized():
            return False
        if not self._size:
            self._size = int(guest.c10d.get_world_size())
        return self._size > 1

    def tell(self, topic: str, **row: Any) -> None:
        """One observation for the host; a `site` is the number of a call site."""
        self.guest.send("observed", topic, row)

    # Events

    def event(self, what: str, frame: Any, of: int = 0, flag: str = "") -> int:
        """Notes that something happened on the way to the next step; gives the site's number."""
        outer, inner = frame, None
        while outer is not None:
            if stack.describe(outer.f_code).owner == stack.USER:
                if inner is not None:
                    break
                inner = outer
            outer = outer.f_back
        place = [(id(f.f_code), f.f_lasti) for f in (inner, outer) if f is not None]
        key = (what, of, flag, *place)
        number = self._kinds.get(key) or self._new_kind(key, frame)
        if len(self._log) >= LOG:
            del self._log[: LOG // 2]
            self._dropped += LOG // 2
        self._log.append(number)
        return number

    def _new_kind(self, key: Any, frame: Any) -> int:
        if len(self._kinds) >= EVENTS:
            return 0
        number = self._kinds[key] = len(self._kinds) + 1
        self.tell("event", number=number, what=key[0], of=key[1], flag=key[2], site=self.site(frame))
        return number

    def site(self, frame: Any) -> int:
        """The number of the call site at `frame`."""
        return int(self.guest.recorder.site(stack.user_rows(stack.walk(frame))))

    # Optimizers

    def entry(self, optimizer: Any, frame: Any = None) -> Entry:
        """What is known of an optimizer; `frame` is where it is made."""
        found = self.optimizers.get(id(optimizer))
        if found is None or found.ref() is not optimizer:
            site = self.site(frame) if frame is not None and self.guest.recorder is not None else 0
            found = self.optimizers[id(optimizer)] = Entry(optimizer, len(self.optimizers) + 1, site)
            found.start = self._dropped + len(self._log)
            if self.guest.recorder is not None:
                self.tell("optimizer", number=found.number, name=found.name, site=site)
        return found

    def living(self) -> list[Any]:
        """The optimizers that still exist."""
        return [made for entry in list(self.optimizers.values()) if (made := entry.ref()) is not None]

    def starts(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before an optimizer's step."""
        if not self.live():
            return
        closure = kwargs.get("closure", args[0] if args else None)
        entry = self.entry(optimizer)
        for look in self.before:
            look(entry, optimizer, closure is not None)

    def ends(self, optimizer: Any, frame: Any) -> None:
        """After an optimizer's step: its gradients are still those that it used."""
        if not self.live():
            return
        started = time.perf_counter()
        entry = self.entry(optimizer)
        entry.steps += 1
        self.total += 1
        self.event("step", frame, entry.number, self.manner)
        if self.manner != "scaler":  # which ends by itself
            self.manner = ""
        pattern = self._pattern(entry)
        if self._looks(entry.steps):
            self._look(entry, optimizer, pattern, started)
        elif entry.sampled[0] > 1 and entry.sampled[0] == entry.steps - 1:
            self.schedule.followed(started - entry.sampled[1])
        self.looking = self._looks(self.total + 1) or self._looks(entry.steps + 1)

    def _looks(self, step: int) -> bool:
        return step <= FIRST or self.schedule.due(step)

    def _pattern(self, entry: Entry) -> int:
        """The number of the pattern of events since the optimizer's last step."""
        seen = tuple(self._log[max(0, entry.start - self._dropped) :])
        entry.start = self._dropped + len(self._log)
        key = (entry.number, seen)
        found = self._patterns.get(key)
        if found is None:
            if len(self._patterns) >= PATTERNS:
                return 0
            found = self._patterns[key] = len(self._patterns) + 1
            self.tell(
                "pattern", number=found, optimizer=entry.number, step=entry.steps, events=list(seen[-256:])
            )
        return found

    def _look(self, entry: Entry, optimizer: Any, pattern: int, started: float) -> None:
        if self.torch._C._len_torch_dispatch_stack():
            return  # a mode of the user's would see what is computed here
        sampled = self.schedule.due(entry.steps)
        with self.torch.no_grad():
            for look in self.looks:
                look(entry, optimizer, pattern)
            if sampled:
                for sample in self.samples:
                    sample(entry, optimizer, pattern)
        if not sampled:
            return
        ended = time.perf_counter()
        before, entry.sampled = entry.sampled, (entry.steps, ended)
        cost = (ended - started) * len(self.optimizers)
        if before[0]:
            self.schedule.took(cost, (started - before[1]) / (entry.steps - before[0]))
        else:  # the first sample warms up, and says nothing of the pace
            self.schedule.spent(cost)
        self.tell("sample", optimizer=entry.number, step=entry.steps, total=self.total, gap=self.schedule.gap)


def wrap(guest: Any, steps: Steps, module: Any) -> None:
    """Hooks into `torch.optim.optimizer`."""
    torch = steps.torch

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            steps.starts(optimizer, args[1:] if args and args[0] is optimizer else args, kwargs)
        except Exception as error:
            guest.failed(error)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            steps.ends(optimizer, sys._getframe(1))
        except Exception as error:
            guest.failed(error)

    kind, load = module.Optimizer, module.Optimizer.load_state_dict

    @stack.wraps(load)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if steps.live():
                frame = sys._getframe(1)
                steps.tell(
                    "restored", optimizer=steps.entry(self).number, step=steps.total, site=steps.site(frame)
                )
        except Exception as error:
            guest.failed(error)
        return load(self, *args, **kwargs)

    kind.load_state_dict = load_state_dict
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
