"""A log whose process dies at the first change to the disk, at the second, at the third, until it gets through.

The other crash tests let the end come between two pieces of work; here it comes inside them: between the renames of a
swap, in a checkpoint that is being written, among the segments that are being removed, and in recovery itself.
Every change gets a host of its own, so a failure is named by its seed and its host.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.kits.logkit import batch, idempotent, with_config
from tidelog.lab.clock import EPOCH_MS
from tidelog.lab.world import SimHost, World
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping
from tidelog.log.log import Log
from tidelog.log.producers import AppendOrigin
from tidelog.log.trimming import advance_log_start, delete_expired, truncate_to
from tidelog.records.batch import decode
from tidelog.records.header import BatchHeader, headers
from tidelog.records.kernel import Record
from tidelog.types import TopicPartition

PARTITION = TopicPartition("orders", 0)
How = Literal["kill", "power loss"]
Opened = Callable[[SimHost], Coroutine[Any, Any, LogDirectory]]
Recovery = Callable[[SimHost, Opened], Awaitable[bool]]
"""What happens before a recovery gets through; whether power was lost in it."""
Story = Callable[[SimHost, World, int, How, Recovery], Awaitable[bool]]
HOWS: list[How] = ["kill", "power loss"]
CONFIG = with_config(segment_bytes=600, retention_ms=-1, file_delete_delay_ms=3)
COMPACTED = with_config(
    segment_bytes=400,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=10**9,
    file_delete_delay_ms=3,
)
PRODUCER = 7
FIRST_TIMESTAMP = EPOCH_MS  # of now, or the producer would have expired long ago
STEPS = {"append": 20, "flush": 3, "truncate": 2, "delete": 2, "roll": 2, "checkpoint": 2}


@dataclass
class Written:
    """What a batch of the log must look like."""

    base_offset: int
    count: int
    sequence: int
    timestamp: int
    epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


@dataclass
class Expected:
    """What the log may be found to be, whenever its process dies.

    Always: it goes from between `start_written` and `start` to at least `end_synced`, to at most `end_at_most`.
    """

    batches: list[Written] = field(default_factory=list)
    start: int = 0
    start_written: int = 0
    """Checkpointed: not to be forgotten."""
    end_written: int = 0
    """In the page cache: to be found after a kill."""
    end_synced: int = 0
    appended: int = 0
    epoch: int = 0

    @property
    def end_at_most(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    @property
    def next_sequence(self) -> int:
        return self.batches[-1].sequence + self.batches[-1].count if self.batches else 0

    def batch_end_before(self, offset: int) -> int:
        """Where the log ends if it is truncated to `offset`: a batch goes as a whole."""
        return max((b.base_offset for b in self.batches if b.base_offset <= offset < b.next_offset), default=offset)

    def cut(self, end: int) -> None:
        self.batches = [b for b in self.batches if b.next_offset <= end]
        self.start = min(self.start, end)
        self.end_written = end


async def opened(host: SimHost) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: CONFIG)


async def live(host: SimHost, chance: random.Random, expected: Expected, steps: int) -> None:
    """Two lives, each closed in order, if death does not come before."""
    for _ in range(2):
        directory = await opened(host)
        log = await directory.create(PARTITION)
        for kind in ["append"] * 3 + chance.choices(list(STEPS), list(STEPS.values()), k=steps):
            await step(kind, log, directory, chance, expected)
            await asyncio.sleep(chance.random() * 0.003)
        start = expected.start
        await directory.close()
        expected.end_synced, expected.start_written = expected.end_written, start


async def step(kind: str, log: Log, directory: LogDirectory, chance: random.Random, expected: Expected) -> None:
    if kind == "append":
        append(log, chance, expected)
    elif kind == "flush":
        end = expected.end_written
        await log.flush()
        expected.end_synced = max(expected.end_synced, end)
    elif kind == "truncate":
        offset = chance.randrange(max(log.log_start_offset, log.log_end_offset - 12), log.log_end_offset + 1)
        end = expected.batch_end_before(offset)
        expected.end_synced, expected.end_written = min(expected.end_synced, end), end
        expected.start_written = min(expected.start_written, end)
        await truncate_to(log, offset)
        assert log.log_end_offset == end
        expected.cut(end)
    elif kind == "delete":
        log.high_watermark = log.log_end_offset
        expected.start = chance.randrange(log.log_start_offset, log.log_end_offset + 1)
        advance_log_start(log, expected.start)
        await delete_expired(log)
    elif kind == "roll":
        log.roll()
    else:
        start = expected.start
        await directory.checkpoint()
        expected.start_written = start


def append(log: Log, chance: random.Random, expected: Expected) -> None:
    expected.epoch += chance.random() < 0.1
    count = chance.randrange(1, 4)
    sequence, timestamp = expected.next_sequence, FIRST_TIMESTAMP + expected.appended
    expected.batches.append(Written(expected.end_written, count, sequence, timestamp, expected.epoch))
    expected.appended += count
    data = idempotent(sequence, count, producer_id=PRODUCER, timestamp=timestamp)
    appended = log.append_as_leader(data, expected.epoch, origin=AppendOrigin.RETURNING)
    assert appended.base_offset == expected.end_written
    expected.end_written += count


async def check(host: SimHost, expected: Expected, *, power_lost: bool) -> None:
    """Open it, compare all that is there, go on, and promise that this will be there: by a flush or by closing it."""
    directory = await opened(host)
    log = await directory.create(PARTITION)
    no_leftovers(host, log)
    await compare(log, expected)
    assert expected.end_synced <= log.log_end_offset
    assert power_lost or expected.end_written <= log.log_end_offset
    expected.cut(log.log_end_offset)
    expected.start = log.log_start_offset
    for number in range(4):
        append(log, host.random, expected)  # type: ignore[arg-type]
        if number == 1:
            log.roll()
    if host.random.random() < 0.5:
        await log.flush()
    else:
        await directory.close()
        expected.start_written = expected.start


async def check_again(host: SimHost, expected: Expected) -> None:
    """After the loss of power that follows."""
    directory = await opened(host)
    log = await directory.create(PARTITION)
    no_leftovers(host, log)
    await compare(log, expected)
    assert log.log_end_offset == expected.end_at_most
    await directory.close()


async def compare(log: Log, expected: Expected) -> None:
    """All that is visible was written there, without a hole, and everything derived from it agrees with it."""
    start, end = log.log_start_offset, log.log_end_offset
    assert expected.start_written <= start <= max(expected.start, end), (expected.start_written, start, expected.start)
    assert start <= end <= expected.end_at_most, (start, end, expected.end_at_most)
    found = await read_batches(log)
    wanted = [b for b in expected.batches if start < b.next_offset <= end]
    assert [(h.base_offset, h.record_count, h.base_sequence, h.partition_leader_epoch) for h, _ in found] == [
        (b.base_offset, b.count, b.sequence, b.epoch) for b in wanted
    ]
    for written, (_, records) in zip(wanted, found, strict=True):
        assert [(r.offset, r.timestamp, r.value) for r in records] == [
            (written.base_offset + i, written.timestamp + i, b"%d" % (written.sequence + i))
            for i in range(written.count)
        ]
        offset = max(written.base_offset, start)
        by_time = await log.find_offset(written.timestamp + offset - written.base_offset)
        assert by_time is not None
        assert by_time.offset == offset
        assert log.epochs.epoch_for_offset(offset) == written.epoch
    if wanted:
        state = log.producers.states[PRODUCER]
        assert (state.last_sequence, state.last_offset) == (wanted[-1].sequence + wanted[-1].count - 1, end - 1)


async def read_batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = await log.bytes_of(await log.read(offset, 1))
        ((_, header),) = headers(data)
        found.append((header, list(decode(data))))
        offset = header.next_offset
    return found


def no_leftovers(host: SimHost, log: Log) -> None:
    names = host.disk.list(log.directory)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    assert {name for name in names if name.endswith(".log")} == {f"{s.base_offset:020d}.log" for s in log.segments}


# A compacted log


@dataclass
class Table:
    """What was written to a compacted log, by offset; `end_written` and `end_synced` as in Expected."""

    records: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    end_written: int = 0
    end_synced: int = 0
    found: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)

    def last_of_keys(self, end: int) -> set[int]:
        return set({key: offset for offset, (key, _) in self.records.items() if offset < end}.values())


async def opened_table(host: SimHost) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: COMPACTED)


async def live_compacted(host: SimHost, chance: random.Random, table: Table) -> None:
    directory = await opened_table(host)
    log = await directory.create(PARTITION)
    chores = Housekeeping(directory, host.random, dedupe_buffer_bytes=1 << 14)
    for _ in range(2):
        for _ in range(chance.randrange(6, 10)):
            write_key(log, chance, table)
            await asyncio.sleep(chance.random() * 0.001)
        log.high_watermark = log.log_end_offset
        log.roll()
        end = table.end_written
        await log.flush()
        table.end_synced = end
        await chores.clean_dirtiest()
        await asyncio.sleep(chance.random() * 0.01)
    await directory.close()
    table.end_synced = table.end_written


def write_key(log: Log, chance: random.Random, table: Table) -> None:
    offset = table.end_written
    key, value = b"key-%d" % chance.randrange(5), None if chance.random() < 0.1 else b"%d" % offset
    table.records[offset] = key, value
    assert log.append_as_leader(batch([value], keys=[key], timestamp=EPOCH_MS), 0).base_offset == offset
    table.end_written += 1


async def check_compacted(host: SimHost, table: Table, *, power_lost: bool) -> None:
    """Every record is one that was written, at its offset, and none is missing that is the last of its key."""
    directory = await opened_table(host)
    log = await directory.create(PARTITION)
    no_leftovers(host, log)
    end = log.log_end_offset
    assert table.end_synced <= end <= len(table.records)
    assert power_lost or table.end_written <= end
    table.found = [(r.offset, r.key, r.value) for _, records in await read_batches(log) for r in records]
    offsets = [offset for offset, _, _ in table.found]
    assert offsets == sorted(set(offsets))
    assert [(key, value) for _, key, value in table.found] == [table.records[offset] for offset in offsets]
    assert table.last_of_keys(end) <= set(offsets)
    await (log.flush() if host.random.random() < 0.5 else directory.close())


async def check_compacted_again(host: SimHost, table: Table) -> None:
    """After a loss of power."""
    directory = await opened_table(host)
    log = await directory.create(PARTITION)
    no_leftovers(host, log)
    assert [(r.offset, r.key, r.value) for _, records in await read_batches(log) for r in records] == table.found
    await directory.close()


# Stories: each returns False once the process lives to its end


async def log_dies(host: SimHost, world: World, change: int, how: How, recovery: Recovery) -> bool:
    expected = Expected()
    host.die_at(change, how)
    host.start(live(host, world.chance_for("story"), expected, 9))
    if await host.ended() == "exit":
        return False
    power_lost = await recovery(host, opened) or how == "power loss"
    await host.start(check(host, expected, power_lost=power_lost))
    host.power_loss()
    await host.start(check_again(host, expected))
    return True


async def table_dies(host: SimHost, world: World, change: int, how: How, recovery: Recovery) -> bool:
    table = Table()
    host.die_at(change, how)
    host.start(live_compacted(host, world.chance_for("story"), table))
    if await host.ended() == "exit":
        await host.start(check_compacted(host, table, power_lost=False))
        assert len(table.found) < len(table.records)  # it really was compacted
        return False
    power_lost = await recovery(host, opened_table) or how == "power loss"
    await host.start(check_compacted(host, table, power_lost=power_lost))
    host.power_loss()
    await host.start(check_compacted_again(host, table))
    return True


async def undisturbed(host: SimHost, opened: Opened) -> bool:
    """What happens before recovery gets through: nothing."""
    return False


def dying_again(how: How) -> Recovery:
    """Recovery dies at its first change, the next one at its second, and so on until one gets through."""

    async def recovery(host: SimHost, opened: Opened) -> bool:
        for change in range(1, 1000):
            host.die_at(change, how)
            host.start(opened(host))
            if await host.ended() == "exit":
                return how == "power loss"
        raise AssertionError("recovery never gets through")

    return recovery


def dying_once(change: int, how: How) -> Recovery:
    async def recovery(host: SimHost, opened: Opened) -> bool:
        host.die_at(change, how)
        host.start(opened(host))
        return await host.ended() == "power loss"

    return recovery


def sweep(seed: int, dies: Story, how: How, recovery: Recovery = undisturbed, *, first: int = 1, step: int = 1) -> int:
    """Let it die at every change, or every so many; how many that were."""

    async def story() -> int:
        for count, change in enumerate(range(first, 5000, step)):
            if not await dies(world.host(f"{how} at change {change} of seed {seed}"), world, change, how, recovery):
                return count
        raise AssertionError("it never gets through")

    with World(seed) as world:
        return world.run(story())


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", [0])
def test_a_log_is_whole_wherever_it_dies(seed: int, how: How):
    assert sweep(seed, log_dies, how) > 100


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", [0])
def test_a_compacted_log_is_whole_wherever_it_dies(seed: int, how: How):
    assert sweep(seed, table_dies, how) > 100


@pytest.mark.parametrize("recovery_how", HOWS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dies", [log_dies, table_dies])
def test_recovery_may_die_too(dies: Story, how: How, recovery_how: How):
    assert sweep(2, dies, how, dying_again(recovery_how), step=17) > 8


@pytest.mark.long
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dies", [log_dies, table_dies])
@pytest.mark.parametrize("seed", [100])
def test_more_seeds(seed: int, dies: Story, how: How):
    sweep(seed, dies, how)
    for recovery_how in HOWS:
        sweep(seed, dies, how, dying_again(recovery_how), first=1 + seed % 3, step=3)


@pytest.mark.long
@pytest.mark.parametrize("recovery_how", HOWS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dies", [log_dies, table_dies])
@pytest.mark.parametrize("change", range(1, 25, 6))
def test_recovery_dies_once_at_every_change(change: int, dies: Story, how: How, recovery_how: How):
    sweep(200 + change, dies, how, dying_once(change, recovery_how), first=1 + change % 5, step=5)
