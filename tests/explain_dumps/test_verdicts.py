"""What the dumps of a job mean: the fault, the ranks, the call, and the lines of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks.explain.dumps import explain_dumps
from allranks.findings import Confidence, Finding, Report, Severity

from .jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRAIN = "/home/me/train.py"


def verdict(job: Job, folder: Path) -> Finding:
    """The only finding on a job's dumps."""
    report = explain_dumps(job.write(folder))
    assert [str(f.message) for f in report.findings[1:]] == []
    assert report.findings, "nothing was found"
    return report.findings[0]


def line_of(finding: Finding) -> tuple[str, int | None]:
    assert finding.location is not None
    return finding.location.path, finding.location.line


def everyone(job: Job, *, but: tuple[int, ...] = ()) -> list:
    return [rank for rank in job if rank.rank not in but]


# A rank that is missing from a call.


@pytest.mark.parametrize("culprit", range(4))
def test_the_missing_rank_whichever_file_comes_first(tmp_path: Path, culprit: int) -> None:
    job = Job(4)
    job.steps()
    for rank in everyone(job, but=(culprit,)):
        rank.call("broadcast", line=20, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("early-exit", (culprit,))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.MEASURED
    assert line_of(finding) == (TRAIN, 12)
    assert [(place.line, place.ranks) for place in finding.related] == [
        (20, tuple(r for r in range(4) if r != culprit))
    ]
    assert str(finding.message).startswith(
        f"rank {culprit} did not make call #13 of process group 0 (default_pg), broadcast"
    )


def test_two_ranks_the_one_behind_is_missing(tmp_path: Path) -> None:
    job = Job(2)
    job.steps()
    job[1].call("all_reduce", line=10, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("early-exit", (0,))


def test_a_rank_that_made_no_call_at_all(tmp_path: Path) -> None:
    job = Job(3)
    for rank in everyone(job, but=(1,)):
        rank.call("all_reduce", line=10, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("early-exit", (1,))
    assert "made no call at all" in str(finding.message)
    assert line_of(finding) == (TRAIN, 10)


def test_waiting_ranks_may_have_gone_on_issuing_calls(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    for rank in everyone(job, but=(2,)):
        for line in (10, 11, 12):
            rank.call("all_reduce", line=line, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert finding.ranks == (2,)
    assert "call #13" in str(finding.message)


def test_the_helper_that_all_call_is_not_the_line(tmp_path: Path) -> None:
    """Both sides are in one helper function: the lines from which they called it tell them apart."""
    job = Job(3)
    for rank in job:
        for line, size in ((10, 4), (11, 8)):
            rank.call("all_reduce", line=line, size=size)
    for rank in everyone(job, but=(0,)):
        rank.call("all_reduce", line=10, size=4, done=False)
    for rank in job:
        for entry in rank.entries:
            entry["frames"].insert(2, {"name": "reduce", "filename": "/home/me/tools.py", "line": 5})
    finding = verdict(job, tmp_path)
    assert line_of(finding) == (TRAIN, 11)
    assert [(place.path, place.line) for place in finding.related] == [(TRAIN, 10)]


def test_only_the_ranks_that_stopped_are_named(tmp_path: Path) -> None:
    """Rank 2 stops; rank 3 waits for it in their own group, so rank 3 is missing elsewhere through no fault."""
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    job.steps()
    for rank in everyone(job, but=(2,)):
        rank.call("all_reduce", line=30, group="1" if rank.rank < 2 else "2", done=rank.rank < 2)
    for rank in (job[0], job[1]):
        rank.call("all_reduce", line=31, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("early-exit", (2,))
    assert "process group 2 (tp)" in str(finding.message)
    assert line_of(finding) == (TRAIN, 12)
    assert any("1 other waits follow" in str(e.title) for e in finding.evidence)


def test_in_a_subgroup_the_others_are_not_missing(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    job.steps()
    job[0].call("all_reduce", line=30, group="1")
    job[1].call("all_reduce", line=30, group="1")
    job[3].call("all_reduce", line=30, group="2", done=False)
    finding = verdict(job, tmp_path)
    assert finding.ranks == (2,)
    assert finding.related[0].ranks == (3,)


def test_a_call_that_one_rank_alone_made(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    job[0].call("barrier", line=40, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("rank-conditional-collective", (0,))
    assert line_of(finding) == (TRAIN, 40)


def test_one_rank_went_once_more_through_the_loop(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    job[3].call("all_reduce", line=10, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("uneven-iterations", (3,))
    assert line_of(finding) == (TRAIN, 10)


def test_a_full_buffer_does_not_make_a_rank_missing(tmp_path: Path) -> None:
    """All calls of the subgroup have left rank 1's buffer; only rank 0 still holds the last."""
    job = Job(2, {"1": ("rare", [0, 1])})
    for rank in job:
        rank.call("all_reduce", group="1", line=5)
    job.steps(20)
    for rank, keep in ((job[0], None), (job[1], 30)):
        (tmp_path / f"rank_{rank.rank}").write_bytes(_pickled(rank.dump(keep=keep)))
    assert explain_dumps([tmp_path]).findings == []


def test_a_full_buffer_does_not_hide_a_missing_rank(tmp_path: Path) -> None:
    job = Job(2, {"1": ("rare", [0, 1])})
    for rank in job:
        rank.call("all_reduce", group="1", line=5)
    job.steps(20)
    job[0].call("all_reduce", group="1", line=5, done=False)
    for rank in job:
        (tmp_path / f"rank_{rank.rank}").write_bytes(_pickled(rank.dump(keep=30)))
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks) for f in report.findings] == [("early-exit", (1,))]
    assert "call #2 of process group 1 (rare)" in str(report.findings[0].message)


def _pickled(dump: dict) -> bytes:
    from .jobs import pickled

    return pickled(dump)


# Dumps that are not there, or not whole.


def test_the_rank_without_a_dump_is_the_likely_one(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=10, done=False)
    paths = job.write(tmp_path)
    paths[0].unlink()
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks, f.confidence) for f in report.findings] == [
        ("early-exit", (0,), Confidence.INFERRED)
    ]
    assert "no whole dump of rank 0" in str(report.findings[0].message)
    assert [(b.slug, b.ranks) for b in report.blind_spots] == [("dump-missing", (0,))]


@pytest.mark.parametrize("share", [0, 1, 3, 8])
def test_the_rank_whose_dump_is_cut_off_is_the_likely_one(tmp_path: Path, share: int) -> None:
    job = Job(4)
    job.steps(10)
    for rank in job:
        rank.call("all_reduce", line=10, done=False)
    paths = job.write(tmp_path)
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[: len(whole) * share // 10])
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks) for f in report.findings] == [("early-exit", (3,))]
    assert report.blind_spots[0].slug == ("dump-cut-off" if share else "dump-unreadable")
    assert report.blind_spots[0].ranks == (3,)


def test_a_missing_dump_is_no_fault_while_nobody_waits(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    job.write(tmp_path)[2].unlink()
    report = explain_dumps([tmp_path])
    assert report.findings == []
    assert [b.slug for b in report.blind_spots] == ["dump-missing"]


def test_who_is_missing_in_the_dumps_at_hand_outweighs_missing_dumps(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    for rank in everyone(job, but=(1,)):
        rank.call("all_reduce", line=10, done=False)
    job.write(tmp_path)[3].unlink()
    assert [f.ranks for f in explain_dumps([tmp_path]).findings] == [(1,)]


def test_two_dumps_of_many_accuse_nobody(tmp_path: Path) -> None:
    job = Job(8)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=10, done=False)
    paths = job.write(tmp_path)
    report = explain_dumps(paths[:2])
    assert [(f.ranks, f.severity) for f in report.findings] == [((), Severity.WARNING)]
    assert "cannot be told without the dumps of ranks 2-7" in str(report.findings[0].message)


# Calls that do not go together.


@pytest.mark.parametrize("culprit", range(4))
def test_another_operation(tmp_path: Path, culprit: int) -> None:
    job = Job(4)
    job.steps()
    for rank in job:
        if rank.rank == culprit:
            rank.call("broadcast", line=88, size=16, done=False)
        else:
            rank.call("all_reduce", line=10, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (culprit,))
    assert line_of(finding) == (TRAIN, 88)
    assert finding.related[0].line == 10
    assert "call #13" in str(finding.message)


@pytest.mark.parametrize("change", [{"size": 17}, {"dtype": "Half"}, {"size": [4, 4, 2]}], ids=str)
@pytest.mark.parametrize("culprit", [0, 2])
def test_another_size_or_type(tmp_path: Path, culprit: int, change: dict) -> None:
    job = Job(3)
    job.steps()
    for rank in job:
        how = {"size": 16, "line": 10, "done": False} | (change if rank.rank == culprit else {})
        rank.call("all_reduce", **how)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-shape", (culprit,))
    assert line_of(finding) == (TRAIN, 10)


def test_the_same_number_of_elements_in_another_shape_goes_together(tmp_path: Path) -> None:
    job = Job(2)
    job.steps()
    job[0].call("all_reduce", size=[4, 2])
    job[1].call("all_reduce", size=[8])
    assert explain_dumps(job.write(tmp_path)).findings == []


@pytest.mark.parametrize(
    "calls",
    [
        {"op": "gather", "sizes": ([4], [4]), "outputs": ([8], [])},
        {"op": "scatter", "sizes": ([8], []), "outputs": ([4], [4])},
        {"op": "all_to_all_single", "sizes": ([4], [6]), "outputs": ([6], [4])},
        {"op": "all_gather", "sizes": ([4], [6]), "outputs": ([10], [10])},
        {"op": "reduce", "sizes": ([4], [4]), "outputs": ([4], [])},
        {"op": "a_new_operation", "sizes": ([4], [6]), "outputs": ([4], [6])},
    ],
    ids=lambda c: c["op"],
)
def test_sizes_that_may_differ_are_no_mismatch(tmp_path: Path, calls: dict) -> None:
    job = Job(2)
    for rank, size, out in zip(job, calls["sizes"], calls["outputs"], strict=True):
        rank.call(calls["op"], size=size)
        rank.entries[-1]["output_sizes"] = [out] if out else []
        rank.entries[-1]["input_sizes"] = [size] if size else []
    assert explain_dumps(job.write(tmp_path)).findings == []


def test_two_ranks_the_one_that_does_something_new_is_at_fault(tmp_path: Path) -> None:
    for culprit in (0, 1):
        job = Job(2)
        job.steps()
        job[culprit].call("broadcast", line=50, done=False)
        job[1 - culprit].call("all_reduce", line=10, size=16, done=False)
        folder = tmp_path / str(culprit)
        folder.mkdir()
        finding = verdict(job, folder)
        assert finding.ranks == (culprit,)
        assert finding.confidence is Confidence.INFERRED
        assert line_of(finding) == (TRAIN, 50)


@pytest.mark.parametrize("change", [{"op": "broadcast", "line": 88}, {"size": 5}, {"dtype": "Half"}], ids=str)
@pytest.mark.parametrize("culprit", [0, 1])
def test_two_ranks_the_one_that_never_made_such_a_call_is_at_fault(
    tmp_path: Path, culprit: int, change: dict
) -> None:
    """The call comes at a place where neither side used to call, so that only the call itself can tell."""
    job = Job(2)
    for rank in job:
        for line in (10, 11, 12, 13, 11):
            rank.call("all_reduce", line=line)
        how = {"op": "all_reduce", "line": 13, "done": False} | (change if rank.rank == culprit else {})
        rank.call(**how)
    assert verdict(job, tmp_path).ranks == (culprit,)


def test_two_ranks_that_did_nothing_before_are_both_named(tmp_path: Path) -> None:
    job = Job(2)
    job[0].call("broadcast", line=50, done=False)
    job[1].call("all_reduce", line=10, done=False)
    finding = verdict(job, tmp_path)
    assert finding.ranks == (0, 1)
    assert "do not tell which side is wrong" in str(finding.message)


def test_a_rank_that_went_on_to_what_comes_next(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    for rank in job:
        if rank.rank == 1:
            rank.call("_all_gather_base", line=11, size=8, out=[32], done=False)
        else:
            rank.call("all_reduce", line=10, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (1,))
    assert str(finding.message).startswith("rank 1 went on to _all_gather_base")
    assert "without call #13" in str(finding.message)


def test_same_operation_from_another_line_is_order_not_shape(tmp_path: Path) -> None:
    job = Job(4)
    job.steps()
    for rank in job:
        if rank.rank == 1:
            rank.call("all_reduce", line=12, size=[4, 2], done=False)
        else:
            rank.call("all_reduce", line=10, size=16, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (1,))
    assert line_of(finding) == (TRAIN, 12)


def test_a_mismatch_in_the_middle_that_went_unnoticed(tmp_path: Path) -> None:
    job = Job(3)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=70, size=5 if rank.rank == 2 else 6)
    job.steps()
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-shape", (2,))
    assert "call #13" in str(finding.message)


def test_the_first_mismatch_counts_also_when_buffers_begin_elsewhere(tmp_path: Path) -> None:
    job = Job(4)
    job.steps(10)
    for rank in job:
        rank.call("all_reduce", line=70, size=5 if rank.rank == 2 else 6)
    job.steps(10)
    from .jobs import pickled

    for rank in job:
        (tmp_path / f"rank_{rank.rank}").write_bytes(pickled(rank.dump(keep=35 + 3 * rank.rank)))
    report = explain_dumps([tmp_path])
    assert [(f.fault, f.ranks) for f in report.findings] == [("collective-shape", (2,))]
    assert "call #31" in str(report.findings[0].message)


# Calls that pair by luck.


def shifted(change: Callable[[Job], None]) -> Job:
    job = Job(4)
    for step in range(8):
        for rank in job:
            for line in (10, 11, 12, 13):
                if step == 3 and rank.rank == 2 and line == 11:
                    change(job)
                else:
                    rank.call("all_reduce", line=line, size=8)
    return job


def test_a_skipped_call_of_equal_size_is_found_long_after(tmp_path: Path) -> None:
    finding = verdict(shifted(lambda job: None), tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (2,))
    assert "left out 1 calls of process group 0 (default_pg), first #14, all_reduce of Float [8]" in str(
        finding.message
    )
    assert line_of(finding) == (TRAIN, 11)


def test_a_call_too_many_of_equal_size(tmp_path: Path) -> None:
    def twice(job: Job) -> None:
        job[2].call("all_reduce", line=50, size=8)
        job[2].call("all_reduce", line=11, size=8)

    finding = verdict(shifted(twice), tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (2,))
    assert "made 1 calls" in str(finding.message)
    assert line_of(finding) == (TRAIN, 50)


def test_two_calls_in_the_other_order(tmp_path: Path) -> None:
    job = Job(4)
    for step in range(6):
        for rank in job:
            swapped = step == 3 and rank.rank == 1
            for line in (10, 12, 11, 13) if swapped else (10, 11, 12, 13):
                rank.call("all_reduce", line=line, size=8)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (1,))
    assert "in the other order, from #14" in str(finding.message)


def test_one_call_from_two_arms_of_a_branch_is_right(tmp_path: Path) -> None:
    job = Job(4)
    for _ in range(6):
        for rank in job:
            rank.call("all_reduce", line=10)
            rank.call("broadcast", line=20 if rank.rank == 0 else 22)
            rank.call("barrier", line=30 if rank.rank < 2 else 31)
    assert explain_dumps(job.write(tmp_path)).findings == []


def test_the_same_program_in_other_folders_is_the_same(tmp_path: Path) -> None:
    job = Job(2)
    for _ in range(6):
        for rank in job:
            for line in (10, 11, 12):
                rank.call("all_reduce", line=line, path=f"/scratch/{rank.rank}/train.py")
    assert explain_dumps(job.write(tmp_path)).findings == []


# All are there.


def test_healthy_dumps_say_nothing(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    job.steps()
    for rank in job:
        rank.call("all_reduce", group="1" if rank.rank < 2 else "2")
    report = explain_dumps(job.write(tmp_path))
    assert report.findings == []
    assert report.blind_spots == []
    assert report.world == {
        "source": "flight-recorder",
        "size": 4,
        "dumps": 4,
        "versions": ["2.10"],
        "calls": 52,
        "groups": [
            {"name": "0", "description": "default_pg", "size": 4, "calls": 12},
            {"name": "1", "description": "tp", "size": 2, "calls": 1},
            {"name": "2", "description": "tp", "size": 2, "calls": 1},
        ],
    }


def stuck(late_s: float = 0.0) -> Job:
    job = Job(4)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=10, done=False, late_s=late_s if rank.rank == 3 else 0.0)
    return job


def test_all_ranks_in_one_call(tmp_path: Path) -> None:
    finding = verdict(stuck(), tmp_path)
    assert (finding.fault, finding.ranks, finding.severity) == ("slow-rank", (), Severity.WARNING)
    assert "none is missing and none differs" in str(finding.message)
    assert line_of(finding) == (TRAIN, 10)


def test_all_ranks_in_one_call_and_who_came_last(tmp_path: Path) -> None:
    finding = verdict(stuck(5.0), tmp_path)
    assert (finding.fault, finding.ranks) == ("slow-rank", (3,))
    assert "rank 3 came 5.0 s later than usual" in str(finding.message)


def test_of_groups_that_are_stuck_the_one_with_a_late_rank_is_told(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    for step in range(6):
        for rank in job:
            group, last = "1" if rank.rank < 2 else "2", step == 5
            rank.call(
                "all_reduce", group=group, done=not last, late_s=4.0 if last and rank.rank == 2 else 0.0
            )
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("slow-rank", (2,))
    assert "process group 2 (tp)" in str(finding.message)


def test_a_clock_that_is_set_differently_is_not_lateness(tmp_path: Path) -> None:
    job = stuck()
    for entry in job[1].entries:
        entry["time_created_ns"] += 90_000_000_000
    assert verdict(job, tmp_path).ranks == ()


def test_a_call_under_way_when_a_running_job_dumps_is_no_loud_finding(tmp_path: Path) -> None:
    import os

    job = stuck()
    pending = job[0].entries[-1]["time_created_ns"]
    for path in job.write(tmp_path):
        os.utime(path, ns=(pending + 2_000_000_000, pending + 2_000_000_000))
    report = explain_dumps([tmp_path])
    assert report.loud == []
    assert [f.severity for f in report.findings] == [Severity.INFO]


def test_a_rank_that_has_not_noticed_the_end_of_a_call_is_not_stuck(tmp_path: Path) -> None:
    job = Job(3)
    job.steps()
    for rank in job:
        rank.call("all_reduce", line=10, done=rank.rank != 1)
    assert explain_dumps(job.write(tmp_path)).findings == []


def test_dumps_of_different_moments_are_no_fault(tmp_path: Path) -> None:
    job = Job(3)
    job.steps()
    job[0].call("all_reduce", line=10)
    job[2].call("all_reduce", line=10)
    report = explain_dumps(job.write(tmp_path))
    assert report.findings == []
    assert [b.slug for b in report.blind_spots] == ["dumps-of-different-times"]


def test_who_kept_the_others_waiting_in_a_healthy_job(tmp_path: Path) -> None:
    job = Job(4)
    job.steps(4)
    for rank in job:
        rank.call("all_reduce", line=77, late_s=3.5 if rank.rank == 2 else 0.0)
    job.steps(2)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks, finding.severity) == ("slow-rank", (2,), Severity.INFO)
    assert line_of(finding) == (TRAIN, 77)
    assert "3.5 s late to call #13" in str(finding.message)


# Groups and sends.


def test_two_ranks_in_each_others_way_over_two_groups(tmp_path: Path) -> None:
    job = Job(2, {"1": ("a", [0, 1]), "2": ("b", [0, 1])})
    job.steps()
    job[0].call("all_reduce", line=30, group="1", done=False)
    job[1].call("all_reduce", line=31, group="2", done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("collective-order", (0, 1))
    assert "wait for each other in 2 different calls" in str(finding.message)
    assert {line_of(finding)[1], *(p.line for p in finding.related)} == {30, 31}


def test_a_group_with_other_members_on_another_rank(tmp_path: Path) -> None:
    job = Job(3, {"1": ("x", [0, 1, 2])})
    job[2].groups["1"] = ("x", [1, 2])
    job.steps()
    report = explain_dumps(job.write(tmp_path))
    assert [(f.fault, f.ranks) for f in report.findings] == [("group-membership", (0, 2))]


def test_groups_of_one_name_that_share_no_member_are_right(tmp_path: Path) -> None:
    job = Job(4)
    for rank in job:
        rank.groups["1"] = ("tp", [0, 1] if rank.rank < 2 else [2, 3])
    job.steps()
    for rank in job:
        rank.call("all_reduce", group="1", size=3 + rank.rank // 2)
    assert explain_dumps(job.write(tmp_path)).findings == []


def test_a_receive_that_nobody_sends(tmp_path: Path) -> None:
    job = Job(3)
    job.steps()
    job[1].call("recv 1<-2", line=60, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("unmatched-p2p", (2,))
    assert "rank 2 has not sent it" in str(finding.message)
    assert finding.related[0].line == 60


def test_a_send_that_nobody_receives_in_a_subgroup(tmp_path: Path) -> None:
    """The peers of a send are numbered in the group."""
    job = Job(4, {"1": ("pp", [1, 3])})
    job.steps()
    job[1].call("send 0->1", line=60, group="1", done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("unmatched-p2p", (3,))
    assert "rank 3 does not receive it" in str(finding.message)


def test_sends_that_block_each_other(tmp_path: Path) -> None:
    job = Job(2)
    job.steps()
    job[0].call("recv 0<-1", line=60, done=False)
    job[1].call("recv 1<-0", line=61, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("unmatched-p2p", (0, 1))
    assert "block each other" in str(finding.message)


def test_a_send_of_another_size(tmp_path: Path) -> None:
    job = Job(2)
    job.steps()
    job[0].call("send 0->1", line=60, size=8, done=False)
    job[1].call("recv 1<-0", line=61, size=9, done=False)
    finding = verdict(job, tmp_path)
    assert finding.fault == "unmatched-p2p"
    assert "[8]" in str(finding.message)
    assert "[9]" in str(finding.message)


def test_a_pipeline_waits_for_the_stage_that_stopped(tmp_path: Path) -> None:
    job = Job(4)
    for _ in range(3):
        for rank in job:
            if rank.rank:
                rank.call(f"recv {rank.rank}<-{rank.rank - 1}", line=60)
            if rank.rank < 3:
                rank.call(f"send {rank.rank}->{rank.rank + 1}", line=61)
    for rank in (1, 2, 3):
        job[rank].call(f"recv {rank}<-{rank - 1}", line=60, done=False)
    finding = verdict(job, tmp_path)
    assert (finding.fault, finding.ranks) == ("unmatched-p2p", (0,))
    assert line_of(finding) == (TRAIN, 61)


def test_messages_are_free_of_control_characters(tmp_path: Path) -> None:
    job = Job(2)
    job.steps()
    job[0].call("all_reduce\x1b[2J", line=10, path="/home/\x1b]0;me/train.py", done=False)
    for rank in job:
        rank.groups["0"] = ("de\x1b[1mfault", [0, 1])
    report: Report = explain_dumps(job.write(tmp_path))
    texts = [str(f.message) + str(f.location) + str(f.evidence) + str(f.related) for f in report.findings]
    texts.append(str(report.world))
    assert texts
    assert all("\x1b" not in text for text in texts)
