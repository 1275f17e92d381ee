"""For tests of the controller: its rules alone; and a cluster of shells, a store and brokers that only answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from tidelog.broker.control.admin import TopicAdmin
from tidelog.broker.control.shell import ControllerShell, ControlSettings, NotControllerError
from tidelog.broker.metadata import MetadataCache
from tidelog.broker.pacing import SlowLane
from tidelog.controller import nodes
from tidelog.controller.controller import Controller
from tidelog.controller.events import Event, Outcome, TookOver
from tidelog.controller.image import (
    Assignment,
    Broker,
    ElectionDefaults,
    ElectionRules,
    Endpoint,
    PartitionState,
    Snapshot,
    TopicFacts,
)
from tidelog.controller.requests import FULL, VERSIONS
from tidelog.controller.topics import Defaults
from tidelog.coordination.memory import MemoryCoordination
from tidelog.coordination.port import Node, NoNodeError, Op, OpResult, Session, SessionLostError
from tidelog.errors import ErrorCode
from tidelog.host.clock import SystemClock
from tidelog.lab.broker import eventually
from tidelog.lab.clock import SimClock
from tidelog.lab.world import World
from tidelog.net.calling import CannotConnectError, ConnectionClosedError
from tidelog.types import TopicPartition
from tidelog.wire import decode, encode
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tidelog.wire.messages.headers import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.schema import Message

LISTENER = "INTERNAL"
SESSION_TIMEOUT_MS = 6000

T = TypeVar("T")

# The rules alone

TOPIC_ID = b"t" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def broker(id: int, epoch: int | None = None, intact_since: int = -1, last_epoch: int = -1) -> Broker:
    endpoints = (Endpoint("INTERNAL", f"b{id}", 9000 + id),)
    return Broker(id, 10 + id if epoch is None else epoch, endpoints, f"rack{id}", intact_since, last_epoch)


def with_failed_directory(broker: Broker) -> Broker:
    return broker._replace(has_failed_directory=True)


def brokers(*ids: int) -> dict[int, Broker]:
    return {id: broker(id) for id in ids}


def topic(*replicas: tuple[int, ...], unclean: bool | None = None, min_insync: int | None = None) -> TopicFacts:
    assignments = {at: Assignment(each) for at, each in enumerate(replicas)}
    return TopicFacts(TOPIC_ID, assignments, ElectionRules(unclean, min_insync))


def state(leader: int, isr: tuple[int, ...], epoch: int = 0, version: int = 0, life: int = 100) -> PartitionState:
    return PartitionState(leader, epoch, isr, 1, version, dict.fromkeys(isr, life))


class Telling(Controller):
    """A controller whose requests are made before the next event, as the shell does."""

    def handle(self, event: Event) -> Outcome:
        return self.tell(super().handle(event))


def controller(
    *living: int,
    topics: dict[str, TopicFacts] | None = None,
    states: dict[TopicPartition, PartitionState] | None = None,
    to_delete: tuple[str, ...] = (),
    unclean: bool = False,
    deletion_enabled: bool = True,
) -> tuple[Controller, Outcome]:
    made = Telling(1, 5, "INTERNAL", defaults=lambda: ElectionDefaults(unclean), deletion_enabled=deletion_enabled)
    return made, made.handle(TookOver(Snapshot(brokers(*living), topics or {}, states or {}, to_delete)))


def kinds(outcome: Outcome, broker: int) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for request in outcome.requests.get(broker, [])]


def find(outcome: Outcome, broker: int, kind: type[T]) -> T:
    return [request for request in outcome.requests[broker] if isinstance(request, kind)][-1]


def check_encodable(outcome: Outcome) -> None:
    for requests in outcome.requests.values():
        for request in requests:
            encode(request, VERSIONS[type(request)])


# A cluster


def play(story: Callable[[Cluster], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """Run a story on the simulated loop, in virtual time."""
    with World(11) as world:

        async def main() -> T:
            cluster = Cluster(world, **settings)
            await cluster.prepare()
            try:
                return await story(cluster)
            finally:
                await cluster.close()

        return world.run(main())


class FakeBroker:
    """Registers, and answers the controller as a broker would. Its metadata is a broker's own."""

    def __init__(self, id: int, rack: str | None = None) -> None:
        self.id = id
        self.rack = rack
        self.session: Session | None = None
        self.epoch = -1
        self.metadata = MetadataCache(SystemClock())
        self.replicas: dict[TopicPartition, Any] = {}
        self.failing: set[TopicPartition] = set()
        """Replicas whose log directory failed."""
        self.received: list[Message] = []
        self.log_end = (0, 0)
        """The last epoch and the end of every log of this broker."""
        self.refuses_connections = False
        self.drops_answers = 0

    @property
    def is_alive(self) -> bool:
        return self.session is not None

    def registration(self) -> bytes:
        endpoints = (Endpoint("CLIENT", f"b{self.id}", 1000 + self.id), Endpoint(LISTENER, f"b{self.id}", self.id))
        return nodes.encode_broker(nodes.Registration(endpoints, self.rack), 1)

    def answer(self, request: Message, version: int) -> Message:
        self.received.append(request)
        if isinstance(request, ListOffsetsRequest):
            return self._log_ends(request)
        assert request.broker_epoch == self.epoch  # type: ignore[attr-defined]
        if isinstance(request, UpdateMetadataRequest):
            self.metadata.apply(request)
            return UpdateMetadataResponse()
        if isinstance(request, StopReplicaRequest):
            for topic in request.topic_states:
                for stopped in topic.partition_states:
                    self.replicas.pop(TopicPartition(topic.topic_name, stopped.partition_index), None)
            return StopReplicaResponse()
        assert isinstance(request, LeaderAndIsrRequest)
        if request.type == FULL:
            self._drop_strays(request)
        return LeaderAndIsrResponse(topics=[self._lead_or_follow(topic) for topic in request.topic_states])

    def _log_ends(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        epoch, offset = self.log_end
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=asked.partition_index, offset=offset, leader_epoch=epoch
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _drop_strays(self, request: LeaderAndIsrRequest) -> None:
        """What a full request does not name is not this broker's any more."""
        named = {
            TopicPartition(topic.topic_name, told.partition_index)
            for topic in request.topic_states
            for told in topic.partition_states
        }
        self.replicas = {partition: told for partition, told in self.replicas.items() if partition in named}

    def _lead_or_follow(self, topic: Any) -> LeaderAndIsrTopicError:
        errors = []
        for told in topic.partition_states:
            partition = TopicPartition(topic.topic_name, told.partition_index)
            code = ErrorCode.KAFKA_STORAGE_ERROR if partition in self.failing else ErrorCode.NONE
            if not code:
                self.replicas[partition] = told
            errors.append(LeaderAndIsrPartitionError(partition_index=told.partition_index, error_code=code))
        return LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)


class FakeConnection:
    """Both ways through the codec, so that what could not be sent is not."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._epoch = broker.epoch

    async def call(self, request: Message, version: int, *, timeout_ms: float | None = None) -> Any:
        await asyncio.sleep(0.001)
        broker = self._broker
        if broker.epoch != self._epoch or not broker.is_alive:
            raise ConnectionClosedError("the broker is gone")
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse()
        response = broker.answer(decode(type(request), encode(request, version), version), version)
        if broker.drops_answers:
            broker.drops_answers -= 1
            raise ConnectionClosedError("the answer was lost")
        return decode(type(response), encode(response, version), version)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class MortalSession:
    """A session that dies at its nth write: just before it is done, or just after, unheard."""

    def __init__(self, session: Session, store: MemoryCoordination, dies_at: int, after: bool) -> None:
        self._session = session
        self._store = store
        self._dies_at = dies_at
        self._after = after
        self.writes = 0

    @property
    def is_dead(self) -> bool:
        return self.writes >= self._dies_at

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._count(lambda: self._session.multi(ops))

    async def create(self, *args: Any, **kwargs: Any) -> str:
        return await self._count(lambda: self._session.create(*args, **kwargs))

    async def _count(self, write: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.is_dead:
            raise SessionLostError
        self.writes += 1
        if not self.is_dead:
            return await write()
        if self._after:
            await write()
        self._store.expire(self._session.id)
        raise SessionLostError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class Cluster:
    """A store, brokers by id, and shells."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.clock = SimClock(world.loop)
        self.store = MemoryCoordination(self.clock)
        self.brokers: dict[int, FakeBroker] = {}
        self.shells: list[ControllerShell] = []
        self.random = random.Random(5)
        self.session: Session
        """Of nobody in particular, to look with."""
        self._settings = ControlSettings(LISTENER, **settings)

    async def prepare(self) -> None:
        self.session = await self.connect()
        for path in nodes.PERSISTENT_PATHS:
            await self.session.ensure(path)

    async def close(self) -> None:
        for shell in self.shells:
            await shell.stop()

    async def connect(self) -> Session:
        return await self.store.connect(SESSION_TIMEOUT_MS)

    async def start_broker(self, id: int, rack: str | None = None) -> FakeBroker:
        """A new life of it."""
        broker = self.brokers.setdefault(id, FakeBroker(id, rack))
        session = await self.connect()
        await session.create(nodes.broker_path(id), broker.registration(), ephemeral=True)
        stat = await session.exists(nodes.broker_path(id))
        assert stat is not None
        broker.epoch, broker.session = stat.created_id, session
        broker.received.clear()
        return broker

    async def stop_broker(self, id: int) -> None:
        session, self.brokers[id].session = self.brokers[id].session, None
        assert session is not None
        await session.close()

    async def dial(self, host: str, port: int, timeout_ms: float) -> FakeConnection:
        await asyncio.sleep(0.001)
        broker = self.brokers[port]
        if broker.refuses_connections or not broker.is_alive:
            raise CannotConnectError(f"{host} is not there")
        return FakeConnection(broker)

    async def start_shell(self, id: int, session: Any = None) -> ControllerShell:
        shell = ControllerShell(id, self.clock, self._settings, self.dial)
        self.shells.append(shell)
        await shell.start(session or await self.connect())
        return shell

    def admin(self, shell: ControllerShell) -> TopicAdmin:
        return TopicAdmin(shell, self.random, lambda: Defaults(2, 2), lambda configs: None, SlowLane())

    @property
    def active(self) -> list[ControllerShell]:
        return [shell for shell in self.shells if shell.is_active]

    async def ask(self, event: Event) -> Any:
        """As a client does it: again, until a controller has answered."""
        while True:
            await eventually(lambda: self.active)
            try:
                return await self.active[0].ask(event)
            except NotControllerError:
                continue

    async def alter_partition(self, topic: str, partition: int, isr: Iterable[int]) -> ErrorCode:
        """The leader asks for an ISR, by what it was told last."""
        name = TopicPartition(topic, partition)
        state = await self.state(topic, partition)
        assert state is not None
        leader = self.brokers[state.leader]
        told = leader.replicas[name]
        data = AlterPartitionRequestPartitionData(
            partition_index=partition,
            leader_epoch=told.leader_epoch,
            partition_epoch=state.version if told.leader_epoch == state.leader_epoch else told.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=id, broker_epoch=self.brokers[id].epoch) for id in isr],
        )
        shown = leader.metadata.topic(topic)
        assert shown is not None
        request = AlterPartitionRequest(
            broker_id=leader.id,
            broker_epoch=leader.epoch,
            topics=[AlterPartitionRequestTopicData(topic_id=shown.topic_id, partitions=[data])],
        )
        await eventually(lambda: self.active)
        response = await self.active[0].alter_partition(request, 3)
        return ErrorCode(response.error_code or response.topics[0].partitions[0].error_code)

    async def assignment(self, topic: str, partition: int) -> Assignment:
        node = await self.node(nodes.topic_path(topic))
        assert node is not None
        return nodes.decode_topic(topic, node.data).assignments[partition]

    async def node(self, path: str) -> Node | None:
        try:
            return await self.session.get(path)
        except NoNodeError:
            return None

    async def state(self, topic: str, partition: int) -> PartitionState | None:
        name = TopicPartition(topic, partition)
        node = await self.node(nodes.state_path(name))
        return None if node is None else nodes.decode_state(name, node.data, node.stat.version, node.stat.modified_id)

    def shows(self, topic: str, partitions: int) -> bool:
        """Every living broker knows the topic, with leaders."""
        for broker in self.brokers.values():
            known = broker.metadata.topic(topic)
            if broker.is_alive and not (known and len(known.partitions) == partitions and known.has_leaders):
                return False
        return True

    def shows_no(self, topic: str) -> bool:
        return all(broker.metadata.topic(topic) is None for broker in self.brokers.values() if broker.is_alive)
