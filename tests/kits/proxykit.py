"""The wires between the brokers of a cluster, each of which can be cut: a proxy in front of every broker.

Nobody but the brokers uses it. Who calls is found out by the socket's owner, so a wire has two ends that are known.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

_CHUNK = 65536
_START_S = 10.0
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Wires:
    """All wires, on a loop in a thread of its own. Cut, they carry nothing and say nothing; healed, they go on."""

    def __init__(self, targets: Mapping[int, int], pids: Callable[[], Mapping[int, int]]) -> None:
        """`targets`: the port of each broker; `pids`: of the brokers that live."""
        self.ports: dict[int, int] = {}
        """Where each broker is called through its wire."""
        self._targets = targets
        self._pids = pids
        self._whole: dict[frozenset[int], asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)

    async def _listen(self) -> None:
        for number in self._targets:
            server = await asyncio.start_server(self._taker(number), "127.0.0.1", 0)
            self.ports[number] = server.sockets[0].getsockname()[1]

    def cut(self, one: int, other: int) -> None:
        self._loop.call_soon_threadsafe(self._wire(one, other).clear)

    def heal(self, one: int, other: int) -> None:
        self._loop.call_soon_threadsafe(self._wire(one, other).set)

    def close(self) -> None:
        async def end_all() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end_all(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def _wire(self, one: int, other: int) -> asyncio.Event:
        wire = self._whole.get(frozenset((one, other)))
        if wire is None:
            wire = self._whole[frozenset((one, other))] = asyncio.Event()
            wire.set()
        return wire

    def _taker(self, number: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], asyncio.Task[None]]:
        return lambda reader, writer: self._loop.create_task(self._carry(number, reader, writer))

    async def _carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to a broker, for as long as both ends want it."""
        try:
            caller = _owner(writer.get_extra_info("peername")[1], self._pids())
            wire = self._wire(caller, number)
            await wire.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._targets[number])
            await asyncio.gather(_pump(reader, far_writer, wire), _pump(far_reader, writer, wire))
        except OSError:
            pass  # an end is dead, or was reset
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: asyncio.Event) -> None:
    """One direction. That an end closed is news too, which a cut wire does not carry."""
    try:
        while data := await reader.read(_CHUNK):
            await wire.wait()
            writer.write(data)
            await writer.drain()
        await wire.wait()
    finally:
        writer.close()


def _owner(port: int, pids: Mapping[int, int]) -> int:
    """The broker whose socket has this local port; 0 if it is gone already."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    for number, pid in pids.items():
        for name in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = _SOCKET.match(os.readlink(name))
            except FileNotFoundError:
                continue
            if found is not None and found[1] in inodes:
                return number
    return 0
