"""Whole brokers for tests: on a simulated machine, where time is free, or on this one.

A test is a story: a coroutine that gets a Kit, and through it a broker to call, to stop, to kill and to start again.
`run` tells it in a World, on a host beside the broker's; `run_here` on asyncio, with real files and sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kits.logkit import batch
from tidelog.broker.broker import Broker
from tidelog.broker.partition import Partition
from tidelog.broker.registrations import _Known
from tidelog.broker.standing import Standing
from tidelog.controller import nodes
from tidelog.coordination.memory import MemoryCoordination
from tidelog.coordination.port import Create, Delete, Set
from tidelog.errors import ErrorCode
from tidelog.host.machine import RealPorts
from tidelog.lab.broker import PATIENCE_S, LabBroker, eventually, sim_settings
from tidelog.lab.world import World
from tidelog.records.batch import decode
from tidelog.records.kernel import Record
from tidelog.types import Buffer, TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

FETCH_BY_NAME = 12
FETCH = 18
PRODUCE_BY_NAME = 12
PRODUCE = 13
LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = 7, 4, 8
_OTHER_SESSION_MS = 60_000

Story = Callable[["Kit"], Coroutine[Any, Any, None]]


class Kit(LabBroker):
    """One broker and what a client does to it."""

    # Topics

    async def create_topic(self, name: str = "t", partitions: int = 1, **config: str) -> bytes:
        """Its id, once this broker leads all of it. Settings are written with underscores."""
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        answer = await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == 0, answer.topics[0]
        await self.leads(name, partitions)
        topic_id: bytes = answer.topics[0].topic_id
        return topic_id

    async def leads(self, name: str, partitions: int = 1) -> None:
        def leads() -> bool:
            found = [self.broker.replicas.partitions.get(TopicPartition(name, index)) for index in range(partitions)]
            return all(one is not None and one.leader is not None for one in found) and all(
                self.broker.metadata.partition(name, index) is not None for index in range(partitions)
            )

        await eventually(leads)

    async def delete_topic(self, name: str = "t") -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
        answer = await self.call(request, 6)
        assert answer.responses[0].error_code == 0, answer.responses[0]
        await eventually(lambda: self.broker.metadata.topic(name) is None and not self.partitions(name))

    async def alter_topic(self, name: str, **config: str) -> None:
        """Until it holds here. Settings are written with underscores."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        configs = [
            IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=0, value=value)
            for key, value in settings.items()
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=name, configs=configs
        )
        answer = await self.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer.responses[0]
        now = self.broker.dynamic_config
        await eventually(lambda: all(str(now.topic_config(name)[key]) == value for key, value in settings.items()))

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        return self.broker.replicas.partitions[TopicPartition(topic, index)]

    def partitions(self, topic: str = "t") -> list[Partition]:
        return list(self.broker.replicas.of_topic(topic))

    # Records

    async def produce(
        self,
        records: Buffer | None = None,
        topic: str = "t",
        index: int = 0,
        *,
        acks: int = -1,
        version: int = PRODUCE_BY_NAME,
        timeout_ms: int = 10_000,
        topic_id: bytes = ZERO_UUID,
    ) -> PartitionProduceResponse:
        """One batch to one partition; a batch of one record if nothing is said."""
        data = batch() if records is None else records
        request = produce_request({(topic, index): data}, acks=acks, timeout_ms=timeout_ms, topic_id=topic_id)
        answer = await self.call(request, version)
        found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return found

    async def fetch(
        self, offset: int = 0, topic: str = "t", index: int = 0, *, version: int = FETCH_BY_NAME, **options: Any
    ) -> FetchResponsePartitionData:
        """One partition, without a session and at once."""
        answer = await self.call(fetch_request({(topic, index): offset}, **options), version)
        assert answer.error_code == 0
        found: FetchResponsePartitionData = answer.responses[0].partitions[0]
        return found

    async def values(self, topic: str = "t", index: int = 0) -> list[bytes | None]:
        """Of all committed records."""
        found: list[Record] = []
        offset = 0
        while True:
            answer = await self.fetch(offset, topic, index)
            assert answer.error_code == 0, ErrorCode(answer.error_code)
            if not answer.records:
                return [record.value for record in found]
            found += decode(bytes(answer.records), from_offset=offset)
            offset = found[-1].offset + 1

    # The controller's part, played by hand

    @property
    def controller_epoch(self) -> int:
        """The highest that the broker believes."""
        return self.broker.known_controller.epoch

    async def elect(self, controller_id: int, epoch: int) -> None:
        """Another broker is controller from now on, as the store has it, and the kit's broker has heard of that."""
        session = await self.store.connect(_OTHER_SESSION_MS)
        await session.multi(
            [
                Delete(nodes.CONTROLLER),
                Create(nodes.CONTROLLER, nodes.encode_controller(controller_id, 0), ephemeral=True),
                Set(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(epoch)),
            ]
        )
        await eventually(lambda: not self.broker.controller.is_active)

    def registered(self, broker_id: int, epoch: int) -> None:
        """As if the kit's broker had found in the store that another broker has this epoch, or none."""
        self.broker.registrations._known[broker_id] = _Known(epoch, self.broker.session)

    async def lead_and_isr(
        self,
        topic: str = "t",
        index: int = 0,
        *,
        leader: int | None = None,
        isr: Iterable[int] | None = None,
        replicas: Iterable[int] | None = None,
        leader_epoch: int | None = None,
        **request: Any,
    ) -> int:
        """LeaderAndIsr for one partition, like what it is now but for what is said; its error code."""
        known = self.broker.replicas.partitions.get(TopicPartition(topic, index))
        me = self.broker_id
        state = LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=self.controller_epoch,
            leader=me if leader is None else leader,
            leader_epoch=leader_epoch if leader_epoch is not None else known.leader_epoch + 1 if known else 0,
            isr=list(isr) if isr is not None else [me],
            replicas=list(replicas) if replicas is not None else [me, me + 1],
            partition_epoch=known.partition_epoch + 1 if known else 0,
            is_new=request.pop("is_new", False),
            adding_replicas=request.pop("adding", []),
            removing_replicas=request.pop("removing", []),
        )
        topic_id = request.pop("topic_id", known.topic_id if known else ZERO_UUID)
        answer = await self.call(
            LeaderAndIsrRequest(
                controller_id=me,
                controller_epoch=request.pop("controller_epoch", self.controller_epoch),
                broker_epoch=request.pop("broker_epoch", self.broker.epoch),
                topic_states=[
                    LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state], **request)
                ],
            ),
            LEADER_AND_ISR,
        )
        code: int = answer.error_code or answer.topics[0].partition_errors[0].error_code
        return code


def produce_request(
    batches: Mapping[tuple[str, int], Buffer | None],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    topic_id: bytes = ZERO_UUID,
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for (name, index), records in batches.items():
        topic = topics.setdefault(name, TopicProduceData(name=name, topic_id=topic_id))
        topic.partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))


def fetch_request(
    wanted: Mapping[tuple[str | bytes, int], int],
    *,
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **options: Any,
) -> FetchRequest:
    """Offsets by partition; a topic that is bytes is an id."""
    topics: dict[str | bytes, FetchTopic] = {}
    for (name, index), offset in wanted.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic_id=name) if isinstance(name, bytes) else FetchTopic(topic=name)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
        )
    return FetchRequest(topics=list(topics.values()), **{"max_wait_ms": 0, "min_bytes": 1, **options})


def follower_request(
    topic_id: bytes, offsets: Mapping[int, int], *, follower: int, broker_epoch: int, **options: Any
) -> FetchRequest:
    """What a follower asks for, by partition. The offsets are also the ends of its logs."""
    request = fetch_request({(topic_id, index): offset for index, offset in offsets.items()}, **options)
    request.replica_state = FetchRequestReplicaState(replica_id=follower, replica_epoch=broker_epoch)
    return request


def fetched(answer: FetchResponse) -> dict[tuple[str | bytes, int], FetchResponsePartitionData]:
    """By partition."""
    return {
        (topic.topic or topic.topic_id, one.partition_index): one
        for topic in answer.responses
        for one in topic.partitions
    }


def values_of(answer: FetchResponsePartitionData) -> list[bytes | None]:
    return [record.value for record in decode(bytes(answer.records or b""))]


def run(story: Story, *, seed: int = 1, cold: bool = False, before: Story | None = None, **settings: str) -> World:
    """Tell a story in a world of its own, with one broker. Settings are written with underscores.

    `before` is told before the broker starts. Reads come from the page cache unless `cold`.
    """
    with World(seed) as world:
        world.run(_tell(world, story, cold, before, settings))
    return world


async def _tell(world: World, story: Story, cold: bool, before: Story | None, settings: Mapping[str, str]) -> None:
    host = world.host("b1")
    host.disk.cold_chance = 1.0 if cold else 0.0
    store = MemoryCoordination(world.host("store").clock)
    kit = Kit(host, store, sim_settings("b1", **settings), 1, "b1")

    async def whole() -> None:
        if before is not None:
            await before(kit)
        await kit.start()
        await story(kit)

    await world.host("client").start(whole())


def run_here(story: Story, directory: Path, **settings: str) -> None:
    """The same on this machine, with its files and sockets."""

    async def main() -> None:
        ports = RealPorts(num_io_threads=2)
        given = {name.replace("_", "."): value for name, value in settings.items()}
        listener = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **given}
        kit = Kit(ports, MemoryCoordination(ports.clock), listener, 1, "127.0.0.1")
        await kit.start()
        try:
            await asyncio.wait_for(story(kit), PATIENCE_S * 2)
        finally:
            await kit.stop()
            ports.close()

    asyncio.run(main())


async def code_of(answer: Awaitable[Any]) -> ErrorCode:
    """The error code of an answer, by name."""
    return ErrorCode((await answer).error_code)


@contextlib.asynccontextmanager
async def within(seconds: float) -> Any:
    """What is inside takes at most so long, on the clock of the loop."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() - began <= seconds, f"took {loop.time() - began:.3f} s"


def say_session_is_current(patch: pytest.MonkeyPatch, is_current: Callable[[], bool]) -> None:
    """For all brokers, those that are there already and those that come."""
    patch.setattr(Broker, "is_current", property(lambda broker: is_current()))
    told = property(lambda standing: is_current, lambda standing, value: None)
    patch.setattr(Standing, "is_current", told, raising=False)
