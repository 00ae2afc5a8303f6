"""The pickle machine: plain data comes out as the standard library reads it, and nothing else is ever built."""

from __future__ import annotations

import collections
import os
import pickle
import pickletools
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.explain.flight import unpickle
from allranks.explain.flight.unpickle import CutOffError, RefusedError, Unpickler

from .jobs import Job, pickled

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=30,
)


@settings(deadline=None)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_is_read_as_the_standard_library_reads_it(value: object, protocol: int) -> None:
    if protocol == 2 and _holds_bytes(value):
        return  # protocol 2 writes bytes as a call
    data = pickle.dumps(value, protocol)
    assert Unpickler(data).load() == pickle.loads(data)
    assert Unpickler(pickletools.optimize(data)).load() == value


def _holds_bytes(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list | tuple) and any(map(_holds_bytes, value)))


def test_shared_lists_stay_shared() -> None:
    inner: list[int] = [1]
    read = Unpickler(pickle.dumps([inner, inner], 2)).load()
    assert read[0] is read[1]


class Command:
    """A pickle of this runs a command when the standard library loads it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_is_refused_and_nothing_runs(tmp_path: object, protocol: int) -> None:
    made = f"{tmp_path}/made"
    data = pickle.dumps({"entries": [Command(made)]}, protocol)
    with pytest.raises(RefusedError):
        Unpickler(data).load()
    assert not os.path.exists(made)


CALLING = {
    "GLOBAL": b"cos\nsystem\n.",
    "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93.",
    "INST": b"(X\x02\x00\x00\x00idios\nsystem\n.",
    "OBJ": b"(X\x02\x00\x00\x00ido.",
    "REDUCE": b"X\x02\x00\x00\x00id)R.",
    "NEWOBJ": b"X\x02\x00\x00\x00id)\x81.",
    "NEWOBJ_EX": b"X\x02\x00\x00\x00id)}\x92.",
    "BUILD": b"}}b.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "PERSID": b"Pid\n.",
    "BINPERSID": b"X\x02\x00\x00\x00idQ.",
    "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"C\x02ab\x98.",
}


@pytest.mark.parametrize("name", CALLING)
def test_every_opcode_that_imports_or_calls_is_refused_by_name(name: str) -> None:
    with pytest.raises(RefusedError, match=rf"asks to run code \({name}\)"):
        Unpickler(b"\x80\x04" + CALLING[name]).load()


def test_no_opcode_outside_the_plain_ones_has_code() -> None:
    known = {
        "PROTO", "FRAME", "STOP", "MARK", "POP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
        "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
        "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
        "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    }  # fmt: skip
    for code in pickletools.opcodes:
        if code.name in known:
            continue
        with pytest.raises(RefusedError):
            Unpickler(b"\x80\x02" + code.code.encode("latin-1") + b"\x00" * 8 + b".").load()


@pytest.mark.parametrize(
    "value",
    [collections.OrderedDict(a=1), {1, 2}, frozenset({1}), 1 + 2j, bytearray(b"ab"), range(3), os.path],
    ids=lambda v: type(v).__name__,
)
def test_what_is_not_plain_is_refused(value: object) -> None:
    for protocol in range(2, 6):
        try:
            data = pickle.dumps(value, protocol)
        except TypeError:
            continue
        with pytest.raises(RefusedError):
            Unpickler(data).load()


BOMBS = {
    "memo index": b"]r\xff\xff\xff\x7f.",
    "bytes8": b"\x8e" + struct.pack("<Q", 2**40) + b"a.",
    "text8": b"\x8d" + struct.pack("<Q", 2**62) + b"a.",
    "text": b"X\xff\xff\xff\x7fa.",
    "bytes": b"B\xff\xff\xff\x7fa.",
    "frame": b"\x95" + struct.pack("<Q", 2**60) + b"N.",
    "long4": b"\x8b\xff\xff\xff\x7f1.",
    "bytearray": b"\x96" + struct.pack("<Q", 2**40) + b"a.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_announced_size_is_never_allocated(name: str) -> None:
    tracemalloc.start()
    try:
        try:
            Unpickler(b"\x80\x04" + BOMBS[name]).load()
        except (RefusedError, CutOffError):
            pass
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_endless_containers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickle, "MAX_CONTAINERS", 1000)
    assert Unpickler(b"\x80\x02(" + b"]" * 998 + b"t.").load() == ([],) * 998
    for container in (b"]", b"}", b"(", b")", b"N\x85"):
        with pytest.raises(RefusedError, match="more than 1000 objects"):
            Unpickler(b"\x80\x02" + container * 1001 + b".").load()


def test_nesting_of_any_depth_is_read_without_recursion() -> None:
    depth = 50_000
    value = Unpickler(b"\x80\x02" + b"](" * depth + b"e" * depth + b".").load()
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


def test_keys_that_take_exponential_time_to_hash_are_refused() -> None:
    doubled = b")" + b"q\x00" + b"0h\x00h\x00\x86" * 1
    for index in range(1, 60):
        doubled += b"q" + bytes([index]) + b"h" + bytes([index]) + b"\x86"
    with pytest.raises(RefusedError):
        Unpickler(b"\x80\x02}" + doubled + b"Ns.").load()


def test_a_memo_index_is_written_once() -> None:
    with pytest.raises(RefusedError, match="malformed"):
        Unpickler(b"\x80\x02]q\x00}q\x00.").load()


def test_a_file_cut_at_any_byte_is_known_as_cut_off() -> None:
    job = Job(1)
    job.steps(1)
    data = pickled(job[0].dump())
    for size in range(2, len(data) - 1):
        with pytest.raises(CutOffError):
            Unpickler(data[:size]).load()
        with pytest.raises(CutOffError):
            Unpickler(data[:size] + bytes(64)).load()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_end_in_one_of_two_errors_or_plain_data(data: bytes) -> None:
    try:
        Unpickler(b"\x80\x02" + data).load()
    except (RefusedError, CutOffError):
        pass
