"""What the verdicts say, beside which fault they name: the cause in words, the mend, the places that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from test_parting import Job

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
