"""A log directory: the partitions on one disk, and the files that speak of all of them.

It is one unit of failure (S10.5): when any write in it fails, all of it is offline.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from tidelog.errors import StorageError
from tidelog.log import names
from tidelog.log.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from tidelog.log.config import LogConfig
from tidelog.log.index_memory import IndexMemory
from tidelog.log.log import Log
from tidelog.log.meta import (
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_topic_id,
)
from tidelog.log.work import FileWork
from tidelog.ports import Clock, Disk, Lock, Random
from tidelog.types import Offset, TopicPartition

_log = logging.getLogger(__name__)

ConfigOf = Callable[[str], LogConfig]


class LogDirectory:
    """All logs below one path, held by one process at a time.

    `offline` is None while it works, and then says for good why it does not.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        random: Random,
        path: str,
        config_of: ConfigOf,
        lock: Lock,
        on_offline: Callable[[StorageError], None],
    ) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.cleaner_offsets: dict[TopicPartition, Offset] = {}
        self.offline: StorageError | None = None
        self.was_clean = False
        """Whether the last owner closed it; if not, its logs were recovered."""
        self.last_broker_epoch: int | None = None
        self._disk = disk
        self._clock = clock
        self._random = random
        self._config_of = config_of
        self._lock = lock
        self._on_offline = on_offline
        self._index_memory = IndexMemory()
        self._work = FileWork(disk, path, self._failed)
        self._one_checkpoint = asyncio.Lock()
        self._creating: dict[TopicPartition, asyncio.Future[Log]] = {}
        self._deleting: dict[TopicPartition, asyncio.Future[None]] = {}
        self._next_checkpoint: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        random: Random,
        path: str,
        config_of: ConfigOf,
        *,
        on_offline: Callable[[StorageError], None] = lambda failure: None,
    ) -> LogDirectory:
        """Lock it, load every log in it, a few at a time as the disk threads allow."""
        await disk.submit(path, lambda: _make_durably(disk, path))
        lock = disk.lock(os.path.join(path, names.LOCK))
        directory = cls(disk, clock, random, path, config_of, lock, on_offline)
        try:
            await directory._load()
        except BaseException:
            lock.release()
            raise
        return directory

    async def _load(self) -> None:
        disk, path = self._disk, self.path
        mark = await disk.submit(path, lambda: read_clean_shutdown(disk, path))
        self.was_clean = mark is not None
        self.last_broker_epoch = mark.broker_epoch if mark is not None else None
        # Loading changes files: if it is cut short, the next start has to check them, as after any other crash.
        await disk.submit(path, lambda: remove_clean_shutdown(disk, path))
        # The directories of new partitions too: who made them may have been killed before they were synced.
        await disk.submit(path, lambda: disk.sync_directory(path))
        points, starts, marks, self.cleaner_offsets = await disk.submit(
            path, lambda: [read_offset_checkpoint(disk, os.path.join(path, name)) for name in _CHECKPOINTS]
        )
        found = await disk.submit(path, lambda: disk.list(path))
        for name in found:
            if name.endswith(names.DELETE_DIRECTORY):
                self._remove_soon(os.path.join(path, name))
        partitions = [partition for name in found if (partition := names.partition_of(name)) is not None]
        logs = await asyncio.gather(
            *(
                self._open_log(partition, points.get(partition, 0), starts.get(partition, 0), marks.get(partition, 0))
                for partition in partitions
            )
        )
        self.logs = dict(zip(partitions, logs, strict=True))

    async def _open_log(
        self,
        partition: TopicPartition,
        recovery_point: Offset = 0,
        log_start_offset: Offset = 0,
        high_watermark: Offset = 0,
    ) -> Log:
        log = await Log.open(
            self._disk,
            self._clock,
            self.path_of(partition),
            partition,
            self._config_of(partition.topic),
            clean=self.was_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            on_failure=self._failed,
            index_memory=self._index_memory,
        )
        log.persist_checkpoints = self.checkpoint
        return log

    def path_of(self, partition: TopicPartition) -> str:
        return os.path.join(self.path, str(partition))

    # Partitions come and go

    async def create(self, partition: TopicPartition, topic_id: bytes | None = None) -> Log:
        """The log of a partition, new or found; the same one for all who ask at the same time.

        If one of that name is just being deleted, it has to be gone first.
        """
        while (deleting := self._deleting.get(partition)) is not None:
            await asyncio.shield(deleting)
        log = self.logs.get(partition)
        if log is not None:
            return log
        creating = self._creating.get(partition)
        if creating is None:
            creating = self._creating[partition] = asyncio.ensure_future(self._create(partition, topic_id))
            creating.add_done_callback(lambda _: self._creating.pop(partition))
        return await asyncio.shield(creating)

    async def _create(self, partition: TopicPartition, topic_id: bytes | None) -> Log:
        try:
            log = await self._open_log(partition)
        except StorageError as failure:
            self._failed(failure)  # or the replica would be missing until somebody asks for it again
            raise
        if topic_id is not None:
            directory = log.directory
            await log.work.run(lambda: write_topic_id(self._disk, directory, topic_id))
        self.logs[partition] = log
        return log

    async def delete(self, partition: TopicPartition) -> None:
        """Gone at once for everybody, and after a crash too; the bytes go later."""
        if (creating := self._creating.get(partition)) is not None:
            await asyncio.shield(creating)
        log = self.logs.pop(partition)
        deleting = self._deleting[partition] = asyncio.ensure_future(self._delete(partition, log))
        deleting.add_done_callback(lambda _: self._deleting.pop(partition))
        await asyncio.shield(deleting)

    async def _delete(self, partition: TopicPartition, log: Log) -> None:
        async with log.reshaping:
            await log.abandon_cleaning()
        self.cleaner_offsets.pop(partition, None)
        target = os.path.join(self.path, names.deleted_directory(partition, f"{self._random.getrandbits(128):032x}"))
        source = log.directory

        def hide() -> None:
            self._disk.rename(source, target)
            self._disk.sync_directory(self.path)

        log.failed = StorageError("it has been deleted")
        await log.work.end_with(hide)
        delay_s = log.config.file_delete_delay_ms / 1000
        asyncio.get_running_loop().call_later(delay_s, self._remove_soon, target)
        # What they say of it must not be taken for facts about the next log of this name.
        await self.checkpoint()

    def _remove_soon(self, path: str) -> None:
        FileWork(self._disk, path, self._failed).start(lambda: self._disk.remove_directory(path))

    # Checkpoints

    async def checkpoint(self) -> None:
        """Write down recovery points, log starts and high watermarks as they are now.

        Those who ask while one is being written share the next one.
        """
        if self._next_checkpoint is None:
            self._next_checkpoint = asyncio.ensure_future(self._write_checkpoints())
        await asyncio.shield(self._next_checkpoint)

    async def _write_checkpoints(self) -> None:
        async with self._one_checkpoint:
            self._next_checkpoint = None  # who asks from here on may know newer facts
            contents = self._checkpoint_contents()

            def write() -> None:
                for name, offsets in contents.items():
                    write_offset_checkpoint(self._disk, os.path.join(self.path, name), offsets)

            await self._work.run(write)

    def _checkpoint_contents(self) -> dict[str, dict[TopicPartition, Offset]]:
        logs = self.logs.items()
        # Only what is synced is ever cleaned: a recovery point below says that the log was cut, and is dirty again.
        self.cleaner_offsets = {
            partition: min(offset, self.logs[partition].recovery_point)
            for partition, offset in self.cleaner_offsets.items()
            if partition in self.logs
        }
        return {
            names.RECOVERY_POINTS: {partition: log.recovery_point for partition, log in logs},
            names.LOG_STARTS: {
                partition: log.log_start_offset
                for partition, log in logs
                if log.log_start_offset > log.segments[0].base_offset
            },
            names.HIGH_WATERMARKS: {partition: log.high_watermark for partition, log in logs},
            names.CLEANER_OFFSETS: dict(self.cleaner_offsets),
        }

    # The end

    async def close(self, broker_epoch: int = -1) -> None:
        """Close every log; only if all of that went well is the directory marked as clean."""
        try:
            if self.offline is None:
                await asyncio.gather(*(log.close() for log in list(self.logs.values())))
                await self.checkpoint()
                await self._work.run(lambda: write_clean_shutdown(self._disk, self.path, broker_epoch))
        finally:
            self._lock.release()

    def _failed(self, failure: StorageError) -> None:
        if self.offline is None:
            self.offline = failure
            for log in self.logs.values():
                log.failed = failure
            _log.error("log directory %s is offline: %s", self.path, failure)
            self._on_offline(failure)


_CHECKPOINTS = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS)


def _make_durably(disk: Disk, path: str) -> None:
    """With its parents, each of them synced: a directory that a power loss takes away takes all logs with it."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if path:
        disk.sync_directory(os.path.dirname(path))  # whoever made it may have died before this
    for directory in reversed(missing):
        disk.make_directory(directory)
        disk.sync_directory(os.path.dirname(directory))
