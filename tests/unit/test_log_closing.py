"""A log that is closed while something else happens to it."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kits.logkit import PARTITION, batch, idempotent, open_log, values, with_config
from tidelog.lab.world import SimHost, World
from tidelog.log import names
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping
from tidelog.log.index import OffsetIndex
from tidelog.log.trimming import advance_log_start, truncate_to


async def opened(host: SimHost) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: with_config())


def test_a_log_that_is_closed_during_a_cut_forgets_the_producers_of_what_was_cut() -> None:
    """Seed 421: a clean stop during a cut left a snapshot with batches that were cut off. When their producer sent them
    again they were called duplicates, and acknowledged without being written."""

    async def story(host: SimHost) -> None:
        host.disk.work.delay_ms = (5.0, 50.0)
        log = await open_log(host.disk, "data", with_config(segment_bytes=10**6))
        for sequence in range(5):
            log.append_as_leader(idempotent(sequence), 0)
        cutting = asyncio.ensure_future(truncate_to(log, 2))
        while log.log_end_offset > 2:
            await asyncio.sleep(0.001)
        assert log.being_cut
        await log.close()
        await cutting
        again = await open_log(host.disk, "data", clean=True, recovery_point=2)
        for sequence in range(5):
            assert again.append_as_leader(idempotent(sequence), 1).duplicate is (sequence < 2)
        assert await values(again) == [b"0", b"1", b"2", b"3", b"4"]

    with World(1) as world:
        host = world.host("b1")
        world.run(story(host))


@pytest.mark.parametrize("way", ["retention", "DeleteRecords"])
def test_producers_of_deleted_records_are_known_after_a_clean_stop(way: str) -> None:
    """Their retries were written again: the snapshot at the log start was passed over."""

    async def story(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION)
        for sequence in range(3):
            log.append_as_leader(idempotent(sequence), 0)
        log.high_watermark = log.log_end_offset
        if way == "retention":
            assert await Housekeeping(directory, host.random).enforce_retention() == 1
        else:
            advance_log_start(log, log.high_watermark)
        await directory.close()
        log = (await opened(host)).logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        assert log.append_as_leader(idempotent(0), 1).duplicate
        assert not log.append_as_leader(idempotent(3), 1).duplicate

    with World(1) as world:
        world.run(story(world.host("b1")))


@pytest.mark.parametrize("way", ["cut", "kill"])
def test_producers_before_a_log_start_within_a_segment_are_known_after_a_cut_or_a_kill(way: str) -> None:
    """All batches since the snapshot are still there, so it is as good as one at the log start."""

    async def story(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION)
        log.append_as_leader(idempotent(0, producer_id=7), 0)
        log.roll()
        for sequence in range(4):
            log.append_as_leader(idempotent(sequence, producer_id=8), 0)
        await log.flush()
        log.high_watermark = 4
        advance_log_start(log, 3)
        await directory.checkpoint()
        assert [segment.base_offset for segment in log.segments] == [0, 1]
        if way == "cut":
            await truncate_to(log, 4)
        else:
            host.disk.kill()
            log = (await opened(host)).logs[PARTITION]
        assert log.append_as_leader(idempotent(0, producer_id=7), 1).duplicate

    with World(1) as world:
        world.run(story(world.host("b1")))


@pytest.mark.parametrize("byte", [b"x", b"\0"])
def test_an_index_that_points_into_a_batch_is_made_anew_after_a_clean_stop(byte: bytes) -> None:
    """Zeros pass for a message set of Kafka's first format, which is no batch either."""

    async def story(host: SimHost) -> None:
        lost: list[str] = []
        log = await open_log(host.disk, "data")
        for value in (byte * 1000, b"y" * 1000):
            log.append_as_leader(batch([value]), 0)
        segment = log.segments.active
        await log.close()
        host.disk.write_file(segment.path(names.OFFSET_INDEX), OffsetIndex.entry.pack(1, 700))
        again = await open_log(host.disk, "data", clean=True, recovery_point=2, on_loss=lambda: lost.append("records"))
        assert (again.log_end_offset, lost) == (2, [])
        assert await values(again) == [byte * 1000, b"y" * 1000]

    with World(1) as world:
        world.run(story(world.host("b1")))


@pytest.mark.parametrize("seed", range(6))
def test_a_directory_that_is_closed_waits_for_a_log_that_becomes_a_stray(seed: int) -> None:
    """If it did not wait, it would mark itself clean, and nobody would notice that a power loss took that log's end."""

    async def story(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION, b"1" * 16)
        for number in range(10):
            log.append_as_leader(batch([b"%d" % number]), 0)
        for _ in range(12):
            host.disk.submit(log.directory, lambda: None)  # the disk thread is busy
        moving = asyncio.ensure_future(directory.set_aside(PARTITION))
        await asyncio.sleep(0)
        moving.cancel()
        await directory.close()
        host.disk.kill()
        host.disk.power_loss(random.Random(seed))
        again = await opened(host)
        assert again.was_clean
        assert PARTITION not in again.logs
        assert (await again.create(PARTITION, b"1" * 16)).log_end_offset == 10

    with World(1) as world:
        world.run(story(world.host("b1")))
