"""What each broker of a cluster says of it, asked one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.calls import call, connection_to
from tidelog.errors import ErrorCode
from tidelog.wire import Message
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_METADATA_VERSION, _LIST_OFFSETS_VERSION = 9, 5
_CONSUMER, _LATEST = -1, -1

Condition = Callable[[MetadataResponsePartition], bool]


class View:
    """The brokers that run, by id, and their ports."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = ports

    def is_complete(self) -> bool:
        """All know all, and the same controller among them."""
        found = [self._metadata(number) for number in self._ports]
        known = {(one.controller_id, *sorted(broker.node_id for broker in one.brokers)) for one in found if one}
        return None not in found and known in [{(number, *sorted(self._ports))} for number in self._ports]

    def controller(self) -> int:
        return self._described().controller_id

    def leaders(self, topic: str) -> dict[int, int]:
        """By partition."""
        return {one.partition_index: one.leader_id for one in self._described(topic).topics[0].partitions}

    def is_in_sync(self, topic: str, partitions: int) -> bool:
        """All brokers say that every partition has a leader and all its replicas in the ISR, and the leaders serve."""
        return self._is_led(
            topic, partitions, lambda one: one.leader_id in self._ports and len(one.isr_nodes) == len(one.replica_nodes)
        )

    def is_led(self, topic: str, partitions: int) -> bool:
        """All brokers that run say that every partition is led by one that runs, and the leaders serve."""
        return self._is_led(topic, partitions, lambda one: one.leader_id in self._ports)

    def _is_led(self, topic: str, partitions: int, condition: Condition) -> bool:
        for number in self._ports:
            metadata = self._metadata(number, topic)
            if metadata is None:
                return False
            found = metadata.topics[0].partitions
            if len(found) != partitions or not all(map(condition, found)):
                return False
            if not self._serves(number, topic, [one.partition_index for one in found if one.leader_id == number]):
                return False
        return True

    def _serves(self, number: int, topic: str, partitions: list[int]) -> bool:
        """It answers for these partitions as their leader: metadata may tell of one that has not begun."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=_LATEST) for index in partitions]
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        response = self._ask(number, request, _LIST_OFFSETS_VERSION)
        if response is None:
            return False
        assert isinstance(response, ListOffsetsResponse)
        return all(one.error_code == ErrorCode.NONE for found in response.topics for one in found.partitions)

    def _described(self, topic: str | None = None) -> MetadataResponse:
        """By the first broker that answers."""
        return next(found for found in (self._metadata(number, topic) for number in self._ports) if found is not None)

    def _metadata(self, number: int, topic: str | None = None) -> MetadataResponse | None:
        topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = self._ask(number, request, _METADATA_VERSION)
        assert response is None or isinstance(response, MetadataResponse)
        return response

    def _ask(self, number: int, request: Message, version: int) -> Message | None:
        """None if it cannot be reached."""
        try:
            with connection_to(self._ports[number]) as connection:
                return call(connection, request, version)
        except OSError:
            return None
