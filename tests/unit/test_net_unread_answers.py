"""Clients that do not read their answers: what these answers, and the requests behind them, take of the room."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from tests.kits.netkit import (
    CONTROL,
    Client,
    LoopClock,
    Scene,
    every_loop,
    framed,
    number_of,
    quiet,
    real_loops,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.net import connection
from tidelog.net.channel import Call
from tidelog.net.server import InterBroker
from tidelog.net.share import LIGHT_EIGHTHS, STEP_BYTES

BOUND = 24 * STEP_BYTES
USED = "kafka_network_socketserver_memorypoolused"
CLOSED = "tidelog_slow_connections_closed_total"
LIMITS = server_limits(queued_max_request_bytes=BOUND, socket_request_max_bytes=BOUND)
LARGE = 6 * STEP_BYTES
"""An answer that a client which does not read leaves in the broker: a socket may take 4 MiB of it (tcp_wmem)."""


def large_answers(call: Call) -> None:
    """Odd requests have large answers."""
    assert call.frame is not None
    is_large = number_of(call.frame) % 2
    call.answer([framed(bytes(LARGE) if is_large else b"small")])


async def stalled(made: Scene, *payloads: bytes) -> Client:
    """A client that has a large answer to read and these requests behind it, and reads nothing."""
    client = await made.connect()
    client.send(request(1))
    count = len(made.calls)
    await until(lambda: len(made.calls) > count and made.calls[-1].connection.is_stalled)
    client.send(*payloads)
    return client


async def answer_in(client: Client, payload: bytes, seconds: float) -> float:
    """How many seconds the answer took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client.send(payload)
    async with asyncio.timeout(seconds):
        (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        await client.reader.readexactly(size)
    return loop.time() - began


@simulated
async def test_complete_requests_behind_unread_answers_make_room_for_others(caplog: pytest.LogCaptureFixture):
    """Each client sends a request with a large answer and complete requests behind it, and reads nothing."""
    caplog.set_level(logging.INFO)
    async with scene(large_answers, limits=LIMITS, clock=LoopClock()) as made:
        greedy = [await made.connect() for _ in range(6)]
        for client in greedy:
            client.send(request(1), request(2, size=3 * STEP_BYTES))
        await quiet(lambda: made.metric(USED))
        assert made.metric(USED) >= BOUND
        honest, small = await made.connect(), await made.connect()
        assert await answer_in(honest, request(2, size=100_000), 8) < 6
        assert await answer_in(small, request(2), 8) < 6
        assert made.metric(CLOSED) > 0
        assert "unread answers" in caplog.text


@simulated
async def test_small_requests_that_are_not_read_from_count_as_waiting():
    async with scene(large_answers, limits=LIMITS, clock=LoopClock()) as made:
        small = await made.connect()
        while made.metric(USED) < BOUND + LIGHT_EIGHTHS * BOUND // 8:
            await stalled(made)
        small.send(request(2))
        await small.receive()
        assert await answer_in(small, request(2), 8) > 1
        assert made.metric(CLOSED) > 0


@simulated
async def test_the_connection_that_has_been_behind_for_the_longest_time_is_closed_first_and_no_more_than_need_be():
    async with scene(large_answers, limits=LIMITS, clock=LoopClock()) as made:
        clients = []
        for _ in range(5):
            clients.append(await stalled(made))
            await asyncio.sleep(0.1)
        honest = await made.connect()
        await answer_in(honest, request(2, size=100_000), 8)
        await clients[0].ended()
        assert 3 <= made.server.admission.count <= 5
        answer = await asyncio.wait_for(clients[4].reader.readexactly(4 + LARGE), 8)
        assert len(answer) == 4 + LARGE


@simulated
async def test_unread_answers_close_no_connection_while_others_need_no_room():
    async with scene(large_answers, limits=LIMITS, clock=LoopClock()) as made:
        client = await stalled(made)
        await asyncio.sleep(60)
        assert made.metric(CLOSED) == 0
        assert made.metric(USED) >= LARGE
        assert len(await client.receive()) == LARGE
        await until(lambda: made.metric(USED) == 0)


@simulated
async def test_a_client_that_takes_one_answer_after_the_other_slowly_is_behind_all_the_time():
    """Its last request holds room for as long as the first ones wait for their answers to be taken."""
    async with scene(large_answers, limits=LIMITS, clock=LoopClock()) as made:
        slow, honest = await made.connect(), await made.connect()
        slow.send(*(request(1) for _ in range(20)), request(1, size=BOUND // 2))
        await until(lambda: made.metric(USED) >= LARGE + BOUND // 2)

        async def read_slowly() -> None:
            while True:
                await slow.reader.readexactly(4 + LARGE)
                await asyncio.sleep(2)

        reading = asyncio.ensure_future(read_slowly())
        assert await answer_in(honest, request(2, size=BOUND // 2), 38) < 20, "and not after the 40 s of all answers"
        assert made.metric(CLOSED) == 1
        reading.cancel()


@simulated
async def test_brokers_do_not_wait_for_the_room_that_answers_take():
    inter_broker = InterBroker(keys=frozenset((CONTROL,)))
    async with scene(large_answers, limits=LIMITS, inter_broker=inter_broker, clock=LoopClock()) as made:
        for _ in range(8):
            await stalled(made)
        assert made.metric(USED) > BOUND + BOUND // 4
        broker = await made.connect()
        for _ in range(3):
            assert await answer_in(broker, request(2, size=STEP_BYTES, key=CONTROL), 8) < 1
        assert made.metric(CLOSED) == 0


@every_loop
async def test_answers_hold_room_until_they_are_sent_and_small_ones_none():
    async with scene(large_answers, limits=LIMITS) as made:
        client = await made.connect()
        await client.ask(request(2))
        assert made.metric(USED) == made.server.room.clients.answers == 0
        client.send(request(1), request(1))
        await until(lambda: made.server.room.clients.answers >= LARGE)
        for _ in range(2):
            assert len(await client.receive()) == LARGE
        await until(lambda: made.metric(USED) == 0)
        assert made.server.room.clients.answers == 0


@real_loops
async def test_a_client_that_goes_gives_back_what_its_answers_held():
    async with scene(large_answers, limits=LIMITS) as made:
        client = await stalled(made, request(2))
        assert made.metric(USED) >= LARGE
        client.close()
        await until(lambda: made.server.admission.count == 0)
        assert made.metric(USED) == made.server.room.clients.answers == 0
        assert not made.server.room.clients.untaken


@every_loop
async def test_answers_that_wait_for_an_earlier_one_count_until_they_are_sent():
    first: list[Call] = []

    def handle(call: Call) -> None:
        if not first:
            first.append(call)
        else:
            call.answer([framed(bytes(20_000))])

    async with scene(handle, limits=LIMITS) as made:
        client = await made.connect()
        client.send(request(0))
        await until(lambda: bool(first))
        client.send(request(1), request(2))
        await until(lambda: made.server.room.clients.answers == 2 * 20_004)
        first[0].answer([framed(b"first")])
        for size in (5, 20_000, 20_000):
            assert len(await client.receive()) == size
        await until(lambda: made.metric(USED) == 0)


@every_loop
async def test_nothing_more_is_read_from_a_client_whose_answers_are_too_many():
    async with scene(large_answers, limits=LIMITS) as made:
        client = await stalled(made, *(request(2, size=13_000) for _ in range(100)))
        assert await quiet(lambda: made.server.room.held - made.server.room.clients.answers) == 0
        assert len(await client.receive()) == LARGE
        for _ in range(100):
            assert await client.receive() == b"small"


def test_a_connection_may_have_enough_requests_waiting_for_a_producer_that_sends_ahead():
    """Five requests of a mebibyte, which is what most producers have on their way at most."""
    assert connection._MAX_UNANSWERED_BYTES >= 5 * STEP_BYTES
