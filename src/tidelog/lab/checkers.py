"""What is always true of a cluster, one class per rule.

A rule looks at all replicas again and again, hears what clients were told, and reads every log when all is quiet again:
see tidelog.lab.witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, NoReturn

from tidelog.broker.partition import Partition
from tidelog.lab.cluster import content_of
from tidelog.lab.loop import SimulationError
from tidelog.log.log import Log
from tidelog.records.header import BatchHeader, headers
from tidelog.records.kernel import Record
from tidelog.replication.leader import Leader
from tidelog.types import BrokerId, Epoch, Offset, TopicPartition

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


class Rule:
    """Each hook is there for those that need it."""

    name: ClassVar[str]

    def look(self, replicas: Sequence[Replica]) -> None:
        """At all that there is, while everything goes on."""

    def acknowledged(self, record: Acknowledged) -> None:
        """A producer was told so."""

    def consumed(self, reader: str, partition: TopicPartition, record: Record) -> None:
        """A consumer was given this."""

    def settled(self, logs: Settled) -> None:
        """All is quiet."""

    def broken(self, what: str) -> NoReturn:
        raise BrokenRuleError(self.name, what)


class AcknowledgedIsNeverLost(Rule):
    name = "an acknowledged (acks=all) record is never lost"

    def __init__(self) -> None:
        self._records: list[Acknowledged] = []

    def acknowledged(self, record: Acknowledged) -> None:
        self._records.append(record)

    def settled(self, logs: Settled) -> None:
        for partition, replicas in logs.items():
            for broker, records in replicas.items():
                at = {record.offset: record.value for record in records}
                values = set(at.values())
                for told in self._records:
                    if told.partition == partition and told.value not in values:
                        self.broken(f"{told.value!r} of {partition}, told to be at {told.offset}, is not on {broker}")
                    if told.partition == partition and told.offset >= 0 and at.get(told.offset) != told.value:
                        self.broken(f"{told.value!r} of {partition} is not at {told.offset} on {broker}, as was told")


class ReplicasAgree(Rule):
    """By batch: offsets, epoch and CRC. What one replica has shown below its HW counts for all, from then on."""

    name = "replicas agree on every offset below HW"

    def __init__(self) -> None:
        self._committed: dict[Incarnation, dict[Offset, tuple[BatchHeader, BrokerId]]] = {}
        self._compared: dict[tuple[Incarnation, BrokerId], tuple[Log, Offset]] = {}

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            log, key = replica.partition.log, (replica.incarnation, replica.broker)
            known, below = self._compared.get(key, (None, 0))
            high_watermark = log.high_watermark
            if known is log and below == high_watermark:
                continue
            start = below if known is log and below < high_watermark else log.log_start_offset
            for header in _batches(log, start, high_watermark):
                self._compare(replica, header)
            self._compared[key] = (log, high_watermark)

    def _compare(self, replica: Replica, header: BatchHeader) -> None:
        committed = self._committed.setdefault(replica.incarnation, {})
        first, broker = committed.setdefault(header.base_offset, (header, replica.broker))
        if first != header:
            self.broken(
                f"{replica} has at {header.base_offset} a batch of epoch {header.partition_leader_epoch} with CRC "
                f"{header.crc}; {broker} had one of epoch {first.partition_leader_epoch} with CRC {first.crc}"
            )


class HighWatermarkWithinLog(Rule):
    name = "HW <= LEO"

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            log = replica.partition.log
            if log.high_watermark > log.log_end_offset:
                self.broken(f"{replica}: HW {log.high_watermark}, LEO {log.log_end_offset}")


class HighWatermarkNeverFalls(Rule):
    name = "HW never falls within an epoch at one leader"

    def __init__(self) -> None:
        self._highest: dict[tuple[Incarnation, Epoch, BrokerId], Offset] = {}

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            leader = replica.partition.leader
            if leader is None:
                continue
            term = (replica.incarnation, leader.epoch, replica.broker)
            now, before = replica.partition.log.high_watermark, self._highest.get(term, 0)
            if now < before:
                self.broken(f"{replica} in epoch {leader.epoch}: from {before} to {now}")
            self._highest[term] = now


class OneLeaderPerEpoch(Rule):
    name = "one leader per epoch"

    def __init__(self) -> None:
        self._leaders: dict[tuple[Incarnation, Epoch], BrokerId] = {}

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            leader = replica.partition.leader
            if leader is not None:
                first = self._leaders.setdefault((replica.incarnation, leader.epoch), replica.broker)
                if first != replica.broker:
                    self.broken(f"{replica} leads in epoch {leader.epoch}, in which {first} led")


class ConsumedNeverDisappears(Rule):
    name = "a consumer never sees a record that later disappears"

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, dict[Offset, tuple[bytes | None, str]]] = {}

    def consumed(self, reader: str, partition: TopicPartition, record: Record) -> None:
        seen = self._seen.setdefault(partition, {})
        value, first = seen.setdefault(record.offset, (record.value, reader))
        if value != record.value:
            self.broken(f"{first} saw {value!r} at {record.offset} of {partition}, {reader} sees {record.value!r}")

    def settled(self, logs: Settled) -> None:
        for partition, replicas in logs.items():
            for broker, records in replicas.items():
                at = {record.offset: record.value for record in records}
                for offset, (value, reader) in self._seen.get(partition, {}).items():
                    if offset not in at or at[offset] != value:
                        self.broken(f"{reader} saw {value!r} at {offset} of {partition}; it is not there on {broker}")


class OnceAndInOrder(Rule):
    name = "for idempotent producers no duplicates, and order is kept per producer and partition"

    def __init__(self) -> None:
        self._numbers: dict[TopicPartition, dict[bytes, tuple[str, int]]] = {}

    def acknowledged(self, record: Acknowledged) -> None:
        self._numbers.setdefault(record.partition, {})[record.value] = (record.producer, record.number)

    def settled(self, logs: Settled) -> None:
        for partition, replicas in logs.items():
            numbers = self._numbers.get(partition, {})
            for broker, records in replicas.items():
                last: dict[str, int] = {}
                for record in records:
                    if record.value is None or record.value not in numbers:
                        continue
                    producer, number = numbers[record.value]
                    if number <= last.get(producer, -1):
                        self.broken(f"{partition} on {broker}: {number} of {producer} follows on {last[producer]}")
                    last[producer] = number


class InSyncHasAllCommitted(Rule):
    """The reason why a leader may be elected from the ISR alone; it is broken well before anything is lost by it."""

    name = "who is in the ISR has every committed record"

    def __init__(self) -> None:
        self._committed: dict[Incarnation, tuple[Offset, BrokerId]] = {}

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            high_watermark = replica.partition.log.high_watermark
            if high_watermark > self._committed.get(replica.incarnation, (0, 0))[0]:
                self._committed[replica.incarnation] = (high_watermark, replica.broker)
        for replica in replicas:
            if replica.is_in_sync:
                committed, broker = self._committed.get(replica.incarnation, (0, 0))
                if replica.partition.log.log_end_offset < committed:
                    self.broken(
                        f"{replica} ends at {replica.partition.log.log_end_offset}; {broker} had HW {committed}"
                    )


class NoTideWithoutSession(Rule):
    """Others may lead by then, and a leader that does not know acknowledges nothing."""

    name = "a leader whose session is over moves no HW"

    def __init__(self) -> None:
        self._over: dict[tuple[Incarnation, BrokerId], tuple[Leader, Offset]] = {}

    def look(self, replicas: Sequence[Replica]) -> None:
        before, self._over = self._over, {}
        for replica in replicas:
            leader = replica.partition.leader
            if leader is None or replica.has_session:
                continue
            key, now = (replica.incarnation, replica.broker), leader.high_watermark
            was_leading, then = before.get(key, (None, now))
            if was_leading is leader and now > then:
                self.broken(f"{replica} in epoch {leader.epoch}: from {then} to {now}")
            self._over[key] = (leader, now)


ALWAYS_TRUE: tuple[type[Rule], ...] = (
    AcknowledgedIsNeverLost,
    ReplicasAgree,
    HighWatermarkWithinLog,
    HighWatermarkNeverFalls,
    OneLeaderPerEpoch,
    ConsumedNeverDisappears,
    OnceAndInOrder,
)
"""What a client can tell, a line of EDGE_CASES.md each."""

INSIDE: tuple[type[Rule], ...] = (InSyncHasAllCommitted, NoTideWithoutSession)
"""What keeps that true: a run need not be so unlucky that somebody is hurt."""

ALL_RULES = ALWAYS_TRUE + INSIDE


def _batches(log: Log, start: Offset, end: Offset) -> Iterator[BatchHeader]:
    """Those between two offsets, of a log as it is in its files."""
    segments = list(log.segments)
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is not None and following.base_offset <= start:
            continue
        for _, header in headers(content_of(segment)):
            if start <= header.base_offset and header.next_offset <= end:
                yield header
