"""Order, priority and bounds of the request channel and of the connections that feed it."""

from __future__ import annotations

import asyncio
import logging
import random
from itertools import pairwise

import pytest

from tests.kits.netkit import (
    CONTROL,
    DATA,
    Client,
    Scene,
    echo,
    every_loop,
    framed,
    number_of,
    quiet,
    request,
    scene,
    until,
)
from tidelog.net import connection
from tidelog.net.channel import Call
from tidelog.ports import Clock


class Parking:
    """Takes requests and answers them when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[int, Call] = {}
        self.order: list[int] = []

    def __call__(self, call: Call) -> None:
        assert call.frame is not None
        number = number_of(call.frame)
        self.waiting[number] = call
        self.order.append(number)

    def answer(self, number: int) -> None:
        echo(self.waiting.pop(number))

    def answer_all(self) -> None:
        for number in list(self.waiting):
            self.answer(number)


async def numbers(client: Client, count: int) -> list[int]:
    return [number_of(await client.receive()) for _ in range(count)]


@every_loop
async def test_answers_leave_in_the_order_of_requests_whatever_order_they_are_made_in():
    chance = random.Random(9)
    parking = Parking()
    async with scene(parking) as made:
        client = await made.connect()
        for _ in range(10):
            client.send(*(request(number) for number in range(50)))
            await until(lambda: len(parking.waiting) == 50)
            made_in = list(range(50))
            chance.shuffle(made_in)
            for number in made_in:
                parking.answer(number)
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
            assert await numbers(client, 50) == list(range(50))


@every_loop
async def test_what_waits_for_the_end_of_a_turn_sees_all_of_it_and_a_fault_there_hurts_nobody_else():
    parking, seen, faults = Parking(), [], []

    def handle(call: Call) -> None:
        parking(call)
        if len(parking.order) == 1:
            made.channel.at_end_of_turn(lambda: 1 // 0)
            made.channel.at_end_of_turn(lambda: seen.append(list(parking.order)))
            made.channel.at_end_of_turn(parking.answer_all)

    async with scene(handle) as made:
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
        client = await made.connect()
        client.send(*(request(number) for number in range(5)))
        assert await numbers(client, 5) == list(range(5))
        assert seen == [list(range(5))]
        assert [type(fault) for fault in faults] == [ZeroDivisionError]
        made.channel.at_end_of_turn(lambda: seen.append([]))
        await until(lambda: len(seen) == 2)
        loop.set_exception_handler(before)


@every_loop
@pytest.mark.parametrize("within_a_turn", [True, False])
async def test_what_takes_long_at_the_end_of_a_turn_goes_on_in_the_next_in_its_order(within_a_turn: bool):
    """Between two parts of it the loop looks at its sockets, and other requests are served."""
    clock, order, looks = _Clock(), [], []

    def late(number: int) -> None:
        clock.now_ns += 2_000_000
        order.append(number)
        if number == 0:
            made.channel.at_end_of_turn(lambda: late(100))
            _queue(other, 500)

    def look() -> None:
        looks.append(len(order))
        if 100 not in order:
            asyncio.get_running_loop().call_soon(look)

    def begin() -> None:
        asyncio.get_running_loop().call_soon(look)
        for number in range(10):
            made.channel.at_end_of_turn(lambda number=number: late(number))

    def handle(call: Call) -> None:
        assert call.frame is not None
        order.append(number_of(call.frame))
        if number_of(call.frame) == 400:
            begin()

    async with scene(handle, clock=clock) as made:
        other = _connection(made)
        if within_a_turn:
            _queue(_connection(made), 400)
        else:
            begin()
        await until(lambda: 100 in order)
        start = [400] if within_a_turn else []
        assert order == [*start, 0, 1, 2, 500, 3, 4, 5, 6, 7, 8, 9, 100]
        assert max(after - before for before, after in pairwise([0, *looks])) <= 4


@every_loop
async def test_a_parked_request_keeps_no_later_one_from_being_handled():
    parking = Parking()
    async with scene(parking) as made:
        client = await made.connect()
        client.send(request(1))
        await until(lambda: 1 in parking.waiting)
        client.send(request(2), request(3))
        await until(lambda: len(parking.waiting) == 3)
        parking.answer(3)
        parking.answer(2)
        assert await quiet(lambda: len(made.sent)) == 0
        parking.answer(1)
        assert await numbers(client, 3) == [1, 2, 3]


@every_loop
async def test_a_parked_request_delays_no_other_connection():
    def handle(call: Call) -> None:
        assert call.frame is not None
        if number_of(call.frame) != 1:
            echo(call)

    async with scene(handle) as made:
        parked, other = await made.connect(), await made.connect()
        parked.send(request(1), request(2))
        assert await other.ask(request(3)) == request(3)


@every_loop
async def test_an_answer_of_nothing_keeps_its_place_and_sends_nothing():
    """Produce with acks=0."""

    def handle(call: Call) -> None:
        assert call.frame is not None
        if number_of(call.frame) % 2:
            call.answer(())
        else:
            echo(call)

    async with scene(handle) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(1000)))
        assert await numbers(client, 500) == list(range(0, 1000, 2))


@every_loop
async def test_control_requests_pass_data_requests_of_other_connections():
    """They are put in while the loop is held up, so that all wait at once."""
    parking = Parking()
    async with scene(parking, clock=_Clock()) as made:
        _queue(_connection(made), *range(1, 100))
        for number in range(100, 103):
            _queue(_connection(made), number, key=CONTROL)
        await until(lambda: len(parking.order) == 102)
        assert parking.order == [100, 101, 102, *range(1, 100)]


@every_loop
async def test_what_is_sent_behind_a_control_request_waits_its_turn():
    """A controller waits for each answer before it sends more. So one that sends control requests ahead is none."""
    parking = Parking()
    async with scene(parking, clock=_Clock()) as made:
        attacker, *others = (_connection(made) for _ in range(3))
        _queue(attacker, *range(100, 200), key=CONTROL)
        for number, connection_ in enumerate(others):
            _queue(connection_, number)
        assert made.metric("tidelog_control_request_queue_size") == 100
        await until(lambda: len(parking.order) == 102)
        assert parking.order == [100, 0, 1, *range(101, 200)]
        assert made.metric("tidelog_control_request_queue_size") == 0
        assert made.metric("kafka_network_requestchannel_requestqueuesize") == 0


@every_loop
@pytest.mark.parametrize("control_ns", [0, 3_000_000])
async def test_control_requests_that_never_end_leave_data_requests_their_share(control_ns: int):
    """Each of many connections sends the next control request as soon as the last is answered. While data requests
    wait, they get about half of the time, be it by a clock or by a count."""
    clock, order, counted = _Clock(), [], []

    def handle(call: Call) -> None:
        clock.now_ns += control_ns if call.api_key == CONTROL else 300_000
        order.append(call.api_key)
        if not counted and (order.count(DATA) == 300 or len(order) == 10_000):
            counted.append(order.count(CONTROL))
        if call.api_key == CONTROL and not counted:
            _queue(call.connection, 1, key=CONTROL)

    async with scene(handle, clock=clock) as made:
        for _ in range(70):
            _queue(_connection(made), 1, key=CONTROL)
        for _ in range(3):
            _queue(_connection(made), *range(100))
        await until(lambda: bool(counted))
        assert order[0] == CONTROL, "it is served first as long as there is not too much of it"
        cost_ns, data_ns = control_ns + 50_000, 300 * 350_000
        assert 0.9 * data_ns < counted[0] * cost_ns < data_ns + 5_000_000


@every_loop
async def test_control_requests_have_a_bound_of_their_own():
    """A connection whose control request waits among too many is not read from until fewer wait."""
    parking = Parking()
    async with scene(parking) as made:
        clients = [await made.connect() for _ in range(30)]
        for client in clients:
            client.send(request(0))
        await until(lambda: len(parking.order) == 30)
        theirs = [call.connection for call in made.calls]
        for connection_ in theirs:
            connection_._take(memoryview(request(1, key=CONTROL)))
        assert [connection_._is_reading for connection_ in theirs] == [True] * 19 + [False] * 11
        assert not made.channel.data.is_full
        await until(lambda: len(parking.order) == 60)
        assert all(connection_._is_reading for connection_ in theirs)


@every_loop
async def test_control_requests_do_not_pass_those_of_their_own_connection():
    parking = Parking()
    async with scene(parking) as made:
        client = await made.connect()
        payloads = [request(number, key=CONTROL if number % 3 == 0 else 0) for number in range(60)]
        client.send(*payloads)
        await until(lambda: len(parking.order) == 60)
        assert parking.order == list(range(60))
        parking.answer_all()
        assert await numbers(client, 60) == list(range(60))


@every_loop
async def test_a_full_channel_stops_reading_and_goes_on_and_nothing_is_lost():
    capacity, clients, each = 5, 8, 200
    async with scene(capacity=capacity) as made:
        deepest = 0
        take = made.channel._handle

        def measured(call: Call) -> None:
            nonlocal deepest
            deepest = max(deepest, made.channel.data.requests)
            take(call)

        made.channel._handle = measured
        connected = [await made.connect() for _ in range(clients)]
        for client in connected:
            client.send(*(request(number) for number in range(each)))
        for client in connected:
            assert await numbers(client, each) == list(range(each))
        assert len(made.calls) == clients * each
        assert deepest <= capacity + clients


@every_loop
async def test_control_requests_are_read_while_the_data_queue_is_full():
    """A connection that put no data into the queue is not kept out for it."""
    parking = Parking()
    async with scene(parking, capacity=1) as made:
        control = await made.connect()
        control.send(request(0))
        await until(lambda: 0 in parking.waiting)
        parking.answer(0)
        assert await numbers(control, 1) == [0]
        (theirs,) = (call.connection for call in made.calls)
        made.channel.put(Call(_elsewhere(theirs), memoryview(request(50)), 0, 0))
        assert made.channel.data.is_full
        theirs._take(memoryview(request(1, key=CONTROL)))
        assert theirs._is_reading
        await until(lambda: len(parking.order) == 3)
        assert parking.order == [0, 1, 50]


class _Clock(Clock):
    """Stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_ns = 1

    def wall_ms(self) -> int:
        return self.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns


def _queue(like: connection.ServerConnection, *numbers_: int, key: int = DATA) -> None:
    for number in numbers_:
        like._channel.put(Call(like, memoryview(request(number, key=key)), key, 0))


@every_loop
async def test_connections_are_served_in_turn_however_many_requests_each_of_them_sent_ahead():
    """Each one's requests keep their order, and one that comes late waits for one request of each of the others."""
    order: list[int] = []

    def handle(call: Call) -> None:
        assert call.frame is not None
        order.append(number_of(call.frame))
        if len(order) == 7:
            _queue(late, 500, 501)

    async with scene(handle) as made:
        first, second, late = (_connection(made) for _ in range(3))
        _queue(first, *range(100, 110))
        _queue(second, *range(200, 205))
        await until(lambda: len(order) == 17)
        assert order[:7] == [100, 200, 101, 201, 102, 202, 103]
        assert order[7:12] == [203, 104, 500, 204, 105]
        assert order[12:] == [501, 106, 107, 108, 109]
        assert made.metric("kafka_network_requestchannel_requestqueuesize") == 0


@every_loop
async def test_a_turn_ends_early_when_its_requests_take_long():
    """So that the loop looks at its sockets, and a control request need not wait for 64 slow requests. A request that
    goes on in slices is not handled when its first slice ends, but its time counts too."""
    clock, order, turns = _Clock(), [], []

    def handle(call: Call) -> None:
        assert call.frame is not None
        order.append(number_of(call.frame))
        clock.now_ns += 4_000_000
        if len(order) == 1:
            asyncio.get_running_loop().call_soon(lambda: turns.append(list(order)))

    async with scene(handle, clock=clock) as made:
        _queue(_connection(made), *range(20))
        await until(lambda: len(order) == 20)
        assert turns == [[0, 1, 2]]


@every_loop
async def test_requests_of_a_closed_connection_are_not_handled_and_take_no_room():
    parking = Parking()
    async with scene(parking, capacity=5) as made:
        client = await made.connect()
        client.send(request(0))
        await until(lambda: 0 in parking.waiting)
        theirs = parking.waiting[0].connection
        _queue(theirs, 1, 2, 3, 4, 5)
        assert made.channel.data.is_full
        theirs.close("the test says so")
        assert not made.channel.data.is_full
        other = await made.connect()
        other.send(request(9))
        await until(lambda: 9 in parking.waiting)
        assert parking.order == [0, 9]


def _connection(made: Scene) -> connection.ServerConnection:
    return connection.ServerConnection(made.server._workers[0], "PLAINTEXT", made.channel, 1000)


def _elsewhere(like: connection.ServerConnection) -> connection.ServerConnection:
    return connection.ServerConnection(like._worker, "PLAINTEXT", like._channel, 1000)


@every_loop
async def test_a_connection_that_owed_too_much_is_not_forgotten_when_the_channel_is_full():
    """It may read on for its own part, but there is no room: the channel has to wake it later."""
    async with scene(capacity=1) as made:
        client = await made.connect()
        assert number_of(await client.ask(request(0))) == 0
        theirs = made.calls[0].connection
        theirs._pause_reading()
        made.channel.put(Call(_elsewhere(theirs), memoryview(request(50)), 0, 0))
        theirs.resume()
        assert not theirs._is_reading
        made.channel._handle = lambda call: made.calls.append(call)
        await until(lambda: theirs._is_reading)


@every_loop
async def test_unanswered_requests_of_a_connection_are_bounded():
    parking = Parking()
    async with scene(parking) as made:
        client, other = await made.connect(), await made.connect()
        client.send(*(request(number) for number in range(3000)))
        assert await quiet(lambda: len(parking.waiting)) == connection._MAX_UNANSWERED
        other.send(request(9999))
        await until(lambda: 9999 in parking.waiting)
        parking.answer(9999)
        assert await numbers(other, 1) == [9999]
        got: list[int] = []
        while len(got) < 3000:
            await until(lambda: bool(parking.waiting))
            count = len(parking.waiting)
            parking.answer_all()
            got += await numbers(client, count)
        assert got == list(range(3000))


@every_loop
async def test_unanswered_bytes_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "_MAX_UNANSWERED_BYTES", 1_000_000)
    parking = Parking()
    async with scene(parking) as made:
        client = await made.connect()
        client.send(*(request(number, size=100_000) for number in range(40)))
        assert await quiet(lambda: len(parking.waiting)) == 10
        for number in range(1, 10):
            parking.answer(number)  # out of order: what is answered counts no more, though the first still waits
        assert await quiet(lambda: len(parking.order)) == 19
        parking.answer(0)
        got = await numbers(client, 10)
        while len(got) < 40:
            await until(lambda: bool(parking.waiting))
            count = len(parking.waiting)
            parking.answer_all()
            got += await numbers(client, count)
        assert got == list(range(40))


@every_loop
async def test_answers_that_nobody_takes_are_bounded():
    """Small requests with large answers, all in one write, and a client that does not read."""
    answer_bytes = 500_000

    def handle(call: Call) -> None:
        call.answer([framed(bytes(answer_bytes))])

    async with scene(handle) as made:
        client, other = await made.connect(), await made.connect()
        client.send(*(request(number) for number in range(60)))
        handled = await quiet(lambda: len(made.calls), turns=5)
        assert handled * answer_bytes < 25_000_000, "what the sockets take, and a few more"
        theirs = made.calls[0].connection
        assert theirs._held_bytes + theirs._unsent_bytes < connection._MAX_UNSENT_BYTES + answer_bytes + 4
        assert len(await other.ask(request(1))) == answer_bytes
        for _ in range(60):
            assert len(await client.receive()) == answer_bytes
        assert len(made.calls) == 61


@every_loop
async def test_a_control_request_does_not_pass_requests_set_aside():
    order: list[int] = []

    def handle(call: Call) -> None:
        assert call.frame is not None
        order.append(number_of(call.frame))
        call.answer([framed(bytes(1_000_000))])

    async with scene(handle) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(50)))
        await quiet(lambda: len(order))
        client.send(request(50, key=CONTROL))
        for _ in range(51):
            await client.receive()
        assert order == list(range(51))


@every_loop
async def test_a_handler_that_fails_ends_its_connection_and_no_other(caplog: pytest.LogCaptureFixture):
    def handle(call: Call) -> None:
        assert call.frame is not None
        if number_of(call.frame) == 7:
            raise ZeroDivisionError("a fault of ours")
        echo(call)

    caplog.set_level(logging.INFO)
    async with scene(handle) as made:
        client, other = await made.connect(), await made.connect()
        client.send(request(7), request(8))
        other.send(*(request(number) for number in range(100, 300)))
        assert await client.ended() == b""
        assert await numbers(other, 200) == list(range(100, 300))
        assert len([record for record in caplog.records if "a fault of ours" in record.getMessage()]) == 1


@every_loop
async def test_an_answer_that_cannot_be_sent_ends_its_connection_and_no_other():
    def handle(call: Call) -> None:
        assert call.frame is not None
        if number_of(call.frame) == 7:
            call.answer([object()])
        else:
            echo(call)

    async with scene(handle) as made:
        client, other = await made.connect(), await made.connect()
        other.send(request(1))
        client.send(request(7))
        assert await client.ended() == b""
        assert await numbers(other, 1) == [1]
        assert await other.ask(request(2)) == request(2)


@every_loop
async def test_each_stage_is_timed_in_order():
    async with scene() as made:
        client = await made.connect()
        await client.ask(request(1))
        (call,) = made.sent
        assert call.parts
        assert call.frame is None
        assert made.metric("kafka_network_requestchannel_requestqueuesize") == 0


@every_loop
async def test_requests_are_handled_in_their_order_while_the_client_stalls_and_goes_on():
    chance = random.Random(11)
    order: list[int] = []

    def handle(call: Call) -> None:
        assert call.frame is not None
        order.append(number_of(call.frame))
        call.answer([framed(bytes(chance.choice((10, 1000, 2_000_000))))])

    async with scene(handle) as made:
        client = await made.connect()
        sent = received = 0
        while received < 60:
            if sent < 60:
                burst = min(chance.randrange(1, 12), 60 - sent)
                client.send(*(request(number) for number in range(sent, sent + burst)))
                sent += burst
            await quiet(lambda: len(order), turns=chance.choice((1, 3)))
            for _ in range(min(chance.randrange(6), sent - received)):
                await client.receive()
                received += 1
        assert order == list(range(60))
        assert made.metric("kafka_network_requestchannel_requestqueuesize") == 0
