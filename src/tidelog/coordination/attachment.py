"""What ties the sessions of one process to the journal: the replica, the two threads, and who waits for which line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.coordination.entries import Changed, Ended, Entry, Opened, Sealed
from tidelog.coordination.guard import Guard
from tidelog.coordination.journal import FellBehindError
from tidelog.coordination.lease import Lease, remove_orphans
from tidelog.coordination.machine import DirectoryFullError, Machine, NoRoomError
from tidelog.coordination.port import ConnectionLostError, Event, SessionLostError
from tidelog.coordination.replica import Applied, DivergedError, Member, Replica
from tidelog.coordination.scribe import Readers, Scribe
from tidelog.errors import StorageError
from tidelog.ports import Clock

_log = logging.getLogger(__name__)


class Attached(Protocol):
    """A session of this process, as the attachment sees it."""

    def start(self) -> None: ...

    def lose(self) -> None: ...

    def lose_if_over(self) -> None: ...

    def tell(self, event: Event) -> None: ...


A = TypeVar("A", bound=Attached)


class _Pending(NamedTuple):
    """A line that was handed to the scribe and has not been read back."""

    entry: Entry
    future: asyncio.Future[Any]


_Key: TypeAlias = tuple[str, int, int]


def _key(entry: Entry) -> _Key:
    if isinstance(entry, Opened):
        return (entry.name, 0, 0)
    if isinstance(entry, Changed):
        return ("changed", entry.session, entry.request)
    if isinstance(entry, Ended):
        return ("ended", entry.session, 0)
    return ("", 0, 0)


class Attachment:
    """Lives from the first session of this process to its last, on one loop.

    Always: what sessions are told and what they read is one prefix of the journal, and each line is told before it
    can be read, since both happen in one turn of the loop.
    """

    def __init__(self, machine: Machine, directory: str, clock: Clock, detached: Callable[[], None]) -> None:
        self.replica = Replica()
        self._machine = machine
        self._directory = directory
        self._clock = clock
        self._detached = detached
        self._loop = asyncio.get_running_loop()
        self._leases: dict[str, Lease] = {}
        """By name, of the sessions here: those that are open and those that are being opened."""
        self._openers: dict[str, Callable[[Member, Lease], Attached]] = {}
        self._awaited_leases: dict[asyncio.Future[Lease], None] = {}
        self._sessions: dict[int, Attached] = {}
        self._pending: dict[_Key, _Pending] = {}
        self._is_over = False
        self._is_refused = False
        """The last change could not be written, which has been logged."""
        self._failure: Exception | None = None
        self._guard = Guard(machine, directory, clock, self._loop, self._end_all)
        try:
            self._scribe = Scribe(machine, directory, self._loop, Readers(self._hear, self._not_written, self._fail))
        except OSError:
            self._guard.stop()
            raise

    # Sessions

    async def open(self, timeout_ms: int, opened: Callable[[Member, Lease], A]) -> A:
        """`opened` is called when the line has been read, before any later one is."""
        lease = await self._make_lease(timeout_ms)
        self._leases[lease.name] = lease
        self._openers[lease.name] = opened
        self._guard.keep(lease)
        opening = self.submit(Opened(lease.name, timeout_ms))
        try:
            session: A = await asyncio.shield(opening)
        except BaseException:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().lose()
            else:
                self.leave(lease)
            raise
        finally:
            self._openers.pop(lease.name, None)
        names = [*self._leases, *(member.name for member in self.replica.members.values())]
        self._scribe.run(partial(remove_orphans, self._machine, self._directory, names))
        return session

    async def _make_lease(self, timeout_ms: int) -> Lease:
        making = self._scribe.run(partial(Lease, self._machine, self._directory, timeout_ms, self._clock))
        self._awaited_leases[making] = None
        try:
            lease = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_release)
            raise
        except StorageError as error:
            raise _for_caller(error) from error
        finally:
            del self._awaited_leases[making]
            if not making.done() or making.cancelled() or making.exception() is not None:
                self._stop_if_idle()
        if self._is_over:
            lease.release()
            raise self._failure or SessionLostError()
        return lease

    def leave(self, lease: Lease, session: int | None = None) -> None:
        """A session of this process is over. Its lock goes, so anybody may end it; with the last one all stops."""
        if self._leases.pop(lease.name, None) is not None:
            self._guard.drop(lease)
        if session is not None:
            self._sessions.pop(session, None)
            if session in self.replica.members:
                self._end(session)
        self._watch_others()
        self._stop_if_idle()

    def submit(self, entry: Entry) -> asyncio.Future[Any]:
        """Done when the line has been read back, with what came of it. Shield it: a waiter may go, the line stays."""
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(_retrieve)
        if self._is_over:
            future.set_exception(SessionLostError())
        else:
            self._pending[_key(entry)] = _Pending(entry, future)
            self._scribe.submit(entry)
        return future

    async def end(self, session: int) -> None:
        """Returns when its nodes are gone."""
        await asyncio.shield(self._end(session))

    def _end(self, session: int) -> asyncio.Future[Any]:
        pending = self._pending.get(_key(Ended(session)))
        if pending is not None:
            return pending.future
        return self.submit(Ended(session))

    # What comes from the threads

    def _hear(self, entries: Sequence[Entry]) -> None:
        for session in list(self._sessions.values()):
            session.lose_if_over()  # a process that was stopped must not act on old news
        if self._is_over:
            return
        for entry in entries:
            try:
                applied = self.replica.apply(entry)
            except DivergedError as error:
                self._fail(error)
                return
            for event in applied.events:
                for session in list(self._sessions.values()):
                    session.tell(event)
            self._settle(entry, applied)
            if isinstance(entry, Sealed):
                self._scribe.go_on(self.replica.snapshot())
                for pending in self._pending.values():
                    self._scribe.submit(pending.entry)

    def _settle(self, entry: Entry, applied: Applied) -> None:
        if applied.opened is not None or applied.ended is not None:
            self._watch_others()
        if applied.ended is not None:
            self._scribe.run(partial(_remove, self._machine, os.path.join(self._directory, applied.ended.name)))
            session = self._sessions.get(applied.ended.id)
            if session is not None:
                session.lose()
        opened = self._join(applied.opened) if applied.opened is not None else None
        pending = self._pending.pop(_key(entry), None)
        if pending is not None:
            self._is_refused = False
        if pending is not None and not pending.future.done():
            if applied.outcome is None:
                pending.future.set_result(opened)
            elif applied.outcome.error is not None:
                pending.future.set_exception(applied.outcome.error)
            else:
                pending.future.set_result(applied.outcome.results)

    def _join(self, member: Member) -> Attached | None:
        """If it is one of ours, and is still wanted."""
        opener = self._openers.pop(member.name, None)
        lease = self._leases.get(member.name)
        if opener is None or lease is None:
            return None
        session = self._sessions[member.id] = opener(member, lease)
        session.start()
        return session

    def _not_written(self, entries: Sequence[Entry], error: StorageError) -> None:
        """The disk is full, most likely. Sessions live on, for their leases need no room."""
        if not self._is_refused:
            _log.error("changes to the cluster's state fail for now: %s", error)
        self._is_refused = True
        for entry in entries:
            pending = self._pending.pop(_key(entry), None)
            if pending is not None and not pending.future.done():
                pending.future.set_exception(_for_caller(error, ConnectionLostError()))

    def _fail(self, error: StorageError) -> None:
        """The journal cannot be read or synced any more, so nothing is known of the cluster: be out of it."""
        _log.error("all sessions of this process with the cluster end: %s", error)
        failure = self._failure = _for_caller(error)
        for making in self._awaited_leases:
            if not making.done():
                making.set_exception(error)
        for name in [key[0] for key in self._pending if key[0] in self._leases]:
            opening = self._pending.pop((name, 0, 0)).future
            if not opening.done():
                opening.set_exception(failure)
        for session in list(self._sessions.values()):
            session.lose()
        self._stop()

    def _end_all(self, dead: Sequence[Member]) -> None:
        for member in dead:
            if member.id in self.replica.members and member.name not in self._leases and not self._is_over:
                self._end(member.id)

    def _watch_others(self) -> None:
        self._guard.watch([member for member in self.replica.members.values() if member.name not in self._leases])

    def _stop_if_idle(self) -> None:
        if not self._leases and not self._awaited_leases:
            self._stop()

    def _stop(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._guard.stop()
            self._scribe.stop()
            for pending in self._pending.values():
                if not pending.future.done():
                    pending.future.set_exception(SessionLostError())
            self._pending.clear()
            self._detached()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """The caller may have been cancelled; asyncio complains of errors that no caller looks at."""
    if not future.cancelled():
        future.exception()


def _for_caller(error: StorageError, otherwise: Exception | None = None) -> Exception:
    """What may be tried again is a CoordinationError: a full disk passes, a process that was stopped starts over."""
    if isinstance(error, DirectoryFullError):
        return NoRoomError(str(error))
    if isinstance(error, FellBehindError | DivergedError):
        return SessionLostError()
    return otherwise or error


def _release(making: asyncio.Future[Lease]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().release()


def _remove(machine: Machine, path: str) -> None:
    with contextlib.suppress(OSError):
        machine.remove(path)
