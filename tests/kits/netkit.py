"""A socket server whose handler is the test, and clients that speak bytes: on asyncio, on uvloop, and simulated."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import uvloop

from tidelog.config.broker import BrokerConfig
from tidelog.host.clock import SystemClock
from tidelog.lab.world import World
from tidelog.metrics import Metrics
from tidelog.net.admission import ConnectionLimits
from tidelog.net.channel import Call, RequestChannel
from tidelog.net.outbox import RegionGoneError
from tidelog.net.server import InterBroker, ServerLimits, SocketServer
from tidelog.ports import Capacity, Clock
from tidelog.types import Buffer

T = TypeVar("T")

CONTROL, DATA = 4, 0
PATIENCE_S = 20.0

_SIZE = struct.Struct(">i")
_RECEIVE_BUFFER_BYTES = 256 * 1024
_CAPACITY = Capacity(client_connections=2**31 - 1, broker_connections=0, memory_bytes=8 << 30)


class LoopClock(Clock):
    """The running loop's own time: virtual where that is."""

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e3)

    def monotonic_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)


def run_on(kind: str, story: Coroutine[Any, Any, T]) -> T:
    if kind == "asyncio":
        return asyncio.run(story)
    if kind == "uvloop":
        return uvloop.run(story)
    with World(20) as world:
        task = world.host("b1").start(story)

        async def whole() -> T:
            return await task

        return world.run(whole())


def on_loops(*kinds: str) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """The test runs once on each of these loops."""

    def wrap(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(story)
        def test(loop_kind: str, **fixtures: Any) -> None:
            run_on(loop_kind, story(**fixtures))

        first = inspect.Parameter("loop_kind", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(story)
        test.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("loop_kind", kinds)(test)

    return wrap


every_loop = on_loops("asyncio", "uvloop", "simulated")
real_loops = on_loops("asyncio", "uvloop")
simulated = on_loops("simulated")


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():
            await asyncio.sleep(0.001)


async def quiet(value: Callable[[], T], turns: int = 30) -> T:
    """Its value when it has not changed for some turns of the loop."""
    last, same = value(), 0
    async with asyncio.timeout(PATIENCE_S):
        while same < turns:
            await asyncio.sleep(0.002)
            now = value()
            same = same + 1 if now == last else 0
            last = now
    return last


def framed(payload: Buffer) -> bytes:
    return _SIZE.pack(len(payload)) + bytes(payload)


def request(number: int, *, key: int = DATA, size: int = 16) -> bytes:
    """A payload of that size: the API key, a number, and bytes that follow from the number."""
    assert size >= 6
    seed = bytes((number * 7 + i * 13) % 251 for i in range(256))
    rest = size - 6
    return struct.pack(">hi", key, number) + (seed * (rest // 256 + 1))[:rest]


def number_of(payload: Buffer) -> int:
    found: int = struct.unpack_from(">i", payload, 2)[0]
    return found


def echo(call: Call) -> None:
    assert call.frame is not None
    call.answer([framed(call.frame)])


class Parking:
    """Takes requests and answers them when the test says so."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}

    def __call__(self, call: Call) -> None:
        assert call.frame is not None
        self.calls[number_of(call.frame)] = call

    def answer(self, number: int) -> None:
        self.calls.pop(number).answer([framed(request(number))])


class Client:
    """One connection, seen from the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, *payloads: bytes) -> None:
        """All in one write."""
        self.writer.write(b"".join(framed(payload) for payload in payloads))

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            (size,) = _SIZE.unpack(await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def ask(self, payload: bytes) -> bytes:
        self.send(payload)
        return await self.receive()

    async def ended(self) -> bytes:
        """Wait for the server to hang up; what came before."""
        rest = b""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while data := await self.reader.read(65536):
                    rest += data
            except ConnectionError:
                pass
        return rest

    def close(self) -> None:
        self.writer.close()


def _limit_kernel(transport: asyncio.WriteTransport) -> None:
    """How much the kernel holds for a client that does not read is then the same on all machines, or nearly so."""
    if (real := transport.get_extra_info("socket")) is not None:
        with socket.socket(fileno=os.dup(real.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)


def connection_limits(**changes: Any) -> ConnectionLimits:
    """The default of every setting, but for these changes; the process may have any number of descriptors."""
    return replace(ConnectionLimits.of(BrokerConfig.defaults(), _CAPACITY), **changes)


def server_limits(**changes: Any) -> ServerLimits:
    """The default of every setting, but for these changes; requests may take any room."""
    limits = ServerLimits.of(BrokerConfig.defaults(), _CAPACITY)
    return replace(limits, **{"queued_max_request_bytes": -1} | changes)


class Scene:
    """A server on a free port, and what was asked of it."""

    def __init__(
        self,
        handle: Callable[[Call], None] = echo,
        *,
        capacity: int = 500,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
        inter_broker: InterBroker | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.calls: list[Call] = []
        self.sent: list[Call] = []
        self.port = 0
        self._handle = handle
        self.channel = RequestChannel(self._take, capacity, frozenset((CONTROL,)), clock or SystemClock(), self.metrics)
        limits = limits or server_limits()
        self.server = SocketServer(self.channel, limits, self.sent.append, self.metrics, inter_broker)
        self._clients: list[Client] = []

    def _take(self, call: Call) -> None:
        self.calls.append(call)
        if not call.connection.is_closed:
            self._handle(call)

    async def connect(self, limit: int = 2**16) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        _limit_kernel(client.writer.transport)
        self._clients.append(client)
        return client

    def metric(self, line: str) -> float:
        for found in self.metrics.text().splitlines():
            name, _, value = found.rpartition(" ")
            if name == line:
                return float(value)
        raise AssertionError(f"there is no {line}")

    async def close(self) -> None:
        await self.server.close()
        for client in self._clients:
            client.close()
        await until(lambda: self.server.admission.count == 0)


@asynccontextmanager
async def scene(handle: Callable[[Call], None] = echo, **options: Any) -> AsyncIterator[Scene]:
    """Also says of anything that went wrong where nobody waits for it."""
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    made = Scene(handle, **options)
    made.port = await made.server.listen("PLAINTEXT", "127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()
    assert not faults


class FakeRegion:
    """Bytes that say where they are from; it counts what is read of it."""

    def __init__(self, size: int, *, cold: bool = False, gone_from: int | None = None) -> None:
        self.size = size
        self.cold = cold
        self.gone_from = size + 1 if gone_from is None else gone_from
        self.reads: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.size

    @staticmethod
    def content(start: int, size: int) -> bytes:
        pattern = bytes(range(251))
        first = start % 251
        return (pattern * (size // 251 + 2))[first : first + size]

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.reads)

    def read_now(self, start: int, size: int) -> Buffer | None:
        if self.cold:
            return None
        return self._read(start, size)

    def send_now(self, socket: int, start: int, size: int) -> int | None:
        """It is no file: what is sent has to be read."""
        return None

    async def read(self, start: int, size: int) -> Buffer:
        await asyncio.sleep(0)
        return self._read(start, size)

    def _read(self, start: int, size: int) -> bytes:
        if start + size > self.gone_from:
            raise RegionGoneError("orders-0 was cut")
        self.reads.append((start, size))
        return self.content(start, size)


def announced(*parts: Any) -> list[Any]:
    """An answer of these parts, with the size of all in front."""
    return [_SIZE.pack(sum(len(part) for part in parts)), *parts]
