"""How clients and brokers share the room with others of their kind, and that neither takes it from the other."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.kits.netkit import (
    CONTROL,
    LoopClock,
    Parking,
    Scene,
    every_loop,
    framed,
    quiet,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.host.clock import SystemClock
from tidelog.net.channel import Call
from tidelog.net.server import InterBroker
from tidelog.net.share import STEP_BYTES, Share
from tidelog.wire.api import API_VERSIONS

BOUND = 16 * STEP_BYTES
LARGE = 2 * STEP_BYTES
MIDDLE = 900_000
SHORT = 100_000
LIMITS = server_limits(queued_max_request_bytes=BOUND, socket_request_max_bytes=BOUND)
BROKERS = InterBroker(keys=frozenset((CONTROL,)))
CLOSED = "tidelog_slow_connections_closed_total"
USED = "kafka_network_socketserver_memorypoolused"


async def parked(made: Scene, parking: Parking, count: int, size: int, key: int = 0) -> int:
    """That many connections send two such requests each; how many requests are complete when nothing more is read."""
    for number in range(count):
        client = await made.connect()
        client.send(*(request(1000 + 2 * number + part, size=size, key=key) for part in (0, 1)))
    return await quiet(lambda: len(parking.calls))


@every_loop
@pytest.mark.parametrize("size", [10_000, SHORT, LARGE])
async def test_what_brokers_hold_keeps_no_client_from_being_read(size: int):
    """Anybody can call itself a broker."""
    parking = Parking()
    async with scene(parking, limits=LIMITS, inter_broker=BROKERS) as made:
        await parked(made, parking, 30, LARGE, CONTROL)
        assert BOUND // 8 <= made.server.room.brokers.held < BOUND // 2
        client = await made.connect()
        for number in range(3):
            client.send(request(number, size=size))
            await until(lambda: number in parking.calls)  # noqa: B023 - it is awaited here
            parking.answer(number)
            await client.receive()


@every_loop
@pytest.mark.parametrize("size", [10_000, SHORT, LARGE])
async def test_what_clients_hold_keeps_no_broker_from_being_read(size: int):
    parking = Parking()
    async with scene(parking, limits=LIMITS, inter_broker=BROKERS) as made:
        await parked(made, parking, 30, MIDDLE)
        assert made.server.room.clients.held > BOUND - STEP_BYTES
        broker = await made.connect()
        for number in range(3):
            broker.send(request(number, size=size, key=CONTROL))
            await until(lambda: number in parking.calls)  # noqa: B023 - it is awaited here
            parking.answer(number)
            await broker.receive()


@every_loop
async def test_complete_large_requests_hold_half_of_the_room_and_others_have_the_rest():
    parking = Parking()
    async with scene(parking, limits=LIMITS) as made:
        complete = 0
        for number in range(20):
            client = await made.connect()
            client.send(request(1000 + number, size=LARGE))
            complete = await quiet(lambda: len(parking.calls))
        assert complete == BOUND // 2 // LARGE, "one after the other"
        client = await made.connect()
        for number, size in enumerate((16, SHORT, MIDDLE) * 2):
            client.send(request(number, size=size))
            await until(lambda: number in parking.calls)  # noqa: B023 - it is awaited here
            parking.answer(number)
            await client.receive()
        for done in range(20):
            await until(lambda: bool(parking.calls))
            parking.answer(next(iter(parking.calls)))
            assert len(made.calls) >= done
        await until(lambda: made.metric(USED) == 0)


@simulated
async def test_large_requests_that_wait_until_others_are_handled_are_not_closed():
    """Half-read ones hold half of the room. That they make room would help none of them."""
    parking = Parking()
    async with scene(parking, limits=LIMITS, clock=LoopClock()) as made:
        half_read = [await made.connect(limit=2 * LARGE) for _ in range(8)]
        for number, client in enumerate(half_read):
            client.write(framed(request(number, size=LARGE))[: STEP_BYTES - 1000])
        await until(lambda: made.server.room.held == 8 * STEP_BYTES)
        for number in range(4):
            (await made.connect()).send(request(100 + number, size=LARGE))
            await until(lambda: 100 + number in parking.calls)  # noqa: B023 - it is awaited here
        for number, client in enumerate(half_read):
            client.write(framed(request(number, size=LARGE))[STEP_BYTES - 1000 :])
        await until(lambda: len(made.server.room.clients.waiting) == 8)
        await asyncio.sleep(20)
        assert made.metric(CLOSED) == 0
        for number in range(4):
            parking.answer(100 + number)
        for number, client in enumerate(half_read):
            await until(lambda: number in parking.calls)  # noqa: B023 - it is awaited here
            parking.answer(number)
            await client.receive()


@every_loop
async def test_short_requests_do_not_wait_for_megabytes_of_others_while_they_hold_little_themselves():
    parking = Parking()
    async with scene(parking, limits=LIMITS) as made:
        await parked(made, parking, 30, MIDDLE)
        assert made.server.room.clients.held > BOUND - STEP_BYTES
        before = len(parking.calls)
        short = [await made.connect() for _ in range(30)]
        for number, client in enumerate(short):
            client.send(request(number, size=SHORT))
        complete = await quiet(lambda: len(parking.calls)) - before
        assert (BOUND // 8) // SHORT <= complete <= (BOUND // 8 + STEP_BYTES) // SHORT
        assert made.server.room.held <= BOUND + BOUND // 8
        while len(parking.calls) < before + 30:
            parking.answer(min(parking.calls))
            before -= 1
            await quiet(lambda: len(parking.calls))


@simulated
async def test_a_request_passes_those_of_connections_that_hold_much():
    """Each of them has megabytes that wait to be handled, and asks for as little as the other."""
    parking = Parking()
    async with scene(parking, limits=LIMITS, clock=LoopClock()) as made:
        greedy = [await made.connect() for _ in range(10)]
        for number in range(20):
            for client_number, client in enumerate(greedy):
                client.send(request(1000 + 100 * client_number + number, size=SHORT))
            await quiet(lambda: len(parking.calls), turns=3)
        client = await made.connect()
        client.send(request(1, size=SHORT))
        await quiet(lambda: len(made.server.room.clients.waiting))
        assert 1 not in parking.calls
        for _ in range(2):
            parking.answer(max(parking.calls))
            await quiet(lambda: len(parking.calls))
        assert 1 in parking.calls


@simulated
async def test_unread_answers_to_brokers_have_a_bound():
    """Brokers do not wait for the room of answers, but who reads none of them is closed."""

    def handle(call: Call) -> None:
        call.answer([framed(bytes(6 * STEP_BYTES))])

    async with scene(handle, limits=LIMITS, inter_broker=BROKERS, clock=LoopClock()) as made:
        for _ in range(8):
            (await made.connect()).send(request(1, key=CONTROL))
        await until(lambda: made.server.room.brokers.answers > 6 * STEP_BYTES)
        await asyncio.sleep(6)
        assert made.server.room.brokers.answers <= BOUND // 4
        assert made.metric(CLOSED) > 0


@every_loop
async def test_what_a_connection_held_before_it_was_known_as_a_brokers_moves_to_their_share():
    parking = Parking()
    async with scene(parking, limits=LIMITS, inter_broker=BROKERS) as made:
        room, client = made.server.room, await made.connect()
        client.send(request(1, size=16, key=API_VERSIONS), request(2, size=SHORT, key=API_VERSIONS))
        await until(lambda: len(parking.calls) == 2)
        assert (room.clients.held, room.brokers.held) == (16 + SHORT, 0)
        client.send(request(3, size=100, key=CONTROL))
        await until(lambda: 3 in parking.calls)
        assert (room.clients.held, room.brokers.held) == (0, 16 + SHORT + 100)
        assert (room.clients.short, room.brokers.short) == (0, SHORT)
        for number in (1, 2, 3):
            parking.answer(number)
        assert room.held == room.brokers.short == room.brokers.complete == 0


@every_loop
async def test_a_large_request_of_a_broker_is_known_though_its_first_bytes_come_one_by_one():
    parking = Parking()
    name = b"broker-12-fetcher-0"
    asked = framed(struct.pack(">hhih", 1, 0, 7, len(name)) + name + bytes(SHORT))
    async with scene(parking, limits=LIMITS, inter_broker=BROKERS) as made:
        client = await made.connect()
        for start in range(60):
            client.write(asked[start : start + 1])
            await asyncio.sleep(0.001)
        client.write(asked[60:])
        await until(lambda: bool(parking.calls))
        assert made.server.room.brokers.held == len(asked) - 4


class _Paused:
    """A connection that waits with a small request, as the share sees it."""

    def __init__(self, held: int) -> None:
        self.releasable_bytes = held
        self.request_bytes = 100
        self.read_on = 0

    def room_came(self, size: int) -> None:
        self.read_on += 1


def test_light_connections_do_not_wait_behind_a_heavy_one_that_is_due_earlier():
    share = Share(SystemClock(), lambda: None, is_of_brokers=False)
    share.limit = 8 * STEP_BYTES
    share.held = 12 * STEP_BYTES
    heavy, dealt, light = _Paused(64 * 1024), _Paused(0), [_Paused(0) for _ in range(5)]
    share.pause(heavy)
    for _ in range(20):  # room that others get meanwhile
        share.held = 9 * STEP_BYTES
        share.pause(dealt)
        share.admit()
    share.held = 12 * STEP_BYTES
    for connection in light:
        assert share.is_full_for(connection)
        share.pause(connection)
    share.held = 9 * STEP_BYTES
    while share.may_go_on:
        share.admit()
    assert [connection.read_on for connection in light] == [1] * 5
    assert heavy.read_on == 0
    share.held = 7 * STEP_BYTES
    share.admit()
    assert heavy.read_on == 1


def test_light_connections_do_not_wait_behind_one_that_became_heavy_while_it_was_paused():
    """Its client does not take the answer to the request for which it was paused."""
    share = Share(SystemClock(), lambda: None, is_of_brokers=False)
    share.limit = 8 * STEP_BYTES
    share.held = 12 * STEP_BYTES
    greedy, light = _Paused(0), [_Paused(0) for _ in range(5)]
    for connection in (greedy, *light):
        share.pause(connection)
    greedy.releasable_bytes = 64 * 1024
    share.held = 9 * STEP_BYTES
    while share.may_go_on:
        share.admit()
    assert [connection.read_on for connection in light] == [1] * 5
    assert greedy.read_on == 0
    share.held = 7 * STEP_BYTES
    share.admit()
    assert greedy.read_on == 1


def test_a_connection_that_became_light_while_it_was_paused_does_not_wait_with_the_heavy_ones():
    """All its requests were answered meanwhile."""
    share = Share(SystemClock(), lambda: None, is_of_brokers=False)
    share.limit = 8 * STEP_BYTES
    share.held = 12 * STEP_BYTES
    heavy, answered, taken = _Paused(200 * 1024), _Paused(250 * 1024), _Paused(250 * 1024)
    for connection in (heavy, answered, taken):
        share.pause(connection)
    share.held = 9 * STEP_BYTES
    answered.releasable_bytes = taken.releasable_bytes = 0
    share.lighter(answered)
    share.answers_gone(taken, 0, is_all=True)
    while share.may_go_on:
        share.admit()
    assert [connection.read_on for connection in (heavy, answered, taken)] == [0, 1, 1]
