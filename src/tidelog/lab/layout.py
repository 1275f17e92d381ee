"""What the two drawings of a frame share: which offsets are shown, what each box means, and the words beside them.

A drawing decides about lines, colours and glyphs, and about nothing else; so terminal and picture always say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from tidelog.lab.frames import Frame, Record, ReplicaRow, Role, RowChanges, lost
from tidelog.types import Offset

Part = TypeVar("Part", Frame, ReplicaRow)


class Tide(Enum):
    """Where a record stands: below the high watermark, at or above it, or no longer in the log since this step."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Box:
    """One record as it is drawn. `new`: it came in this step; `differs`: another replica holds another one here."""

    record: Record
    tide: Tide
    new: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """A mark at the left edge of the box at `offset`: everything before it is below it."""

    offset: Offset
    text: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value beside the boxes. `was` is the previous frame's where this step changed it, "" for nothing."""

    name: str
    value: str
    was: str | None = None
    alarming: bool = False

    @property
    def changed(self) -> bool:
        return self.was is not None or self.alarming


@dataclass(frozen=True, slots=True)
class _Source(Generic[Part]):
    """Where a fact comes from; no words, no fact, unless it had some a frame ago and that is worth telling."""

    name: str
    words: Callable[[Part], str]
    told_when_empty: bool = True


@dataclass(frozen=True, slots=True)
class Columns:
    """The offsets that are drawn, the same for all rows so that equal offsets stand below each other."""

    first: Offset
    count: int
    hidden: int = 0

    @property
    def offsets(self) -> range:
        return range(self.first, self.first + self.count)

    def limited(self, limit: int) -> Columns:
        """At most that many columns. The end of the log is where things happen, so the beginning is left out."""
        surplus = max(0, self.count - max(1, limit))
        return Columns(self.first + surplus, self.count - surplus, self.hidden + surplus)


def columns(frames: Iterable[Frame | None]) -> Columns:
    """All offsets of these frames, at least one: an empty log still has a place where its first record goes."""
    rows = [row for frame in frames if frame is not None for row in frame.replicas]
    first = min((row.log_start for row in rows), default=0)
    end = max((row.log_end for row in rows), default=0)
    return Columns(first, max(1, end - first))


def boxes(row: ReplicaRow, changed: RowChanges, differing: frozenset[Offset]) -> dict[Offset, Box]:
    """The boxes of a row by offset. A record that is gone keeps its box for this step unless another took its place."""
    drawn = {record.offset: Box(record, Tide.GONE) for record in changed.gone}
    for record in row.records:
        tide = Tide.COMMITTED if record.offset < row.high_watermark else Tide.UNCOMMITTED
        drawn[record.offset] = Box(record, tide, record in changed.added, record.offset in differing)
    return drawn


def markers(row: ReplicaRow, changed: RowChanges) -> tuple[Marker, ...]:
    """HW and LEO, and the log start once it has moved; those at one offset share a mark."""
    marks = [("HW", row.high_watermark, "high_watermark"), ("LEO", row.log_end, "log_end")]
    if row.log_start > 0:
        marks.insert(0, ("start", row.log_start, "log_start"))
    shared: dict[Offset, list[tuple[str, str]]] = {}
    for text, offset, part in marks:
        shared.setdefault(offset, []).append((text, part))
    return tuple(
        Marker(offset, "=".join(text for text, _ in here), any(part in changed.parts for _, part in here))
        for offset, here in sorted(shared.items())
    )


def role_words(row: ReplicaRow) -> str:
    """`leader, epoch 1` where a term is known; the dead have no opinion on that."""
    if row.leader_epoch is None or row.role is Role.DEAD:
        return row.role.value
    return f"{row.role.value}, epoch {row.leader_epoch}"


def row_facts(before: ReplicaRow | None, row: ReplicaRow, changed: RowChanges) -> tuple[Fact, ...]:
    """The numbers of a replica."""
    facts = _facts(_OF_A_ROW, before, row)
    if changed.gone:
        facts.append(Fact("gone", _labels(changed.gone), alarming=True))
    return tuple(facts)


def frame_facts(before: Frame | None, frame: Frame) -> tuple[Fact, ...]:
    """What is known outside the replicas: who controls, and what the clients were told."""
    facts = _facts(_OF_A_FRAME, before, frame)
    if missing := lost(frame):
        facts.append(Fact("lost", f"{_labels(missing)} (acknowledged, but on no replica)", alarming=True))
    return tuple(facts)


def _facts(sources: Sequence[_Source[Part]], before: Part | None, now: Part) -> list[Fact]:
    facts = []
    for source in sources:
        value = source.words(now)
        was = value if before is None else source.words(before)
        if value or (was and source.told_when_empty):
            facts.append(Fact(source.name, value or "none", was if was != value else None))
    return facts


def _labels(records: Iterable[Record]) -> str:
    return " ".join(record.label for record in records)


def _remote_log_ends(row: ReplicaRow) -> str:
    return ", ".join(f"{name} {'?' if end is None else end}" for name, end in row.remote_log_ends)


# What only a leader knows goes without a word when it leads no more; the role says so.
_OF_A_ROW: tuple[_Source[ReplicaRow], ...] = (
    _Source("HW", lambda row: str(row.high_watermark)),
    _Source("LEO", lambda row: str(row.log_end)),
    _Source("log start", lambda row: str(row.log_start) if row.log_start else ""),
    _Source("remote LEO", _remote_log_ends, told_when_empty=False),
    _Source("ISR", lambda row: " ".join(row.isr), told_when_empty=False),
    _Source("epochs", lambda row: " ".join(map(str, row.epochs))),
    _Source("purgatory", lambda row: ", ".join(row.purgatory)),
)
_OF_A_FRAME: tuple[_Source[Frame], ...] = (
    _Source("controller", lambda frame: frame.controller or ""),
    _Source("waiting", lambda frame: ", ".join(frame.waiting)),
    _Source("acknowledged", lambda frame: _labels(frame.acknowledged)),
)
