"""A fetcher: copies partitions from one leader, many in one request, as a follower does (S1.2, S1.5, S2.8, S4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.broker.partition import Partition
from tidelog.errors import CorruptBatchError, ErrorCode, StorageError, TidelogError
from tidelog.log.trimming import advance_log_start, restart_at, truncate_to
from tidelog.net.calling import Connection
from tidelog.replication.follower import CutTo, Extent, StartAt, out_of_range
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

_log = logging.getLogger(__name__)

_FETCH_VERSION = 17
_LIST_OFFSETS_VERSION = 8
_EARLIEST, _LATEST = -2, -1
_NO_SESSION, _FIRST_EPOCH = 0, 0
_NOT_ASKED = -1
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

Connect: TypeAlias = Callable[[BrokerId], Awaitable[Connection]]


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """By Kafka's names, with its defaults."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    timeout_ms: int = 30_000


class _Copying:
    """One partition as it is being copied, in one term of its leader."""

    __slots__ = ("asked_offset", "epoch", "is_resting", "partition", "repair")

    def __init__(self, partition: Partition, epoch: Epoch) -> None:
        self.partition = partition
        self.epoch = epoch
        self.is_resting = False
        """Not fetched for a while, after an error or while its log is being cut."""
        self.repair: asyncio.Task[None] | None = None
        self.asked_offset = _NOT_ASKED
        """What the leader was last asked for in this term; an answer to anything else is void."""

    @property
    def is_over(self) -> bool:
        return self.partition.leader_epoch != self.epoch or self.partition.leader is not None


class Fetcher:
    """Belongs to the loop. Always: a partition's log grows only by what its leader of this term has sent."""

    def __init__(
        self,
        leader: BrokerId,
        own: BrokerId,
        broker_epoch: Callable[[], Epoch],
        connect: Connect,
        settings: FetcherSettings,
    ) -> None:
        self.leader = leader
        self._own = own
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._settings = settings
        self._copying: dict[TopicPartition, _Copying] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Whose position the leader does not know yet."""
        self._forgotten: dict[TopicPartition, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._session_id = _NO_SESSION
        self._session_epoch = _FIRST_EPOCH
        self._connection: Connection | None = None
        self._wake = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    # Which partitions

    @property
    def is_idle(self) -> bool:
        return not self._copying

    def add(self, partition: Partition, epoch: Epoch) -> None:
        one = self._copying[partition.name] = _Copying(partition, epoch)
        self._names[partition.topic_id] = partition.name.topic
        self._forgotten.pop(partition.name, None)
        self._changed[partition.name] = None
        log = partition.log
        if not len(log.epochs) and log.log_end_offset > log.high_watermark:
            # Without any epoch there is nothing to compare: here alone HW decides (S4.7).
            self._start_repair(one, self._cut(one, log.high_watermark))
        self._wake.set()

    async def remove(self, partition: Partition) -> None:
        """When this returns, nothing of this fetcher touches the log any more."""
        one = self._copying.pop(partition.name, None)
        if one is None:
            return
        self._changed.pop(partition.name, None)
        self._forgotten[partition.name] = partition.topic_id
        if one.repair is not None:
            await asyncio.gather(one.repair, return_exceptions=True)

    async def stop(self) -> None:
        self._task.cancel()
        repairs = [one.repair for one in self._copying.values() if one.repair is not None]
        await asyncio.gather(self._task, *repairs, return_exceptions=True)
        self._disconnect()

    # The loop

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if not any(not one.is_resting for one in self._copying.values()) and not self._forgotten:
                await self._wake.wait()
                continue
            try:
                await self._fetch_once()
            except (TidelogError, OSError) as failure:
                _log.info("fetching from broker %d will be tried again: %s", self.leader, failure)
                self._disconnect()
                await self._rest()

    async def _fetch_once(self) -> None:
        if self._connection is None or self._connection.closed:
            self._disconnect()
            self._connection = await self._connect(self.leader)
        request = self._request()
        response: FetchResponse = await self._connection.call(
            request, _FETCH_VERSION, timeout_ms=self._settings.timeout_ms
        )
        code = ErrorCode(response.error_code)
        if code in _SESSION_LOST:
            self._begin_session(
                response.session_id if code is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND else _NO_SESSION
            )
            return
        if code is not ErrorCode.NONE:
            raise TidelogError(f"the leader answers {code.name}")
        self._session_id = response.session_id
        self._session_epoch = _FIRST_EPOCH if not response.session_id else self._session_epoch + 1
        for topic in response.responses:
            for answer in topic.partitions:
                name = TopicPartition(self._names.get(topic.topic_id, ""), answer.partition_index)
                one = self._copying.get(name)
                if one is not None and self._is_awaited(one):
                    self._take(one, answer)

    def _is_awaited(self, one: _Copying) -> bool:
        """Answers of an earlier term, or to what was asked before the log was cut, come late and mean nothing."""
        return not one.is_over and not one.is_resting and one.asked_offset == one.partition.log.log_end_offset

    def _request(self) -> FetchRequest:
        """A full one at first, then only what is new (KIP-227)."""
        is_full = self._session_epoch == _FIRST_EPOCH
        names = list(self._copying) if is_full else list(self._changed)
        topics: dict[bytes, FetchTopic] = {}
        for name in names:
            one = self._copying[name]
            if one.is_resting:
                continue
            log, topic_id = one.partition.log, one.partition.topic_id
            one.asked_offset = log.log_end_offset
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(
                FetchPartition(
                    partition=name.partition,
                    current_leader_epoch=one.epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.epochs.latest_epoch if len(log.epochs) else NO_EPOCH,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=self._settings.max_bytes,
                )
            )
        forgotten: dict[bytes, FetchRequestForgottenTopic] = {}
        if not is_full:
            for name, topic_id in self._forgotten.items():
                forgotten.setdefault(topic_id, FetchRequestForgottenTopic(topic_id=topic_id)).partitions.append(
                    name.partition
                )
        self._changed.clear()
        self._forgotten.clear()
        settings = self._settings
        return FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=self._own, replica_epoch=self._broker_epoch()),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    def _begin_session(self, session_id: int = _NO_SESSION) -> None:
        self._session_id, self._session_epoch = session_id, _FIRST_EPOCH

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._begin_session()

    async def _rest(self) -> None:
        await asyncio.sleep(self._settings.backoff_ms / 1000)

    # Answers

    def _take(self, one: _Copying, answer: FetchResponsePartitionData) -> None:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and (answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0):
            epoch = answer.diverging_epoch
            log = one.partition.log
            point = log.epochs.truncation_point(epoch.epoch, epoch.end_offset, log.log_end_offset)
            self._start_repair(one, self._cut(one, point.offset))
        elif code is ErrorCode.NONE:
            self._copy(one, answer)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_repair(one, self._come_into_range(one))
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            self._set_aside(one)  # there is a newer leader; the controller will say who
        else:
            self._rest_a_while(one, code.name)

    def _copy(self, one: _Copying, answer: FetchResponsePartitionData) -> None:
        """Append, so the log end moves; then HW (S2.8); then what the leader no longer has."""
        partition, log = one.partition, one.partition.log
        try:
            if answer.records:
                log.append_as_follower(answer.records)
                self._changed[partition.name] = None
            partition.leader_told(answer.high_watermark)
            if answer.log_start_offset > log.log_start_offset:
                advance_log_start(log, min(answer.log_start_offset, log.high_watermark))
                self._changed[partition.name] = None
        except CorruptBatchError as failure:
            self._rest_a_while(one, str(failure))
        except StorageError as failure:
            self._set_aside(one)
            _log.error("%s is no longer copied: %s", partition.name, failure)

    def _rest_a_while(self, one: _Copying, why: str) -> None:
        _log.info("%s is not fetched from broker %d for a while: %s", one.partition.name, self.leader, why)
        self._set_aside(one)
        asyncio.get_running_loop().call_later(self._settings.backoff_ms / 1000, self._go_on, one)

    def _set_aside(self, one: _Copying) -> None:
        """It rests, and the leader is told: a partition in error would be answered at once again and again."""
        one.is_resting = True
        one.asked_offset = _NOT_ASKED
        self._changed.pop(one.partition.name, None)
        self._forgotten[one.partition.name] = one.partition.topic_id

    def _go_on(self, one: _Copying) -> None:
        if self._copying.get(one.partition.name) is one:
            one.is_resting = False
            self._forgotten.pop(one.partition.name, None)
            self._changed[one.partition.name] = None
            self._wake.set()

    # Repairs: what takes a log apart, while the partition rests

    def _start_repair(self, one: _Copying, steps: Awaitable[None]) -> None:
        self._set_aside(one)
        one.repair = asyncio.ensure_future(self._repair(one, steps))

    async def _repair(self, one: _Copying, steps: Awaitable[None]) -> None:
        try:
            await steps
        except (TidelogError, OSError) as failure:
            _log.warning("%s could not be brought in line with its leader: %s", one.partition.name, failure)
            one.repair = None
            self._rest_a_while(one, "it is tried again")
            return
        one.repair = None
        self._go_on(one)

    async def _cut(self, one: _Copying, offset: int) -> None:
        log = one.partition.log
        _log.info("%s is cut from %d to %d, where its leader's log parts", log.partition, log.log_end_offset, offset)
        await truncate_to(log, offset)

    async def _come_into_range(self, one: _Copying) -> None:
        """Past the leader's end, cut to it; before its start, begin there (S1.5)."""
        connection = await self._connect(self.leader)
        try:
            start = await self._leader_offset(connection, one, _EARLIEST)
            end = await self._leader_offset(connection, one, _LATEST)
        finally:
            connection.close()
        log = one.partition.log
        action = out_of_range(Extent(log.log_start_offset, log.log_end_offset), Extent(start, end))
        if one.is_over:
            return
        if isinstance(action, CutTo):
            await self._cut(one, action.offset)
        elif isinstance(action, StartAt):
            _log.warning("%s begins anew at %d: its leader has nothing before", log.partition, action.offset)
            await restart_at(log, action.offset)

    async def _leader_offset(self, connection: Connection, one: _Copying, timestamp: int) -> int:
        name = one.partition.name
        wanted = ListOffsetsPartition(
            partition_index=name.partition, current_leader_epoch=one.epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._own, topics=[ListOffsetsTopic(name=name.topic, partitions=[wanted])]
        )
        response = await connection.call(request, _LIST_OFFSETS_VERSION, timeout_ms=self._settings.timeout_ms)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise TidelogError(f"the leader answers {ErrorCode(answer.error_code).name} for {name}")
        offset: int = answer.offset
        return offset
