"""confluent-kafka (librdkafka) as a member of groups and their administrator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from driver import DEADLINE_S, ClientError, Record
from driver_confluent import Confluent, failed, record_of, result_of
from group_driver import (
    HEARTBEAT_MS,
    METADATA_MAX_AGE_MS,
    Doomed,
    Group,
    GroupDriver,
    GroupMember,
    Joining,
    Member,
    Offsets,
    Part,
    Parts,
)
from group_processes import doomed_python
from group_threads import PolledConsumer, ThreadMember

_POLL_S = 0.05


def _parts(partitions: Iterable[TopicPartition]) -> Parts:
    return frozenset((partition.topic, partition.partition) for partition in partitions)


class _Polled(PolledConsumer):
    def __init__(self, bootstrap: str, joining: Joining, member: Member) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": joining.group,
            "client.id": "conformance",
            "auto.offset.reset": {"none": "error"}.get(joining.reset, joining.reset),
            "partition.assignment.strategy": joining.strategy,
            "enable.auto.commit": joining.auto_commit,
            "session.timeout.ms": joining.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": joining.poll_interval_ms,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "fetch.wait.max.ms": 100,
            "on_commit": self._committed,
            "log_level": 0,
        }
        if joining.instance_id is not None:
            settings["group.instance.id"] = joining.instance_id
        self._consumer = Consumer(settings)
        self._member = member
        self._commits = 0
        topics = list(joining.topics) if joining.pattern is None else [f"^{joining.pattern}"]
        self._consumer.subscribe(topics, on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._member.revoked.append(_parts(partitions))

    def poll(self) -> list[Record]:
        records = []
        give_up_at = time.monotonic() + _POLL_S
        while time.monotonic() < give_up_at:
            message = self._consumer.poll(max(0.0, give_up_at - time.monotonic()))
            if message is None:
                break
            if message.error() is not None:
                raise failed(message.error())
            records.append(record_of(message))
        return records

    def assignment(self) -> Parts:
        return _parts(self._consumer.assignment())

    def commit(self, offsets: Offsets | None) -> None:
        try:
            if offsets is None:
                self._consumer.commit(asynchronous=False)
            else:
                places = [TopicPartition(*part, offset) for part, offset in offsets.items()]
                self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as raised:
            raise failed(raised.args[0]) from raised

    def commit_async(self) -> None:
        """Its callback is called from a poll."""
        told = self._commits
        self._consumer.commit(asynchronous=True)
        give_up_at = time.monotonic() + DEADLINE_S
        while self._commits == told:
            assert time.monotonic() < give_up_at, "the commit was not stored"
            self._member.read += self.poll()

    def _committed(self, error: Any, partitions: list[TopicPartition]) -> None:
        if error is not None:
            raise failed(error)
        self._commits += 1

    def committed(self, part: Part) -> int | None:
        (found,) = self._consumer.committed([TopicPartition(*part)], timeout=DEADLINE_S)
        return None if found.offset == OFFSET_INVALID else int(found.offset)

    def position(self, part: Part) -> int:
        (found,) = self._consumer.position([TopicPartition(*part)])
        return int(found.offset)

    def pause(self, part: Part) -> None:
        self._consumer.pause([TopicPartition(*part)])

    def resume(self, part: Part) -> None:
        self._consumer.resume([TopicPartition(*part)])

    def close(self) -> None:
        self._consumer.close()


class ConfluentGroups(Confluent, GroupDriver):
    lacks: ClassVar[Mapping[str, str]] = {
        "sticky-strategy": "librdkafka has only the cooperative one",
        "delete-group-offsets": "confluent-kafka has no such call",
        "delete-offsets-of-subscribed-topic": "confluent-kafka has no such call",
    }
    least_poll_interval_ms = 6000

    def join(self, joining: Joining) -> Member:
        return ThreadMember(lambda member: _Polled(self.bootstrap, joining, member))

    def doomed(self, joining: Joining) -> Doomed:
        return doomed_python("group_confluent:ConfluentGroups", self.bootstrap, joining)

    def list_groups(self) -> dict[str, str]:
        listed = result_of(self.admin().list_consumer_groups(request_timeout=DEADLINE_S))
        assert not listed.errors, listed.errors
        return {group.group_id: "" for group in listed.valid}

    def describe_group(self, group: str) -> Group:
        found = result_of(self.admin().describe_consumer_groups([group])[group])
        members = [
            GroupMember(member.client_id, member.host, _parts(member.assignment.topic_partitions))
            for member in found.members
        ]
        return Group(_STATES[found.state], "consumer", found.partition_assignor, tuple(members))

    def delete_group(self, group: str) -> None:
        result_of(self.admin().delete_consumer_groups([group])[group])

    def list_group_offsets(self, group: str) -> dict[Part, int]:
        asked = self.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        return {(place.topic, place.partition): place.offset for place in _checked(result_of(asked[group]))}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        places = [TopicPartition(*part, offset) for part, offset in offsets.items()]
        asked = self.admin().alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        _checked(result_of(asked[group]))


_STATES = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.DEAD: "Dead",
}


def _checked(answer: ConsumerGroupTopicPartitions) -> list[TopicPartition]:
    places = list(answer.topic_partitions or ())
    for place in places:
        if place.error is not None:
            raise ClientError(place.error.code(), str(place.error))
    return places
