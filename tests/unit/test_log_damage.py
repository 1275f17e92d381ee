"""Damage and odd input that a log has to live with."""

import asyncio
import os
import random
import shutil
import struct
import threading

import pytest

from tests.kits.logkit import PARTITION, FixedClock, batch, idempotent, marker, open_log, read_all, values, with_config
from tidelog.errors import CorruptBatchError, StorageError
from tidelog.host.disk import RealDisk
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.directory import LogDirectory
from tidelog.log.trimming import truncate_to
from tidelog.ports import Disk
from tidelog.records.header import seal

COMPACTED = with_config(cleanup_policy=("compact",))


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_damaged_transaction_index_does_not_cost_a_compacted_log_its_tail(disk: Disk, directory: str, closed: bool):
    """Its segments are checked again, and the gaps that compaction left between them are no losses."""

    async def scenario() -> None:
        log = await open_log(disk, directory, COMPACTED)
        log.append_as_leader(idempotent(0, transactional=True), 0)
        log.append_as_leader(marker(7, abort=True), 0)
        for number in range(80):
            # A key that is never written again, and after it enough others that are: gaps at the ends of segments.
            key = b"once-%d" % number if number % 8 == 0 else b"often"
            log.append_as_leader(batch([b"%d" % number], keys=[key]), 0)
        log.high_watermark = log.log_end_offset
        log.roll()
        await log.flush()
        config = with_config(cleanup_policy=("compact",), segment_bytes=700)
        log.config = config
        assert await clean(log, await plan_cleaning(log, 0), random.Random(1)) is not None
        assert len(log.segments) > 2
        expected = [record.offset for record in await read_all(log)]
        point, first = log.recovery_point, log.segments[0].transactions.path
        if closed:
            await log.close()
        else:
            await log.work.run(lambda: None)
        disk.open(first).write_at(0, [struct.pack(">h", 99)])
        for _ in range(2):
            log = await open_log(disk, directory, COMPACTED, clean=closed, recovery_point=point)
            assert [record.offset for record in await read_all(log)] == expected
            assert [(txn.first_offset, txn.last_offset) for txn in await log.aborted_transactions(0, 100)] == [(0, 1)]
            assert log.recovery_point >= point

    asyncio.run(scenario())


def test_a_follower_writes_nothing_of_a_batch_it_cannot_read(disk: Disk, directory: str):
    """A marker without its coordinator epoch, and with a good CRC. What was half taken in would be written twice."""

    async def scenario() -> None:
        log = await open_log(disk, directory)
        bad = batch(
            [b""], keys=[struct.pack(">hh", 0, 0)], producer_id=7, producer_epoch=0, transactional=True, control=True
        )
        seal(bytearray(bad))
        for _ in range(2):
            with pytest.raises(CorruptBatchError, match="coordinator epoch"):
                log.append_as_follower(bad)
        assert (log.size_bytes, log.log_end_offset) == (0, 0)
        log.append_as_follower(batch([b"good"]))
        assert await values(log) == [b"good"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["append", "flush", "roll"])
def test_a_directory_that_was_removed_takes_its_log_offline(tmp_path: object, how: str):
    """Appends would go on into a file that nobody can open again."""

    async def scenario() -> None:
        disk = RealDisk()
        failures: list[StorageError] = []
        log = await open_log(disk, str(tmp_path), with_config(segment_bytes=10**6), on_failure=failures.append)
        log.append_as_leader(batch(), 0)
        await log.flush()
        log.append_as_leader(batch(), 0)
        shutil.rmtree(log.directory)
        if how == "append":
            log.config = with_config(segment_bytes=1)
            with pytest.raises(StorageError):
                log.append_as_leader(batch(), 0)
        elif how == "flush":
            with pytest.raises(StorageError):
                await log.flush()
        else:
            log.work.start(log.epochs_writer())
            with pytest.raises(StorageError):
                await log.flush()
        assert failures
        with pytest.raises(StorageError, match="offline"):
            log.append_as_leader(batch(), 0)
        disk.close()

    asyncio.run(scenario())


def test_what_was_stable_before_a_truncation_is_stable_after_it(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, with_config(segment_bytes=10**6))
        log.append_as_leader(idempotent(0, transactional=True), 0)
        log.append_as_leader(marker(7, abort=False), 0)
        for _ in range(3):
            log.append_as_leader(batch(), 0)
        log.high_watermark = 3
        assert log.last_stable_offset == 3
        await truncate_to(log, 4)
        assert log.last_stable_offset == 3

    asyncio.run(scenario())


def test_a_start_that_is_cut_short_counts_as_a_crash(disk: Disk, directory: str, monkeypatch: pytest.MonkeyPatch):
    async def opened() -> LogDirectory:
        return await LogDirectory.open(disk, FixedClock(), random.Random(1), directory, lambda topic: COMPACTED)

    async def scenario() -> None:
        first = await opened()
        await first.create(PARTITION)
        await first.close()
        with monkeypatch.context() as patch:
            patch.setattr("tidelog.log.log.load", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await opened()
        assert not disk.exists(os.path.join(directory, ".kafka_cleanshutdown"))
        assert (await opened()).was_clean is False

    asyncio.run(scenario())


def test_a_reader_that_loads_an_index_during_a_cut_does_not_bring_the_old_one_back(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
):
    """The segment it reads becomes the active one; with the entries of before, lookups would end inside batches."""

    async def scenario() -> None:
        disk = RealDisk()
        config = with_config(segment_bytes=20_000, index_interval_bytes=1)
        log = await open_log(disk, str(tmp_path), config)
        for number in range(300):
            log.append_as_leader(batch([b"%d" % number]), 0)
        await log.flush()
        segment = log.segments[0]
        segment.release_indexes()
        loaded, go_on = threading.Event(), threading.Event()
        read_file = RealDisk.read_file

        def held(self: RealDisk, path: str) -> bytes:
            data = read_file(self, path)
            if path.endswith(".timeindex") and not loaded.is_set():
                loaded.set()
                go_on.wait()
            return data

        monkeypatch.setattr(RealDisk, "read_file", held)
        reading = asyncio.ensure_future(log.read(5, 100))
        await asyncio.get_running_loop().run_in_executor(None, loaded.wait)
        await truncate_to(log, 20)
        for value in [b"n" * 650] * 25 + [b"z"] * 8:
            log.append_as_leader(batch([value]), 1)
        go_on.set()
        await reading
        assert segment is log.segments.active
        found = {header.last_offset: position for position, header in segment.headers(0, segment.file.read_at)}
        entries = [segment.offsets[slot] for slot in range(len(segment.offsets))]
        assert entries == [(offset, found[offset]) for offset, _ in entries]
        assert entries[-1][0] == log.log_end_offset - 1
        disk.close()

    asyncio.run(scenario())
