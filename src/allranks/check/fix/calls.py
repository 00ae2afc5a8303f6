"""Mends inside a call: an argument is added, changed or taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from . import mends
from .file import File, argument, dotted, with_argument

if TYPE_CHECKING:
    from ...findings import Finding


@mends("load-on-one-device")
def map_to_processor(file: File, finding: Finding) -> cst.Module | None:
    """`torch.load(f)` -> `torch.load(f, map_location="cpu")`: right whatever is done with what was loaded."""
    for call in file.calls(_line(finding), "load"):
        if dotted(call.func) in ("torch.load", file.called("torch.load")) and not _positional(call, 1):
            return file.replaced(call, with_argument(call, "map_location", '"cpu"'))
    return None


@mends("sampler-misconfigured")
def drop_shuffle(file: File, finding: Finding) -> cst.Module | None:
    """A loader with a sampler and `shuffle=True`: the sampler shuffles, so the argument goes.

    Where the sampler may be None, the loader still has to shuffle: `shuffle=x and sampler is None`.
    """
    for call in file.calls(_line(finding), "DataLoader"):
        shuffle, sampler = argument(call, "shuffle"), argument(call, "sampler")
        if shuffle is None or sampler is None:
            continue
        if not isinstance(sampler.value, cst.Name):
            return file.replaced(call, _without(call, shuffle))
        test = f"{sampler.value.value} is None"
        if dotted(shuffle.value) == "True":
            return file.replaced(call, with_argument(call, "shuffle", test))
        return file.replaced(call, with_argument(call, "shuffle", f"{file.code(shuffle.value)} and {test}"))
    return None


@mends("data-not-sharded")
def shard(file: File, finding: Finding) -> cst.Module | None:
    """`DataLoader(data, shuffle=True)` -> `DataLoader(data, sampler=DistributedSampler(data))`.

    Declines when the data set is not a plain name (it would be built twice), when the loader has a sampler, or
    when the file does not import DistributedSampler or torch.utils.data.
    """
    name = file.called("torch.utils.data.distributed.DistributedSampler") or file.called(
        "torch.utils.data.DistributedSampler"
    )
    for call in file.calls(_line(finding), "DataLoader"):
        data, shuffle = argument(call, "dataset", 0), argument(call, "shuffle")
        taken = any(argument(call, key) for key in ("sampler", "batch_sampler")) or _positional(call, 2)
        if data is None or not dotted(data.value) or taken:
            continue
        if name is None:
            name, extra = "DistributedSampler", "from torch.utils.data import DistributedSampler"
        else:
            extra = ""
        shuffled = shuffle is not None and dotted(shuffle.value) != "False"
        if shuffle is not None and dotted(shuffle.value) not in ("True", "False"):
            return None
        order = "" if shuffled else ", shuffle=False"
        sampler = f"{name}({dotted(data.value)}{order})"
        if shuffle is None:
            new = with_argument(call, "sampler", sampler)
        else:
            value = shuffle.with_changes(keyword=cst.Name("sampler"), value=cst.parse_expression(sampler))
            new = call.with_changes(args=[value if arg is shuffle else arg for arg in call.args])
        return _importing(file.replaced(call, new), extra)
    return None


@mends("seed-not-shared")
def share_split(file: File, finding: Finding) -> cst.Module | None:
    """`random_split(data, sizes)` gets a generator of a fixed seed, the same on every rank."""
    torch = file.called("torch.Generator")
    for call in file.calls(_line(finding), "random_split"):
        if torch is not None and argument(call, "generator", 2) is None:
            return file.replaced(call, with_argument(call, "generator", f"{torch}().manual_seed(0)"))
    return None


@mends("local-rank-argument")
def both_spellings(file: File, finding: Finding) -> cst.Module | None:
    """`--local_rank` and `--local-rank` alike, by default from the environment that torchrun sets."""
    for call in file.calls(_line(finding), "add_argument"):
        first = call.args[0] if call.args else None
        if first is None or not isinstance(first.value, cst.SimpleString):
            continue
        names = [arg for arg in call.args if arg.keyword is None]
        if len(names) != 1 or first.value.evaluated_value not in ("--local_rank", "--local-rank"):
            return None
        quote = first.value.quote
        old = str(first.value.evaluated_value)
        other = "--local-rank" if old == "--local_rank" else "--local_rank"
        # The name in the namespace comes of the first long option: `local_rank` for both.
        comma = first.comma if isinstance(first.comma, cst.Comma) else cst.MaybeSentinel.DEFAULT
        added = cst.Arg(cst.SimpleString(f"{quote}{other}{quote}"), comma=comma)
        space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        new = call.with_changes(args=[first.with_changes(comma=space), added, *call.args[1:]])
        default, required = argument(new, "default"), argument(new, "required")
        system = file.called("os.environ")
        if required is not None:
            new = _without(new, required)
        plain = default is None or isinstance(default.value, cst.Integer | cst.UnaryOperation)
        if system is not None and plain:
            fallback = file.code(default.value) if default is not None else "0"
            new = with_argument(new, "default", f'int({system}.get("LOCAL_RANK", {fallback}))')
        return file.replaced(call, new)
    return None


@mends("unregistered-parameter")
def register(file: File, finding: Finding) -> cst.Module | None:
    """`self.layers = [...]` -> `self.layers = nn.ModuleList([...])`; a dict becomes a ModuleDict."""
    statement = file.statement(_line(finding))
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign):
        return None
    kind = "ModuleDict" if isinstance(assign.value, cst.Dict | cst.DictComp) else "ModuleList"
    if not isinstance(assign.value, cst.Dict | cst.DictComp | cst.List | cst.ListComp):
        return None
    if "Parameter(" in file.code(assign.value):
        kind = kind.replace("Module", "Parameter")
    name = file.called(f"torch.nn.{kind}")
    if name is None:
        return None
    new = cst.Call(cst.parse_expression(name), [cst.Arg(assign.value)])
    return file.replaced(assign.value, new)


@mends("ddp-bypassed")
def call_wrapper(file: File, finding: Finding) -> cst.Module | None:
    """`model.module(x)` -> `model(x)`: a method of the inner model cannot be called through the wrapper."""
    statement = file.statement(_line(finding))
    for call in file.nodes(cst.Call, statement) if statement is not None else []:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "module" and dotted(call.func):
            return file.replaced(call.func, call.func.value)
    return None


def _line(finding: Finding) -> int:
    assert finding.location is not None
    assert finding.location.line is not None
    return finding.location.line


def _positional(call: cst.Call, position: int) -> bool:
    """True when an argument stands at `position` without a name, or stars hide what does."""
    named = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return len(named) > position or any(arg.star for arg in call.args)


def _without(call: cst.Call, gone: cst.Arg) -> cst.Call:
    args = [arg for arg in call.args if arg is not gone]
    if args and call.args[-1] is gone:
        args[-1] = args[-1].with_changes(comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg)
    return call.with_changes(args=args)


def _importing(module: cst.Module, line: str) -> cst.Module:
    """`module` with an import after its other imports."""
    if not line:
        return module
    body = list(module.body)
    at = 0
    for index, statement in enumerate(body):
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], cst.Import | cst.ImportFrom
        ):
            at = index + 1
    return module.with_changes(body=[*body[:at], cst.parse_statement(line), *body[at:]])
