"""Cutting a log at its end and at its start."""

import asyncio

import pytest

from tests.kits.logkit import FixedClock, batch, idempotent, open_log, read_all, values, with_config
from tidelog.errors import OffsetOutOfRangeError
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, delete_expired, restart_at, truncate_to
from tidelog.ports import Disk


async def filled(log: Log, batches: int = 40) -> Log:
    for number in range(batches):
        log.append_as_leader(batch([b"%d" % (number * 2 + i) for i in range(2)], timestamp=1000 + number), number // 10)
    log.high_watermark = log.log_end_offset
    return log


@pytest.mark.parametrize("offset", [80, 79, 78, 60, 41, 40, 2, 1, 0])
def test_truncation_cuts_whole_batches_at_any_offset(disk: Disk, directory: str, offset: int):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory))
        end = offset - offset % 2
        assert await truncate_to(log, offset) is (offset < 80)
        assert (log.log_end_offset, log.high_watermark) == (end, end)
        assert [record.offset for record in await read_all(log)] == list(range(end))
        assert all(entry.start_offset < end for entry in log.epochs.entries)
        log.append_as_leader(batch([b"new"]), 9)
        assert await values(log, end) == [b"new"]
        again = await open_log(disk, directory)
        assert [record.offset for record in await read_all(again)] == list(range(end + 1))
        assert again.epochs.entries == log.epochs.entries

    asyncio.run(scenario())


def test_edge_10_truncation_past_the_end_still_cleans_the_epoch_cache(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory), 3)
        log.begin_epoch(5)
        assert log.epochs.latest_epoch == 5
        assert await truncate_to(log, 6) is False
        assert log.epochs.latest_epoch == 0
        reopened = await open_log(disk, directory)
        assert reopened.epochs.latest_epoch == 0

    asyncio.run(scenario())


def test_edge_12_reads_after_a_roll_at_the_high_watermark_expose_nothing_uncommitted(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory), 5)
        committed = log.high_watermark
        log.roll()
        log.append_as_leader(batch([b"uncommitted"]), 0)
        assert (await log.read(committed, 1000, committed)).size == 0
        assert (await log.read(committed, 1000, log.log_end_offset)).size > 0
        assert (await log.read(committed - 1, 1 << 20, committed)).size < (await log.read(0, 1 << 20)).size

    asyncio.run(scenario())


def test_truncation_forgets_producers_of_what_was_cut(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        for sequence in range(20):
            log.append_as_leader(idempotent(sequence), 0)
        await truncate_to(log, 12)
        assert log.producers.states[7].last_sequence == 11
        assert log.append_as_leader(idempotent(12), 0).base_offset == 12
        assert log.append_as_leader(idempotent(11), 0).duplicate

    asyncio.run(scenario())


def test_restart_drops_everything_and_begins_elsewhere(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory))
        await restart_at(log, 1000)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
        assert log.epochs.entries == []
        log.append_as_leader(batch([b"new"]), 1)
        reopened = await open_log(disk, directory)
        assert (reopened.log_start_offset, await values(reopened)) == (1000, [b"new"])

    asyncio.run(scenario())


def test_delete_records_moves_the_start_and_cannot_pass_the_high_watermark(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory, clock=FixedClock(1100)))
        log.high_watermark = 50
        assert advance_log_start(log, 33) is True
        assert advance_log_start(log, 20) is False
        with pytest.raises(OffsetOutOfRangeError, match="high watermark is 50"):
            advance_log_start(log, 51)
        with pytest.raises(OffsetOutOfRangeError):
            await log.read(32, 100)
        assert (await read_all(log))[0].offset == 33
        gone = await delete_expired(log)
        assert gone > 0
        assert log.segments[0].base_offset <= 33 < log.segments[1].base_offset
        assert log.epochs.entries[0].start_offset == 33

    asyncio.run(scenario())


def test_retention_by_time_can_empty_the_log_but_keeps_its_place(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock(1100)
        config = with_config(retention_ms=80)
        log = await filled(await open_log(disk, directory, config, clock=clock))
        assert await delete_expired(log) > 0
        assert 0 < log.log_start_offset < 80
        clock.now_ms = 5000
        await delete_expired(log)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (80, 80, 0)
        log.append_as_leader(batch([b"new"]), 4)
        assert await values(log) == [b"new"]

    asyncio.run(scenario())


def test_retention_by_size_and_the_files_really_go(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await filled(await open_log(disk, directory, with_config(retention_bytes=1500), clock=FixedClock(1100)))
        assert await delete_expired(log) > 0
        assert 1500 <= log.size_bytes < 2000
        await settle(log)
        bases = {segment.base_offset for segment in log.segments}
        on_disk = {int(name[:20]) for name in disk.list(log.directory) if name.endswith((".log", ".index"))}
        assert on_disk == bases
        assert not [name for name in disk.list(log.directory) if "deleted" in name]

    async def settle(log: Log) -> None:
        for _ in range(50):
            await log.work.run(lambda: None)
            if not [name for name in disk.list(log.directory) if "deleted" in name]:
                return

    asyncio.run(scenario())
