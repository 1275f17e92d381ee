"""Batches that take too long to be checked on the loop: a disk thread checks them, one after the other.

One at a time for the whole broker, because each may need tidelog.batch.max.uncompressed.bytes of memory.

A connection has at most one batch here, and connections share the thread by the work that their batches take: a batch
is due when each connection that waits could have had as much work done as this batch needs. So a small batch waits for
the one that is being checked and for smaller ones, and a large one waits longer, but not for ever. What a batch
decompresses to is not known before, so each is first tried with little room; if that is not enough it waits once more,
as a large one.

Produces of one connection are appended in the order they came, because an idempotent producer numbers its batches: what
comes behind a request whose batches are being checked waits for it. Other requests and other connections do not.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

from tidelog.broker.partition import RequestError
from tidelog.broker.write_rules import Checked, HeavyBatchError, WriteRules, check, codec_of
from tidelog.errors import ErrorCode, TidelogError
from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.ports import Clock, Disk
from tidelog.types import Buffer

T = TypeVar("T")

_LANE = "batch checks"
"""The key under which the disk threads do them in order."""
_FIRST_BYTES = 1024 * 1024
_FIRST_RATIO = 16
"""What a batch may decompress to when it is first tried. Few honest ones need more."""
_COMPRESSION_WEIGHT = 16
"""How much longer it takes, about, if the records are compressed anew as well."""


class Looked(NamedTuple):
    """A batch that was checked before it is appended, and by which rules."""

    rules: WriteRules
    outcome: Checked | TidelogError

    def result(self, rules: WriteRules) -> Checked:
        """The batch as it may be appended to a topic that has these rules now; raises what is wrong with it."""
        if self.rules != rules:  # they have changed while a disk thread looked at the batch
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the topic's settings have changed; send it again")
        if isinstance(self.outcome, TidelogError):
            raise self.outcome
        return self.outcome


def _outcome(batch: Buffer, rules: WriteRules, now_ms: int, most_bytes: int) -> Checked | TidelogError:
    try:
        return check(batch, rules, now_ms, most_bytes=most_bytes)
    except TidelogError as failure:
        # Its traceback would keep the frames that it passed through, and they what was decompressed.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        return failure


class _Check:
    """A batch that waits for the disk thread, or is there."""

    __slots__ = ("outcome", "work", "work_bytes")

    def __init__(self, work: Callable[[], Checked | TidelogError], work_bytes: int) -> None:
        self.work: Callable[[], Checked | TidelogError] | None = work
        """None when the disk thread has begun with it, or when it is given up."""
        self.work_bytes = work_bytes
        """What may come out of decompression, and more if it is compressed anew."""
        self.outcome: asyncio.Future[Checked | TidelogError | None] = asyncio.get_running_loop().create_future()


class BatchChecks:
    """Belongs to the broker's loop.

    Always: the disk threads have at most one batch from here, and none only if none waits.
    """

    def __init__(self, disk: Disk, metrics: Metrics) -> None:
        self._disk = disk
        self.under_way: dict[ServerConnection, asyncio.Future[None]] = {}
        """By connection, while it has produces that wait: is done when the last of them has been appended."""
        self._waiting: list[tuple[int, int, _Check]] = []
        """A heap. First is what is due first, at which `_share_bytes`, and of these what came first."""
        self._given_up = 0
        """How many of them are given up."""
        self._numbers = count()
        self._share_bytes = 0
        """How much work each connection could have had done so far."""
        self._is_busy = False
        self._checked = metrics.counter(
            "tidelog_batches_checked_off_loop_total",
            "Batches that took long to check and were checked by a disk thread.",
        )
        metrics.gauge(
            "tidelog_connections_waiting_for_batch_checks",
            "Connections whose produces wait for batches that a disk thread checks.",
            lambda: len(self.under_way),
        )

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

    async def check_heavy(
        self, call: Call, batch: Buffer, rules: WriteRules, clock: Clock, *, is_awaited: bool
    ) -> Looked | None:
        """Check a batch that was too heavy for the loop.

        None if the client is gone that awaits an answer to this request: it will send the batch again.
        """
        self._checked.add()
        limit_bytes = rules.expansion_limit(len(batch))
        weight = _COMPRESSION_WEIGHT if rules.compresses(codec_of(batch)) else 1
        for most_bytes in (min(max(_FIRST_BYTES, _FIRST_RATIO * len(batch)), limit_bytes), limit_bytes):
            if is_awaited and call.connection.is_closed:
                return None
            waiting = _Check(partial(_outcome, batch, rules, clock.wall_ms(), most_bytes), most_bytes * weight)
            call.when_gone = partial(self._give_up, waiting) if is_awaited else None
            self._put(waiting)
            try:
                outcome = await waiting.outcome
            finally:
                call.when_gone = None
            if outcome is None or (is_awaited and call.connection.is_closed):
                return None
            if not isinstance(outcome, HeavyBatchError):
                return Looked(rules, outcome)
        raise AssertionError("a batch that may grow as far as its topic allows is not too heavy")

    def _put(self, waiting: _Check) -> None:
        heapq.heappush(self._waiting, (self._share_bytes + waiting.work_bytes, next(self._numbers), waiting))
        if not self._is_busy:
            self._begin()

    def _give_up(self, waiting: _Check) -> None:
        """The client has gone. What the disk thread has begun it ends, and until then the request keeps its bytes."""
        if waiting.work is None or waiting.outcome.done():
            return
        waiting.work = None
        waiting.outcome.set_result(None)
        self._given_up += 1
        if self._given_up > len(self._waiting) // 2:
            self._waiting = [entry for entry in self._waiting if entry[2].work is not None]
            heapq.heapify(self._waiting)
            self._given_up = 0

    def _begin(self) -> None:
        """Have the batch checked that is due first."""
        while self._waiting:
            waiting = heapq.heappop(self._waiting)[2]
            work, waiting.work = waiting.work, None
            if work is None:
                self._given_up -= 1
            elif not waiting.outcome.done():  # else its request was cancelled
                self._disk.submit(_LANE, work).add_done_callback(partial(self._end, waiting))
                self._is_busy = True
                self._share_bytes += waiting.work_bytes // (1 + len(self._waiting) - self._given_up)
                break

    def _end(self, waiting: _Check, done: asyncio.Future[Checked | TidelogError]) -> None:
        self._is_busy = False
        failure = None if done.cancelled() else done.exception()
        if done.cancelled():
            waiting.outcome.cancel()
        elif not waiting.outcome.done():
            if failure is None:
                waiting.outcome.set_result(done.result())
            else:
                waiting.outcome.set_exception(failure)
        self._begin()
