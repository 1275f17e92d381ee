"""A little service with everything that can go wrong around it: what the simulator must replay exactly.

Three servers keep numbered records in a file and acknowledge them once synced. Clients write through them, each with
time-outs and retries, while a saboteur cuts, resets, slows, freezes, kills and pulls the plug. In the end
every acknowledged record must be on its server's disk.

As a program it prints the digest of a seed's trace, so that processes can be compared.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from collections.abc import Callable

from tidelog.lab.world import SimHost, World

PORT = 9092
LOG = "/data/log"
_RECORD = struct.Struct(">IQ")
"""CRC of the number, the number."""
_NUMBER = struct.Struct(">Q")


def _record(number: int) -> bytes:
    return _RECORD.pack(zlib.crc32(_NUMBER.pack(number)), number)


def records_in(data: bytes) -> list[int]:
    """Up to the first that is torn or never made it."""
    numbers = []
    for position in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
        crc, number = _RECORD.unpack_from(data, position)
        if crc != zlib.crc32(_NUMBER.pack(number)):
            break
        numbers.append(number)
    return numbers


class Store:
    """The file of one server: recovered at its start, appended on the loop, synced by a disk thread."""

    def __init__(self, host: SimHost) -> None:
        self._disk = host.disk
        self._disk.make_directory("/data")
        self._disk.sync_directory("/")
        self._lock = self._disk.lock("/data/.lock")
        self._file = self._disk.open(LOG, create=True)
        self._disk.sync_directory("/data")
        self._end = len(records_in(self._file.read_at(0, self._file.size()))) * _RECORD.size
        self._file.truncate(self._end)

    async def append(self, number: int) -> None:
        self._file.write_at(self._end, [_record(number)])
        self._end += _RECORD.size
        await self._disk.submit("log", self._file.sync)


class Connection(asyncio.Protocol):
    """Takes numbers, gives them back once they are safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._received = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _NUMBER.size:
            (number,) = _NUMBER.unpack_from(self._received)
            del self._received[: _NUMBER.size]
            task = asyncio.get_running_loop().create_task(self._serve(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, number: int) -> None:
        await self._store.append(number)
        self._transport.write(_NUMBER.pack(number))

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()


async def server(host: SimHost) -> None:
    store = Store(host)
    await asyncio.get_running_loop().create_server(lambda: Connection(store), host.name, PORT)
    await asyncio.Event().wait()


class Client:
    """Writes its numbers one after the other, each until it is acknowledged."""

    def __init__(self, world: World, name: str, servers: list[str], numbers: range) -> None:
        self._chance = world.chance_for(f"client {name}")
        self._note: Callable[..., None] = world.loop.note
        self._servers = servers
        self._numbers = numbers
        self.acknowledged: dict[int, str] = {}

    async def run(self) -> None:
        number = self._numbers.start
        while number < self._numbers.stop:
            server = self._servers[self._chance.randrange(len(self._servers))]
            try:
                async with asyncio.timeout(0.5):
                    reader, writer = await asyncio.open_connection(server, PORT)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.05)
                continue
            try:
                while number < self._numbers.stop:
                    writer.write(_NUMBER.pack(number))
                    async with asyncio.timeout(0.5):
                        answer = await reader.readexactly(_NUMBER.size)
                    assert answer == _NUMBER.pack(number)
                    self.acknowledged[number] = server
                    number += 1
                    await asyncio.sleep(self._chance.uniform(0, 0.03))
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as failure:
                self._note("client", number, "failed at", server, type(failure).__name__)
            finally:
                writer.close()


async def saboteur(world: World, servers: list[str], clients: list[str]) -> None:
    chance = world.chance_for("saboteur")
    while True:
        await asyncio.sleep(chance.uniform(0.02, 0.2))
        victim = chance.choice(servers)
        host, other = world.host(victim), chance.choice([*servers, *clients])
        match chance.randrange(7) if other != victim else 5:
            case 0 | 1:
                world.network.cut(victim, other, one_way=chance.random() < 0.3)
                await asyncio.sleep(chance.uniform(0.1, 0.8))
                world.network.heal(victim, other, reset=chance.random() < 0.3)
            case 2:
                world.network.reset(victim, other)
            case 3:
                world.network.set_latency(victim, other, chance.uniform(0.1, 20), chance.uniform(0, 20))
            case 4:
                host.freeze()
                await asyncio.sleep(chance.uniform(0.1, 1.0))
                host.thaw()
            case _:
                (host.kill if chance.random() < 0.5 else host.power_loss)()
                await asyncio.sleep(chance.uniform(0.01, 0.5))
                host.start(server(host))


def run(seed: int, *, clients: int = 4, writes: int = 150) -> World:
    """The world after the run, all that was promised found in it."""
    world = World(seed)
    servers = ["b1", "b2", "b3"]
    names = [f"c{number}" for number in range(clients)]

    async def main() -> list[Client]:
        for name in servers:
            world.host(name).start(server(world.host(name)))
        for name in names:
            world.host(name)
        sabotage = asyncio.ensure_future(saboteur(world, servers, names))
        writers = [
            Client(world, name, servers, range(place * writes, (place + 1) * writes))
            for place, name in enumerate(names)
        ]
        await asyncio.gather(
            *(world.host(name).start(writer.run()) for name, writer in zip(names, writers, strict=True))
        )
        sabotage.cancel()
        return writers

    with world:
        for writer in world.run(main()):
            assert list(writer.acknowledged) == list(writer._numbers)
            for name in servers:
                kept = set(records_in(world.host(name).disk.read_file(LOG)))
                missing = [number for number, at in writer.acknowledged.items() if at == name and number not in kept]
                assert not missing, f"seed {seed}: {name} acknowledged {missing} and lost them"
    return world


if __name__ == "__main__":
    print(run(int(sys.argv[1])).trace.digest())
