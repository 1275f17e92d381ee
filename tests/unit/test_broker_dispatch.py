"""The dispatcher: what becomes of a request that cannot be read, is not served, or whose handler fails."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.kits.fuzzkit import FakeConnection
from tests.kits.netkit import Client, Scene, every_loop, scene, simulated, until
from tidelog.broker import dispatch
from tidelog.broker.dispatch import Dispatcher, Later, Served
from tidelog.broker.pacing import SlowLane
from tidelog.errors import ErrorCode
from tidelog.host.clock import SystemClock
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.wire import Message
from tidelog.wire.frames import RequestDecoding, decode_response, encode_request
from tidelog.wire.messages.headers import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.wire.versions import Versions

API_VERSIONS, DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA = 18, 60, 10, 3


def framed_request(request: Message, version: int, correlation_id: int = 7, client_id: str = "test") -> bytes:
    return b"".join(bytes(part) for part in encode_request(request, version, correlation_id, client_id))


def large_request(client_id: str = "test") -> bytes:
    """With more elements than are decoded at once."""
    keys = [f"key-{number}" for number in range(2_000)]
    return framed_request(FindCoordinatorRequest(coordinator_keys=keys), 4, client_id=client_id)


class Stage:
    """A dispatcher that serves ApiVersions and one other API, by a handler of the test's."""

    def __init__(self, made: Scene, dispatcher: Dispatcher) -> None:
        self.made = made
        self.dispatcher = dispatcher

    async def connect(self) -> Client:
        return await self.made.connect()

    async def still_serves(self) -> None:
        client = await self.connect()
        client.write(framed_request(ApiVersionsRequest(), 0))
        assert decode_response(API_VERSIONS, 0, await client.receive()).correlation_id == 7


@asynccontextmanager
async def stage(handler: Callable[[Any, Any, Call], Any]) -> AsyncIterator[Stage]:
    handle: list[Callable[[Call], None]] = []
    async with scene(lambda call: handle[0](call)) as made:
        served = {
            API_VERSIONS: Served(Versions(0, 4), lambda *_: ApiVersionsResponse()),
            DESCRIBE_CLUSTER: Served(Versions(0, 1), handler),
            FIND_COORDINATOR: Served(Versions(0, 4), handler),
        }
        dispatcher = Dispatcher(served, SystemClock(), made.metrics)
        made.server._workers[0].sent = made.server._workers[1].sent = made.server._workers[2].sent = dispatcher.sent
        handle.append(dispatcher.handle)
        yield Stage(made, dispatcher)
        await dispatcher.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "closing" in record.getMessage()]


def answer(*_: Any) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id="here")


async def answer_later(*_: Any) -> DescribeClusterResponse:
    await asyncio.sleep(0)
    return DescribeClusterResponse(cluster_id="here")


@every_loop
@pytest.mark.parametrize("handler", [answer, answer_later])
async def test_an_answer_at_once_or_later(handler: Any):
    async with stage(handler) as on:
        client = await on.connect()
        client.write(framed_request(DescribeClusterRequest(), 1, 99))
        response = decode_response(DESCRIBE_CLUSTER, 1, await client.receive())
        assert response.correlation_id == 99
        assert response.response.cluster_id == "here"  # type: ignore[attr-defined]


def fails(*_: Any) -> DescribeClusterResponse:
    raise ZeroDivisionError("a fault of ours")


async def fails_later(*_: Any) -> DescribeClusterResponse:
    await asyncio.sleep(0)
    raise ZeroDivisionError("a fault of ours")


def cannot_be_encoded(*_: Any) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id="a fault of ours" * 5000, controller_id=2**40)


async def cannot_be_encoded_later(*_: Any) -> DescribeClusterResponse:
    return cannot_be_encoded()


@every_loop
@pytest.mark.parametrize("handler", [fails, fails_later, cannot_be_encoded, cannot_be_encoded_later])
async def test_a_fault_of_ours_ends_the_connection_with_one_line_that_says_where(
    handler: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with stage(handler) as on:
        client = await on.connect()
        client.write(framed_request(DescribeClusterRequest(), 1))
        assert await client.ended() == b""
        (line,) = lines(caplog)
        assert "DescribeCluster v1 failed" in line
        assert next(record.exc_info for record in caplog.records if "closing" in record.getMessage()) is not None
        await on.still_serves()


@every_loop
async def test_a_handler_that_is_cancelled_does_not_leave_its_client_waiting():
    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    async with stage(cancelled) as on:
        client = await on.connect()
        client.write(framed_request(DescribeClusterRequest(), 1))
        assert await client.ended() == b""
        await on.still_serves()


@every_loop
async def test_close_ends_those_who_still_wait():
    async def forever(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async with stage(forever) as on:
        client = await on.connect()
        client.write(framed_request(DescribeClusterRequest(), 1))
        await until(lambda: bool(on.dispatcher._later))
        await on.dispatcher.close()
        assert not on.dispatcher._later
        assert await client.ended() == b""


@every_loop
async def test_close_ends_those_whose_waiting_has_not_even_begun(recwarn: pytest.WarningsRecorder):
    closing: list[asyncio.Task[None]] = []

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    def closes_first(*_: Any) -> Any:
        closing.append(asyncio.ensure_future(on.dispatcher.close()))
        return forever()

    async with stage(closes_first) as on:
        client = await on.connect()
        client.write(framed_request(DescribeClusterRequest(), 1))
        assert await client.ended() == b""
        await asyncio.gather(*closing)
        assert not on.dispatcher._later
    assert not [str(warning.message) for warning in recwarn if "forever" in str(warning.message)]


BAD = {
    "no version": struct.pack(">hhb", API_VERSIONS, 0, 0)[:3],
    "an unknown API": struct.pack(">hhih", 32000, 0, 1, -1),
    "a negative API": struct.pack(">hhih", -1, 0, 1, -1),
    "an API that is not served": struct.pack(">hhihi", METADATA, 0, 1, -1, 0),
    "a version that is not served": framed_request(DescribeClusterRequest(), 2)[4:],
    "a version that does not exist": struct.pack(">hhih", DESCRIBE_CLUSTER, 77, 1, -1),
    "half a header": struct.pack(">hhi", DESCRIBE_CLUSTER, 1, 1),
    "half a body": framed_request(DescribeClusterRequest(), 1)[4:-1],
    "half a header of ApiVersions": struct.pack(">hhi", API_VERSIONS, 77, 1)[:7],
    "a client id longer than all": struct.pack(">hhih", DESCRIBE_CLUSTER, 1, 1, 32767) + b"x",
}


@every_loop
@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
async def test_what_cannot_be_served_ends_the_connection_with_one_line(
    payload: bytes, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with stage(answer) as on:
        client = await on.connect()
        client.send(payload, payload)
        assert await client.ended() == b""
        assert len(lines(caplog)) == 1
        assert on.made.metric("tidelog_refused_requests_total") == 1
        await on.still_serves()


@every_loop
@pytest.mark.parametrize("version", [5, 77, 32767, -1, -32768])
async def test_an_unknown_version_of_api_versions_is_answered_in_v0_with_the_list(version: int):
    async with stage(answer) as on:
        client = await on.connect()
        client.send(struct.pack(">hhih", API_VERSIONS, version, 1234, -1) + b"\x00what may come")
        found = decode_response(API_VERSIONS, 0, await client.receive())
        assert found.correlation_id == 1234
        response = found.response
        assert isinstance(response, ApiVersionsResponse)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [one.api_key for one in response.api_keys] == [FIND_COORDINATOR, API_VERSIONS, DESCRIBE_CLUSTER]
        client.write(framed_request(DescribeClusterRequest(), 1))
        assert decode_response(DESCRIBE_CLUSTER, 1, await client.receive()).correlation_id == 7


@every_loop
async def test_every_stage_has_a_metric_by_kafkas_name():
    async with stage(answer_later) as on:
        client = await on.connect()
        for _ in range(3):
            client.write(framed_request(DescribeClusterRequest(), 1))
            await client.receive()
        prefix = "kafka_network_requestmetrics_"
        for name in ("requestqueuetimems", "localtimems", "remotetimems", "responsequeuetimems"):
            assert on.made.metric(f'{prefix}{name}_count{{request="DescribeCluster"}}') == 3
            assert on.made.metric(f'{prefix}{name}_sum{{request="DescribeCluster"}}') >= 0
            for quantile in ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999"):
                assert on.made.metric(f'{prefix}{name}{{request="DescribeCluster",quantile="{quantile}"}}') >= 0
        assert on.made.metric(prefix + 'totaltimems_count{request="DescribeCluster"}') == 3
        assert on.made.metric(prefix + 'requests_total{request="DescribeCluster",version="1"}') == 3


# Large requests


class Gate:
    """A handler that holds its requests until it is told to answer one of them."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[None]] = []
        self.most = 0

    async def handle(self, *_: Any) -> FindCoordinatorResponse:
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(passed)
        self.most = max(self.most, len(self.held))
        await passed
        return FindCoordinatorResponse()

    def open(self) -> None:
        self.held.pop(0).set_result(None)


def two_at_a_time(on: Stage) -> None:
    """One of these requests counts for about 18,000 elements before it is decoded, and for 5,000 then."""
    for room in (on.dispatcher._of_clients, on.dispatcher._of_brokers):
        room._max_elements = 24_000


@every_loop
async def test_so_many_large_requests_are_decoded_and_handled_at_a_time():
    gate = Gate()
    async with stage(gate.handle) as on:
        two_at_a_time(on)
        clients = [await on.connect() for _ in range(6)]
        for client in clients:
            client.write(large_request())
        for expected in (2, 2, 2, 2, 2, 1):
            await until(lambda expected=expected: len(gate.held) == expected)  # type: ignore[misc]
            gate.open()
        for client in clients:
            await client.receive()
        assert gate.most == 2
        await until(lambda: on.dispatcher._of_clients._held == 0)


@every_loop
async def test_clients_keep_neither_small_requests_nor_those_of_brokers_waiting():
    gate = Gate()
    async with stage(gate.handle) as on:
        two_at_a_time(on)
        clients = [await on.connect() for _ in range(4)]
        for client in clients:
            client.write(large_request())
        await until(lambda: len(gate.held) == 2 and len(on.dispatcher._of_clients._waiting) == 2)
        await on.still_serves()
        broker = await on.connect()
        broker.write(large_request("broker-2-fetcher"))
        await until(lambda: len(gate.held) == 3)
        gate.held.pop().set_result(None)
        await broker.receive()


@every_loop
async def test_a_client_that_goes_while_it_waits_makes_room_for_the_next():
    gate = Gate()
    async with stage(gate.handle) as on:
        two_at_a_time(on)
        clients = [await on.connect() for _ in range(5)]
        for number, client in enumerate(clients):
            client.write(large_request())
            await until(
                lambda number=number: len(gate.held) + len(on.dispatcher._of_clients._waiting) == number + 1  # type: ignore[misc]
            )
        clients[2].close()
        clients[3].close()
        await until(lambda: len(on.dispatcher._of_clients._waiting) == 1)
        gate.open()
        await until(lambda: len(gate.held) == 2)
        while gate.held:
            gate.open()
        await clients[4].receive()
        await until(lambda: on.dispatcher._of_clients._held == 0)


@every_loop
async def test_a_large_request_that_is_parked_gives_its_place_back():
    parked: list[Later] = []

    async def park(*_: Any) -> Later:
        await asyncio.sleep(0)
        parked.append(Later())
        return parked[-1]

    async with stage(park) as on:
        two_at_a_time(on)
        clients = [await on.connect() for _ in range(4)]
        for client in clients:
            client.write(large_request())
        await until(lambda: len(parked) == 4 and on.dispatcher._of_clients._held == 0)
        for later in parked:
            later.answer(FindCoordinatorResponse)
        for client in clients:
            await client.receive()


@every_loop
async def test_close_gives_all_places_back():
    gate = Gate()
    async with stage(gate.handle) as on:
        two_at_a_time(on)
        clients = [await on.connect() for _ in range(4)]
        for client in clients:
            client.write(large_request())
        await until(lambda: len(gate.held) == 2 and len(on.dispatcher._of_clients._waiting) == 2)
        await on.dispatcher.close()
        for client in clients:
            assert await client.ended() == b""
        await until(lambda: on.dispatcher._of_clients._held == 0 and not on.dispatcher._of_clients._waiting)


@simulated
async def test_large_requests_are_decoded_one_step_in_a_turn(monkeypatch: pytest.MonkeyPatch):
    steps: Counter[int] = Counter()
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    class Counted(RequestDecoding):
        def step(self) -> Any:
            steps[turn] += 1
            return super().step()

    async with stage(lambda *_: FindCoordinatorResponse()) as on:
        monkeypatch.setattr(dispatch, "RequestDecoding", Counted)
        frame = memoryview(bytearray(large_request()[4:]))
        calls = [Call(cast(ServerConnection, FakeConnection()), frame, FIND_COORDINATOR, 0) for _ in range(8)]
        counting = asyncio.ensure_future(count_turns())
        for call in calls:
            on.dispatcher.handle(call)
        while not all(call.is_done for call in calls):
            await asyncio.sleep(0)
        counting.cancel()
        assert sum(steps.values()) == 8
        assert max(steps.values()) == 1


@every_loop
async def test_while_the_lane_is_crowded_each_connection_has_one_request_in_it(monkeypatch: pytest.MonkeyPatch):
    gate = Gate()
    many = framed_request(FindCoordinatorRequest(coordinator_keys=["key"]), 4) * 5
    async with stage(gate.handle) as on:
        free, crowded = await on.connect(), await on.connect()
        free.write(many)
        await until(lambda: len(gate.held) == 5)
        with monkeypatch.context() as patched:
            patched.setattr(SlowLane, "is_crowded", True)
            crowded.write(many)
            await until(lambda: len(next(iter(on.dispatcher._held.values()), ())) == 4 and len(gate.held) == 6)
            for _ in range(10):
                await until(lambda: len(gate.held) > 0)
                gate.open()
        for client in (free, crowded):
            for _ in range(5):
                await client.receive()
        assert gate.most == 6


@simulated
async def test_a_large_request_of_a_broker_passes_those_of_clients():
    async with stage(lambda *_: FindCoordinatorResponse()) as on:
        lane = on.dispatcher.lane
        for _ in range(100):
            lane.next_turn()
        frame = memoryview(bytearray(large_request()[4:]))
        connection = FakeConnection()
        connection.is_broker = True
        call = Call(cast(ServerConnection, connection), frame, FIND_COORDINATOR, 0)
        on.dispatcher.handle(call)
        for _ in range(10):
            await asyncio.sleep(0)
        assert call.is_done
        assert lane.is_crowded


@every_loop
async def test_a_fault_of_ours_behind_a_large_request_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    gate = Gate()
    async with stage(gate.handle) as on:
        serve, served = on.dispatcher._serve, 0

        def fails_second(call: Call) -> Any:
            nonlocal served
            served += 1
            if served == 2:
                raise ZeroDivisionError("a fault of ours")
            return serve(call)

        monkeypatch.setattr(on.dispatcher, "_serve", fails_second)
        client = await on.connect()
        client.write(large_request() + framed_request(ApiVersionsRequest(), 0))
        await client.ended()
        assert "a fault of ours" in caplog.text
        assert not on.dispatcher._held
        await on.still_serves()
