"""The fault budget for power losses: how many unsynced bytes a cluster has to survive the loss of.

A kill keeps the page cache, so a killed broker is intact. Power is lost by one broker at a time: the next one loses it
only when the one before is back in every ISR that it was in. And it is never lost by the last intact member of an ISR.
Everything else may go wrong at the same time.

There is no limit in two kinds of runs: where all that is acknowledged is on the device before (flush.messages=1), and
where records may be lost, if only that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.controller import nodes
from tidelog.controller.image import PartitionState
from tidelog.coordination.port import NoNodeError
from tidelog.lab.cluster import LabCluster
from tidelog.types import NO_EPOCH, BrokerId, TopicPartition


class PowerBudget:
    """Looks at what the store holds, as the election will. All saboteurs of a cluster share one."""

    def __init__(
        self, cluster: LabCluster[Any], partitions: Sequence[TopicPartition], *, is_unlimited: bool = False
    ) -> None:
        self.is_unlimited = is_unlimited
        """Any number of brokers may lose power at any time."""
        self._cluster = cluster
        self._partitions = partitions
        self._lost_up_to: dict[BrokerId, int] = {}
        """The youngest broker epoch that there could be when a broker lost power: what it had then may be lost."""
        self._out_of: dict[BrokerId, list[TopicPartition]] = {}
        """The partitions in whose ISR a broker was when it lost power."""

    def may_lose_power(self, broker: BrokerId) -> bool:
        """Whether the cluster has to bear it now. Of a partition whose nodes cannot be read that is not known."""
        return self.is_unlimited or (
            all(self._is_readable(partition) for partition in self._partitions)
            and all(self._is_back(other) for other in self._out_of if other != broker)
            and all(self._is_not_the_last(broker, partition) for partition in self._partitions)
        )

    def lose_power(self, broker: BrokerId) -> None:
        """The broker loses its power, at once."""
        self.loses_records(broker)
        self._cluster[broker].lose_power()

    def loses_records(self, broker: BrokerId) -> None:
        """By a power loss or in another way; it is to start as one that may have lost some."""
        self._out_of[broker] = [
            partition
            for partition in self._partitions
            if (state := self._state(partition)) is not None and broker in state.eligible
        ]
        self._lost_up_to[broker] = self._cluster.store.tree.change_id

    def _is_readable(self, partition: TopicPartition) -> bool:
        try:
            self._stored(partition)
            self._replicas(partition)
        except nodes.BadNodeError:
            return False
        except NoNodeError:
            return True
        return True

    def _is_back(self, broker: BrokerId) -> bool:
        """It is in sync again wherever it was, or is not to be there any more."""
        return all(
            state is None or broker not in self._replicas(partition) or self._is_intact(state, broker)
            for partition in self._out_of[broker]
            for state in [self._state(partition)]
        )

    def _is_not_the_last(self, broker: BrokerId, partition: TopicPartition) -> bool:
        state = self._state(partition)
        if state is None or broker not in state.eligible:
            return True
        return any(self._is_intact(state, other) for other in state.isr if other != broker)

    def _is_intact(self, state: PartitionState, broker: BrokerId) -> bool:
        """It is in the ISR and has lost nothing since it came into it, be it up or killed."""
        return broker in state.isr and state.lives.get(broker, NO_EPOCH) > self._lost_up_to.get(broker, NO_EPOCH)

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        try:
            return self._stored(partition)
        except (NoNodeError, nodes.BadNodeError):
            return None

    def _stored(self, partition: TopicPartition) -> PartitionState:
        node = self._cluster.store.tree.get(nodes.state_path(partition))
        return nodes.decode_state(partition, node.data, node.stat.version, node.stat.modified_id)

    def _replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        node = self._cluster.store.tree.get(nodes.topic_path(partition.topic))
        return nodes.decode_topic(partition.topic, node.data).assignments[partition.partition].replicas
