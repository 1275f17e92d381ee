"""What a log directory does by itself, in the background: retention, flushes, checkpoints, cleaning, expiry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidelog.errors import CorruptBatchError, StorageError, TidelogError
from tidelog.log.cleaner import DEDUPE_BUFFER_BYTES, UncleanableError, clean, plan_cleaning
from tidelog.log.compaction_plan import Plan, due
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.log.trimming import delete_expired
from tidelog.log.work import LogDeletedError
from tidelog.ports import Random
from tidelog.types import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often, by Kafka's settings and with its defaults."""

    retention_check_ms: int = 300_000
    flush_check_ms: int = 1_000
    checkpoint_ms: int = 5_000
    cleaner_backoff_ms: int = 15_000
    producer_expiration_check_ms: int = 600_000


class Housekeeping:
    """Runs while the directory is online. One cleaning at a time, the dirtiest log first."""

    def __init__(
        self,
        directory: LogDirectory,
        random: Random,
        intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> None:
        self._directory = directory
        self._random = random
        self.intervals = intervals
        self.dedupe_buffer_bytes = dedupe_buffer_bytes
        self.may_clean = True
        """These three may be changed while it runs."""
        self._tasks: list[asyncio.Task[None]] = []
        self.uncleanable: dict[TopicPartition, str] = {}
        """Logs that failed to be cleaned, and why; they are left alone."""

    def start(self) -> None:
        for work, interval_ms in (
            (self.enforce_retention, lambda: self.intervals.retention_check_ms),
            (self.flush_overdue, lambda: self.intervals.flush_check_ms),
            (self._directory.checkpoint, lambda: self.intervals.checkpoint_ms),
            (self.clean_dirtiest, lambda: self.intervals.cleaner_backoff_ms),
            (self.expire_producers, lambda: self.intervals.producer_expiration_check_ms),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(work, interval_ms)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _repeat(self, work: Callable[[], Awaitable[object]], interval_ms: Callable[[], int]) -> None:
        while self._directory.offline is None:
            await asyncio.sleep(interval_ms() / 1000)
            await self._tried(work, f"{work.__name__} of {self._directory.path}")

    async def _tried(self, work: Callable[[], Awaitable[T]], what: str) -> T | None:
        """None if it failed, which is told unless the directory is offline, and has told so itself."""
        try:
            return await work()
        except LogDeletedError:
            pass  # while it was looked at
        except StorageError as failure:
            if self._directory.offline is None:
                _log.warning("%s is tried again: %s", what, failure)
        except Exception:
            _log.exception("%s failed; it is tried again", what)
        return None

    async def enforce_retention(self) -> int:
        """How many segments went. That one log cannot be shortened keeps none of the others long."""
        count = 0
        for log in self._logs():
            if self._directory.offline is None:
                count += await self._tried(partial(delete_expired, log), f"retention of {log.partition}") or 0
        return count

    async def flush_overdue(self) -> None:
        for log in self._logs():
            if self._directory.offline is None:
                await self._tried(log.flush_if_due, f"the flush of {log.partition}")

    async def expire_producers(self) -> None:
        for log in self._logs():
            now_ms = log.clock.monotonic_ms()
            log.producers.remove_expired(now_ms)

    async def clean_dirtiest(self) -> bool:
        """Clean the log with the largest share of dirty bytes, or one whose time is over; False if none is due."""
        if not self.may_clean:
            return False
        candidates: list[tuple[Plan, Log]] = []
        for log in self._logs():
            if log.config.compacted and log.partition not in self.uncleanable:
                first_dirty = self._directory.cleaner_offsets.get(log.partition, 0)
                found = await plan_cleaning(log, first_dirty)
                if due(found, log.config):
                    candidates.append((found, log))
        if not candidates:
            return False
        what, log = max(candidates, key=lambda candidate: (candidate[0].overdue, candidate[0].dirty_ratio))
        try:
            done = await clean(log, what, self._random, buffer_bytes=self.dedupe_buffer_bytes)
        except (CorruptBatchError, UncleanableError) as failure:
            self.uncleanable[log.partition] = str(failure)
            _log.error("%s is not compacted any more: %s", log.partition, failure)
            return False
        except (TidelogError, OSError, MemoryError):
            raise  # it may pass, or the directory is offline
        except Exception as failure:  # whatever it is: this log would be chosen again, and no other one
            self.uncleanable[log.partition] = repr(failure)
            _log.exception("%s is not compacted any more", log.partition)
            return False
        if done is not None:
            self._directory.cleaner_offsets[log.partition] = done.end_offset
            await self._directory.checkpoint()
        return True

    def _logs(self) -> list[Log]:
        return list(self._directory.logs.values())
