"""The controller's way to one broker: how long it waits, what it sends again, and how it gives up a connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from itertools import count
from typing import Any

import pytest

from tests.kits.controlkit import Cluster, broker, play, with_failed_directory
from tidelog.broker.control.channel import BrokerChannel
from tidelog.controller.sequence import sequence_of
from tidelog.controller.topics import NewTopic
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection, RequestTimedOutError
from tidelog.types import TopicPartition
from tidelog.wire import decode, encode
from tidelog.wire.messages.controller import StopReplicaRequest, UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.wire.messages.headers import ApiVersionsRequest
from tidelog.wire.schema import Message


class Line:
    """Takes requests, and answers only those that it is told to answer."""

    def __init__(self) -> None:
        self.connect_timeouts: list[float] = []
        self.answer_timeouts: list[float | None] = []
        self.sequences: list[int] = []
        self.aborted = 0
        self.answers = False

    async def connect(self, host: str, port: int, timeout_ms: float) -> Line:
        self.connect_timeouts.append(timeout_ms)
        return self

    async def call(self, request: Message, version: int, *, timeout_ms: float | None = None) -> Any:
        self.answer_timeouts.append(timeout_ms)
        self.sequences.append(sequence_of(decode(type(request), encode(request, version), version)))
        if not self.answers:
            raise RequestTimedOutError("no answer")
        return UpdateMetadataResponse()

    def close(self) -> None:
        raise AssertionError("a connection that is given up is reset, not closed in good order")

    def abort(self) -> None:
        self.aborted += 1


def test_controller_socket_timeout_ms_counts_for_connections_and_answers_as_it_is_now() -> None:
    async def story(_: Cluster) -> None:
        line, timeout_ms, answered = Line(), 700, asyncio.Event()
        to = broker(2)
        channel = BrokerChannel(
            to, to.endpoints[0], line.connect, lambda: timeout_ms, count(5).__next__, lambda *_: answered.set()
        )
        channel.send([UpdateMetadataRequest(), UpdateMetadataRequest()])
        await eventually(lambda: len(line.sequences) == 2)
        timeout_ms, line.answers = 900, True
        await answered.wait()
        await eventually(lambda: not channel.queued)
        assert line.connect_timeouts == [700, 700, 900]
        assert line.answer_timeouts == [700, 700, 900, 900]
        assert line.sequences == [5, 5, 5, 6], "a request that is sent again keeps its number"
        channel.close()
        assert line.aborted == 3

    play(story)


def test_with_an_answer_goes_what_was_known_of_the_broker_when_it_was_asked() -> None:
    async def story(_: Cluster) -> None:
        line, to, known = Line(), broker(2), []
        channel = BrokerChannel(
            to, to.endpoints[0], line.connect, lambda: 700, count().__next__, lambda broker, *_: known.append(broker)
        )
        later = with_failed_directory(to)

        async def call(request: Message, version: int, *, timeout_ms: float | None = None) -> Any:
            channel.broker = later
            return UpdateMetadataResponse()

        line.call = call  # type: ignore[method-assign]
        channel.send([UpdateMetadataRequest(), UpdateMetadataRequest()])
        await eventually(lambda: not channel.queued)
        assert known == [to, later]
        channel.close()

    play(story)


def test_what_waits_is_not_sent_when_everything_is_told_anew() -> None:
    """The request that is under way stays, and so do those that stop replicas: no other request names those."""

    async def story(_: Cluster) -> None:
        line, to = Line(), broker(2)
        channel = BrokerChannel(to, to.endpoints[0], line.connect, lambda: 700, count(5).__next__, lambda *_: None)
        channel.send([UpdateMetadataRequest(), UpdateMetadataRequest(), StopReplicaRequest(), UpdateMetadataRequest()])
        await eventually(lambda: line.sequences)
        channel.supersede()
        channel.send([UpdateMetadataRequest()])
        line.answers = True
        await eventually(lambda: not channel.queued)
        assert list(dict.fromkeys(line.sequences)) == [5, 7, 9]
        channel.close()

    play(story)


def test_a_controller_that_takes_over_again_and_again_queues_no_more_than_once() -> None:
    """Its store takes no writes, and a broker does not answer."""

    async def story(cluster: Cluster) -> None:
        shell = await cluster.start_shell(1)
        one = await cluster.start_broker(1)
        await eventually(lambda: shell.is_active and one.received)
        assert shell._term is not None
        channel = shell._term._channels[1]
        line = Line()
        channel._connection, channel._connect = line, line.connect
        for _ in range(20):
            await shell._term.take_over()
        assert channel.queued < 10

    play(story)


def test_numbers_go_on_when_everything_is_read_and_told_again() -> None:
    async def story(cluster: Cluster) -> None:
        one = await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active and one.received)
        await cluster.admin(shell).create_topics([NewTopic("t", 1, 1)])
        await eventually(lambda: TopicPartition("t", 0) in one.replicas)
        shell._has_taken_over = False
        shell._wake.set()
        before = len(one.received)
        await eventually(lambda: len(one.received) > before)
        numbers = [sequence_of(request) for request in one.received]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        assert {request.controller_epoch for request in one.received} == {1}  # type: ignore[attr-defined]

    play(story)


def test_numbers_go_on_in_a_second_term_of_the_same_epoch() -> None:
    """The office was lost for a moment, but /controller is still this session's."""

    async def story(cluster: Cluster) -> None:
        one = await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active and len(one.received) > 2)
        shell._resign("as if it was fenced")
        shell._wake.set()
        before = len(one.received)
        await eventually(lambda: len(one.received) > before)
        assert shell.epoch == 1
        numbers = [sequence_of(request) for request in one.received]
        assert numbers == sorted(set(numbers))

    play(story)


def test_a_connection_that_is_given_up_is_reset() -> None:
    """Over a real socket: what the kernel holds is dropped, and the peer reads a reset instead of an end."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            connection = await Connection.open("127.0.0.1", server.getsockname()[1], client_id="test")
            peer, _ = await loop.sock_accept(server)
            with peer:
                with pytest.raises(RequestTimedOutError):
                    await connection.call(ApiVersionsRequest(), 3, timeout_ms=50)
                assert connection.closed
                await asyncio.sleep(0.05)
                error = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                assert error == errno.ECONNRESET

    asyncio.run(main())
