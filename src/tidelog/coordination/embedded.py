"""The default home: brokers of one machine agree through a directory they share. No server, no leader, no lock.

Every change is a line that its process appends to one journal; every process reads all lines and applies them to a tree
of its own (`journal`, `replica`). Reads are answered from that tree, so they may be some milliseconds old, as a
ZooKeeper follower's are; a session always sees its own writes.

A session lives while its file is locked and its lease is current (`lease`); whoever sees that one of the two has ended
writes the line that ends the session, and with it its ephemeral nodes (`guard`). Lines of an ended session are void, so
a process that was stopped and wakes up changes nothing any more, whatever it was about to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from tidelog.coordination.attachment import Attachment
from tidelog.coordination.entries import Changed
from tidelog.coordination.lease import Lease
from tidelog.coordination.local_machine import LocalMachine
from tidelog.coordination.machine import Machine, NoRoomError, refusal
from tidelog.coordination.port import CoordinationError, Event, Op, OpResult, SessionLostError, SessionState, Watch
from tidelog.coordination.replica import Member
from tidelog.coordination.session import Answer, Question, TreeSession, answer
from tidelog.coordination.watches import Watches
from tidelog.errors import StorageError
from tidelog.ports import Clock

_log = logging.getLogger(__name__)

_BEATS_PER_TIMEOUT = 6
_SHORTEST_TIMER_S = 0.001


class EmbeddedSession(TreeSession):
    """A session of this process. Made by EmbeddedCoordination.connect. It is never SUSPENDED: there is no far side."""

    def __init__(self, attachment: Attachment, member: Member, lease: Lease, clock: Clock) -> None:
        super().__init__()
        self._attachment = attachment
        self._member = member
        self._lease = lease
        self._clock = clock
        self._watches = Watches()
        self._requests = 0
        self._last_change: asyncio.Future[list[OpResult]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> int:
        return self._member.id

    def is_current(self) -> bool:
        return self._state is not SessionState.LOST and self._lease.is_current()

    async def close(self) -> None:
        self.lose_if_over()
        if self._state is not SessionState.LOST:
            with contextlib.suppress(CoordinationError):
                await self._attachment.end(self.id)
            self.lose()

    async def _ask(self, question: Question, path: str, watch: Watch | None) -> Answer:
        """Behind the changes this session asked for before, and never in the turn of the loop in which it was asked."""
        last_change = self._last_change
        await asyncio.sleep(0)
        if last_change is not None and not last_change.done():
            with contextlib.suppress(CoordinationError):
                await asyncio.shield(last_change)
        self._refuse_if_lost()
        return answer(self._attachment.replica.tree, self._watches, question, path, watch)

    async def _transact(self, ops: Sequence[Op]) -> list[OpResult]:
        self._refuse_if_lost()
        self._requests += 1
        self._last_change = self._attachment.submit(Changed(self.id, self._requests, list(ops)))
        return await asyncio.shield(self._last_change)

    def _refuse_if_lost(self) -> None:
        self.lose_if_over()
        if self._state is SessionState.LOST:
            raise SessionLostError()

    def _beat(self) -> None:
        """The lease follows the loop, not a thread beside it: a broker whose loop hangs is as good as dead."""
        self.lose_if_over()
        if self._state is not SessionState.LOST:
            self._lease.beat()
            left_s = (self._lease.over_ns - self._clock.monotonic_ns()) / 1e9
            delay_s = max(_SHORTEST_TIMER_S, min(self._member.timeout_ms / 1e3 / _BEATS_PER_TIMEOUT, left_s))
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._beat)

    # What the attachment asks of it

    def start(self) -> None:
        """If its process was stopped while it was opened, it is over before it began."""
        self._beat()

    def tell(self, event: Event) -> None:
        for watch in self._watches.take(event):
            try:
                watch(event)
            except Exception as error:
                context = {"message": f"the watch {watch!r} failed at {event}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def lose_if_over(self) -> None:
        if self._state is not SessionState.LOST and not self._lease.is_current():
            self.lose()

    def lose(self) -> None:
        if self._turn(SessionState.LOST):
            if self._timer is not None:
                self._timer.cancel()
            self._attachment.leave(self._lease, self.id)


class EmbeddedCoordination:
    """The store in a directory, which is made if it is missing. All its members run on one machine, and on its clock.

    Costs two threads while there is a session, and nothing else.
    """

    def __init__(self, directory: str, clock: Clock, machine: Machine | None = None) -> None:
        self._directory = directory
        self._clock = clock
        self._machine = LocalMachine() if machine is None else machine
        self._attachment: Attachment | None = None

    async def connect(self, session_timeout_ms: int) -> EmbeddedSession:
        """StorageError if the directory cannot be used, NoRoomError if it is full.

        SessionLostError if this process was stopped meanwhile.
        """
        try:
            return await self._connect(session_timeout_ms)
        except StorageError as error:
            # The kernel reports a failed sync to every process that has the journal open. One that opens it again
            # and writes everything once more learns whether the device still fails.
            _log.warning("the coordination store is tried once more: %s", error)
            return await self._connect(session_timeout_ms)

    async def _connect(self, session_timeout_ms: int) -> EmbeddedSession:
        attachment = self._attachment
        if attachment is None:
            try:
                attachment = Attachment(self._machine, self._directory, self._clock, self._detached)
            except OSError as error:  # each of the threads needs a descriptor to be woken by
                raise NoRoomError(str(refusal("a thread", self._directory, error))) from error
            self._attachment = attachment
        return await attachment.open(
            session_timeout_ms, lambda member, lease: EmbeddedSession(attachment, member, lease, self._clock)
        )

    def _detached(self) -> None:
        self._attachment = None
