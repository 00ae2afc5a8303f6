"""Samples of the replicas: digests of gradients and parameters, which the host compares between the ranks."""

from __future__ import annotations

import time

from . import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DETAIL = 4096
"""Up to so many tensors each has its digest in every sample; beyond, at powers of two."""
PLAIN = ("lr", "weight_decay", "momentum", "betas", "eps", "alpha", "maximize", "nesterov")


class Part:
    """Those parameters of an optimizer that lie in one DDP model, or in none (`wrap` 0)."""

    __slots__ = ("key", "parameters", "wrap")

    def __init__(self, key: str, parameters: list[Any], wrap: int) -> None:
        self.key, self.parameters, self.wrap = key, parameters, wrap


class Compare:
    """Takes the samples of one process."""

    def __init__(self, steps: Any, wraps: Any, backward: Any) -> None:
        self.steps, self.wraps, self.backward = steps, wraps, backward
        self.digester = digest.Digester(steps.torch)
        self._bad = 0
        self._told: set[str] = set()
        steps.before.append(self.first)
        steps.samples.append(self.sample)

    def parts(self, entry: Any, optimizer: Any) -> list[Part]:
        """The optimizer's parameters by DDP model; told to the host whenever they change."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        shape = (len(parameters), len(self.wraps.wraps))
        if entry.shape != shape:
            entry.shape, entry.parts = shape, self._divide(entry, parameters)
        return list(entry.parts)

    def _divide(self, entry: Any, parameters: list[Any]) -> list[Part]:
        by_wrap: dict[int, list[Any]] = {}
        names: dict[int, str] = {}
        for p in parameters:
            wrap = self.wraps.of(p)
            by_wrap.setdefault(wrap.number if wrap is not None else 0, []).append(p)
            if wrap is not None:
                names[id(p)] = wrap.ids[id(p)]
        owner = ""
        if 0 in by_wrap:
            for reference in list(self.wraps.roots.values()):
                root = reference()
                for name, p in root.named_parameters() if root is not None else ():
                    names.setdefault(id(p), name)
                    owner = owner or (type(root).__name__ if id(p) in {id(q) for q in by_wrap[0]} else "")
        parts = []
        plain = (self.steps.torch.Tensor, self.steps.torch.nn.Parameter)
        for number, members in by_wrap.items():
            total = sum(p.numel() for p in members)
            key = "%d %s %d %d %d" % (entry.number, entry.name, number, len(members), total)
            parts.append(Part(key, members, number))
            self.steps.tell(
                "part", key=key, optimizer=entry.number, wrap=number,
                names=[names.get(id(p), "") for p in members[:DETAIL]],
                owner=owner if not number else "", largest=max((p.numel() for p in members), default=0), total=total,
                bare=len([p for p in members if id(p) not in names]),
                sharded=len([p for p in members if type(p) not in plain]),
            )  # fmt: skip
        return parts

    def first(self, entry: Any, optimizer: Any, closure: bool) -> None:
        """Before the very first step: the parameters as training finds them."""
        if entry.steps == 0:
            started = time.perf_counter()
            with self.steps.torch.no_grad():
                for part in self.parts(entry, optimizer):
                    self._send(part, 0, 0, None, self.digester.digests(part.parameters))
            self.steps.schedule.spent(time.perf_counter() - started)

    def sample(self, entry: Any, optimizer: Any, pattern: int) -> None:
        """After a sampled step: the gradients that it used and the parameters that it made."""
        for part in self.parts(entry, optimizer):
            if part.wrap and self.wraps.uneven(part.wrap):
                continue
            grads = [p.grad for p in part.parameters]
            numbers = self.digester.digests(grads)
            self._send(part, entry.steps, pattern, numbers, self.digester.digests(part.parameters))
            self._finite(entry, part, grads)
        self._statistics(entry, pattern)
        if entry.steps == 1 or entry.steps & (entry.steps - 1) == 0:
            self._options(entry, optimizer)

    def _statistics(self, entry: Any, pattern: int) -> None:
        """The running statistics of batch normalisations that every rank keeps for itself."""
        layers = self.wraps.own_statistics() if self.wraps.statistics else []
        if not layers:
            return
        values = [value for layer in layers for value in (layer.running_mean, layer.running_var)]
        part = Part(
            "statistics %d %d %d" % (entry.number, len(values), sum(v.numel() for v in values)), values, 0
        )
        if part.key not in self._told:
            self._told.add(part.key)
            around = self.wraps.around(layers[0])
            self.steps.tell(
                "statistics", key=part.key, optimizer=entry.number, count=len(layers),
                wrap=around.number if around is not None else 0,
                name=type(layers[0]).__name__,
            )  # fmt: skip
        self._send(part, entry.steps, pattern, None, self.digester.digests(values))

    def _send(self, part: Part, step: int, pattern: int, grads: Any, values: list[int | None]) -> None:
        detail = len(values) <= DETAIL or step & (step - 1) == 0
        self.steps.guest.send(
            "digest", part.key, step, pattern, digest.combined(grads) if grads is not None else None,
            digest.combined(values), grads if detail else None, values if detail else None,
        )  # fmt: skip

    def _finite(self, entry: Any, part: Part, grads: list[Any]) -> None:
        if self._bad >= 3:
            return
        bad = digest.not_finite(
            self.steps.torch, [g if type(g) is self.steps.torch.Tensor else None for g in grads]
        )
        spoilt = digest.not_finite(self.steps.torch, part.parameters) if bad else []
        if spoilt:
            self._bad += 1
            self.steps.tell(
                "not_finite", key=part.key, step=entry.steps, total=self.steps.total, gradients=bad[:20],
                parameters=spoilt[:20], count=len(spoilt),
            )  # fmt: skip

    def _options(self, entry: Any, optimizer: Any) -> None:
        rows = [
            [(k, str(group[k])) for k in PLAIN if k in group and isinstance(group[k], (int, float, tuple))]
            for group in optimizer.param_groups[:8]
        ]
        scaler = self.backward.scaler() if self.backward.scaler is not None else None
        scale = float(scaler.get_scale()) if scaler is not None else None
        self.steps.tell("options", optimizer=entry.number, step=entry.steps, groups=rows, scale=scale)
