"""One partition of __consumer_offsets that this broker leads: its groups, loaded from the log and written to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.group.writes import Writes, WriteSettings
from tidelog.broker.partition import Partition, RequestError
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups import Answer, Effect, GroupConfig, Groups, Write
from tidelog.records.batch import open_batch
from tidelog.records.header import Codec, headers
from tidelog.records.kernel import Record, read_records
from tidelog.types import Offset

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_SLICE_BYTES = 128 * 1024
"""Of the log at once while loading, at most: the broker serves others in between."""


class GroupShard:
    """Begins to load when it is made. `groups` may be asked once it is active."""

    def __init__(self, broker: Broker, partition: Partition, now_ms: Callable[[], int]) -> None:
        self.groups = Groups(GroupConfig.of(broker.config))
        self.is_active = False
        self._partition = partition
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_closed = False
        config = broker.config
        self._slice_bytes = min(_SLICE_BYTES, config["offsets.load.buffer.size"])
        self._writes = Writes(
            partition,
            WriteSettings(config["offsets.commit.timeout.ms"], Codec(config["offsets.topic.compression.codec"])),
            is_current=lambda: broker.is_current,
            wall_ms=broker.clock.wall_ms,
            at_end_of_turn=broker.channel.at_end_of_turn,
            settle=self._settle,
        )
        self._loading = asyncio.ensure_future(self._load())

    # Effects and time

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                effect.ticket.give(effect.message)
            else:
                self._writes.add(effect)
        self._set_timer()

    def _settle(self, write: Write, code: ErrorCode) -> None:
        self.perform(write.done(code, self._now_ms()))

    def _set_timer(self) -> None:
        """One timer, for the earliest deadline. One that is set too early looks again when it fires."""
        deadline_ms = self.groups.deadline_ms()
        if deadline_ms is None or self._is_closed:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(deadline_ms - self._now_ms(), 0) / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.perform(self.groups.expire(self._now_ms()))

    def expire_offsets(self) -> None:
        if self.is_active:
            self.perform(self.groups.expire_offsets(self._now_ms()))

    # Loading

    async def _load(self) -> None:
        """All that the log holds, up to where it ended when this term began."""
        partition, started_ms = self._partition, self._now_ms()
        try:
            end = partition.log.log_end_offset
            count = await self._replay(partition.log.log_start_offset, end)
            await self._committed(end)
        except (TidelogError, OSError) as failure:
            _log.error("%s cannot be loaded, so its groups have no coordinator: %s", partition.name, failure)
            return
        self.is_active = True
        self.perform(self.groups.loaded(self._now_ms()))
        took_ms = self._now_ms() - started_ms
        level = logging.INFO if count else logging.DEBUG
        _log.log(level, "%s is loaded: %d records in %d ms", partition.name, count, took_ms)

    async def _replay(self, offset: Offset, end: Offset) -> int:
        log, count = self._partition.log, 0
        while offset < end:
            region = await log.read(offset, self._slice_bytes, end)
            if not region.size:
                break  # compaction left nothing more
            # Nothing comes if its file was replaced meanwhile: then the same offset is asked for again.
            data = await log.bytes_of(region)
            records: list[Record] = []
            first = offset
            for position, header in headers(data):
                if not header.is_control:
                    read_records(open_batch(data, header, position), records, first)
                offset = header.last_offset + 1
            self.groups.replay((record.key or b"", record.value) for record in records)
            count += len(records)
            await asyncio.sleep(0)
        return count

    async def _committed(self, end: Offset) -> None:
        """What an earlier leader wrote and nobody else has could still be lost: nothing is told before it cannot."""
        if self._partition.is_committed(end):
            return
        told: asyncio.Future[ErrorCode] = self._loop.create_future()
        self._partition.when_committed(end, lambda code: None if told.done() else told.set_result(code))
        code = await told
        if code not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise RequestError(code)

    # The end

    def unload(self) -> None:
        """Another broker leads: whoever waits is sent there."""
        self._loading.cancel()
        self.is_active = False
        self.perform(self.groups.unload(self._now_ms()))
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """The broker stops; clients hear that from their connections."""
        self._loading.cancel()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        await self._writes.close()
