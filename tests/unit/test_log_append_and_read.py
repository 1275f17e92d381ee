"""Appending to a log and reading from it."""

import asyncio

import pytest

from tests.kits.logkit import SMALL, FixedClock, batch, open_log, read_all, values, whole_batches_end, with_config
from tidelog.errors import CorruptBatchError, OffsetOutOfRangeError, RecordTooLargeError
from tidelog.host.files import RealFile
from tidelog.log.index_memory import IndexMemory
from tidelog.log.log import Appended, Log
from tidelog.log.segment import NotCachedError
from tidelog.ports import Disk
from tidelog.records.header import read_header


async def filled(disk: Disk, directory: str, batches: int = 40, per_batch: int = 3) -> Log:
    log = await open_log(disk, directory)
    for number in range(batches):
        log.append_as_leader(batch([b"%d.%d" % (number, i) for i in range(per_batch)], timestamp=1000 + number), 0)
    return log


def test_a_leader_gives_offsets_and_its_epoch(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        assert log.append_as_leader(batch([b"a", b"b"], timestamp=5), 3) == Appended(0, 1, 6)
        assert log.append_as_leader(batch([b"c"], timestamp=4), 3) == Appended(2, 2, 4)
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)
        header = read_header((await log.read(2, 1)).read())
        assert (header.base_offset, header.partition_leader_epoch) == (2, 3)
        assert await values(log) == [b"a", b"b", b"c"]

    asyncio.run(scenario())


def test_reads_begin_with_the_batch_that_holds_the_offset_wherever_it_is(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        assert len(log.segments) > 3
        for offset in range(log.log_end_offset):
            region = await log.read(offset, 10_000)
            assert region.base_offset == offset - offset % 3
            assert read_header(region.read()).base_offset == region.base_offset
            assert [record.offset for record in await read_all(log, offset)] == list(range(offset, 120))

    asyncio.run(scenario())


def test_a_read_returns_the_first_batch_even_above_the_limit_and_else_obeys_it(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        one = read_header((await log.read(0, 1)).read()).size_bytes
        assert (await log.read(0, 1)).size == one
        assert (await log.read(0, 1, min_one=False)).size == 0
        assert (await log.read(0, one, min_one=False)).size == one
        assert (await log.read(0, one + 5)).size == one + 5

    asyncio.run(scenario())


def test_nothing_at_or_above_the_end_offset_is_returned(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        for end in range(0, 121, 3):
            for offset in (0, 57, 119):
                region = await log.read(offset, 1 << 20, end)
                if offset >= end:
                    assert region.size == 0
                else:
                    assert whole_batches_end(region.read()) <= end

    asyncio.run(scenario())


def test_an_end_offset_inside_a_batch_hides_the_whole_batch(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(disk, directory)
        assert (await log.read(3, 1 << 20, 5)).size == 0
        assert (await log.read(0, 1 << 20, 5)).size == (await log.read(0, 1 << 20, 3)).size > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("offset", [-1, 121, 10**12])
def test_offsets_outside_the_log_are_out_of_range(disk: Disk, directory: str, offset: int):
    async def scenario() -> None:
        log = await filled(disk, directory)
        assert (await log.read(120, 100)).size == 0
        with pytest.raises(OffsetOutOfRangeError, match=r"0\.\.120"):
            await log.read(offset, 100)

    asyncio.run(scenario())


def test_a_batch_above_the_limit_is_refused(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, with_config(max_message_bytes=200))
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes = 200"):
            log.append_as_leader(batch([bytes(300)]), 0)
        assert log.log_end_offset == 0

    asyncio.run(scenario())


def test_a_damaged_batch_is_refused_and_leaves_nothing(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        damaged = bytearray(batch())
        damaged[-1] ^= 1
        with pytest.raises(CorruptBatchError):
            log.append_as_leader(damaged, 0)
        assert (log.log_end_offset, log.size_bytes) == (0, 0)

    asyncio.run(scenario())


def test_a_follower_copies_bytes_and_leaves_a_torn_tail_for_the_next_fetch(disk: Disk, directory: str):
    async def scenario() -> None:
        leader = await filled(disk, directory + "/leader")
        follower = await open_log(disk, directory + "/follower")
        while follower.log_end_offset < leader.log_end_offset:
            data = (await leader.read(follower.log_end_offset, 777)).read()
            assert 0 < follower.append_as_follower(data) <= len(data)
        assert await read_all(follower) == await read_all(leader)
        assert follower.epochs.entries == leader.epochs.entries

    asyncio.run(scenario())


def test_a_follower_refuses_what_does_not_follow(disk: Disk, directory: str):
    async def scenario() -> None:
        leader = await filled(disk, directory + "/leader")
        follower = await open_log(disk, directory + "/follower")
        data = (await leader.read(0, 500)).read()
        follower.append_as_follower(data)
        with pytest.raises(CorruptBatchError, match="does not follow"):
            follower.append_as_follower(data)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("config", "timestamps", "segments"),
    [
        (with_config(segment_bytes=300), [0] * 9, 3),
        (with_config(segment_ms=100), [0, 50, 100, 101, 150, 202], 3),
        (with_config(segment_ms=100), [-1, -1], 1),
        (with_config(segment_bytes=5000, segment_index_bytes=48, index_interval_bytes=1), [0] * 9, 2),
        (SMALL, [0] * 5, 1),
    ],
    ids=["by size", "by time, as the records tell it", "without timestamps by the clock", "index full", "no reason"],
)
def test_when_a_segment_rolls(disk: Disk, directory: str, config: object, timestamps: list[int], segments: int):
    async def scenario() -> None:
        log = await open_log(disk, directory, config)  # type: ignore[arg-type]
        for timestamp in timestamps:
            log.append_as_leader(batch([bytes(20)], timestamp=timestamp), 0)
        assert len(log.segments) == segments
        assert len(await read_all(log)) == len(timestamps)

    asyncio.run(scenario())


def test_a_roll_by_the_brokers_clock_when_records_have_no_timestamp(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock()
        log = await open_log(disk, directory, with_config(segment_ms=100), clock=clock)
        log.append_as_leader(batch(timestamp=-1), 0)
        clock.now_ms += 101
        log.append_as_leader(batch(timestamp=-1), 0)
        assert len(log.segments) == 2

    asyncio.run(scenario())


def test_the_indexes_of_sealed_segments_stay_within_their_memory(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, with_config(index_interval_bytes=1), index_memory=IndexMemory(100))
        for number in range(60):
            log.append_as_leader(batch([b"%d" % number]), 0)
        await log.work.run(lambda: None)
        for offset in (*range(60), *range(59, -1, -1)):
            assert (await read_all(log, offset))[0].value == b"%d" % offset
            loaded = sum(segment.index_bytes for segment in log.segments.sealed if segment.indexes_loaded)
            assert loaded <= 100 + 60  # one may be larger than the limit, but not alone

    asyncio.run(scenario())


def test_what_is_not_in_the_page_cache_is_read_by_a_disk_thread(disk: Disk, directory: str, monkeypatch):
    """The kernel may bring an evicted page back before one can look, so the files are told to be cold."""

    async def scenario() -> None:
        log = await filled(disk, directory)
        await log.close()
        log = await open_log(disk, directory, clean=True)
        with monkeypatch.context() as cold:
            cold.setattr(RealFile, "read_cached", lambda *_: None)
            with pytest.raises(NotCachedError):
                log.read_now(0, 100)
            assert len(await read_all(log)) == 120
        assert (await log.read(0, 100)).size > 0

    asyncio.run(scenario())
