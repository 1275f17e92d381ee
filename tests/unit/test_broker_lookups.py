"""Lookups by time: who waits for whom when a large batch has to be decompressed."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import batch
from tests.kits.netkit import simulated
from tidelog.broker.lookups import Lookups
from tidelog.lab.broker import eventually
from tidelog.metrics import Metrics
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

THEN = 1_700_000_000_000
VERSION = 6


class FakeConnection:
    is_closed = False


def connection() -> Any:
    return FakeConnection()


def call(of: Any) -> Any:
    return SimpleNamespace(connection=of, when_gone=None)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def heavy() -> bytes:
    noise = Random(1).randbytes(20_000)
    return bytes(build_batch([(THEN, None, noise), (THEN + 500, None, noise)], codec=Codec.GZIP))


def ask(*partitions: int, timestamp: int = THEN + 500) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in partitions]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=wanted)])


@simulated
async def test_each_connection_has_one_lookup_under_way_and_they_take_turns():
    lookups = Lookups(Metrics())
    order: list[str] = []
    many, few, other = connection(), connection(), connection()

    async def look(name: str, of: Any) -> None:
        assert await lookups.enter(call(of))
        order.append(name)
        await settle()
        lookups.leave(of)

    tasks = [asyncio.ensure_future(look(f"many {n}", many)) for n in range(4)]
    tasks += [asyncio.ensure_future(look(name, of)) for name, of in (("few", few), ("other", other))]
    await asyncio.gather(*tasks)
    assert order[:2] == ["many 0", "few"]
    assert order.index("other") < order.index("many 2")
    assert [name for name in order if name.startswith("many")] == [f"many {n}" for n in range(4)]
    assert (lookups._free, lookups._waiting, len(lookups._order)) == (2, {}, 0)


@simulated
@pytest.mark.parametrize("ending", ["gone", "cancelled", "cancelled when it began"])
async def test_lookups_of_those_who_go_are_passed_over_and_leave_no_place_behind(ending: str):
    lookups = Lookups(Metrics())
    busy, going, staying = [connection(), connection()], connection(), connection()
    for of in busy:
        assert await lookups.enter(call(of))
    given_up = [call(going), call(going)]
    waiting = [asyncio.ensure_future(lookups.enter(asked)) for asked in (*given_up, call(staying))]
    await settle()
    if ending == "gone":
        going.is_closed = True
        for asked in given_up:
            asked.when_gone()
        assert not await lookups.enter(call(going))
    if ending == "cancelled when it began":
        lookups.leave(busy.pop())
    if ending != "gone":
        for task in waiting[:2]:
            task.cancel()
        await settle()
    for of in busy:
        lookups.leave(of)
    await settle()
    assert waiting[2].result()
    lookups.leave(staying)
    assert (lookups._free, lookups._waiting, len(lookups._order)) == (2, {}, 0)


def test_a_client_with_many_lookups_does_not_keep_others_waiting() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=3)
        for index in (0, 1):
            await kit.produce(heavy(), index=index)
        await kit.produce(batch([b"x"], timestamp=THEN + 500), index=2)
        greedy, honest = await kit.connect(), await kit.connect()
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        waiting = [greedy.send(ask(0), VERSION) for _ in range(50)]
        await eventually(lambda: len(kit.broker.lookups._waiting) == 1)
        for index, offset in ((1, 1), (2, 0)):
            done = sum(one.done() for one in waiting)
            (found,) = (await honest.call(ask(index), VERSION)).topics[0].partitions
            assert (found.error_code, found.offset) == (0, offset)
            assert sum(one.done() for one in waiting) <= done + 3
        for one in waiting:
            (found,) = (await one).topics[0].partitions
            assert (found.error_code, found.offset, found.timestamp) == (0, 1, THEN + 500)

    run(story)


def test_lookups_with_little_to_decompress_do_not_wait_for_heavy_ones() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=5)
        for index in (0, 1):
            await kit.produce(heavy(), index=index)
        await kit.produce(batch([bytes(500_000)], timestamp=THEN + 500), index=2)
        await kit.produce(build_batch([(THEN + 500, None, b"x")], codec=Codec.GZIP), index=3)
        busy = [connection(), connection()]
        for of in busy:
            assert await kit.broker.lookups.enter(call(of))
        answer = await kit.call(ask(2, 3, 4), VERSION)
        assert [found.offset for found in answer.topics[0].partitions] == [0, 0, -1]
        late = asyncio.ensure_future(kit.call(ask(0, 1, 2), VERSION))
        await eventually(lambda: len(kit.broker.lookups._waiting) == 3)
        kit.broker.lookups.leave(busy[0])
        assert [found.offset for found in (await late).topics[0].partitions] == [1, 1, 0]

    run(story)


def test_lookups_of_a_client_that_has_gone_are_not_begun() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(heavy())
        busy = [connection(), connection()]
        for of in busy:
            assert await kit.broker.lookups.enter(call(of))
        greedy = await kit.connect()
        for _ in range(10):
            greedy.send(ask(0), VERSION).add_done_callback(lambda one: one.cancelled() or one.exception())
        await eventually(lambda: len(kit.broker.lookups._waiting) == 3)
        greedy.close()
        await eventually(lambda: not kit.broker._dispatcher._later)
        for of in busy:
            kit.broker.lookups.leave(of)
        assert (kit.broker.lookups._free, kit.broker.lookups._waiting) == (2, {})

    run(story)
