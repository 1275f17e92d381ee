"""What a client knows of the cluster: brokers, topics, and who leads which partition. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.addresses import Address
from tidelog.errors import ErrorCode, error_code
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from tidelog.wire.uuids import ZERO_UUID

NO_BROKER = -1


class Node(NamedTuple):
    """A broker as clients reach it."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        return self.host, self.port


class PartitionMetadata(NamedTuple):
    partition: int
    leader: BrokerId
    leader_epoch: Epoch
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    offline_replicas: tuple[BrokerId, ...] = ()


class TopicMetadata(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionMetadata]
    """By number, ascending."""


class ClusterMetadata:
    """The sum of all Metadata answers.

    Always: a partition's leader is of the highest leader epoch ever heard of, so that a broker that lags behind does
    not send a client back to an old leader. A topic that was made anew begins anew. All answers are of one cluster:
    those of another are not applied.
    """

    def __init__(self, cluster_id: str | None = None) -> None:
        self.cluster_id = cluster_id
        """None until a broker tells it; old brokers do not."""
        self.controller: BrokerId = NO_BROKER
        self.brokers: dict[BrokerId, Node] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.errors: dict[str, ErrorCode] = {}
        """Why a topic that was asked for is not in `topics`."""

    def takes(self, response: MetadataResponse) -> bool:
        """Whether the answer is of this cluster, as far as both are known."""
        return not response.cluster_id or self.cluster_id in (None, response.cluster_id)

    def apply(self, response: MetadataResponse, *, of_all_topics: bool = False) -> None:
        assert self.takes(response), "an answer of another cluster"
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller = response.controller_id
        brokers = sorted(response.brokers, key=lambda broker: broker.node_id)
        self.brokers = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in brokers
        }
        before = self.topics
        if of_all_topics:
            self.topics, self.errors = {}, {}
        for topic in response.topics:
            self._apply_topic(topic, before.get(topic.name or ""))

    def _apply_topic(self, topic: MetadataResponseTopic, before: TopicMetadata | None) -> None:
        name = topic.name or ""
        self.errors.pop(name, None)
        if topic.error_code:
            self.errors[name] = error_code(topic.error_code)
            self.topics.pop(name, None)
            return
        known = before.partitions if before is not None and before.topic_id == topic.topic_id else {}
        partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        self.topics[name] = TopicMetadata(
            name,
            topic.topic_id,
            topic.is_internal,
            {
                partition.partition_index: _newer(known.get(partition.partition_index), partition)
                for partition in partitions
            },
        )

    @property
    def addresses(self) -> list[Address]:
        """Of all brokers."""
        return [node.address for node in self.brokers.values()]

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def leader(self, partition: TopicPartition) -> BrokerId | None:
        """None if it has none, or none that is known and has an address."""
        known = self.partition(partition)
        return None if known is None or known.leader not in self.brokers else known.leader

    def leader_epoch(self, partition: TopicPartition) -> Epoch:
        known = self.partition(partition)
        return NO_EPOCH if known is None else known.leader_epoch

    def topic_id(self, topic: str) -> bytes:
        known = self.topics.get(topic)
        return ZERO_UUID if known is None else known.topic_id

    def led_elsewhere(self, partition: TopicPartition, leader: BrokerId, leader_epoch: Epoch) -> None:
        """An answer said who leads now (KIP-951): taken if it is newer than what is known, and the broker is."""
        topic = self.topics.get(partition.topic)
        known = self.partition(partition)
        if topic is None or known is None or leader not in self.brokers or leader_epoch <= known.leader_epoch:
            return
        topic.partitions[partition.partition] = known._replace(leader=leader, leader_epoch=leader_epoch)


def _newer(known: PartitionMetadata | None, heard: MetadataResponsePartition) -> PartitionMetadata:
    if known is not None and heard.leader_epoch != NO_EPOCH and heard.leader_epoch < known.leader_epoch:
        return known
    return PartitionMetadata(
        heard.partition_index,
        heard.leader_id,
        heard.leader_epoch,
        tuple(heard.replica_nodes),
        tuple(heard.isr_nodes),
        tuple(heard.offline_replicas),
    )
