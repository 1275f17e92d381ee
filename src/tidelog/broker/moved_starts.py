"""Log starts that moved on followers: made durable, many at a time, before the leader hears of them (S10.2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from tidelog.errors import StorageError
from tidelog.log.log import Log
from tidelog.types import TopicPartition

_GATHER_S = 0.05
"""Log starts that move within this time share a checkpoint: retention moves those of many partitions."""


class MovedStarts:
    """Writes one checkpoint of a log directory for all of its logs whose start has moved.

    `settled` is called with the logs that were written together, and with the failure if there was one.
    """

    def __init__(self, settled: Callable[[Sequence[Log], StorageError | None], None]) -> None:
        self._settled = settled
        self._moved: dict[TopicPartition, Log] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, log: Log) -> None:
        self._moved[log.partition] = log
        if self._task is None:
            self._task = asyncio.create_task(self._persist())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _persist(self) -> None:
        try:
            while self._moved:
                await asyncio.sleep(_GATHER_S)
                groups: dict[str, list[Log]] = {}
                for log in self._moved.values():
                    groups.setdefault(os.path.dirname(log.directory), []).append(log)
                self._moved.clear()
                await asyncio.gather(*map(self._persist_together, groups.values()))
        finally:
            self._task = None

    async def _persist_together(self, logs: Sequence[Log]) -> None:
        failed: StorageError | None = None
        try:
            await logs[0].persist_checkpoints()
        except StorageError as failure:
            failed = failure
        self._settled(logs, failed)
