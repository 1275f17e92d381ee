"""Cutting a log: its end by truncation (S4.4), its start by retention and DeleteRecords (S10.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tidelog.errors import OffsetOutOfRangeError
from tidelog.log.log import Log
from tidelog.log.names import DELETED
from tidelog.log.producer_silence import FileTimes
from tidelog.log.producers import Producers
from tidelog.log.recovery import load_producers
from tidelog.log.retention import SegmentFacts, expired_count
from tidelog.log.segment import Segment
from tidelog.log.segments import Segments
from tidelog.log.work import to_the_end
from tidelog.types import Offset


async def truncate_to(log: Log, offset: Offset) -> bool:
    """Drop all records at and after `offset`; False if there are none.

    A batch that reaches past `offset` goes as a whole, and then the log ends where that batch began: what
    was lost with it is fetched again. Entries of the epoch cache go even where no record does (edge case 10).
    Once begun it is carried through, also if the caller is cancelled: then that waits.
    """
    return await to_the_end(_truncate_to(log, offset))


async def _truncate_to(log: Log, offset: Offset) -> bool:
    async with log.reshaping:
        await log.abandon_cleaning()
        if offset >= log.log_end_offset:
            if log.epochs.truncate_from_end(offset):
                await log.work.run(log.epochs_writer())
            return False
        log.being_cut = True
        try:
            await (_restart_at if offset < log.segments[0].base_offset else _cut_end)(log, offset)
        finally:
            log.being_cut = False
        return True


async def _cut_end(log: Log, offset: Offset) -> None:
    # The segment that starts exactly at the cut would be left empty; the one before it becomes active instead.
    place = log.segments.place_of(offset - 1)
    last = log.segments[place]
    found = await log.work.run(lambda: last.find(offset, last.file.read_at))
    position, end = (last.size, offset) if found is None else (found[0], min(offset, found[1]))
    if end < max(log.recovery_point, log.log_start_offset, log.high_watermark):
        # What is written after the cut is unsynced and uncommitted again, and the start may lie in the batch that
        # goes with it: a restart must not go by the checkpoints of before.
        log.recovery_point = min(log.recovery_point, end)
        log.log_start_offset = min(log.log_start_offset, end)
        log.durable_log_start = min(log.durable_log_start, end)
        log.high_watermark = min(log.high_watermark, end)
        await log.persist_checkpoints()
    dropped = log.segments.replace(place + 1, len(log.segments), [])
    _void(log, dropped)
    last.cut(position)
    log.log_end_offset = end
    log.high_watermark = min(log.high_watermark, end)
    log.epochs.truncate_from_end(end)
    write_epochs = log.epochs_writer()
    start, high_watermark = log.log_start_offset, log.high_watermark
    segments = list(log.segments)

    def cut() -> None:
        # From the end towards the cut, so that a crash in between leaves a log without a hole. Snapshots go first:
        # one that came back would tell of records that were never part of what is written after the cut.
        log.snapshots.remove_after(end)
        for segment in reversed(dropped):
            segment.remove()
        # Before the cut is on the device: segments that came back behind it would be taken for the log's end.
        log.disk.sync_directory(log.directory)
        last.truncate(end, position)
        last.resume()
        last.save(sync=True)()
        write_epochs()

    await log.work.run(cut)
    former = log.producers

    def load() -> Producers:
        times = FileTimes(log.disk, log.clock)
        producers = load_producers(segments, log.snapshots, log.config, start, end, high_watermark, times)
        producers.heard_like(former)
        return producers

    log.producers = await log.work.run(load)
    log.producers.on_high_watermark(high_watermark)


def _void(log: Log, dropped: Iterable[Segment]) -> None:
    """Readers that were promised bytes above the cut do not get them (edge case 29)."""
    log.cuts += 1
    for segment in dropped:
        segment.cut_positions.append(0)


async def restart_at(log: Log, offset: Offset) -> None:
    """Drop everything and go on at `offset`: a follower whose leader no longer has what it lacks (S1.5)."""
    await to_the_end(_restart_undisturbed(log, offset))


async def _restart_undisturbed(log: Log, offset: Offset) -> None:
    async with log.reshaping:
        await log.abandon_cleaning()
        log.being_cut = True
        try:
            await _restart_at(log, offset)
        finally:
            log.being_cut = False


async def _restart_at(log: Log, offset: Offset) -> None:
    # From here on there is nothing to read. A restart must not go by the checkpoints of before: a later log start
    # would take what is written from `offset` on for deleted.
    log.recovery_point = min(log.recovery_point, offset)
    log.log_start_offset = log.log_end_offset = offset
    log.durable_log_start = min(log.durable_log_start, offset)
    log.high_watermark = offset
    await log.persist_checkpoints()
    dropped, now_ms = list(log.segments), log.clock.wall_ms()
    _void(log, dropped)

    def clear() -> Segment:
        log.snapshots.remove_all()
        for segment in reversed(dropped):
            segment.remove()
        fresh = Segment.new(log.disk, log.directory, offset, log.config, now_ms)
        log.disk.sync_directory(log.directory)
        return fresh

    fresh = await log.work.run(clear)
    log.segments = Segments([fresh])
    log.producers.clear()
    log.recovery_point = offset
    log.epochs.clear()
    await log.work.run(log.epochs_writer())


def advance_log_start(log: Log, offset: Offset) -> bool:
    """Records below `offset` are gone for readers; their segments go with the next `delete_expired`.

    False if the log already starts there or later. It cannot pass the high watermark.
    """
    if offset > log.high_watermark:
        raise OffsetOutOfRangeError(
            f"cannot delete up to offset {offset} of {log.partition}: its high watermark is {log.high_watermark}"
        )
    if offset <= log.log_start_offset:
        return False
    log.log_start_offset = offset
    log.producers.on_log_start(offset)
    if log.epochs.truncate_from_start(offset):
        log.work.start(log.epochs_writer())
    return True


async def delete_expired(log: Log) -> int:
    """Take the segments out of the log that retention or the log start has passed; how many they were."""
    async with log.reshaping:
        await log.abandon_cleaning()
        return await _delete_expired(log)


async def _delete_expired(log: Log) -> int:
    segments = list(log.segments)
    log_end = log.log_end_offset
    ends = [segment.base_offset for segment in segments[1:]] + [log_end]

    def look() -> list[SegmentFacts]:
        return [
            SegmentFacts(end, segment.size, segment.largest_timestamp())
            for segment, end in zip(segments, ends, strict=True)
        ]

    facts = await log.work.beside(look)
    count = expired_count(
        facts,
        log.config,
        now_ms=log.clock.wall_ms(),
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
    )
    if count == len(segments):
        if segments[-1].size == 0 or log.log_end_offset != log_end:
            count -= 1  # it is empty, or has got records since that were not looked at
        elif segments[-1] is log.segments.active:
            log.roll()
    if count > 0:
        _take_out(log, count)
    return count


def _take_out(log: Log, count: int) -> None:
    """The oldest segments leave the list now, their names soon, their bytes after file.delete.delay.ms."""
    dropped = log.segments.replace(0, count, [])
    first = log.segments[0].base_offset
    advance_log_start(log, max(first, log.log_start_offset))
    delete_later(log, dropped, lambda: log.snapshots.remove_before(first))


def delete_later(
    log: Log,
    dropped: list[Segment],
    also: Callable[[], None] = lambda: None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Rename to .deleted, so that a crash finishes it; remove when readers that hold regions are done with them.

    `also` is done with the renaming, by a disk thread, `then` after it, on the loop.
    """
    loop = asyncio.get_running_loop()

    def mark() -> None:
        for segment in dropped:
            segment.move_to(DELETED)
        also()

    def remove() -> None:
        for segment in dropped:
            segment.remove()

    def schedule() -> None:
        then()
        loop.call_later(log.config.file_delete_delay_ms / 1000, lambda: log.work.start(remove))

    log.work.start(mark, schedule)
