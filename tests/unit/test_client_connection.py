"""The calling side of a connection: order, pipelining, ends, malformed answers, time-outs, versions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tidelog.errors import ErrorCode, UnsupportedVersionError
from tidelog.lab.world import World
from tidelog.net.calling import CannotConnectError, Connection, ConnectionClosedError, RequestTimedOutError
from tidelog.wire.frames import decode_request_header, encode_response
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, FetchResponsePartitionData
from tidelog.wire.messages.headers import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.versions import Versions

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Story = Callable[[Connection], Coroutine[Any, Any, None]]

METADATA, FETCH, API_VERSIONS = 3, 1, 18


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def metadata_answer(correlation_id: int, cluster_id: str = "c") -> bytes:
    return b"".join(encode_response(MetadataResponse(cluster_id=cluster_id), 9, correlation_id))


def run(serve: Serve, story: Story, *, with_uvloop: bool = False) -> None:
    """A server of one connection, and the story of its client."""

    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(served, "127.0.0.1", 0)
        connection = await Connection.open("127.0.0.1", server.sockets[0].getsockname()[1], client_id="test")
        try:
            async with asyncio.timeout(10):
                await story(connection)
        finally:
            connection.close()
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    if with_uvloop:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    else:
        asyncio.run(main())


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_answers_come_in_the_order_of_the_requests(with_uvloop: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = [decode_request_header(await next_frame(reader)) for _ in range(3)]
        assert {header.client_id for header in headers} == {"test"}
        answers = b"".join(metadata_answer(header.correlation_id, f"c{n}") for n, header in enumerate(headers))
        for cut in (1, 5, 40):  # in pieces that respect no frame
            writer.write(answers[:cut])
            answers = answers[cut:]
            await writer.drain()
        writer.write(answers)
        await reader.read()

    async def story(connection: Connection) -> None:
        futures = [connection.send(MetadataRequest(topics=[]), 9) for _ in range(3)]
        assert connection.unanswered == 3
        assert [(await future).cluster_id for future in futures] == ["c0", "c1", "c2"]
        assert connection.unanswered == 0

    run(serve, story, with_uvloop=with_uvloop)


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_a_large_answer_is_read_into_a_buffer_of_its_own(with_uvloop: bool) -> None:
    records = bytes(range(256)) * 4096

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            header = decode_request_header(await next_frame(reader))
            data = FetchResponsePartitionData(partition_index=3, records=records)
            response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])
            writer.write(b"".join(encode_response(response, 12, header.correlation_id)))
        await reader.read()

    async def story(connection: Connection) -> None:
        answers = await asyncio.gather(*(connection.call(FetchRequest(), 12) for _ in range(2)))
        for answer in answers:
            found = answer.responses[0].partitions[0].records
            assert isinstance(found, memoryview)
            assert found == records

    run(serve, story, with_uvloop=with_uvloop)


def test_an_end_in_the_middle_fails_all_that_wait_and_all_that_follows() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = decode_request_header(await next_frame(reader))
        await next_frame(reader)
        writer.write(metadata_answer(header.correlation_id) + metadata_answer(header.correlation_id + 1)[:9])

    async def story(connection: Connection) -> None:
        first, second = (connection.send(MetadataRequest(topics=[]), 9) for _ in range(2))
        assert (await first).cluster_id == "c"
        with pytest.raises(ConnectionClosedError, match="closed by the broker with 1 request unanswered"):
            await second
        assert connection.closed
        with pytest.raises(ConnectionClosedError):
            await connection.call(MetadataRequest(topics=[]), 9)
        with pytest.raises(ConnectionClosedError):
            await connection.post(MetadataRequest(topics=[]), 9)

    run(serve, story)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (struct.pack(">ii", 4, 77), "not the one whose turn"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not seem to speak"),
        (struct.pack(">i", -5), "does not seem to speak"),
        (struct.pack(">ii", 7, 0) + b"\0\0\0", "malformed answer to Metadata v9"),
    ],
)
def test_a_malformed_answer_ends_the_connection(answer: bytes, says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_frame(reader)
        writer.write(answer)
        await reader.read()

    async def story(connection: Connection) -> None:
        with pytest.raises(ConnectionClosedError, match=says) as failure:
            await connection.call(MetadataRequest(topics=[]), 9)
        assert failure.value.code is ErrorCode.NETWORK_EXCEPTION
        assert connection.closed

    run(serve, story)


def test_a_cancelled_request_leaves_the_others_their_answers() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in range(2):
            header = decode_request_header(await next_frame(reader))
            writer.write(metadata_answer(header.correlation_id, f"c{n}"))
        await reader.read()

    async def story(connection: Connection) -> None:
        first, second = (connection.send(MetadataRequest(topics=[]), 9) for _ in range(2))
        first.cancel()
        assert (await second).cluster_id == "c1"

    run(serve, story)


def test_what_is_posted_has_no_answer_and_goes_out_before_the_close() -> None:
    seen: list[int] = []
    records = b"r" * 300_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await next_frame(reader)
        seen.append(len(frame))
        assert await reader.read() == b""

    async def story(connection: Connection) -> None:
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
        connection.post(ProduceRequest(acks=0, topic_data=[data]), 9)
        assert connection.unanswered == 0
        connection.close()
        while not seen:
            await asyncio.sleep(0.001)

    run(serve, story)
    assert seen[0] > len(records)


def test_nobody_listens_is_said_with_the_address() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(CannotConnectError, match=f"127.0.0.1:{port}: Connection refused"):
            await Connection.open("127.0.0.1", port, client_id=None)

    asyncio.run(main())


# On the simulated loop, where time costs nothing


class _Speaker(asyncio.Protocol):
    """Answers with what it was given, one frame after the other; None is no answer."""

    def __init__(self, answers: list[Callable[[int], bytes] | None]) -> None:
        self._answers = answers
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + struct.unpack_from(">i", self._data)[0]:
            (size,) = struct.unpack_from(">i", self._data)
            header = decode_request_header(self._data[4 : 4 + size])
            self._data = self._data[4 + size :]
            answer = self._answers.pop(0)
            if answer is not None:
                self._transport.write(answer(header.correlation_id))


def simulate(answers: list[Callable[[int], bytes] | None], story: Story) -> None:
    with World(11) as world:
        broker, client = world.host("b1"), world.host("c1")

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(lambda: _Speaker(answers), "b1", 9092)
            await asyncio.get_running_loop().create_future()

        async def call() -> None:
            connection = await Connection.open("b1", 9092, client_id="sim")
            await story(connection)
            connection.close()

        async def main() -> None:
            broker.start(serve())
            await asyncio.sleep(0.1)
            await client.start(call())

        world.run(main())


def test_an_answer_that_does_not_come_ends_the_connection_in_time() -> None:
    async def story(connection: Connection) -> None:
        began = asyncio.get_running_loop().time()
        first = connection.send(MetadataRequest(topics=[]), 9, timeout_ms=5000)
        second = connection.send(MetadataRequest(topics=[]), 9)
        with pytest.raises(RequestTimedOutError, match="did not answer Metadata within 5000 ms") as failure:
            await first
        assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ConnectionClosedError):
            await second
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.1)

    simulate([None, None], story)


def test_writers_wait_while_the_network_does_not_take_more() -> None:
    with World(3) as world:
        broker, client = world.host("b1"), world.host("c1")

        class Mute(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.pause_reading()
                asyncio.get_running_loop().call_later(10, transport.resume_reading)

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(Mute, "b1", 9092)
            await asyncio.get_running_loop().create_future()

        async def call() -> float:
            loop = asyncio.get_running_loop()
            connection = await Connection.open("b1", 9092, client_id="sim")
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"r" * 2**20)])
            connection.post(ProduceRequest(acks=0, topic_data=[data]), 9)
            began = loop.time()
            await connection.drain()
            return loop.time() - began

        async def main() -> None:
            broker.start(serve())
            await asyncio.sleep(0.1)
            assert await client.start(call()) > 9

        world.run(main())


def api_versions(correlation_id: int, version: int, error: ErrorCode, *ranges: tuple[int, int, int]) -> bytes:
    keys = [ApiVersion(api_key=key, min_version=first, max_version=last) for key, first, last in ranges]
    return b"".join(encode_response(ApiVersionsResponse(error_code=error, api_keys=keys), version, correlation_id))


def test_versions_are_the_highest_that_both_have() -> None:
    async def story(connection: Connection) -> None:
        await connection.negotiate()
        assert connection.pick(METADATA) == 9
        assert connection.pick(METADATA, Versions(4, 7)) == 7
        with pytest.raises(UnsupportedVersionError, match="serves Metadata 4-9, wanted is 10-12"):
            connection.pick(METADATA, Versions(10, 12))
        with pytest.raises(UnsupportedVersionError, match="does not serve Fetch"):
            connection.pick(FETCH)

    simulate([lambda number: api_versions(number, 4, ErrorCode.NONE, (METADATA, 4, 9))], story)


@pytest.mark.parametrize("offered", [[], [(API_VERSIONS, 0, 2)]])
def test_a_broker_that_does_not_know_our_question_is_asked_again(offered: list[tuple[int, int, int]]) -> None:
    version = offered[0][2] if offered else 0

    async def story(connection: Connection) -> None:
        assert await connection.negotiate() == {METADATA: Versions(0, 5)}

    simulate(
        [
            lambda number: api_versions(number, 0, ErrorCode.UNSUPPORTED_VERSION, *offered),
            lambda number: api_versions(number, version, ErrorCode.NONE, (METADATA, 0, 5)),
        ],
        story,
    )
