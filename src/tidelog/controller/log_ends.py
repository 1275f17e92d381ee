"""Where the logs of a partition end, as brokers told the controller while the partition has no leader (S6.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.types import BrokerId, Epoch, Offset, TopicPartition


class LogEnd(NamedTuple):
    """How far a replica's log goes. Of two members a greater one holds all of a smaller one that was committed (S4).

    That does not hold for other replicas: one that has led in between may have records of a late epoch that were never
    committed, and lack earlier ones that were committed afterwards.
    """

    last_epoch: Epoch
    """In which the last record was written."""
    offset: Offset


@dataclass
class _Heard:
    """Of one partition."""

    told: dict[BrokerId, LogEnd] = field(default_factory=dict)
    asked: set[BrokerId] = field(default_factory=set)
    given_up: set[BrokerId] = field(default_factory=set)


class LogEnds:
    """What was asked and told. All of it counts for one life of a broker and one time without a leader."""

    def __init__(self) -> None:
        self._heard: defaultdict[TopicPartition, _Heard] = defaultdict(_Heard)

    def of(self, partition: TopicPartition) -> Mapping[BrokerId, LogEnd]:
        return self._heard[partition].told if partition in self._heard else {}

    def cannot_tell(self, partition: TopicPartition, broker: BrokerId) -> bool:
        return partition in self._heard and broker in self._heard[partition].given_up

    def ask(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """False if it was asked and has not answered yet."""
        asked = self._heard[partition].asked
        is_new = broker not in asked
        asked.add(broker)
        return is_new

    def answered(self, partition: TopicPartition, broker: BrokerId) -> None:
        if partition in self._heard:
            self._heard[partition].asked.discard(broker)

    def told(self, partition: TopicPartition, broker: BrokerId, end: LogEnd) -> None:
        self._heard[partition].told[broker] = end

    def give_up(self, partition: TopicPartition, broker: BrokerId) -> None:
        """It was asked long ago. If it tells after all, that counts."""
        self._heard[partition].given_up.add(broker)

    def keep_given_up(self, former: LogEnds, still_holds: Callable[[TopicPartition, BrokerId], bool]) -> None:
        """Everything was read again in the same term. Replicas that could not tell are not waited for once more."""
        for partition, heard in former._heard.items():
            kept = {broker for broker in heard.given_up if still_holds(partition, broker)}
            if kept:
                self._heard[partition].given_up |= kept

    def forget_broker(self, broker: BrokerId) -> None:
        """It died or begins anew: what it told of its logs counts no more."""
        for heard in self._heard.values():
            heard.told.pop(broker, None)
            heard.asked.discard(broker)
            heard.given_up.discard(broker)

    def forget_partition(self, partition: TopicPartition) -> None:
        """It has a leader again, so its logs move; or its topic is gone."""
        self._heard.pop(partition, None)
