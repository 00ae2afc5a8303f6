"""What the verdicts say, beside which fault they name: the cause in words, the mend, the places that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_parting import Job
from worlds import SECOND

from allranks.world import ExceptionInfo, Exit

if TYPE_CHECKING:
    from pathlib import Path


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
