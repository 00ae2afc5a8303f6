"""The first position at which ranks of a group made calls that do not go together, by comparing columns.

Ranks with equal columns are one row, so that thousands of ranks are as quick to compare as a few.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .agreement import agreed, place
from .columns import UNKNOWN, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .job import GroupTrace

CONTEXT = 32
"""Calls before a position that are compared to tell what used to follow."""
MAX_SHIFT = 64
ENOUGH = 3
"""Calls that must go on one for one, for a shift between two ranks to be believed."""


class Keys:
    """Numbers calls by what matters in a comparison: number 0 stands for calls that the dumps do not tell."""

    def __init__(self, table: Table, key: Callable[..., Hashable]) -> None:
        numbers: dict[Hashable, int] = {}
        self.of = [UNKNOWN] + [numbers.setdefault(key(call), len(numbers) + 1) for call in table.calls[1:]]
        self._columns: dict[int, array[int]] = {}

    def column(self, kinds: array[int]) -> array[int]:
        """A column of calls as one of these numbers."""
        found = self._columns.get(id(kinds))
        if found is None:
            of = self.of
            found = self._columns[id(kinds)] = array("I", [of[kind] for kind in kinds])
        return found


@dataclass(slots=True)
class Row:
    """Ranks with equal columns."""

    start: int
    kinds: array[int]
    keys: array[int]
    ranks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.kinds)

    def key_at(self, position: int) -> int:
        """The number at a position, 0 where the row does not tell."""
        index = position - self.start
        return self.keys[index] if 0 <= index < len(self.keys) else UNKNOWN


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that made the same call at a position; `kind` is the call of most of them."""

    ranks: tuple[int, ...]
    kind: int
    key: int
    as_before: bool | None = None
    """True when this call followed the calls before it earlier in the program too, False when another did; None
    when they never occurred before."""
    familiar: bool = False
    """True when they had made this very call before."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first position at which a group's ranks made different calls. The largest side comes first."""

    group: GroupTrace
    position: int
    sides: tuple[Side, ...]
    skipped: int | None = None
    """The call that the smaller side left out, if its call is the one that used to come after that."""

    @property
    def odd(self) -> tuple[Side, ...]:
        """The sides at fault: all but that of the majority; without one, those that do not do what came before, or
        do what they never did before; where that does not tell, all."""
        total = sum(len(side.ranks) for side in self.sides)
        if 2 * len(self.sides[0].ranks) > total:
            return self.sides[1:]
        for usual in ([s for s in self.sides if s.as_before], [s for s in self.sides if s.familiar]):
            if len(usual) == 1:
                return tuple(side for side in self.sides if side is not usual[0])
        return self.sides


def rows(group: GroupTrace, keys: Keys) -> list[Row]:
    """The rows of a group, those of most ranks first."""
    found: dict[tuple[int, int], Row] = {}
    for rank, calls in (*group.calls.items(), *group.partial.items()):
        if not calls.kinds:
            continue
        row = found.get((calls.start, id(calls.kinds)))
        if row is None:
            row = found[calls.start, id(calls.kinds)] = Row(
                calls.start, calls.kinds, keys.column(calls.kinds)
            )
        row.ranks.append(rank)
    return sorted(found.values(), key=lambda row: (-len(row.ranks), row.ranks[0]))


def first_mismatch(group: GroupTrace, table: Table, keys: Keys) -> Mismatch | None:
    """The first position at which the ranks of `group` made calls that do not go together; None without one."""
    compared = rows(group, keys)
    position = _first_difference(compared)
    if position is None:
        return None
    sides = _sides(compared, position)
    return Mismatch(group, position, sides, _skipped(compared, position, sides))


def _first_difference(compared: list[Row]) -> int | None:
    if not compared:
        return None
    first: int | None = None
    start, joint = compared[0].start, array("I", compared[0].keys)
    for row in compared[1:]:
        low, high = max(start, row.start), min(start + len(joint), row.end)
        mine, theirs = joint[low - start : high - start], row.keys[low - row.start : high - row.start]
        if low < high and mine != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b and a and b), None
            )
            if at is not None:
                first = low + at if first is None else min(first, low + at)
                continue
        if low > high:
            continue  # nothing in common: one of the two lies far behind
        if row.start < start:
            joint = row.keys[: start - row.start] + joint
            start = row.start
        if row.end > start + len(joint):
            joint = joint + row.keys[start + len(joint) - row.start :]
    return first


def _sides(compared: list[Row], position: int) -> tuple[Side, ...]:
    by_key: dict[int, list[Row]] = {}
    for row in compared:
        if row.key_at(position) != UNKNOWN:
            by_key.setdefault(row.key_at(position), []).append(row)
    sides = []
    for key, members in by_key.items():
        largest = members[0]
        index = position - largest.start
        usual = _usual(largest.kinds, index)
        sides.append(
            Side(
                ranks=tuple(sorted(rank for row in members for rank in row.ranks)),
                kind=largest.kinds[index],
                key=key,
                as_before=None if usual is None else largest.keys[usual] == key,
                familiar=largest.kinds[index] in largest.kinds[:index],
            )
        )
    return tuple(sorted(sides, key=lambda side: (-len(side.ranks), side.ranks)))


def _usual(kinds: array[int], index: int) -> int | None:
    """The earlier index whose preceding calls are most like those before `index`: what stood there is what used to
    come. None when the call before `index` is new."""
    best, longest = None, 0
    for earlier in range(index - 1, 0, -1):
        length = 0
        while length < min(CONTEXT, earlier) and kinds[earlier - 1 - length] == kinds[index - 1 - length]:
            length += 1
        if length > longest:
            best, longest = earlier, length
            if length == CONTEXT:
                break
    return best


def _skipped(compared: list[Row], position: int, sides: tuple[Side, ...]) -> int | None:
    if len(sides) != 2:
        return None
    row = next(row for row in compared if row.key_at(position) == sides[1].key)
    index = position - row.start
    usual = _usual(row.kinds, index)
    if (
        usual is None
        or usual + 1 >= index
        or row.keys[usual] != sides[0].key
        or row.keys[usual + 1] != sides[1].key
    ):
        return None
    return row.kinds[usual]


@dataclass(frozen=True, slots=True)
class Shift:
    """From `position` on, the calls of `ranks` pair with other calls than they should, and none of it shows: sizes
    and types go together. `left_out` positive: so many calls of the others were left out; negative: so many were
    made that the others did not make; 0: two were made in the other order."""

    group: GroupTrace
    position: int
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    left_out: int
    kind: int
    """The call at `position` of `ranks`."""
    other_kind: int
    """That of the others."""


def first_shift(group: GroupTrace, places: Keys) -> Shift | None:
    """The first position from which the call sites of some ranks run ahead of or behind those of the others, one for
    one; None without any. Ranks that merely make their calls from different lines are no such case."""
    by_column: dict[tuple[int, bytes], Row] = {}
    for row in rows(group, places):
        same = by_column.setdefault((row.start, row.keys.tobytes()), row)
        if same is not row:
            same.ranks += row.ranks
    if len(by_column) < 2:
        return None
    main, *others = sorted(by_column.values(), key=lambda row: -len(row.ranks))
    found = [shift for row in others[:MAX_SHIFT] if (shift := _shift(group, main, row)) is not None]
    return min(found, key=lambda shift: shift.position, default=None)


def _shift(group: GroupTrace, main: Row, row: Row) -> Shift | None:
    low, high = max(main.start, row.start), min(main.end, row.end)
    ours, theirs = main.keys[low - main.start :], row.keys[low - row.start :]
    at = next((i for i in range(high - low) if ours[i] != theirs[i]), None)
    if at is None or at == 0 or not (ours[at] and theirs[at]):
        return None
    ours, theirs = ours[at:], theirs[at:]
    left_out = 0 if _swapped(ours, theirs) else _count_shifted(ours, theirs)
    if left_out is None:
        return None
    position = low + at
    kinds = (row.kinds[position - row.start], main.kinds[position - main.start])
    return Shift(group, position, tuple(sorted(row.ranks)), tuple(sorted(main.ranks)), left_out, *kinds)


def _swapped(ours: array[int], theirs: array[int]) -> bool:
    behind = min(len(ours), len(theirs))
    return behind > 2 and theirs[:2] == ours[1::-1] and theirs[2:behind] == ours[2:behind]


def _count_shifted(ours: array[int], theirs: array[int]) -> int | None:
    for count in range(1, MAX_SHIFT):
        if _goes_on(ours[count:], theirs):
            return count
        if _goes_on(ours, theirs[count:]):
            return -count
    return None


def _goes_on(ours: array[int], theirs: array[int]) -> bool:
    length = min(len(ours), len(theirs), MAX_SHIFT)
    return length >= ENOUGH and ours[:length] == theirs[:length] and len(set(ours[:length])) > 1


def keys_for(table: Table) -> tuple[Keys, Keys]:
    """The numbers by what must agree, and by what must agree and where it stands."""
    return Keys(table, agreed), Keys(table, lambda call: (agreed(call), place(call)))
