"""aiokafka as a member of groups and their administrator."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from driver import Record
from driver_aiokafka import AioKafka, check, failed, record_of
from group_driver import (
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

T = TypeVar("T")
_ASSIGNORS = {RANGE: RangePartitionAssignor, ROUND_ROBIN: RoundRobinPartitionAssignor, STICKY: StickyPartitionAssignor}
_POLL_MS = 50


def _parts(partitions: Iterable[TopicPartition]) -> Parts:
    return frozenset((partition.topic, partition.partition) for partition in partitions)


def _assignor(strategy: str) -> type[Any]:
    """A class of its own for each member: the sticky one keeps in its class what the member was assigned."""
    return type(strategy, (_ASSIGNORS[strategy],), {})


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if revoked:
            self._member.revoked.append(_parts(revoked))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """The share tells."""


class _Polled(PolledConsumer):
    """Its event loop runs while it is called, and it is called all the time."""

    def __init__(self, bootstrap: str, joining: Joining, member: Member) -> None:
        self._runner = asyncio.Runner()
        self._run(self._start(bootstrap, joining, member))

    async def _start(self, bootstrap: str, joining: Joining, member: Member) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=joining.group,
            group_instance_id=joining.instance_id,
            client_id="conformance",
            auto_offset_reset=joining.reset,
            partition_assignment_strategy=[_assignor(joining.strategy)],
            enable_auto_commit=joining.auto_commit,
            session_timeout_ms=joining.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=joining.poll_interval_ms,
            rebalance_timeout_ms=joining.session_ms,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            fetch_max_wait_ms=100,
        )
        self._consumer.subscribe(joining.topics, pattern=joining.pattern, listener=_Listener(member))
        await self._consumer.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except KafkaError as raised:
            raise failed(raised) from raised

    def poll(self) -> list[Record]:
        found = self._run(self._consumer.getmany(timeout_ms=_POLL_MS))
        return [record_of(record) for records in found.values() for record in records]

    def idle(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    def assignment(self) -> Parts:
        return _parts(self._consumer.assignment())

    def commit(self, offsets: Offsets | None) -> None:
        given = None if offsets is None else {TopicPartition(*part): offset for part, offset in offsets.items()}
        self._run(self._consumer.commit(given))

    def committed(self, part: Part) -> int | None:
        offset: int | None = self._run(self._consumer.committed(TopicPartition(*part)))
        return offset

    def position(self, part: Part) -> int:
        return int(self._run(self._consumer.position(TopicPartition(*part))))

    def pause(self, part: Part) -> None:
        self._run(self._pause(part))

    async def _pause(self, part: Part) -> None:
        """No coroutine of aiokafka's, but it wants to be called in one."""
        self._consumer.pause(TopicPartition(*part))

    def resume(self, part: Part) -> None:
        self._consumer.resume(TopicPartition(*part))

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._runner.close()


class AioKafkaGroups(AioKafka, GroupDriver):
    lacks: ClassVar[Mapping[str, str]] = {
        "commit-async": "all its commits are coroutines",
        "cooperative-strategy": "aiokafka has no cooperative assignor",
        "cooperative-flow": "aiokafka has no cooperative assignor",
        "delete-group": "aiokafka has no such call",
        "delete-group-with-members": "aiokafka has no such call",
        "delete-unknown-group": "aiokafka has no such call",
        "alter-group-offsets": "aiokafka has no such call",
        "alter-offsets-of-group-with-members": "aiokafka has no such call",
        "delete-group-offsets": "aiokafka has no such call",
        "delete-offsets-of-subscribed-topic": "aiokafka has no such call",
    }

    def join(self, joining: Joining) -> Member:
        return ThreadMember(lambda member: _Polled(self.bootstrap, joining, member))

    def doomed(self, joining: Joining) -> Doomed:
        return doomed_python("group_aiokafka:AioKafkaGroups", self.bootstrap, joining)

    def list_groups(self) -> dict[str, str]:
        return dict(self.call(lambda admin: admin.list_consumer_groups()))

    def describe_group(self, group: str) -> Group:
        (answer,) = self.call(lambda admin: admin.describe_consumer_groups([group]))
        ((code, _, state, protocol_type, protocol, members, *_),) = answer.groups
        check(code, group)
        found = [GroupMember(client, host, _assigned(data)) for client, host, data in map(_shown, members)]
        return Group(state, protocol_type, protocol, tuple(found))

    def list_group_offsets(self, group: str) -> dict[Part, int]:
        found = self.call(lambda admin: admin.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): entry.offset for place, entry in found.items()}


def _shown(member: Any) -> tuple[str, str, bytes]:
    """A member's client id, host and assignment; from version 4 on there is an instance id before them."""
    *_, client_id, host, _, assignment = member
    return client_id, host, assignment


def _assigned(data: bytes) -> Parts:
    if not data:
        return frozenset()
    assignment = ConsumerProtocolMemberAssignment.decode(data)
    return frozenset((topic, number) for topic, numbers in assignment.assignment for number in numbers)
