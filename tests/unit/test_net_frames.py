"""The server cuts requests out of a stream however that comes in pieces, and ends connections that make no sense."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import pytest

from tests.kits.netkit import (
    Scene,
    echo,
    every_loop,
    framed,
    number_of,
    real_loops,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.net.channel import Call

CHUNK = 16 * 1024
ROOM = 2 * 1024


async def in_pieces(made: Scene, data: bytes, cuts: list[int], expected: int) -> list[bytes]:
    client = await made.connect()
    start = 0
    for cut in [*cuts, len(data)]:
        client.write(data[start:cut])
        await asyncio.sleep(0)
        await client.writer.drain()
        start = cut
    answers = [await client.receive() for _ in range(expected)]
    client.close()
    return answers


@every_loop
async def test_frames_cut_at_every_byte():
    payloads = [request(number, size=6 + number) for number in range(3)]
    data = b"".join(framed(payload) for payload in payloads)
    async with scene() as made:
        for cut in range(1, len(data)):
            assert await in_pieces(made, data, [cut], 3) == payloads


@every_loop
async def test_frames_one_byte_at_a_time():
    payloads = [request(number, size=9) for number in range(20)]
    data = b"".join(framed(payload) for payload in payloads)
    async with scene() as made:
        assert await in_pieces(made, data, list(range(1, len(data))), 20) == payloads


@every_loop
async def test_frames_of_all_sizes_in_random_pieces():
    chance = random.Random(5)
    async with scene() as made:
        for _ in range(8):
            sizes = [chance.choice((6, 7, 100, 2000, 14_336, 14_337, 16_380, 16_384, 40_000)) for _ in range(30)]
            payloads = [request(number, size=size) for number, size in enumerate(sizes)]
            data = b"".join(framed(payload) for payload in payloads)
            cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(60)))
            assert await in_pieces(made, data, cuts, 30) == payloads


@every_loop
async def test_frames_at_the_borders_of_a_chunk():
    borders = [CHUNK - ROOM, CHUNK - ROOM - 4, CHUNK - 4, CHUNK, CHUNK + 4, 2 * CHUNK, 2 * CHUNK - 4]
    sizes = [border + delta for border in borders for delta in (-2, -1, 0, 1, 2)]
    async with scene() as made:
        client = await made.connect()
        for first in (6, ROOM, CHUNK - ROOM - 5):
            for number, size in enumerate(sizes):
                payloads = [request(1, size=first), request(number, size=size), request(3)]
                client.send(*payloads)
                assert [await client.receive() for _ in payloads] == payloads


@every_loop
async def test_a_border_of_a_chunk_falls_into_every_byte_of_a_frame():
    last = request(9, size=12)
    async with scene() as made:
        for size in range(CHUNK - 40, CHUNK + 2):
            filler = [request(1, size=CHUNK // 2 - 4), request(2, size=size - CHUNK // 2 - 4)]
            client = await made.connect()
            client.send(*filler, last, last)
            assert [await client.receive() for _ in range(4)] == [*filler, last, last]
            client.close()


@every_loop
async def test_thousands_of_small_frames_in_one_write():
    async with scene() as made:
        client = await made.connect()
        payloads = [request(number) for number in range(5000)]
        client.send(*payloads)
        assert [await client.receive() for _ in payloads] == payloads


@every_loop
async def test_a_frame_much_larger_than_a_chunk_between_small_ones():
    async with scene() as made:
        client = await made.connect()
        payloads = [request(1), request(2, size=3_000_000), request(3), request(4, size=1_000_000), request(5)]
        client.send(*payloads)
        assert [await client.receive() for _ in payloads] == payloads


@every_loop
async def test_views_of_frames_stay_intact_while_they_are_kept():
    kept: list[memoryview] = []

    def keep(call: Call) -> None:
        assert isinstance(call.frame, memoryview)
        kept.append(call.frame)
        echo(call)

    chance = random.Random(3)
    payloads = [request(number, size=chance.choice((6, 50, 700, 5000, 20_000))) for number in range(600)]
    async with scene(keep) as made:
        client = await made.connect()
        for start in range(0, len(payloads), 100):
            client.send(*payloads[start : start + 100])
            for payload in payloads[start : start + 100]:
                assert await client.receive() == payload
        assert [bytes(view) for view in kept] == payloads


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 2, 1025, 2**31 - 1, 0x47455420])
def test_a_size_that_cannot_be_ends_the_connection_with_one_line(size: int, caplog: pytest.LogCaptureFixture):
    """The last is "GET ": somebody took the port for a web server."""

    @real_loops
    async def test() -> None:
        caplog.clear()
        async with scene(limits=server_limits(socket_request_max_bytes=1024)) as made:
            other, client = await made.connect(), await made.connect()
            assert await other.ask(request(1)) == request(1)
            client.write(framed(request(2)) + struct.pack(">i", size) + b"x" * 100)
            assert await client.ended() in (b"", framed(request(2)))
            assert await other.ask(request(3)) == request(3)
            lines = [record.getMessage() for record in caplog.records if "closing" in record.getMessage()]
            assert len(lines) == 1
            assert f"a request of {size} bytes" in lines[0]
            assert "socket.request.max.bytes = 1024" in lines[0]

    with caplog.at_level(logging.INFO):
        for kind in ("asyncio", "uvloop"):
            test(kind)


@every_loop
async def test_the_largest_request_allowed_is_served():
    async with scene(limits=server_limits(socket_request_max_bytes=100_000)) as made:
        client = await made.connect()
        assert len(await client.ask(request(1, size=100_000))) == 100_000
        client.write(struct.pack(">i", 100_001))
        assert await client.ended() == b""


@every_loop
async def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_nothing_behind():
    async with scene() as made:
        for size in (3, 4, 5, 100, 20_000):
            client = await made.connect()
            client.write(framed(request(1, size=50_000))[:size])
            await client.writer.drain()
            client.close()
        await until(lambda: made.server.admission.count == 0)
        assert made.calls == []
        assert await (await made.connect()).ask(request(2)) == request(2)


@every_loop
async def test_requests_of_a_client_that_has_gone_are_not_answered():
    waiting: list[Call] = []
    gone: list[int] = []

    def park(call: Call) -> None:
        assert call.frame is not None
        number = number_of(call.frame)
        call.when_gone = lambda: gone.append(number)
        waiting.append(call)

    async with scene(park) as made:
        client = await made.connect()
        client.send(request(1), request(2))
        await until(lambda: len(waiting) == 2)
        client.close()
        await until(lambda: made.server.admission.count == 0)
        assert gone == [1, 2]
        for call in waiting:
            call.answer([b"to nobody"])
        assert made.sent == []


@simulated
async def test_bytes_lost_on_the_way_are_not_half_a_request():
    """A reset in the middle of a frame, at each byte."""
    data = framed(request(1, size=30)) * 2
    async with scene() as made:
        for cut in range(len(data)):
            client = await made.connect()
            client.write(data[:cut])
            await until(lambda: made.server.admission.count == 1)
            await asyncio.sleep(0.1)
            client.writer.transport.abort()
            await until(lambda: made.server.admission.count == 0)
        assert len(made.calls) == sum(cut // 34 for cut in range(len(data)))


@every_loop
async def test_no_memory_for_a_body_ends_that_connection_alone(monkeypatch: pytest.MonkeyPatch):
    from tidelog.net import connection

    blank = connection.blank

    def scarce(size: int) -> bytearray:
        if size > 1_000_000:
            raise MemoryError
        return blank(size)

    monkeypatch.setattr(connection, "blank", scarce)
    async with scene() as made:
        other, client = await made.connect(), await made.connect()
        client.write(struct.pack(">i", 2_000_000) + b"x" * 100)
        assert await client.ended() == b""
        assert await other.ask(request(1)) == request(1)
