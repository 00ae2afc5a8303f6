"""What the verdicts say, beside which fault they name: the cause in words, the mend, the places that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_parting import Job
from worlds import SECOND

from allranks.world import ExceptionInfo, Exit

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.findings import Finding


def _stuck(job: Job, rank: int, op: str, mark: str, peer: int, tag: int = 0) -> None:
    job.build.calls(rank, [job.call(op, mark, peer=peer, tag=tag)], group="0/p2p")
    job.build.blocked(rank, group="0/p2p", peers=[peer])


def test_a_ring_in_which_all_receive_first(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.recv(x, left)  # recv\n    dist.send(y, right)\n")
    for rank in (0, 1):
        _stuck(job, rank, "recv", "recv", 1 - rank)
    verdict, finding = job.told()
    assert verdict == ("unmatched-p2p", job.line("recv"), (0, 1))
    assert str(finding.fix).startswith("let half of the ranks send first")


def test_a_ring_in_which_all_send_first(tmp_path: Path) -> None:
    job = Job(tmp_path, "def main():\n    dist.send(x, right)  # send\n    dist.recv(y, left)\n")
    for rank in (0, 1):
        _stuck(job, rank, "send", "send", 1 - rank)
    assert str(job.told()[1].fix).startswith("let half of the ranks receive first")


def test_a_send_and_a_receive_with_other_tags(tmp_path: Path) -> None:
    job = Job(
        tmp_path, "def main():\n    dist.send(x, 1, tag=6)  # send\n    dist.recv(x, 0, tag=5)  # recv\n"
    )
    _stuck(job, 0, "send", "send", 1, tag=6)
    _stuck(job, 1, "recv", "recv", 0, tag=5)
    verdict, finding = job.told()
    assert verdict == ("unmatched-p2p", job.line("send"), (0, 1))
    assert str(finding.message) == (
        "rank 0 sends to rank 1 with tag 6, and rank 1 receives with tag 5: they never meet"
    )
    assert str(finding.fix) == "give a send and its receive the same tag"
    assert [place.line for place in finding.related] == [job.line("recv")]


STEP = "def main():\n    dist.all_reduce(x)  # call\n    work()  # work\n"


def _one_ends(folder: Path, end: Exit, **facts: object) -> Job:
    job = Job(folder, STEP)
    job.build.calls(0, [job.call("allreduce", "call")] * 2).blocked(0)
    job.build.calls(1, [job.call("allreduce", "call")]).exited(1, end)
    job.build.world.ranks[1].facts.update(facts)
    return job


def test_a_rank_that_ended_without_a_word_was_ended_from_outside(tmp_path: Path) -> None:
    job = _one_ends(tmp_path, Exit(9 * SECOND))
    job.build.world.ranks[1].stack = job.site("work")
    job.build.world.ranks[1].stack_since_ns = 8 * SECOND
    verdict, finding = job.told()
    assert verdict == ("killed-by-signal", job.line("work"), (1,))
    assert str(finding.message).startswith("rank 1 was ended from outside, without a word")


def test_a_rank_that_signalled_itself_is_told_by_its_signal(tmp_path: Path) -> None:
    job = Job(tmp_path, STEP)
    called = {"how": "os.kill", "status": -9, "text": "", "site": job.site("work")}
    job = _one_ends(tmp_path, Exit(9 * SECOND), exit_site=job.site("work"), exit_call=called)
    verdict, finding = job.told()
    assert verdict == ("killed-by-signal", job.line("work"), (1,))
    assert str(finding.message).startswith("rank 1 was killed by SIGKILL")


def test_a_rank_that_said_goodbye_was_not_ended_from_outside(tmp_path: Path) -> None:
    job = _one_ends(tmp_path, Exit(9 * SECOND, clean=True))
    assert job.verdict()[0] == "early-exit"


INIT = "import sys\nsys.exit(3)  # leave\ndist.init_process_group()  # init\n"


def _joining(folder: Path, size: int = 2) -> Job:
    job = Job(folder, INIT, size)
    for rank, state in job.build.world.ranks.items():
        state.facts["init_arguments"] = {"rank": rank, "world_size": size, "address": "127.0.0.1:29500"}
        state.facts["init_site"] = job.site("init")
    return job


def test_a_rank_that_left_before_the_others_meet(tmp_path: Path) -> None:
    job = _joining(tmp_path, 3)
    for rank in (0, 1):
        job.build.waits(rank, "init", [2])
    called = {"how": "sys.exit", "status": 3, "text": "", "site": job.site("leave")}
    job.build.exited(2, Exit(5 * SECOND, clean=True))
    job.build.world.ranks[2].facts.update(exit_site=job.site("leave"), exit_call=called, init_arguments={})
    verdict, finding = job.told()
    assert verdict == ("child-failed-first", job.line("leave"), (2,))
    assert str(finding.message) == (
        "rank 2 left by sys.exit with status 3 before init_process_group, where ranks 0, 1 wait for it"
    )
    assert [place.line for place in finding.related] == [job.line("init")]


def test_two_processes_with_one_rank_number_are_why_the_port_is_taken(tmp_path: Path) -> None:
    job = _joining(tmp_path)
    del job.build.world.ranks[1]
    job.build.waits(0, "init", [1])
    job.build.world.ranks[0].facts["same_rank"] = [0]
    taken = ExceptionInfo("DistNetworkError", "EADDRINUSE, address already in use", job.site("init"))
    twin = {"same_rank": [0], "init_arguments": dict(job.build.world.ranks[0].facts["init_arguments"])}
    job.build.world.agents.append({"role": "process", "exit": Exit(SECOND, 1, None, taken), "facts": twin})
    assert job.verdict() == ("rank-env-conflict", job.line("init"), (0,))


def test_a_helper_that_inherits_a_rank_is_no_second_rank(tmp_path: Path) -> None:
    job = _joining(tmp_path)
    del job.build.world.ranks[1]
    job.build.waits(0, "init", [1])
    job.build.world.ranks[0].facts["same_rank"] = [0]
    taken = ExceptionInfo("DistNetworkError", "EADDRINUSE, address already in use", job.site("init"))
    helper = {"role": "process", "exit": Exit(SECOND, 1, None, taken), "facts": {"same_rank": [0]}}
    job.build.world.agents.append(helper)
    assert job.verdict()[0] == "port-in-use"


def test_other_world_sizes_are_the_cause_of_what_fails_later(tmp_path: Path) -> None:
    job = _joining(tmp_path)
    job.build.world.ranks[1].facts["init_arguments"]["world_size"] = 3
    job.build.waits(1, "init", [2])
    lost = ExceptionInfo("RuntimeError", "wait timeout after 40000ms", job.site("init"), 8 * SECOND)
    job.build.calls(0, [job.call("allgather", "init")])
    job.build.exited(1, Exit(8 * SECOND, 1, None, lost)).exited(0, Exit(9 * SECOND, 1))
    assert job.verdict(final=True) == ("rank-env-conflict", job.line("init"), (0, 1))


NOT_FINITE = """
    def train_step(model, x, y):
        loss = (model(x) - y).pow(2).mean()
        if not torch.isfinite(loss):  # test
            return
        loss.backward()  # backward

    def main():
        dist.init_process_group()
        g = torch.Generator().manual_seed(dist.get_rank())
        model = DDP(torch.nn.Linear(4, 1))
        for step in range(9):
            train_step(model, torch.randn(4, 4, generator=g), 0)  # step
        dist.barrier()  # end

    main()
"""


def test_a_test_on_a_loss_is_about_data_also_where_the_rank_chose_the_data(tmp_path: Path) -> None:
    job = Job(tmp_path, NOT_FINITE)
    backward = job.call("allreduce", "step", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 9).blocked(0)
    job.build.calls(1, [backward] * 8 + [job.call("barrier", "end")]).blocked(1)
    assert job.verdict() == ("data-dependent-collective", job.line("test"), (1,))


@pytest.mark.parametrize(
    ("inside", "after", "aside"),
    [("DDP.forward", "", True), ("DDP.forward", ".backward()", False), ("SyncBatchNorm", "", False)],
)
def test_only_an_evaluation_may_go_around_ddp(tmp_path: Path, inside: str, after: str, aside: bool) -> None:
    job = Job(
        tmp_path,
        f"""
        def work(model, x):
            model(x).sum(){after}  # forward

        def main():
            if dist.get_rank() == 0:  # test
                work(model, x)  # work
            dist.barrier()  # end
        """,
    )
    job.build.calls(0, [job.call("broadcast", "work", "forward", inside=inside)]).blocked(0)
    job.build.calls(1, [job.call("barrier", "end")]).blocked(1)
    verdict, finding = job.told()
    assert verdict == ("hidden-collective", job.line("test"), (0,))
    assert ("model.module" in str(finding.fix)) is aside


def _roles(finding: Finding) -> list[tuple[int | None, str]]:
    return [(place.line, str(place.role)) for place in finding.related]


@pytest.mark.parametrize(
    ("one", "other", "gave"),
    [
        ({"shape": ((4,),)}, {"shape": ((3,),)}, ("allreduce of ? [4]", "allreduce of ? [3]")),
        ({"dtype": "float32"}, {"dtype": "float64"}, ("allreduce of float32", "allreduce of float64")),
        ({"reduce_op": "MAX"}, {"reduce_op": "SUM"}, ("allreduce (MAX)", "allreduce (SUM)")),
    ],
)
def test_calls_from_one_line_are_told_by_what_each_rank_gave(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], gave: tuple[str, str]
) -> None:
    job = Job(tmp_path, "def main():\n    dist.all_reduce(x)  # call\n")
    for rank, given in enumerate((one, other)):
        job.build.calls(rank, [job.call("allreduce", "call", **given)]).blocked(rank)
    finding = job.told(final=True)[1]
    line = job.line("call")
    assert _roles(finding) == [(line, f"rank 0 gave {gave[0]}"), (line, f"rank 1 gave {gave[1]}")]
    assert gave[0] in str(finding.message)
    assert gave[1] in str(finding.message)
    assert (str(finding.fix) == "pass the same ReduceOp on every rank") is ("reduce_op" in one)


def test_swapped_calls_in_one_helper_are_told_by_their_callers(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def reduce(x):
            dist.all_reduce(x)  # helper

        def main():
            if dist.get_rank() == 0:  # test
                reduce(a)  # one
                reduce(b)
            else:
                reduce(b)  # two
                reduce(a)
        """,
    )
    job.build.calls(0, [job.call("allreduce", "one", "helper")])
    job.build.calls(1, [job.call("allreduce", "two", "helper")])
    verdict, finding = job.told()
    assert verdict[:2] == ("collective-order", job.line("test"))
    assert _roles(finding) == [
        (job.line("one"), "where rank 0 stood"),
        (job.line("two"), "where rank 1 stood"),
    ]
    assert f"train.py:{job.line('one')} where rank 1, which stood at train.py:{job.line('two')}" in str(
        finding.message
    )


def test_a_rank_that_leaves_is_shown_with_the_test_that_decides(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def main():
            for epoch in range(9):
                dist.all_reduce(x)  # step
                if stopper(x):  # test
                    print("stop")
                    break  # break
            dist.barrier()  # end
        """,
    )
    step = job.call("allreduce", "step")
    job.build.calls(0, [step] * 4).blocked(0).calls(1, [step] * 3 + [job.call("barrier", "end")]).blocked(1)
    verdict, finding = job.told()
    assert verdict == ("early-exit", job.line("break"), (1,))
    assert _roles(finding)[-1] == (job.line("test"), "the test that decides who leaves")


def test_what_a_handler_may_have_swallowed_is_named(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def work(x):
            if x.max() > 3:
                raise ValueError("out of range")  # raise
            model(x).sum().backward()  # backward

        def main():
            for x in loader:  # turns
                try:
                    work(x)  # work
                except Exception:  # handler
                    continue
            dist.barrier()  # end
        """,
    )
    backward = job.call("allreduce", "work", "backward", inside="DDP.backward")
    job.build.calls(0, [backward] * 5).blocked(0)
    job.build.calls(1, [backward] * 4 + [job.call("barrier", "end")]).blocked(1)
    job.loader(0, "turns", 5, exhausted=False).loader(1, "turns", 5)
    verdict, finding = job.told()
    assert verdict == ("swallowed-exception", job.line("handler"), (1,))
    assert _roles(finding)[-1] == (job.line("raise"), "may have raised ValueError")
