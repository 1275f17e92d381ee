"""The bound for the bytes of requests that the whole broker holds, and the deadline for requests that are half read."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable

import pytest

from tests.kits.netkit import (
    CONTROL,
    Client,
    LoopClock,
    Parking,
    Scene,
    every_loop,
    framed,
    number_of,
    quiet,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.net.channel import Call
from tidelog.net.server import InterBroker
from tidelog.net.share import SMALL_BYTES, STEP_BYTES

BOUND = 4 * STEP_BYTES
BIG = 3 * STEP_BYTES
USED = "kafka_network_socketserver_memorypoolused"
WAITING = "tidelog_memory_pool_waiting_connections"
BOUNDED = server_limits(queued_max_request_bytes=BOUND, socket_request_max_bytes=BOUND)


def begun(number: int, size: int, sent: int) -> bytes:
    """The first bytes of a request of that size."""
    return framed(request(number, size=size))[:sent]


async def settled(made: Scene) -> float:
    return await quiet(lambda: made.metric(USED))


@every_loop
async def test_requests_hold_room_until_they_are_answered_and_then_none():
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        client = await made.connect()
        client.send(request(1), request(2, size=BIG))
        await until(lambda: len(parking.calls) == 2)
        assert made.metric(USED) == 16 + BIG
        parking.answer(2)
        assert made.metric(USED) == 16
        parking.answer(1)
        assert made.metric(USED) == 0


@every_loop
async def test_a_request_that_only_waits_can_let_go_of_its_bytes():
    """A produce in purgatory has been written: its bytes are in the log."""
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        client = await made.connect()
        client.send(request(1, size=BIG))
        await until(lambda: 1 in parking.calls)
        parking.calls[1].let_go()
        assert made.metric(USED) == 0
        assert parking.calls[1].frame is None
        parking.answer(1)
        assert number_of(await client.receive()) == 1
        assert made.metric(USED) == 0


@every_loop
@pytest.mark.parametrize("is_closed_by_us", [True, False])
async def test_bytes_that_are_worked_on_count_though_the_client_has_gone(is_closed_by_us: bool):
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        client = await made.connect()
        client.send(request(1, size=BIG), request(2), request(3))
        await until(lambda: len(parking.calls) == 3)
        kept = [parking.calls[1], parking.calls[2]]
        for call in kept:
            call.connection.keep(call)
        if is_closed_by_us:
            kept[0].connection.close("enough")
        else:
            client.close()
        await until(lambda: made.server.admission.count == 0)
        assert made.metric(USED) == BIG + 16
        assert parking.calls[3].frame is None
        for call in kept:
            call.let_go()
            call.let_go()
        assert made.metric(USED) == 0


@every_loop
async def test_bytes_that_were_worked_on_and_let_go_do_not_count_twice():
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        client = await made.connect()
        client.send(request(1, size=BIG), request(2))
        await until(lambda: len(parking.calls) == 2)
        for call in parking.calls.values():
            call.connection.keep(call)
        parking.calls[1].let_go()
        parking.answer(2)
        parking.answer(1)
        assert number_of(await client.receive()) == 1
        client.close()
        await until(lambda: made.server.admission.count == 0)
        assert made.metric(USED) == 0


@every_loop
async def test_what_does_not_fit_is_not_read_until_room_comes_back_and_all_get_through():
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        clients = [await made.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(request(number, size=BIG))
            await quiet(lambda: (len(parking.calls), made.metric(USED)))
        assert list(parking.calls) == [0]
        assert made.metric(WAITING) == 3
        assert made.metric(USED) <= BOUND
        for _ in clients:
            await until(
                lambda: bool(parking.calls)
            )  # room is given step by step, so a later request may be complete first
            assert await settled(made) <= BOUND + BIG
            number = next(iter(parking.calls))
            parking.answer(number)
            assert number_of(await clients[number].receive()) == number
        assert made.metric(USED) == 0


@every_loop
async def test_small_requests_wait_too_while_small_ones_hold_an_eighth_but_not_those_of_who_holds_hardly_anything():
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        large, many, small = [await made.connect() for _ in range(3)]
        large.send(request(0, size=BOUND))
        await until(lambda: 0 in parking.calls)
        count = BOUND // 8 // 10_000
        many.send(*(request(100 + number, size=10_000) for number in range(count + 1)))
        await until(lambda: len(parking.calls) == count + 2)
        small.send(request(1))
        await until(lambda: 1 in parking.calls)
        small.send(request(2))
        await until(lambda: 2 in parking.calls)
        many.send(request(3))
        assert await quiet(lambda: len(parking.calls)) == count + 4
        assert made.metric(WAITING) == 1
        parking.answer(0)
        await until(lambda: 3 in parking.calls)


@every_loop
async def test_room_that_comes_back_goes_first_to_who_holds_little():
    """Very many connections hold much, and each small request that is answered makes room for one more."""
    parking, heavy, few = Parking(), 20, 10_000
    async with scene(parking, limits=BOUNDED) as made:
        share = made.server.room.clients
        clients = [await made.connect() for _ in range(heavy)]
        for at, client in enumerate(clients):
            client.send(*(request(1000 * at + number, size=few) for number in range(2, 2 + 2 * BOUND // few // heavy)))
        before = await quiet(lambda: len(parking.calls))
        assert share.paused, "some may have been read to their end"
        light = await made.connect()
        for _ in range(100):
            light.send(request(-1))
            await until(lambda: -1 in parking.calls)
            parking.answer(-1)
            await light.receive()
        assert await quiet(lambda: len(parking.calls)) == before
        while share.held >= share.limit:
            parking.answer(next(iter(parking.calls)))
        assert await quiet(lambda: share.held) < share.limit + 2 * SMALL_BYTES, "not all of them read on at once"


@every_loop
async def test_announcements_take_no_room():
    """Each client that announces much and sends little holds a step at most, so the others are served."""
    async with scene(limits=server_limits(queued_max_request_bytes=30 * STEP_BYTES)) as made:
        for number in range(20):
            (await made.connect()).write(begun(number, 20 * STEP_BYTES, 30_000))
        assert await settled(made) == 20 * STEP_BYTES
        client = await made.connect()
        assert number_of(await client.ask(request(99, size=BIG))) == 99


async def timed(client: Client, payload: bytes) -> float:
    """How many seconds its answer took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client.send(payload)
    (size,) = struct.unpack(">i", await asyncio.wait_for(client.reader.readexactly(4), 300))
    assert size == len(payload)
    await client.reader.readexactly(size)
    return loop.time() - began


@simulated
async def test_requests_that_announce_much_and_do_not_come_give_back_what_they_do_not_use():
    """They held a step each. From then on others get through, and one of them that goes on is served like any other."""
    async with scene(limits=BOUNDED, clock=LoopClock()) as made:
        stalled = [await made.connect(limit=2 * BIG) for _ in range(6)]
        for number, client in enumerate(stalled):
            client.write(begun(number, BIG, 17_000))
        client = await made.connect(limit=2 * BIG)
        assert await timed(client, request(9, size=50_000)) < 1
        assert await timed(client, request(9, size=BIG)) < 1
        assert made.metric(USED) < 6 * STEP_BYTES // 4
        for number, client in enumerate(stalled):
            client.write(framed(request(number, size=BIG))[17_000:])
            assert len(await client.reader.readexactly(4 + BIG)) == 4 + BIG
        assert made.metric("tidelog_slow_connections_closed_total") == 0
        assert made.metric(USED) == made.server.room.clients.unfinished == 0


@simulated
async def test_small_requests_do_not_wait_for_half_read_ones_though_a_complete_one_waits():
    parking = Parking()
    async with scene(parking, limits=BOUNDED, clock=LoopClock()) as made:
        waiting, small = await made.connect(), await made.connect()
        waiting.send(request(1))
        await until(lambda: 1 in parking.calls)
        for number in range(2):
            (await made.connect()).write(begun(10 + number, BIG, 2 * STEP_BYTES - 10))
        assert await settled(made) >= BOUND
        began = asyncio.get_running_loop().time()
        for number in range(100, 200):
            small.send(request(number, size=10_000))
            await until(lambda: number in parking.calls)  # noqa: B023 - it is awaited here
            parking.answer(number)
            await small.receive()
        assert asyncio.get_running_loop().time() - began < 2


@simulated
async def test_small_requests_beyond_the_bound_have_a_bound():
    """Half-read requests hold all of the room, and complete ones up to an eighth of it beyond."""
    parking = Parking()
    async with scene(parking, limits=BOUNDED, clock=LoopClock()) as made:
        for number in range(2):
            (await made.connect()).write(begun(10 + number, BIG, 2 * STEP_BYTES - 10))
        assert await settled(made) == BOUND
        small = [await made.connect() for _ in range(3)]
        for client in small:
            client.send(*(request(number, size=10_000) for number in range(100)))
        assert await settled(made) <= BOUND + BOUND // 8 + 3 * 2 * 10_000
        assert made.metric(WAITING) == 3
        while len(made.sent) < 300:
            await until(lambda: bool(parking.calls))
            for call in made.calls:
                if not call.is_done:
                    call.answer([framed(b"done")])
            parking.calls.clear()
            await quiet(lambda: len(made.calls))


@simulated
async def test_requests_that_were_sent_in_part_make_room_when_others_have_waited_too_long():
    """All of the room is held by bytes that have really come. Whoever comes on is not closed for it."""
    async with scene(limits=BOUNDED, clock=LoopClock()) as made:
        stalled = [await made.connect() for _ in range(3)]
        for number, client in enumerate(stalled):
            client.write(begun(number, BIG, STEP_BYTES + 900_000))
        healthy, client = [await made.connect(limit=2 * BIG) for _ in range(2)]
        data = framed(request(7, size=BIG))
        dripping = asyncio.ensure_future(_drip(healthy, data, STEP_BYTES // 2, 1.0, lambda: False))
        await asyncio.sleep(1)
        assert await timed(client, request(9, size=50_000)) < 6
        assert await timed(client, request(9, size=BIG)) < 12
        await dripping
        assert len(await healthy.reader.readexactly(len(data))) == len(data)
        assert made.metric("tidelog_slow_connections_closed_total") <= 3


@simulated
async def test_requests_that_wait_for_each_others_room_make_room_if_none_may_exceed_the_bound():
    """A complete request waits, and so much of the room is complete that no request gets more than its share."""
    parking = Parking()
    async with scene(parking, limits=BOUNDED, clock=LoopClock()) as made:
        waiting, *half, client = [await made.connect() for _ in range(5)]
        waiting.send(request(1, size=BOUND // 8))
        await until(lambda: 1 in parking.calls)
        for number, other in enumerate(half):
            other.write(begun(10 + number, BIG, STEP_BYTES + 100_000))
        await until(lambda: len(made.server.room.clients.waiting) == 3)
        short = await made.connect()
        client.send(request(2, size=STEP_BYTES))
        began = asyncio.get_running_loop().time()
        while 2 not in parking.calls:  # short requests come on meanwhile; that does not show that others do
            short.send(request(3, size=50_000))
            await until(lambda: 3 in parking.calls)
            parking.answer(3)
            await short.receive()
            await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - began < 6
        assert asyncio.get_running_loop().time() - began > 3
        assert made.server.admission.count > 3, "not more are closed than need be"


@simulated
async def test_a_request_that_exceeds_the_bound_and_trickles_does_not_hold_others_up_for_long():
    """A mebibyte within each deadline is enough while no other request waits, and not if others wait for the room."""
    limits = server_limits(queued_max_request_bytes=BOUND, socket_request_max_bytes=20 * STEP_BYTES)
    async with scene(limits=limits, clock=LoopClock()) as made:
        slow, client = [await made.connect(limit=2 * BIG) for _ in range(2)]
        filling = [await made.connect() for _ in range(4)]
        for number, filler in enumerate(filling):
            filler.write(begun(number, 2 * STEP_BYTES, STEP_BYTES))
        await settled(made)
        data = framed(request(7, size=20 * STEP_BYTES))
        slow.write(data[: STEP_BYTES + 17_000])
        await settled(made)
        for filler in filling:
            filler.close()
        rest = data[STEP_BYTES + 17_000 :]
        closed = "tidelog_slow_connections_closed_total"
        dripping = asyncio.ensure_future(_drip(slow, rest, 1_100_000, 2.9, lambda: made.metric(closed) > 0))
        await asyncio.sleep(5)
        for _ in range(3):
            assert await timed(client, request(9, size=BIG)) < 12
        await dripping


@simulated
async def test_a_broker_that_waits_for_room_is_served_before_clients_that_came_earlier():
    parking = Parking()
    inter_broker = InterBroker(keys=frozenset((CONTROL,)))
    async with scene(parking, limits=BOUNDED, inter_broker=inter_broker, clock=LoopClock()) as made:
        large, more, client, broker, other = [await made.connect() for _ in range(5)]
        large.send(request(0, size=BOUND))
        await until(lambda: 0 in parking.calls)
        more.send(request(1, size=STEP_BYTES - 30_000, key=CONTROL))
        await until(lambda: 1 in parking.calls)
        client.send(request(2, size=BIG))
        await until(lambda: len(made.server.room.clients.waiting) == 1)
        broker.send(request(3, size=500_000, key=CONTROL))
        await until(lambda: len(made.server.room.brokers.waiting) == 1)
        other.send(request(4, size=20_000, key=CONTROL))
        await until(lambda: 4 in parking.calls)
        parking.answer(1)
        await until(lambda: 3 in parking.calls)
        assert 2 not in parking.calls


@simulated
async def test_a_request_that_holds_room_has_a_deadline_though_its_client_takes_no_answers():
    """When room came it was not read from, because of the answers; so it did not wait for room any more either."""

    def handle(call: Call) -> None:
        call.answer([framed(bytes(400_000))])

    async with scene(handle, limits=BOUNDED, clock=LoopClock()) as made:
        fillers = [await made.connect() for _ in range(5)]
        for number, filler in enumerate(fillers):
            filler.write(begun(number, BIG, STEP_BYTES))
        assert await settled(made) > BOUND
        greedy = await made.connect()
        greedy.send(*(request(number) for number in range(20)))
        greedy.write(begun(50, BIG, 20_000))
        await until(lambda: len(made.server.room.clients.waiting) == 1 and bool(made.calls))
        (theirs,) = {call.connection for call in made.calls}
        for filler in fillers:
            filler.close()
        await until(lambda: theirs._granted > 0)
        assert not theirs._is_reading
        await asyncio.sleep(40)
        assert made.metric(USED) == 0


@every_loop
async def test_half_read_requests_that_fill_the_room_do_not_stop_everything():
    """The first that waits may exceed the bound when all else is only half read; small requests go through as well."""
    async with scene(limits=BOUNDED) as made:
        stalled = [await made.connect() for _ in range(2)]
        for number, client in enumerate(stalled):
            client.write(begun(number, BIG, 2 * STEP_BYTES - 10))
        assert await settled(made) == BOUND
        client, other, small = [await made.connect() for _ in range(3)]
        for round_ in range(3):
            client.send(request(10 + round_, size=BIG))
            other.send(request(20 + round_, size=BIG))
            assert number_of(await small.ask(request(30))) == 30
            assert number_of(await client.receive()) == 10 + round_
            assert number_of(await other.receive()) == 20 + round_
        assert await settled(made) == BOUND


@every_loop
async def test_room_comes_back_from_a_connection_that_is_closed():
    parking = Parking()
    async with scene(parking, limits=BOUNDED) as made:
        first, half, waiting = [await made.connect() for _ in range(3)]
        first.send(request(0, size=STEP_BYTES), request(3, size=STEP_BYTES))
        await until(lambda: len(parking.calls) == 2)
        half.write(begun(1, BIG, STEP_BYTES + 100))
        assert await settled(made) == BOUND
        waiting.send(request(2, size=BIG))
        await until(lambda: made.metric(WAITING) == 1)
        half.close()
        first.close()
        await until(lambda: 2 in parking.calls)
        waiting.close()
        await until(lambda: made.server.admission.count == 0)
        assert made.metric(USED) == 0
        assert made.metric(WAITING) == 0


@every_loop
@pytest.mark.parametrize("key", [CONTROL, 1])
async def test_brokers_need_not_wait_for_room(key: int):
    """What holds the room may be waiting for them. They are known by what they ask, or by their client id."""
    parking = Parking()
    name = b"broker-12-fetcher-0" if key != CONTROL else b"client"
    asked = struct.pack(">hhih", key, 0, 7, len(name)) + name + bytes(50_000)
    inter_broker = InterBroker(keys=frozenset((CONTROL,)))
    async with scene(parking, limits=BOUNDED, inter_broker=inter_broker) as made:
        large, broker = await made.connect(), await made.connect()
        large.send(request(5, size=BOUND))
        await until(lambda: 5 in parking.calls)
        for _ in range(2):
            broker.send(asked)
            await until(lambda: len(parking.calls) == 2)
            (number,) = set(parking.calls) - {5}
            parking.answer(number)
            await broker.receive()


async def _drip(client: Client, data: bytes, piece: int, every_s: float, is_over: Callable[[], bool]) -> None:
    for start in range(0, len(data), piece):
        if is_over():
            return
        client.write(data[start : start + piece])
        await asyncio.sleep(every_s)


@simulated
async def test_a_request_that_does_not_come_on_has_its_connection_closed(caplog: pytest.LogCaptureFixture):
    """Not only one that stopped: a byte now and then is not enough."""
    caplog.set_level(logging.INFO)
    for sent in (3, 200, 2 * STEP_BYTES):
        async with scene(clock=LoopClock()) as made:
            client = await made.connect()
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(100)
            client.write(begun(1, BIG, sent))
            await asyncio.sleep(29)
            assert made.server.admission.count == 1
            rest = framed(request(1, size=BIG))[sent:]
            await _drip(client, rest, 1, 1.0, lambda: made.server.admission.count == 0)
            assert asyncio.get_running_loop().time() - began < 100 + 30 + 3
            assert made.metric("tidelog_slow_connections_closed_total") == 1
            assert made.metric(USED) == 0
    assert sum("tidelog.request.read.timeout.ms" in record.getMessage() for record in caplog.records) == 3


@simulated
async def test_a_slow_client_that_keeps_a_rate_completes_its_request():
    async with scene(clock=LoopClock()) as made:
        client = await made.connect()
        data = framed(request(1, size=BIG))
        await _drip(client, data, STEP_BYTES // 20, 1.0, lambda: False)
        assert asyncio.get_running_loop().time() > 55
        assert number_of(await client.receive()) == 1


@simulated
async def test_a_request_that_waits_for_room_is_not_too_slow():
    parking = Parking()
    async with scene(parking, limits=BOUNDED, clock=LoopClock()) as made:
        large, waiting = await made.connect(), await made.connect()
        large.send(request(0, size=BOUND))
        await until(lambda: 0 in parking.calls)
        waiting.send(request(1, size=BIG))
        await asyncio.sleep(100)
        parking.answer(0)
        await until(lambda: 1 in parking.calls)
        assert made.metric("tidelog_slow_connections_closed_total") == 0


@simulated
async def test_requests_that_fill_the_room_and_wait_for_more_are_given_up_in_time():
    """Each of them has sent what it was given room for; none may hold that for ever."""
    async with scene(limits=BOUNDED, clock=LoopClock()) as made:
        for number in range(4):
            (await made.connect()).write(begun(number, BIG, 2 * STEP_BYTES + 100_000))
        assert await settled(made) >= BOUND
        client = await made.connect(limit=2 * BIG)
        client.send(request(9, size=BIG))
        began = asyncio.get_running_loop().time()
        assert len(await asyncio.wait_for(client.reader.readexactly(4 + BIG), 200)) == 4 + BIG
        assert asyncio.get_running_loop().time() - began < 12
