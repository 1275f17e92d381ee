"""Who may connect when clients have used their share of the file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct

import pytest

from tests.kits.netkit import (
    CONTROL,
    Client,
    LoopClock,
    Scene,
    connection_limits,
    every_loop,
    quiet,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.host.limits import shares
from tidelog.net.channel import Call
from tidelog.net.identity import is_of_broker
from tidelog.net.server import InterBroker

API_VERSIONS = 18
KEYS = InterBroker(keys=frozenset((CONTROL,)))
PREFIX = "tidelog_"
LIMITS = server_limits(connections=connection_limits(client_share=3, broker_reserve=2, replaceable_idle_ms=10_000))


async def clients(made: Scene, count: int) -> list[Client]:
    """That have asked something, so that they are known."""
    connected = [await made.connect() for _ in range(count)]
    for client in connected:
        await client.ask(request(1))
    return connected


async def pushing(made: Scene, count: int) -> list[Client]:
    """Connections that say nothing; some may be closed in the midst of connecting."""
    connected = []
    for _ in range(count):
        with contextlib.suppress(ConnectionError):
            connected.append(await made.connect())
    return connected


def asked(key: int, client_id: bytes = b"") -> bytes:
    return struct.pack(">hhih", key, 0, 7, len(client_id)) + client_id


@every_loop
async def test_a_client_beyond_the_share_is_refused_when_its_first_request_shows_that_it_is_one():
    async with scene(limits=LIMITS, inter_broker=KEYS) as made:
        first = await clients(made, 3)
        late = await made.connect()
        assert await late.ask(asked(API_VERSIONS)) == asked(API_VERSIONS)  # which any connection may begin with
        late.send(request(2))
        assert await late.ended() == b""
        assert made.metric(PREFIX + "refused_connections_total") == 1
        assert len(made.calls) == 4
        for client in first:
            assert await client.ask(request(3)) == request(3)
        first[0].close()
        await until(lambda: made.server.admission.count == 2)
        assert await (await made.connect()).ask(request(4)) == request(4)


@every_loop
@pytest.mark.parametrize("first_request", [asked(CONTROL), asked(1, b"broker-7-fetcher-0"), asked(2, b"controller")])
async def test_brokers_get_in_however_many_silent_connections_there_are(first_request: bytes):
    async with scene(limits=LIMITS, inter_broker=KEYS) as made:
        connected = await clients(made, 3)
        silent = await pushing(made, 10)
        await until(lambda: made.metric(PREFIX + "refused_connections_total") == 8)
        assert made.server.admission.count == 5
        brokers = []
        for _ in range(2):
            broker = await made.connect()
            assert await broker.ask(asked(API_VERSIONS)) == asked(API_VERSIONS)
            assert await broker.ask(first_request) == first_request
            brokers.append(broker)
        for client in silent:
            assert await client.ended() == b""
        for client in await pushing(made, 3):  # brokers that are known are not pushed out
            assert await client.ended() == b""
        for client in (*connected, *brokers):
            assert await client.ask(request(9)) == request(9)


@every_loop
async def test_a_known_broker_takes_no_place_of_a_client():
    async with scene(limits=LIMITS, inter_broker=KEYS) as made:
        broker = await made.connect()
        await broker.ask(asked(CONTROL))
        assert made.metric(PREFIX + "client_connection_count") == 0
        await clients(made, 3)
        assert made.metric(PREFIX + "client_connection_count") == 3
        assert made.metric(PREFIX + "client_connection_limit") == 3


@simulated
async def test_the_client_that_was_idle_for_the_longest_time_makes_room():
    async with scene(limits=LIMITS, inter_broker=KEYS, clock=LoopClock()) as made:
        connected = await clients(made, 3)
        await asyncio.sleep(8)
        await connected[0].ask(request(2))
        await asyncio.sleep(4)
        late = await made.connect()
        assert await late.ask(request(3)) == request(3)
        assert await connected[1].ended() == b""
        for client in (connected[0], connected[2], late):
            assert await client.ask(request(4)) == request(4)
        assert made.metric(PREFIX + "replaced_connections_total") == 1
        refused = await made.connect()  # now none was idle for long enough
        refused.send(request(5))
        assert await refused.ended() == b""


@simulated
async def test_a_client_that_is_owed_an_answer_or_is_sending_does_not_make_room():
    def handle(call: Call) -> None:
        """The first request of each connection is answered."""
        assert call.frame is not None
        if call.connection not in asked_before:
            asked_before.append(call.connection)
            call.answer([struct.pack(">i", len(call.frame)), call.frame])

    asked_before: list[object] = []
    async with scene(handle, limits=LIMITS, inter_broker=KEYS, clock=LoopClock()) as made:
        connected = await clients(made, 3)
        connected[0].send(request(2))
        connected[1].write(b"\0")
        await asyncio.sleep(20)
        assert await (await made.connect()).ask(request(3)) == request(3)
        assert await connected[2].ended() == b""
        late = await made.connect()
        late.send(request(4))
        assert await late.ended() == b""


@every_loop
async def test_refusals_for_the_share_are_logged_once_and_counted(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with scene(limits=LIMITS, inter_broker=KEYS) as made:
        await clients(made, 3)
        await pushing(made, 20)
        await until(lambda: made.metric(PREFIX + "refused_connections_total") == 18)
        assert sum("ulimit -n" in record.getMessage() for record in caplog.records) == 1
        assert len(caplog.records) < 5


@every_loop
async def test_a_separate_inter_broker_listener_may_close_an_idle_client_for_a_broker():
    """As Kafka does it with max.connections; with a client that is idle at this moment, however briefly."""
    limits = server_limits(connections=connection_limits(max_connections=2))
    async with scene(limits=limits, inter_broker=InterBroker("INTERNAL")) as made:
        first, second = await clients(made, 2)
        port, made.port = made.port, await made.server.listen("INTERNAL", "127.0.0.1", 0)
        broker = await made.connect()
        assert await broker.ask(request(5)) == request(5)
        assert await first.ended() == b""
        assert await second.ask(request(6)) == request(6)
        made.port = port
        for client in await pushing(made, 1):
            assert await client.ended() == b""
        assert await quiet(lambda: made.server.admission.count) == 2


@simulated
async def test_a_broker_gets_the_place_of_an_idle_client_though_all_that_were_known_as_idle_have_asked_since():
    """The last look at the clients remembers some of them; what it remembers may be of no use any more."""
    limits = server_limits(connections=connection_limits(max_connections=70))
    async with scene(limits=limits, inter_broker=InterBroker("INTERNAL"), clock=LoopClock()) as made:
        connected = await clients(made, 70)
        made.port = await made.server.listen("INTERNAL", "127.0.0.1", 0)
        first = await made.connect()
        assert await first.ask(request(5)) == request(5)
        for client in connected[1:]:
            client.send(request(2))
        for client in connected[1:]:
            assert await client.receive() == request(2)
        second = await made.connect()
        assert await second.ask(request(6)) == request(6)
        assert made.metric(PREFIX + "replaced_connections_total") == 2
        assert made.metric(PREFIX + "refused_connections_total") == 0


@simulated
async def test_many_clients_that_are_owed_answers_do_not_hide_one_that_is_idle():
    def handle(call: Call) -> None:
        assert call.frame is not None
        if call.frame[:2] == bytes(2):
            call.answer([struct.pack(">i", len(call.frame)), call.frame])

    limits = server_limits(connections=connection_limits(max_connections=70))
    async with scene(handle, limits=limits, inter_broker=InterBroker("INTERNAL"), clock=LoopClock()) as made:
        connected = await clients(made, 70)
        for client in connected[:69]:
            client.send(request(2, key=1))
        await until(lambda: len(made.calls) == 139)
        await connected[69].ask(request(3))
        made.port = await made.server.listen("INTERNAL", "127.0.0.1", 0)
        broker = await made.connect()
        assert await broker.ask(request(5)) == request(5)
        assert await connected[69].ended() == b""


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (asked(CONTROL), True),
        (asked(1, b"broker-1-fetcher-0"), True),
        (asked(3, b"broker-10002-to-controller"), True),
        (asked(2, b"controller"), True),
        (asked(2, b"controllers"), False),
        (asked(1, b"brokerage"), False),
        (asked(1, b"my-broker-1-x"), False),
        (asked(3), False),
        (struct.pack(">hhih", 3, 0, 7, -1), False),
        (struct.pack(">hhih", 3, 0, 7, 500) + b"broker-1-", True),
        (asked(CONTROL)[:9], False),
        (b"", False),
    ],
)
def test_a_broker_is_known_by_its_key_or_its_client_id(frame: bytes, expected: bool):
    assert is_of_broker(frame, {CONTROL}) is expected


@pytest.mark.parametrize("limit", [64, 256, 1024, 65_536, 1 << 20])
def test_the_shares_of_the_descriptors_leave_some_for_the_process_itself(limit: int):
    files, for_clients, for_brokers = shares(limit)
    assert min(files, for_clients, for_brokers) > 0
    if limit >= 256:
        assert files + for_clients + for_brokers <= limit - 80
        assert for_clients >= limit // 5
