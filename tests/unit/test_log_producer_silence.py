"""How long producers have been silent, and what is known of that after a restart or a cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.kits.brokerkit import Kit, code_of, run
from tests.kits.logkit import FixedClock, idempotent, open_log, with_config
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.log import Log
from tidelog.log.producer_silence import RETURN_MS, SILENT_MS, FileTimes
from tidelog.log.trimming import truncate_to
from tidelog.ports import Clock, Disk

NONE, REFUSED = ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS
FIVE = {"tidelog_partition_producer_ids_max": "5"}
HOUR_MS = 60 * 60_000


async def write(kit: Kit, *producer_ids: int, sequence: int = 0) -> list[ErrorCode]:
    return [await code_of(kit.produce(idempotent(sequence, producer_id=producer_id))) for producer_id in producer_ids]


async def pass_ms(milliseconds: int) -> None:
    """On the simulated clock."""
    await asyncio.sleep(milliseconds / 1000)


def known(kit: Kit) -> list[int]:
    return sorted(kit.partition().log.producers.states)


async def start_again(kit: Kit, *, clean: bool) -> None:
    if clean:
        await kit.stop()
    else:
        kit.kill()
    await kit.start()
    await kit.leads("t")


def test_after_a_stop_producers_that_were_silent_before_it_make_room_at_once() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await pass_ms(SILENT_MS)
        await start_again(kit, clean=True)
        assert await write(kit, 10) == [NONE]
        assert known(kit) == [1, 2, 3, 4, 10], "and only the longest silent one"

    run(story, **FIVE)


def test_after_a_kill_producers_that_were_silent_before_it_make_room_after_a_minute() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await pass_ms(SILENT_MS)
        await start_again(kit, clean=False)
        assert await write(kit, 10) == [REFUSED]
        assert await write(kit, 0, 2) == [NONE] * 2, "these two sent their batches again all the time"
        await pass_ms(RETURN_MS)
        assert await write(kit, 10) == [NONE]
        assert known(kit) == [0, 2, 3, 4, 10]
        assert kit.partition().log.log_end_offset == 6

    run(story, **FIVE)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_after_a_restart_a_producer_that_wrote_just_before_is_at_work(clean: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await pass_ms(SILENT_MS)
        assert await write(kit, *range(1, 5), sequence=1) == [NONE] * 4
        await start_again(kit, clean=clean)
        # After a kill it is not known that producer 0 was silent: the others wrote to the same segment.
        assert await write(kit, 10, 11) == ([NONE, REFUSED] if clean else [REFUSED, REFUSED])
        assert {1, 2, 3, 4} <= set(known(kit))
        await pass_ms(SILENT_MS)
        assert await write(kit, 11) == [NONE]

    run(story, **FIVE)


def test_the_time_in_which_a_broker_was_down_counts() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await kit.stop()
        await pass_ms(SILENT_MS)
        await kit.start()
        await kit.leads("t")
        await pass_ms(RETURN_MS)
        assert await write(kit, 10) == [NONE]

    run(story, **FIVE)


def test_a_retry_before_a_stop_is_a_sign_of_life_after_it() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await pass_ms(SILENT_MS)
        assert await write(kit, 0, 1) == [NONE] * 2
        await start_again(kit, clean=True)
        assert await write(kit, 10) == [NONE]
        assert known(kit) == [0, 1, 3, 4, 10]

    run(story, **FIVE)


def test_after_a_kill_what_a_roll_knew_of_silence_is_not_enough() -> None:
    """Producer 0 was silent then, but has sent its batch again since."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, *range(5)) == [NONE] * 5
        await pass_ms(SILENT_MS)
        kit.partition().log.roll()
        await kit.partition().log.flush()
        await kit.broker.storage.directories[0].checkpoint()
        assert await write(kit, 0) == [NONE]
        await start_again(kit, clean=False)
        assert list(kit.partition().log.snapshots.offsets) == [5]
        assert await write(kit, 10) == [REFUSED]
        assert await write(kit, 0) == [NONE]
        await pass_ms(RETURN_MS)
        assert await write(kit, 10) == [NONE]
        assert known(kit) == [0, 2, 3, 4, 10]

    run(story, **FIVE)


EXPIRATION = {"producer_id_expiration_ms": str(HOUR_MS // 3), "producer_id_expiration_check_interval_ms": "60000"}


def test_a_restart_does_not_put_an_expiry_off() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, 0) == [NONE]
        await pass_ms(HOUR_MS // 6)
        await start_again(kit, clean=True)
        assert known(kit) == [0]
        await pass_ms(HOUR_MS // 12)
        assert known(kit) == [0]
        await eventually(lambda: known(kit) == [], HOUR_MS // 10 / 1000)

    run(story, **EXPIRATION)


def test_a_wall_clock_that_jumps_lets_no_producer_expire() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(retention_ms="-1")
        assert await write(kit, 0) == [NONE]
        kit.kill()
        kit.host.clock.jump(365 * 24 * HOUR_MS)
        await kit.start()
        await kit.leads("t")
        await pass_ms(HOUR_MS // 6)
        assert known(kit) == [0]

    run(story, **EXPIRATION)


MOST_BY_FILES_MS = SILENT_MS - RETURN_MS


def test_a_file_is_as_old_as_it_says_but_for_clocks_that_jump(disk: Disk, directory: str) -> None:
    times_after = files_in(disk, directory)
    ages = {after_ms: times_after(after_ms).written_ms(f"{directory}/f") for after_ms in (-HOUR_MS, 0, 1_000, HOUR_MS)}
    assert ages == {-HOUR_MS: 0, 0: 0, 1_000: -1_000, HOUR_MS: -MOST_BY_FILES_MS}


@pytest.mark.parametrize(
    ("silent_ms", "after_ms", "after_a_close_ms", "after_a_roll_ms"),
    [
        (0, 1_000, 1_000, 1_000),
        (2_000, 1_000, 3_000, 3_000),
        (2_000, HOUR_MS, MOST_BY_FILES_MS, MOST_BY_FILES_MS),
        (SILENT_MS, 1_000, SILENT_MS, MOST_BY_FILES_MS),
        (HOUR_MS, HOUR_MS, HOUR_MS, MOST_BY_FILES_MS),
        (HOUR_MS, -HOUR_MS, HOUR_MS, MOST_BY_FILES_MS),
    ],
)
def test_what_a_snapshot_tells_of_silence(
    disk: Disk, directory: str, silent_ms: int, after_ms: int, after_a_close_ms: int, after_a_roll_ms: int
) -> None:
    times, path = files_in(disk, directory)(after_ms), f"{directory}/f"
    assert times.heard_before(path, is_of_close=True)(silent_ms) == -after_a_close_ms
    assert times.heard_before(path, is_of_close=False)(silent_ms) == -after_a_roll_ms


def files_in(disk: Disk, directory: str) -> Callable[[int], FileTimes]:
    """Writes a file f, and tells what is known of it so long after. The clock that never falls shows 0 then."""
    disk.make_directory(directory)
    disk.write_file(f"{directory}/f", b"")
    written_ms = disk.modified_ms(f"{directory}/f")

    class StillClock(Clock):
        def __init__(self, after_ms: int) -> None:
            self._after_ms = after_ms

        def wall_ms(self) -> int:
            return written_ms + self._after_ms

        def monotonic_ns(self) -> int:
            return 0

    return lambda after_ms: FileTimes(disk, StillClock(after_ms))


def test_a_cut_changes_nothing_about_silence(disk: Disk, directory: str) -> None:
    clock = FixedClock()

    async def story() -> None:
        log = await open_log(disk, directory, with_config(segment_bytes=1 << 20), clock=clock)
        await write_and_cut(log)
        await log.close()

    async def write_and_cut(log: Log) -> None:
        for producer_id in range(3):
            log.append_as_leader(idempotent(0, producer_id=producer_id), 0)
            clock.now_ms += 1_000
        log.append_as_leader(idempotent(1, producer_id=1), 0)
        heard_ms = {producer_id: state.heard_ms for producer_id, state in log.producers.states.items()}
        clock.now_ms += HOUR_MS
        assert await truncate_to(log, 3)
        assert {producer_id: state.heard_ms for producer_id, state in log.producers.states.items()} == heard_ms
        assert log.producers.states[1].next_sequence == 1

    asyncio.run(story())
