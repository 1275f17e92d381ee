"""The dispatcher: what becomes of a request that cannot be read, is not served, or whose handler fails."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from netkit import Client, Scene, every_loop, scene, until
from tidelog.broker.dispatch import Dispatcher, Served
from tidelog.errors import ErrorCode
from tidelog.host.clock import SystemClock
from tidelog.net.channel import Call
from tidelog.wire import Message
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.headers import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tidelog.wire.versions import Versions

API_VERSIONS, DESCRIBE_CLUSTER, METADATA = 18, 60, 3


def framed_request(request: Message, version: int, correlation_id: int = 7) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request, version, correlation_id, "test"))


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
        assert on.made.metric("kafka_network_request_channel_refused_requests_total") == 1
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
        assert [one.api_key for one in response.api_keys] == [API_VERSIONS, DESCRIBE_CLUSTER]
        client.write(framed_request(DescribeClusterRequest(), 1))
        assert decode_response(DESCRIBE_CLUSTER, 1, await client.receive()).correlation_id == 7


@every_loop
async def test_every_stage_has_a_metric_by_kafkas_name():
    async with stage(answer_later) as on:
        client = await on.connect()
        for _ in range(3):
            client.write(framed_request(DescribeClusterRequest(), 1))
            await client.receive()
        prefix = "kafka_network_request_metrics_"
        for name in ("request_queue_time_ms", "local_time_ms", "remote_time_ms", "response_queue_time_ms"):
            assert on.made.metric(f'{prefix}{name}_count{{request="DescribeCluster"}}') == 3
            assert on.made.metric(f'{prefix}{name}_sum{{request="DescribeCluster"}}') >= 0
        assert on.made.metric(prefix + 'total_time_ms_count{request="DescribeCluster"}') == 3
