"""Which broker epochs are registered now, as the coordination store has it.

A leader believes a fetch of a follower only if it names the epoch of the follower's registration: what a stranger says,
or an earlier registration of the follower, is not taken for the follower's position (edge case 32). The store is asked,
not the controller: a leader that does not reach the controller still counts its followers, and Kafka's UpdateMetadata
names no broker epochs. Each broker is read once and then watched, so a fetch finds what it needs here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidelog.controller import nodes
from tidelog.coordination.port import CoordinationError, Event, Session
from tidelog.metrics import Metrics
from tidelog.types import NO_EPOCH, BrokerId, Epoch

_log = logging.getLogger(__name__)


class _Known(NamedTuple):
    epoch: Epoch
    """NO_EPOCH if the broker is not registered."""
    session: Session | None
    """The session that tells of the next change; None if the last one could not be read."""


class Registrations:
    """Belongs to the loop. What changes in the store is known here a little later."""

    def __init__(self, session: Callable[[], Session], metrics: Metrics) -> None:
        self._session = session
        self._known: dict[BrokerId, _Known] = {}
        self._reading: dict[BrokerId, asyncio.Task[None]] = {}
        self._is_stopped = False
        self._reads = metrics.counter(
            "tidelog_broker_registration_reads_total", "Reads of registrations of brokers in the coordination store."
        )

    def is_registered(self, broker: BrokerId, epoch: Epoch) -> bool:
        """False also if that is not known yet: it is then looked up, and known when the follower comes again."""
        known = self._known.get(broker)
        if known is None or known.session is not self._session():
            self._look_up(broker)
        return known is not None and known.epoch == epoch

    def learn(self, brokers: Iterable[BrokerId]) -> None:
        """They live, and may fetch from here: look them up before they do."""
        for broker in brokers:
            if broker not in self._known:
                self._look_up(broker)

    async def stop(self) -> None:
        self._is_stopped = True
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def _look_up(self, broker: BrokerId) -> None:
        if broker not in self._reading and not self._is_stopped:
            self._reading[broker] = asyncio.create_task(self._read(broker))

    async def _read(self, broker: BrokerId) -> None:
        """A change during the read is read again: the watch may fire before the answer is taken."""
        session, is_old = self._session(), False

        def on_change(event: Event) -> None:
            nonlocal is_old
            is_old = True
            if self._session() is session:
                self._look_up(broker)

        try:
            self._reads.add()
            stat = await session.exists(nodes.broker_path(broker), on_change)
            self._known[broker] = _Known(NO_EPOCH if stat is None else stat.created_id, session)
        except CoordinationError as failure:
            _log.debug("the registration of broker %d cannot be looked up: %s", broker, failure)
            if broker in self._known:
                self._known[broker] = self._known[broker]._replace(session=None)
            is_old = False
        finally:
            del self._reading[broker]
        if is_old:
            self._look_up(broker)
