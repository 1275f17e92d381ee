"""One term as controller: from the election won to the loss of it.

All that belongs to a term hangs here (the image, the channels, the fence of the writes), so that to resign is to drop
it. Its methods are called one at a time, by the shell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tidelog.broker.control.channel import Answered, BrokerChannel
from tidelog.broker.control.election import Won, holds_controller
from tidelog.broker.control.faults import Complaints
from tidelog.broker.control.snapshot import ClusterReader, Look
from tidelog.broker.control.stats import ControlStats
from tidelog.broker.control.story import Story
from tidelog.broker.control.writing import ControllerWriter, FencedError, RefusedWritesError
from tidelog.controller import nodes
from tidelog.controller.controller import Controller
from tidelog.controller.events import (
    BrokersChanged,
    ElectionRulesChanged,
    Event,
    LeaderAndIsrAnswered,
    LogDirFailed,
    LogEndsTold,
    LogEndsUntold,
    ReplicasPutOff,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
    UpdateTopic,
)
from tidelog.controller.image import Broker, Endpoint, TopicFacts
from tidelog.controller.log_ends import LogEnd
from tidelog.coordination.port import ConnectionLostError, Create, Session
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest
from tidelog.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.wire.schema import Message

_log = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 0.2
LOG_ENDS_WITHIN_S = 30.0
"""For a replica to tell where its log ends. One that need not be waited for is not waited for any longer."""
OpenChannel: TypeAlias = Callable[[Broker, Endpoint, Answered], BrokerChannel]
TELL_AGAIN_AFTER_S = 1.0
"""How long a broker rests that could not take a replica yet, because its store does not answer."""


class Term:
    """Always: what a channel is given was written before."""

    def __init__(
        self,
        session: Session,
        won: Won,
        controller: Controller,
        listener: str,
        open_channel: OpenChannel,
        stats: ControlStats,
        changed: Callable[[Look], None],
        answered: Callable[[Event], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.epoch = won.epoch
        self.controller = controller
        self.writer = ControllerWriter(session, won.epoch_version)
        self._complaints, self._last_known = Complaints(), dict[str, TopicFacts]()
        self.reader = ClusterReader(session, changed, self._complaints, self._last_known)
        self._stats = stats
        self._story = Story(is_stopping)
        self._session = session
        self._listener = listener
        self._open_channel = open_channel
        self._changed = changed
        self._answered = answered
        self._channels: dict[BrokerId, BrokerChannel] = {}
        self._refused: set[TopicPartition] = set()
        """Partitions whose states could not be written at the last take-over."""
        self._unwritable: dict[TopicPartition, str] = {}
        """Those of them that could not be written the next time either: they are left alone, or nothing else would
        ever be written."""
        self._put_off: set[asyncio.TimerHandle] = set()
        self._expected_ends: dict[tuple[BrokerId, Epoch], dict[TopicPartition, Epoch]] = {}
        """Log ends that a registration of a broker was asked for, and the leader epoch in which it was asked last."""

    async def take_over(self) -> None:
        """Read everything, finish what was left half done, tell everybody."""
        await self._check_controller()
        if await self._session.exists(nodes.FEATURE) is None:
            await self.writer.multi([Create(nodes.FEATURE, nodes.encode_feature({}))])
        self.reader = ClusterReader(self._session, self._changed, self._complaints, self._last_known)
        # What they announce is in the snapshot, or comes with the answers to LeaderAndIsr.
        isr_changes, _ = await self.reader.isr_changes()
        log_dir_events, _ = await self.reader.log_dir_events()
        await self.writer.remove([*isr_changes, *log_dir_events])
        snapshot = await self.reader.snapshot()
        known = {at: why for at, why in self._unwritable.items() if at.topic in snapshot.topics}
        for partition in known:
            await self.reader.watch_state(partition)
        self._expected_ends.clear()  # who is asked anew has its time, beside what is left of the time before
        try:
            await self.handle(TookOver(snapshot._replace(faults={**snapshot.faults, **known})))
        except RefusedWritesError as failure:
            self._note_refusals(failure)
            raise
        self._refused.clear()

    def _note_refusals(self, failure: RefusedWritesError) -> None:
        for partition, refusal in failure.refused.items():
            if partition in self._refused:
                _log.error("%s is offline, its state cannot be written: %s", partition, refusal)
                self._unwritable[partition] = str(refusal)
        self._refused = set(failure.refused)

    async def look(self, look: Look) -> None:
        """Something changed there: read it, and do what follows."""
        match look:
            case Look.CONTROLLER:
                await self._check_controller()
            case Look.BROKERS:
                await self.handle(BrokersChanged(await self.reader.brokers()))
            case Look.TOPICS:
                to_delete = await self.reader.to_delete()
                topics = await self.reader.topics()
                if self._are_mended(topics):
                    await self.take_over()
                else:
                    await self.handle(TopicsChanged(topics, to_delete))
            case Look.ISR_CHANGES:
                paths, partitions = await self.reader.isr_changes()
                await self.handle(StatesChanged((await self.reader.states(partitions)).known))
                await self.writer.remove(paths)
            case Look.LOG_DIR_EVENTS:
                paths, brokers = await self.reader.log_dir_events()
                await self.handle(LogDirFailed(tuple(brokers)))
                await self.writer.remove(paths)
            case Look.FAULTS:
                await self._look_at_faults()

    def _are_mended(self, topics: Mapping[str, TopicFacts]) -> bool:
        """Topics that could not be read can be: their states are to be read, and brokers to be told of them."""
        image = self.controller.image
        return any(topic.fault and name in topics and not topics[name].fault for name, topic in image.topics.items())

    async def _look_at_faults(self) -> None:
        """Something happened to nodes that could not be read or written. Whatever can be now is read and told anew."""
        self._unwritable.clear()
        image = self.controller.image
        faulty = [TopicPartition(topic.name, index) for topic in image.standing() for index in topic.faults]
        if len((await self.reader.states(faulty)).faults) < len(faulty):
            await self.take_over()

    async def look_at_config(self, topics: Sequence[str] | None) -> None:
        """The config of these topics changed; None: that of all, or the default."""
        names = list(self.controller.image.topics) if topics is None else topics
        await self.handle(ElectionRulesChanged({name: await self.reader.election_rules(name) for name in names}))

    async def handle(self, event: Event) -> Any:
        """What whoever asked is to be told, if somebody did."""
        started_ns = self._stats.clock.monotonic_ns()
        before = self._story.before(self.controller.image)
        outcome = self.controller.handle(event)
        await self.writer.apply(outcome.writes)
        for write in outcome.writes:
            if isinstance(write, UpdateTopic):
                self.reader.forget_topic(write.topic)
        if not self._session.is_current():
            # Others may hold us for dead already. The nodes have it; brokers are told when we know where we stand.
            raise ConnectionLostError("the session is not current")
        self._stats.count(outcome, started_ns)
        self._story.tell(before, event, outcome, self.controller.image)
        self._open_channels()
        if isinstance(event, TookOver):
            for channel in self._channels.values():
                channel.supersede()
        for broker, requests in self.controller.tell(outcome).requests.items():
            if broker in self._channels:
                self._channels[broker].send(requests)
                self._expect_log_ends(self._channels[broker].broker, requests)
        return outcome.answer

    def _expect_log_ends(self, broker: Broker, requests: Sequence[Message]) -> None:
        """Once for each epoch: a broker that cannot tell is asked again, and that does not give it more time."""
        for request in requests:
            if isinstance(request, ListOffsetsRequest):
                expected = self._expected_ends.setdefault((broker.id, broker.epoch), {})
                new = {name: epoch for name, epoch in _asked_in(request).items() if expected.get(name) != epoch}
                expected.update(new)
                if new:
                    self._tell_later(LOG_ENDS_WITHIN_S, LogEndsUntold(broker.id, broker.epoch, new))

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        for timer in self._put_off:
            timer.cancel()
        self._put_off.clear()

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
                self._expected_ends.pop((id, channel.broker.epoch), None)
            else:
                channel.broker = broker
        for id, broker in brokers.items():
            endpoint = broker.endpoint(self._listener)
            if endpoint is None:
                _log.error("broker %d has no listener %s (inter.broker.listener.name)", id, self._listener)
            elif id not in self._channels:
                self._channels[id] = self._open_channel(broker, endpoint, self._on_answer)

    def _on_answer(self, broker: Broker, request: Message, response: Any) -> None:
        if isinstance(response, ListOffsetsResponse):
            self._on_log_ends(broker, request, response)
            return
        if response.error_code:
            code = response.error_code
            name = ErrorCode(code).name if code in ErrorCode.__members__.values() else code
            _log.warning("broker %d refused %s: %s", broker.id, type(request).__name__, name)
        if isinstance(request, LeaderAndIsrRequest):
            self._answered(LeaderAndIsrAnswered(broker.id, broker.epoch, response, broker.has_failed_directory))
            put_off = _put_off(request, response)
            if put_off:
                self._tell_later(TELL_AGAIN_AFTER_S, ReplicasPutOff(broker.id, broker.epoch, put_off))
        elif isinstance(request, StopReplicaRequest):
            deleted = tuple(
                TopicPartition(topic.topic_name, state.partition_index)
                for topic in request.topic_states
                for state in topic.partition_states
                if state.delete_partition
            )
            self._answered(StopReplicaAnswered(broker.id, broker.epoch, deleted, response))

    def _on_log_ends(self, broker: Broker, request: Message, response: ListOffsetsResponse) -> None:
        """A replica that cannot tell yet is asked again, after a rest."""
        told = LogEndsTold(
            broker.id,
            broker.epoch,
            {
                TopicPartition(topic.name, answer.partition_index): (
                    None if answer.error_code else LogEnd(answer.leader_epoch, answer.offset)
                )
                for topic in response.topics
                for answer in topic.partitions
            },
            _asked_in(request),
        )
        self._tell_later(ASK_AGAIN_AFTER_S if None in told.log_ends.values() else 0.0, told)

    def _tell_later(self, after_s: float, event: Event) -> None:
        """Tell the controller this, if it still is one."""

        def tell() -> None:
            self._put_off.discard(timer)
            self._answered(event)

        timer = asyncio.get_running_loop().call_later(after_s, tell)
        self._put_off.add(timer)


def _asked_in(request: Message) -> dict[TopicPartition, Epoch]:
    """Which log ends were asked for, and in which leader epochs."""
    assert isinstance(request, ListOffsetsRequest)
    return {
        TopicPartition(topic.name, wanted.partition_index): wanted.current_leader_epoch
        for topic in request.topics
        for wanted in topic.partitions
    }


def _put_off(request: LeaderAndIsrRequest, response: LeaderAndIsrResponse) -> dict[TopicPartition, bool]:
    """Replicas that the broker cannot take yet, and whether they are new to it."""
    names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
    refused = {
        TopicPartition(names.get(topic.topic_id, ""), answer.partition_index)
        for topic in response.topics
        for answer in topic.partition_errors
        if answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    }
    return {
        partition: state.is_new
        for topic in request.topic_states
        for state in topic.partition_states
        if (partition := TopicPartition(topic.topic_name, state.partition_index)) in refused
    }
