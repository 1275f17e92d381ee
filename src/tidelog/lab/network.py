"""The simulated network: hosts by name, links with faults, and asyncio's two ways in.

Production code calls `loop.create_server` and `loop.create_connection` as ever; the loop brings them here, and
the process the caller runs in (see tidelog.lab.process) says which host that is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Callable
from contextvars import Context, copy_context

from tidelog.lab.link import Link
from tidelog.lab.loop import SimLoop
from tidelog.lab.process import SimProcess, current_process
from tidelog.lab.transport import Address, SimTransport

_OWN_HOST = (None, "", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")
_FIRST_EPHEMERAL_PORT = 32768
_FIRST_RETRY_S = 1.0
_CONNECT_TIMEOUT_S = 127.0
"""Linux's: six retries, each after twice the time of the one before."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class SimSocket:
    """What is left of a socket: its name."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class SimServer(asyncio.AbstractServer):
    """A listening address of one process."""

    def __init__(
        self, network: SimNetwork, process: SimProcess, context: Context, address: Address, factory: ProtocolFactory
    ) -> None:
        self.process = process
        self.context = context
        self.address = address
        self.factory = factory
        self._network = network

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        return (SimSocket(self.address),) if self.is_serving() else ()

    def close(self) -> None:
        self._network.stop_listening(self)

    def is_serving(self) -> bool:
        return self._network.is_listening(self)

    def get_loop(self) -> SimLoop:
        return self._network.loop

    async def start_serving(self) -> None:
        """It does so from the start."""

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        """Connections are closed by their owners."""


class SimNetwork:
    """All hosts, links, listeners and connections of one world. Every delay is drawn from its link's own stream."""

    def __init__(self, loop: SimLoop, chance_for: Callable[[str], random.Random]) -> None:
        self.loop = loop
        self.latency_ms = 0.2
        self.jitter_ms = 0.3
        self.loopback_latency_ms = 0.02
        self._chance_for = chance_for
        self._hosts: dict[str, int] = {}
        """Each host's next ephemeral port."""
        self._down: set[str] = set()
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimServer] = {}
        self._ends: dict[SimTransport, None] = {}
        """Ends that are not gone, in the order they came to be."""
        loop.network = self

    def add_host(self, name: str) -> None:
        self._hosts.setdefault(name, _FIRST_EPHEMERAL_PORT)

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            for name in (source, target):
                if name not in self._hosts:
                    raise KeyError(f"no host {name!r}; there are {sorted(self._hosts)}")
            chance = self._chance_for(f"link {source}>{target}")
            if source == target:
                found = Link(chance, self.loopback_latency_ms, 0.0)
            else:
                found = Link(chance, self.latency_ms, self.jitter_ms)
            self._links[source, target] = found
        return found

    # Faults

    def set_latency(self, a: str, b: str, latency_ms: float, jitter_ms: float = 0.0) -> None:
        for link in self._both_ways(a, b):
            link.latency_ms, link.jitter_ms = latency_ms, jitter_ms

    def set_bandwidth(self, a: str, b: str, bytes_per_s: float | None) -> None:
        """None is as fast as can be."""
        for link in self._both_ways(a, b):
            link.bytes_per_s = bytes_per_s

    def set_late_bytes(self, a: str, b: str, late_ms: float, chance: float = 1.0) -> None:
        """What is under way on a connection when its sender closes or resets it arrives late, with this chance.

        It comes half of `late_ms` to all of it after its time, in order, and before the end of its connection: so
        after the bytes of a newer connection, whose own bytes are not late. TCP does that when the first connection
        waits for a retransmission, or when its last bytes wait in a kernel or in a switch. No chance turns it off.
        """
        for link in self._both_ways(a, b):
            link.late_s, link.late_chance = late_ms / 1e3, chance

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing gets through from a to b, nor back unless one_way; nobody is told. Bytes wait where they are."""
        self.loop.note("cut", a, "one way" if one_way else "both ways", b)
        for link in self._both_ways(a, b)[: 1 if one_way else 2]:
            link.is_cut = True

    def heal(self, a: str, b: str, *, reset: bool = False) -> None:
        """Both ways. What was held up goes on, or if the cut lasted too long for TCP, connections are reset."""
        self.loop.note("heal", a, b)
        for link in self._both_ways(a, b):
            link.is_cut = False
        for end in self._between(a, b):
            end.stalled_bytes_go_on()
            if end.peer.gone:  # it may have said goodbye while the link was cut
                end.peer.stalled_bytes_go_on()
        if reset:
            self.reset(a, b)

    def isolate(self, host: str) -> None:
        for other in self._hosts:
            if other != host:
                self.cut(host, other)

    def heal_all(self) -> None:
        for a, b in list(self._links):
            if self._links[a, b].is_cut:
                self.heal(a, b)

    def reset(self, a: str, b: str) -> None:
        """Tear every connection between two hosts."""
        self.loop.note("reset", a, b)
        for end in self._between(a, b):
            end.reset()

    def process_died(self, process: SimProcess, *, silently: bool) -> None:
        """Its ports are free again, its connections end; silently if the whole host went down."""
        for server in [server for server in self._listeners.values() if server.process is process]:
            self.stop_listening(server)
        for end in [end for end in self._ends if end.process is process]:
            end.die(silently=silently)

    def host_down(self, name: str) -> None:
        self._down.add(name)

    def host_up(self, name: str) -> None:
        self._down.discard(name)

    def is_up(self, name: str) -> bool:
        return name not in self._down

    # What the loop asks for

    def listen(self, factory: ProtocolFactory, host: object, port: int) -> SimServer:
        process = current_process()
        if host not in _OWN_HOST and host != process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{process.host} cannot listen at the address of {host}")
        address = (process.host, port or self._free_port(process.host))
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {address}")
        server = self._listeners[address] = SimServer(self, process, copy_context(), address, factory)
        self.loop.note("listen", process.name, address[1])
        return server

    def is_listening(self, server: SimServer) -> bool:
        return self._listeners.get(server.address) is server

    def stop_listening(self, server: SimServer) -> None:
        if self.is_listening(server):
            del self._listeners[server.address]

    async def connect(
        self, factory: ProtocolFactory, host: object, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        process = current_process()
        target = process.host if host in _OWN_HOST else str(host)
        if target not in self._hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no simulated host {target!r}")
        back = self.link(target, process.host)
        await self._reach(process.host, target)
        server = self._listeners.get((target, port))
        if server is None:
            await asyncio.sleep(back.delay_s())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {target}:{port}")
        ours = self._open(process, server)
        try:
            await asyncio.sleep(back.delay_s())
        except BaseException:
            ours.abort()
            raise
        if ours.gone:
            raise ConnectionResetError(errno.ECONNRESET, f"{target}:{port} went away while connecting")
        protocol = factory()
        ours.attach(protocol)
        return ours, protocol

    def end_gone(self, end: SimTransport) -> None:
        del self._ends[end]

    async def _reach(self, source: str, target: str) -> None:
        """Until a first packet gets there and its answer could come back, trying again as Linux does."""
        there, back = self.link(source, target), self.link(target, source)
        waited_s, retry_s = 0.0, _FIRST_RETRY_S
        while True:
            await asyncio.sleep(there.delay_s())
            if not there.is_cut and not back.is_cut and target not in self._down:
                return
            if waited_s >= _CONNECT_TIMEOUT_S:
                raise TimeoutError(errno.ETIMEDOUT, f"{target} does not answer {source}")
            await asyncio.sleep(retry_s)
            waited_s += retry_s
            retry_s *= 2

    def _open(self, process: SimProcess, server: SimServer) -> SimTransport:
        """Both ends of a new connection. The server's kernel takes it at once, the server when it comes to it."""
        ours_at, theirs_at = (process.host, self._free_port(process.host)), server.address
        out, back = self.link(ours_at[0], theirs_at[0]), self.link(theirs_at[0], ours_at[0])
        ours = SimTransport(self, process, copy_context(), ours_at, theirs_at, out)
        theirs = SimTransport(self, server.process, server.context.copy(), theirs_at, ours_at, back)
        ours.peer, theirs.peer = theirs, ours
        self._ends[ours] = self._ends[theirs] = None
        self.loop.note("connect", ours.label)
        self.loop.call_soon(_accept, server, theirs, context=theirs.context)
        return ours

    def _free_port(self, host: str) -> int:
        port = self._hosts[host]
        self._hosts[host] = port + 1
        return port

    def _both_ways(self, a: str, b: str) -> tuple[Link, Link]:
        return self.link(a, b), self.link(b, a)

    def _between(self, a: str, b: str) -> list[SimTransport]:
        pairs = ((a, b), (b, a))
        return [end for end in self._ends if (end.process.host, end.peer.process.host) in pairs]


def _accept(server: SimServer, end: SimTransport) -> None:
    if not end.gone:
        end.attach(server.factory())
