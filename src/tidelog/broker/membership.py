"""A broker's standing in the cluster: its session, its node under /brokers/ids, and what becomes of both."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable

from tidelog.controller import nodes
from tidelog.coordination.port import (
    Coordination,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    Session,
    SessionState,
)
from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Clock, Random
from tidelog.types import BrokerId

_log = logging.getLogger(__name__)

_UUID_BYTES = 16
_RETRY_S = 0.1
_ASK_AGAIN_S = 1.0


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


async def register(
    session: Session, broker_id: BrokerId, registration: nodes.Registration, clock: Clock, timeout_s: float
) -> int:
    """Become a member; the broker epoch. An earlier life of ours may hold the name until its session is over."""
    path = nodes.broker_path(broker_id)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        gone: asyncio.Future[None] = loop.create_future()

        def released(_: object, gone: asyncio.Future[None] = gone) -> None:
            if not gone.done():
                gone.set_result(None)

        try:
            await session.create(path, nodes.encode_broker(registration, clock.wall_ms()), ephemeral=True)
        except NodeExistsError:
            stat = await session.exists(path, released)
            if stat is None:
                continue
            if stat.owner == session.id:
                return stat.created_id  # made before, but the answer was lost
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


class Membership:
    """Holds the session, and takes a new one when it was lost."""

    def __init__(self, coordination: Coordination, timeout_ms: int, on_lost: Callable[[], None]) -> None:
        self.session: Session
        self._coordination = coordination
        self._timeout_ms = timeout_ms
        self._on_lost = on_lost

    async def connect(self) -> Session:
        """Tried until it works: who starts a broker without its store sees it wait and say so."""
        while True:
            try:
                session = await self._coordination.connect(self._timeout_ms)
                break
            except CoordinationError as failure:
                _log.warning("no session with the coordination store yet: %s", failure)
                await asyncio.sleep(_RETRY_S)
        self.session = session
        session.listen(lambda state: self._changed(session, state))
        return session

    def _changed(self, session: Session, state: SessionState) -> None:
        if session is not self.session:
            return
        _log.warning("the session with the coordination store is %s", state.value)
        if state is SessionState.LOST:
            self._on_lost()
