"""One term as controller: from the election won to the loss of it.

All that belongs to a term hangs here (the image, the channels, the fence of the writes), so that to resign is to drop
it. Its methods are called one at a time, by the shell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.broker.control.channel import BrokerChannel, Connect
from tidelog.broker.control.election import Won, holds_controller
from tidelog.broker.control.snapshot import ClusterReader, Look
from tidelog.broker.control.stats import ControlStats
from tidelog.broker.control.writing import ControllerWriter, FencedError
from tidelog.controller import nodes
from tidelog.controller.controller import Controller
from tidelog.controller.events import (
    BrokersChanged,
    Event,
    LeaderAndIsrAnswered,
    LogDirFailed,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
    UncleanElectionChanged,
    UpdateTopic,
)
from tidelog.controller.image import Broker
from tidelog.coordination.port import ConnectionLostError, Create, Session
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrRequest, StopReplicaRequest
from tidelog.wire.schema import Message

_log = logging.getLogger(__name__)


class Term:
    """Always: what a channel is given was written before."""

    def __init__(
        self,
        session: Session,
        won: Won,
        controller: Controller,
        listener: str,
        connect: Connect,
        stats: ControlStats,
        changed: Callable[[Look], None],
        answered: Callable[[Event], None],
    ) -> None:
        self.epoch = won.epoch
        self.controller = controller
        self.writer = ControllerWriter(session, won.epoch_version)
        self.reader = ClusterReader(session, changed)
        self._stats = stats
        self._session = session
        self._listener = listener
        self._connect = connect
        self._changed = changed
        self._answered = answered
        self._channels: dict[BrokerId, BrokerChannel] = {}

    async def take_over(self) -> None:
        """Read everything, finish what was left half done, tell everybody."""
        await self._check_controller()
        if await self._session.exists(nodes.FEATURE) is None:
            await self.writer.multi([Create(nodes.FEATURE, nodes.encode_feature({}))])
        self.reader = ClusterReader(self._session, self._changed)
        # What they announce is in the snapshot, or comes with the answers to LeaderAndIsr.
        isr_changes, _ = await self.reader.isr_changes()
        log_dir_events, _ = await self.reader.log_dir_events()
        await self.writer.remove([*isr_changes, *log_dir_events])
        await self.handle(TookOver(await self.reader.snapshot()))

    async def look(self, look: Look) -> None:
        """Something changed there: read it, and do what follows."""
        match look:
            case Look.CONTROLLER:
                await self._check_controller()
            case Look.BROKERS:
                await self.handle(BrokersChanged(await self.reader.brokers()))
            case Look.TOPICS:
                to_delete = await self.reader.to_delete()
                await self.handle(TopicsChanged(await self.reader.topics(), to_delete))
            case Look.ISR_CHANGES:
                paths, partitions = await self.reader.isr_changes()
                await self.handle(StatesChanged(await self.reader.states(partitions)))
                await self.writer.remove(paths)
            case Look.LOG_DIR_EVENTS:
                paths, brokers = await self.reader.log_dir_events()
                await self.handle(LogDirFailed(tuple(brokers)))
                await self.writer.remove(paths)

    async def look_at_config(self, topics: Sequence[str] | None) -> None:
        """The config of these topics changed; None: that of all, or the default."""
        names = list(self.controller.image.topics) if topics is None else topics
        await self.handle(UncleanElectionChanged({name: await self.reader.unclean(name) for name in names}))

    async def handle(self, event: Event) -> Any:
        """What whoever asked is to be told, if somebody did."""
        started_ns = self._stats.clock.monotonic_ns()
        outcome = self.controller.handle(event)
        await self.writer.apply(outcome.writes)
        for write in outcome.writes:
            if isinstance(write, UpdateTopic):
                self.reader.forget_topic(write.topic)
        if not self._session.is_current():
            # Others may hold us for dead already. The nodes have it; brokers are told when we know where we stand.
            raise ConnectionLostError("the session is not current")
        self._stats.count(outcome, started_ns)
        for partition in outcome.unclean:
            _log.warning("%s has an unclean leader: records that only the ISR had are lost", partition)
        self._open_channels()
        for broker, requests in outcome.requests.items():
            if broker in self._channels:
                self._channels[broker].send(requests)
        return outcome.answer

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def _check_controller(self) -> None:
        if not await holds_controller(self._session, lambda _event: self._changed(Look.CONTROLLER)):
            raise FencedError("/controller is not this broker's any more")

    def _open_channels(self) -> None:
        """One for each living broker; another life or another address has another."""
        brokers = self.controller.image.brokers
        for id, channel in list(self._channels.items()):
            broker = brokers.get(id)
            if broker is None or (broker.epoch, broker.endpoint(self._listener)) != (
                channel.broker.epoch,
                channel.endpoint,
            ):
                self._channels.pop(id).close()
        for id, broker in brokers.items():
            endpoint = broker.endpoint(self._listener)
            if endpoint is None:
                _log.error("broker %d has no listener %s (inter.broker.listener.name)", id, self._listener)
            elif id not in self._channels:
                self._channels[id] = BrokerChannel(broker, endpoint, self._connect, self._on_answer)

    def _on_answer(self, broker: Broker, request: Message, response: Any) -> None:
        if response.error_code:
            code = response.error_code
            name = ErrorCode(code).name if code in ErrorCode.__members__.values() else code
            _log.warning("broker %d refused %s: %s", broker.id, type(request).__name__, name)
        if isinstance(request, LeaderAndIsrRequest):
            self._answered(LeaderAndIsrAnswered(broker.id, broker.epoch, response))
        elif isinstance(request, StopReplicaRequest):
            deleted = tuple(
                TopicPartition(topic.topic_name, state.partition_index)
                for topic in request.topic_states
                for state in topic.partition_states
                if state.delete_partition
            )
            self._answered(StopReplicaAnswered(broker.id, broker.epoch, deleted, response))
