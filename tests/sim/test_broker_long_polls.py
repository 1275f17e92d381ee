"""Readers with sessions that wait long: no record may be slept through, however small the answers and cold the disk."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kits.brokerkit import FETCH_BY_NAME, PRODUCE_BY_NAME, Kit, fetch_request, produce_request
from tests.kits.logkit import batch
from tidelog.coordination.memory import MemoryCoordination
from tidelog.lab.broker import sim_settings
from tidelog.lab.world import World
from tidelog.net.calling import Connection
from tidelog.records.batch import decode

PARTITIONS = 8
_RECORDS = 150
_MAX_WAIT_MS = 600_000
_LATE_S = 2.0
"""Much less than a reader would wait, much more than it takes to read everything in small answers."""


class Reader:
    def __init__(self, max_bytes: int, min_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.count = 0

    async def run(self) -> None:
        connection = await Connection.open("b1", 9092, client_id="reader")
        session_id, epoch = 0, 0
        wanted = {("t", index): 0 for index in range(PARTITIONS)}
        while True:
            request = fetch_request(
                wanted,
                session_id=session_id,
                session_epoch=epoch,
                max_wait_ms=_MAX_WAIT_MS,
                min_bytes=self._min_bytes,
                max_bytes=self._max_bytes,
            )
            answer = await connection.call(request, FETCH_BY_NAME)
            assert answer.error_code == 0
            session_id, epoch = answer.session_id, epoch + 1
            wanted = {}
            for one in answer.responses[0].partitions if answer.responses else ():
                assert one.error_code == 0
                index = one.partition_index
                for record in decode(bytes(one.records or b""), from_offset=self._offsets[index]):
                    assert record.offset == self._offsets[index]
                    self._offsets[index] += 1
                    self.count += 1
                    wanted["t", index] = self._offsets[index]


async def _write(chance: random.Random) -> int:
    """How many records there are when the last is acknowledged."""
    connection = await Connection.open("b1", 9092, client_id="writer")
    for _ in range(_RECORDS):
        size = chance.choice((10, 100, 1000))
        data = batch([b"x" * size])
        await connection.call(produce_request({("t", chance.randrange(PARTITIONS)): data}), PRODUCE_BY_NAME)
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01, 0.1)))
    return _RECORDS


async def _story(world: World) -> None:
    chance = world.chance_for("story")
    kit = Kit(world.host("b1"), MemoryCoordination(world.host("store").clock), sim_settings("b1"), 1, "b1")
    kit.host.disk.cold_chance = chance.choice((0.0, 0.3, 0.9))
    await kit.start()
    config = chance.choice(({}, {"flush_messages": "1"}))
    await world.host("writer").start(kit.create_topic("t", PARTITIONS, **config))
    kit.disconnect()
    readers = [Reader(chance.choice((200, 2000, 1 << 20)), chance.choice((1, 1, 150))) for _ in range(3)]
    for number, reader in enumerate(readers):
        world.host(f"r{number}").start(reader.run())
    written = await world.host("writer").start(_write(chance))
    await asyncio.sleep(_LATE_S)
    for reader in readers:
        # One that waits for more bytes than are left may rightly still wait for them.
        left = written - reader.count
        assert left == 0 or (reader._min_bytes > 1 and left <= 1), (reader._max_bytes, reader._min_bytes, left)


@pytest.mark.parametrize("seed", range(12))
def test_no_record_is_slept_through(seed: int) -> None:
    with World(seed) as world:
        world.run(_story(world))
