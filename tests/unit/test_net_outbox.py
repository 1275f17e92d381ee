"""Answers with regions of files: read in slices as the client takes them, cold ones elsewhere, gone ones the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from tests.kits.netkit import (
    FakeRegion,
    Scene,
    announced,
    echo,
    every_loop,
    number_of,
    quiet,
    real_loops,
    request,
    scene,
    until,
)
from tidelog.net import connection, outbox
from tidelog.net.channel import Call

MEGABYTE = 1024 * 1024
SOCKETS_BYTES = 12 * MEGABYTE
"""More than the kernel holds for one connection on this machine, both ends together."""


def regions_by_number(region_of: Callable[[int], FakeRegion]) -> Callable[[Call], None]:
    def handle(call: Call) -> None:
        assert call.frame is not None
        number = number_of(call.frame)
        call.answer(announced(b"head", region_of(number), b"tail"))

    return handle


def whole(size: int) -> bytes:
    return b"head" + FakeRegion.content(0, size) + b"tail"


@every_loop
@pytest.mark.parametrize("cold", [False, True])
async def test_regions_of_all_sizes_arrive_whole(cold: bool):
    sizes = [0, 1, outbox.SLICE_BYTES - 1, outbox.SLICE_BYTES, outbox.SLICE_BYTES + 1, 3_000_000]
    async with scene(regions_by_number(lambda number: FakeRegion(number, cold=cold))) as made:
        client = await made.connect(limit=2**24)
        client.send(*(request(size) for size in sizes))
        for size in sizes:
            assert await client.receive() == whole(size)


@every_loop
async def test_regions_are_read_in_slices_and_each_once():
    region = FakeRegion(10 * outbox.SLICE_BYTES + 77)
    async with scene(regions_by_number(lambda _: region)) as made:
        client = await made.connect(limit=2**24)
        assert await client.ask(request(1)) == whole(region.size)
        assert [start for start, _ in region.reads] == list(range(0, region.size, outbox.SLICE_BYTES))
        assert max(size for _, size in region.reads) <= 256 * 1024


@every_loop
@pytest.mark.parametrize("cold", [False, True])
async def test_a_client_that_does_not_read_costs_a_slice_and_stops_nobody(cold: bool):
    region = FakeRegion(2 * SOCKETS_BYTES, cold=cold)
    handle = regions_by_number(lambda number: region if number == 1 else FakeRegion(100))
    async with scene(handle) as made:
        stalled, other = await made.connect(), await made.connect()
        stalled.send(request(1))
        read = await quiet(lambda: region.bytes_read, turns=10)
        assert read < SOCKETS_BYTES
        theirs = made.calls[0].connection
        assert theirs._transport.get_write_buffer_size() <= outbox.SLICE_BYTES + outbox.HIGH_WATER_BYTES
        for _ in range(20):
            assert await other.ask(request(2)) == whole(100)
        assert region.bytes_read == read
        assert await stalled.receive() == whole(region.size)
        assert region.bytes_read == region.size


@every_loop
async def test_a_large_answer_in_memory_is_handed_over_in_slices():
    """All of it at once would be one copy of all of it, while everybody waits."""
    large = bytes(range(256)) * (2 * SOCKETS_BYTES // 256)

    def handle(call: Call) -> None:
        assert call.frame is not None
        call.answer((len(large).to_bytes(4), large) if number_of(call.frame) == 1 else (b"\0\0\0\1", b"x"))

    async with scene(handle) as made:
        slow, other = await made.connect(limit=2**26), await made.connect()
        slow.send(request(1), request(2))
        assert await other.ask(request(2)) == b"x"
        transport = made.calls[0].connection._transport
        assert await quiet(transport.get_write_buffer_size, turns=10) <= outbox._GATHERED_BYTES
        assert await slow.receive() == large
        assert await slow.receive() == b"x"


@every_loop
async def test_a_slow_client_makes_reads_as_it_takes_them():
    region = FakeRegion(40 * MEGABYTE)
    async with scene(regions_by_number(lambda _: region)) as made:
        client = await made.connect()
        client.send(request(1))
        taken = 4 + 8
        for _ in range(10):
            await quiet(lambda: region.bytes_read, turns=3)
            assert region.bytes_read < taken + SOCKETS_BYTES
            await client.reader.readexactly(MEGABYTE)
            taken += MEGABYTE


@every_loop
async def test_many_answers_for_one_connection_keep_their_order_behind_a_cold_one():
    def region_of(number: int) -> FakeRegion:
        return FakeRegion(1000 * number, cold=number % 3 == 0)

    async with scene(regions_by_number(region_of)) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(300)))
        for number in range(300):
            assert await client.receive() == whole(1000 * number)


@every_loop
async def test_reading_goes_on_when_the_last_cold_slice_went_by_itself():
    """No pause of the transport and no new answer says so then: the outbox itself has to."""
    count = connection._MAX_UNANSWERED
    async with scene(regions_by_number(lambda _: FakeRegion(10, cold=True))) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(4 * count)))
        for _ in range(4 * count):
            assert await client.receive() == whole(10)
        assert await client.ask(request(5)) == whole(10)


@every_loop
async def test_reading_goes_on_after_a_turn_that_was_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox, "_TURN_BYTES", 1)
    count = connection._MAX_UNANSWERED
    async with scene(regions_by_number(lambda _: FakeRegion(10))) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(2 * count)))
        for _ in range(2 * count):
            assert await client.receive() == whole(10)
        assert await client.ask(request(5)) == whole(10)


@every_loop
async def test_a_long_answer_lets_others_have_their_turn():
    """Both ends read as fast as they can; the small answer does not wait for all of the large one."""
    region = FakeRegion(30 * MEGABYTE)
    handle = regions_by_number(lambda number: region if number == 1 else FakeRegion(10))
    async with scene(handle) as made:
        large, small = await made.connect(limit=2**26), await made.connect()
        large.send(request(1))
        receiving = asyncio.ensure_future(large.receive())
        await until(lambda: region.bytes_read > 0)
        assert await small.ask(request(2)) == whole(10)
        assert region.bytes_read < region.size
        assert await receiving == whole(region.size)


@every_loop
@pytest.mark.parametrize("cold", [False, True])
async def test_a_region_that_is_gone_ends_its_connection_with_one_line(cold: bool, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    region = FakeRegion(MEGABYTE, cold=cold, gone_from=2 * outbox.SLICE_BYTES)
    handle = regions_by_number(lambda number: region if number == 1 else FakeRegion(10))
    async with scene(handle) as made:
        client, other = await made.connect(), await made.connect()
        client.send(request(1), request(2))
        rest = await client.ended()
        assert len(rest) <= 4 + 4 + 2 * outbox.SLICE_BYTES
        assert await other.ask(request(3)) == whole(10)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1
        assert "orders-0 was cut" in lines[0]


@every_loop
async def test_a_read_that_is_cancelled_ends_its_connection():
    class Cancelled(FakeRegion):
        async def read(self, start: int, size: int) -> bytes:
            raise asyncio.CancelledError

    async with scene(regions_by_number(lambda _: Cancelled(10, cold=True))) as made:
        client = await made.connect()
        client.send(request(1))
        assert len(await client.ended()) <= 8


@every_loop
async def test_a_client_that_goes_while_a_region_is_being_read_leaves_nothing_behind():
    begun: list[asyncio.Future[None]] = []

    class Slow(FakeRegion):
        async def read(self, start: int, size: int) -> bytes:
            begun.append(asyncio.get_running_loop().create_future())
            await begun[-1]
            return self.content(start, size)

    async with scene(regions_by_number(lambda _: Slow(10, cold=True))) as made:
        client = await made.connect()
        client.send(request(1), request(2))
        await until(lambda: bool(begun))
        client.close()
        await until(lambda: made.server.admission.count == 0)
        begun[0].set_result(None)
        await quiet(lambda: len(begun))
        assert len(begun) == 1


@real_loops
async def test_a_hundred_stalled_clients_and_one_that_reads():
    regions = [FakeRegion(32 * MEGABYTE) for _ in range(101)]
    async with scene(regions_by_number(lambda number: regions[number])) as made:
        stalled = [await _ask_and_sleep(made, number) for number in range(100)]
        assert len(stalled) == 100
        reader = await made.connect(limit=2**24)
        assert await reader.ask(request(100)) == whole(32 * MEGABYTE)
        await quiet(lambda: sum(region.bytes_read for region in regions), turns=5)
        unsent = sum(
            call.connection._transport.get_write_buffer_size() for call in made.calls if not call.connection.is_closed
        )
        assert unsent <= 100 * (outbox.SLICE_BYTES + outbox.HIGH_WATER_BYTES)


async def _ask_and_sleep(made: Scene, number: int) -> None:
    client = await made.connect(limit=1024)
    client.send(request(number))


@every_loop
async def test_bytes_of_every_kind_are_sent():
    def handle(call: Call) -> None:
        assert call.frame is not None
        if number_of(call.frame) == 1:
            call.answer(announced(b"a", bytearray(b"b"), memoryview(b"c"), FakeRegion(3), b"", memoryview(b"d")))
        else:
            echo(call)

    async with scene(handle) as made:
        client = await made.connect()
        assert await client.ask(request(1)) == b"abc" + FakeRegion.content(0, 3) + b"d"
        assert await client.ask(request(2)) == request(2)
