"""What is always true of a cluster, one class per rule.

Here are the rules of replicas, and those of clients that need every log at the end. The rules that clients alone can
check are in tidelog.lab.client_rules, those of time in tidelog.lab.healing_rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from tidelog.errors import TidelogError
from tidelog.lab.client_rules import (
    DeletedUpToThere,
    GroupPassesOverNothing,
    LastOfEachKeyStays,
    OffsetsNeverGoBack,
    OneOwnerPerPartition,
    ReadersSkipNothing,
    ReadYourWrites,
    RetentionKeepsEnough,
)
from tidelog.lab.cluster import COMPACTED, content_of
from tidelog.lab.healing_rules import (
    AcknowledgedInTime,
    AllInSyncInTime,
    GroupGoesOn,
    InSyncInTime,
    IsolatedControllerYields,
    MetadataInTime,
    ServedInTime,
)
from tidelog.lab.loss_rules import LossIsReported, ReplicasEndEqual
from tidelog.lab.rules import Acknowledged, BrokenRuleError, Incarnation, Replica, Rule, Settled
from tidelog.log.log import Log
from tidelog.log.segment import Segment
from tidelog.records.header import BatchHeader, headers
from tidelog.records.kernel import Record
from tidelog.types import BrokerId, Epoch, Offset, TopicPartition

__all__ = [
    "ALL_RULES",
    "ALWAYS_TRUE",
    "INSIDE",
    "TRUE_AFTER_LOSSES",
    "Acknowledged",
    "BrokenRuleError",
    "Replica",
    "Rule",
    "Settled",
]


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
    """By batch: offsets, epoch and CRC. What one replica has shown below its HW counts for all, from then on.

    What was deleted is not compared: a follower that was away may hold uncommitted records of another epoch there, and
    hears of the HW a moment before it hears of the log start, from the same answer of its leader.
    """

    name = "replicas agree on every offset below HW"

    def __init__(self) -> None:
        self._committed: dict[Incarnation, dict[Offset, tuple[BatchHeader, BrokerId]]] = {}
        self._compared: dict[tuple[Incarnation, BrokerId], _Compared] = {}

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        self._look([replica], replicas)

    def look(self, replicas: Sequence[Replica]) -> None:
        self._look(replicas, replicas)

    def _look(self, some: Sequence[Replica], replicas: Sequence[Replica]) -> None:
        for replica in some:
            log, key = replica.partition.log, (replica.incarnation, replica.broker)
            if log.config.compacted and log.partition.topic == COMPACTED:
                continue  # each replica cleans its log by itself, and so they differ
            compared = self._compared.get(key)
            if compared is None or compared.log is not log or compared.below > log.high_watermark:
                compared = self._compared[key] = _Compared(log)
            if compared.below < log.high_watermark:
                try:
                    for header in compared.next_batches():
                        self._compare(replica, header, replicas)
                except TidelogError as damage:
                    self.cannot_be_read(replica.broker, log.partition, damage)

    def cannot_be_read(self, broker: BrokerId, partition: TopicPartition, damage: TidelogError) -> NoReturn:
        """What is no batch any more is another thing than what the others have there."""
        self.broken(f"{partition} on {broker} cannot be read to its HW: {damage}")

    def _compare(self, replica: Replica, header: BatchHeader, replicas: Sequence[Replica]) -> None:
        committed = self._committed.setdefault(replica.incarnation, {})
        first, broker = committed.setdefault(header.base_offset, (header, replica.broker))
        if first != header and not _is_deleted(replica.incarnation, header, replicas):
            self.broken(
                f"{replica} has at {header.base_offset} a batch of epoch {header.partition_leader_epoch} with CRC "
                f"{header.crc}; {broker} had one of epoch {first.partition_leader_epoch} with CRC {first.crc}"
            )


def _is_deleted(incarnation: Incarnation, header: BatchHeader, replicas: Sequence[Replica]) -> bool:
    same = [replica for replica in replicas if replica.incarnation == incarnation]
    return any(header.base_offset < replica.partition.log.log_start_offset for replica in same)


class _Compared:
    """How far one log has been compared: below an offset, and in which segment at which byte that is."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.below: Offset = log.log_start_offset
        self._segment: Segment | None = None
        self._position = 0

    def next_batches(self) -> Iterator[BatchHeader]:
        """The batches that have come below HW since the last time, of a log as it is in its files."""
        end = self.log.high_watermark
        for segment in list(self.log.segments):
            if self._segment is not None and segment.base_offset < self._segment.base_offset:
                continue
            if segment is not self._segment:
                self._segment, self._position = segment, 0
            content, start = content_of(segment, self._position), self._position
            for position, header in headers(content):
                if header.next_offset > end:
                    self.below = end
                    return
                self._position = start + position + header.size_bytes
                if header.base_offset >= max(self.below, self.log.log_start_offset):  # what is before is being removed
                    yield header
        self.below = end


class HighWatermarkWithinLog(Rule):
    name = "HW <= LEO"

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        self.look([replica])

    def look(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            log = replica.partition.log
            if log.high_watermark > log.log_end_offset:
                self.broken(f"{replica}: HW {log.high_watermark}, LEO {log.log_end_offset}")


class HighWatermarkNeverFalls(Rule):
    name = "HW never falls within an epoch at one leader"

    def __init__(self) -> None:
        self._highest: dict[tuple[Incarnation, Epoch, BrokerId], Offset] = {}

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        self.look([replica])

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

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        self.look([replica])

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

    def vanished(self, reader: str, partition: TopicPartition, offset: Offset) -> None:
        self.broken(f"{reader} is told that {offset} of {partition} is out of range, which was read or acknowledged")

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

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        self.look(replicas)

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

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        leader, now = replica.partition.leader, replica.partition.log.high_watermark
        if leader is not None and not replica.has_session and now > before:
            self.broken(f"{replica} in epoch {leader.epoch}: from {before} to {now}")


ALWAYS_TRUE: tuple[type[Rule], ...] = (
    AcknowledgedIsNeverLost,
    ReplicasAgree,
    HighWatermarkWithinLog,
    HighWatermarkNeverFalls,
    OneLeaderPerEpoch,
    ConsumedNeverDisappears,
    OnceAndInOrder,
    ReadersSkipNothing,
    ReadYourWrites,
    InSyncInTime,
    AcknowledgedInTime,
    IsolatedControllerYields,
    MetadataInTime,
    ServedInTime,
    OneOwnerPerPartition,
    OffsetsNeverGoBack,
    GroupPassesOverNothing,
    GroupGoesOn,
    AllInSyncInTime,
    DeletedUpToThere,
    LastOfEachKeyStays,
    RetentionKeepsEnough,
    LossIsReported,
    ReplicasEndEqual,
)
"""What a client can tell, a line of EDGE_CASES.md each."""

INSIDE: tuple[type[Rule], ...] = (InSyncHasAllCommitted, NoTideWithoutSession)
"""What keeps that true: a run need not be so unlucky that somebody is hurt."""

ALL_RULES = ALWAYS_TRUE + INSIDE

TRUE_AFTER_LOSSES: tuple[type[Rule], ...] = (
    HighWatermarkWithinLog,
    HighWatermarkNeverFalls,
    OneLeaderPerEpoch,
    InSyncInTime,
    AcknowledgedInTime,
    IsolatedControllerYields,
    MetadataInTime,
    LossIsReported,
    ReplicasEndEqual,
)
"""What holds where more is lost than the cluster promises to survive."""
