"""The witness: tells the rules what happens in a cluster, and writes it into the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from tidelog.broker.broker import BrokerState
from tidelog.broker.partition import Partition
from tidelog.coordination.port import NoNodeError
from tidelog.lab.broker import LabBroker
from tidelog.lab.checkers import ALL_RULES
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.health import footings, isolated_controller, standings
from tidelog.lab.rules import Acknowledged, BrokenRuleError, ReadOn, Replica, Rule, Settled, Share, Told
from tidelog.records.kernel import Record
from tidelog.types import BrokerId, Offset, TopicPartition

_LOOK_S = 0.2
"""High watermarks and new leaders are seen when they come; the rest is looked at so often."""
_NOTED_BYTES = 20
"""Of a value. The rest is filling."""


class Witness:
    """Looks for the rules, and hears for them."""

    def __init__(self, cluster: LabCluster[Any], rules: Sequence[type[Rule]] = ALL_RULES) -> None:
        self._cluster = cluster
        self.rules = [rule() for rule in rules]
        self._looking = [rule for rule in self.rules if type(rule).look is not Rule.look]
        self._moving = [rule for rule in self.rules if type(rule).moved is not Rule.moved]
        self._standing = [rule for rule in self.rules if _is_of_time(type(rule))]
        self.committed_up_to: dict[TopicPartition, Offset] = {}
        """How far consumers have read, and what writers were told is written."""
        self._indexes: dict[int, None] = {}
        """Of all partitions that were ever seen."""
        self._answered_at_s: float | None = None
        self._answered_s = 0.0
        cluster.lookout.listen(self._happened)

    async def run(self) -> None:
        """Look again and again, until it is cancelled or a rule is broken."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        replicas = list(_replicas(self._cluster))
        for rule in self._looking:
            rule.look(replicas)
        if self._standing:
            indexes = dict.fromkeys(one.partition.name.partition for one in replicas if _is_ours(one.partition))
            self._indexes |= indexes
            found, now_s = standings(self._cluster, indexes), self._now_s()
            running, since_s = footings(self._cluster, self._indexes), self._answered_since_s()
            self._answered_s += since_s
            hosts = self._cluster.world.hosts.values()
            away = {host.name for host in hosts if host.process is None or host.process.frozen}
            lone = isolated_controller(self._cluster)
            for rule in self._standing:
                rule.stands(found, away, self._answered_s)
                rule.runs(running, away, since_s, now_s)
                rule.isolated(lone, now_s)

    def _answered_since_s(self) -> float:
        """Since the last look, if the store answers now and did so then."""
        before, self._answered_at_s = self._answered_at_s, None
        if self._cluster.store.answers_all:
            self._answered_at_s = self._now_s()
        return 0.0 if before is None or self._answered_at_s is None else self._answered_at_s - before

    def _happened(self, broker: BrokerId, partition: Partition, before: Offset) -> None:
        """In the midst of a broker's work, which must not be torn: the run fails after this callback."""
        replicas = list(_replicas_of(self._cluster, partition.name))
        found = [replica for replica in replicas if replica.partition is partition]
        try:
            for replica in found:
                for rule in self._moving:
                    rule.moved(replica, before, replicas)
        except BrokenRuleError as broken:
            self._cluster.world.loop.fail(str(broken), broken)

    # What clients are told

    def sent(self, producer: str, partition: TopicPartition, number: int) -> None:
        for rule in self.rules:
            rule.sent(producer, partition, number, self._now_s())

    def gave_up(self, producer: str) -> None:
        for rule in self.rules:
            rule.gave_up(producer)

    def acknowledged(self, record: Acknowledged) -> None:
        self._note("acknowledged", record.value[:_NOTED_BYTES].decode(), "at", str(record.partition), record.offset)
        self._is_committed_up_to(record.partition, record.offset + 1)
        for rule in self.rules:
            rule.acknowledged(record)

    def consumed(self, reader: str, partition: TopicPartition, record: Record) -> None:
        for rule in self.rules:
            rule.consumed(reader, partition, record)

    def read_on(self, read: ReadOn) -> None:
        self._is_committed_up_to(read.partition, read.next_offset)
        for rule in self.rules:
            for record in read.records:
                rule.consumed(read.reader, read.partition, record)
            rule.read_on(read)

    def read_back(self, record: Acknowledged, found: Sequence[Record], refusal: str = "") -> None:
        self._note("read back", record.value[:_NOTED_BYTES].decode(), "at", str(record.partition), record.offset)
        for rule in self.rules:
            rule.read_back(record, found, refusal)

    def assigned(self, share: Share) -> None:
        for rule in self.rules:
            rule.assigned(share)

    def member_told(self, told: Told) -> None:
        self._note(told.member, "begins at", told.offset, "of", str(told.partition))
        for rule in self.rules:
            rule.member_told(told)

    def vanished(self, reader: str, partition: TopicPartition, offset: Offset) -> None:
        """The log ends before what a client has read or has been told is written."""
        for rule in self.rules:
            rule.vanished(reader, partition, offset)

    def settled(self, logs: Settled) -> None:
        self.look()
        unclean_elections = sum(one.unclean_elections for one in self._cluster.brokers.values())
        for rule in self.rules:
            rule.reported(unclean_elections)
            rule.settled(logs)

    def _is_committed_up_to(self, partition: TopicPartition, end: Offset) -> None:
        self.committed_up_to[partition] = max(end, self.committed_up_to.get(partition, 0))

    def _now_s(self) -> float:
        return self._cluster.world.loop.time()

    def _note(self, *details: str | int) -> None:
        self._cluster.world.loop.note(*details)


def _is_of_time(rule: type[Rule]) -> bool:
    return rule.stands is not Rule.stands or rule.runs is not Rule.runs or rule.isolated is not Rule.isolated


def _is_ours(partition: Partition) -> bool:
    return partition.name.topic == TOPIC


def _replicas(cluster: LabCluster[Any]) -> Iterator[Replica]:
    """Those whose logs are open."""
    isrs: dict[int, list[BrokerId]] = {}
    for number, one in cluster.brokers.items():
        if _is_open(one) and one.broker.replicas.partitions:
            has_session = one.broker.session.is_current()
            for name, partition in one.broker.replicas.partitions.items():
                if name.topic == TOPIC and name.partition not in isrs:
                    isrs[name.partition] = _intact_isr(cluster, name)
                is_in_sync = name.topic == TOPIC and number in isrs[name.partition]
                yield Replica(number, partition, is_in_sync, has_session)


def _replicas_of(cluster: LabCluster[Any], name: TopicPartition) -> Iterator[Replica]:
    """Of one partition."""
    isr = _intact_isr(cluster, name) if name.topic == TOPIC else []
    for number, one in cluster.brokers.items():
        partition = one.broker.replicas.partitions.get(name) if _is_open(one) else None
        if partition is not None:
            yield Replica(number, partition, number in isr, one.broker.session.is_current())


def _is_open(one: LabBroker) -> bool:
    """One that is stopping closes its logs one after the other."""
    return one.is_up and one.broker.state != BrokerState.SHUTTING_DOWN


def _intact_isr(cluster: LabCluster[Any], name: TopicPartition) -> list[BrokerId]:
    """The members that may be elected as they are. It is empty while the topic is being deleted."""
    try:
        return cluster.intact_isr(name.partition)
    except NoNodeError:
        return []
