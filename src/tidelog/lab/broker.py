"""One real broker on a machine of the lab: its lives, one after the other, and calls to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.config.broker import BrokerConfig
from tidelog.coordination.port import ConnectionLostError, Session
from tidelog.errors import StorageError, TidelogError
from tidelog.lab.lookout import Lookout
from tidelog.lab.loop import SimulationError
from tidelog.lab.store import LabStore
from tidelog.lab.world import SimHost
from tidelog.net.calling import Connection
from tidelog.ports import Ports
from tidelog.wire import Message

PORT = 9092
DATA = "/data"
PATIENCE_S = 20.0
_LOOK_S = 0.005


class KilledWhileStartingError(SimulationError):
    """A broker was killed before it served. What killed it starts it again."""


class WaitedInVainError(SimulationError, AssertionError):
    """A condition that had to come true did not, in all the time it was given."""


async def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S, what: str = "") -> None:
    """Until the condition holds, on the clock of the loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not condition():
        if loop.time() >= deadline:
            raise WaitedInVainError(f"waited in vain{' until ' if what else ''}{what}")
        await asyncio.sleep(_LOOK_S)


def sim_settings(host: str, **settings: str) -> dict[str, str]:
    """Of a broker on that host. Settings are written with underscores, and two where they have a dash."""
    return {
        "listeners": f"PLAINTEXT://{host}:{PORT}",
        "log.dirs": DATA,
        "tidelog.coordination": "memory",
        "zookeeper.session.timeout.ms": "6000",
        **{name.replace("__", "-").replace("_", "."): value for name, value in settings.items()},
    }


class _WayToStore:
    """The store as one broker reaches it. While its way is barred it gets no new session; one that it has goes on."""

    def __init__(self, store: LabStore) -> None:
        self.is_barred = False
        self._store = store

    async def connect(self, session_timeout_ms: int) -> Session:
        if self.is_barred:
            await asyncio.sleep(0)
            raise ConnectionLostError()
        return await self._store.connect(session_timeout_ms)


class LabBroker:
    """The production broker, unchanged, with whom one can do as with a process: start, stop, kill, start again."""

    def __init__(
        self, ports: Ports, store: LabStore, settings: Mapping[str, str], broker_id: int, host_name: str
    ) -> None:
        self.store = store
        self.way_to_store = _WayToStore(store)
        """Is the same in all its lives."""
        self.ports = ports
        self.settings = dict(settings)
        self.broker_id = broker_id
        self.host_name = host_name
        self.lookout: Lookout | None = None
        """Is told what happens inside, in every life."""
        self.broker: Broker
        """Of the present life, or of the last."""
        self._unclean_elections = 0
        """Those of earlier lives."""
        self._connection: Connection | None = None
        self._life: asyncio.Task[None] | None = None
        self._told_to_stop: asyncio.Future[None]

    # Its lives

    @property
    def host(self) -> SimHost:
        assert isinstance(self.ports, SimHost)
        return self.ports

    @property
    def is_up(self) -> bool:
        """Its process is there, be it frozen or not yet serving."""
        return self.host.process is not None and hasattr(self, "broker")

    @property
    def unclean_elections(self) -> int:
        """That this broker has counted as controller, in all its lives: what its gauges said before each end."""
        controller = getattr(getattr(self, "broker", None), "controller", None)
        return self._unclean_elections + (0 if controller is None else controller.stats.unclean_elections)

    async def start(self) -> Broker:
        """Until it serves."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._told_to_stop = loop.create_future()
        life = self._live(ready)
        if isinstance(self.ports, SimHost):
            self._life = self.ports.start(life)
            end = loop.create_task(self.ports.ended())
            first: list[asyncio.Future[Any]] = [ready, end]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if not ready.done():
                raise KilledWhileStartingError(self.host_name)
        else:
            self._life = loop.create_task(life)
        await ready
        return self.broker

    async def _live(self, ready: asyncio.Future[None]) -> None:
        self._unclean_elections = self.unclean_elections
        config = BrokerConfig.load({"broker.id": str(self.broker_id), **self.settings}, hostname=self.host_name)
        broker = self.broker = Broker(config, self.ports, self.way_to_store)
        if self.lookout is not None:
            self.lookout.watch(self.broker_id, broker.replicas)
        try:
            await broker.start()
        except GeneratorExit:  # the run is over, and what is left of it is closed
            raise
        except BaseException as failure:
            with contextlib.suppress(StorageError):  # its disk fails now too
                await broker.stop()
            if ready.done():
                raise
            ready.set_exception(failure)
            return
        ready.set_result(None)
        await self._told_to_stop
        with contextlib.suppress(StorageError):  # the process ends then too, but not cleanly
            await broker.stop()

    async def start_if_down(self, rest: Callable[[], Awaitable[None]]) -> None:
        """Another saboteur may have started it meanwhile, may kill it in its start, or may have broken its disk."""
        while self.host.process is None:
            try:
                await self.start()
            except KilledWhileStartingError:
                return
            except TidelogError:
                await rest()

    async def stop(self) -> None:
        """Cleanly."""
        self.disconnect()
        life, self._life = self._life, None
        if life is not None and not life.done():
            if not self._told_to_stop.done():
                self._told_to_stop.set_result(None)
            if isinstance(self.ports, SimHost):
                await self.ports.ended()  # by itself, or somebody kills it meanwhile
            else:
                await life

    def interrupt(self) -> None:
        """Ctrl-C while it starts: the start ends where it is, and what was opened is closed."""
        if self._life is not None:
            self._life.cancel()

    def kill(self) -> None:
        """SIGKILL; the page cache stays."""
        self.disconnect()
        self.host.kill()

    def lose_power(self) -> None:
        """What was not synced may be gone, and nobody is told."""
        self.disconnect()
        self.host.power_loss()

    async def restart(self) -> Broker:
        await self.stop()
        return await self.start()

    def expire_session(self) -> None:
        """As if the store had not heard of the broker for too long."""
        self.store.expire(self.broker.session.id)

    # Calling

    @property
    def port(self) -> int:
        return next(iter(self.broker.ports_bound.values()))

    async def connect(self) -> Connection:
        return await Connection.open(self.host_name, self.port, client_id="kit")

    async def call(self, request: Message, version: int) -> Any:
        """On a connection that is kept."""
        if self._connection is None or self._connection.closed:
            self._connection = await self.connect()
        return await self._connection.call(request, version, timeout_ms=PATIENCE_S * 1000)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
