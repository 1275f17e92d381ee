"""The simulated network against what asyncio and TCP promise, and its faults."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tidelog.lab.world import SimHost, World


@pytest.fixture
def world() -> Iterator[World]:
    with World(7) as world:
        for name in ("a", "b", "c"):
            world.host(name)
        yield world


class Recorder(asyncio.Protocol):
    """Writes down all it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.data = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class BufferedRecorder(asyncio.BufferedProtocol):
    """Takes bytes into a buffer that is smaller than what comes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._buffer = bytearray(7)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]


class Pair:
    """A connection from host a to host b and the protocols at both ends."""

    def __init__(self, world: World, server: Callable[[], Any] = Recorder) -> None:
        self.world = world
        self.a, self.b = world.host("a"), world.host("b")
        self._factory = server

    async def open(self) -> Pair:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def accept() -> Any:
            protocol = self._factory()
            accepted.set_result(protocol)
            return protocol

        async def serve() -> None:
            self.server = await asyncio.get_running_loop().create_server(accept, "b", 9092)
            await asyncio.Event().wait()

        async def call() -> None:
            _, self.here = await asyncio.get_running_loop().create_connection(Recorder, "b", 9092)
            connected.set_result(None)
            await asyncio.Event().wait()

        connected = asyncio.get_running_loop().create_future()
        self.b.start(serve())
        await asyncio.sleep(0.001)
        self.a.start(call())
        await connected
        self.there = await accepted
        return self


def run(world: World, main: Coroutine[Any, Any, None]) -> None:
    world.run(main, limit_s=600)


def test_bytes_arrive_whole_and_in_order(world: World) -> None:
    """Though they are split, delayed by chance, and written in any of three ways."""

    async def main() -> None:
        pair = await Pair(world).open()
        world.network.link("a", "b").split_chance = 0.5
        sent = bytearray()
        for number in range(2000):
            piece = number.to_bytes(4, "big")
            if number % 2:
                pair.here.transport.write(memoryview(piece))
            else:
                pair.here.transport.writelines([piece[:1], bytearray(piece[1:])])
            sent += piece
            if number % 100 == 0:
                await asyncio.sleep(0.0001)
        await asyncio.sleep(1)
        assert pair.there.data == sent

    run(world, main())


def test_a_buffered_protocol_gets_the_same_bytes(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world, BufferedRecorder).open()
        sent = bytes(range(256)) * 40
        pair.here.transport.write(sent)
        await asyncio.sleep(1)
        assert pair.there.data == sent

    run(world, main())


def test_asyncio_streams_work_unchanged(world: World) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(echo, "0.0.0.0", 0) as server:
            address.set_result(server.sockets[0].getsockname())
            await asyncio.Event().wait()

    async def call() -> list[bytes]:
        reader, writer = await asyncio.open_connection(*(await address))
        lines = []
        for word in (b"one\n", b"two\n"):
            writer.write(word)
            lines.append(await reader.readline())
        assert writer.get_extra_info("peername")[0] == "b"
        assert writer.get_extra_info("sockname")[0] == "a"
        assert writer.get_extra_info("ssl_object") is None
        writer.write_eof()
        lines.append(await reader.read())
        writer.close()
        await writer.wait_closed()
        return lines

    async def main() -> None:
        world.host("b").start(serve())
        assert await world.host("a").start(call()) == [b"ONE\n", b"TWO\n", b""]

    address: asyncio.Future[Any] = world.loop.create_future()
    run(world, main())


def test_nobody_listening_unknown_hosts_and_taken_ports(world: World) -> None:
    async def on_a() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError, match="b:9092"):
            await loop.create_connection(Recorder, "b", 9092)
        with pytest.raises(socket.gaierror):
            await loop.create_connection(Recorder, "nowhere", 9092)
        server = await loop.create_server(Recorder, "localhost", 9092)
        with pytest.raises(OSError, match="already in use"):
            await loop.create_server(Recorder, None, 9092)
        with pytest.raises(OSError, match="cannot listen"):
            await loop.create_server(Recorder, "b", 9092)
        await loop.create_connection(Recorder, "127.0.0.1", 9092)
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "a", 9092)

    async def main() -> None:
        await world.host("a").start(on_a())
        with pytest.raises(RuntimeError, match="no simulated host"):
            await asyncio.get_running_loop().create_connection(Recorder, "b", 1)

    run(world, main())


def test_a_reader_that_pauses_stops_the_writer(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.there.transport.pause_reading()
        assert not pair.there.transport.is_reading()
        sent = bytes(1 << 20)
        pair.here.transport.write(sent)
        await asyncio.sleep(1)
        assert pair.there.data == b""
        assert pair.here.events == ["made", "pause"]
        assert pair.here.transport.get_write_buffer_size() > 64 * 1024
        pair.there.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.there.data == sent
        assert pair.here.events == ["made", "pause", "resume"]
        assert pair.here.transport.get_write_buffer_size() == 0

    run(world, main())


def test_water_marks_are_as_set(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.here.transport.set_write_buffer_limits(high=0)
        assert pair.here.transport.get_write_buffer_limits() == (0, 0)
        pair.there.transport.pause_reading()
        pair.here.transport.write(bytes(256 * 1024))
        assert pair.here.events == ["made"]
        pair.here.transport.write(b"x")
        assert pair.here.events == ["made", "pause"]

    run(world, main())


def test_close_sends_what_was_written(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        sent = bytes(range(256)) * 4096
        pair.here.transport.write(sent)
        pair.here.transport.close()
        assert pair.here.transport.is_closing()
        pair.here.transport.write(b"too late")
        assert await pair.here.lost is None
        assert await pair.there.lost is None
        assert pair.there.data == sent
        assert pair.there.events == ["made", "eof", "lost"]

    run(world, main())


def test_abort_and_late_bytes_are_resets(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.here.transport.write(b"lost or not")
        pair.here.transport.abort()
        assert await pair.here.lost is None
        assert isinstance(await pair.there.lost, ConnectionResetError)

    run(world, main())


def test_half_closed_connections_carry_the_answer(world: World) -> None:
    class Answers(Recorder):
        def eof_received(self) -> bool:
            self.transport.write(b"answer to " + self.data)
            self.transport.close()
            return True

    async def main() -> None:
        pair = await Pair(world, Answers).open()
        pair.here.transport.write(b"question")
        pair.here.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            pair.here.transport.write(b"more")
        assert await pair.here.lost is None
        assert pair.here.data == b"answer to question"

    run(world, main())


def test_connections_overtake_each_other(world: World) -> None:
    """Order holds within a connection only: otherwise code could come to lean on it."""
    arrived: list[bytes] = []

    class Arrivals(Recorder):
        def data_received(self, data: bytes) -> None:
            arrived.append(data)

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Arrivals, "b", 1)
        await asyncio.Event().wait()

    async def call() -> None:
        loop = asyncio.get_running_loop()
        transports = [(await loop.create_connection(Recorder, "b", 1))[0] for _ in range(10)]
        for number, transport in enumerate(transports):
            transport.write(bytes([number]))
        await asyncio.sleep(1)

    async def main() -> None:
        world.host("b").start(serve())
        await asyncio.sleep(0.01)
        await world.host("a").start(call())

    run(world, main())
    assert sorted(arrived) == [bytes([number]) for number in range(10)]
    assert arrived != sorted(arrived)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_cut_stalls_and_a_heal_lets_all_through_in_order(world: World, one_way: bool) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.here.transport.write(b"1")
        world.network.cut("a", "b", one_way=one_way)
        pair.here.transport.write(b"2")
        pair.there.transport.write(b"back")
        await asyncio.sleep(30)
        assert pair.there.data == b""
        assert bytes(pair.here.data) == (b"back" if one_way else b"")
        world.network.heal("a", "b")
        pair.here.transport.write(b"3")
        await asyncio.sleep(1)
        assert pair.there.data == b"123"
        assert pair.here.data == b"back"

    run(world, main())


def test_a_goodbye_said_during_a_cut_is_heard_after_it(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        world.network.isolate("a")
        pair.here.transport.close()
        await asyncio.sleep(5)
        assert pair.there.events == ["made"]
        world.network.heal_all()
        assert await pair.there.lost is None

    run(world, main())


def test_a_cut_may_end_in_a_reset(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        world.network.cut("a", "b")
        pair.here.transport.write(b"never")
        await asyncio.sleep(5)
        world.network.heal("a", "b", reset=True)
        assert isinstance(await pair.here.lost, ConnectionResetError)
        assert isinstance(await pair.there.lost, ConnectionResetError)
        assert pair.there.data == b""

    run(world, main())


def test_connecting_waits_for_a_cut_to_heal_or_times_out(world: World) -> None:
    async def call() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(Recorder, "b", 1)
        assert 10 < loop.time() < 20
        world.network.cut("a", "b")
        with pytest.raises(TimeoutError):
            await loop.create_connection(Recorder, "b", 1)
        assert loop.time() > 120

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Recorder, "b", 1)
        await asyncio.Event().wait()

    async def main() -> None:
        world.host("b").start(serve())
        world.network.cut("a", "b")
        calling = world.host("a").start(call())
        await asyncio.sleep(10)
        world.network.heal("a", "b")
        await calling

    run(world, main())


def test_a_slow_link_takes_its_time(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        world.network.set_latency("a", "b", 10)
        world.network.set_bandwidth("a", "b", 100_000)
        start = world.loop.time()
        pair.here.transport.write(bytes(1_000_000))
        pair.here.transport.close()
        await pair.there.lost
        assert 10.0 < world.loop.time() - start < 10.5

    run(world, main())


def test_a_killed_process_is_seen_as_a_closed_connection(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.there.transport.write(b"last words")
        pair.b.kill()
        assert await pair.here.lost is None
        assert pair.here.data == b"last words"
        assert pair.there.events == ["made"]
        assert not pair.server.is_serving()

    run(world, main())


def test_a_host_without_power_is_silent_until_it_is_back(world: World) -> None:
    async def idle() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        pair = await Pair(world).open()
        pair.b.power_loss()
        pair.here.transport.write(b"hello?")
        await asyncio.sleep(60)
        assert pair.here.events == ["made"]
        pair.b.start(idle())
        pair.here.transport.write(b"hello?")
        assert isinstance(await pair.here.lost, ConnectionResetError)

    run(world, main())


def test_a_frozen_process_catches_up(world: World) -> None:
    async def main() -> None:
        pair = await Pair(world).open()
        pair.b.freeze()
        pair.here.transport.write(b"1")
        await asyncio.sleep(5)
        pair.here.transport.write(b"2")
        pair.here.transport.close()
        await asyncio.sleep(5)
        assert pair.there.data == b""
        pair.b.thaw()
        assert await pair.there.lost is None
        assert pair.there.data == b"12"

    run(world, main())


def test_a_connect_given_up_leaves_nothing_behind(world: World) -> None:
    protocols: list[Recorder] = []

    def accept() -> Recorder:
        protocols.append(Recorder())
        return protocols[-1]

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(accept, "b", 1)
        await asyncio.Event().wait()

    async def call(host: SimHost) -> None:
        world.network.set_latency("a", "b", 100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.15):
                await asyncio.get_running_loop().create_connection(Recorder, "b", 1)
        await asyncio.sleep(1)
        assert isinstance(protocols[0].lost.result(), ConnectionResetError)

    async def main() -> None:
        world.host("b").start(serve())
        await asyncio.sleep(0.01)
        await world.host("a").start(call(world.host("a")))

    run(world, main())


@pytest.mark.parametrize("ending", ["close", "abort"])
@pytest.mark.parametrize("late_ms", [0.0, 2_000.0])
def test_bytes_of_a_closed_connection_may_come_after_those_of_the_next(
    world: World, ending: str, late_ms: float
) -> None:
    """Each byte in order within its connection and before the end of it; the next connection is not late."""
    heard: list[tuple[float, str]] = []

    class Listener(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            heard.append((world.loop.time(), data.decode()))

        def connection_lost(self, exc: Exception | None) -> None:
            heard.append((world.loop.time(), f"end after {self.data.decode()}"))

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Listener, "b", 1)
        await asyncio.Event().wait()

    async def call() -> None:
        loop = asyncio.get_running_loop()
        if late_ms:
            world.network.set_late_bytes("a", "b", late_ms)
        first, _ = await loop.create_connection(Recorder, "b", 1)
        world.network.cut("a", "b")
        first.write(b"1")
        await asyncio.sleep(1)
        first.write(b"2")
        getattr(first, ending)()
        world.network.heal("a", "b")
        second, _ = await loop.create_connection(Recorder, "b", 1)
        second.write(b"new")
        await asyncio.sleep(5)

    async def main() -> None:
        world.host("b").start(serve())
        await asyncio.sleep(0.01)
        await world.host("a").start(call())

    run(world, main())
    said = [what for _, what in heard]
    assert said == (["new", "1", "2", "end after 12"] if late_ms else ["1", "2", "end after 12", "new"])
    waited = heard[said.index("1")][0] - heard[said.index("new")][0]
    assert late_ms == 0.0 or 0.9 < waited < 2.0


def test_no_bytes_are_late_unless_somebody_asks_for_it(world: World) -> None:
    world.network.set_late_bytes("a", "b", 2_000.0, chance=0.0)
    before = world.network.link("a", "b").chance.getstate()
    assert world.network.link("a", "b").lateness_s() == 0.0
    assert world.network.link("a", "b").chance.getstate() == before, "the fault that is off draws nothing"
