"""Which controller this broker believes: the one that the coordination store knows, and no other.

Anybody who reaches a listener can send LeaderAndIsr, StopReplica or UpdateMetadata with a high controller epoch. A
broker that believed it would follow a stranger, and would refuse its real controller from then on. So an epoch above
the highest known one is looked up in the store, once: a fail-over costs each broker two reads. While the store does
not answer, or has not told this session of the election yet, the request is not answered. The connection is closed
and the controller tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.control.election import FIRST_EPOCH
from tidelog.broker.dispatch import HangUpError
from tidelog.broker.partition import RequestError
from tidelog.controller import nodes
from tidelog.coordination.port import CoordinationError, Event, NoNodeError, Session
from tidelog.errors import ErrorCode
from tidelog.metrics import Metrics
from tidelog.types import BrokerId, Epoch

_LATE_S = 1.0
"""How long a request waits for the store to tell this session of an election. A change of another session may be seen
a little late, and a controller whose connection is closed rests before it tries again."""


class _Term(NamedTuple):
    epoch: Epoch
    holder: BrokerId | None
    """None if the store does not tell it: the controller's session was over when this broker looked."""

    def is_of(self, controller_id: BrokerId) -> bool:
        return self.epoch > FIRST_EPOCH and self.holder in (None, controller_id)


class KnownController:
    """Always: `epoch` is one that stood in the store, and it never falls."""

    def __init__(self, session: Callable[[], Session], metrics: Metrics) -> None:
        self._session = session
        self._term = _Term(FIRST_EPOCH, None)
        self._reading: asyncio.Future[None] | None = None
        self._watched: Session | None = None
        """The session that tells of the next change of the epoch. Until it does, there is nothing to read."""
        self._changed = asyncio.Event()
        self._reads = metrics.counter(
            "tidelog_controller_epoch_reads_total", "Reads of the controller epoch in the coordination store."
        )
        self._refused = metrics.counter(
            "tidelog_refused_control_requests_total",
            "Control requests that were refused: no present controller sent them.",
        )

    @property
    def epoch(self) -> Epoch:
        return self._term.epoch

    def is_known(self, epoch: Epoch) -> bool:
        """Whether `check` can judge a request of this epoch without asking the store."""
        return epoch <= self._term.epoch

    def check(self, controller_id: BrokerId, epoch: Epoch) -> None:
        """STALE_CONTROLLER_EPOCH unless this is the controller of the highest epoch known (S12.1)."""
        term = self._term
        if epoch == term.epoch and term.is_of(controller_id):
            return
        self._refused.add()
        raise RequestError(
            ErrorCode.STALE_CONTROLLER_EPOCH,
            f"controller {controller_id} of epoch {epoch}: the store knows controller "
            f"{'(gone)' if term.holder is None else term.holder} of epoch {term.epoch}",
        )

    async def learn(self, epoch: Epoch) -> None:
        """Until the store has told of this epoch or of a later one. HangUpError if it does not, or cannot be asked."""
        try:
            async with asyncio.timeout(_LATE_S):
                while not self.is_known(epoch):
                    await self._read_together()
                    if not self.is_known(epoch):
                        await self._changed.wait()
        except (CoordinationError, nodes.BadNodeError) as failure:
            raise HangUpError(f"controller epoch {epoch} cannot be looked up: {failure}") from failure
        except TimeoutError:
            self._refused.add()
            raise HangUpError(f"the store does not know controller epoch {epoch}") from None

    async def _read_together(self) -> None:
        """One read after each change, however many requests wait: strangers cannot flood the store with questions."""
        if self._reading is None:
            if self._watched is self._session():
                return
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._read_done)
        await asyncio.shield(self._reading)

    def _read_done(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # told to those who wait, if any still do

    async def _read(self) -> None:
        """The epoch first. If another controller is elected between the two reads, its node stands beside the epoch of
        the one before, which is not heard any more; the next request brings the new epoch, and both are read again."""
        self._changed.clear()
        self._reads.add()
        self._watched = session = self._session()
        try:
            node = await session.get(nodes.CONTROLLER_EPOCH, self._on_change)
            epoch, holder = nodes.decode_controller_epoch(node.data), await _holder(session)
        except BaseException:
            self._watched = None
            raise
        if epoch > self._term.epoch:
            self._term = _Term(epoch, holder)

    def _on_change(self, event: Event) -> None:
        self._watched = None
        self._changed.set()


async def _holder(session: Session) -> BrokerId | None:
    try:
        return nodes.decode_controller((await session.get(nodes.CONTROLLER)).data)
    except (NoNodeError, nodes.BadNodeError):
        return None
