"""ListOffsets (2), OffsetForLeaderEpoch (23) and DeleteRecords (21).

ListOffsets: 1 one offset per partition; 2 isolation level; 4 leader epochs; 5 OFFSET_NOT_AVAILABLE; 6 flexible; 7 the
largest timestamp (-3); 8 the earliest local offset (-4); 9 the latest tiered offset (-5); 10 a timeout.
OffsetForLeaderEpoch: 2 the reader's leader epoch; 3 replica id; 4 flexible.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import HangUpError
from tidelog.broker.fetch_answer import DEBUGGING_REPLICA
from tidelog.broker.pacing import Pace
from tidelog.broker.partition import Partition, RequestError
from tidelog.controller.topics import is_internal, kept_names
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.log import Log
from tidelog.log.reading import LATEST, FoundTimestamp, HeavyLookupError
from tidelog.log.trimming import advance_log_start
from tidelog.net.channel import Call
from tidelog.types import NO_EPOCH, BrokerId, Epoch, Offset
from tidelog.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_LATEST_TIERED = -5
_SINCE = {-3: 7, -4: 8, _LATEST_TIERED: 9}
"""What may be asked for in place of a time, and from which version on."""
_LEADER_EPOCHS = 4
_OFFSET_NOT_AVAILABLE = 5
_READ_COMMITTED = 1
_CONSUMER = -1
_TO_THE_HIGH_WATERMARK = -1
_CHEAP_BYTES = 4 * 1024
"""Of a compressed batch that any number of lookups may decompress: a topic takes no batch that decompresses to more
than 1000 times its size or max.message.bytes."""


async def list_offsets(broker: Broker, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """A partition that is named more than once is an INVALID_REQUEST, as in Kafka."""
    pace = Pace(broker.lane, call.connection.is_broker)
    seen: Counter[tuple[str, int]] = Counter()
    async for topic in pace.each(request.topics):
        async for part in pace.slices(topic.partitions):
            seen.update((topic.name, wanted.partition_index) for wanted in part)
    topics = []
    async for topic in pace.each(request.topics):
        answers = []
        async for wanted in pace.each(topic.partitions):
            try:
                if seen[topic.name, wanted.partition_index] > 1:
                    raise RequestError(ErrorCode.INVALID_REQUEST)
                answers.append(await _list(broker, topic.name, wanted, request, call))
            except HangUpError:
                raise
            except TidelogError as failure:
                answers.append(
                    ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=failure.code)
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _list(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, request: ListOffsetsRequest, call: Call
) -> ListOffsetsPartitionResponse:
    version = call.version
    if wanted.timestamp < _LATEST_TIERED or version < _SINCE.get(wanted.timestamp, 0):
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.replicas.get(topic, wanted.partition_index)
    leader = None
    if request.replica_id != DEBUGGING_REPLICA:
        leader = partition.leader_for(wanted.current_leader_epoch)
    if request.replica_id == _CONSUMER and not partition.is_current:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # another may lead, and its log may be longer (edge 43)
    log = partition.log
    if request.replica_id == DEBUGGING_REPLICA and wanted.timestamp == LATEST:
        return _log_end(partition, wanted)
    end, is_end_known = log.log_end_offset, True
    if request.replica_id == _CONSUMER and leader is not None:
        end = log.last_stable_offset if request.isolation_level == _READ_COMMITTED else log.high_watermark
        is_end_known = log.high_watermark >= leader.epoch_start_offset
        if wanted.timestamp == LATEST and not is_end_known:
            raise _not_available(version)  # S1.3: it will be higher than this
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    if wanted.timestamp != _LATEST_TIERED:
        found = await _find(broker, log, wanted.timestamp, end, call)
        if found is None and not is_end_known:
            raise _not_available(version)  # it may be in what is committed but not yet known to be
        if found is not None:
            answer.timestamp, answer.offset, epoch = found
            if version >= _LEADER_EPOCHS:
                answer.leader_epoch = epoch if epoch >= 0 or leader is None else partition.leader_epoch
    return answer


async def _find(broker: Broker, log: Log, timestamp: int, end: Offset, call: Call) -> FoundTimestamp | None:
    """Where there is much to decompress, in turn with other connections (`lookups`)."""
    try:
        return await log.find_offset(timestamp, end, most_compressed_bytes=_CHEAP_BYTES)
    except HeavyLookupError:
        pass
    if not await broker.lookups.enter(call):
        raise HangUpError("the client has gone")
    try:
        return await log.find_offset(timestamp, end)
    finally:
        broker.lookups.leave(call.connection)


def _log_end(partition: Partition, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    """With the epoch of the last record, for the controller to compare; an epoch without records says nothing."""
    log = partition.log
    end = log.log_end_offset
    has_records = end > log.log_start_offset
    epoch = log.epochs.epoch_for_offset(end - 1) if has_records else log.epochs.latest_epoch
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, offset=end, leader_epoch=NO_EPOCH if epoch is None else epoch
    )


def _not_available(version: int) -> RequestError:
    """Worth another try; older clients know another name for that."""
    is_known = version >= _OFFSET_NOT_AVAILABLE
    return RequestError(ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)


async def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    """Where an epoch ends (S4.4)."""
    pace = Pace(broker.lane, call.connection.is_broker)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    await _epoch_end(broker, topic.topic, wanted, request.replica_id)
                    async for wanted in pace.each(topic.partitions)
                ],
            )
            async for topic in pace.each(request.topics)
        ]
    )


async def _epoch_end(
    broker: Broker, topic: str, wanted: OffsetForLeaderPartition, replica_id: BrokerId
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    answer = OffsetForLeaderEpochResponseEpochEndOffset(partition=wanted.partition)
    try:
        partition = broker.replicas.get(topic, wanted.partition)
        partition.leader_for(wanted.current_leader_epoch)
        if replica_id == _CONSUMER:
            await _check_for_consumer(partition, wanted.leader_epoch)
        log = partition.log
        answer.leader_epoch, answer.end_offset = log.epochs.end_offset_for(wanted.leader_epoch, log.log_end_offset)
    except TidelogError as failure:
        answer.error_code = failure.code
    return answer


async def _check_for_consumer(partition: Partition, epoch: Epoch) -> None:
    """An answer that makes a consumer believe that its records were cut must be certain (edge case 43).

    Where a known epoch ended is certain: a new leader has all that was committed before its own epoch began. One that
    is not known yet may be that of a newer leader, or of an earlier topic of this name.
    """
    if not partition.is_current:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if epoch > partition.leader_epoch:
        await partition.confirm_term()


async def delete_records(broker: Broker, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Move the start of logs forward, and answer when all living replicas have done so (S10.2)."""
    pace = Pace(broker.lane)
    deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    asked = await _deletions_asked(request, pace)
    keep = kept_names(asked)
    deleting = [
        (keep(name), [_Deletion(broker, name, one, deadline) async for one in pace.each(partitions.values())])
        for name, partitions in asked.items()
    ]
    del request, asked  # while it waits, only the deletions are needed

    def give_up() -> None:
        for _, deletions in deleting:
            for deletion in deletions:
                deletion.settle(ErrorCode.REQUEST_TIMED_OUT)

    with broker.waiting(call, give_up):
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=name, partitions=[await deletion.result() async for deletion in pace.each(deletions)]
                )
                for name, deletions in deleting
            ]
        )


async def _deletions_asked(request: DeleteRecordsRequest, pace: Pace) -> dict[str, dict[int, DeleteRecordsPartition]]:
    """Of a partition that is named more than once the last offset counts, as in Kafka."""
    asked: dict[str, dict[int, DeleteRecordsPartition]] = {}
    async for topic in pace.each(request.topics):
        async for part in pace.slices(topic.partitions):
            asked.setdefault(topic.name, {}).update((partition.partition_index, partition) for partition in part)
    return asked


class _Deletion:
    """One partition of a DeleteRecords, in purgatory until its low watermark has come to the offset."""

    def __init__(self, broker: Broker, topic: str, wanted: DeleteRecordsPartition, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._answer = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
        self._done: asyncio.Future[ErrorCode] = loop.create_future()
        self._partition: Partition | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            partition = self._partition = _deletable(broker, topic, wanted.partition_index)
            offset = partition.log.high_watermark if wanted.offset == _TO_THE_HIGH_WATERMARK else wanted.offset
            if offset < 0:
                raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE)
            advance_log_start(partition.log, offset)
        except TidelogError as failure:
            self.settle(failure.code)
            return
        partition.log_start_moved()
        self._timer = loop.call_at(deadline, self.settle, ErrorCode.REQUEST_TIMED_OUT)
        partition.when_low_watermark(offset, self.settle)

    def settle(self, code: ErrorCode) -> None:
        if not self._done.done():
            self._done.set_result(code)

    async def result(self) -> DeleteRecordsPartitionResult:
        code = self._answer.error_code = await self._done
        if self._timer is not None:
            self._timer.cancel()
        if self._partition is not None and code is ErrorCode.NONE:
            self._answer.low_watermark = self._partition.low_watermark
        elif self._partition is not None:
            self._partition.forget_deletion(self.settle)
        return self._answer


def _deletable(broker: Broker, topic: str, index: int) -> Partition:
    if is_internal(topic):
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = broker.replicas.leading(topic, index)
    if not partition.is_current:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not partition.rules.may_delete_records:
        raise RequestError(ErrorCode.POLICY_VIOLATION)
    return partition
