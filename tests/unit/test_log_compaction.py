"""Compaction on real files: the last record of each key stays, and nothing that was aborted comes back."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from tests.kits.logkit import FixedClock, batch, idempotent, marker, open_log, read_all, with_config
from tidelog.host.disk import RealDisk
from tidelog.log.cleaner import Cleaned, UncleanableError, clean, plan_cleaning
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, delete_expired, restart_at, truncate_to
from tidelog.ports import Disk
from tidelog.records.header import headers

COMPACTED = with_config(cleanup_policy=("compact",), delete_retention_ms=1000)


async def compact(log: Log, first_dirty: int = 0, **options: int) -> Cleaned | None:
    log.high_watermark = log.log_end_offset
    log.roll()
    await log.flush()
    return await clean(log, await plan_cleaning(log, first_dirty), random.Random(1), **options)


async def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in await read_all(log)]


def keyed(number: int, keys: int = 5) -> bytes:
    return batch([b"v%d" % number, b"w%d" % number], keys=[b"k%d" % (number % keys), b"k%d" % (number % keys + 1)])


def test_the_last_record_of_each_key_stays_at_its_offset(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(60):
            log.append_as_leader(keyed(number), number // 20)
        everything = await pairs(log)
        done = await compact(log)
        assert done is not None
        assert done.bytes_after < done.bytes_before
        assert done.end_offset == log.log_end_offset == 120
        latest = {key: (offset, key, value) for offset, key, value in everything}
        assert await pairs(log) == sorted(latest.values())
        assert [entry.epoch for entry in log.epochs.entries] == [0, 1, 2]
        for again in (await open_log(disk, directory, COMPACTED), await reopened_cleanly(log)):
            assert await pairs(again) == sorted(latest.values())
            assert (again.log_start_offset, again.log_end_offset) == (0, 120)

    async def reopened_cleanly(log: Log) -> Log:
        await log.close()
        return await open_log(disk, directory, COMPACTED, clean=True)

    asyncio.run(scenario())


def snapshot_offsets(log: Log) -> list[int]:
    return [int(name.removesuffix(".snapshot")) for name in log.disk.list(log.directory) if name.endswith(".snapshot")]


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_snapshots_of_segments_that_were_merged_go_with_them(disk: Disk, directory: str, rounds: int):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        first_dirty = most = 0
        for _ in range(rounds):
            for number in range(60):
                log.append_as_leader(keyed(number), 0)
            most = max(most, len(log.segments))
            done = await compact(log, first_dirty)
            assert done is not None
            first_dirty = done.end_offset
            await log.work.run(lambda: None)
        bases = [segment.base_offset for segment in log.segments]
        assert most > 10 > len(bases)
        assert snapshot_offsets(log) == bases[1:], "one where each segment begins, and no others"
        everything = await pairs(log)
        for clean_close in (False, True):
            if clean_close:
                await log.close()
            again = await open_log(disk, directory, COMPACTED, clean=clean_close)
            assert await pairs(again) == everything
            assert again.log_end_offset == log.log_end_offset

    asyncio.run(scenario())


def test_after_retention_and_truncation_no_snapshot_is_left_without_its_segment(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, with_config())
        for number in range(60):
            log.append_as_leader(keyed(number), 0)
        await log.flush()
        bases = [segment.base_offset for segment in log.segments]
        assert snapshot_offsets(log) == bases[1:]
        log.high_watermark = bases[4] + 1
        advance_log_start(log, bases[4] + 1)
        assert await delete_expired(log) == 4
        await log.work.run(lambda: None)
        assert snapshot_offsets(log) == bases[4:]
        assert await truncate_to(log, bases[8] + 2)
        assert snapshot_offsets(log) == bases[4:9]
        assert await truncate_to(log, bases[8]), "exactly where a segment began: what its snapshot knows is still right"
        assert snapshot_offsets(log) == bases[4:9]
        await restart_at(log, 500)
        assert snapshot_offsets(log) == []

    asyncio.run(scenario())


def test_a_second_cleaning_goes_on_where_the_first_ended(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(40):
            log.append_as_leader(keyed(number), 0)
        first = await compact(log)
        assert first is not None
        for number in range(40, 70):
            log.append_as_leader(keyed(number, 3), 0)
        everything = await pairs(log)
        assert await compact(log, first.end_offset) is not None
        assert await pairs(log) == sorted({key: (offset, key, value) for offset, key, value in everything}.values())

    asyncio.run(scenario())


def test_tombstones_go_after_delete_retention_and_not_before(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock()
        log = await open_log(disk, directory, COMPACTED, clock=clock)
        log.append_as_leader(batch([b"old"], keys=[b"a"]), 0)
        log.append_as_leader(batch([None], keys=[b"a"]), 0)
        log.append_as_leader(batch([b"kept"], keys=[b"b"]), 0)
        log.append_as_leader(batch([b"end"], keys=[b"z"]), 0)
        await compact(log)
        assert [(key, value) for _, key, value in await pairs(log)] == [(b"a", None), (b"b", b"kept"), (b"z", b"end")]
        clock.now_ms += 999
        await compact(log)
        assert (b"a", None) in [(key, value) for _, key, value in await pairs(log)]
        clock.now_ms += 1
        log.append_as_leader(batch([b"more"], keys=[b"y"]), 0)
        await compact(log)
        assert [key for _, key, _ in await pairs(log)] == [b"b", b"z", b"y"]

    asyncio.run(scenario())


def test_a_small_buffer_cleans_in_several_passes(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(200):
            log.append_as_leader(batch([b"1"], keys=[b"key-%d" % (number % 100)]), 0)
        everything = await pairs(log)
        passes, first_dirty = 0, 0
        while first_dirty < log.log_end_offset:
            done = await compact(log, first_dirty, buffer_bytes=24 * 40)
            assert done is not None
            assert done.end_offset > first_dirty
            first_dirty, passes = done.end_offset, passes + 1
        assert passes > 1
        assert await pairs(log) == sorted({key: (offset, key, value) for offset, key, value in everything}.values())

    asyncio.run(scenario())


def test_edge_23_readers_reach_the_end_when_the_last_batches_are_compacted_away(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock()
        log = await open_log(disk, directory, COMPACTED, clock=clock)
        log.append_as_leader(batch([b"kept"], keys=[b"b"]), 0)
        log.append_as_leader(idempotent(0, producer_id=3, transactional=True, codec=0), 0)
        log.append_as_leader(marker(3, abort=True), 0)
        for _ in range(4):
            await compact(log)
            clock.now_ms += 2000
        region = await log.read(1, 1 << 20)
        assert region.size > 0
        assert [header.next_offset for _, header in headers(region.read())][-1] == log.log_end_offset == 3
        assert [value for _, _, value in await pairs(log)] == [b"kept"]

    asyncio.run(scenario())


def test_edge_24_aborted_records_neither_come_back_nor_push_committed_ones_out(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock()
        log = await open_log(disk, directory, COMPACTED, clock=clock)

        def write(producer: int, sequence: int, value: bytes) -> None:
            log.append_as_leader(
                batch(
                    [value],
                    keys=[b"a"],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                ),
                0,
            )

        write(1, 0, b"committed")
        log.append_as_leader(marker(1, abort=False), 0)
        write(2, 0, b"aborted")
        log.append_as_leader(marker(2, abort=True), 0)
        log.append_as_leader(batch([b"end"], keys=[b"z"]), 0)
        for _ in range(3):
            await compact(log)
            visible = await read_committed(log)
            assert visible == [b"committed", b"end"]
            reopened = await open_log(disk, directory, COMPACTED, clock=clock)
            assert await read_committed(reopened) == visible
            clock.now_ms += 2000
            log.append_as_leader(batch([b"end"], keys=[b"z"]), 0)

    async def read_committed(log: Log) -> list[bytes | None]:
        aborted = await log.aborted_transactions(0, log.log_end_offset)
        dropped = {offset for txn in aborted for offset in range(txn.first_offset, txn.last_offset)}
        return [value for offset, _, value in await pairs(log) if offset not in dropped]

    asyncio.run(scenario())


def test_a_producers_last_sequence_survives_compaction(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for sequence in range(3):
            log.append_as_leader(batch([b"x"], keys=[b"a"], producer_id=9, producer_epoch=0, base_sequence=sequence), 0)
        log.append_as_leader(batch([b"newer"], keys=[b"a"]), 0)
        await compact(log)
        for name in disk.list(log.directory):
            if name.endswith(".snapshot"):
                disk.remove(f"{log.directory}/{name}")
        again = await open_log(disk, directory, COMPACTED)
        assert again.producers.states[9].last_sequence == 2
        assert [value for _, _, value in await pairs(again)] == [b"newer"]

    asyncio.run(scenario())


def test_a_log_that_is_cut_during_its_cleaning_is_left_as_it_is(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(40):
            log.append_as_leader(keyed(number), 0)
        log.high_watermark = log.log_end_offset
        log.roll()
        await log.flush()
        cleaning = asyncio.ensure_future(clean(log, await plan_cleaning(log, 0), random.Random(1)))
        await asyncio.sleep(0)
        await truncate_to(log, 10)
        assert await cleaning is None
        assert [offset for offset, _, _ in await pairs(log)] == list(range(10))
        await log.work.run(lambda: None)
        assert not [name for name in disk.list(log.directory) if name.endswith((".cleaned", ".swap"))]

    asyncio.run(scenario())


def test_what_is_not_stable_is_not_cleaned(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(40):
            log.append_as_leader(keyed(number), 0)
        log.high_watermark = 20
        await log.flush()
        plan = await plan_cleaning(log, 0)
        assert 0 < plan.end_offset <= 20

    asyncio.run(scenario())


@pytest.mark.parametrize("stop_after", range(1, 8))
def test_a_crash_at_any_step_of_the_swap_loses_nothing(disk: Disk, directory: str, stop_after: int):
    """Renames are counted; after some of them the process is gone. What is on disk must open to the same records."""

    class Gone(BaseException):
        pass

    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        for number in range(60):
            log.append_as_leader(keyed(number), 0)
        everything = await pairs(log)
        wanted = sorted({key: (offset, key, value) for offset, key, value in everything}.values())
        renames = 0
        rename = disk.rename

        def counting(source: str, target: str) -> None:
            nonlocal renames
            if source.endswith((".cleaned", ".swap")) or target.endswith(".deleted"):
                renames += 1
                if renames > stop_after:
                    raise Gone
            rename(source, target)

        disk.rename = counting  # type: ignore[method-assign]
        try:
            await compact(log)
            await log.work.run(lambda: None)
        except Gone:
            pass
        disk.rename = rename  # type: ignore[method-assign]
        again = await open_log(disk, directory, COMPACTED)
        found = await pairs(again)
        assert sorted({key: (offset, key, value) for offset, key, value in found}.values()) == wanted
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        leftovers = [name for name in disk.list(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert leftovers == []

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(scenario())
    loop.close()


def test_compact_and_delete_together(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock(1_700_000_000_500)
        config = with_config(cleanup_policy=("delete", "compact"), retention_ms=100, delete_retention_ms=1000)
        log = await open_log(disk, directory, config, clock=clock)
        for number in range(40):
            log.append_as_leader(keyed(number), 0)
        assert await compact(log) is not None
        assert await delete_expired(log) > 0
        assert log.log_start_offset == log.log_end_offset

    asyncio.run(scenario())


def test_a_batch_larger_than_the_buffer_is_said_to_be_uncleanable(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        log.append_as_leader(batch([b"v"] * 30, keys=[b"%d" % i for i in range(30)]), 0)
        with pytest.raises(UncleanableError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
            await compact(log, buffer_bytes=24 * 10)
        assert len(await pairs(log)) == 30

    asyncio.run(scenario())


def test_a_cleaned_segment_can_be_read_while_it_gets_its_name(disk: Disk, directory: str, monkeypatch):
    """Its files are renamed one after the other by a disk thread: none of them may be looked for meanwhile."""
    halfway, read = threading.Event(), threading.Event()
    rename = RealDisk.rename

    def slow(self: RealDisk, source: str, target: str) -> None:
        if source.endswith(".timeindex.swap"):
            halfway.set()
            assert read.wait(30)
        rename(self, source, target)

    async def scenario() -> None:
        config = replace(COMPACTED, segment_bytes=1 << 20)
        log = await open_log(disk, directory, config)
        for number in range(60):
            log.append_as_leader(keyed(number), 0)
        latest = {key: (offset, key, value) for offset, key, value in await pairs(log)}
        monkeypatch.setattr(RealDisk, "rename", slow)
        assert await compact(log) is not None
        await disk.submit("test", halfway.wait)
        assert await pairs(log) == sorted(latest.values())
        read.set()
        await log.work.run(lambda: None)
        assert not any(segment.indexes_loaded for segment in log.segments.sealed), "then they need no memory"
        assert await pairs(log) == sorted(latest.values())
        await log.close()

    asyncio.run(scenario())
