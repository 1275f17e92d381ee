"""A compacted log that loses power while it is cleaned, again and again: a seed decides when.

Always: the last synced value of every key is there; no key goes back to an older value than the last synced one.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kits.logkit import batch, with_config
from tidelog.lab.world import SimHost, World
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.records.batch import decode
from tidelog.records.header import headers
from tidelog.types import TopicPartition

PARTITION = TopicPartition("table", 0)
CONFIG = with_config(
    segment_bytes=600,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=10**9,
    file_delete_delay_ms=20,
)
KEYS = 8
LIVES = 5


async def opened(host: SimHost) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, "data", lambda topic: CONFIG)


async def live(host: SimHost, chance: random.Random, written: dict[bytes, list[int]], synced: dict[bytes, int]) -> None:
    """Count each key up, sync now and then; the background cleans as often as it can."""
    directory = await opened(host)
    log = await directory.create(PARTITION)
    Housekeeping(directory, host.random, Intervals(10_000, 1000, 7, 3, 10_000)).start()
    while True:
        for _ in range(chance.randrange(1, 5)):
            key = b"key-%d" % chance.randrange(KEYS)
            written[key].append(written[key][-1] + 1)
            log.append_as_leader(batch([b"%d" % written[key][-1]], keys=[key]), 0)
        log.high_watermark = log.log_end_offset
        await asyncio.sleep(chance.random() * 0.01)
        if chance.random() < 0.2:
            now = {key: values[-1] for key, values in written.items()}
            await log.flush()
            synced.update(now)


async def check(host: SimHost, written: dict[bytes, list[int]], synced: dict[bytes, int]) -> int:
    directory = await opened(host)
    log = await directory.create(PARTITION)
    latest: dict[bytes | None, int] = {}
    offset, count = log.log_start_offset, 0
    while offset < log.log_end_offset:
        data = await log.bytes_of(await log.read(offset, 500))
        for record in decode(data):
            assert record.value is not None
            assert latest.get(record.key, 0) < int(record.value)
            latest[record.key] = int(record.value)
            count += 1
        offset = [header.next_offset for _, header in headers(data)][-1]
    for key, value in synced.items():
        assert latest.get(key, 0) >= value, (key, latest.get(key), value)
        written[key].append(latest.get(key, 0))
    removed = log.log_end_offset - log.log_start_offset - count
    await directory.close()
    synced.update({key: values[-1] for key, values in written.items()})
    return removed


def run(seed: int) -> int:
    """How many records compaction took away, over all lives."""
    with World(seed) as world:
        host, chance = world.host("b1"), world.chance_for("story")
        written = {b"key-%d" % i: [0] for i in range(KEYS)}
        synced = dict.fromkeys(written, 0)

        async def story() -> int:
            removed = 0
            for _ in range(LIVES):
                host.start(live(host, chance, written, synced))
                await asyncio.sleep(chance.uniform(0.1, 0.6))
                host.power_loss() if chance.random() < 0.6 else host.kill()
                removed += await host.start(check(host, written, synced))
            return removed

        return world.run(story())


def test_no_key_goes_back_whenever_the_power_fails():
    assert sum(run(seed) for seed in range(5)) > 100  # it really was compacted


@pytest.mark.long
@pytest.mark.parametrize("first", range(70, 160, 30))
def test_no_key_goes_back_in_many_more_worlds(first: int):
    assert sum(run(seed) for seed in range(first, first + 30)) > 500
