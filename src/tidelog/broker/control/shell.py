"""The controller's place in a broker: it runs for controller, and while it is one, does one thing after the other.

Every broker has one. Watches, answers and administrators put work into one queue; one task takes it out. When a write
does not go as planned the whole state is read again, under the same epoch, and told to everybody; when the epoch or
the session is lost, the term is dropped and the race begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tidelog.broker.control.channel import Answered, BrokerChannel, OpenConnection, connect_to_broker
from tidelog.broker.control.election import Lost, Won, run_for_controller
from tidelog.broker.control.faults import Complaints
from tidelog.broker.control.reach import Others, Reach
from tidelog.broker.control.snapshot import ClusterReader, Look
from tidelog.broker.control.stats import ControlFacts, ControlStats, facts_of
from tidelog.broker.control.term import Term
from tidelog.broker.control.writing import FencedError
from tidelog.broker.long_waits import Waits, alone
from tidelog.broker.said import Said
from tidelog.controller import nodes
from tidelog.controller.controller import Controller
from tidelog.controller.events import AlterPartitionAsked, Event, ImbalanceChecked, ShutdownAsked
from tidelog.controller.image import Broker, ElectionDefaults, Endpoint, Image
from tidelog.coordination.port import CoordinationError, Delete, NoNodeError, Session, SessionLostError, SessionState
from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Clock
from tidelog.types import NO_EPOCH, BrokerId, Epoch
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.1
MOST_RETRY_AFTER_S = 1.0
"""A controller that fails again and again rests twice as long each time, up to this."""
FIRST_BALANCE_CHECK_S = 5.0
"""After a take-over: brokers that start together with the controller have come by then."""

_MOST_DOUBLINGS = 10

T = TypeVar("T")
Job: TypeAlias = Callable[[Term], Awaitable[T]]


class NotControllerError(TidelogError):
    """Another broker is controller, or none."""

    code = ErrorCode.NOT_CONTROLLER


class ControlSettings(NamedTuple):
    listener: str
    """The name of the inter-broker listener."""
    socket_timeout_ms: Callable[[], int] = lambda: 30_000
    """controller.socket.timeout.ms, as it is now."""
    isolation_timeout_ms: int = 18_000
    """A controller that reaches no other broker for so long resigns: zookeeper.session.timeout.ms."""
    delete_topic_enable: bool = True
    election_defaults: Callable[[], ElectionDefaults] = ElectionDefaults
    """The brokers' own, as they are now."""
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_s: float = 300
    leader_imbalance_per_broker_percentage: int = 10
    is_stopping: Callable[[], bool] = lambda: False
    """The broker itself stops: what others lose by it is no surprise."""


class _Config(NamedTuple):
    """The config of these topics changed, or of all."""

    topics: tuple[str, ...] | None


class _Request(NamedTuple):
    """What an administrator asked for, and who waits for it."""

    job: Job[Any]
    answer: asyncio.Future[Any]
    writes_topics: bool
    """The job writes wishes about topics, to be looked at when it is done."""


Work: TypeAlias = Look | _Config | _Request | Event


class ControllerShell:
    """Always: at most one term, and it belongs to the session of now."""

    def __init__(
        self,
        broker_id: BrokerId,
        clock: Clock,
        settings: ControlSettings,
        connect: OpenConnection = connect_to_broker,
    ) -> None:
        self.broker_id = broker_id
        self.controller_id: BrokerId | None = None
        """Who was controller when this broker last looked."""
        self._session: Session | None = None
        self._clock = clock
        self._settings = settings
        self._connect = connect
        self._sequence = count(1)
        """Numbers the requests to brokers. It rises over all terms of this process: two terms may have the same epoch,
        when the first one ended without /controller being deleted."""
        self._reach = Reach(broker_id, connect, settings.isolation_timeout_ms)
        self._term: Term | None = None
        self._has_taken_over = False
        self._work: deque[Work] = deque()
        self._wake = asyncio.Event()
        self.stats = ControlStats(clock)
        self._balancing: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        """In a row."""
        self._said = Said()
        self._reconnected = asyncio.Event()

    # From outside

    @property
    def is_active(self) -> bool:
        """This broker is controller, and its session is surely not over."""
        return self._term is not None and self._session is not None and self._session.is_current()

    @property
    def epoch(self) -> Epoch:
        """Of the term, NO_EPOCH without one."""
        return NO_EPOCH if self._term is None else self._term.epoch

    @property
    def image(self) -> Image | None:
        """What the controller holds; None on the brokers that are not it."""
        return None if self._term is None else self._term.controller.image

    @property
    def facts(self) -> ControlFacts:
        """For gauges; all zero on the brokers that are not controller."""
        return facts_of(self.image)

    async def start(self, session: Session) -> None:
        """Run for controller. When the session is lost the broker stops this and starts it with another."""
        assert self._task is None, "started twice"
        self._session = session
        session.listen(lambda state: self._session_changed(session, state))
        self._task = asyncio.create_task(self._run(session), name=f"controller {self.broker_id}")

    async def stop(self, why: str = "the broker stops") -> None:
        """Give the office up, so that others need not wait for the end of the session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        term = self._term
        self._resign(why)
        self._session = None
        if term is not None:
            try:
                await _delete_controller_node(term)
            except (CoordinationError, FencedError) as failure:
                _log.info("/controller is left to the end of the session: %s", failure)

    def config_changed(self, topics: Sequence[str] | None = None) -> None:
        """Configs of topics changed, or (None) the brokers' own: elections may come out differently."""
        if self._term is not None:
            self._put(_Config(None if topics is None else tuple(topics)))

    async def run(self, job: Job[T], *, writes_topics: bool = True) -> T:
        """Do something as controller, between two events. NotControllerError if this broker is not it."""
        if not self.is_active:
            raise NotControllerError(f"broker {self.broker_id} is not the controller")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Request(job, answer, writes_topics))
        return await answer

    async def ask(self, event: Event) -> Any:
        """The answer to an event that has one, when all that follows from it is written. See `events`."""
        return await self.run(lambda term: term.handle(event), writes_topics=False)

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """As NOT_CONTROLLER if this broker is not it, or is no longer."""
        try:
            answer: AlterPartitionResponse = await self.ask(AlterPartitionAsked(request, version))
        except NotControllerError as failure:
            return AlterPartitionResponse(error_code=failure.code)
        return answer

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """As NOT_CONTROLLER if this broker is not it, or is no longer."""
        try:
            asked = ShutdownAsked(request.broker_id, request.broker_epoch)
            answer: ControlledShutdownResponse = await self.ask(asked)
        except NotControllerError as failure:
            return ControlledShutdownResponse(error_code=failure.code)
        return answer

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float, waits: Waits = alone) -> bool:
        """Whether it came to hold in time; looked at now and after each event."""
        if condition() or timeout_s <= 0:
            return condition()
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = condition
        timer = asyncio.get_running_loop().call_later(timeout_s, _give_up, changed)
        try:
            with waits(partial(_give_up, changed)):
                await changed
        finally:
            timer.cancel()
            del self._waiting[changed]
        return condition()

    # The one task

    async def _run(self, session: Session) -> None:
        while session.state is not SessionState.LOST:
            self._wake.clear()
            self._reconnected.clear()
            try:
                await self._step(session)
            except asyncio.CancelledError:
                raise
            except FencedError as failure:
                self._resign(str(failure))
            except SessionLostError:
                break
            except Exception as failure:
                self._has_taken_over = False
                await self._rest(failure)
            else:
                self._failures = 0
            self._tell_waiting()
        self._resign("the session was lost")

    async def _rest(self, failure: Exception) -> None:
        """Before the next try; a session that is connected again ends it at once."""
        rest_s = min(RETRY_AFTER_S * 2**self._failures, MOST_RETRY_AFTER_S)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        is_known = isinstance(failure, TidelogError)
        reason = str(failure) if is_known else repr(failure)
        if self._said.is_news(reason):
            what = "cannot run for controller yet" if self._term is None else "reads everything again as controller"
            _log.warning("broker %d %s: %s", self.broker_id, what, reason, exc_info=None if is_known else failure)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reconnected.wait(), rest_s)

    async def _step(self, session: Session) -> None:
        """The next thing to do; waits if there is none."""
        if self._term is None:
            await self._campaign(session)
        elif self._reach.is_isolated:
            await _delete_controller_node(self._term)
            self._resign("no other registered broker has answered it for a session timeout or longer")
        elif not self._has_taken_over:
            await self._term.take_over()
            self._has_taken_over = True
        elif self._work:
            await self._do(self._term, self._work.popleft())
        else:
            await self._wake.wait()

    async def _campaign(self, session: Session) -> None:
        if self._reach.is_isolated:
            registered = await ClusterReader(session, lambda look: None, Complaints(), {}).brokers()
            await self._reach.give_a_head_start(self._others(registered))
        result = await run_for_controller(session, self.broker_id, self._clock.wall_ms(), lambda _: self._wake.set())
        if isinstance(result, Lost):
            self.controller_id = result.controller
            await self._wake.wait()
        else:
            self._begin(session, result)

    def _begin(self, session: Session, won: Won) -> None:
        _log.info("broker %d became controller, controller epoch %d", self.broker_id, won.epoch)
        self.controller_id = self.broker_id
        controller = Controller(
            self.broker_id,
            won.epoch,
            self._settings.listener,
            defaults=self._settings.election_defaults,
            deletion_enabled=self._settings.delete_topic_enable,
        )
        self._has_taken_over = False
        # What comes from a term that is over is not heard.
        self._term = term = Term(
            session,
            won,
            controller,
            self._settings.listener,
            self._open_channel,
            self.stats,
            changed=lambda look: self._put(look) if self._term is term else None,
            answered=lambda event: self._put(event) if self._term is term else None,
            is_stopping=self._settings.is_stopping,
        )
        self._reach.watch(lambda: self._others(term.controller.image.brokers), self._wake.set)
        if self._settings.auto_leader_rebalance_enable:
            self._check_balance_in(FIRST_BALANCE_CHECK_S)

    def _open_channel(self, broker: Broker, endpoint: Endpoint, answered: Answered) -> BrokerChannel:
        timeout_ms = self._settings.socket_timeout_ms
        return BrokerChannel(broker, endpoint, self._connect, timeout_ms, lambda: next(self._sequence), answered)

    def _others(self, brokers: Mapping[BrokerId, Broker]) -> Others:
        endpoints = {id: broker.endpoint(self._settings.listener) for id, broker in brokers.items()}
        return {id: at for id, at in endpoints.items() if at is not None and id != self.broker_id}

    def _check_balance_in(self, delay_s: float) -> None:
        def check() -> None:
            self._put(ImbalanceChecked(self._settings.leader_imbalance_per_broker_percentage))
            self._check_balance_in(self._settings.leader_imbalance_check_interval_s)

        self._balancing = asyncio.get_running_loop().call_later(delay_s, check)

    async def _do(self, term: Term, work: Work) -> None:
        if isinstance(work, Look):
            await term.look(work)
        elif isinstance(work, _Config):
            await term.look_at_config(work.topics)
        elif isinstance(work, _Request):
            await self._serve(term, work)
        else:
            await term.handle(work)

    async def _serve(self, term: Term, request: _Request) -> None:
        """The administrator hears of what was written; what follows from it is done at once, watches or not."""
        try:
            answer = await request.job(term)
        except BaseException as failure:
            # However it ended, be it that the shell was stopped: somebody waits.
            if not request.answer.done():
                request.answer.set_exception(NotControllerError(f"the controller could not do it: {failure!r}"))
            raise
        if not request.answer.done():
            request.answer.set_result(answer)
        if request.writes_topics:
            await term.look(Look.TOPICS)

    # Pieces

    def _put(self, work: Work) -> None:
        if not (isinstance(work, Look) and work in self._work):
            self._work.append(work)
            self._wake.set()

    def _resign(self, why: str) -> None:
        term, self._term = self._term, None
        self._reach.stop()
        if self._balancing is not None:
            self._balancing.cancel()
            self._balancing = None
        if term is not None:
            _log.info("broker %d ceased to be controller, controller epoch %d: %s", self.broker_id, term.epoch, why)
            term.close()
        self._has_taken_over = False
        work, self._work = self._work, deque()
        for item in work:
            if isinstance(item, _Request) and not item.answer.done():
                item.answer.set_exception(NotControllerError(f"broker {self.broker_id} is no longer controller"))
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        for future, condition in list(self._waiting.items()):
            if not future.done() and condition():
                future.set_result(None)

    def _session_changed(self, session: Session, state: SessionState) -> None:
        if session is self._session:
            if state is SessionState.LOST:
                self._resign("the session was lost")
            self._reconnected.set()
            self._wake.set()


async def _delete_controller_node(term: Term) -> None:
    """Only the node of this term: the write is fenced by its epoch. The node may be gone if an answer was lost."""
    with suppress(NoNodeError):
        await term.writer.multi([Delete(nodes.CONTROLLER)])


def _give_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
