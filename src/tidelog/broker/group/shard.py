"""One partition of __consumer_offsets that this broker leads: its groups, loaded from the log and written to it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.broker.group.deleted_before import DeletedBefore
from tidelog.broker.group.writes import Writes, WriteSettings
from tidelog.broker.partition import Partition, RequestError
from tidelog.coordination.port import CoordinationError
from tidelog.errors import CorruptBatchError, ErrorCode, TidelogError
from tidelog.groups import (
    LARGE_COMMIT_MAX_BYTES,
    NO_BAD_RECORDS,
    Answer,
    Answers,
    BadRecords,
    Effect,
    GroupConfig,
    Groups,
    LargeCommit,
    Write,
)
from tidelog.log.log import Log
from tidelog.records.batch import open_batch
from tidelog.records.header import BatchHeader, Codec, headers
from tidelog.records.kernel import LONG_BYTES, Cursor, Record, check_records, read_some
from tidelog.types import Buffer, Offset
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_SLICE_BYTES = 128 * 1024
"""Of the log at once while loading, at most: the broker serves others in between."""
_RECORDS_AT_ONCE = 2_000
ANSWERS_AT_ONCE = 100
"""Answers that are given in one go: each takes some ten microseconds to be encoded and sent."""
_FEW_ANSWERS = 10
"""These are given in any case."""
_FIRST_REST_S = 0.1
_LOOK_EVERY_S = 0.05
"""How often a coordinator that loads looks whether its followers have fetched from it."""
_STORE_REST_S = 0.25
_LONGEST_REST_S = 30.0
"""A load that failed is tried again after a rest, which doubles up to this."""


class GroupShard:
    """Begins to load when it is made. `groups` may be asked once it is active.

    A load that fails, for whatever reason, is logged and tried again after a rest.
    """

    def __init__(self, broker: Broker, partition: Partition, now_ms: Callable[[], int]) -> None:
        self.groups = Groups(GroupConfig.of(broker.config), broker.groups.usage)
        self.is_active = False
        self.has_failed = False
        """The last load failed, and the next one has not succeeded yet."""
        self._partition = partition
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_closed = False
        self._answer_time = broker.replicas.answer_time
        self._answers: deque[Answer | Answers] = deque()
        """Answers that are given in later turns of the loop, in their order."""
        self._is_answering = False
        """Such a turn will come."""
        self._deleted_while_loading: list[Mapping[str, bytes]] = []
        """Topics, by name their ids."""
        self._forget_deleted_topics = broker.groups.forget_deleted_topics
        self._deleted_topics = DeletedBefore(broker)
        config = broker.config
        self._failures = broker.groups.load_failures
        self._bad_records = broker.groups.bad_records
        self._slice_bytes = min(_SLICE_BYTES, config["offsets.load.buffer.size"])
        self._writes = Writes(
            partition,
            WriteSettings(config["offsets.commit.timeout.ms"], Codec(config["offsets.topic.compression.codec"])),
            wall_ms=broker.clock.wall_ms,
            at_end_of_turn=broker.channel.at_end_of_turn,
            settle=self._settle,
        )
        self._loading = asyncio.create_task(self._load())

    # Effects and time

    def perform(self, effects: list[Effect]) -> None:
        """Writes go into the log in their order. A rebalance may answer thousands of members: the answers beyond the
        first ones are given in later turns of the loop."""
        at_once = ANSWERS_AT_ONCE
        for effect in effects:
            if isinstance(effect, Write):
                self._writes.add(effect)
            elif isinstance(effect, Answer) and at_once:
                at_once -= 1
                effect.ticket.give(effect.message)
            else:
                self._answers.append(effect)
        if self._answers and not self._is_answering:
            self._answer_some(at_once)
        self._set_timer()

    def _answer_some(self, most: int = ANSWERS_AT_ONCE) -> None:
        """Give so many answers that wait, or fewer if this turn has no time left for answers, and the others in later
        turns. They do not wait for the requests of others: the sessions of these members go on, and may end, until
        they hear."""
        answers, few = self._answers, most - _FEW_ANSWERS
        try:
            while answers and most and (most > few or not self._answer_time.is_over()):
                most -= 1
                answer = answers.popleft()
                if isinstance(answer, Answers):
                    many, answer = answer, answer.take()
                    if many.waiting:
                        answers.appendleft(many)
                answer.ticket.give(answer.message)
        finally:
            self._is_answering = bool(answers)
            if answers:
                self._loop.call_soon(self._answer_some)

    def has_room_for(self, commit: LargeCommit) -> bool:
        """Whether the log takes each record of it, and all of them as one commit."""
        return commit.size_bytes <= LARGE_COMMIT_MAX_BYTES and commit.largest_bytes <= self._writes.most_of_record()

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
        try:
            self.perform(self.groups.expire(self._now_ms()))
        finally:
            self._set_timer()  # what goes wrong with one group must not stop the time of the others

    def begin_expiry(self) -> None:
        """Old offsets, and groups that have nothing left, are to be forgotten."""
        if self.is_active:
            self.groups.forgetting.begin_expiry()

    @property
    def has_expiry(self) -> bool:
        """`expire_offsets` has something to do."""
        return self.is_active and self.groups.forgetting.has_expiry

    def expire_offsets(self, most: int) -> int:
        """Forget old offsets, until so many elements were looked at; how many that were."""
        effects, looked_at = self.groups.forgetting.expire_offsets(most, self._now_ms())
        self.perform(effects)
        return looked_at

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        if self.is_active:
            self.groups.forgetting.topics_deleted(topics)
        else:
            self._deleted_while_loading.append(topics)

    @property
    def has_deleted_topics(self) -> bool:
        """`forget_deleted` has something to do."""
        return self.is_active and self.groups.forgetting.has_deleted_topics

    def forget_deleted(self, most: int) -> int:
        """Forget offsets of deleted topics, until so many elements were looked at; how many that were."""
        effects, looked_at = self.groups.forgetting.forget_deleted(most, self._now_ms())
        self.perform(effects)
        return looked_at

    # Loading

    async def _load(self) -> None:
        """All that the log holds, up to where it ended when this term began; tried until it succeeds."""
        rest_s = _FIRST_REST_S
        while True:
            try:
                await self._load_once()
            except Exception as failure:
                self.is_active, self.has_failed = False, True
                self._failures.add()
                why = f"{type(failure).__name__}: {failure}"
                _log.error(
                    "%s cannot be loaded, so its groups have no coordinator; it is tried again in %.1f s: %s",
                    self._partition.name,
                    rest_s,
                    why,
                    exc_info=None if isinstance(failure, (TidelogError, OSError)) else failure,
                )
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, _LONGEST_REST_S)
            else:
                return

    async def _load_once(self) -> None:
        partition, started_ms = self._partition, self._now_ms()
        self.groups.discard()  # what an attempt that failed had found
        end = partition.log.log_end_offset
        count, bad = await self._replay(partition.log.log_start_offset, end)
        await self._committed(end)
        deleted = await self._deleted_before()
        self.is_active, self.has_failed = True, False
        self.perform(self.groups.loaded(self._now_ms()))
        for topics in [*self._deleted_while_loading, *deleted]:
            self.groups.forgetting.topics_deleted(topics)
        self._deleted_while_loading.clear()
        self._forget_deleted_topics()
        took_ms = self._now_ms() - started_ms
        level = logging.INFO if count else logging.DEBUG
        _log.log(
            level,
            "the coordinator of %s is loaded: %s, %s, in %d ms",
            partition.name,
            counted(count, "record"),
            counted(self.groups.count, "group"),
            took_ms,
        )
        if bad.count:
            self._bad_records.add(bad.count)
            _log.warning(
                "%s holds %d records that no coordinator can have written; they are skipped. The first: %s",
                partition.name,
                bad.count,
                bad.first,
            )

    async def _deleted_before(self) -> list[dict[str, bytes]]:
        """Only the store is asked again if it cannot be asked: what was read from the log is there already."""
        is_told = False
        while True:
            try:
                return await self._deleted_topics.among(self.groups)
            except CoordinationError as failure:
                if not is_told:
                    text = "the groups of %s wait for the coordination store: %s"
                    _log.warning(text, self._partition.name, str(failure) or type(failure).__name__)
                is_told = True
                await asyncio.sleep(_STORE_REST_S)

    async def _replay(self, offset: Offset, end: Offset) -> tuple[int, BadRecords]:
        """How many records there were, and which of them are of no use."""
        log, count, bad = self._partition.log, 0, NO_BAD_RECORDS
        while offset < end:
            region = await log.read(offset, self._slice_bytes, end)
            if not region.size:
                break  # compaction left nothing more
            # Nothing comes if its file was replaced meanwhile: then the same offset is asked for again.
            data = await log.bytes_of(region)
            records = _Gathered(self.groups, log, offset)
            for position, header in headers(data):
                if not header.is_control:
                    await records.add_batch(data, header, position)
                offset = header.last_offset + 1
            records.replay()
            count += records.count
            bad += records.bad
            await asyncio.sleep(0)
        return count, bad

    async def _committed(self, end: Offset) -> None:
        """Wait until all that was loaded is committed: a record that only this broker has could still be lost.

        The followers have to follow this broker as well. The request that made it leader may have come late, when
        another broker leads already. Then its log may be too short, although all of it is committed. Between two terms
        nobody follows it.
        """
        while (leader := self._partition.leader) is None or not leader.is_followed:
            await asyncio.sleep(_LOOK_EVERY_S)
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
        if self.groups.count:
            count = counted(self.groups.count, "group")
            _log.info("%s is led by another broker: this one coordinates its %s no more", self._partition.name, count)
        self._loading.cancel()
        self.is_active = False
        self.perform(self.groups.unload(self._now_ms()))
        self._writes.end()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """The broker stops; clients hear that from their connections."""
        self._answers.clear()
        self._loading.cancel()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        await self._writes.close()


class _Gathered:
    """Records of one slice of the log on their way to the groups; many at once, since most replace each other."""

    def __init__(self, groups: Groups, log: Log, from_offset: Offset) -> None:
        self.count = 0
        self.bad = NO_BAD_RECORDS
        self._groups = groups
        self._log = log
        self._from_offset = from_offset
        self._records: list[Record] = []

    async def add_batch(self, data: Buffer, header: BatchHeader, position: int) -> None:
        """A small batch may hold millions of records. One that is malformed is skipped as a whole."""
        try:
            cursor = await self._open(data, header, position)
        except CorruptBatchError as failure:
            self.bad += BadRecords(header.record_count, failure)
            return
        while read_some(cursor, self._records, max(_RECORDS_AT_ONCE - len(self._records), 1)):
            self.replay()
            await asyncio.sleep(0)

    async def _open(self, data: Buffer, header: BatchHeader, position: int) -> Cursor:
        """What decompresses to many megabytes, or is that large, does not hold the loop."""

        def opened() -> Cursor:
            cursor = open_batch(data, header, position)
            check_records(cursor)
            return cursor

        if header.codec is Codec.NONE and header.size_bytes <= LONG_BYTES:
            return opened()
        return await self._log.work.beside(opened)

    def replay(self) -> None:
        records, self._records = self._records, []
        self.count += len(records)
        self.bad += self._groups.replay(
            [(record.key or b"", record.value) for record in records if record.offset >= self._from_offset]
        )
