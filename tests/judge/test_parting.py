"""The statement that parted two ranks, on programs as people write them. Marks in comments say where ranks stand."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from worlds import SECOND, Builder

from allranks.judge import judge
from allranks.world import CallKind, ExceptionInfo, Exit, Frame, Signature, Site

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.findings import Finding

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""


class Job:
    """A program and a world in it. `#A` in a comment of the program marks a line by name; a function is the one that
    holds the line."""

    def __init__(self, folder: Path, program: str, size: int = 2) -> None:
        self.path = folder / "train.py"
        self.path.write_text(HEAD + dedent(program))
        self.lines = self.path.read_text().splitlines()
        self.build = Builder(size)
        self.build.world.root = str(folder)

    def line(self, mark: str) -> int:
        return next(n for n, text in enumerate(self.lines, 1) if re.search(rf"#.*\b{mark}\b", text))

    def site(self, *marks: str) -> Site:
        return tuple(self.frame(mark) for mark in marks)

    def frame(self, mark: str) -> Frame:
        line = self.line(mark)
        indent = len(self.lines[line - 1]) - len(self.lines[line - 1].lstrip())
        for number in range(line, 0, -1):
            text = self.lines[number - 1]
            if (m := re.match(r"( *)def (\w+)", text)) and len(m[1]) < indent:
                return Frame(str(self.path), line, m[2], number)
        return Frame(str(self.path), line, "<module>", 1)

    def call(self, op: str, *marks: str, inside: str = "", **signature: object) -> CallKind:
        return CallKind(Signature(op, **signature), self.site(*marks), bool(inside), inside)  # type: ignore[arg-type]

    def loader(self, rank: int, mark: str, *drawn: int, exhausted: bool = True) -> Job:
        rows = [{"site": self.site(mark), "drawn": n, "exhausted": True} for n in drawn]
        rows[-1]["exhausted"] = exhausted
        self.build.world.ranks[rank].facts.setdefault("loaders", []).extend(rows)
        return self

    def verdict(self, *, final: bool = False) -> tuple[str, int | None, tuple[int, ...]]:
        return self.told(final=final)[0]

    def told(self, *, final: bool = False) -> tuple[tuple[str, int | None, tuple[int, ...]], Finding]:
        findings = judge(self.build.world, final=final)
        assert findings, "no verdict"
        first = findings[0]
        assert first.location is None or first.location.path == "train.py"
        return (first.fault, first.location.line if first.location else None, first.ranks), first


BRANCH = """
    def main():
        rank = dist.get_rank()
        loss = torch.zeros(1)
        for step in range(10):
            dist.all_reduce(loss)  # step
            {test}  # test
                {body}  # extra
        dist.barrier()  # end
"""


@pytest.mark.parametrize(
    "test",
    [
        "if rank == 0:",
        "if not rank:",
        "if dist.get_rank() == 0:",
        "if rank % 8 == 0 and step > 2:",
        "if rank in (-1, 0):",
    ],
)
def test_a_collective_in_a_branch_on_the_rank(tmp_path: Path, test: str) -> None:
    job = Job(tmp_path, BRANCH.format(test=test, body="dist.all_reduce(loss)"))
    step, extra = job.call("allreduce", "step"), job.call("allreduce", "extra")
    # Rank 1 pairs its next step with rank 0's extra call, without a word from PyTorch, and ends first.
    job.build.calls(0, [step, extra, step, extra]).calls(1, [step, step, step])
    job.build.blocked(0).exited(1)
    assert job.verdict() == ("rank-conditional-collective", job.line("test"), (0,))


def test_a_barrier_that_the_others_answer_with_the_next_step(tmp_path: Path) -> None:
    job = Job(tmp_path, BRANCH.format(test="if rank == 0:", body="dist.barrier()"))
    step, extra = job.call("allreduce", "step"), job.call("barrier", "extra")
    job.build.calls(0, [step, extra]).blocked(0).calls(1, [step, step]).blocked(1)
    assert job.verdict() == ("rank-conditional-collective", job.line("test"), (0,))


@pytest.mark.parametrize("guard", ["return", "return None"])
def test_a_return_of_the_other_ranks_above_the_call_is_the_same_branch(tmp_path: Path, guard: str) -> None:
    job = Job(
        tmp_path,
        f"""
        def log(loss):
            if dist.get_rank() != 0:  # test
                {guard}
            dist.all_reduce(loss)  # reduce

        def main():
            for step in range(10):
                train(step)  # step
                log(loss)  # log
        """,
    )
    step = job.call("allreduce", "step", inside="DDP.backward", shape=((10,),))
    job.build.calls(0, [step, job.call("allreduce", "log", "reduce", shape=((1,),))]).blocked(0)
    job.build.calls(1, [step, step]).blocked(1)
    assert job.verdict(final=True) == ("rank-conditional-collective", job.line("test"), (0,))


EVALUATE = """
    def evaluate(model, loader):
        for x in loader:  # turns
            model(x)  # forward

    def main():
        model = DDP(torch.nn.BatchNorm1d(2))
        for epoch in range(3):
            for x in loader:  # epoch
                model(x).sum().backward()  # step
            if dist.get_rank() == 0:  # test
                evaluate(model, loader)  # evaluate
            dist.barrier()  # end
"""


def test_a_forward_of_ddp_on_one_rank_is_a_hidden_collective(tmp_path: Path) -> None:
    job = Job(tmp_path, EVALUATE)
    step = job.call("allreduce", "step", inside="DDP.backward")
    job.build.calls(
        0, [step] * 4 + [job.call("broadcast", "evaluate", "forward", inside="DDP.forward")]
    ).blocked(0)
    job.build.calls(1, [step] * 4 + [job.call("barrier", "end")]).blocked(1)
    verdict, finding = job.told()
    assert verdict == ("hidden-collective", job.line("test"), (0,))
    assert [place.line for place in finding.related] == [job.line("forward"), job.line("end")]
    assert "DDP.forward" in str(finding.message)


def test_a_decorator_decides_and_the_decorated_function_communicates(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def rank_zero_only(fn):
            def wrapped(*args):
                if dist.get_rank() == 0:  # test
                    return fn(*args)  # wrapped
            return wrapped

        @rank_zero_only
        def log(loss):
            dist.all_reduce(loss)  # reduce

        def main():
            for step in range(10):
                train(step)  # step
                if step % 5 == 0:
                    log(loss)  # log
        """,
    )
    step = job.call("allreduce", "step", inside="DDP.backward", shape=((10,),))
    job.build.calls(0, [step, job.call("allreduce", "log", "wrapped", "reduce", shape=((1,),))]).blocked(0)
    job.build.calls(1, [step, step]).blocked(1)
    assert job.verdict(final=True) == ("rank-conditional-collective", job.line("reduce"), (0,))


def test_backward_on_one_rank(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            rank = dist.get_rank()
            for x in loader:  # turns
                loss = model(x).sum()  # forward
                if rank == 0:  # test
                    loss.backward()  # backward
            dist.barrier()  # end
        """,
    )
    job.build.calls(0, [job.call("allreduce", "backward", inside="DDP.backward")]).blocked(0)
    job.build.calls(1, [job.call("barrier", "end")]).blocked(1)
    assert job.verdict() == ("backward-rank-conditional", job.line("test"), (0,))


LOOP = """
    def train_epoch(model, loader):
        for x in loader:  # turns
            loss = model(x).sum()
            loss.backward()  # backward
            optimizer.step()

    def main():
        for epoch in range(2):
            train_epoch(model, loader)  # epoch
            dist.all_reduce(stats)  # stats
"""


def test_a_loader_that_ran_dry_sooner(tmp_path: Path) -> None:
    job = Job(tmp_path, LOOP)
    backward = job.call("allreduce", "epoch", "backward", inside="DDP.backward", shape=((9,),))
    stats = job.call("allreduce", "stats", shape=((2,),))
    job.build.calls(0, [backward] * 6).blocked(0).calls(1, [backward] * 5 + [stats]).blocked(1)
    job.loader(0, "turns", 6, exhausted=False).loader(1, "turns", 5)
    verdict, finding = job.told(final=True)
    assert verdict == ("uneven-iterations", job.line("turns"), (1,))
    assert "5 turns" in str(finding.message)
    assert "6" in str(finding.message)


SKIP = """
    def train_epoch(model, loader):
        for x in loader:  # turns
            try:
                loss = compute(model, x)  # compute
                loss.backward()  # backward
            except RuntimeError as error:  # handler
                print(error)
                continue

    def main():
        train_epoch(model, loader)  # epoch
        dist.barrier()  # end
"""


def test_an_error_that_was_swallowed_and_seen(tmp_path: Path) -> None:
    job = Job(tmp_path, SKIP)
    backward = job.call("allreduce", "epoch", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 4 + [job.call("barrier", "end")]).blocked(0).calls(
        1, [backward] * 5
    ).blocked(1)
    error = ExceptionInfo(
        "RuntimeError", "CUDA out of memory", job.site("epoch", "compute"), 3 * SECOND, True
    )
    job.build.world.ranks[0].exceptions.append(error)
    verdict, finding = job.told()
    assert verdict == ("swallowed-exception", job.line("handler"), (0,))
    assert "CUDA out of memory" in str(finding.message)


def test_an_error_that_was_swallowed_unseen_but_the_turns_are_equal(tmp_path: Path) -> None:
    job = Job(tmp_path, SKIP)
    backward = job.call("allreduce", "epoch", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 4 + [job.call("barrier", "end")]).blocked(0).calls(
        1, [backward] * 5
    ).blocked(1)
    job.loader(0, "turns", 5).loader(1, "turns", 5, exhausted=False)
    assert job.verdict() == ("swallowed-exception", job.line("handler"), (0,))


@pytest.mark.parametrize("way", ["continue", "pass"])
def test_a_batch_skipped_for_its_data(tmp_path: Path, way: str) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            for x, y in loader:  # turns
                loss = model(x).sum()
                if not torch.isfinite(loss):  # test
                    continue
                loss.backward()  # backward
            dist.barrier()  # end
        """
        if way == "continue"
        else """
        def main():
            for x, y in loader:  # turns
                loss = model(x).sum()
                if torch.isfinite(loss):  # test
                    loss.backward()  # backward
            dist.barrier()  # end
        """,
    )
    backward = job.call("allreduce", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 4 + [job.call("barrier", "end")]).blocked(0).calls(
        1, [backward] * 5
    ).blocked(1)
    job.loader(0, "turns", 5).loader(1, "turns", 5, exhausted=False)
    fault, line, _ = job.verdict()
    assert (fault, line) == ("data-dependent-collective", job.line("test"))


def test_one_call_for_each_key_that_a_rank_has(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def log_all(losses):
            for name, value in losses.items():  # keys
                dist.all_reduce(value)  # reduce

        def train(model, loader):
            for x in loader:  # turns
                losses = compute(model, x)
                log_all(losses)  # log
                losses["total"].backward()  # backward
        """,
        size=3,
    )
    reduce = job.call("allreduce", "log", "reduce", shape=((),))
    backward = job.call("allreduce", "backward", inside="DDP.backward", shape=((50,),))
    for rank in (0, 1):
        job.build.calls(rank, [reduce, reduce]).blocked(rank)
    job.build.calls(2, [reduce, backward]).blocked(2)
    for rank in range(3):
        job.loader(rank, "turns", 1, exhausted=False)
    assert job.verdict(final=True) == ("data-dependent-collective", job.line("keys"), (2,))


STOP = """
    def main():
        for epoch in range(20):
            for x in loader:  # turns
                loss = model(x).sum()
                loss.backward()  # backward
            value = validate(model)
            {leave}
        if dist.get_rank() == 0:
            torch.save(model, "m.pt")
        dist.destroy_process_group()  # end
"""


@pytest.mark.parametrize(
    ("leave", "word"),
    [
        ("if stopper.step(value): break  # leave", "break"),
        ("if value > best + 0.1:\n                return  # leave", "return"),
        ("if value != value:\n                sys.exit(1)  # leave", "exit"),
    ],
)
def test_one_rank_leaves_the_loop(tmp_path: Path, leave: str, word: str) -> None:
    job = Job(tmp_path, STOP.format(leave=leave))
    backward = job.call("allreduce", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 5).calls(1, [backward] * 4).exited(1)
    if word == "break":
        job.build.calls(1, [job.call("destroy_process_group", "end")], group="0/setup")
    job.build.blocked(0)
    job.loader(0, "turns", 2, 2, 1, exhausted=False).loader(1, "turns", 2, 2)
    verdict, finding = job.told()
    assert verdict == ("early-exit", job.line("leave"), (1,))
    assert f"by the {word}" in str(finding.message)


def test_other_calls_in_the_two_arms(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            rank = dist.get_rank()
            if rank == 0:  # test
                dist.barrier()  # one
                dist.broadcast(x, 0)
            else:
                dist.broadcast(x, 0)  # two
                dist.barrier()
        """,
    )
    job.build.calls(0, [job.call("barrier", "one")]).blocked(0)
    job.build.calls(1, [job.call("broadcast", "two")]).blocked(1)
    fault, line, _ = job.verdict()
    assert (fault, line) == ("collective-order", job.line("test"))


def test_two_calls_of_one_shape_swapped_in_two_arms_are_found_while_the_job_runs(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            if dist.get_rank() == 0:  # test
                dist.all_reduce(a)  # one
                dist.all_reduce(b)
            else:
                dist.all_reduce(b)  # two
                dist.all_reduce(a)
        """,
    )
    job.build.calls(0, [job.call("allreduce", "one")]).calls(1, [job.call("allreduce", "two")])
    fault, line, _ = job.verdict()
    assert (fault, line) == ("collective-order", job.line("test"))


def test_both_arms_broadcast_the_same_object_and_nothing_is_wrong(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            for step in range(9):
                if dist.get_rank() == 0:
                    dist.broadcast(mine, src=0)  # one
                else:
                    dist.broadcast(theirs, src=0)  # two
        """,
    )
    job.build.calls(0, [job.call("broadcast", "one", root=0)] * 9)
    job.build.calls(1, [job.call("broadcast", "two", root=0)] * 9)
    assert judge(job.build.world) == []
    for rank in (0, 1):
        job.build.exited(rank)
    assert judge(job.build.world, final=True) == []


def test_another_reduce_op_is_found_while_the_job_runs(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x, op=ops[dist.get_rank()])  # call\n")
    job.build.calls(0, [job.call("allreduce", "call", reduce_op="SUM")])
    job.build.calls(1, [job.call("allreduce", "call", reduce_op="MAX")])
    fault, line, _ = job.verdict()
    assert (fault, line) == ("collective-order", job.line("call"))


def test_other_shapes_from_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_gather(parts, x)  # call\n", size=3)
    for rank, size in enumerate([8, 8, 7]):
        job.build.calls(rank, [job.call("allgather", "call", shape=((size,),))]).blocked(rank)
    assert job.verdict(final=True) == ("collective-shape", job.line("call"), (2,))


def test_a_group_made_by_its_members_only(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            rank = dist.get_rank()
            if rank in (0, 1):  # test
                group = dist.new_group([0, 1])  # members
            everyone = dist.new_group()  # all
        """,
        size=3,
    )
    for rank in (0, 1):
        job.build.calls(rank, [job.call("new_group", "members", detail="[0, 1]")], group="0/setup")
        job.build.waits(rank, "store", [2])
    job.build.calls(2, [job.call("new_group", "all", detail="[0, 1, 2]")], group="0/setup").waits(
        2, "store", [0, 1]
    )
    assert job.verdict() == ("group-membership", job.line("test"), (2,))


def test_a_rank_that_fails_by_itself_is_the_cause_of_what_follows(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    value = table[key]  # error\n    dist.all_reduce(x)  # call\n")
    error = ExceptionInfo("KeyError", "'spk17'", job.site("error"), 5 * SECOND)
    closed = ExceptionInfo(
        "RuntimeError",
        "[pair.cc:538] Connection closed by peer [127.0.0.1]:1234. This is typically caused by a remote worker "
        "crashing",
        job.site("call"),
        6 * SECOND,
    )
    job.build.calls(0, [job.call("allreduce", "call")])
    job.build.exited(1, Exit(5 * SECOND, 1, None, error)).exited(0, Exit(6 * SECOND, 1, None, closed))
    verdict, finding = job.told(final=True)
    assert verdict == ("child-failed-first", job.line("error"), (1,))
    assert [e.kind for e in finding.evidence] == ["stack", "exit"]


def test_a_killed_rank(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x)  # call\n    work()  # work\n")
    job.build.calls(0, [job.call("allreduce", "call")] * 2).blocked(0).calls(
        1, [job.call("allreduce", "call")]
    )
    job.build.exited(1, Exit(9 * SECOND, None, 9))
    job.build.world.ranks[1].stack = job.site("work")
    job.build.world.ranks[1].stack_since_ns = 8 * SECOND
    verdict, finding = job.told()
    assert verdict == ("killed-by-signal", job.line("work"), (1,))
    assert str(finding.fix).startswith("Nothing but the kernel's out-of-memory killer")


def test_what_followed_a_killed_rank_is_told_as_torchrun_does(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x)  # call\n")
    for rank in range(2):
        job.build.calls(rank, [job.call("allreduce", "call")])
    job.build.exited(1, Exit(5 * SECOND, None, 11)).exited(0, Exit(6 * SECOND, None, 15))
    verdict, finding = job.told(final=True)
    assert (verdict[0], verdict[2]) == ("killed-by-signal", (1,))
    assert finding.evidence[-1].lines == ("rank 0: exitcode -15 (SIGTERM)",)
    assert "PYTHONFAULTHANDLER=1" in str(finding.fix)


def test_an_abort_after_a_clean_end_is_nobodys_fault(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x)  # call\n")
    job.build.exited(0, Exit(9 * SECOND, None, 6, None, True)).exited(1)
    assert judge(job.build.world, final=True) == []


def test_a_rank_that_computes_when_the_others_time_out_is_slow(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def tokenize():
            work()  # inner

        def prepare(rank):
            if rank == 0:
                tokenize()  # work
            dist.barrier()  # wait

        def main():
            prepare(rank)  # main
        """,
    )
    late = Exit(8 * SECOND, -15, 15, ended_by_host=True)
    timeout = ExceptionInfo(
        "RuntimeError",
        "Timed out waiting 4000ms for recv operation to complete",
        job.site("main", "wait"),
        7 * SECOND,
    )
    job.build.calls(1, [job.call("barrier", "main", "wait")]).exited(1, Exit(7 * SECOND, 1, None, timeout))
    job.build.exited(0, late)
    job.build.world.ranks[0].stack = job.site("main", "work", "inner")
    assert job.verdict(final=True) == ("slow-rank", job.line("work"), (0,))


def test_a_late_rank_is_reported_after_the_limit_and_not_before(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    work()  # work\n    dist.barrier()  # wait\n")
    job.build.calls(0, [job.call("barrier", "wait")]).blocked(0, since=10)
    job.build.world.ranks[1].stack = job.site("work")
    assert judge(job.build.world, stall_s=91) == []
    first = judge(job.build.world, stall_s=90)[0]
    assert (first.fault, first.severity.value, first.ranks) == ("slow-rank", "warning", (1,))


def test_a_ring_in_which_all_send_first(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.send(x, right)  # send\n    dist.recv(y, left)\n")
    for rank in (0, 1):
        job.build.calls(rank, [job.call("send", "send", peer=1 - rank)], group="0/p2p")
        job.build.blocked(rank, group="0/p2p", peers=[1 - rank])
    assert job.verdict() == ("unmatched-p2p", job.line("send"), (0, 1))


def test_without_the_source_the_verdict_says_less(tmp_path: Path) -> None:
    job = Job(tmp_path, BRANCH.format(test="if rank == 0:", body="dist.barrier()"))
    step, extra = job.call("allreduce", "step"), job.call("barrier", "extra")
    job.path.unlink()
    job.build.calls(0, [step, extra]).blocked(0).calls(1, [step, step]).blocked(1)
    finding = judge(job.build.world)[0]
    assert finding.fault == "collective-order"
    assert finding.confidence.value == "inferred"


def test_a_shorter_loop_inside_a_loop_over_epochs(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            for epoch in range(2):
                for x in loader:  # turns
                    model(x).sum().backward()  # backward
                dist.reduce(stats, dst=0)  # stats
        """,
    )
    backward, stats = job.call("allreduce", "backward", inside="DDP.backward"), job.call("reduce", "stats")
    job.build.calls(0, [backward] * 6).blocked(0).calls(1, [backward] * 5 + [stats]).blocked(1)
    job.loader(0, "turns", 6, exhausted=False).loader(1, "turns", 5)
    assert job.verdict() == ("uneven-iterations", job.line("turns"), (1,))


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "SIGTERM"])
def test_a_job_that_was_interrupted_is_nobodys_fault(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path, "def main():\n    for step in range(9):\n        dist.all_reduce(x)  # call\n")
    call = job.call("allreduce", "call")
    job.build.calls(0, [call] * 5).calls(1, [call] * 4)
    error = ExceptionInfo("KeyboardInterrupt", "", job.site("call"), 8 * SECOND)
    for rank in (0, 1):
        job.build.exited(
            rank,
            Exit(8 * SECOND, 1, None, error) if how == "KeyboardInterrupt" else Exit(8 * SECOND, None, 15),
        )
    assert judge(job.build.world, final=True) == []


def test_a_rank_killed_after_its_stack_was_taken_is_placed_by_its_last_call(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    start()  # start\n    dist.all_reduce(x)  # call\n")
    job.build.calls(0, [job.call("allreduce", "call")] * 3).blocked(0).calls(
        1, [job.call("allreduce", "call")] * 2
    )
    job.build.exited(1, Exit(9 * SECOND, None, 9))
    job.build.world.ranks[1].stack = job.site("start")
    assert job.verdict() == ("killed-by-signal", job.line("call"), (1,))


def test_a_rank_without_a_recorder_has_not_left(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x)  # call\n")
    job.build.calls(0, [job.call("allreduce", "call")]).blocked(0)
    job.build.exited(1)
    job.build.world.ranks[1].facts["unheard"] = True
    assert judge(job.build.world) == []
    job.build.exited(0)
    assert judge(job.build.world, final=True) == []


def test_a_loop_whose_turns_depend_on_the_rank(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            rank = dist.get_rank()
            for i in range(3 if rank == 1 else 4):  # turns
                dist.all_reduce(x)  # call
            dist.barrier()  # end
        """,
    )
    call = job.call("allreduce", "call")
    job.build.calls(0, [call] * 4).blocked(0).calls(1, [call] * 3 + [job.call("barrier", "end")]).blocked(1)
    assert job.verdict() == ("uneven-iterations", job.line("turns"), (1,))
