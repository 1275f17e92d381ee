"""A log directory: many logs, one fate."""

import asyncio
import random
import uuid
from typing import Any

import pytest

from tests.kits.logkit import FixedClock, batch, read_all, values, with_config
from tidelog.errors import StorageError
from tidelog.log import cleaner
from tidelog.log.checkpoints import read_offset_checkpoint
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.log import Log
from tidelog.log.meta import CleanShutdown, read_clean_shutdown, read_topic_id
from tidelog.log.trimming import advance_log_start, truncate_to
from tidelog.ports import Disk
from tidelog.types import TopicPartition

A, B = TopicPartition("a.b_c-d", 0), TopicPartition("a.b_c-d", 1)
BOTH = ("delete", "compact")
CONFIG = with_config(retention_ms=-1)


async def opened(disk: Disk, path: str, clock: FixedClock | None = None, **config: object) -> LogDirectory:
    settings = with_config(**({"retention_ms": -1} | config))
    return await LogDirectory.open(disk, clock or FixedClock(), random.Random(1), path, lambda topic: settings)


async def fill(directory: LogDirectory) -> None:
    for number, partition in enumerate((A, B)):
        log = await directory.create(partition)
        for i in range(20 + number):
            log.append_as_leader(batch([b"%d" % i]), 0)
        log.high_watermark = 10 + number


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_everything_comes_back(disk: Disk, directory: str, clean: bool):
    async def scenario() -> None:
        first = await opened(disk, directory)
        assert first.was_clean is False
        await fill(first)
        advance_log_start(first.logs[A], 7)
        if clean:
            await first.close(broker_epoch=42)
        else:
            await first.checkpoint()
            first._lock.release()
        assert read_clean_shutdown(disk, directory) == (CleanShutdown(42) if clean else None)
        again = await opened(disk, directory)
        assert again.was_clean is clean
        assert list(again.logs) == [A, B]
        assert [log.high_watermark for log in again.logs.values()] == [10, 11]
        assert [log.log_start_offset for log in again.logs.values()] == [7, 0]
        assert [len(await read_all(log)) for log in again.logs.values()] == [13, 21]
        third = asyncio.ensure_future(opened(disk, directory))
        with pytest.raises(StorageError, match="another broker"):
            await third

    asyncio.run(scenario())


def test_the_mark_of_a_clean_close_is_gone_once_logs_can_be_written(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        await first.close()
        assert disk.exists(f"{directory}/.kafka_cleanshutdown")
        again = await opened(disk, directory)
        assert not disk.exists(f"{directory}/.kafka_cleanshutdown")
        await again.close()

    asyncio.run(scenario())


def test_a_deleted_partition_is_gone_at_once_and_after_a_crash(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory, file_delete_delay_ms=3_600_000)
        await fill(first)
        await first.delete(A)
        assert list(first.logs) == [B]
        hidden = [name for name in disk.list(directory) if name.endswith("-delete")]
        assert len(hidden) == 1
        assert hidden[0].startswith("a.b_c-d-0.")
        fresh = await first.create(A)
        assert fresh.log_end_offset == 0
        first._lock.release()
        again = await opened(disk, directory)
        assert list(again.logs) == [A, B]
        while [name for name in disk.list(directory) if name.endswith("-delete")]:
            await disk.submit(f"{directory}/{hidden[0]}", lambda: None)

    asyncio.run(scenario())


def test_a_topic_id_is_written_with_the_partition(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        topic_id = uuid.UUID(int=77).bytes
        log = await first.create(A, topic_id)
        assert read_topic_id(disk, log.directory) == topic_id
        await first.close()

    asyncio.run(scenario())


def test_a_truncation_lowers_the_recovery_point_on_disk_before_anything_else(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        await fill(first)
        log = first.logs[A]
        await log.flush()
        await first.checkpoint()
        path = f"{directory}/recovery-point-offset-checkpoint"
        assert read_offset_checkpoint(disk, path)[A] == 20
        await truncate_to(log, 5)
        assert read_offset_checkpoint(disk, path)[A] == 5

    asyncio.run(scenario())


def test_checkpoints_asked_for_together_are_written_together(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        await fill(first)
        written = 0
        write_file = disk.write_file

        def counting(path: str, data: bytes) -> None:
            nonlocal written
            written += path.endswith("recovery-point-offset-checkpoint")
            write_file(path, data)

        disk.write_file = counting  # type: ignore[method-assign, assignment]
        await asyncio.gather(*(first.checkpoint() for _ in range(50)))
        assert 1 <= written <= 2

    asyncio.run(scenario())


def test_housekeeping_deletes_flushes_expires_and_cleans(disk: Disk, directory: str):
    async def scenario() -> None:
        clock = FixedClock()
        first = await opened(disk, directory, clock, flush_ms=10, cleanup_policy=BOTH, delete_retention_ms=0)
        log = await first.create(A)
        for i in range(40):
            log.append_as_leader(batch([b"%d" % i], keys=[b"key"], timestamp=clock.now_ms), 0)
        log.high_watermark = log.log_end_offset
        clock.now_ms += 11
        chores = Housekeeping(first, random.Random(1), Intervals())
        assert log.recovery_point < log.log_end_offset
        await chores.flush_overdue()
        assert log.recovery_point == log.log_end_offset
        assert await chores.clean_dirtiest() is True
        assert first.cleaner_offsets[A] == log.segments.active.base_offset
        assert read_offset_checkpoint(disk, f"{directory}/cleaner-offset-checkpoint") == first.cleaner_offsets
        assert await chores.clean_dirtiest() is False
        assert len(await values(log)) < 10

    asyncio.run(scenario())


def test_a_log_whose_cleaning_fails_keeps_none_of_the_others_dirty(
    disk: Disk, directory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Whatever the reason. The dirtiest log would be chosen again each time."""
    started = cleaner._clean

    async def failing(log: Log, *given: Any) -> Any:
        if log.partition == A:
            raise ValueError("a reason that was not foreseen")
        return await started(log, *given)

    async def scenario() -> None:
        clock = FixedClock()
        first = await opened(disk, directory, clock, flush_ms=10, cleanup_policy=BOTH, delete_retention_ms=0)
        for partition, count in ((A, 80), (B, 40)):
            log = await first.create(partition)
            for i in range(count):
                log.append_as_leader(batch([b"%d" % i], keys=[b"key"], timestamp=clock.now_ms), 0)
            log.high_watermark = log.log_end_offset
            await log.flush()
        monkeypatch.setattr(cleaner, "_clean", failing)
        chores = Housekeeping(first, random.Random(1), Intervals())
        for _ in range(4):
            await chores.clean_dirtiest()
        assert list(first.cleaner_offsets) == [B]
        assert "a reason that was not foreseen" in caplog.text

    asyncio.run(scenario())


def test_housekeeping_runs_by_itself(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        await fill(first)
        chores = Housekeeping(first, random.Random(1), Intervals(checkpoint_ms=1))
        chores.start()
        path = f"{directory}/replication-offset-checkpoint"
        async with asyncio.timeout(10):
            while not disk.exists(path):
                await asyncio.sleep(0)
        await chores.stop()
        assert read_offset_checkpoint(disk, path) == {A: 10, B: 11}

    asyncio.run(scenario())


def test_a_failing_disk_takes_the_whole_directory_offline(disk: Disk, directory: str):
    async def scenario() -> None:
        told: list[StorageError] = []
        first = await LogDirectory.open(
            disk, FixedClock(), random.Random(1), directory, lambda topic: CONFIG, on_offline=told.append
        )
        await fill(first)
        log = first.logs[A]
        segment = log.segments.active
        write_at = type(segment.file).write_at

        def broken(file: object, position: int, buffers: list[bytes]) -> None:
            write_at(file, position, [bytes(buffers[0])[:5]])  # type: ignore[arg-type]
            raise StorageError("no space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(segment.file), "write_at", broken)
            with pytest.raises(StorageError, match="no space"):
                log.append_as_leader(batch([b"lost"]), 0)
        assert disk.file_size(segment.file.path) == segment.size
        assert log.log_end_offset == 20
        assert len(await read_all(log)) == 20
        assert [str(failure) for failure in told] == ["no space left on device"]
        with pytest.raises(StorageError, match="offline"):
            first.logs[B].append_as_leader(batch([b"refused"]), 0)
        await first.close()
        assert not disk.exists(f"{directory}/.kafka_cleanshutdown")

    asyncio.run(scenario())


def test_so_does_one_on_which_a_log_cannot_be_made(disk: Disk, directory: str):
    """As Kafka has it. A replica that is only missing would be missing until somebody asks for it again."""

    async def scenario() -> None:
        told: list[StorageError] = []
        first = await LogDirectory.open(
            disk, FixedClock(), random.Random(1), directory, lambda topic: CONFIG, on_offline=told.append
        )
        await fill(first)

        def broken(disk: Disk, path: str) -> None:
            raise StorageError("no space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(disk), "make_directory", broken)
            with pytest.raises(StorageError, match="no space"):
                await first.create(TopicPartition("new", 0))
        assert [str(failure) for failure in told] == ["no space left on device"]
        assert first.logs[A].failed is told[0]

    asyncio.run(scenario())


def test_a_partition_asked_for_twice_at_once_is_one_log(disk: Disk, directory: str):
    async def scenario() -> None:
        first = await opened(disk, directory)
        one, two = await asyncio.gather(first.create(A), first.create(A))
        assert one is two is first.logs[A]
        await first.close()

    asyncio.run(scenario())
