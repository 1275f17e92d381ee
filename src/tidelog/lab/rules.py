"""What a rule is: the hooks by which it hears what happens in a cluster, and how it says that it is broken.

A rule looks at all replicas again and again, sees every high watermark move, hears what clients were told, and reads
every log when all is quiet again: see tidelog.lab.witness.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, NoReturn

from tidelog.broker.partition import Partition
from tidelog.lab.health import Footing, Standing
from tidelog.lab.loop import SimulationError
from tidelog.records.kernel import Record
from tidelog.types import BrokerId, Offset, TopicPartition

Incarnation = tuple[bytes, TopicPartition]
"""A topic that was deleted and made again is another one."""

Settled = Mapping[TopicPartition, Mapping[BrokerId, Sequence[Record]]]
"""What each replica has of each partition, committed all of it, once nothing is under way any more."""


class BrokenRuleError(SimulationError):
    """What must always be true was not."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class Replica(NamedTuple):
    """One replica at the moment of a look."""

    broker: BrokerId
    partition: Partition
    is_in_sync: bool = False
    """By the ISR that is stored, from which leaders are elected. Not told of topics that come and go."""
    has_session: bool = True
    """Its broker's session with the store is surely not over."""

    @property
    def incarnation(self) -> Incarnation:
        return self.partition.topic_id, self.partition.name

    def __str__(self) -> str:
        return f"{self.partition.name} on {self.broker}"


class Acknowledged(NamedTuple):
    """A record that an idempotent producer was told is written, with acks=all."""

    producer: str
    number: int
    partition: TopicPartition
    offset: Offset
    """-1 if the broker did not say."""
    value: bytes


class ReadOn(NamedTuple):
    """What one fetch of a consumer brought that reads a partition from its start on."""

    reader: str
    partition: TopicPartition
    position: Offset
    """Where the consumer was before."""
    next_offset: Offset
    """Where it goes on."""
    records: Sequence[Record]


class Share(NamedTuple):
    """What a member of a group is assigned in a generation."""

    member: str
    generation: int
    partitions: Iterable[TopicPartition]


class Told(NamedTuple):
    """The committed offset of a partition, as a member of its group was told."""

    member: str
    partition: TopicPartition
    offset: Offset
    acknowledged: Offset
    """The highest commit that had been acknowledged before the member asked."""


class Rule:
    """A subclass overrides the hooks that it needs."""

    name: ClassVar[str]

    def look(self, replicas: Sequence[Replica]) -> None:
        """At all that there is, now and then while everything goes on."""

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        """A replica has just moved its HW, or begins to lead. `replicas` are all of its partition, at this moment."""

    def stands(self, standings: Sequence[Standing], away: Collection[str], answered_s: float) -> None:
        """Which partitions are led in health now, and who follows in health. `away`: hosts that are dead or frozen.

        `answered_s` is the time by a clock that stands still while the store does not answer.
        """

    def runs(self, footings: Sequence[Footing], away: Collection[str], answered_s: float, now_s: float) -> None:
        """The partitions that nothing but the store can hinder, and for how long it has answered since the last look.

        `away`: hosts that are dead or frozen.
        """

    def isolated(self, controller: Hashable, now_s: float) -> None:
        """The life of a controller that reaches none of the others, though these are well; None if there is none."""

    def sent(self, producer: str, partition: TopicPartition, number: int, now_s: float) -> None:
        """A producer waits for the acknowledgement of this record."""

    def gave_up(self, producer: str) -> None:
        """A producer was killed and waits for nothing any more."""

    def acknowledged(self, record: Acknowledged) -> None:
        """A producer was told so."""

    def consumed(self, reader: str, partition: TopicPartition, record: Record) -> None:
        """A consumer was given this."""

    def read_on(self, read: ReadOn) -> None:
        """A consumer that reads everything was given this."""

    def vanished(self, reader: str, partition: TopicPartition, offset: Offset) -> None:
        """A consumer that has read up to this offset was told that it is out of range."""

    def read_back(self, record: Acknowledged, found: Sequence[Record], refusal: str) -> None:
        """A fetch that began after the acknowledgement, at a leader that is sure of its term, found this."""

    def assigned(self, share: Share) -> None:
        """A member of a group has this share from now on."""

    def member_told(self, told: Told) -> None:
        """A member of a group was told where to begin."""

    def reported(self, unclean_elections: int) -> None:
        """What the controllers have counted until all was quiet."""

    def settled(self, logs: Settled) -> None:
        """All is quiet."""

    def broken(self, what: str) -> NoReturn:
        raise BrokenRuleError(self.name, what)
