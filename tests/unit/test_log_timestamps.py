"""Offsets by time, as ListOffsets asks for them."""

import asyncio

import pytest

from tests.kits.logkit import batch, open_log, with_config
from tidelog.log.log import Log
from tidelog.log.reading import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, FoundTimestamp
from tidelog.log.trimming import advance_log_start
from tidelog.ports import Disk
from tidelog.records.header import Codec

TIMES = [100, 110, 90, 300, 120, 130, 250, 140, 300, 150]
"""Of batches of two records, the second a millisecond later: out of order, as clocks are."""


async def filled(disk: Disk, directory: str, codec: Codec = Codec.NONE) -> Log:
    log = await open_log(disk, directory, with_config(segment_bytes=250, index_interval_bytes=1))
    for number, timestamp in enumerate(TIMES):
        log.append_as_leader(batch([b"a", b"b"], timestamp=timestamp, codec=codec), number // 4)
    assert len(log.segments) > 2
    return log


def first_at_or_after(timestamp: int, start: int = 0) -> tuple[int, int] | None:
    records = [(time + i, 2 * number + i) for number, time in enumerate(TIMES) for i in (0, 1)]
    return next(((time, offset) for time, offset in records if time >= timestamp and offset >= start), None)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_first_record_at_or_after_any_time(disk: Disk, directory: str, codec: Codec):
    async def scenario() -> None:
        log = await filled(disk, directory, codec)
        for timestamp in range(80, 310):
            found = await log.find_offset(timestamp)
            assert (found and (found.timestamp, found.offset)) == first_at_or_after(timestamp)
            if found:
                assert found.leader_epoch == found.offset // 8

    asyncio.run(scenario())


def test_records_below_the_log_start_do_not_count(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        log.high_watermark = log.log_end_offset
        for start in range(20):
            advance_log_start(log, start)
            for timestamp in (95, 105, 125, 300, 301):
                found = await log.find_offset(timestamp)
                assert (found and (found.timestamp, found.offset)) == first_at_or_after(timestamp, start)

    asyncio.run(scenario())


def test_nothing_at_or_above_the_end_offset_is_found(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        assert await log.find_offset(300, 6) is None
        assert (await log.find_offset(300, 7)) == FoundTimestamp(300, 6, 0)
        assert await log.find_offset(MAX_TIMESTAMP, 7) is None

    asyncio.run(scenario())


def test_the_special_times(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        log.high_watermark = 18
        advance_log_start(log, 3)
        assert await log.find_offset(LATEST) == FoundTimestamp(-1, 20, 2)
        assert await log.find_offset(LATEST, log.high_watermark) == FoundTimestamp(-1, 18, 2)
        assert await log.find_offset(EARLIEST) == FoundTimestamp(-1, 3, 0)
        assert await log.find_offset(EARLIEST_LOCAL) == FoundTimestamp(-1, 3, 0)
        assert await log.find_offset(MAX_TIMESTAMP) == FoundTimestamp(301, 7, 0)

    asyncio.run(scenario())


def test_an_empty_log_has_an_end_and_no_times(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        assert await log.find_offset(LATEST) == FoundTimestamp(-1, 0, -1)
        assert await log.find_offset(MAX_TIMESTAMP) is None
        assert await log.find_offset(0) is None

    asyncio.run(scenario())


def test_times_are_found_after_a_reopen_too(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        await log.close()
        again = await open_log(disk, directory, log.config, clean=True)
        for timestamp in (95, 105, 125, 260, 300):
            found = await again.find_offset(timestamp)
            assert found
            assert (found.timestamp, found.offset) == first_at_or_after(timestamp)
        assert await again.find_offset(MAX_TIMESTAMP) == FoundTimestamp(301, 7, 0)

    asyncio.run(scenario())


def test_the_largest_time_is_looked_for_from_the_log_start_on(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        log.high_watermark = log.log_end_offset
        records = [(time + i, 2 * number + i) for number, time in enumerate(TIMES) for i in (0, 1)]
        for start in range(20):
            advance_log_start(log, start)
            time, offset = max(records[start:], key=lambda record: (record[0], -record[1]))
            assert await log.find_offset(MAX_TIMESTAMP) == FoundTimestamp(time, offset, offset // 8)

    asyncio.run(scenario())
