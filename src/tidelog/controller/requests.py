"""The requests by which the controller tells brokers what is: LeaderAndIsr, UpdateMetadata, StopReplica (S12.2).

A batch collects what one event led to and makes at most a few requests per broker of it. Their order matters: who has
to follow a leader must know where it lives, and a client that hears of a leader should find it leading. So first the
living brokers, if they changed; then LeaderAndIsr; then UpdateMetadata with the partitions; then StopReplica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.controller.image import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_LEADER,
    Broker,
    Image,
)
from tidelog.types import BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.controller import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tidelog.wire.schema import Message

VERSIONS = {LeaderAndIsrRequest: 7, StopReplicaRequest: 4, UpdateMetadataRequest: 8}
"""What Kafka 3.9 sends."""

INCREMENTAL, FULL = 1, 2
"""Types of requests: what changed, or all there is."""

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Batch:
    """What the brokers have to be told after one event."""

    def __init__(self, image: Image, controller_id: BrokerId, controller_epoch: Epoch, listener: str) -> None:
        self._image = image
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._listener = listener
        self._replicas: dict[BrokerId, dict[TopicPartition, bool]] = {}
        """Partitions to tell in LeaderAndIsr; True if they are new."""
        self._changed: dict[TopicPartition, None] = {}
        self._stopped: dict[BrokerId, dict[TopicPartition, StopReplicaPartitionState]] = {}
        self._full: set[BrokerId] = set()
        self._brokers_changed = False

    # Collecting

    def partition_changed(self, partition: TopicPartition, *, new_on: Sequence[BrokerId] = ()) -> None:
        """Its replicas get LeaderAndIsr, everybody gets UpdateMetadata. `new_on`: brokers that get a new replica."""
        assignment = self._image.assignment(partition)
        assert assignment is not None
        for broker in assignment.replicas:
            self._replicas.setdefault(broker, {}).setdefault(partition, broker in new_on)
        self._changed[partition] = None

    def metadata_changed(self, partitions: Iterable[TopicPartition]) -> None:
        self._changed.update(dict.fromkeys(partitions))

    def brokers_changed(self) -> None:
        self._brokers_changed = True

    def tell_everything(self, broker: BrokerId) -> None:
        """The broker knows nothing yet, or nothing from this controller."""
        self._full.add(broker)

    def ask_about(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """LeaderAndIsr for its answer: which of these replicas are on a log directory that failed."""
        self._replicas.setdefault(broker, {}).update(dict.fromkeys(partitions, False))

    def delete_replica(self, broker: BrokerId, partition: TopicPartition) -> None:
        """Of a topic that goes."""
        self._stopped.setdefault(broker, {})[partition] = StopReplicaPartitionState(
            partition_index=partition.partition, leader_epoch=EPOCH_DURING_DELETE, delete_partition=True
        )

    def stop_replica(self, broker: BrokerId, partition: TopicPartition, leader_epoch: Epoch, *, delete: bool) -> None:
        """Of a partition that stays elsewhere: the broker hears nothing else of it."""
        self._replicas.get(broker, {}).pop(partition, None)
        self._stopped.setdefault(broker, {})[partition] = StopReplicaPartitionState(
            partition_index=partition.partition, leader_epoch=leader_epoch, delete_partition=delete
        )

    # Requests

    def requests(self) -> dict[BrokerId, list[Message]]:
        told: dict[BrokerId, list[Message]] = {}
        # One list for all brokers: a large topic is described once.
        changed = self._metadata(self._changed)
        everything = self._metadata(self._all_partitions()) if self._full else []
        live_brokers = [_update_metadata_broker(broker) for _, broker in sorted(self._image.brokers.items())]
        for broker in sorted(self._image.brokers):
            requests: list[Message] = []
            if self._brokers_changed:
                requests.append(self._update_metadata(broker, INCREMENTAL, [], live_brokers))
            if broker in self._full or self._replicas.get(broker):
                requests.append(self._leader_and_isr(broker))
            if broker in self._full:
                requests.append(self._update_metadata(broker, FULL, everything, live_brokers))
            elif changed:
                requests.append(self._update_metadata(broker, INCREMENTAL, changed, live_brokers))
            if broker in self._stopped:
                requests.append(self._stop_replica(broker))
            if requests:
                told[broker] = requests
        return told

    def _all_partitions(self) -> Iterable[TopicPartition]:
        for topic in self._image.topics.values():
            yield from topic.partitions()

    def _update_metadata(
        self,
        broker: BrokerId,
        kind: int,
        topics: list[UpdateMetadataTopicState],
        live_brokers: list[UpdateMetadataBroker],
    ) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=self._controller_id,
            type=kind,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._image.brokers[broker].epoch,
            topic_states=topics,
            live_brokers=live_brokers,
        )

    def _metadata(self, partitions: Iterable[TopicPartition]) -> list[UpdateMetadataTopicState]:
        topics: dict[str, UpdateMetadataTopicState] = {}
        for partition in partitions:
            state = self._metadata_of(partition)
            if state is not None:
                topic = topics.get(partition.topic)
                if topic is None:
                    topic_id = self._image.topics[partition.topic].topic_id
                    topic = UpdateMetadataTopicState(topic_name=partition.topic, topic_id=topic_id)
                    topics[partition.topic] = topic
                topic.partition_states.append(state)
        return list(topics.values())

    def _metadata_of(self, partition: TopicPartition) -> UpdateMetadataPartitionState | None:
        """None for a partition that has never had a leader: nobody knows it yet."""
        assignment, state = self._image.assignment(partition), self._image.state(partition)
        if assignment is None:
            return None
        offline = [broker for broker in assignment.replicas if not self._image.is_online(partition, broker)]
        isr: tuple[BrokerId, ...] = ()
        if partition.topic in self._image.deleting:
            leader, leader_epoch = LEADER_DURING_DELETE, EPOCH_DURING_DELETE
        elif state is not None:
            leader, leader_epoch, isr = state.leader, state.leader_epoch, state.isr
        else:
            return None
        return UpdateMetadataPartitionState(
            partition_index=partition.partition,
            controller_epoch=self._controller_epoch if state is None else state.controller_epoch,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=list(isr),
            zk_version=0 if state is None else state.version,
            replicas=list(assignment.replicas),
            offline_replicas=offline,
        )

    def _leader_and_isr(self, broker: BrokerId) -> LeaderAndIsrRequest:
        partitions = self._replicas.get(broker, {})
        if broker in self._full:
            partitions = {
                TopicPartition(topic.name, index): partitions.get(TopicPartition(topic.name, index), False)
                for topic in self._image.standing()
                for index in topic.states
                if index in topic.assignments and broker in topic.assignments[index].replicas
            }
        topics: dict[str, LeaderAndIsrTopicState] = {}
        leaders: dict[BrokerId, None] = {}
        for partition, is_new in partitions.items():
            topic = self._image.topics[partition.topic]
            state = topic.states.get(partition.partition)
            if state is None:
                continue
            if state.leader != NO_LEADER:
                leaders[state.leader] = None
            told = topics.get(topic.name)
            if told is None:
                told = LeaderAndIsrTopicState(topic_name=topic.name, topic_id=topic.topic_id)
                topics[topic.name] = told
            told.partition_states.append(self._leader_and_isr_of(partition, is_new))
        return LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._image.brokers[broker].epoch,
            type=FULL if broker in self._full else INCREMENTAL,
            topic_states=list(topics.values()),
            live_leaders=[live for leader in sorted(leaders) if (live := self._live_leader(leader)) is not None],
        )

    def _leader_and_isr_of(self, partition: TopicPartition, is_new: bool) -> LeaderAndIsrPartitionState:
        assignment, state = self._image.assignment(partition), self._image.state(partition)
        assert assignment is not None
        assert state is not None
        return LeaderAndIsrPartitionState(
            partition_index=partition.partition,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            partition_epoch=state.version,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding),
            removing_replicas=list(assignment.removing),
            is_new=is_new,
            leader_recovery_state=state.leader_recovery_state,
        )

    def _live_leader(self, leader: BrokerId) -> LeaderAndIsrLiveLeader | None:
        broker = self._image.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if endpoint is None:
            return None
        return LeaderAndIsrLiveLeader(broker_id=leader, host_name=endpoint.host, port=endpoint.port)

    def _stop_replica(self, broker: BrokerId) -> StopReplicaRequest:
        topics: dict[str, StopReplicaTopicState] = {}
        for partition, state in self._stopped[broker].items():
            topic = topics.setdefault(partition.topic, StopReplicaTopicState(topic_name=partition.topic))
            topic.partition_states.append(state)
        return StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._image.brokers[broker].epoch,
            topic_states=list(topics.values()),
        )


def _update_metadata_broker(broker: Broker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=SECURITY_PROTOCOLS.get(endpoint.security_protocol, 0),
            )
            for endpoint in broker.endpoints
        ],
        rack=broker.rack,
    )
