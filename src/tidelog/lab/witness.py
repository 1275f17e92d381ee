"""The witness: tells the rules what happens in a cluster, and writes it into the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tidelog.broker.broker import BrokerState
from tidelog.coordination.port import NoNodeError
from tidelog.lab.checkers import (
    ALL_RULES,
    Acknowledged,
    BrokenRuleError,
    ConsumedNeverDisappears,
    Replica,
    Rule,
    Settled,
)
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.records.kernel import Record
from tidelog.types import BrokerId, Offset, TopicPartition

_LOOK_S = 0.02


class Witness:
    """Looks for the rules, and hears for them."""

    def __init__(self, cluster: LabCluster[Any], rules: Sequence[type[Rule]] = ALL_RULES) -> None:
        self._cluster = cluster
        self.rules = [rule() for rule in rules]

    async def run(self) -> None:
        """Look again and again, until it is cancelled or a rule is broken."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        replicas = list(_replicas(self._cluster))
        for rule in self.rules:
            rule.look(replicas)

    def acknowledged(self, record: Acknowledged) -> None:
        self._note("acknowledged", record.value.decode(), "at", str(record.partition), record.offset)
        for rule in self.rules:
            rule.acknowledged(record)

    def consumed(self, reader: str, partition: TopicPartition, record: Record) -> None:
        for rule in self.rules:
            rule.consumed(reader, partition, record)

    def vanished(self, reader: str, partition: TopicPartition, offset: Offset) -> NoReturn:
        """The log ends before what a consumer has read."""
        raise BrokenRuleError(
            ConsumedNeverDisappears.name, f"{reader} has read {partition} up to {offset}, past its end"
        )

    def settled(self, logs: Settled) -> None:
        self.look()
        for rule in self.rules:
            rule.settled(logs)

    def _note(self, *details: str | int) -> None:
        self._cluster.world.loop.note(*details)


def _replicas(cluster: LabCluster[Any]) -> Iterator[Replica]:
    """Those whose logs are open. One that is stopping closes them one after the other."""
    isrs: dict[int, list[BrokerId]] = {}
    for number, one in cluster.brokers.items():
        if one.is_up and one.broker.state != BrokerState.SHUTTING_DOWN and one.broker.replicas.partitions:
            has_session = one.broker.session.is_current()
            for name, partition in one.broker.replicas.partitions.items():
                if name.topic == TOPIC and name.partition not in isrs:
                    isrs[name.partition] = _stored_isr(cluster, name.partition)
                is_in_sync = name.topic == TOPIC and number in isrs[name.partition]
                yield Replica(number, partition, is_in_sync, has_session)


def _stored_isr(cluster: LabCluster[Any], index: int) -> list[BrokerId]:
    """Of nobody while the topic is being deleted."""
    try:
        return cluster.stored_isr(index)
    except NoNodeError:
        return []
