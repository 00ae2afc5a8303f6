"""Mends inside a call: an argument is added, changed or taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from . import mends
from .file import File, argument, dotted, importing, with_argument

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
        if not isinstance(sampler.value, cst.Name) or _surely_made(file, sampler.value.value):
            return file.replaced(call, _without(call, shuffle))
        test = f"{sampler.value.value} is None"
        if dotted(shuffle.value) == "True":
            return file.replaced(call, with_argument(call, "shuffle", test))
        return file.replaced(call, with_argument(call, "shuffle", f"{file.code(shuffle.value)} and {test}"))
    return None


@mends("data-not-sharded")
def shard(file: File, finding: Finding) -> cst.Module | None:
    """`DataLoader(data, shuffle=True)` -> `DataLoader(data, sampler=DistributedSampler(data))`.

    Declines when the data set is not a plain name (it would be built twice) and when the loader has a sampler.
    """
    called = (
        file.called("torch.utils.data.distributed.DistributedSampler"),
        file.called("torch.utils.data.DistributedSampler"),
    )
    known = next((name for name in called if name is not None and not name.startswith("torch.")), None)
    name = known or "DistributedSampler"
    for call in file.calls(_line(finding), "DataLoader"):
        data, shuffle = argument(call, "dataset", 0), argument(call, "shuffle")
        taken = any(argument(call, key) for key in ("sampler", "batch_sampler")) or _positional(call, 2)
        if data is None or not dotted(data.value) or taken:
            continue
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
        changed = file.replaced(call, new)
        return changed if known is not None else importing(changed, "torch.utils.data", name)
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
        if default is not None and not isinstance(default.value, cst.Integer | cst.UnaryOperation):
            return file.replaced(call, new)
        fallback = file.code(default.value) if default is not None else "0"
        source = system or "os.environ"
        new = with_argument(new, "default", f'int({source}.get("LOCAL_RANK", {fallback}))')
        changed = file.replaced(call, new)
        return changed if system is not None else importing(changed, "os")
    return None


@mends("unregistered-parameter")
def register(file: File, finding: Finding) -> cst.Module | None:
    """`self.layers = [...]` -> `self.layers = nn.ModuleList([...])`; a dict becomes a ModuleDict, and a tensor with
    `requires_grad=True` an `nn.Parameter`.

    Declines for a tensor that is named outside of the class: an optimizer may hold it already.
    """
    statement = file.statement(_line(finding))
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign):
        return None
    if isinstance(assign.value, cst.Call):
        return _parameter(file, assign, assign.value)
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


def _parameter(file: File, assign: cst.Assign, call: cst.Call) -> cst.Module | None:
    gradient = argument(call, "requires_grad")
    target, name = assign.targets[0].target, file.called("torch.nn.Parameter")
    around = file.around(assign, cst.ClassDef)
    if gradient is None or name is None or around is None or not isinstance(target, cst.Attribute):
        return None
    own = file.nodes(cst.Attribute, around)
    if any(node.attr.value == target.attr.value and node not in own for node in file.nodes(cst.Attribute)):
        return None
    return file.replaced(call, cst.Call(cst.parse_expression(name), [cst.Arg(_without(call, gradient))]))


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


def _surely_made(file: File, name: str) -> bool:
    """True for a name that is bound once, by a call: it is never None."""
    bound = [
        assign
        for assign in file.nodes(cst.Assign)
        if any(dotted(target.target) == name for target in assign.targets)
    ]
    return len(bound) == 1 and isinstance(bound[0].value, cst.Call)
