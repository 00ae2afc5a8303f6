"""`allranks explain` on flight-recorder dumps: which rank is missing from which call, or made another one.

The recorder of PyTorch writes what each rank called, with the stack, into one file per rank. Reading, comparing
and writing verdicts stand in the folder `flight`; this is the way through.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import AllranksError
from ..findings import BlindSpot, Finding, Report, say
from .flight import out_of_step, waiting
from .flight.columns import clean
from .flight.deviations import Mismatch, first_mismatch, first_shift, keys_for
from .flight.job import GroupTrace, JobTrace, groups, world_size
from .flight.parted import Place, sharpened
from .flight.partition import read_all
from .flight.reading import Progress, find_dumps, is_dump, with_ranks
from .flight.standstills import (
    Gathering,
    Standstill,
    all_ended,
    circle,
    since,
    skewed,
    standstills,
    stragglers,
)
from .flight.words import Words, ranks_text

__all__ = ["explain_dumps", "is_dump", "judge_job"]

_FINDINGS = 8
"""Root causes that are reported at most: a job of a thousand groups can be stuck in all of them."""
_RANKS_LISTED = 256


def explain_dumps(
    paths: list[Path],
    *,
    progress: Progress | None = None,
    root: Path | None = None,
    cluster: str | None = None,
) -> Report:
    """What the flight-recorder dumps among `paths` (files and folders) tell.

    `progress` is called with (files read, all files). `root` is the folder of the program's source (default: the
    present one): paths below it are shown relative to it, and source recorded elsewhere is looked for in it. `cluster`
    is the address of a dask scheduler on which the dumps are read. Raises `AllranksError` ("no-dumps") when there is
    none with a rank's number.
    """
    files, spots = with_ranks(find_dumps(paths))
    if not files:
        raise AllranksError(
            "no-dumps",
            say("there is no flight-recorder dump, or none has a rank in its name"),
            say(
                "give the files that TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE names: PREFIX<rank>"
            ),
        )
    job = read_all(files, progress, cluster)
    job.blind_spots += spots
    return judge_job(job, root)


def judge_job(job: JobTrace, root: Path | None = None) -> Report:
    """The report on dumps that have been read."""
    found = groups(job)
    findings = _findings(found, Words(job, root if root is not None else Path.cwd()))
    report = Report("explain", findings[:_FINDINGS], _blind_spots(job, found))
    report.world = _summary(job, found)
    return report


def _findings(found: list[GroupTrace], words: Words) -> list[Finding]:
    """Root causes, the surest kind first: what contradicts, what is out of step, who waits for whom."""
    job = words.job
    pairing, places = keys_for(job.table)
    mismatches = [m for group in found if (m := first_mismatch(group, job.table, pairing)) is not None]
    mismatches.sort(key=lambda m: _when(m.group, m.position))
    findings = [out_of_step.membership(*conflict) for conflict in _conflicts(job)]
    findings += [_mismatch(words, mismatch) for mismatch in mismatches]
    wrong = {id(mismatch.group) for mismatch in mismatches}
    shifts = [
        s for group in found if id(group) not in wrong and (s := first_shift(group, places)) is not None
    ]
    findings += [out_of_step.shift(words, shift) for shift in shifts]
    # Whatever else stands still does so after the first deviation, and as likely as not because of it.
    if not findings and (waits := _waits(words, found)):
        left_out = [
            m for group in found if (m := first_mismatch(group, job.table, places)) and m.skipped is not None
        ]
        return [_mismatch(words, m) for m in left_out] or waits
    return findings or _stragglers(words, found)


def _mismatch(words: Words, found: Mismatch) -> Finding:
    place = Place(found.group, found.position, tuple(side.ranks for side in found.sides))
    return sharpened(words.job, out_of_step.mismatch(words, found), place, words.root)


def _waits(words: Words, found: list[GroupTrace]) -> list[Finding]:
    """The beginnings of what ranks wait for: circles, and ranks that stopped."""
    stills = standstills(words.job, found)
    circles = {frozenset(around): around for i in range(len(stills)) if (around := circle(stills, i))}
    findings = [waiting.circle(words, [stills[i] for i in around]) for around in circles.values()]
    beginnings = [still for still in stills if not still.causes]
    by_culprit: dict[tuple[int, ...], list[Standstill]] = {}
    for still in [b for b in beginnings if b.stopped] or beginnings:
        culprits = still.stopped or (still.unseen if isinstance(still, Gathering) else still.needed)
        by_culprit.setdefault(culprits, []).append(still)
    for waits in by_culprit.values():
        # A rank that stopped is missing from the next call of each of its groups. That in which all others wait for
        # this rank alone comes next in its program; else the one in which they have waited longest.
        # Of calls that all are in, one to which a rank came late.
        first = min(waits, key=lambda s: (s.needed != s.stopped, not s.late, since(words.job, s)))
        findings.append(_wait(words, first, len(stills) - 1))
    return findings


def _stragglers(words: Words, found: list[GroupTrace]) -> list[Finding]:
    """What healthy dumps still tell: ranks that kept the others waiting for long."""
    for group in found[:1]:
        position, late = stragglers(group)
        if late:
            return [waiting.straggler(words, group, position, late)]
    return []


def _wait(words: Words, still: Standstill, consequences: int) -> Finding:
    if not isinstance(still, Gathering):
        return waiting.exchange(words, still)
    finding = waiting.gathering(words, still, consequences)
    if not still.lacking:
        return finding
    stopped = still.lacking if waiting.is_minority(still) else still.stopped
    return sharpened(
        words.job, finding, Place(still.group, still.position, (still.waiting, stopped), stopped), words.root
    )


def _when(group: GroupTrace, position: int) -> int:
    """When the first rank made the call at a position; late where that is not known."""
    times = [time for calls in group.calls.values() if (time := calls.time_at(position))]
    return min(times, default=2**63)


def _conflicts(job: JobTrace) -> list[tuple[str, tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]]]:
    """Groups of one name with other members on some of these members. Names made of a number count the groups that a
    rank made; other names are hashes of the members and may stand for several groups."""
    first: dict[str, dict[tuple[int, ...], int]] = {}
    for rank, trace in sorted(job.ranks.items()):
        for name, config in trace.groups.items():
            if config.ranks and rank in config.ranks and name.isdecimal():
                first.setdefault(name, {}).setdefault(config.ranks, rank)
    found = []
    for name, by_members in first.items():
        (members, rank), *others = by_members.items()
        for other_members, other in others[:64]:
            if not set(members).isdisjoint(other_members) and set(members) != set(other_members):
                found.append((name, (rank, members), (other, other_members)))
                break
    return found


def _blind_spots(job: JobTrace, found: list[GroupTrace]) -> list[BlindSpot]:
    spots = list(job.blind_spots)
    for rank, trace in sorted(job.ranks.items()):
        if trace.problem is not None:
            message = say("{path}: {problem}", path=trace.path, problem=trace.problem)
            slug = "dump-cut-off" if trace.readable else "dump-unreadable"
            spots.append(BlindSpot(slug, message, (rank,)))
    missing = tuple(rank for rank in range(world_size(job)) if rank not in job.ranks)
    if missing:
        message = say("no dump of {ranks}", ranks=ranks_text(missing))
        spots.append(BlindSpot("dump-missing", message, missing, len(missing)))
    aside = [group for group in found if skewed(group) and not all_ended(group)]
    if aside:
        message = say("the dumps are not of one moment: in {count} groups some are older", count=len(aside))
        spots.append(BlindSpot("dumps-of-different-times", message, count=len(aside)))
    return spots


def _summary(job: JobTrace, found: list[GroupTrace]) -> dict[str, object]:
    listed = [group for group in found if group.calls][:_RANKS_LISTED]
    return {
        "source": "flight-recorder",
        "size": world_size(job),
        "dumps": len(job.ranks),
        "versions": sorted({trace.version for trace in job.ranks.values() if trace.version}),
        "calls": sum(len(c.kinds) for t in job.ranks.values() for c in (*t.calls.values(), *t.p2p.values())),
        "groups": [
            {
                "name": clean(group.name),
                "description": group.description,
                "size": len(group.members),
                "calls": max((calls.end - 1 for calls in group.calls.values()), default=0),
            }
            for group in listed
        ],
    }
