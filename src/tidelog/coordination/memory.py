"""The tree in memory, for the simulator and for tests: a store on the loop, and sessions that talk to it.

Store and sessions are kept apart as server and clients are. What a session does (renewals, watches, listeners) runs in
the context of whoever connected, so it stops when that process is frozen or killed in the lab; what the store does
(answers, expiry) runs in a context of its own and goes on. Between the two lie pipes that keep the order of what is
sent and let no call end in the turn of the loop it began in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

from tidelog.coordination.port import (
    ConnectionLostError,
    CoordinationError,
    Event,
    Op,
    OpResult,
    SessionLostError,
    SessionState,
    Watch,
)
from tidelog.coordination.session import Answer, Question, TreeSession, answer
from tidelog.coordination.tree import Tree
from tidelog.coordination.watches import Watches
from tidelog.ports import Clock

_RENEWALS_PER_TIMEOUT = 3


class _Pipe:
    """One direction between a session and the store: first in, first out, each piece after a delay."""

    def __init__(self, context: Context, delay_s: Callable[[], float]) -> None:
        self._context = context
        self._delay_s = delay_s
        self._on_the_way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def send(self, receive: Callable[..., None], *what: Any) -> None:
        self._on_the_way.append((receive, what))
        delay_s = self._delay_s()
        loop = asyncio.get_running_loop()
        # A timer may overtake another: each hands over the head, so what is sent never does.
        if delay_s > 0:
            loop.call_later(delay_s, self._hand_over, context=self._context)
        else:
            loop.call_soon(self._hand_over, context=self._context)

    def _hand_over(self) -> None:
        receive, what = self._on_the_way.popleft()
        receive(*what)


class MemorySession(TreeSession):
    """A member's end. Made by MemoryCoordination.connect."""

    def __init__(self, store: MemoryCoordination, timeout_ms: int) -> None:
        super().__init__()
        self.timeout_ms = timeout_ms
        self.context = copy_context()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store = store
        self._clock = store.clock
        self._to_store = _Pipe(store.context, store.delay_s)
        self._id = 0
        self._renewed_ns = self._clock.monotonic_ns()
        """When the last renewal that the store heard of was sent."""
        self._waiting: dict[asyncio.Future[Any], None] = {self.opened: None}
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What the store had to tell while it could not be reached."""
        self._to_store.send(store.receive_open, self)

    @property
    def id(self) -> int:
        return self._id

    def is_current(self) -> bool:
        return self._state is not SessionState.LOST and self._clock.monotonic_ns() < self._over_ns()

    async def close(self) -> None:
        if self._state is SessionState.CONNECTED and self.is_current():
            with contextlib.suppress(CoordinationError):  # over in another way
                await self._call(self._store.receive_close, self._id)
        self.lose()

    async def _ask(self, question: Question, path: str, watch: Watch | None) -> Answer:
        found: Answer = await self._call(self._store.receive_question, self, question, path, watch)
        return found

    async def _transact(self, ops: Sequence[Op]) -> list[OpResult]:
        results: list[OpResult] = await self._call(self._store.receive_ops, self, ops)
        return results

    async def _call(self, receive: Callable[..., None], *what: Any) -> Any:
        if self._state is not SessionState.CONNECTED:
            await asyncio.sleep(0)
            raise SessionLostError() if self._state is SessionState.LOST else ConnectionLostError()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        self._to_store.send(receive, *what, future)
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    # What comes from the store, in the context of the member

    def receive(self, receive: Callable[..., None], *what: Any) -> None:
        """What arrives is held back while the session is suspended, and dropped when it is over."""
        if self._state is SessionState.SUSPENDED:
            self._held.append((receive, what))
        elif self._state is not SessionState.LOST:
            receive(*what)

    def receive_opened(self, session: int) -> None:
        self._id = session
        self._tick()
        if not self.opened.done():
            self.opened.set_result(None)

    def receive_renewed(self, sent_ns: int) -> None:
        self._renewed_ns = max(self._renewed_ns, sent_ns)

    def receive_answer(self, future: asyncio.Future[Any], result: object, error: CoordinationError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def receive_event(self, watch: Watch, event: Event) -> None:
        watch(event)

    def receive_expired(self) -> None:
        self.lose()

    # What it does by itself

    def suspend(self) -> None:
        if self._turn(SessionState.SUSPENDED):
            self._fail_all(ConnectionLostError)

    def resume(self) -> None:
        """Go on with the same session, unless it has expired meanwhile."""
        if any(receive == self.receive_expired for receive, _ in self._held):
            self.lose()
        elif self._turn(SessionState.CONNECTED):
            held, self._held = self._held, []
            loop = asyncio.get_running_loop()
            for receive, what in held:
                loop.call_soon(self.receive, receive, *what)
            self._renew()

    def lose(self) -> None:
        if self._turn(SessionState.LOST):
            if self._timer is not None:
                self._timer.cancel()
            self._held.clear()
            self._fail_all(SessionLostError)

    def forget_renewals(self) -> None:
        """The store has ended it early: from now on it is not current, even if it hears of that much later."""
        self._renewed_ns = self._clock.monotonic_ns() - self.timeout_ms * 1_000_000

    def _over_ns(self) -> int:
        return self._renewed_ns + self.timeout_ms * 1_000_000

    def _tick(self) -> None:
        """Renew a few times in a timeout. A session that is not current goes on trying: the store may still have it."""
        self._renew()
        delay_s = self.timeout_ms / 1e3 / _RENEWALS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _renew(self) -> None:
        if self._state is SessionState.CONNECTED:
            self._to_store.send(self._store.receive_renewal, self, self._clock.monotonic_ns())

    def _fail_all(self, error: type[CoordinationError]) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(error())


class _Seat:
    """The store's end of a session."""

    def __init__(self, session: MemorySession, delay_s: Callable[[], float]) -> None:
        self.session = session
        self.watches = Watches()
        self.expiry: asyncio.TimerHandle | None = None
        self._pipe = _Pipe(session.context, delay_s)

    def send(self, receive: Callable[..., None], *what: Any) -> None:
        self._pipe.send(self.session.receive, receive, *what)


class MemoryCoordination:
    """The store. Share one among all members of a cluster; it needs no loop until the first connects.

    `delay_s` is asked for each message how long it takes, at least a turn of the loop. A story makes trouble with
    `expire`, `suspend` and `resume`, or `stop` and `start`.
    """

    def __init__(self, clock: Clock, *, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self.clock = clock
        self.delay_s = delay_s
        self.tree = Tree()
        self.context = Context()
        """Empty, so it is of no process: a freeze or a kill does not stop the store."""
        self._seats: dict[int, _Seat] = {}
        self._cut_off: dict[int, MemorySession] = {}
        """The sessions that are suspended. One of them may have expired meanwhile; it hears of that afterwards."""
        self._is_suspended = False
        self._is_stopped = False

    async def connect(self, session_timeout_ms: int) -> MemorySession:
        if self._is_suspended:
            await asyncio.sleep(0)
            raise ConnectionLostError()
        session = MemorySession(self, session_timeout_ms)
        try:
            await session.opened
        except BaseException:
            session.lose()  # nobody will renew it
            raise
        return session

    # Trouble

    @property
    def answers_all(self) -> bool:
        """It runs, and no session is cut off from it."""
        return not (self._is_stopped or self._is_suspended or self._cut_off)

    def expire(self, session: int) -> None:
        """End it now, as if its lease had run out: it is not current from this moment on, and hears of it."""
        seat = self._seats.get(session)
        if seat is not None:
            seat.session.forget_renewals()
            self._end(session)

    def suspend(self, session: int | None = None) -> None:
        """Nobody answers that session, or all and those to come. What is on the way there still arrives."""
        self._is_suspended = self._is_suspended or session is None
        for number in list(self._seats) if session is None else [session]:
            if number in self._seats:
                self._cut_off[number] = member = self._seats[number].session
                self._in_context_of(member, member.suspend)

    def resume(self, session: int | None = None) -> None:
        """Does nothing while the server is stopped: `start` reconnects all sessions."""
        if self._is_stopped:
            return
        if session is None:
            self._is_suspended = False
        for number in list(self._cut_off) if session is None else [session]:
            member = self._cut_off.pop(number, None)
            if member is not None:
                self._in_context_of(member, member.resume)

    def stop(self) -> None:
        """The server is killed. What is on the way to it is lost; what it has written and its sessions stay."""
        self._is_stopped = True
        for seat in self._seats.values():
            if seat.expiry is not None:
                seat.expiry.cancel()
        self.suspend()

    def start(self) -> None:
        """The server is back and gives each of its sessions a full new timeout, as ZooKeeper does."""
        self._is_stopped = False
        for number, seat in self._seats.items():
            self._await_renewal(number, seat)
        self.resume()

    async def restart(self, away_s: float) -> None:
        """Kill the server and bring it back after so long."""
        self.stop()
        await asyncio.sleep(away_s)
        self.start()

    def _in_context_of(self, session: MemorySession, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(act, context=session.context)

    # What comes from sessions, in the context of the store

    def receive_open(self, session: MemorySession) -> None:
        if self._is_stopped:
            self._in_context_of(session, session.lose)
            return
        number = self.tree.open_session()
        seat = self._seats[number] = _Seat(session, self.delay_s)
        self._await_renewal(number, seat)
        seat.send(session.receive_opened, number)

    def receive_renewal(self, session: MemorySession, sent_ns: int) -> None:
        seat = self._seat_of(session.id)
        if seat is not None:
            self._await_renewal(session.id, seat)
            seat.send(session.receive_renewed, sent_ns)

    def receive_question(
        self, session: MemorySession, question: Question, path: str, watch: Watch | None, future: asyncio.Future[Any]
    ) -> None:
        seat = self._seat_of(session.id)
        if seat is None:
            return
        try:
            found = answer(self.tree, seat.watches, question, path, watch)
        except CoordinationError as error:
            seat.send(session.receive_answer, future, None, error)
        else:
            seat.send(session.receive_answer, future, found, None)

    def receive_ops(self, session: MemorySession, ops: Sequence[Op], future: asyncio.Future[Any]) -> None:
        seat = self._seat_of(session.id)
        if seat is None:
            return
        outcome = self.tree.transact(session.id, ops)
        self._publish(outcome.events)
        seat.send(session.receive_answer, future, outcome.results, outcome.error)

    def receive_close(self, session: int, future: asyncio.Future[Any]) -> None:
        seat = self._seat_of(session)
        if seat is not None:
            self._end(session, seat.session.receive_answer, future, None, None)

    def _seat_of(self, session: int) -> _Seat | None:
        """None if there is no answer to give: the session is being told of its end, or the server is away."""
        return None if self._is_stopped else self._seats.get(session)

    def _await_renewal(self, session: int, seat: _Seat) -> None:
        if seat.expiry is not None:
            seat.expiry.cancel()
        timeout_s = seat.session.timeout_ms / 1e3
        seat.expiry = asyncio.get_running_loop().call_later(timeout_s, self._end, session, context=self.context)

    def _end(self, session: int, receive: Callable[..., None] | None = None, *what: Any) -> None:
        seat = self._seats.pop(session)
        if seat.expiry is not None:
            seat.expiry.cancel()
        self._publish(self.tree.end_session(session))
        seat.send(receive or seat.session.receive_expired, *what)

    def _publish(self, events: Sequence[Event]) -> None:
        """Before any later answer of the store, so that no session reads a change it was to be told of."""
        for event in events:
            for seat in self._seats.values():
                for watch in seat.watches.take(event):
                    seat.send(seat.session.receive_event, watch, event)
