"""A log directory that is killed and loses power at any moment, again and again: a seed decides when.

Always: after a kill nothing is missing; after a power loss nothing that was synced is missing; what is there is what
was written, without a hole, up to the end of the log.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kits.logkit import batch, with_config
from tidelog.lab.world import SimHost, World
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, delete_expired, truncate_to
from tidelog.records.batch import decode
from tidelog.records.header import headers
from tidelog.types import TopicPartition

PARTITION = TopicPartition("orders", 0)
CONFIG = with_config(segment_bytes=600, retention_ms=-1, file_delete_delay_ms=50)
LIVES = 6


class Expected:
    """What the log may be asked for: all values ever written at an offset, and which of them must be there."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.start = self.end = self.synced = self.sequence = 0

    def truncated(self, end: int) -> None:
        self.end = end
        self.synced = min(self.synced, end)
        self.start = min(self.start, end)


async def opened(host: SimHost) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: CONFIG)


async def live(host: SimHost, chance: random.Random, expected: Expected, steps: int) -> None:
    """Use the log until the end of the steps, or of this life."""
    directory = await opened(host)
    log = await directory.create(PARTITION)
    chores = Housekeeping(directory, host.random, Intervals(1000, 30, 20, 1000, 1000))
    chores.start()
    for _ in range(steps):
        await step(log, directory, chance, expected)
        await asyncio.sleep(chance.random() * 0.01)


async def step(log: Log, directory: LogDirectory, chance: random.Random, expected: Expected) -> None:
    kind = chance.choices(["append", "flush", "truncate", "delete", "roll", "checkpoint"], [20, 3, 1, 1, 1, 1])[0]
    if kind == "append":
        count = chance.randrange(1, 4)
        values = [b"%d@%d" % (chance.getrandbits(40), expected.end + i) for i in range(count)]
        for i, value in enumerate(values):
            expected.values[expected.end + i] = value
        assert log.append_as_leader(batch(values), chance.randrange(2)).base_offset == expected.end
        expected.end += count
    elif kind == "flush":
        end = expected.end
        await log.flush()
        expected.synced = max(expected.synced, end)
    elif kind == "truncate":
        # Truncation is not durable before it is done, but what it may take is no longer promised from its start.
        offset = chance.randrange(log.log_start_offset, log.log_end_offset + 1)
        expected.synced = min(expected.synced, max(0, offset - 3))
        await truncate_to(log, offset)
        expected.truncated(log.log_end_offset)
    elif kind == "delete":
        log.high_watermark = log.log_end_offset
        offset = chance.randrange(log.log_start_offset, log.log_end_offset + 1)
        expected.start = max(expected.start, offset)
        advance_log_start(log, offset)
        await delete_expired(log)
    elif kind == "roll":
        log.roll()
    else:
        await directory.checkpoint()


async def check(host: SimHost, expected: Expected, *, power_lost: bool, truncating: bool, close: bool) -> None:
    """Without `close` the next life begins with what this one left in the page cache."""
    directory = await opened(host)
    log = await directory.create(PARTITION)
    found: dict[int, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = await log.bytes_of(await log.read(offset, 500))
        found |= {record.offset: record.value for record in decode(data)}
        offset = [header.next_offset for _, header in headers(data)][-1]
    assert log.log_start_offset <= max(expected.start, log.log_end_offset)
    visible = [offset for offset in found if offset >= log.log_start_offset]
    assert visible == list(range(log.log_start_offset, log.log_end_offset))
    wrong = {offset: found[offset] for offset in visible if found[offset] != expected.values[offset]}
    assert not wrong
    assert log.log_end_offset >= min(expected.synced, expected.end)
    if not power_lost and not truncating:
        assert log.log_end_offset == expected.end
    assert log.log_end_offset <= max(expected.values, default=-1) + 1
    expected.end = log.log_end_offset
    expected.synced = 0 if truncating else min(expected.synced, expected.end)
    expected.start = log.log_start_offset
    if close:
        await directory.close()
        expected.synced = expected.end


def run(seed: int) -> str:
    with World(seed) as world:
        host, expected, chance = world.host("b1"), Expected(), world.chance_for("story")

        async def story() -> None:
            for _ in range(LIVES):
                task = host.start(live(host, chance, expected, 200))
                await asyncio.sleep(chance.random() * 0.6)
                power_lost = chance.random() < 0.5
                ended = task.done()
                if not ended:
                    (host.power_loss if power_lost else host.kill)()
                truncating = not ended and chance_of_truncation(task)
                close = chance.random() < 0.5
                await host.start(check(host, expected, power_lost=power_lost, truncating=truncating, close=close))

        world.run(story())
        return world.trace.digest()


def chance_of_truncation(task: object) -> bool:
    """A life that ended inside a truncation may have taken records that were not yet promised to be gone."""
    frame = getattr(task, "get_coro", lambda: None)()
    while frame is not None:
        code = getattr(frame, "cr_code", None)
        if code is not None and code.co_name in ("truncate_to", "_cut_end"):
            return True
        frame = getattr(frame, "cr_await", None)
    return False


@pytest.mark.parametrize("seed", range(60))
def test_nothing_synced_is_lost_and_nothing_wrong_appears(seed: int):
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 400, 30))
def test_many_more_seeds(first: int):
    for seed in range(first, first + 30):
        run(seed)


def test_the_same_seed_crashes_the_same_way():
    assert run(7) == run(7)
