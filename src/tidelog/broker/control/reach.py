"""Whether a controller reaches any other broker, and what it does when it does not: it resigns.

A controller that is cut off from all other brokers, but not from the store, keeps its session and so its office. No
leader on the other side can change an ISR then, and no broker there hears of a new leader. The others may well reach
each other, so one of them should be controller.

A controller asks the other registered brokers for an answer four times in each isolation time, which is the session
timeout. It is isolated when no other broker has answered in five rounds on end, and some are still registered after
them. A broker that is dead loses its registration soon after a session timeout (ZooKeeper rounds it up to its next
tick), so by then those that are still registered are alive and out of reach. A cluster of one has no other brokers, and
its controller never resigns.

After it has resigned it gives the others a head start at each election, for as long as no broker answers it, and takes
the office again if none of them does. If that happens, or if no broker reaches any other, controllers do not follow
each other in haste: each time that a broker resigns without having reached another broker since the last time, it
waits twice as long before it does so again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidelog import __version__
from tidelog.broker.control.channel import OpenConnection
from tidelog.controller.image import Endpoint
from tidelog.errors import TidelogError
from tidelog.net.calling import ConnectionClosedError, RequestTimedOutError
from tidelog.types import BrokerId
from tidelog.wire.messages.headers import ApiVersionsRequest

_log = logging.getLogger(__name__)

_ROUNDS = 4
"""In one isolation time. A process that was frozen fails one round at most."""
_MOST_FAILED = _ROUNDS + 1
"""One more than there are in a session timeout: a store may notice the death of a broker a little later than that."""
_MOST_DOUBLINGS = 4
_API_VERSIONS_VERSION = 3

Others: TypeAlias = Mapping[BrokerId, Endpoint]
"""The other registered brokers, and where they are."""


class Reach:
    """What a broker knows of its way to the others. It outlives the broker's terms as controller."""

    def __init__(self, broker_id: BrokerId, connect: OpenConnection, isolation_timeout_ms: int) -> None:
        self.is_isolated = False
        """No other broker answers. It stays so after the resignation, until one answers."""
        self._broker_id = broker_id
        self._connect = connect
        self._round_s = isolation_timeout_ms / 1000 / _ROUNDS
        self._resignations = 0
        """Since another broker last answered."""
        self._favourite: BrokerId | None = None
        """A broker that answered in the last round."""
        self._task: asyncio.Task[None] | None = None

    # While it is controller

    def watch(self, others: Callable[[], Others], isolated: Callable[[], None]) -> None:
        """Ask in rounds from now on, and call `isolated` once when no broker has answered for too long."""
        self.stop()
        self.is_isolated = False
        self._task = asyncio.create_task(self._watch(others, isolated), name=f"reach of controller {self._broker_id}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, others: Callable[[], Others], isolated: Callable[[], None]) -> None:
        failed, most = 0, _MOST_FAILED << min(self._resignations, _MOST_DOUBLINGS)
        while True:
            registered = others()
            if registered and failed >= most:
                break
            if not registered:
                failed = 0
                await asyncio.sleep(self._round_s)
            elif await self._round(registered):
                failed = 0
            else:
                failed += 1
                _log.info("controller %d: no other broker answers (%d of %d)", self._broker_id, failed, most)
        self.is_isolated = True
        self._resignations += 1
        isolated()

    # After it has resigned

    async def give_a_head_start(self, others: Others) -> None:
        """Returns when another broker has had the time to become controller, or when this one reaches one again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._round_s
        if await self._someone_answers(others):
            return
        await asyncio.sleep(max(until - loop.time(), 0.0))

    # Asking

    async def _round(self, others: Others) -> bool:
        """Whether another broker answered. A round takes its time, however soon the answer is there."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._round_s
        answered = await self._someone_answers(others)
        await asyncio.sleep(max(until - loop.time(), 0.0))
        return answered

    async def _someone_answers(self, others: Others) -> bool:
        """The favourite is asked alone; if it does not answer, all are asked in the next round."""
        favourite = None if self._favourite is None else others.get(self._favourite)
        if favourite is not None:
            if not await self._answers(favourite):
                self._favourite = None
        else:
            answers = await asyncio.gather(*map(self._answers, others.values()))
            answered = (id for id, has_answered in zip(others, answers, strict=True) if has_answered)
            self._favourite = next(answered, None)
        if self._favourite is None:
            return False
        self.is_isolated = False
        self._resignations = 0
        return True

    async def _answers(self, endpoint: Endpoint) -> bool:
        """Within a round. Any answer will do, and so will the end of the connection: a broker that has max.connections
        closes what it takes. A connection alone will not: the kernel takes it for a process that is frozen, too.
        """
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        timeout_ms = self._round_s * 1000
        try:
            async with asyncio.timeout(self._round_s):
                connection = await self._connect(endpoint.host, endpoint.port, timeout_ms)
                try:
                    await connection.call(request, _API_VERSIONS_VERSION, timeout_ms=timeout_ms)
                except RequestTimedOutError:
                    return False
                except ConnectionClosedError:
                    return True
                finally:
                    connection.close()
        except (TidelogError, OSError):
            return False
        return True
