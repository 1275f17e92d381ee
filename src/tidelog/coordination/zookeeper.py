"""The tree in ZooKeeper, as Kafka up to 3.9 keeps it: sessions through kazoo, whose threads end at `zookeeper_link`.

A session is current for the timeout that the server granted, counted from when the last answered request or ping was
sent; the server counts from when it got it, so ours ends first. When that time has passed the session is not current,
but it is not lost either: a server that was away gives each of its sessions a new timeout when it returns. So the link
goes on trying with the same session until the server resumes it, or says that it has expired. Then it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo import exceptions as kazoo
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat

from tidelog.coordination.port import (
    BadVersionError,
    ConnectionLostError,
    CoordinationError,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    OpResult,
    SessionLostError,
    SessionState,
    Set,
    Stat,
    Watch,
)
from tidelog.coordination.session import Answer as Found
from tidelog.coordination.session import Question, TreeSession
from tidelog.coordination.tree import check_path
from tidelog.coordination.zookeeper_link import Answer, Link
from tidelog.coordination.zookeeper_watches import LastingWatches, missed_by_children
from tidelog.errors import TidelogError
from tidelog.ports import Clock

T = TypeVar("T")

_LOOKS_PER_TIMEOUT = 4
_PATIENCE_OF_TIMEOUT = 2 / 3
"""An answer that takes longer than this part of the timeout is no longer waited for on this connection."""

_KINDS = {
    EventType.CREATED: EventKind.CREATED,
    EventType.DELETED: EventKind.DELETED,
    EventType.CHANGED: EventKind.CHANGED,
    EventType.CHILD: EventKind.CHILDREN,
}
_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    kazoo.NoNodeError: NoNodeError,
    kazoo.NodeExistsError: NodeExistsError,
    kazoo.BadVersionError: BadVersionError,
    kazoo.NotEmptyError: NotEmptyError,
    kazoo.NoChildrenForEphemeralsError: NoChildrenForEphemeralsError,
    kazoo.SessionExpiredError: SessionLostError,
    kazoo.ConnectionClosedError: SessionLostError,
    kazoo.ConnectionLoss: ConnectionLostError,
    kazoo.SessionMovedError: ConnectionLostError,
    kazoo.OperationTimeoutError: ConnectionLostError,
}


class ZooKeeperRefusedError(CoordinationError):
    """ZooKeeper said no for a reason that has no name in the port."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.args = (f"ZooKeeper refused {path}: {reason}",)


class ZooKeeperUnreachableError(ConnectionLostError):
    """No session came about."""

    def __init__(self, servers: str, timeout_ms: int) -> None:
        super().__init__()
        self.args = (
            f"no ZooKeeper at {servers} opened a session within {timeout_ms} ms; look at zookeeper.connect, "
            "or raise zookeeper.connection.timeout.ms",
        )


class ZooKeeperSession(TreeSession):
    """Made by ZooKeeperCoordination.connect."""

    def __init__(self, hosts: str, root: str, timeout_ms: int, max_in_flight: int, clock: Clock) -> None:
        super().__init__()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._root = root
        self._clock = clock
        self._id = 0
        self._watches = LastingWatches()
        self._waiting: dict[asyncio.Future[Any], int] = {}
        """Unanswered calls, oldest first, and when they were sent."""
        self._seen_id = 0
        """The last change before the connection was lost; who watches has been told of all up to it."""
        self._being_read_again = 0
        self._timer: asyncio.TimerHandle | None = None
        self._link = Link(hosts, timeout_ms, max_in_flight, clock, self._receive_state)
        self._link.start()

    @property
    def id(self) -> int:
        return self._id

    def is_current(self) -> bool:
        return self._state is not SessionState.LOST and self._link.current_until_ns > self._clock.monotonic_ns()

    async def close(self) -> None:
        was_reachable = self._state is SessionState.CONNECTED
        left_s = (self._link.current_until_ns - self._clock.monotonic_ns()) / 1e9
        self.lose()
        if was_reachable and left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._link.stop()), left_s)

    async def make_root(self) -> None:
        """The chroot need not be there before."""
        names = self._root[1:].split("/") if self._root else []
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            if await self._call(partial(self._link.client.exists_async, path), path, bool):
                continue
            with contextlib.suppress(NodeExistsError):  # somebody else was faster
                await self._change([Create(path)], "")

    def lose(self) -> None:
        if self._turn(SessionState.LOST):
            if self._timer is not None:
                self._timer.cancel()
            self._link.stop()
            self._fail_all(SessionLostError)

    # The two ways to ask

    async def _ask(self, question: Question, path: str, watch: Watch | None) -> Found:
        client, full = self._link.client, _under(self._root, path)
        told = None if watch is None else self._receive_event

        def seen(found: Found) -> Found:
            if watch is not None and question is Question.CHILDREN:
                self._watches.add_for_children(path, watch)
            elif watch is not None:
                self._watches.add_seen(path, watch, is_there=found is not None)
            return found

        if question is Question.GET:
            return await self._call(partial(client.get_async, full, told), path, lambda got: seen(_node(*got)))
        if question is Question.EXISTS:
            return await self._call(
                partial(client.exists_async, full, told), path, lambda stat: seen(None if stat is None else _stat(stat))
            )
        return await self._call(partial(client.get_children_async, full, told), path, lambda names: seen(sorted(names)))

    async def _transact(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._change(ops, self._root)

    async def _change(self, ops: Sequence[Op], root: str) -> list[OpResult]:
        if not ops:
            await self._check_usable()
            return []
        transaction = self._link.client.transaction()
        for op in ops:
            path = _under(root, op.path)
            if isinstance(op, Create):
                transaction.create(path, op.data, None, op.ephemeral, op.sequential)
            elif isinstance(op, Set):
                transaction.set_data(path, op.data, op.version)
            elif isinstance(op, Delete):
                transaction.delete(path, op.version)
            else:
                transaction.check(path, op.version)
        return await self._call(transaction.commit_async, ops[0].path, lambda results: _results(ops, results, root))

    async def _call(self, send: Callable[[], Answer], path: str, convert: Callable[[Any], T]) -> T:
        await self._check_usable()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[future] = self._clock.monotonic_ns()
        self._link.ask(send, partial(self._receive_answer, future, path, convert))
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def _check_usable(self) -> None:
        if self._state is not SessionState.CONNECTED:
            await asyncio.sleep(0)
            raise SessionLostError() if self._state is SessionState.LOST else ConnectionLostError()

    # What comes over the link, in order

    def _receive_answer(
        self, future: asyncio.Future[T], path: str, convert: Callable[[Any], T], answer: Answer
    ) -> None:
        """Turned into what the port promises here, so that a watch is left before the next event arrives."""
        if future.done():
            return
        if answer.exception is not None:
            future.set_exception(_error(answer.exception, path))
            return
        try:
            future.set_result(convert(answer.value))
        except CoordinationError as error:
            future.set_exception(error)

    def _receive_event(self, told: WatchedEvent) -> None:
        if told.type in _KINDS:  # else the connection is gone, and the state says so
            self._tell(_KINDS[told.type], told.path.removeprefix(self._root) or "/")

    def _tell(self, kind: EventKind, path: str) -> None:
        if self._state is SessionState.LOST:
            return
        event = Event(kind, path)
        loop = asyncio.get_running_loop()
        for watch in self._watches.take(event):
            loop.call_soon(watch, event)

    def _receive_state(self, state: str, seen_id: int) -> None:
        if state == KazooState.LOST:
            self.lose()
        elif state == KazooState.SUSPENDED:
            self._suspend(seen_id)
        elif not self.opened.done():
            self._id = self._link.session_id
            self._look()
            self.opened.set_result(None)
        else:
            self._resume()

    def _suspend(self, seen_id: int) -> None:
        if not self._being_read_again:
            self._seen_id = seen_id
        if self._turn(SessionState.SUSPENDED):
            self._fail_all(ConnectionLostError)

    def _resume(self) -> None:
        if self._state is SessionState.SUSPENDED:
            self._read_again()
            self._turn(SessionState.CONNECTED)

    # Watches after a reconnection

    def _read_again(self) -> None:
        """Asked before any call can be, so that the watches hear before their owners can read."""
        client = self._link.client
        self._being_read_again = 0  # of the last time, if it was cut short
        for path in self._watches.node_paths():
            self._being_read_again += 1
            read = partial(client.exists_async, _under(self._root, path), self._receive_event)
            self._link.ask(read, partial(self._receive_node, path))
        for path in self._watches.children_paths():
            self._being_read_again += 1
            read = partial(client.get_children_async, _under(self._root, path), self._receive_event, True)
            self._link.ask(read, partial(self._receive_children, path))

    def _receive_node(self, path: str, answer: Answer) -> None:
        if answer.exception is None:
            self._being_read_again -= 1
            if (kind := self._watches.missed_by_node(path, answer.value, self._seen_id)) is not None:
                self._tell(kind, path)

    def _receive_children(self, path: str, answer: Answer) -> None:
        if answer.exception is None or isinstance(answer.exception, kazoo.NoNodeError):
            self._being_read_again -= 1
            stat = None if answer.exception is not None else answer.value[1]
            if (kind := missed_by_children(stat, self._seen_id)) is not None:
                self._tell(kind, path)

    # What it does by itself

    def _look(self) -> None:
        """Leave a connection on which the server does not answer."""
        now_ns, timeout_s = self._clock.monotonic_ns(), self._link.timeout_ms / 1e3
        waited_s = (now_ns - next(iter(self._waiting.values()), now_ns)) / 1e9
        if self._state is SessionState.CONNECTED and waited_s > timeout_s * _PATIENCE_OF_TIMEOUT:
            self._link.drop()
        self._timer = asyncio.get_running_loop().call_later(timeout_s / _LOOKS_PER_TIMEOUT, self._look)

    def _fail_all(self, error: type[CoordinationError]) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(error())


class ZooKeeperCoordination:
    """The store behind `zookeeper.connect`: HOST:PORT of one or more servers, and an optional /chroot at the end."""

    def __init__(
        self, connect: str, clock: Clock, *, connection_timeout_ms: int | None = None, max_in_flight: int = 10
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._connection_timeout_ms = connection_timeout_ms

    async def connect(self, session_timeout_ms: int) -> ZooKeeperSession:
        """Waits for a server as long as the connection timeout says, or else the session timeout."""
        hosts, root = _parse(self._connect)
        timeout_ms = self._connection_timeout_ms or session_timeout_ms
        session = ZooKeeperSession(hosts, root, session_timeout_ms, self._max_in_flight, self._clock)
        try:
            await asyncio.wait_for(session.opened, timeout_ms / 1e3)
            await session.make_root()
        except TimeoutError:
            session.lose()
            raise ZooKeeperUnreachableError(self._connect, timeout_ms) from None
        except BaseException:
            session.lose()
            raise
        return session


def _parse(connect: str) -> tuple[str, str]:
    """The servers, and the chroot or nothing."""
    hosts, slash, root = connect.partition("/")
    root = f"/{root.strip('/')}" if slash and root.strip("/") else ""
    try:
        collect_hosts(hosts)
        check_path(root or "/")
    except ValueError as failure:
        raise TidelogError(f"zookeeper.connect is {connect!r}, not HOST:PORT,...[/chroot]: {failure}") from failure
    return hosts, root


def _under(root: str, path: str) -> str:
    return root + path if path != "/" else root or "/"


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.cversion, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def _node(data: bytes | None, stat: ZnodeStat) -> Node:
    """Java writes nodes that have no data at all; to us they are empty."""
    return Node(data or b"", _stat(stat))


def _results(ops: Sequence[Op], results: Sequence[Any], root: str) -> list[OpResult]:
    """In a multi that failed, the ops before the one at fault are rolled back and those after it not tried."""
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            raise _error(result, op.path)
    return [_result(op, result, root) for op, result in zip(ops, results, strict=True)]


def _result(op: Op, result: Any, root: str) -> OpResult:
    if isinstance(op, Create):
        return str(result).removeprefix(root)
    return _stat(result) if isinstance(op, Set) else None


def _error(failure: Exception, path: str) -> CoordinationError:
    kind = _ERRORS.get(type(failure))
    return ZooKeeperRefusedError(path, repr(failure)) if kind is None else kind(path)
