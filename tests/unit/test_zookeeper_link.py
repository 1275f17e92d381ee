"""The line to ZooKeeper, against servers that refuse connections, take them and say nothing, or answer."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace

import pytest
from kazoo.protocol.connection import ConnectionHandler

from tests.kits.processkit import free_port
from tidelog.coordination.zookeeper_link import Link, _Connection, _handshake_s
from tidelog.host.clock import SystemClock

SESSION_MS = 60_000
"""A third of it is the longest that a handshake may take."""
_LENGTH = struct.Struct(">i")
_ANSWER = struct.Struct(">iiqi16s?")
_PATIENCE_S = 15.0


class StartingServer:
    """Says nothing on the first `silent` connections, as a server may that just starts. Then it opens sessions."""

    def __init__(self, silent: int) -> None:
        self.taken = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._silent = silent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self.writers.append(writer)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        await reader.readexactly(length)
        if self.taken > self._silent:
            answer = _ANSWER.pack(0, SESSION_MS, 7, 16, b"p" * 16, False)
            writer.write(_LENGTH.pack(len(answer)) + answer)
        await reader.read()
        writer.close()


def seconds_until_connected(away_s: float, silent: int) -> float:
    """From when the server takes connections."""

    async def story() -> float:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[str] = loop.create_future()

        def on_state(state: str, seen_id: int) -> None:
            if not connected.done():
                connected.set_result(state)

        port = free_port()
        link = Link(f"127.0.0.1:{port}", SESSION_MS, 10, SystemClock(), on_state)
        link.start()
        await asyncio.sleep(away_s)  # the link is refused again and again; this is the time that is under test
        server = StartingServer(silent)
        async with await asyncio.start_server(server.serve, "127.0.0.1", port):
            began_s = loop.time()
            state = await asyncio.wait_for(connected, _PATIENCE_S)
            took_s = loop.time() - began_s
            assert state == "CONNECTED"
            assert server.taken == silent + 1
            link.drop()
            await link.stop()
        return took_s

    return asyncio.run(story())


@pytest.mark.parametrize("silent", [1, 2])
def test_refused_connections_do_not_make_the_next_handshake_more_patient(silent: int) -> None:
    """Each refusal once doubled the time that a handshake may take, so a silent first one cost a third of a session.
    A server that starts has also been seen to leave two handshakes unanswered."""
    assert seconds_until_connected(away_s=2.0, silent=silent) < 1.5


def test_a_server_that_was_away_is_taken_for_one_that_just_starts() -> None:
    """It was silent for so long that a handshake might take a third of the session, and then it was killed."""

    async def story() -> float:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[None] = loop.create_future()

        def on_state(state: str, seen_id: int) -> None:
            if state == "CONNECTED" and not connected.done():
                connected.set_result(None)

        port = free_port()
        link = Link(f"127.0.0.1:{port}", SESSION_MS, 10, SystemClock(), on_state)
        frozen = StartingServer(silent=1_000_000)
        server = await asyncio.start_server(frozen.serve, "127.0.0.1", port)
        link.start()
        async with asyncio.timeout(_PATIENCE_S):
            while frozen.taken < 4:
                await asyncio.sleep(0.01)
        server.close()
        for writer in frozen.writers:
            writer.transport.abort()
        await asyncio.sleep(0.5)  # the link is refused again and again
        starting = StartingServer(silent=1)
        began_s = loop.time()
        async with await asyncio.start_server(starting.serve, "127.0.0.1", port):
            await asyncio.wait_for(connected, _PATIENCE_S)
            took_s = loop.time() - began_s
            link.drop()
            await link.stop()
        return took_s

    assert asyncio.run(story()) < 1.5


def test_a_silent_server_gets_more_time_with_each_handshake() -> None:
    assert 0.2 + 0.3 + 0.9 < seconds_until_connected(away_s=0.0, silent=3) < 4.0


@pytest.mark.parametrize("servers", [3, 5])
@pytest.mark.parametrize("answer_s", [0.4, 1.0, 1.9])
def test_many_slow_servers_are_not_slower_than_their_answers(servers: int, answer_s: float) -> None:
    """All of them answer after so long. Patience that grew for each of them alone took twice as long."""
    waited_s, unanswered = 0.0, [0] * servers
    while waited_s < 100:
        for server in range(servers):
            patience_s = _handshake_s(unanswered[server], sum(unanswered))
            if answer_s <= patience_s:
                assert waited_s + answer_s < 4 * answer_s
                return
            waited_s += patience_s
            unanswered[server] += 1
    raise AssertionError("no handshake was long enough")


def test_a_server_that_just_started_is_not_waited_for_because_others_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may leave its first handshakes unanswered."""
    slow, started = ("127.0.0.1", 1), ("127.0.0.1", 2)
    asked: list[float] = []

    def unanswered(self: object, timeout: float, request: object) -> None:
        asked.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(ConnectionHandler, "_invoke", unanswered)
    connection = object.__new__(_Connection)
    connection._unanswered, connection._just_started = {slow: 9}, {started}
    connection.client = SimpleNamespace(_session_timeout=18_000)
    connection.handler = SimpleNamespace(timeout_exception=TimeoutError)
    connection._server = started
    for _ in range(4):
        with pytest.raises(TimeoutError):
            connection._shake_hands(6.0, None)  # type: ignore[arg-type]
    assert asked[:2] == [0.2, 0.3]
    assert asked[3] > 5.0
