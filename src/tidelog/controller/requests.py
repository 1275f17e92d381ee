"""The requests by which the controller tells brokers what is: LeaderAndIsr, UpdateMetadata, StopReplica (S12.2).

A batch collects what one event led to and makes at most a few requests per broker of it. Their order matters: who has
to follow a leader must know where it lives, and a client that hears of a leader should find it leading. So first the
living brokers, if they changed; then LeaderAndIsr; then UpdateMetadata with the partitions; then StopReplica. The last
is a question: where replicas end that may have lost records; by then their brokers have opened their logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.controller.elr_tags import set_elr, set_last_known_elr
from tidelog.controller.image import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_LEADER,
    Broker,
    Image,
    PartitionState,
)
from tidelog.controller.stop_tags import UNREADABLE_ID, set_topic_id
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire import ZERO_UUID
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
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.schema import Message

MOST_NAMED = 10_000
"""Partitions that one broker names to another in a request that clients may send, too: more would be refused."""
VERSIONS = {LeaderAndIsrRequest: 7, StopReplicaRequest: 4, UpdateMetadataRequest: 8, ListOffsetsRequest: 7}
"""What Kafka 3.9 sends."""

INCREMENTAL, FULL = 1, 2
"""Types of requests: what changed, or all there is."""

_DEBUGGING_REPLICA = -2
"""A request with this replica id is answered with what the replica itself has, whether it leads or not."""
_LATEST = -1

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_UNKNOWN_STATE = PartitionState(NO_LEADER, NO_EPOCH, (), NO_EPOCH, NO_EPOCH, {})


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
        self._log_ends: dict[BrokerId, list[TopicPartition]] = {}
        self._full: set[BrokerId] = set()
        self._brokers_changed = False

    def about(self, image: Image) -> Batch:
        """A new one, of the same controller."""
        return Batch(image, self._controller_id, self._controller_epoch, self._listener)

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
        self.tell_again(broker, dict.fromkeys(partitions, False))

    def tell_again(self, broker: BrokerId, partitions: Mapping[TopicPartition, bool]) -> None:
        """LeaderAndIsr as it is now; True for partitions that are new to the broker."""
        self._replicas.setdefault(broker, {}).update(partitions)

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

    def ask_log_end(self, broker: BrokerId, partition: TopicPartition) -> None:
        """ListOffsets for its answer: the last epoch in the replica's log, and where that ends."""
        self._log_ends.setdefault(broker, []).append(partition)

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
            if broker in self._log_ends:
                wanted = self._log_ends[broker]
                pieces = (wanted[at : at + MOST_NAMED] for at in range(0, len(wanted), MOST_NAMED))
                requests.extend(map(self._list_offsets, pieces))
            if requests:
                told[broker] = requests
        return told

    def _list_offsets(self, partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
        """The leader epoch says when it was asked, for whoever gets the answer; the broker does not look at it."""
        topics: dict[str, ListOffsetsTopic] = {}
        for partition in partitions:
            state = self._image.state(partition)
            wanted = ListOffsetsPartition(partition_index=partition.partition, timestamp=_LATEST)
            wanted.current_leader_epoch = NO_EPOCH if state is None else state.leader_epoch
            topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic)).partitions.append(wanted)
        return ListOffsetsRequest(replica_id=_DEBUGGING_REPLICA, topics=list(topics.values()))

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
        """None for a partition that has never had a leader: no client knows it yet.

        One whose state cannot be read is told without a leader: without it the topic would have fewer partitions.
        """
        assignment, state = self._image.assignment(partition), self._image.state(partition)
        if assignment is None:
            return None
        if state is None and self._has_fault(partition):
            state = _UNKNOWN_STATE
        offline = [broker for broker in assignment.replicas if not self._image.is_online(partition, broker)]
        isr: tuple[BrokerId, ...] = ()
        if partition.topic in self._image.deleting:
            leader, leader_epoch = LEADER_DURING_DELETE, EPOCH_DURING_DELETE
        elif state is not None:
            leader, leader_epoch, isr = state.leader, state.leader_epoch, state.isr
        else:
            return None
        told = UpdateMetadataPartitionState(
            partition_index=partition.partition,
            controller_epoch=self._controller_epoch if state is None else state.controller_epoch,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=list(isr),
            zk_version=0 if state is None else state.version,
            replicas=list(assignment.replicas),
            offline_replicas=offline,
        )
        if state is not None and leader != LEADER_DURING_DELETE:
            self._tell_who_is_eligible(told, state)
        return told

    def _tell_who_is_eligible(self, told: UpdateMetadataPartitionState, state: PartitionState) -> None:
        """Outside the ISR while there is a leader. Without one, each member of the last ISR that comes back intact."""
        eligible = state.eligible if state.leader == NO_LEADER else state.elr
        if not eligible:
            return
        lost = [member for member in eligible if self._image.has_lost(state, member)]
        set_elr(told, [member for member in eligible if member not in lost])
        set_last_known_elr(told, lost)

    def _has_fault(self, partition: TopicPartition) -> bool:
        return partition.partition in self._image.topics[partition.topic].faults

    def _leader_and_isr(self, broker: BrokerId) -> LeaderAndIsrRequest:
        partitions = self._replicas.get(broker, {})
        if broker in self._full:
            partitions = {
                TopicPartition(topic.name, index): partitions.get(TopicPartition(topic.name, index), False)
                for topic in self._image.standing()
                for index in (*topic.states, *topic.faults)
                if index in topic.assignments and broker in topic.assignments[index].replicas
            }
        topics: dict[str, LeaderAndIsrTopicState] = {}
        leaders: dict[BrokerId, None] = {}
        for partition, is_new in partitions.items():
            topic = self._image.topics[partition.topic]
            state = topic.states.get(partition.partition)
            if state is None and not self._has_fault(partition):
                continue
            if state is not None and state.leader != NO_LEADER:
                leaders[state.leader] = None
            told = topics.get(topic.name)
            if told is None:
                told = LeaderAndIsrTopicState(topic_name=topic.name, topic_id=topic.topic_id)
                topics[topic.name] = told
            told.partition_states.append(
                self._leader_and_isr_of(partition, is_new or self._is_being_added(partition, broker))
            )
        return LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._image.brokers[broker].epoch,
            type=FULL if broker in self._full else INCREMENTAL,
            topic_states=list(topics.values()),
            live_leaders=[live for leader in sorted(leaders) if (live := self._live_leader(leader)) is not None],
        )

    def _is_being_added(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """The replica is new as long as the reassignment goes on and no election counts it. The request that first told
        so may be lost, and a broker with a failed log directory makes no log for a replica that is not new. Whatever
        the broker may have of it, it keeps."""
        assignment, state = self._image.assignment(partition), self._image.state(partition)
        return (
            assignment is not None
            and state is not None
            and broker in assignment.adding
            and broker not in state.eligible
        )

    def _leader_and_isr_of(self, partition: TopicPartition, is_new: bool) -> LeaderAndIsrPartitionState:
        """A state that cannot be read is older than any: a broker keeps its replica, and the role that it has."""
        assignment, state = self._image.assignment(partition), self._image.state(partition) or _UNKNOWN_STATE
        assert assignment is not None
        told = LeaderAndIsrPartitionState(
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
        set_elr(told, state.elr)
        return told

    def _live_leader(self, leader: BrokerId) -> LeaderAndIsrLiveLeader | None:
        broker = self._image.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if endpoint is None:
            return None
        return LeaderAndIsrLiveLeader(broker_id=leader, host_name=endpoint.host, port=endpoint.port)

    def _stop_replica(self, broker: BrokerId) -> StopReplicaRequest:
        topics: dict[str, StopReplicaTopicState] = {}
        for partition, state in self._stopped[broker].items():
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = StopReplicaTopicState(topic_name=partition.topic)
                known = self._image.topics.get(partition.topic)
                is_unreadable = known is not None and known.fault is not None and known.topic_id == ZERO_UUID
                if known is not None:
                    set_topic_id(topic, UNREADABLE_ID if is_unreadable else known.topic_id)
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
