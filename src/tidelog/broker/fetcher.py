"""A fetcher: copies partitions from one leader, many in one request, as a follower does (S1.2, S1.5, S2.8, S4)."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from tidelog.broker.copying import NOT_ASKED, Connect, Copying, Repairs, begins_within
from tidelog.broker.fetcher_settings import LASTING, FetcherSettings
from tidelog.broker.moved_starts import MovedStarts
from tidelog.broker.partition import Partition
from tidelog.broker.said import Said
from tidelog.controller.requests import MOST_NAMED
from tidelog.errors import (
    CorruptBatchError,
    ErrorCode,
    LaterEpochError,
    NoDescriptorError,
    StorageError,
    TidelogError,
    error_code,
)
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start
from tidelog.net.calling import Connection
from tidelog.replication.follower import EpochAnswer
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.versions import Versions

_log = logging.getLogger(__name__)

_FETCH = FetchRequest.__schema__.api_key
_VERSIONS = Versions(11, 17)
_TELLS_DIVERGENCE, _BY_ID, _HAS_REPLICA_STATE = 12, 13, 15
_NO_SESSION, _FIRST_EPOCH, _LAST_EPOCH = 0, 0, 2**31 - 1
_TURN_S = 0.02
_WORTH_TELLING = 5
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

_Item: TypeAlias = tuple[TopicPartition, bytes]
"""A partition in a fetch session, with its topic id: a topic that was deleted and made anew is another one."""


def _item(partition: Partition) -> _Item:
    return partition.name, partition.topic_id


def _is_about(one: Copying, topic: FetchableTopicResponse) -> bool:
    """False if the answer is about an earlier topic of the same name."""
    return bool(topic.topic) or topic.topic_id == one.partition.topic_id


class Fetcher:
    """Belongs to the loop. Always: a partition's log grows only by what its leader of this term has sent."""

    def __init__(
        self,
        leader: BrokerId,
        own: BrokerId,
        broker_epoch: Callable[[], Epoch],
        connect: Connect,
        settings: FetcherSettings,
        copied: Callable[[int], None],
    ) -> None:
        self.leader = leader
        self._own = own
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._settings = settings
        self._copied = copied
        self._copying: dict[TopicPartition, Copying] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Whose position the leader does not know yet."""
        self._forgotten: dict[_Item, None] = {}
        self._flushing: dict[_Item, None] = {}
        """Set aside until they are synced. The leader is told to forget them only if it is asked for others first."""
        self._moved_starts = MovedStarts(self._starts_settled)
        """The leader is told of them when they are on the device."""
        self._names: dict[bytes, str] = {}
        self._session_id = _NO_SESSION
        self._session_epoch = _FIRST_EPOCH
        self._requests = 0
        self._connection: Connection | None = None
        self._version = _VERSIONS.last
        self._repairs = Repairs(leader, own, connect, settings.timeout_ms)
        self._rests_said = Said()
        self._resting: dict[int, list[Copying]] = {}
        """By the turn in which they go on."""
        self._under_way: deque[tuple[int, asyncio.Future[FetchResponse]]] = deque()
        self._is_nudging = False
        self._wake = asyncio.Event()
        self._told_epoch = NO_EPOCH
        """The life of this broker in which the leader was last asked."""
        self._task = asyncio.create_task(self._run())

    # Which partitions

    @property
    def is_idle(self) -> bool:
        return not self._copying

    def is_asking(self, name: TopicPartition) -> bool:
        return bool(self._under_way) and self._copying[name].asked_offset != NOT_ASKED

    def add(self, partition: Partition, epoch: Epoch) -> None:
        one = self._copying[partition.name] = Copying(partition, epoch)
        self._names[partition.topic_id] = partition.name.topic
        self._forgotten.pop(_item(partition), None)
        self._flushing.pop(_item(partition), None)
        self._changed[partition.name] = None
        log = partition.log
        if not len(log.epochs) and log.log_end_offset > log.high_watermark:
            # Without any epoch there is nothing to compare: here alone HW decides (S4.7).
            self._start_repair(one, self._repairs.cut(one, log.high_watermark))
        self._something_is_due()

    async def remove(self, partition: Partition) -> None:
        """When this returns, nothing of this fetcher touches the log any more."""
        one = self._copying.pop(partition.name, None)
        if one is None:
            return
        self._changed.pop(partition.name, None)
        self._forgotten[_item(partition)] = None
        one.stop_asking()
        if one.repair is not None:
            # It is never cancelled from here: other partitions may wait for the same flush.
            await asyncio.gather(asyncio.shield(one.repair), return_exceptions=True)

    async def stop(self) -> None:
        self._task.cancel()
        for one in self._copying.values():
            one.stop_asking()
        repairs = [one.repair for one in self._copying.values() if one.repair is not None]
        await asyncio.gather(self._task, self._moved_starts.stop(), *repairs, return_exceptions=True)
        self._disconnect()

    # The loop

    async def _run(self) -> None:
        failures, said = 0, Said()
        while True:
            self._wake.clear()
            if not self._may_ask():
                await self._wake.wait()
                continue
            try:
                await self._fetch_once()
                failures = 0
                said.is_over()
                continue
            except (TidelogError, OSError) as failure:
                if said.is_news(str(failure)):
                    _log.info("fetching from broker %d will be tried again: %s", self.leader, failure)
            except Exception as failure:  # whatever it is: without this task its partitions would silently fall behind
                if said.is_news(repr(failure)):
                    _log.exception("fetching from broker %d failed unexpectedly; it is tried again", self.leader)
            self._disconnect()
            failures += 1
            await asyncio.sleep(self._settings.rest_s(failures))

    def _may_ask(self) -> bool:
        """There is something to ask for, and this broker is registered.

        Between two registrations its broker epoch is unknown, and a leader could not tell from which life of the broker
        a fetch comes (edge case 32).
        """
        if self._broker_epoch() == NO_EPOCH:
            return False
        return bool(self._forgotten) or not all(one.is_resting for one in self._copying.values())

    def broker_epoch_changed(self) -> None:
        self._wake.set()

    async def _fetch_once(self) -> None:
        """One request and its answer.

        What becomes due while the leader holds the request back, because it has nothing new, does not wait for the
        answer: a second request goes behind the first, which makes the leader answer that one at once.
        """
        connection = await self._connected()
        await connection.drain()
        under_way = self._under_way
        self._flush_due()
        if not self._may_ask():
            return
        self._send(connection)
        try:
            while under_way:
                request, answer = under_way[0]
                response = await answer
                under_way.popleft()
                self._take_all(request, response)
        finally:
            while under_way:
                under_way.popleft()[1].add_done_callback(_unheard)

    def _something_is_due(self) -> None:
        self._wake.set()
        if not self._is_nudging and self._under_way:
            self._is_nudging = True
            asyncio.get_running_loop().call_soon(self._nudge)

    def _nudge(self) -> None:
        """Once for all that became due together."""
        self._is_nudging = False
        is_held_back = self._session_id and len(self._under_way) == 1
        if self._connection is None or not is_held_back:
            return
        self._flush_due()
        if (self._changed or self._forgotten) and self._may_ask():
            self._send(self._connection)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._disconnect()
            self._connection = await self._connect(self.leader)
            await self._connection.negotiate(timeout_ms=self._settings.timeout_ms)
            self._version = self._connection.pick(_FETCH, _VERSIONS)
        if self._version < _TELLS_DIVERGENCE:
            for one in self._copying.values():
                if not one.is_in_line and not one.is_resting:
                    self._start_repair(one, self._repairs.ask_where_they_part(one))
        return self._connection

    def _send(self, connection: Connection) -> None:
        if self._told_epoch != (epoch := self._broker_epoch()):
            # A new life of this broker: leaders have to hear of it for idle partitions too, or would ask for an ISR
            # with the life before, which the controller refuses.
            self._told_epoch = epoch
            self._begin_session()
        self._requests += 1
        answer = connection.send(self._request(), self._version, timeout_ms=self._settings.timeout_ms)
        self._under_way.append((self._requests, answer))
        if self._session_id:
            self._session_epoch = 1 if self._session_epoch == _LAST_EPOCH else self._session_epoch + 1

    def _take_all(self, request: int, response: FetchResponse) -> None:
        code = error_code(response.error_code)
        if code in _SESSION_LOST:
            self._begin_session()
            return
        if code is not ErrorCode.NONE:
            raise TidelogError(f"the leader answers {code.name}")
        if response.session_id != self._session_id:
            self._session_id = response.session_id
            self._session_epoch = 1 if response.session_id else _FIRST_EPOCH
        for topic in response.responses:
            for answer in topic.partitions:
                topic_name = topic.topic or self._names.get(topic.topic_id, "")
                one = self._copying.get(TopicPartition(topic_name, answer.partition_index))
                if one is not None and _is_about(one, topic) and one.is_awaited(request):
                    self._take(one, answer)

    def _request(self) -> FetchRequest:
        """A full one at first, then only what is new (KIP-227). What has no place in it is named by the next."""
        is_full = self._session_epoch == _FIRST_EPOCH
        self._forgotten.update(self._flushing)
        self._flushing.clear()
        topics: dict[bytes, FetchTopic] = {}
        for name in self._to_name(is_full):
            one = self._copying[name]
            topic_id = one.partition.topic_id
            topic = topics.setdefault(topic_id, FetchTopic(topic=name.topic, topic_id=topic_id))
            topic.partitions.append(self._position(one))
        forgotten: dict[bytes, FetchRequestForgottenTopic] = {}
        for name, topic_id in self._to_forget(is_full):
            present = self._copying.get(name)
            if self._version < _BY_ID and present is not None and present.partition.topic_id != topic_id:
                continue  # the leader knows it by its name alone, and the present topic has taken its place
            gone = forgotten.setdefault(topic_id, FetchRequestForgottenTopic(topic=name.topic, topic_id=topic_id))
            gone.partitions.append(name.partition)
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=0 if self._changed else settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )
        if self._version >= _HAS_REPLICA_STATE:
            state = FetchRequestReplicaState(replica_id=self._own, replica_epoch=self._broker_epoch())
            request.replica_state = state
        else:
            request.replica_id = self._own
        return request

    def _to_name(self, is_full: bool) -> list[TopicPartition]:
        """What this request names. The rest has changed, and comes first in the next one."""
        due: Iterable[TopicPartition] = self._changed
        if is_full and len(self._copying) > MOST_NAMED:
            due = {**self._changed, **dict.fromkeys(self._copying)}
        elif is_full:
            due = self._copying
        names = [name for name in due if not self._copying[name].is_resting]
        self._changed = dict.fromkeys(names[MOST_NAMED:])
        return names[:MOST_NAMED]

    def _to_forget(self, is_full: bool) -> list[_Item]:
        """What the leader is told to forget. A full request names all that there is, so what it leaves out is gone."""
        items = list(self._forgotten)
        self._forgotten = {} if is_full else dict.fromkeys(items[MOST_NAMED:])
        return [] if is_full else items[:MOST_NAMED]

    def _position(self, one: Copying) -> FetchPartition:
        log = one.partition.log
        one.asked_offset, one.asked_in = log.log_end_offset, self._requests
        one.told_log_start = log.durable_log_start
        tells_epoch = self._version >= _TELLS_DIVERGENCE and len(log.epochs)
        return FetchPartition(
            partition=one.partition.name.partition,
            current_leader_epoch=one.epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.epochs.latest_epoch if tells_epoch else NO_EPOCH,
            log_start_offset=log.durable_log_start,
            partition_max_bytes=self._settings.max_bytes,
        )

    def _begin_session(self) -> None:
        self._session_id, self._session_epoch = _NO_SESSION, _FIRST_EPOCH

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._begin_session()

    # Answers

    def _take(self, one: Copying, answer: FetchResponsePartitionData) -> None:
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE and (answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0):
            told = EpochAnswer(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._start_repair(one, self._repairs.cut_where_they_part(one, told))
        elif code is ErrorCode.NONE:
            self._copy(one, answer)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_repair(one, self._repairs.come_into_range(one))
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            self._set_aside(one)  # there is a newer leader; the controller will say who
        else:
            self._rest_a_while(one, code.name)

    def _copy(self, one: Copying, answer: FetchResponsePartitionData) -> None:
        """Append, so the log end moves; then HW (S2.8); then what the leader no longer has."""
        partition, log = one.partition, one.partition.log
        try:
            if answer.records and (base_offset := begins_within(log, answer.records)) is not None:
                self._start_repair(one, self._repairs.begin_within(one, base_offset, answer))
                return
            if answer.records:
                log.append_as_follower(answer.records, one.epoch)
                self._copied(len(answer.records))
                self._changed[partition.name] = None
            one.failures = 0
            partition.leader_told(answer.high_watermark)
            if answer.log_start_offset > one.told_log_start:
                advance_log_start(log, min(answer.log_start_offset, log.high_watermark))
                self._log_start_moved(one)
        except LaterEpochError as failure:
            # The leader has lost its term, and cut its log while it was answering. Nothing of the answer is taken.
            _log.warning("an answer of broker %d is refused: %s", self.leader, failure)
            self._rest_a_while(one, str(failure))
        except CorruptBatchError as failure:
            one.failures = LASTING
            self._rest_a_while(one, str(failure))
        except NoDescriptorError as failure:
            self._rest_a_while(one, str(failure))
        except StorageError as failure:
            self._set_aside(one)
            _log.error("%s is no longer copied: %s", partition.name, failure)

    def _rest_a_while(self, one: Copying, why: str) -> None:
        """Those that rest at the same time go on together, in one request."""
        self._set_aside(one)
        one.failures += 1
        loop = asyncio.get_running_loop()
        turn = math.ceil((loop.time() + self._settings.rest_s(one.failures)) / _TURN_S)
        resting = self._resting.get(turn)
        if resting is None:
            resting = self._resting[turn] = []
            loop.call_at(turn * _TURN_S, self._end_rest, turn)
            is_told = one.failures >= _WORTH_TELLING and self._rests_said.is_news(why)
            level = logging.INFO if is_told else logging.DEBUG
            message = "%s, and maybe others, is not fetched from broker %d for a while: %s"
            _log.log(level, message, one.partition.name, self.leader, why)
        resting.append(one)

    def _end_rest(self, turn: int) -> None:
        for one in self._resting.pop(turn):
            self._go_on(one)

    def _set_aside(self, one: Copying) -> None:
        """It rests, and the leader is told: a partition in error would be answered at once again and again."""
        one.is_resting = True
        one.asked_offset = NOT_ASKED
        self._changed.pop(one.partition.name, None)
        self._forgotten[_item(one.partition)] = None

    def _go_on(self, one: Copying) -> None:
        if self._copying.get(one.partition.name) is one:
            one.is_resting = False
            self._forgotten.pop(_item(one.partition), None)
            self._flushing.pop(_item(one.partition), None)
            self._changed[one.partition.name] = None
            self._something_is_due()

    # Flushes

    def _flush_due(self) -> None:
        """What flush.messages or flush.ms asks for is synced before the leader hears of it (S3.3, edge case 33).

        All that is due in a log directory is synced at the same time. Other partitions do not wait for it.
        """
        is_full = self._session_epoch == _FIRST_EPOCH
        due: dict[str, list[Copying]] = {}
        for name in self._copying if is_full else self._changed:
            one = self._copying[name]
            if not one.is_resting and one.partition.log.flush_due:
                due.setdefault(os.path.dirname(one.partition.log.directory), []).append(one)
        for group in due.values():
            for one in group:
                one.is_resting = True
                one.asked_offset = NOT_ASKED
                self._changed.pop(one.partition.name, None)
                self._flushing[_item(one.partition)] = None
            flush = asyncio.create_task(self._flush(group))
            for one in group:
                one.repair = flush

    async def _flush(self, group: list[Copying]) -> None:
        results = await asyncio.gather(*(copying.partition.log.flush() for copying in group), return_exceptions=True)
        for one, failure in zip(group, results, strict=True):
            one.repair = None
            if failure is None:
                self._go_on(one)
            elif isinstance(failure, StorageError):
                _log.error("%s is no longer copied: %s", one.partition.name, failure)
            else:
                _log.error("%s could not be synced: %r", one.partition.name, failure)
                self._rest_a_while(one, "it is tried again")

    # Log starts

    def _log_start_moved(self, one: Copying) -> None:
        """The leader is told when it is on the device: then a deletion that it acknowledges stays done (S10.2)."""
        name, log = one.partition.name, one.partition.log
        if log.durable_log_start == log.log_start_offset:
            self._changed[name] = None
            return
        self._moved_starts.add(log)

    def _starts_settled(self, logs: Sequence[Log], failure: StorageError | None) -> None:
        for log in logs:
            one = self._copying.get(log.partition)
            if one is None or one.is_resting or one.partition.log is not log:
                continue  # when it goes on, it is named with what is on the device then
            if failure is None:
                self._changed[log.partition] = None
            else:
                self._set_aside(one)
                _log.error("%s is no longer copied: %s", log.partition, failure)
        self._something_is_due()

    # Repairs

    def _start_repair(self, one: Copying, steps: Awaitable[None]) -> None:
        self._set_aside(one)
        one.repair = asyncio.create_task(self._repair(one, steps))

    async def _repair(self, one: Copying, steps: Awaitable[None]) -> None:
        try:
            await steps
        except Exception as failure:  # whatever it is: it is tried again
            if self._copying.get(one.partition.name) is not one:
                return  # the partition is not copied from this leader any more
            is_expected = isinstance(failure, (TidelogError, OSError))
            message = "%s could not be brought in line with its leader: %s"
            _log.warning(message, one.partition.name, failure, exc_info=not is_expected)
            one.repair = None
            self._rest_a_while(one, "it is tried again")
            return
        one.repair = None
        self._go_on(one)


def _unheard(answer: asyncio.Future[FetchResponse]) -> None:
    """Nobody waits for it any more, nor for why it did not come."""
    if not answer.cancelled():
        answer.exception()
