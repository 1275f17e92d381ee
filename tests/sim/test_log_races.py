"""Things that happen to a log at the same time: each of these once lost, exposed or broke something."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.kits.logkit import PARTITION, batch, idempotent, open_log, read_all, values, with_config
from tidelog.config.topic import TopicConfig
from tidelog.errors import StorageError, TidelogError
from tidelog.lab.world import SimHost, World
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, delete_expired, restart_at, truncate_to
from tidelog.records.header import headers
from tidelog.types import TopicPartition

KEPT = with_config(retention_ms=-1, file_delete_delay_ms=50)
COMPACTED = with_config(cleanup_policy=("compact",), delete_retention_ms=1000, min_cleanable_dirty_ratio=0.0)


def in_world(story: Callable[[SimHost], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """As a process of one host, whose disk finds nothing in the page cache and takes 1 ms for everything."""
    with World(seed) as world:
        host = world.host("b1")
        host.disk.cold_chance = 1.0
        host.disk.work.delay_ms = (1.0, 1.0)
        world.run(story(host))


async def opened(host: SimHost, config: TopicConfig = KEPT) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: config)


def fill(log: Log, count: int, *, timestamp: int = 1_700_000_000_000) -> Log:
    for _ in range(count):
        log.append_as_leader(batch([b"%d" % log.log_end_offset], timestamp=timestamp), 0)
    log.high_watermark = log.log_end_offset
    return log


def fill_keys(log: Log, count: int, keys: int = 4) -> None:
    for number in range(count):
        log.append_as_leader(batch([b"%d" % number], keys=[b"%d" % (number % keys)]), 0)
    log.high_watermark = log.log_end_offset


# Reading while others write or cut


def test_a_cold_read_does_not_see_what_was_appended_after_it_began():
    """It was asked for what is below the high watermark; what comes later is not committed."""

    async def story(host: SimHost) -> None:
        log = fill(await open_log(host.disk, "data", with_config(segment_bytes=10**6)), 3)
        reading = asyncio.ensure_future(log.read(0, 10**6, log.high_watermark))
        await asyncio.sleep(0)
        log.append_as_leader(batch([b"uncommitted"]), 0)
        data = await log.bytes_of(await reading)
        assert [header.base_offset for _, header in headers(data)] == [0, 1, 2]

    in_world(story)


@pytest.mark.parametrize("cut", [lambda log: truncate_to(log, 1), lambda log: restart_at(log, 100)])
def test_who_reads_while_the_log_is_cut_hears_of_it_in_an_orderly_way(
    cut: Callable[[Log], Coroutine[Any, Any, object]],
):
    async def story(host: SimHost) -> None:
        log = fill(await open_log(host.disk, "data"), 40)
        await log.flush()

        async def read_again_and_again() -> None:
            while True:
                for offset in (0, 20, 39):
                    try:
                        await log.bytes_of(await log.read(offset, 100))
                        await log.find_offset(1_700_000_000_000)
                    except TidelogError:
                        pass
                await asyncio.sleep(0.0003)

        readers = [asyncio.ensure_future(read_again_and_again()) for _ in range(4)]
        await asyncio.sleep(0.005)
        await cut(log)
        await asyncio.sleep(0.02)
        assert [reader.exception() for reader in readers if reader.done()] == []
        for reader in readers:
            reader.cancel()

    in_world(story)


# Truncation and its neighbours


def test_a_truncation_whose_caller_is_cancelled_is_finished_before_anything_is_appended():
    """A follower's fetcher is cancelled when it becomes the leader."""

    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", with_config(segment_bytes=10**6))
        for sequence in range(4):
            log.append_as_leader(idempotent(sequence), 0)
        cutting = asyncio.ensure_future(truncate_to(log, 2))
        await asyncio.sleep(0.0025)
        cutting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cutting
        assert log.log_end_offset == 2
        appended = log.append_as_leader(idempotent(2), 1)
        assert (appended.base_offset, appended.duplicate) == (2, False)
        await log.flush()
        assert await values(log) == [b"0", b"1", b"2"]

    in_world(story)


@pytest.mark.parametrize("delay_s", [0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003])
def test_retention_during_a_truncation_does_not_keep_what_is_cut(delay_s: float):
    async def story(host: SimHost) -> None:
        log = await (await opened(host)).create(PARTITION)
        fill(log, 60)
        advance_log_start(log, 20)
        cutting = asyncio.ensure_future(truncate_to(log, 31))
        deleting = asyncio.ensure_future(delete_later_by(delay_s, log))
        await cutting
        await deleting
        assert log.log_end_offset == 31
        fill(log, 20)
        assert [record.offset for record in await read_all(log)] == list(range(20, 51))

    async def delete_later_by(delay_s: float, log: Log) -> None:
        await asyncio.sleep(delay_s)
        await delete_expired(log)

    for seed in range(5):
        in_world(story, seed)


def test_retention_spares_what_was_appended_while_it_looked():
    config = with_config(retention_ms=1000, segment_bytes=400, segment_ms=10**14)

    async def story(host: SimHost) -> None:
        log = fill(await open_log(host.disk, "data", config, clock=host.clock), 2, timestamp=1000)
        deleting = asyncio.ensure_future(delete_expired(log))
        await asyncio.sleep(0.00095)  # it has looked, and has not yet heard what it saw
        for _ in range(4):
            log.append_as_leader(batch([b"new"], timestamp=host.clock.wall_ms()), 0)
        assert len(log.segments) == 2
        await deleting
        assert (await values(log))[-4:] == [b"new"] * 4

    in_world(story)


# Compaction and its neighbours


def test_a_plan_from_before_a_truncation_is_not_carried_out():
    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", COMPACTED)
        fill_keys(log, 30)
        await log.flush()
        what = await plan_cleaning(log, 0)
        await truncate_to(log, 2)
        assert what.end_offset > log.segments.active.base_offset
        cleaning = asyncio.ensure_future(clean(log, what, random.Random(1)))
        for number in range(20):
            log.append_as_leader(batch([b"after"], keys=[b"after-%d" % number]), 1)
            await asyncio.sleep(0.001)
        await cleaning
        await log.flush()
        assert (await values(log)).count(b"after") == 20
        again = await open_log(host.disk, "data", COMPACTED, recovery_point=log.recovery_point)
        assert (await values(again)).count(b"after") == 20

    in_world(story)


@pytest.mark.parametrize("cut", [lambda log: truncate_to(log, 7), delete_expired], ids=["truncate", "retention"])
@pytest.mark.parametrize("delay_s", [0.0002, 0.0012, 0.0022])
def test_no_cleaning_starts_while_the_log_is_cut(cut: Callable[[Log], Coroutine[Any, Any, object]], delay_s: float):
    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", COMPACTED)
        fill_keys(log, 40)
        await log.flush()
        advance_log_start(log, 5)
        what = await plan_cleaning(log, 5)
        cutting = asyncio.ensure_future(cut(log))
        await asyncio.sleep(delay_s)
        await clean(log, what, random.Random(1))
        await cutting
        end = log.log_end_offset
        for _ in range(10):
            log.append_as_leader(batch([b"after"], keys=[b"%d" % log.log_end_offset]), 0)
        await log.flush()
        assert [record.offset for record in await read_all(log) if record.offset >= end] == list(range(end, end + 10))

    in_world(story)


def test_a_cleaning_begins_only_when_the_files_of_the_last_one_have_their_names():
    """A restart would take its .swap for incomplete if it met an earlier .cleaned beside it."""

    async def story(host: SimHost) -> None:
        log = await open_log(host.disk, "data", COMPACTED)
        fill_keys(log, 60, keys=50)
        await log.flush()
        names: list[str] = []

        class Watching(random.Random):
            def randbytes(self, n: int) -> bytes:
                names.extend(host.disk.list(log.directory))
                return super().randbytes(n)

        assert await clean(log, await plan_cleaning(log, 0), random.Random(1)) is not None
        for _ in range(20):
            log.work.start(lambda: None)  # the disk is busy
        assert await clean(log, await plan_cleaning(log, 0), Watching(1)) is not None
        assert names
        assert not [name for name in names if name.endswith(".swap")]

    in_world(story)


def test_a_cleaning_that_is_cancelled_does_not_leave_its_result_half_in_place():
    async def story(host: SimHost) -> None:
        for steps in range(1, 40):
            log = await open_log(host.disk, f"data{steps}", COMPACTED)
            fill_keys(log, 40)
            await log.flush()
            cleaning = asyncio.ensure_future(clean(log, await plan_cleaning(log, 0), random.Random(1)))
            await asyncio.sleep(steps * 0.0005)
            cleaning.cancel()
            await asyncio.gather(cleaning, return_exceptions=True)
            await log.flush()
            assert not [name for name in host.disk.list(log.directory) if name.endswith(".swap")]

    in_world(story)


# What comes after a kill


def test_the_recovery_point_passes_only_what_this_life_has_synced():
    """A killed process left segments in the page cache; the next one rolls, and then the power fails."""

    async def first(host: SimHost) -> None:
        fill(await open_log(host.disk, "data", KEPT), 30)
        host.disk.sync_directory("data/orders-0")
        host.disk.sync_directory("data")
        host.disk.sync_directory("")

    async def second(host: SimHost) -> int:
        log = fill(await open_log(host.disk, "data", KEPT), 6)
        log.roll()
        await asyncio.sleep(0.1)
        await log.flush()
        return log.recovery_point

    async def third(host: SimHost, recovery_point: int) -> None:
        log = await open_log(host.disk, "data", KEPT, recovery_point=recovery_point)
        assert log.log_end_offset == recovery_point == 36
        assert await values(log) == [b"%d" % number for number in range(36)]

    for seed in range(10):
        with World(seed) as world:
            host = world.host("b1")

            async def story(host: SimHost = host) -> None:
                await host.start(first(host))
                recovery_point = await host.start(second(host))
                host.power_loss()
                await host.start(third(host, recovery_point))

            world.run(story())


def test_a_flush_during_a_cut_does_not_write_the_index_of_before():
    """The index file got entries back that point into the middle of a batch, and its records could not be read."""

    async def story(host: SimHost) -> None:
        directory = await opened(host, with_config(segment_bytes=10**6, flush_ms=1000, index_interval_bytes=4096))
        log = await directory.create(PARTITION)
        for size in (4000, 200, 200, 200):
            log.append_as_leader(batch([b"x" * size]), 0)
        old = log.segments.active
        assert len(old.offsets) == 1
        await asyncio.sleep(1.5)
        host.disk.work.delay_ms = (5.0, 50.0)
        cutting = asyncio.ensure_future(truncate_to(log, 1))
        while log.log_end_offset > 1:
            await asyncio.sleep(0.001)
        assert log.being_cut
        assert log.flush_due
        await Housekeeping(directory, host.random).flush_overdue()
        await cutting
        log.append_as_leader(batch([b"y" * 150] * 10), 1)
        await log.flush()
        log.roll()
        while not old.sealed:
            await asyncio.sleep(0.001)
        old.release_indexes()
        for offset in range(1, 11):
            found = await log.bytes_of(await log.read(offset, 10**6))
            assert [(header.base_offset, header.last_offset) for _, header in headers(found)] == [(1, 10)]

    in_world(story)


# Deleting and creating again


def test_checkpoints_name_a_log_until_it_has_become_a_stray():
    """A kill in between leaves it here, and without its checkpoints deleted records would be back."""

    async def first(host: SimHost) -> None:
        directory = await opened(host)
        log = fill(await directory.create(PARTITION), 60)
        advance_log_start(log, 50)
        await log.flush()
        await directory.checkpoint()
        going = asyncio.ensure_future(directory.set_aside(PARTITION))
        await asyncio.sleep(0)  # it has begun
        assert PARTITION not in directory.logs
        await directory.checkpoint()
        assert not going.done()
        host.kill()

    async def second(host: SimHost) -> None:
        log = (await opened(host)).logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (50, 60)

    async def story(host: SimHost) -> None:
        host.start(first(host))
        await host.ended()
        await host.start(second(host))

    in_world(story)


def test_a_new_log_is_not_judged_by_the_checkpoints_of_a_deleted_one():
    async def first(host: SimHost) -> None:
        directory = await opened(host)
        log = fill(await directory.create(PARTITION), 60)
        advance_log_start(log, 50)
        await log.flush()
        await directory.checkpoint()
        await directory.delete(PARTITION)
        fill(await directory.create(PARTITION), 20).high_watermark = 5

    async def second(host: SimHost) -> None:
        log = (await opened(host)).logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (0, 20)
        assert log.high_watermark <= 5

    async def story(host: SimHost) -> None:
        await host.start(first(host))
        host.kill()
        await host.start(second(host))

    in_world(story)


def test_a_log_created_while_its_predecessor_is_being_deleted_is_a_new_one():
    async def story(host: SimHost) -> None:
        directory = await opened(host, COMPACTED)
        log = await directory.create(PARTITION)
        fill_keys(log, 40)
        await log.flush()
        cleaning = asyncio.ensure_future(clean(log, await plan_cleaning(log, 0), random.Random(1)))
        await asyncio.sleep(0.005)
        assert log.cleaning is not None
        deleting = asyncio.ensure_future(directory.delete(PARTITION))
        await asyncio.sleep(0)
        again = await directory.create(PARTITION)
        await asyncio.gather(deleting, cleaning)
        assert again.log_end_offset == 0
        fill(again, 3)
        await again.flush()
        assert host.disk.exists(f"data/{PARTITION}/{0:020d}.log")

    in_world(story)


def test_a_deleted_log_writes_nothing_into_the_directory_of_the_next_one():
    config = with_config(retention_ms=-1, segment_bytes=10**6, index_interval_bytes=1)

    async def story(host: SimHost) -> None:
        directory = await opened(host, config)
        old = fill(await directory.create(PARTITION), 30)
        await directory.delete(PARTITION)
        new = fill(await directory.create(PARTITION), 3)
        await new.flush()
        index = host.disk.read_file(f"data/{PARTITION}/{0:020d}.index")
        with pytest.raises(StorageError, match="deleted"):
            await old.flush()
        with pytest.raises(StorageError, match="deleted"):
            fill(old, 1)
        old.work.start(lambda: host.disk.write_file(f"data/{PARTITION}/leader-epoch-checkpoint", b"wrong"))
        await asyncio.sleep(0.1)
        assert host.disk.read_file(f"data/{PARTITION}/{0:020d}.index") == index
        assert b"wrong" not in host.disk.read_file(f"data/{PARTITION}/leader-epoch-checkpoint")
        assert directory.offline is None

    in_world(story)


def test_chores_go_on_after_a_topic_was_deleted_under_them_or_one_of_them_failed():
    config = with_config(retention_ms=1000, segment_ms=10**14)

    async def story(host: SimHost) -> None:
        directory = await opened(host, config)
        chores = Housekeeping(directory, host.random, Intervals(3, 1, 1, 1, 1))
        chores.start()
        kept = TopicPartition("kept", 0)
        broken = await directory.create(TopicPartition("broken", 0))
        broken.segments.active.largest_timestamp = lambda: 1 // 0  # type: ignore[method-assign,assignment]
        for number in range(30):
            partition = TopicPartition("brief", number)
            fill(await directory.create(partition), 20, timestamp=1000)
            await asyncio.sleep(0.0007 * number)
            await directory.delete(partition)
        await directory.delete(broken.partition)
        log = fill(await directory.create(kept), 20, timestamp=1000)
        await asyncio.sleep(0.1)
        assert log.log_start_offset == 20
        assert directory.offline is None
        await chores.stop()

    in_world(story)


# Starting over at another offset


def test_what_is_written_after_a_restart_further_down_survives_a_kill():
    """The checkpoints of before knew a later log start."""

    async def first(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION)
        await restart_at(log, 100)
        fill(log, 60)
        advance_log_start(log, 150)
        await directory.checkpoint()
        await truncate_to(log, 50)
        log.append_as_follower(batch([b"kept"] * 5, base_offset=50, partition_leader_epoch=1))

    async def second(host: SimHost) -> None:
        log = (await opened(host)).logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (50, 55)
        assert log.high_watermark == 50

    async def story(host: SimHost) -> None:
        await host.start(first(host))
        host.kill()
        await host.start(second(host))

    in_world(story)
