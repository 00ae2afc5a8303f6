"""Loaders, samplers and data sets: whose samples a rank reads, and who decides their order."""

from __future__ import annotations

import ast
import re
from enum import Enum
from typing import TYPE_CHECKING

from ..source.values import (
    NONE,
    OTHERS,
    ClassValue,
    Const,
    Instance,
    Items,
    Kind,
    Table,
    Unknown,
    Value,
    Walk,
)
from .scene import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .scene import Scene

_DATA = ("loader", "sampler", "batch_sampler", "distributed_sampler", "dataset", "iterable_dataset")
_RANKED = re.compile(
    r"rank|world_?size|num_replicas|process_index|num_processes|get_worker_info|shard|node_id|dist\."
)
_WHOLE = re.compile(r"torch\.utils\.data\.|torchvision\.datasets\.")
_THROUGH = ("enumerate", "iter", "zip", "islice", "progress", "cycle", "chain")


class Share(Enum):
    """Whose samples: each rank its own, all ranks the same, or not known."""

    OWN = "own"
    SAME = "same"
    UNKNOWN = "unknown"


def loaders_of(value: Value, depth: int = 0) -> Iterator[Instance]:
    """The loaders that an iterable goes over, through enumerate, tqdm and the like."""
    for part in leaves(value):
        if isinstance(part, Walk) and part.like in _THROUGH and depth < 4:
            for over in part.over:
                yield from loaders_of(over, depth + 1)
        elif isinstance(part, Instance) and part.kind == "loader":
            yield part


def share(scene: Scene, value: Value, depth: int = 0) -> Share:
    """Whose samples a loader, sampler, data set or list of indices gives."""
    answers = {_share(scene, part, depth) for part in leaves(value) if not _is_none(part)}
    return answers.pop() if len(answers) == 1 else Share.UNKNOWN


def _share(scene: Scene, value: Value, depth: int) -> Share:
    if depth > 8:
        return Share.UNKNOWN
    if isinstance(value, Instance):
        if value.kind == "loader":
            return _of_loader(scene, value, depth)
        if value.kind == "distributed_sampler" or "prepared" in value.fields:
            return Share.OWN
        if value.cls is not None:
            return _of_class(scene, value, value.cls, depth)
        if value.kind in _DATA and _WHOLE.match(value.name):
            return _of_library(scene, value, depth)
        return Share.OWN if scene.differs(value) in (Kind.NODE, Kind.RANK) else Share.UNKNOWN
    kind = scene.differs(value)
    if isinstance(value, Unknown) and _of_own_file(scene, value):
        return Share.OWN
    if kind in (Kind.NODE, Kind.RANK) or (isinstance(value, Items) and value.uneven is not None):
        return Share.OWN
    if kind is not Kind.UNIFORM:
        return Share.UNKNOWN
    return Share.SAME if isinstance(value, Items | Walk | Const | Table) else Share.UNKNOWN


def _of_own_file(scene: Scene, value: Unknown) -> bool:
    """True for what was loaded from a file whose name differs between ranks."""
    return any(
        scene.comes_from(value, event.result) and scene.differs(event.args.get("f", NONE)) >= Kind.NODE
        for event in scene.of("load")
    )


def _of_loader(scene: Scene, loader: Instance, depth: int) -> Share:
    if "prepared" in loader.fields:
        return Share.OWN
    parts = [given(loader, name) for name in ("batch_sampler", "sampler", "dataset")]
    answers = [share(scene, part, depth + 1) for part in parts if part is not NONE]
    if Share.OWN in answers:
        return Share.OWN
    return Share.SAME if answers and set(answers) == {Share.SAME} else Share.UNKNOWN


def _of_library(scene: Scene, value: Instance, depth: int) -> Share:
    """A sampler or data set of torch: what it is made over decides."""
    if scene.differs(value) in (Kind.NODE, Kind.RANK):
        return Share.OWN
    over = [v for v in value.fields.values() if isinstance(v, Instance | Items | Walk)]
    answers = {share(scene, part, depth + 1) for part in over}
    if any(isinstance(v, Unknown) and _of_own_file(scene, v) for v in value.fields.values()):
        return Share.OWN
    if Share.OWN in answers:
        return Share.OWN
    if Share.UNKNOWN in answers or scene.differs(value) is not Kind.UNIFORM:
        return Share.UNKNOWN
    return Share.SAME


def _of_class(scene: Scene, value: Instance, cls: ClassValue, depth: int) -> Share:
    """A sampler or data set of the program: what it is given, and whether its text speaks of ranks."""
    if scene.differs(value) in (Kind.NODE, Kind.RANK):
        return Share.OWN
    inner = [v for v in value.fields.values() if isinstance(v, Instance) and v.kind in _DATA]
    answers = {share(scene, part, depth + 1) for part in inner}
    if Share.OWN in answers:
        return Share.OWN
    if Share.UNKNOWN in answers or value.kind not in _DATA or speaks_of_ranks(cls):
        return Share.UNKNOWN
    return Share.SAME if scene.differs(value) is Kind.UNIFORM else Share.UNKNOWN


def speaks_of_ranks(cls: ClassValue, depth: int = 0) -> bool:
    """True when the text of a class, or of one that it is made of, may tell one rank from another."""
    if _RANKED.search(ast.unparse(cls.node)):
        return True
    for base in cls.bases or ():
        if isinstance(base, ClassValue) and depth < 4 and speaks_of_ranks(base, depth + 1):
            return True
    return False


def given(instance: Instance, name: str) -> Value:
    """A field of an object; NONE where it was not given, something unknown where it may be among `**others`."""
    return instance.fields.get(name, instance.fields.get(OTHERS, NONE))


def samplers_of(loader: Instance, depth: int = 0) -> Iterator[Instance]:
    """Every sampler behind a loader, the outermost first: its sampler, its batch sampler and what that takes from."""
    for name in ("sampler", "batch_sampler"):
        for part in leaves(given(loader, name)):
            if isinstance(part, Instance) and depth < 4:
                yield part
                yield from samplers_of(part, depth + 1)
                for field in part.fields.values():
                    if isinstance(field, Instance) and field.kind.endswith("sampler"):
                        yield field
                        yield from samplers_of(field, depth + 1)


def distributed_sampler(loader: Instance) -> Instance | None:
    """The DistributedSampler that shards a loader."""
    return next((s for s in samplers_of(loader) if s.kind == "distributed_sampler"), None)


def constant(value: Value) -> object:
    """The Python value of a constant; None for anything else."""
    return value.value if isinstance(value, Const) else None


def _is_none(value: Value) -> bool:
    return value is NONE or (isinstance(value, Const) and value.value is None)


def same_unknown(one: Value, other: Value) -> bool:
    """True when two values are surely the same unknown, constant or object."""
    if isinstance(one, Unknown) and isinstance(other, Unknown):
        return one.key == other.key
    if isinstance(one, Const) and isinstance(other, Const):
        return type(one.value) is type(other.value) and bool(one.value == other.value)
    return one is other
