"""Too many open files: this passes, so nothing is lost for it, no log directory and no session."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import PARTITION, FixedClock, batch, idempotent, marker, open_log, values, with_config
from tidelog.coordination import local_machine
from tidelog.coordination.embedded import EmbeddedCoordination
from tidelog.coordination.machine import NoRoomError
from tidelog.errors import ErrorCode, NoDescriptorError, StorageError
from tidelog.host.clock import SystemClock
from tidelog.host.disk import RealDisk
from tidelog.host.files import DescriptorPool, RealFile
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.log import Log
from tidelog.log.producers import AppendOrigin
from tidelog.log.segment import Segment
from tidelog.log.transaction_index import AbortedTxn, TransactionIndex

PATIENCE_S = 20.0


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk(max_open=4, num_io_threads=2)
    yield disk
    disk.close()


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    """They close descriptors of theirs, which other tests count."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("coordination-"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Until the end of the block no file can be opened, but those that are open can be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 5, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def test_the_pool_gives_up_files_that_are_not_in_use(disk: RealDisk, tmp_path: Path) -> None:
    async def story() -> None:
        files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(3)]
        for file in files:
            file.write_at(0, [b"before"])
        with no_descriptors():
            other = disk.open(f"{tmp_path}/other", create=True)
            other.write_at(0, [b"during"])
            assert other.read_at(0, 10) == b"during"
            assert disk.read_file(f"{tmp_path}/0") == b"before"
            disk.write_file(f"{tmp_path}/whole", b"during")
            disk.rename(str(tmp_path), f"{tmp_path}-2")
            for file in files:
                assert file.read_at(0, 10) == b"before"

    asyncio.run(story())


def test_the_loop_is_told_and_a_disk_thread_waits(disk: RealDisk, tmp_path: Path) -> None:
    async def story() -> None:
        file = disk.open(f"{tmp_path}/file", create=True)
        began = threading.Event()

        def write() -> bytes:
            began.set()
            file.write_at(0, [b"late"])
            disk.sync_directory(str(tmp_path))
            return file.read_at(0, 10)

        await disk.submit("any", lambda: None)  # the threads are there
        with no_descriptors():
            with pytest.raises(NoDescriptorError, match="ulimit -n"):
                file.write_at(0, [b"now"])
            with pytest.raises(NoDescriptorError):
                disk.sync_directory(str(tmp_path))
            assert file.read_cached(0, 10) is None
            writing = disk.submit("other", write)
            assert began.wait(PATIENCE_S)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(writing), 0.1)
        assert await asyncio.wait_for(writing, PATIENCE_S) == b"late"

    asyncio.run(story())


def test_an_append_that_finds_no_descriptor_changes_nothing(disk: RealDisk, tmp_path: Path) -> None:
    failures: list[StorageError] = []

    async def story() -> None:
        log = await open_log(disk, str(tmp_path), on_failure=failures.append)
        for number in range(3):
            log.append_as_leader(batch([b"%d" % number]), 0)
        await log.flush()
        with no_descriptors():
            disk._pool._give_up_some()
            taken = [os.dup(0) for _ in range(1)]
            with pytest.raises(NoDescriptorError):
                log.append_as_leader(batch([b"refused"]), 0)
            with pytest.raises(NoDescriptorError):
                log.roll()
            for descriptor in taken:
                os.close(descriptor)
        assert log.failed is None
        log.append_as_leader(batch([b"3"]), 0)
        log.roll()
        log.append_as_leader(batch([b"4"]), 0)
        assert await values(log) == [b"%d" % number for number in range(5)]
        await log.close()

    asyncio.run(story())
    assert failures == []


@contextmanager
def others_take_each_descriptor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files can be made, but then another thread or process is faster, whenever one is to be opened."""

    def refuse(pool: DescriptorPool, file: RealFile) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), file.path)

    with monkeypatch.context() as patched:
        patched.setattr(DescriptorPool, "_open_pinned", refuse)
        patched.setattr(DescriptorPool, "_give_up_some", lambda pool: False)
        yield


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("leftover", [b"", b"of an earlier life"], ids=["new", "leftover"])
def test_a_roll_that_gets_no_descriptor_half_way_leaves_no_segment_among_later_offsets(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: bytes, clean: bool
) -> None:
    """The next start would end the log at the empty segment, or pass over what the one before it holds."""
    failures: list[StorageError] = []
    losses: list[bool] = []
    config = with_config(segment_bytes=1_000)

    async def story() -> None:
        log = await open_log(disk, str(tmp_path), config, on_failure=failures.append)
        for number in range(5):
            log.append_as_leader(batch([b"%d" % number * 50]), 0)
        await log.flush()
        path = Path(log.directory) / f"{5:020}.log"
        if leftover:
            path.write_bytes(leftover)
        with others_take_each_descriptor(monkeypatch), pytest.raises(NoDescriptorError):
            log.append_as_leader(batch([b"refused" * 100]), 0)
        assert path.exists() == (not leftover), "it is the active segment, or it is gone"
        for number in range(5, 8):
            log.append_as_leader(batch([b"%d" % number]), 0)
        log.append_as_leader(batch([b"8" * 700]), 0)
        log.append_as_leader(batch([b"9" * 700]), 0)
        await log.close()
        again = await open_log(
            disk,
            str(tmp_path),
            config,
            clean=clean,
            recovery_point=10 if clean else 5,
            on_loss=lambda: losses.append(True),
        )
        assert [value[:1] for value in await values(again)] == [b"%d" % number for number in range(10)]
        assert [(await again.read(offset, 10_000)).base_offset for offset in range(10)] == list(range(10))
        await again.close()

    asyncio.run(story())
    assert failures == []
    assert losses == []


def test_batches_that_were_written_but_not_noted_are_not_written_again(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of an aborted transaction makes a file beside the segment. Without a descriptor for that the batches
    are in the file and not in the log."""
    failures: list[StorageError] = []

    def refuse(index: TransactionIndex, entry: AbortedTxn) -> None:
        raise NoDescriptorError("too many open files")

    async def story() -> None:
        log = await open_log(disk, str(tmp_path), on_failure=failures.append)
        log.append_as_leader(idempotent(0, transactional=True), 0)
        monkeypatch.setattr(TransactionIndex, "append", refuse)
        for _ in range(2):
            with pytest.raises(StorageError) as refused:
                log.append_as_leader(marker(7, abort=True), 0, origin=AppendOrigin.COORDINATOR)
            assert not isinstance(refused.value, NoDescriptorError)
        assert log.failed is not None
        await log.close()

    asyncio.run(story())
    assert len(failures) == 1


def test_retention_goes_on_after_a_roll_that_got_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        clock = FixedClock()
        directory = await LogDirectory.open(
            RealDisk(), clock, random.Random(1), str(tmp_path), lambda topic: with_config(retention_ms=1_000)
        )
        log = await directory.create(PARTITION)
        log.append_as_leader(batch([b"old"]), 0)
        await log.flush()
        log.high_watermark = log.log_end_offset
        clock.now_ms += 10_000
        housekeeping = Housekeeping(directory, random.Random(1), Intervals(retention_check_ms=5))
        async with asyncio.timeout(PATIENCE_S):
            with monkeypatch.context() as patched:
                patched.setattr(Log, "roll", refuse_roll)
                housekeeping.start()
                while "is tried again" not in caplog.text:
                    await asyncio.sleep(0.002)
            while log.log_start_offset == 0:
                await asyncio.sleep(0.002)
        await housekeeping.stop()
        await directory.close()

    def refuse_roll(log: Log, to_hold: int | None = None) -> Segment:
        raise NoDescriptorError("too many open files")

    asyncio.run(story())


def test_a_log_that_cannot_be_shortened_keeps_none_of_the_others_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll = Log.roll

    def refuse_roll(log: Log, to_hold: int | None = None) -> Segment:
        if log.partition == PARTITION:
            raise NoDescriptorError("too many open files")
        return roll(log, to_hold)

    async def story() -> None:
        clock = FixedClock()
        directory = await LogDirectory.open(
            RealDisk(), clock, random.Random(1), str(tmp_path), lambda topic: with_config(retention_ms=1_000)
        )
        logs = [await directory.create(PARTITION._replace(partition=number)) for number in range(3)]
        assert logs[0].partition == PARTITION
        for log in logs:
            log.append_as_leader(batch([b"old"]), 0)
            await log.flush()
            log.high_watermark = log.log_end_offset
        clock.now_ms += 10_000
        monkeypatch.setattr(Log, "roll", refuse_roll)
        assert await Housekeeping(directory, random.Random(1)).enforce_retention() == 2
        assert [log.log_start_offset for log in logs] == [0, 1, 1]
        await directory.close()

    asyncio.run(story())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_produce_that_finds_no_descriptor_is_refused_and_may_come_again(number: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert (await kit.produce(batch([b"a"]))).error_code == 0
        kit.ports.disk.fail_next("open", count=None, error=number)
        for _ in range(3):
            refused = await kit.produce(batch([b"b"]))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        kit.ports.disk.mend()
        assert (await kit.produce(batch([b"c"]))).error_code == 0
        assert await kit.values() == [b"a", b"c"]
        assert not kit.broker.failed.done()
        assert not kit.broker.storage.is_partly_offline

    run(story)


def test_no_session_ends_for_want_of_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal goes over to its next generation, which it has to open, when there are descriptors again."""

    async def story() -> None:
        store = EmbeddedCoordination(str(tmp_path), SystemClock())
        session = await store.connect(10_000)
        await session.create("/a", b"0")
        with no_descriptors():
            monkeypatch.setattr(local_machine.LocalMachine, "seal_bytes", 0)
            async with asyncio.timeout(PATIENCE_S):
                with suppress(NoRoomError):
                    while True:
                        await session.set("/a", b"1" * 1000)
            assert session.is_current()
        monkeypatch.undo()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await session.set("/a", b"3")
                    break
                except NoRoomError:
                    await asyncio.sleep(0.01)
        assert (await session.get("/a")).data == b"3"
        await session.close()

    asyncio.run(story())


def test_connecting_to_the_store_without_descriptors_may_be_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        store = EmbeddedCoordination(str(tmp_path), SystemClock())
        with no_descriptors(), pytest.raises(NoRoomError, match="ulimit -n"):
            await store.connect(10_000)
        session = await store.connect(10_000)
        await session.close()

    asyncio.run(story())
