"""One partition as a follower copies it, and what brings its log in line with its leader's (S1.5, S4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from tidelog.broker.partition import Partition
from tidelog.errors import TidelogError, error_code
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, restart_at, truncate_to
from tidelog.net.calling import Connection
from tidelog.records.header import headers
from tidelog.replication.follower import CutTo, EpochAnswer, Extent, StartAt, out_of_range
from tidelog.types import BrokerId, Buffer, Epoch, Offset
from tidelog.wire.messages.fetch import FetchResponsePartitionData
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_log = logging.getLogger(__name__)

_LIST_OFFSETS_VERSION = 8
_EPOCHS_VERSION = 3
_EARLIEST, _LATEST = -2, -1
NOT_ASKED = -1

T = TypeVar("T")
Connect: TypeAlias = Callable[[BrokerId], Coroutine[Any, Any, Connection]]
"""A connection of its own to a broker."""


class Copying:
    """One partition in one term of its leader."""

    __slots__ = (
        "asked_in",
        "asked_offset",
        "asking",
        "epoch",
        "failures",
        "is_in_line",
        "is_resting",
        "is_unwanted",
        "partition",
        "repair",
        "told_log_start",
    )

    def __init__(self, partition: Partition, epoch: Epoch) -> None:
        self.partition = partition
        self.epoch = epoch
        self.is_resting = False
        """Not fetched for a while, after an error or while its log is being cut."""
        self.is_in_line = False
        """The leader was asked where its log parts from this one. Only for one that does not tell in its answers."""
        self.failures = 0
        """In a row."""
        self.repair: asyncio.Task[None] | None = None
        self.asking: asyncio.Future[Any] | None = None
        """The question to the leader that the repair waits for. Nothing is taken apart meanwhile."""
        self.is_unwanted = False
        """The partition was taken away from the fetcher; a repair that goes on asks the leader nothing more."""
        self.asked_offset = NOT_ASKED
        """What the leader was last asked for in this term; an answer to anything else is void."""
        self.asked_in = 0
        """The request that asked for it; answers to earlier ones are void too."""
        self.told_log_start: Offset = NOT_ASKED
        """The log start that the leader was last told."""

    @property
    def is_over(self) -> bool:
        return self.partition.leader_epoch != self.epoch or self.partition.leader is not None

    def stop_asking(self) -> None:
        """The leader may be frozen, and its answers are not wanted any more: the repair ends without them."""
        self.is_unwanted = True
        if self.asking is not None:
            self.asking.cancel()

    def is_awaited(self, request: int) -> bool:
        """Answers of an earlier term, or to what was asked before the log was cut, come late and mean nothing."""
        return (
            not self.is_over
            and not self.is_resting
            and self.asked_in <= request
            and self.asked_offset == self.partition.log.log_end_offset
        )


def begins_within(log: Log, records: Buffer) -> Offset | None:
    """Where the first batch begins, if this log is empty and ends within it. None if it does not.

    Records are deleted up to any offset, so a leader's log may start within a batch. A follower that begins there can
    only be sent the whole batch.
    """
    if log.log_end_offset != log.log_start_offset:
        return None
    _, first = next(iter(headers(records)), (0, None))
    if first is None or not first.base_offset < log.log_end_offset <= first.last_offset:
        return None
    return first.base_offset


class Repairs:
    """What takes logs apart, while their partitions rest."""

    def __init__(self, leader: BrokerId, own: BrokerId, connect: Connect, timeout_ms: int) -> None:
        """Each of them has a connection to the leader for as long as it takes."""
        self._leader = leader
        self._own = own
        self._connect = connect
        self._timeout_ms = timeout_ms

    async def cut(self, one: Copying, offset: Offset) -> None:
        log = one.partition.log
        if offset < log.log_end_offset:
            _log.info("%s is cut from %d to %d", log.partition, log.log_end_offset, offset)
        await truncate_to(log, offset)

    async def cut_where_they_part(self, one: Copying, answer: EpochAnswer) -> None:
        """The leader told with its answer to a fetch (S4.5); if that did not settle it, so will the next."""
        log = one.partition.log
        point = log.epochs.truncation_point(answer.epoch, answer.end_offset, log.log_end_offset)
        await self.cut(one, point.offset)

    async def come_into_range(self, one: Copying) -> None:
        """Past the leader's end, cut to it; before its start, begin there (S1.5)."""
        leaders = await _answer(one, self._leaders_extent(one))
        log = one.partition.log
        action = out_of_range(Extent(log.log_start_offset, log.log_end_offset), leaders)
        if one.is_over:
            return
        if isinstance(action, CutTo):
            await self.cut(one, action.offset)
        elif isinstance(action, StartAt):
            _log.warning("%s begins anew at %d: its leader has nothing before", log.partition, action.offset)
            await restart_at(log, action.offset)

    async def begin_within(self, one: Copying, base_offset: Offset, answer: FetchResponsePartitionData) -> None:
        """Take the first batch whole, and then what the leader has deleted of it off again."""
        log = one.partition.log
        await restart_at(log, base_offset)
        if one.is_over:
            return
        log.append_as_follower(answer.records or b"", one.epoch)
        one.partition.leader_told(answer.high_watermark)
        advance_log_start(log, min(answer.log_start_offset, log.high_watermark))
        await log.persist_checkpoints()

    async def ask_where_they_part(self, one: Copying) -> None:
        """Ask for the end of one's last epoch, cut, and ask again while the epoch in the answer is not known (S4.4)."""
        log = one.partition.log
        connection = await _answer(one, self._connect(self._leader))
        try:
            while len(log.epochs) and not one.is_over:
                answer = await _answer(one, self._epoch_end(connection, one, log.epochs.latest_epoch))
                if answer.is_unknown or one.is_over:
                    break
                point = log.epochs.truncation_point(answer.epoch, answer.end_offset, log.log_end_offset)
                await self.cut(one, point.offset)
                if point.final:
                    break
        finally:
            connection.close()
        one.is_in_line = True

    async def _leaders_extent(self, one: Copying) -> Extent:
        connection = await self._connect(self._leader)
        try:
            start = await self._leader_offset(connection, one, _EARLIEST)
            return Extent(start, await self._leader_offset(connection, one, _LATEST))
        finally:
            connection.close()

    async def _leader_offset(self, connection: Connection, one: Copying, timestamp: int) -> Offset:
        name = one.partition.name
        wanted = ListOffsetsPartition(
            partition_index=name.partition, current_leader_epoch=one.epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._own, topics=[ListOffsetsTopic(name=name.topic, partitions=[wanted])]
        )
        response = await connection.call(request, _LIST_OFFSETS_VERSION, timeout_ms=self._timeout_ms)
        answer = response.topics[0].partitions[0]
        _check(answer.error_code, one)
        offset: Offset = answer.offset
        return offset

    async def _epoch_end(self, connection: Connection, one: Copying, epoch: Epoch) -> EpochAnswer:
        name = one.partition.name
        wanted = OffsetForLeaderPartition(partition=name.partition, current_leader_epoch=one.epoch, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=self._own, topics=[OffsetForLeaderTopic(topic=name.topic, partitions=[wanted])]
        )
        response = await connection.call(request, _EPOCHS_VERSION, timeout_ms=self._timeout_ms)
        answer = response.topics[0].partitions[0]
        _check(answer.error_code, one)
        return EpochAnswer(answer.leader_epoch, answer.end_offset)


async def _answer(one: Copying, question: Coroutine[Any, Any, T]) -> T:
    """What the leader answers. TidelogError if the partition was, or is meanwhile, taken away from the fetcher."""
    if one.is_unwanted:
        question.close()
        raise _not_copied(one)
    asking = asyncio.create_task(question)
    one.asking = asking
    try:
        return await asking
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _not_copied(one) from None
    finally:
        one.asking = None


def _not_copied(one: Copying) -> TidelogError:
    return TidelogError(f"{one.partition.name} is not copied from this leader any more")


def _check(code: int, one: Copying) -> None:
    if code:
        raise TidelogError(f"the leader answers {error_code(code).name} for {one.partition.name}")
