"""Regions that were promised to a reader, and what becomes of them when the log is cut (edge case 29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.kits.logkit import batch, open_log, with_config
from tidelog.broker.regions import LogRegion
from tidelog.lab.world import SimHost, World
from tidelog.log.log import Log
from tidelog.log.trimming import restart_at, truncate_to
from tidelog.net.outbox import RegionGoneError
from tidelog.records.batch import decode
from tidelog.types import Buffer

ONE_SEGMENT = with_config(segment_bytes=10**6)
NO_SOCKET = -1


def in_world(story: Callable[[SimHost], Coroutine[Any, Any, None]], *, cold: bool = False) -> None:
    with World(1) as world:
        host = world.host("b1")
        host.disk.cold_chance = 1.0 if cold else 0.0
        host.disk.work.delay_ms = (1.0, 1.0)
        world.run(story(host))


def write(log: Log, name: str, count: int, epoch: int) -> None:
    """Batches of one size, whatever the name."""
    for _ in range(count):
        log.append_as_leader(batch([b"%s%d" % (name.encode(), log.log_end_offset)]), epoch)


def values_of(data: Buffer) -> list[bytes | None]:
    return [record.value for record in decode(bytes(data))]


async def promised(log: Log, offset: int, end: int) -> LogRegion:
    return LogRegion(log, await log.read(offset, 10**6, end))


def test_edge_29_a_region_above_a_cut_is_void_and_one_below_it_is_not() -> None:
    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", ONE_SEGMENT)
        write(log, "a", 6, epoch=0)
        below, across, above = await promised(log, 0, 2), await promised(log, 1, 4), await promised(log, 4, 6)
        assert await truncate_to(log, 2)
        write(log, "b", 6, epoch=1)
        data = below.read_now(0, len(below))
        assert data is not None
        assert values_of(data) == [b"a0", b"a1"]
        assert values_of(await below.read(0, len(below))) == [b"a0", b"a1"]
        for region in (across, above):
            with pytest.raises(RegionGoneError):
                region.read_now(0, len(region))
            with pytest.raises(RegionGoneError):
                region.send_now(NO_SOCKET, 0, len(region))
            with pytest.raises(RegionGoneError):
                await region.read(0, len(region))
        fresh = await promised(log, 1, 4)
        assert values_of(await fresh.read(0, len(fresh))) == [b"a1", b"b2", b"b3"]

    in_world(story)


def test_edge_29_a_region_is_void_from_the_moment_of_the_cut() -> None:
    """The file changes later, on a disk thread: what is read in between is not sent either."""

    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", ONE_SEGMENT)
        write(log, "a", 4, epoch=0)
        region = await promised(log, 2, 4)
        cutting = asyncio.ensure_future(truncate_to(log, 2))
        while log.log_end_offset == 4:
            assert region.read_now(0, len(region)) is not None
            await asyncio.sleep(0.0001)
        with pytest.raises(RegionGoneError):
            region.read_now(0, len(region))
        await cutting

    in_world(story)


def test_edge_29_a_read_that_was_under_way_during_the_cut_is_not_sent() -> None:
    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", ONE_SEGMENT)
        write(log, "a", 4, epoch=0)
        region = await promised(log, 2, 4)
        host.disk.work.delay_ms = (50.0, 50.0)
        reading = asyncio.ensure_future(region.read(0, len(region)))
        await asyncio.sleep(0.001)
        host.disk.work.delay_ms = (0.1, 0.1)
        await truncate_to(log, 2)
        write(log, "b", 2, epoch=1)
        assert not reading.done()
        with pytest.raises(RegionGoneError):
            await reading

    in_world(story, cold=True)


def test_edge_29_what_a_disk_thread_looked_for_during_a_cut_is_looked_for_again() -> None:
    """It would find a place of before the cut, where other batches stand by now."""

    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", ONE_SEGMENT)
        write(log, "a", 4, epoch=0)
        host.disk.work.delay_ms = (100.0, 100.0)
        looking = asyncio.ensure_future(log.read(1, 10**6))
        await asyncio.sleep(0.092)  # it has found the place, and the loop does not know yet
        host.disk.work.delay_ms = (0.1, 0.1)
        await truncate_to(log, 2)
        write(log, "bbbb", 1, epoch=1)
        assert not looking.done()
        region = LogRegion(log, await looking)
        assert values_of(await region.read(0, len(region))) == [b"a1", b"bbbb2"]

    in_world(story, cold=True)


def test_edge_29_regions_of_segments_that_are_dropped_are_void_at_once() -> None:
    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data")
        write(log, "a", 20, epoch=0)
        assert len(log.segments) > 2
        region = await promised(log, 18, 20)
        cutting = asyncio.ensure_future(restart_at(log, 18))
        while log.log_start_offset != 18:
            await asyncio.sleep(0.0001)
        await asyncio.sleep(0.0001)
        with pytest.raises(RegionGoneError):
            region.read_now(0, len(region))
        await cutting
        write(log, "b", 2, epoch=1)
        with pytest.raises(RegionGoneError):
            await region.read(0, len(region))

    in_world(story)
