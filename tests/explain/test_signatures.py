"""The table of error messages: every row reads its own examples, and real texts are read as what they are."""

from __future__ import annotations

from string import Formatter

import pytest

from allranks.faults import catalogue
from allranks.judge.signatures import ROLES, Signature, classify_exception, match, signatures

ROWS = signatures()
EXAMPLES = [(row, text) for row in ROWS for text in row.examples]


@pytest.mark.parametrize(("row", "text"), EXAMPLES, ids=lambda x: x.name if isinstance(x, Signature) else "")
def test_a_row_reads_its_examples_first(row: Signature, text: str) -> None:
    assert match(text)[0].signature == row.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_are_whole(row: Signature) -> None:
    assert row.role in ROLES
    assert row.fragments
    assert set(dict(row.faults)) <= set(catalogue())
    assert [share for _, share in row.faults] == sorted((share for _, share in row.faults), reverse=True)
    assert sum(share for _, share in row.faults) <= 1
    assert row.examples or row.within, "a row that no example can show needs a test of its own"
    patterns = [p for p in (row.pattern, row.within, row.also) if p is not None]
    groups = {group.rstrip("0123456789") for pattern in patterns for group in pattern.groupindex}
    holes = {hole for text in (row.says, row.advice) for _, hole, _, _ in Formatter().parse(text) if hole}
    assert holes <= groups


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


OOM = "CUDA out of memory. Tried to allocate 160.00 MiB (GPU 0; 39.59 GiB total capacity; 35.19 MiB free)"
DDP_INIT = 'File "/x/site-packages/torch/nn/parallel/distributed.py", line 1064, in __init__'


@pytest.mark.parametrize(
    ("type_name", "message", "stack", "fault"),
    [
        (
            "torch.cuda.OutOfMemoryError",
            OOM,
            'File "/x/torch/serialization.py", line 9, in load',
            "load-on-one-device",
        ),
        (
            "torch.cuda.OutOfMemoryError",
            OOM,
            'File "/x/torch/nn/linear.py", line 9, in forward',
            "out-of-memory",
        ),
        ("RuntimeError", "Tensor.item() cannot be called on meta tensors", DDP_INIT, "wrapped-before-device"),
        ("RuntimeError", "Tensors must be CUDA and dense", DDP_INIT, "wrapped-before-device"),
        ("RuntimeError", "Tensors must be CUDA and dense", "", "backend-device-mismatch"),
        ("KeyError", "'RANK'", "", "launcher-missing"),
        (
            "TypeError",
            "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'",
            "local_rank = int(os.environ.get('LOCAL_RANK'))",
            "launcher-missing",
        ),
        (
            "TypeError",
            "DistributedDataParallel.__init__() got an unexpected keyword argument 'static_graph'",
            "model = DDP(model, static_graph=True)",
            "version-mismatch",
        ),
        ("ModuleNotFoundError", "No module named 'mpi4py'", "in mpi_discovery", "launcher-missing"),
        ("AssertionError", "", 'File "/x/torch/utils/data/distributed.py", line 99', "sampler-misconfigured"),
    ],
)
def test_the_stack_decides(type_name: str, message: str, stack: str, fault: str) -> None:
    found = classify_exception(type_name, message, stack)
    assert found is not None
    assert found.fault == fault


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        ("KeyError", "'spk23'"),
        ("TypeError", "forward() got an unexpected keyword argument 'labels'"),
        ("AssertionError", "shapes differ"),
        ("ValueError", "could not convert string to float: 'n/a'"),
        (
            "UserWarning",
            "find_unused_parameters=True was specified in DDP constructor, but did not find any unused",
        ),
    ],
)
def test_other_exceptions_are_not_in_the_table(type_name: str, message: str) -> None:
    assert classify_exception(type_name, message) is None


def test_captures_and_role_of_a_victim() -> None:
    found = classify_exception(
        "RuntimeError", "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:14517."
    )
    assert found is not None
    assert (found.role, found.captures) == ("victim", {"address": "10.0.0.2", "port": "14517"})


def test_a_hole_without_a_value_is_a_question_mark() -> None:
    found = match("RuntimeError: Received data size doesn't match expected size")[0]
    assert str(found.message) == "a rank receives ? bytes where it expects ?"
