"""kafka-python as a member of groups and their administrator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from driver import DEADLINE_S, ClientError, Record
from driver_kafka_python import KafkaPython, failed, record_of
from group_driver import (
    COOPERATIVE,
    HEARTBEAT_MS,
    METADATA_MAX_AGE_MS,
    RANGE,
    ROUND_ROBIN,
    STICKY,
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
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError
from kafka.util import Timer

_ASSIGNORS = {
    RANGE: RangePartitionAssignor,
    ROUND_ROBIN: RoundRobinPartitionAssignor,
    STICKY: StickyPartitionAssignor,
    COOPERATIVE: CooperativeStickyAssignor,
}
_MOST_RECORDS = 500


def _parts(partitions: Iterable[TopicPartition]) -> Parts:
    return frozenset((partition.topic, partition.partition) for partition in partitions)


def _given(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*part): OffsetAndMetadata(offset, "", -1) for part, offset in offsets.items()}


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if revoked:
            self._member.revoked.append(_parts(revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """The share tells."""


class _Polled(PolledConsumer):
    def __init__(self, bootstrap: str, joining: Joining, member: Member) -> None:
        self._member = member
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=joining.group,
            group_instance_id=joining.instance_id,
            client_id="conformance",
            auto_offset_reset=joining.reset,
            partition_assignment_strategy=[_ASSIGNORS[joining.strategy]],
            enable_auto_commit=joining.auto_commit,
            session_timeout_ms=joining.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=joining.poll_interval_ms,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            fetch_max_wait_ms=100,
            retry_backoff_ms=20,
        )
        self._consumer.subscribe(joining.topics, pattern=joining.pattern, listener=_Listener(member))

    def poll(self) -> list[Record]:
        """One round of what its poll repeats until the time is over; without a join that lasts a heartbeat's time.

        A poll that ends between SyncGroup and its answer loses the answer, if it was a change of the topics that made
        it join: kafka-python 3.0.12 then thinks that it has joined, and sends no heartbeats.
        """
        try:
            found = self._consumer._poll_once(Timer(DEADLINE_S * 1000), _MOST_RECORDS)
        except KafkaError as raised:
            raise failed(raised) from raised
        return [record_of(record) for records in found.values() for record in records]

    def assignment(self) -> Parts:
        return _parts(self._consumer.assignment())

    def commit(self, offsets: Offsets | None) -> None:
        try:
            self._consumer.commit(None if offsets is None else _given(offsets), timeout_ms=DEADLINE_S * 1000)
        except KafkaError as raised:
            raise failed(raised) from raised

    def commit_async(self) -> None:
        told: list[Any] = []
        self._consumer.commit_async(callback=lambda offsets, response: told.append(response))
        while not told:
            self._member.read += self.poll()
        if isinstance(told[0], Exception):
            raise failed(told[0])

    def committed(self, part: Part) -> int | None:
        offset: int | None = self._consumer.committed(TopicPartition(*part), timeout_ms=DEADLINE_S * 1000)
        return offset

    def position(self, part: Part) -> int:
        return int(self._consumer.position(TopicPartition(*part)))

    def pause(self, part: Part) -> None:
        self._consumer.pause(TopicPartition(*part))

    def resume(self, part: Part) -> None:
        self._consumer.resume(TopicPartition(*part))

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonGroups(KafkaPython, GroupDriver):
    lacks: ClassVar[Mapping[str, str]] = {"cooperative-flow": "its poll gives no records while it joins"}

    def join(self, joining: Joining) -> Member:
        return ThreadMember(lambda member: _Polled(self.bootstrap, joining, member))

    def doomed(self, joining: Joining) -> Doomed:
        return doomed_python("group_kafka_python:KafkaPythonGroups", self.bootstrap, joining)

    def list_groups(self) -> dict[str, str]:
        return {found["group_id"]: found["protocol_type"] for found in self.call(lambda admin: admin.list_groups())}

    def describe_group(self, group: str) -> Group:
        found = self.call(lambda admin: admin.describe_groups([group]))[group]
        if found["error"] is not None:
            raise ClientError(_code(found["error"]), found["error"])
        members = [
            GroupMember(member["client_id"], member["client_host"], _assigned(member["member_assignment"]))
            for member in found["members"]
        ]
        return Group(found["group_state"], found["protocol_type"], found["protocol_data"], tuple(members))

    def delete_group(self, group: str) -> None:
        _check(self.call(lambda admin: admin.delete_groups([group]))[group])

    def list_group_offsets(self, group: str) -> dict[Part, int]:
        found = self.call(lambda admin: admin.list_group_offsets(group))[group]
        return {(place.topic, place.partition): entry.offset for place, entry in found.items()}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        for error in self.call(lambda admin: admin.alter_group_offsets(group, _given(offsets))).values():
            _check(error)

    def delete_group_offsets(self, group: str, parts: Iterable[Part]) -> None:
        places = [TopicPartition(*part) for part in parts]
        for error in self.call(lambda admin: admin.delete_group_offsets(group, places)).values():
            _check(error)


def _check(answer: Any) -> None:
    """It answers with the class of an error, or with its name."""
    error: Any = getattr(errors, answer, errors.NoError) if isinstance(answer, str) else answer
    if error.errno:
        raise ClientError(error.errno, str(answer))


def _code(text: str) -> int:
    return int(text.removeprefix("[Error ").partition("]")[0])


def _assigned(assignment: Any) -> Parts:
    if not assignment:
        return frozenset()
    return frozenset(
        (topic["topic"], number) for topic in assignment["assigned_partitions"] for number in topic["partitions"]
    )
