"""What the two drawings of a frame share: which columns are shown, what each box means, and the words beside them.

    for row in rows(before, frame):
        draw(row.name, row.words, row.boxes, row.markers, row.facts)

A drawing decides about lines, colours and glyphs, and about nothing else; so terminal and picture always say the same,
and neither knows whether a row is a replica with its records or a consumer with its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from tidelog.lab.frames import (
    Frame,
    Group,
    MemberRow,
    Record,
    ReplicaRow,
    Role,
    RowChanges,
    Strip,
    changes,
    contested,
    differing,
    lost,
)
from tidelog.types import Offset

Part = TypeVar("Part", Frame, ReplicaRow, MemberRow)


class Look(Enum):
    """How sure a box is: safe where it stands, not yet or no longer so, or gone in this step. See `Legend`."""

    SOLID = "solid"
    DASHED = "dashed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Legend:
    """What the boxes of a story mean."""

    looks: Mapping[Look, str]
    differs: str


_OF_REPLICAS = Legend(
    {
        Look.SOLID: "committed: below HW",
        Look.DASHED: "not committed",
        Look.GONE: "cut or lost in this step",
    },
    "differs between replicas",
)
_OF_MEMBERS = Legend(
    {
        Look.SOLID: "held: it reads this partition",
        Look.DASHED: "assigned to it, but it does not read it",
        Look.GONE: "given up or taken away in this step",
    },
    "read by two members",
)


@dataclass(frozen=True, slots=True)
class Box:
    """One record or partition as it is drawn, with the term that it is of: `epoch 0`, `gen 1`.

    `new`: it came in this step; `differs`: another row has another one here, or the same where it must not.
    """

    label: str
    term: tuple[str, int]
    look: Look
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
class Row:
    """One row, ready to be drawn. `was` is its role of a frame ago where this step changed it, else nothing."""

    name: str
    role: Role
    words: str
    was: str
    boxes: Mapping[int, Box]
    markers: tuple[Marker, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class _Source(Generic[Part]):
    """Where a fact comes from; no words, no fact, unless it had some a frame ago and that is worth telling."""

    name: str
    words: Callable[[Part], str]
    told_when_empty: bool = True
    is_event: bool = False
    """Something that happened and not something that is: it does not take the place of the one before."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is drawn of offsets or partitions, the same for all rows so that equal ones stand below each other."""

    axis: str
    first: int
    count: int
    hidden: int = 0

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    def limited(self, limit: int) -> Columns:
        """At most that many columns. The end of the log is where things happen, so the beginning is left out."""
        surplus = max(0, self.count - max(1, limit))
        return Columns(self.axis, self.first + surplus, self.count - surplus, self.hidden + surplus)


def columns(frames: Iterable[Frame | None]) -> Columns:
    """All offsets of these frames, at least one: an empty log still has a place where its first record goes."""
    given = [frame for frame in frames if frame is not None]
    groups = [frame.group for frame in given if frame.group is not None]
    if groups:
        return Columns("partition", 0, max(group.partitions for group in groups))
    replicas = [row for frame in given for row in frame.replicas]
    first = min((row.log_start for row in replicas), default=0)
    end = max((row.log_end for row in replicas), default=0)
    return Columns("offset", first, max(1, end - first))


def legend(strip: Strip | None = None) -> Legend:
    """Of that story; of one about replicas if none is given."""
    is_of_a_group = strip is not None and any(frame.group is not None for frame in strip.frames)
    return _OF_MEMBERS if is_of_a_group else _OF_REPLICAS


def rows(before: Frame | None, frame: Frame) -> Iterable[Row]:
    """What a frame shows, compared with the one before."""
    changed, differ = changes(before, frame), differing(frame)
    for replica in frame.replicas:
        yield _replica(before.row(replica.name) if before else None, replica, changed.of(replica.name), differ)
    if frame.group is not None:
        had = before.group if before is not None else None
        for member in frame.group.members:
            yield _member(had, frame.group, member)


def frame_facts(before: Frame | None, frame: Frame) -> tuple[Fact, ...]:
    """What is known outside the rows: of the group, who controls, and what the clients were told."""
    facts = _facts(_OF_A_FRAME, before, frame)
    if missing := lost(frame):
        facts.append(Fact("lost", f"{_labels(missing)} (acknowledged, but on no replica)", alarming=True))
    return tuple(facts)


# Replicas


def _replica(was: ReplicaRow | None, row: ReplicaRow, changed: RowChanges, differ: frozenset[Offset]) -> Row:
    facts = _facts(_OF_A_REPLICA, was, row)
    if changed.gone:
        facts.append(Fact("gone", _labels(changed.gone), alarming=True))
    # The dead have no opinion on whose term it is.
    knows_term = row.leader_epoch is not None and row.role is not Role.DEAD
    words = f"{row.role.value}, epoch {row.leader_epoch}" if knows_term else row.role.value
    boxes = _records(row, changed, differ)
    return Row(row.name, row.role, words, _was(was, row), boxes, _markers(row, changed), tuple(facts))


def _was(before: ReplicaRow | MemberRow | None, now: ReplicaRow | MemberRow) -> str:
    return before.role.value if before is not None and before.role is not now.role else ""


def _records(row: ReplicaRow, changed: RowChanges, differ: frozenset[Offset]) -> dict[int, Box]:
    """The boxes of a row by offset. A record that is gone keeps its box for this step unless another took its place."""
    drawn = {record.offset: Box(record.label, ("epoch", record.epoch), Look.GONE) for record in changed.gone}
    for record in row.records:
        look = Look.SOLID if record.offset < row.high_watermark else Look.DASHED
        term = ("epoch", record.epoch)
        drawn[record.offset] = Box(record.label, term, look, record in changed.added, record.offset in differ)
    return drawn


def _markers(row: ReplicaRow, changed: RowChanges) -> tuple[Marker, ...]:
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


def _labels(records: Iterable[Record]) -> str:
    return " ".join(record.label for record in records)


def _remote_log_ends(row: ReplicaRow) -> str:
    return ", ".join(f"{name} {'?' if end is None else end}" for name, end in row.remote_log_ends)


# What only a leader knows goes without a word when it leads no more; the role says so.
_OF_A_REPLICA: tuple[_Source[ReplicaRow], ...] = (
    _Source("HW", lambda row: str(row.high_watermark)),
    _Source("LEO", lambda row: str(row.log_end)),
    _Source("log start", lambda row: str(row.log_start) if row.log_start else ""),
    _Source("remote LEO", _remote_log_ends, told_when_empty=False),
    _Source("ISR", lambda row: " ".join(row.isr), told_when_empty=False),
    _Source("epochs", lambda row: " ".join(map(str, row.epochs))),
    _Source("purgatory", lambda row: ", ".join(row.purgatory)),
)

# Members of a group


def _member(had: Group | None, group: Group, row: MemberRow) -> Row:
    was = had.member(row.name) if had is not None else None
    knows_term = row.generation is not None and row.role in (Role.LEADER, Role.MEMBER)
    words = f"{row.role.value}, gen {row.generation}" if knows_term else row.role.value
    boxes = _partitions(had, group, was, row)
    facts = _facts(_OF_A_MEMBER, was, row)
    return Row(row.name, row.role, words, _was(was, row), boxes, (), tuple(facts))


def _partitions(had: Group | None, group: Group, was: MemberRow | None, row: MemberRow) -> dict[int, Box]:
    """The boxes of a consumer by partition. One that it had a frame ago keeps its box for this step."""
    read_twice = contested(group)
    drawn = {}
    for partition in range(group.partitions):
        label = f"{group.topic}-{partition}"
        if partition in row.shares:
            is_held = partition in row.held
            is_new = had is not None and (was is None or partition not in (was.held if is_held else was.shares))
            drawn[partition] = Box(
                label,
                ("gen", row.generation or 0),
                Look.SOLID if is_held else Look.DASHED,
                is_new,
                is_held and partition in read_twice,
            )
        elif was is not None and partition in was.shares:
            drawn[partition] = Box(label, ("gen", was.generation or 0), Look.GONE)
    return drawn


_OF_A_MEMBER: tuple[_Source[MemberRow], ...] = (
    _Source("waits for", lambda row: row.waits_for),
    _Source("heartbeat", lambda row: row.heartbeat, told_when_empty=False),
    _Source("commit", lambda row: row.commit, told_when_empty=False, is_event=True),
    _Source("begins", lambda row: row.begins, told_when_empty=False),
)

# Facts


def _facts(sources: Sequence[_Source[Part]], before: Part | None, now: Part) -> list[Fact]:
    facts = []
    for source in sources:
        value = source.words(now)
        was = value if before is None else source.words(before)
        if value or (was and source.told_when_empty):
            told = "" if source.is_event else was
            facts.append(Fact(source.name, value or "none", told if was != value else None))
    return facts


def _of_group(words: Callable[[Group], str]) -> Callable[[Frame], str]:
    return lambda frame: "" if frame.group is None else words(frame.group)


def _committed(group: Group) -> str:
    return ", ".join(f"{group.topic}-{partition} at {offset}" for partition, offset in group.committed)


_OF_A_FRAME: tuple[_Source[Frame], ...] = (
    _Source("state", _of_group(lambda group: group.state)),
    _Source("generation", _of_group(lambda group: str(group.generation))),
    _Source("coordinator", _of_group(lambda group: group.coordinator)),
    _Source("committed", _of_group(_committed)),
    _Source("controller", lambda frame: frame.controller or ""),
    _Source("waiting", lambda frame: ", ".join(frame.waiting)),
    _Source("acknowledged", lambda frame: _labels(frame.acknowledged)),
)
