"""What a story shows: replicas or a group's members, what clients know, and what happened, one frame per step.

    strip = Strip("loss", "Loss", frames)
    changes(strip.before(3), strip.frames[3]).of("B").gone

Pure data. A story fills the frames from the running brokers and members; `terminal` and `picture` draw them. A frame
holds what was seen and not what should be: nothing here repairs a high watermark that stands where it must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import pairwise
from types import MappingProxyType

from tidelog.types import Epoch, Offset


class Role(Enum):
    """What a replica or a consumer does in this step. A frozen one runs no code, so it may still believe that it leads.

    A consumer leads its group, is a member of it, or is outside.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    FROZEN = "frozen"
    DEAD = "dead"
    MEMBER = "member"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. Two records are the same only if offset, label and epoch are."""

    offset: Offset
    label: str
    epoch: Epoch = 0


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """The leader of `epoch` wrote its first record at `start` (S4.1)."""

    epoch: Epoch
    start: Offset

    def __str__(self) -> str:
        return f"<{self.epoch},{self.start}>"


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica of the partition. `isr` and `remote_log_ends` are what it believes where it leads, else empty.

    A remote log end is None until that follower has fetched in this term (S2.5). A dead replica shows its disk.
    """

    name: str
    role: Role
    records: tuple[Record, ...] = ()
    high_watermark: Offset = 0
    log_end: Offset = 0
    log_start: Offset = 0
    leader_epoch: Epoch | None = None
    epochs: tuple[EpochEntry, ...] = ()
    isr: tuple[str, ...] = ()
    remote_log_ends: tuple[tuple[str, Offset | None], ...] = ()
    purgatory: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ends = [self.log_start - 1, *(record.offset for record in self.records), self.log_end]
        if any(left >= right for left, right in pairwise(ends)):
            raise ValueError(f"{self.name}: offsets must rise from log start {self.log_start} to below {self.log_end}")


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One consumer of a group. What it holds it reads; what it is assigned beyond that, only the coordinator knows of.

    `generation` is the last one it was told, None before any. `begins` says at which offsets it goes on with
    what it holds, where there are some; `heartbeat` and `commit`, how its last ones in this generation were answered.
    """

    name: str
    role: Role
    generation: int | None = None
    held: tuple[int, ...] = ()
    assigned: tuple[int, ...] = ()
    begins: str = ""
    waits_for: str = ""
    heartbeat: str = ""
    commit: str = ""

    @property
    def shares(self) -> tuple[int, ...]:
        """All its partitions, whoever knows that they are."""
        return tuple(sorted({*self.held, *self.assigned}))


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group as its coordinator has it, and its consumers, on a topic of so many partitions (S8)."""

    state: str
    generation: int
    coordinator: str
    topic: str
    partitions: int
    members: tuple[MemberRow, ...] = ()
    committed: tuple[tuple[int, Offset], ...] = ()

    def __post_init__(self) -> None:
        _check_names(row.name for row in self.members)
        shares = [partition for row in self.members for partition in row.shares]
        if any(partition not in range(self.partitions) for partition in shares):
            raise ValueError(f"{self.topic} has {self.partitions} partitions, and not all of {shares}")

    def member(self, name: str) -> MemberRow | None:
        return next((row for row in self.members if row.name == name), None)


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a story: the sentence that says what happened, the rule it follows, and the state after it.

    A story is of the replicas of a partition or of a group; the other part of its frames is empty.
    """

    says: str
    rule: str
    replicas: tuple[ReplicaRow, ...] = ()
    controller: str | None = None
    acknowledged: tuple[Record, ...] = ()
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    group: Group | None = None

    def __post_init__(self) -> None:
        _check_names(row.name for row in self.replicas)

    def row(self, name: str) -> ReplicaRow | None:
        return next((row for row in self.replicas if row.name == name), None)


def _check_names(names: Iterable[str]) -> None:
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise ValueError(f"two rows of one name: {' '.join(listed)}")


@dataclass(frozen=True, slots=True)
class Strip:
    """A story that has been told: its frames in order. `variant` names the rule it was told with, if there are two."""

    name: str
    title: str
    frames: tuple[Frame, ...]
    variant: str = ""

    def before(self, index: int) -> Frame | None:
        """The frame that `frames[index]` is compared with; the first has none."""
        return self.frames[index - 1] if index > 0 else None


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What a step did to one replica. `parts` are the names of the changed fields of its row.

    `gone` are the records that were cut or lost at the end of the log; those that fell below its start are not in it.
    """

    parts: frozenset[str] = frozenset()
    added: tuple[Record, ...] = ()
    gone: tuple[Record, ...] = ()


_UNCHANGED = RowChanges()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a step did: `parts` are the names of the changed fields of the frame, sentence and rule left out."""

    parts: frozenset[str] = frozenset()
    rows: Mapping[str, RowChanges] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> RowChanges:
        return self.rows.get(name, _UNCHANGED)


def changes(before: Frame | None, after: Frame) -> Changes:
    """The parts of `after` that are new since `before`. In the first frame of a story nothing is."""
    if before is None:
        return Changes()
    rows = {row.name: _row_changes(before.row(row.name), row) for row in after.replicas}
    return Changes(_changed(before, after) - {"says", "rule"}, MappingProxyType(rows))


def _row_changes(before: ReplicaRow | None, after: ReplicaRow) -> RowChanges:
    if before is None:
        return RowChanges(frozenset({"role"}), added=after.records)
    had, has = frozenset(before.records), frozenset(after.records)
    return RowChanges(
        _changed(before, after),
        added=tuple(record for record in after.records if record not in had),
        gone=tuple(record for record in before.records if record not in has and record.offset >= after.log_start),
    )


def _changed(before: Frame | ReplicaRow, after: Frame | ReplicaRow) -> frozenset[str]:
    names = (part.name for part in fields(after))
    return frozenset(name for name in names if getattr(before, name) != getattr(after, name))


def contested(group: Group) -> frozenset[int]:
    """The partitions that two consumers read: a group must never come to that (S8.1)."""
    held = Counter(partition for row in group.members for partition in row.held)
    return frozenset(partition for partition, readers in held.items() if readers > 1)


def differing(frame: Frame) -> frozenset[Offset]:
    """The offsets at which two replicas hold different records: the logs have diverged there."""
    first: dict[Offset, Record] = {}
    records = [record for row in frame.replicas for record in row.records]
    return frozenset(record.offset for record in records if first.setdefault(record.offset, record) != record)


def lost(frame: Frame) -> tuple[Record, ...]:
    """The acknowledged records that no replica holds any more, dead ones included.

    A record below every log start went by retention, which is not a loss.
    """
    held = {record for row in frame.replicas for record in row.records}
    start = min((row.log_start for row in frame.replicas), default=0)
    return tuple(record for record in frame.acknowledged if record not in held and record.offset >= start)
