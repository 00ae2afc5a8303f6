"""What the guest of a real program tells of its data, files and lines: one program, looked at from all sides."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hosts import Host

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys, fcntl, random
import numpy, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import *
from torch.utils.data.distributed import DistributedSampler

folder = sys.argv[1] + "/"
dist.init_process_group("gloo", init_method="file://" + folder + "store", rank=0, world_size=1)
torch.manual_seed(7); numpy.random.seed(8); random.seed(9)


class Noisy(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return torch.full((3,), float(i)) + torch.rand(3), i


full = Noisy()
part, rest = random_split(full, [24, 16])
sampler = DistributedSampler(part, num_replicas=2, rank=1)
model = DDP(nn.Linear(3, 1))
loader = DataLoader(part, batch_size=4, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        model(x + torch.randn_like(x)).sum().backward()
    print("epoch", epoch)
with torch.no_grad():
    for x, y in DataLoader(rest, batch_size=8, num_workers=1):
        pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"ids": torch.arange(5) + i, "text": "abc"} for i in range(4)])


for batch in DataLoader(Stream(), batch_size=2):
    pass

torch.save(model.state_dict(), folder + "ddp.pt")
model.module.load_state_dict(torch.load(folder + "ddp.pt", map_location="cpu"), strict=False)
with open(folder + "log.txt", "a") as file:
    file.write("x")
with open(folder + "lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(folder + "guarded.txt", "a") as file:
        file.write("x")
    fcntl.flock(lock, fcntl.LOCK_UN)
open(folder + "log.txt").read()
open(os.devnull, "w").close()
for step in range(20):
    sys.stdout.write("\\rstep %d" % step)
sys.stdout.write("\\n")
dist.destroy_process_group()
"""

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Path]:
    folder: Path = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(PROGRAM)
    host = Host()
    command = f"import runpy, sys; sys.argv = ['job.py', {str(folder)!r}]; runpy.run_path({str(folder / 'job.py')!r})"
    done = host.run(sys.executable, command, paths=(), RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0, done.stderr
    found: Rows = defaultdict(list)
    for messages in host.messages.values():
        sites = {m[1]: m[2] for m in messages if m[0] == "site"}
        assert [m for m in messages if m[0] == "broken"] == []
        for message in messages:
            if message[0] == "observed":
                row = dict(message[2])
                if "site" in row:
                    row["site"] = sites[row["site"]][-1][1]
                found[message[1]].append(row)
    host.close()
    return found, folder


pytestmark = pytest.mark.torch


def line(text: str) -> int:
    """The number of the first line that contains this."""
    return next(i for i, one in enumerate(PROGRAM.splitlines(), 1) if text in one)


def test_samplers(rows: tuple[Rows, Path]) -> None:
    (row,) = rows[0]["sampler"]
    wanted = {"own": True, "replicas": 2, "rank": 1, "length": 24, "total": 24, "shuffle": True, "seed": 0}
    assert {name: row[name] for name in wanted} == wanted
    assert row["site"] == line("sampler = ")


def test_loaders_and_their_splits(rows: tuple[Rows, Path]) -> None:
    train, rest, stream = rows[0]["loader"]
    assert (train["site"], train["length"], train["split"]["of"]) == (line("loader = "), 24, 40)
    assert sorted(train["split"]["sample"] + rest["split"]["sample"]) == list(range(40))
    assert (rest["workers"], stream["length"], stream["split"]) == (1, None, None)
    made = {row["subset"]: row["site"] for row in rows[0]["subset"]}
    assert made[train["split"]["made"]] == line("random_split(")


def turns(rows: Rows, number: int) -> list[dict[str, Any]]:
    """The last row of each pass over the n-th loader."""
    loader = rows["loader"][number]["loader"]
    last = {row["turn"]: row for row in rows["turn"] if row["loader"] == loader}
    return [last[key] for key in sorted(last)]


def test_passes_that_are_trained_on(rows: tuple[Rows, Path]) -> None:
    one, two = turns(rows[0], 0)
    assert [(t["drawn"], t["samples"], t["backwards"], t["ended"]) for t in (one, two)] == [
        (3, 12, 3, True)
    ] * 2
    assert [t["epochs"][0]["epoch"] for t in (one, two)] == [0, 1]
    assert one["indices"] != two["indices"]
    assert set(one["indices"]) <= set(rows[0]["loader"][0]["split"]["sample"])
    assert one["site"] == line("for x, y in loader:")


def test_contents_by_sample(rows: tuple[Rows, Path]) -> None:
    one = turns(rows[0], 0)[0]
    assert [index for batch in one["content"] for index, _ in batch["samples"]] == one["indices"]
    assert [len(batch["leaves"]) for batch in one["content"]] == [2, 2, 2]


def test_an_evaluation_and_a_stream(rows: tuple[Rows, Path]) -> None:
    (evaluation,), (stream,) = turns(rows[0], 1), turns(rows[0], 2)
    assert (evaluation["backwards"], evaluation["grad"], evaluation["samples"]) == (0, False, 16)
    assert evaluation["draws_inside"][0] >= 24
    assert (stream["indices"], stream["drawn"]) == ([], 2)
    assert stream["content"][0]["leaves"][0] != stream["content"][1]["leaves"][0]


def test_random_numbers_of_fetches_and_steps(rows: tuple[Rows, Path]) -> None:
    drawn = [
        (row["batch"], row["where"], row["drawn"]["torch"][2])
        for row in rows[0]["chance"]
        if row["turn"] == 0
    ]
    assert [(batch, where) for batch, where, _ in drawn] == [
        (b, w) for b in (1, 2, 3) for w in ("fetch", "step")
    ]
    assert {count for _, where, count in drawn if where == "fetch"} == {12}
    assert all(count >= 12 for _, _, count in drawn)


def test_seeds(rows: tuple[Rows, Path]) -> None:
    assert [(row["of"], row["value"], row["site"]) for row in rows[0]["seed"][:3]] == [
        (kind, value, line("torch.manual_seed(7)"))
        for kind, value in (("torch", "7"), ("numpy", "8"), ("random", "9"))
    ]


def test_inputs_of_the_model(rows: tuple[Rows, Path]) -> None:
    assert [row["number"] for row in rows[0]["input"]] == [0, 1, 2, 3, 4, 5]
    assert all(row["leaves"][0][1] == 12 for row in rows[0]["input"])


def test_files(rows: tuple[Rows, Path]) -> None:
    found, folder = rows
    written = {(row["path"].replace(str(folder), ""), row["via"], row["mode"]) for row in found["write"]}
    assert {w for w in written if w[0].startswith("/") and "store" not in w[0]} >= {
        ("/ddp.pt", "torch.save", "w"), ("/log.txt", "open", "a"), ("/lock", "open", "w"),
    }  # fmt: skip
    assert not any("guarded" in path or path == "/dev/null" for path, _, _ in written)
    read = [(row["path"].replace(str(folder), ""), row["via"]) for row in found["read"]]
    assert ("/ddp.pt", "torch.load") in read
    assert ("/log.txt", "open") in read


def test_keys_that_were_left_out(rows: tuple[Rows, Path]) -> None:
    (row,) = rows[0]["keys"]
    assert (row["prefix"], row["in"], row["count"], row["site"]) == (
        "module.",
        "file",
        2,
        line("strict=False"),
    )


def test_lines(rows: tuple[Rows, Path]) -> None:
    by_line: dict[int, dict[str, Any]] = {row["site"]: row for row in rows[0]["line"]}
    assert by_line[line('print("epoch"')]["texts"] == ["epoch 0", "epoch 1"]
    bar = by_line[line("rstep %d")]
    assert (bar["count"], bar["texts"][:2]) == (16, ["step 0", "step 1"])
