"""Batches that take too long to be checked on the loop: a disk thread checks them, one after the other.

One at a time for the whole broker, because each may need tidelog.batch.max.uncompressed.bytes of memory. A connection
has at most one batch here, so every connection gets its turn.

Produces of one connection are appended in the order they came, because an idempotent producer numbers its batches: what
comes behind a request whose batches are being checked waits for it. Other requests and other connections do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.broker.partition import RequestError
from tidelog.broker.write_rules import Checked, HeavyBatchError, WriteRules, check
from tidelog.errors import ErrorCode, TidelogError
from tidelog.metrics import Metrics
from tidelog.net.connection import ServerConnection
from tidelog.ports import Clock, Disk
from tidelog.types import Buffer

T = TypeVar("T")

_LANE = "batch checks"
"""The key under which the disk threads do them in order."""
_LOOKUPS = 2


class Looked(NamedTuple):
    """A batch that is checked before its request is appended, and by which rules."""

    rules: WriteRules
    outcome: Checked | TidelogError | None
    """None if it is too heavy for the loop and has not been checked yet."""

    def result(self, rules: WriteRules) -> Checked:
        """The batch as it may be appended to a topic that has these rules now; raises what is wrong with it."""
        if self.rules != rules:  # they have changed while a disk thread looked at the batch
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the topic's settings have changed; send it again")
        if isinstance(self.outcome, TidelogError):
            raise self.outcome
        assert self.outcome is not None, "a batch is checked before it is appended"
        return self.outcome


NOTHING_LOOKED_AT: dict[int, Looked] = {}


def look(batch: Buffer, rules: WriteRules, now_ms: int) -> Looked:
    """Check it if that does not take too long for the loop."""
    return Looked(rules, _outcome(batch, rules, now_ms, on_loop=True))


def _outcome(batch: Buffer | None, rules: WriteRules, now_ms: int, *, on_loop: bool) -> Checked | TidelogError | None:
    try:
        return check(batch, rules, now_ms, on_loop=on_loop)
    except HeavyBatchError:
        return None
    except TidelogError as failure:
        # Its traceback would keep the frames that it passed through, and they what was decompressed.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        return failure


class BatchChecks:
    """Belongs to the broker's loop."""

    def __init__(self, disk: Disk, metrics: Metrics) -> None:
        self._disk = disk
        self.under_way: dict[ServerConnection, asyncio.Future[None]] = {}
        """By connection, while it has produces that wait: is done when the last of them has been appended."""
        self.lookups = asyncio.Semaphore(_LOOKUPS)
        """For those who look for a time in a log: each may decompress a batch of up to DEFAULT_LIMIT_BYTES."""
        self._checked = metrics.counter("tidelog_batches_checked_off_loop_total")
        metrics.gauge("tidelog_connections_waiting_for_batch_checks", lambda: len(self.under_way))

    def in_turn(self, connection: ServerConnection, steps: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Do this when all that came before it from this connection has been done. Its place is taken now."""
        before = self.under_way.get(connection)
        done = self.under_way[connection] = asyncio.get_running_loop().create_future()
        return self._wait(connection, before, done, steps)

    async def _wait(
        self,
        connection: ServerConnection,
        before: asyncio.Future[None] | None,
        done: asyncio.Future[None],
        steps: Callable[[], Awaitable[T]],
    ) -> T:
        try:
            if before is not None:
                await before
            return await steps()
        finally:
            if self.under_way.get(connection) is done:
                del self.under_way[connection]
            if not done.done():
                done.set_result(None)

    async def check_heavy(self, batch: Buffer | None, found: Looked, clock: Clock) -> Looked:
        """Check a batch that was too heavy for the loop."""
        self._checked.add()
        work = partial(_outcome, batch, found.rules, clock.wall_ms(), on_loop=False)
        return Looked(found.rules, await self._disk.submit(_LANE, work))
