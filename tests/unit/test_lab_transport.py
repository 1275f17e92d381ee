"""The simulated transport beside asyncio's own: the same script, the same calls, the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidelog.lab.world import World

MEGABYTES = bytes(range(256)) * 4096 * 16
"""More than any socket buffer takes at once."""


class Recorder(asyncio.Protocol):
    """Writes down what it is told, bytes joined."""

    keep_open_at_eof = False

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        if self.told[-1] != "data":
            self.told.append("data")
        self.data += data

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.keep_open_at_eof

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", type(exc).__name__))

    @property
    def lost(self) -> bool:
        return isinstance(self.told[-1], tuple)


class KeepsOpen(Recorder):
    keep_open_at_eof = True


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.001)


async def pair(factory: type[Recorder] = Recorder) -> tuple[Recorder, Recorder]:
    loop = asyncio.get_running_loop()
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(factory())
        return accepted[-1]

    server = await loop.create_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    transport, here = await loop.create_connection(Recorder, host, port)
    await until(lambda: bool(accepted) and bool(accepted[0].told))
    assert accepted[0].transport.get_extra_info("peername") == transport.get_extra_info("sockname")
    assert accepted[0].transport.get_extra_info("sockname")[1] == port
    server.close()
    return here, accepted[0]


async def close_after_a_large_write() -> list[Any]:
    here, there = await pair()
    here.transport.write(MEGABYTES)
    here.transport.close()
    state = [here.transport.is_closing(), here.transport.is_reading()]
    await until(lambda: here.lost and there.lost)
    return [state, here.told, there.told, there.data == MEGABYTES]


async def half_close() -> list[Any]:
    here, there = await pair(KeepsOpen)
    here.transport.writelines([b"ques", bytearray(b"tion")])
    assert here.transport.can_write_eof()
    here.transport.write_eof()
    await until(lambda: "eof" in there.told)
    there.transport.write(b"answer")
    there.transport.close()
    await until(lambda: here.lost and there.lost)
    return [here.told, there.told, bytes(here.data), bytes(there.data)]


async def abort() -> list[Any]:
    here, there = await pair()
    here.transport.abort()
    here.transport.abort()
    here.transport.close()
    await until(lambda: here.lost and there.lost)
    return [here.told, here.transport.is_closing()]


async def close_twice_and_write_after() -> list[Any]:
    here, there = await pair()
    here.transport.close()
    here.transport.close()
    here.transport.write(b"ignored")
    await until(lambda: here.lost and there.lost)
    here.transport.write(b"ignored")
    return [here.told, there.told]


async def back_pressure() -> list[Any]:
    here, there = await pair()
    there.transport.pause_reading()
    there.transport.pause_reading()
    here.transport.write(MEGABYTES)
    paused = [list(here.told), here.transport.get_write_buffer_size() > 0, there.transport.is_reading()]
    there.transport.resume_reading()
    there.transport.resume_reading()
    await until(lambda: len(there.data) == len(MEGABYTES))
    await until(lambda: here.told[-1] == "resume")
    seen = [paused, list(here.told), list(there.told), here.transport.get_write_buffer_size()]
    here.transport.close()
    await until(lambda: here.lost and there.lost)
    return seen


async def end_while_not_reading() -> list[Any]:
    """What came before the end is read before the end."""
    here, there = await pair()
    there.transport.pause_reading()
    here.transport.write(b"last words")
    here.transport.close()
    await until(lambda: here.lost)
    before = list(there.told)
    there.transport.resume_reading()
    await until(lambda: there.lost)
    return [before, there.told, bytes(there.data)]


async def change_of_protocol() -> list[Any]:
    here, there = await pair()
    second = Recorder()
    second.told.append("second")
    there.transport.set_protocol(second)
    assert there.transport.get_protocol() is second
    here.transport.write(b"for the second")
    here.transport.close()
    await until(lambda: second.lost)
    return [there.told, second.told, bytes(second.data)]


async def refused() -> list[Any]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Recorder, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    serving = [server.is_serving()]
    server.close()
    await server.wait_closed()
    try:
        await loop.create_connection(Recorder, "127.0.0.1", port)
    except OSError as failure:
        return [type(failure), failure.errno, serving, server.is_serving(), server.sockets]
    return ["connected"]


async def write_limits() -> list[Any]:
    here, there = await pair()
    limits = [here.transport.get_write_buffer_limits()]
    for high, low in [(100, None), (None, 100), (50, 10), (0, None)]:
        here.transport.set_write_buffer_limits(high, low)
        limits.append(here.transport.get_write_buffer_limits())
    with pytest.raises(ValueError, match="must be >="):
        here.transport.set_write_buffer_limits(1, 2)
    here.transport.close()
    await until(lambda: here.lost and there.lost)
    return limits


@pytest.mark.parametrize(
    "script",
    [
        close_after_a_large_write,
        half_close,
        abort,
        close_twice_and_write_after,
        back_pressure,
        end_while_not_reading,
        change_of_protocol,
        refused,
        write_limits,
    ],
    ids=lambda script: script.__name__,
)
def test_real_and_simulated_agree(script: Callable[[], Awaitable[list[Any]]]) -> None:
    async def run() -> list[Any]:
        return await script()

    with World(1) as world:

        async def main() -> list[Any]:
            return await world.host("b1").start(run())

        simulated = world.run(main())
    assert simulated == asyncio.run(run())
