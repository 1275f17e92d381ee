"""What operators do to the log directories of a broker that is down, and starts that fail.

A log directory that is left out of log.dirs, or put back from a copy, takes records from its broker as a power loss
does, so the budget for power losses counts them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidelog.controller import nodes
from tidelog.coordination.port import Create, Delete, NodeExistsError, NoNodeError, Op
from tidelog.errors import TidelogError
from tidelog.lab.broker import KilledWhileStartingError, LabBroker
from tidelog.lab.cluster import SESSION_MS
from tidelog.lab.power import PowerLosses
from tidelog.lab.store import EmbeddedStore
from tidelog.types import NO_EPOCH, BrokerId

DIRECTORY_FAULTS = ("left out directory", "put back directory", "failed start")
_USED_S = 6.0
_POWER_LOSS_AFTER_FAILURE = 0.7


class DirectoryFaults:
    """`known` names them for a saboteur."""

    def __init__(self, power: PowerLosses, before_start: Callable[[], None] = lambda: None) -> None:
        """`before_start` is called before each start of a broker that may have lost something."""
        self._before_start = before_start
        self._means = means = power.means
        self._power = power
        self._cluster = means.cluster
        self._chance = means.chance
        self.known: dict[str, Callable[[int], Coroutine[Any, Any, None]]] = {
            "left out directory": self.leave_out,
            "put back directory": self.put_back,
            "failed start": self.fail_to_start,
        }

    async def leave_out(self, number: BrokerId) -> None:
        """The broker is started with one log directory less than it has, and later with all of them."""
        one = self._cluster[number]
        every = one.settings["log.dirs"]
        left_out = self._chance.choice(every.split(","))
        some = ",".join(path for path in every.split(",") if path != left_out)
        if not some or not await self._power.until_it_may(number):
            return
        await self._start_with(number, some)
        await self._means.pause(_USED_S)
        if one.is_up and len(one.broker.static_config.log_dirs) < len(every.split(",")):
            self._means.note("started without", left_out, f"b{number}")
        # The broker finds two logs of some partitions then and does not pass for intact, so the budget counts a loss.
        await self._power.until_it_may(number)
        await self._start_with(number, every)

    async def _start_with(self, number: BrokerId, directories: str) -> None:
        one = self._cluster[number]
        await self._end(one)
        self._power.loses_records(number)
        one.settings["log.dirs"] = directories
        await self._means.pause(2.0)
        self._before_start()
        await self._means.start(number)

    async def put_back(self, number: BrokerId) -> None:
        """A copy of a log directory, taken while the broker was down, takes the place of the directory later."""
        one = self._cluster[number]
        path = self._chance.choice(one.settings["log.dirs"].split(","))
        await self._end(one)
        copy = one.host.disk.copy_of(path)
        await self._means.start(number)
        await self._means.pause(_USED_S)
        if not await self._power.until_it_may(number):
            return
        one.kill()
        self._power.loses_records(number)
        one.host.disk.put_back(path, copy)
        self._means.note("put back", path, f"b{number}")
        await self._means.pause(2.0)
        self._before_start()
        await self._means.start(number)

    async def fail_to_start(self, number: BrokerId) -> None:
        """Another process has the broker's id, so its start fails after its logs were recovered; then power is lost."""
        one, store = self._cluster[number], self._cluster.store
        if isinstance(store, EmbeddedStore) or not store.answers_all:
            return
        self._before_start()
        one.kill()
        with contextlib.suppress(TidelogError):
            other = await store.connect(SESSION_MS)
            try:
                await self._take_id(other.multi, number)
                if one.host.process is None:  # another saboteur may have started it meanwhile
                    await one.start()
            except KilledWhileStartingError:
                return
            except TidelogError:
                self._means.note("failed", f"b{number}")
            finally:
                await other.close()
        if one.host.process is None:
            is_lost = self._chance.random() < _POWER_LOSS_AFTER_FAILURE and self._power.may_lose_power(number)
            if is_lost:
                self._power.go_dark(number)
            await self._means.pause(1.0)
            await self._means.start(number)

    async def _take_id(self, multi: Callable[[list[Op]], Awaitable[object]], number: BrokerId) -> None:
        """The other process has not this broker's logs, and so does not say that it is intact."""
        path = nodes.broker_path(number)
        try:
            registration = nodes.decode_broker(number, self._cluster.store.tree.get(path).data)
        except NoNodeError:
            return
        data = nodes.encode_broker(registration._replace(intact_since=NO_EPOCH, last_epoch=NO_EPOCH), 0)
        with contextlib.suppress(NoNodeError, NodeExistsError):
            await multi([Delete(path), Create(path, data, ephemeral=True)])

    async def _end(self, one: LabBroker) -> None:
        if self._chance.random() < 0.5:
            await one.stop()
        one.kill()
