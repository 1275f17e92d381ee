"""A log directory failed: the controller is told until the store has it (edge case 37)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tidelog.controller import nodes
from tidelog.coordination.port import CoordinationError, NoNodeError, Session
from tidelog.types import BrokerId

_log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_MOST_RETRY_S = 1.0


class DirectoryLosses:
    """Writes the notification on which the controller asks this broker which replicas are left, and marks the broker's
    own node: a controller that takes over later must ask before it elects.

    The store may be unreachable just then, or the session over: it is tried again, in whatever session there is, until
    it is written. Written twice it does no harm.
    """

    def __init__(self, broker_id: BrokerId, session: Callable[[], Session]) -> None:
        self._path = nodes.broker_path(broker_id)
        self._event = nodes.encode_log_dir_event(broker_id)
        self._session = session
        self._is_untold = False
        self._task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        self._is_untold = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        rest_s = _FIRST_RETRY_S
        while self._is_untold:
            self._is_untold = False
            try:
                await self._mark_registration(self._session())
                await self._session().create(nodes.LOG_DIR_EVENT_PREFIX, self._event, sequential=True)
            except CoordinationError as failure:
                if rest_s == _FIRST_RETRY_S:
                    _log.warning("the controller cannot be told of a lost log directory yet: %s", failure)
                self._is_untold = True
                await asyncio.sleep(rest_s)
                rest_s = min(rest_s * 2, _MOST_RETRY_S)

    async def _mark_registration(self, session: Session) -> None:
        """A broker that is not registered in this session says it when it registers."""
        with contextlib.suppress(NoNodeError):
            node = await session.get(self._path)
            if node.stat.owner == session.id:
                await session.set(self._path, nodes.with_failed_directory(node.data), node.stat.version)
