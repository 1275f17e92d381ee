"""What survives a crash: the log is opened again without a clean close."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.kits.logkit import PARTITION, batch, idempotent, marker, open_log, read_all, values, with_config
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start
from tidelog.ports import Disk
from tidelog.records.header import headers

ONE_SEGMENT = with_config(segment_bytes=1 << 20)


def state(log: Log) -> tuple[object, ...]:
    """Everything that must be equal before and after."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        list(log.epochs.entries),
        log.producers.snapshot(),
        log.producers.first_unstable_offset,
        [segment.base_offset for segment in log.segments],
        [segment.size for segment in log.segments],
        [segment.max_timestamp for segment in log.segments],
        [segment.transactions.entries() for segment in log.segments],
    )


async def lively(disk: Disk, directory: str) -> Log:
    """Epochs, producers, an aborted, a committed and an open transaction, over several segments."""
    log = await open_log(disk, directory)
    for number in range(30):
        log.append_as_leader(batch([b"%d" % number], timestamp=1_700_000_000_000 + number * 7 % 50), number // 8)
        log.append_as_leader(idempotent(number, producer_id=1), number // 8)
        log.append_as_leader(idempotent(number, producer_id=2, transactional=True), number // 8)
        if number in (10, 20):
            log.append_as_leader(marker(2, abort=number == 10), number // 8)
    log.high_watermark = log.log_end_offset
    return log


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_log_comes_back_as_it_was(disk: Disk, directory: str, clean: bool):
    async def scenario() -> None:
        log = await lively(disk, directory)
        before, records = state(log), await read_all(log)
        if clean:
            await log.close()
        else:
            await log.work.run(lambda: None)
        again = await open_log(disk, directory, clean=clean, high_watermark=log.high_watermark)
        assert state(again) == before
        assert await read_all(again) == records
        assert again.append_as_leader(idempotent(29, producer_id=1), 9).duplicate
        assert again.append_as_leader(idempotent(30, producer_id=1), 9).base_offset == log.log_end_offset
        assert await again.aborted_transactions(0, 1000) == await log.aborted_transactions(0, 1000) != []

    asyncio.run(scenario())


def test_the_file_cut_at_every_byte_of_its_last_batches(disk: Disk, directory: str):
    """Whatever the length of the file, exactly the whole batches in it come back."""

    async def scenario() -> None:
        log = await open_log(disk, directory, ONE_SEGMENT)
        for number in range(12):
            log.append_as_leader(idempotent(number * 2, 2), number // 4)
        await log.flush()
        data = disk.read_file(log.segments.active.file.path)
        ends = [0] + [position + header.size_bytes for position, header in headers(data)]
        assert ends[-1] == len(data)
        for length in range(ends[-4], len(data) + 1):
            whole = max(end for end in ends if end <= length)
            path = crashed(log, directory, f"cut-{length}", length)
            again = await open_log(disk, path, ONE_SEGMENT)
            assert again.size_bytes == disk.file_size(again.segments.active.file.path) == whole
            assert again.log_end_offset == ends.index(whole) * 2
            assert again.producers.states[7].last_sequence == again.log_end_offset - 1
            assert again.epochs.latest_epoch == (ends.index(whole) - 1) // 4
            again.append_as_leader(idempotent(again.log_end_offset), 9)
            assert len(await read_all(again)) == again.log_end_offset
            await again.work.run(lambda: None)
            shutil.rmtree(path)

    def crashed(log: Log, directory: str, name: str, length: int) -> str:
        target = Path(directory) / name
        shutil.copytree(log.directory, target / str(PARTITION))
        with open(target / str(PARTITION) / Path(log.segments.active.file.path).name, "r+b") as file:
            file.truncate(length)
        return str(target)

    asyncio.run(scenario())


def test_a_flipped_bit_anywhere_in_the_last_batches_ends_the_log_there(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, ONE_SEGMENT)
        for number in range(6):
            log.append_as_leader(batch([b"%d" % number]), 0)
        await log.flush()
        path = Path(log.segments.active.file.path)
        data = path.read_bytes()
        starts = [position for position, _ in headers(data)]
        for byte in range(starts[-2], len(data)):
            # The CRC covers neither base offset nor leader epoch: the leader sets them after the producer sealed.
            if byte - max(start for start in starts if start <= byte) in (*range(8), *range(12, 16)):
                continue
            damaged = bytearray(data)
            damaged[byte] ^= 0x40
            path.write_bytes(damaged)
            again = await open_log(disk, directory, ONE_SEGMENT)
            assert again.log_end_offset == (4 if byte < starts[-1] else 5), byte
            again.segments.active.close()

    asyncio.run(scenario())


def test_damage_below_the_recovery_point_is_not_looked_for_and_above_it_takes_later_segments(
    disk: Disk, directory: str
):
    async def scenario() -> None:
        log = await lively(disk, directory)
        await log.flush()
        third = log.segments[2]
        with open(third.file.path, "r+b") as file:
            file.seek(third.size - 1)
            file.write(b"\xff")
        trusting = await open_log(disk, directory, recovery_point=log.segments[3].base_offset)
        assert trusting.log_end_offset == log.log_end_offset
        checking = await open_log(disk, directory, recovery_point=third.base_offset)
        assert third.base_offset < checking.log_end_offset < log.segments[3].base_offset
        assert len(checking.segments) == 3
        assert sorted(name for name in disk.list(log.directory) if name.endswith(".log"))[-1].startswith(
            f"{third.base_offset:020d}"
        )

    asyncio.run(scenario())


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [None, b"\0\0\0", b"\x7f" * 24], ids=["missing", "torn", "nonsense"])
def test_indexes_that_are_missing_or_cannot_be_right_are_made_anew(
    disk: Disk, directory: str, suffix: str, damage: bytes | None
):
    async def scenario() -> None:
        log = await lively(disk, directory)
        before = state(log)
        records = await read_all(log)
        await log.close()
        for segment in list(log.segments)[:-1]:
            path = Path(segment.path(suffix))
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
        again = await open_log(disk, directory, clean=True, high_watermark=log.high_watermark)
        assert await read_all(again) == records
        assert state(again) == before

    asyncio.run(scenario())


def test_a_log_start_above_the_end_empties_the_log_rather_than_bring_records_back(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await lively(disk, directory)
        await log.close()
        again = await open_log(disk, directory, log_start_offset=500, clean=False)
        assert (again.log_start_offset, again.log_end_offset) == (500, 500)
        again.append_as_leader(batch([b"new"]), 9)
        assert await values(again) == [b"new"]

    asyncio.run(scenario())


def test_the_log_start_survives_inside_a_segment(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await lively(disk, directory)
        advance_log_start(log, 5)
        await log.flush()
        again = await open_log(disk, directory, log_start_offset=5)
        assert (await read_all(again))[0].offset == 5
        assert again.epochs.entries == log.epochs.entries

    asyncio.run(scenario())


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_edge_14_a_transaction_stays_unstable_until_its_marker_is_committed_also_after_a_restart(
    disk: Disk, directory: str, clean: bool
):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        log.append_as_leader(batch([b"plain"]), 0)
        log.append_as_leader(idempotent(0, producer_id=2, transactional=True), 0)
        log.append_as_leader(marker(2, abort=True), 0)
        log.high_watermark = 2
        assert log.last_stable_offset == 1
        await (log.close() if clean else log.flush())
        again = await open_log(disk, directory, clean=clean, high_watermark=2)
        assert (again.high_watermark, again.last_stable_offset) == (2, 1)
        again.high_watermark = 3
        assert again.last_stable_offset == 3

    asyncio.run(scenario())


def test_a_transaction_index_that_cannot_be_right_is_made_anew(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await lively(disk, directory)
        aborted = await log.aborted_transactions(0, 1000)
        await log.close()
        damaged = [segment for segment in log.segments if disk.exists(segment.transactions.path)]
        assert damaged
        for segment in damaged:
            Path(segment.transactions.path).write_bytes(bytes(34))
        again = await open_log(disk, directory, clean=True)
        assert await again.aborted_transactions(0, 1000) == aborted

    asyncio.run(scenario())


def test_a_gap_after_a_sealed_segment_is_compaction_and_else_a_loss(disk: Disk, directory: str):
    """Even without any recovery point: a snapshot at a segment's start says that all before it was synced."""

    async def scenario() -> None:
        log = await lively(disk, directory)
        await log.flush()
        middle = log.segments[3]
        end = log.segments[4].base_offset
        with open(middle.file.path, "r+b") as file:
            file.truncate(next(position for position, _ in reversed(list(headers(disk.read_file(middle.file.path))))))
        again = await open_log(disk, directory)
        assert again.log_end_offset == log.log_end_offset
        disk.remove(f"{log.directory}/{end:020d}.snapshot")
        again = await open_log(disk, directory)
        assert again.log_end_offset < end

    asyncio.run(scenario())


def test_a_roll_that_was_not_finished_leaves_no_record_unfindable_by_time(disk: Disk, directory: str):
    """All was flushed, then rolled, then killed: nothing is unsynced, but the time index lacks its last entry."""

    async def scenario() -> None:
        log = await open_log(disk, directory, with_config(segment_bytes=1 << 20))
        log.append_as_leader(batch([b"a"], timestamp=100), 0)
        log.append_as_leader(batch([b"b"], timestamp=900), 0)
        await log.flush()
        log.roll()
        await log.work.run(lambda: None)
        # As if the seal had not run.
        disk.remove(f"{log.directory}/{2:020d}.snapshot")
        with open(log.segments[0].path(".timeindex"), "r+b") as file:
            file.truncate(0)
        again = await open_log(disk, directory, recovery_point=2)
        found = await again.find_offset(500)
        assert found is not None
        assert found.offset == 1

    asyncio.run(scenario())


def test_a_gap_wider_than_an_index_can_say_starts_a_segment_of_its_own(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory)
        far = 2**33
        log.append_as_follower(batch([b"near"], base_offset=0, partition_leader_epoch=0))
        log.append_as_follower(batch([b"far"], base_offset=far, partition_leader_epoch=0))
        empty = await open_log(disk, directory + "/empty")
        empty.append_as_follower(batch([b"far"], base_offset=far, partition_leader_epoch=0))
        assert await values(log) == [b"near", b"far"]
        assert await values(empty) == [b"far"]
        await log.close()
        assert await values(await open_log(disk, directory, clean=True)) == [b"near", b"far"]

    asyncio.run(scenario())


def test_the_producer_of_a_batch_that_the_log_starts_inside_is_still_known(disk: Disk, directory: str):
    async def scenario() -> None:
        log = await open_log(disk, directory, ONE_SEGMENT)
        log.append_as_leader(idempotent(0, 3), 0)
        await log.flush()
        again = await open_log(disk, directory, ONE_SEGMENT, clean=True, log_start_offset=2)
        assert again.producers.states[7].last_sequence == 2
        assert again.append_as_leader(idempotent(0, 3), 0).duplicate

    asyncio.run(scenario())
