"""A broker's standing in the cluster: its session, its node under /brokers/ids, and what becomes of both."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable, Sequence

from tidelog.broker.said import Said
from tidelog.controller import nodes
from tidelog.coordination.port import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Op,
    Session,
    SessionState,
    Stat,
)
from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Clock, Random
from tidelog.types import NO_EPOCH, BrokerId, Epoch

_log = logging.getLogger(__name__)

_UUID_BYTES = 16
_RETRY_S = 0.1
_ASK_AGAIN_S = 1.0
_MOST_FORMER_SESSIONS = 100
"""The store has ended those before them long ago."""


class BrokerIdTakenError(TidelogError):
    """Another living broker has this id."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


async def prepare_tree(session: Session) -> None:
    """The nodes that are always there."""
    for path in nodes.PERSISTENT_PATHS:
        await session.ensure(path)


async def cluster_id(session: Session, random: Random) -> str:
    """The cluster's, made by the first broker that asks for it."""
    while True:
        try:
            return nodes.decode_cluster_id((await session.get(nodes.CLUSTER_ID)).data)
        except NoNodeError:
            made = base64.urlsafe_b64encode(random.randbytes(_UUID_BYTES)).decode().rstrip("=")
            try:
                await session.ensure(nodes.CLUSTER_ID.rpartition("/")[0])
                await session.create(nodes.CLUSTER_ID, nodes.encode_cluster_id(made))
            except NodeExistsError:
                continue


async def last_epoch(session: Session, broker_id: BrokerId) -> tuple[Epoch | None, Check]:
    """The last epoch that the broker's log directories have noted, None if that cannot be read; and the check that it
    is still the last one."""
    path = nodes.broker_epoch_path(broker_id)
    await session.ensure(path)
    node = await session.get(path)
    try:
        epoch = nodes.decode_broker_epoch(broker_id, node.data)
    except nodes.BadNodeError as failure:
        _log.warning("%s", failure)
        return None, Check(path, node.stat.version)
    return epoch, Check(path, node.stat.version)


async def set_last_epoch(session: Session, broker_id: BrokerId, epoch: Epoch, version: int = ANY_VERSION) -> None:
    """The log directories have noted it. `version`: of the node when it was read, so that nothing later is undone."""
    await session.set(nodes.broker_epoch_path(broker_id), nodes.encode_broker_epoch(epoch), version)


async def register(
    session: Session,
    broker_id: BrokerId,
    registration: nodes.Registration,
    clock: Clock,
    timeout_s: float,
    is_former: Callable[[Stat], bool] = lambda stat: False,
    checks: Sequence[Check] = (),
) -> int:
    """Become a member; returns the broker epoch. BadVersionError if one of the checks fails.

    A node that is this broker's own from a former session is replaced at once (edge case 41). Any other node under
    this name may belong to a living process, so it is waited for until its session is over.
    """
    path = nodes.broker_path(broker_id)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        gone: asyncio.Future[None] = loop.create_future()

        def released(_: object, gone: asyncio.Future[None] = gone) -> None:
            if not gone.done():
                gone.set_result(None)

        data = nodes.encode_broker(registration, clock.wall_ms())
        try:
            await session.multi([*checks, Create(path, data, ephemeral=True)])
        except NodeExistsError:
            stat = await session.exists(path, released)
            if stat is None:
                continue
            if stat.owner == session.id:
                return stat.created_id  # made before, but the answer was lost
            if is_former(stat):
                await _replace_former(session, path, data, stat, checks)
                continue
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise BrokerIdTakenError(
                    f"broker {broker_id} is registered already: another process uses this broker.id"
                ) from None
            # A session that is lost meanwhile brings no news of the node; asking again then says so.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gone, min(left_s, _ASK_AGAIN_S))
        else:
            stat = await session.exists(path)
            if stat is None:
                raise CoordinationError(path)
            return stat.created_id


async def _replace_former(session: Session, path: str, data: bytes, former: Stat, checks: Sequence[Check]) -> None:
    """Delete what the former session has left, and create the node anew, in one step. `register` looks what came of it.

    /controller goes as well if the former session holds it. The check of the controller epoch keeps the node of a
    controller that was elected meanwhile.
    """
    ops: list[Op] = [*checks, Delete(path, former.version), Create(path, data, ephemeral=True)]
    epoch = await session.exists(nodes.CONTROLLER_EPOCH)
    controller = await session.exists(nodes.CONTROLLER)
    if epoch is not None and controller is not None and controller.owner == former.owner:
        ops += [Check(nodes.CONTROLLER_EPOCH, epoch.version), Delete(nodes.CONTROLLER, controller.version)]
    with contextlib.suppress(NoNodeError, NodeExistsError, BadVersionError):  # the former session ended by itself
        await session.multi(ops)
        _log.info("%s of our former session 0x%x is replaced", path, former.owner)


class Membership:
    """Holds the session, and takes a new one when it was lost.

    A session is former when it was lost here, whether or not the store has ended it already.
    """

    def __init__(self, coordination: Coordination, timeout_ms: int, on_lost: Callable[[], None]) -> None:
        self.session: Session
        self.former_epoch: Epoch = NO_EPOCH
        """The last broker epoch that is noted in the log directories. They are locked, so a process that had it is this
        one, or it is dead."""
        self._coordination = coordination
        self._timeout_ms = timeout_ms
        self._on_lost = on_lost
        self._former_sessions: list[int] = []
        self._is_leaving = False

    async def connect(self) -> Session:
        """Tried until it works: who starts a broker without its store sees it wait and say so."""
        said = Said()
        while True:
            try:
                session = await self._coordination.connect(self._timeout_ms)
                break
            except CoordinationError as failure:
                if said.is_news(str(failure)):
                    _log.warning("no session with the coordination store yet: %s", failure)
                await asyncio.sleep(_RETRY_S)
        if hasattr(self, "session"):
            self._former_sessions = [*self._former_sessions, self.session.id][-_MOST_FORMER_SESSIONS:]
        self.session = session
        session.listen(lambda state: self._changed(session, state))
        return session

    async def rest(self) -> None:
        """Before the next try: until the store can be asked again."""
        await asyncio.sleep(_RETRY_S)
        while self.session.state is SessionState.SUSPENDED:
            await asyncio.sleep(_RETRY_S)

    def is_former(self, node: Stat) -> bool:
        """True if this node was left by this broker in a former session, and by no other process."""
        return node.owner in self._former_sessions or node.created_id == self.former_epoch

    async def leave(self) -> None:
        """Give the session back. That it ends then is no loss."""
        self._is_leaving = True
        await self.session.close()

    def _changed(self, session: Session, state: SessionState) -> None:
        if session is not self.session or self._is_leaving:
            return
        level = logging.INFO if state is SessionState.CONNECTED else logging.WARNING
        _log.log(level, "the session with the coordination store is %s", state.value)
        if state is SessionState.LOST:
            self._on_lost()
