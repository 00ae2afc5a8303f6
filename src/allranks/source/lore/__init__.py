"""What calls of known libraries mean, as data: qualified name -> Effect.

A name is looked up after its re-exports are undone (`torch.distributed.distributed_c10d.all_reduce` is
`torch.distributed.all_reduce`). Methods of the objects that libraries make are looked up by the object's kind.
One file per library; adding a call is adding a row.
"""

from __future__ import annotations

import re
from functools import lru_cache

from . import accelerate, builtin, deepspeed, horovod, lightning, ray, torch, writers
from .effect import Effect

__all__ = ["Effect", "canonical", "effect", "method", "result_attribute"]

_LIBRARIES = (torch, accelerate, lightning, deepspeed, horovod, ray, writers, builtin)

_NAMES: dict[str, Effect] = {}
_METHODS: dict[tuple[str, str], Effect] = {}
_ATTRIBUTES: dict[tuple[str, str], Effect] = {}
_PATTERNS: list[tuple[re.Pattern[str], Effect]] = []
_ALIASES: list[tuple[str, str]] = []
for _library in _LIBRARIES:
    _NAMES.update(_library.NAMES)
    _METHODS.update(_library.METHODS)
    _ATTRIBUTES.update(getattr(_library, "ATTRIBUTES", {}))
    _ALIASES += getattr(_library, "ALIASES", ())
    _PATTERNS += [(re.compile(p), e) for p, e in getattr(_library, "PATTERNS", ())]


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """`name` as the tables spell it: re-exports undone."""
    for alias, meant in _ALIASES:
        if name.startswith(alias):
            return meant + name[len(alias) :]
    return name


@lru_cache(maxsize=4096)
def effect(name: str) -> Effect | None:
    """What calling the foreign name `name` does; None when the tables do not know."""
    found = _NAMES.get(name) or _NAMES.get(canonical(name))
    if found is None:
        spelled = canonical(name)
        found = next((e for p, e in _PATTERNS if p.match(spelled)), None)
    return found


def method(kind: str, name: str) -> Effect | None:
    """What calling the method `name` of an object of `kind` does; kind "*" holds for any receiver."""
    return _METHODS.get((kind, name)) or _METHODS.get(("*", name))


def result_attribute(kind: str, name: str) -> Effect | None:
    """What reading the attribute `name` of an object of `kind` gives; kind "name" is a foreign name itself."""
    return _ATTRIBUTES.get((kind, name))
