"""A log directory: the partitions on one disk, and the files that speak of all of them.

It is one unit of failure (S10.5): when any write in it fails, all of it is offline.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidelog.config.topic import TopicConfig
from tidelog.errors import NoDescriptorError, StorageError, SyncError
from tidelog.log import names
from tidelog.log.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from tidelog.log.continuity import BootNote, carry_boot_note, remove_boot_note, write_boot_note
from tidelog.log.index_memory import IndexMemory
from tidelog.log.log import Log
from tidelog.log.meta import (
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_topic_id,
)
from tidelog.log.strays import Stray, StrayNote, find_strays, move, read_note, read_stray, remove_note, write_note
from tidelog.log.suspicion import clear_suspect, is_suspect, mark_suspect
from tidelog.log.work import FileWork
from tidelog.ports import Clock, Disk, Lock, Random
from tidelog.types import Offset, TopicPartition
from tidelog.wire.uuids import ZERO_UUID

_log = logging.getLogger(__name__)

ConfigOf = Callable[[str], TopicConfig]


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
        others: Sequence[str] = (),
        boot_id: str = "",
    ) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.cleaner_offsets: dict[TopicPartition, Offset] = {}
        self.strays: dict[str, Stray] = {}
        """Replicas that were set aside, by their paths."""
        self.offline: StorageError | None = None
        self.was_clean = False
        """Whether the last owner closed it; if not, its logs were recovered."""
        self.was_suspect = False
        """A sync failed in it before it was opened, so its logs may have lost what was not synced."""
        self.was_unused = False
        """No process had used it before: it held no note, no logs, and nothing that told of logs."""
        self._disk = disk
        self._clock = clock
        self._random = random
        self._config_of = config_of
        self._lock = lock
        self._on_offline = on_offline
        self._others = others
        self._boot_id = boot_id
        self._is_loaded = False
        self.is_marked_clean = False
        """It was closed, and the next start need not check its logs."""
        self._marking: asyncio.Future[None] | None = None
        self._index_memory = IndexMemory()
        self._work = FileWork(disk, path, self._failed)
        self._one_checkpoint = asyncio.Lock()
        self._creating: dict[TopicPartition, asyncio.Future[Log]] = {}
        self._deleting: dict[TopicPartition, asyncio.Future[Any]] = {}
        self._leaving: dict[TopicPartition, Log] = {}
        """Logs that are being deleted or set aside. Checkpoints name them until their directories have other names:
        without its checkpoints a log that a kill leaves here would begin at 0 again."""
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
        others: Sequence[str] = (),
        boot_id: str = "",
    ) -> LogDirectory:
        """Lock it, load every log in it, a few at a time as the disk threads allow.

        `others` are the broker's other log directories: where one of them cannot be marked as suspect, another can.
        `boot_id` is that of the machine, empty if it is not known.
        """
        await disk.submit(path, lambda: _make_durably(disk, path))
        lock = disk.lock(os.path.join(path, names.LOCK))
        directory = cls(disk, clock, random, path, config_of, lock, on_offline, others, boot_id)
        try:
            await directory._load()
        except BaseException as failure:
            if isinstance(failure, SyncError):
                await directory._mark_suspect()
            lock.release()
            raise
        return directory

    async def _load(self) -> None:
        disk, path = self._disk, self.path
        mark = await disk.submit(path, lambda: read_clean_shutdown(disk, path))
        self.was_suspect = await disk.submit(path, lambda: is_suspect(disk, path, self._others))
        if self.was_suspect:
            _log.warning("a sync failed in log directory %s: it may have lost what was not synced", path)
        self.was_clean = mark is not None and not self.was_suspect
        if self.was_clean:
            await disk.submit(path, lambda: carry_boot_note(disk, path, self._boot_id))
        # Loading changes files: if it is cut short, the next start has to check them, as after any other crash.
        await disk.submit(path, lambda: remove_clean_shutdown(disk, path))
        # The directories of new partitions too: who made them may have been killed before they were synced.
        await disk.submit(path, lambda: disk.sync_directory(path))
        points, starts, marks, self.cleaner_offsets = await disk.submit(
            path, lambda: [read_offset_checkpoint(disk, os.path.join(path, name)) for name in _CHECKPOINTS]
        )
        found = await disk.submit(path, lambda: disk.list(path))
        is_named = any((points, starts, marks, self.cleaner_offsets))
        self.was_unused = names.is_unused(found) and not is_named and not (self.was_suspect or self.was_clean)
        partitions = [partition for name in found if (partition := names.partition_of(name)) is not None]
        loaded = await asyncio.gather(
            *(
                self._load_log(partition, points.get(partition, 0), starts.get(partition, 0), marks.get(partition, 0))
                for partition in partitions
            )
        )
        self.logs = {partition: log for partition, (log, _) in zip(partitions, loaded, strict=True)}
        gone = sorted({at for named in (points, starts, marks) for at in named if at not in self.logs})
        if gone:
            await self._miss([at for at in gone if not names.is_aside(at, found)])
            # Their logs were set aside or deleted: the next logs of these names must not be opened with their offsets.
            await self.checkpoint()
        for name in found:
            if name.endswith(names.DELETE_DIRECTORY):  # now that no checkpoint names it
                self._remove_soon(os.path.join(path, name))
        await self._load_strays([log for log, note in loaded if note is not None])
        self._is_loaded = True

    async def _miss(self, partitions: list[TopicPartition]) -> None:
        """These logs were here, and this broker has neither deleted them nor set them aside. Unless the operator moved
        them to another log directory, their records are lost, and the broker must not pass for intact."""

        def look() -> list[TopicPartition]:
            places = {at: [os.path.join(other, str(at)) for other in self._others] for at in partitions}
            lost = [at for at, paths in places.items() if not any(map(self._disk.exists, paths))]
            if lost:
                remove_boot_note(self._disk, self.path)
            return lost

        lost = await self._disk.submit(self.path, look)
        if lost:
            _log.error("%d log(s) are missing in log directory %s, %s among them", len(lost), self.path, lost[0])

    async def _load_strays(self, came_back: list[Log]) -> None:
        if came_back:
            await self._forget_notes(came_back)
        await self.look_for_strays()
        if self.strays:
            held = sum(stray.size_bytes for stray in self.strays.values())
            _log.warning("log directory %s holds %d stray(s) of %d bytes in all", self.path, len(self.strays), held)

    async def _load_log(
        self, partition: TopicPartition, recovery_point: Offset, log_start_offset: Offset, high_watermark: Offset
    ) -> tuple[Log, StrayNote | None]:
        """A note is there if the process died while the log became a stray or came back: the checkpoints know less."""
        path = self.path_of(partition)
        note = await self._disk.submit(path, lambda: read_note(self._disk, path))
        if note is None:
            return await self._open_log(partition, recovery_point, log_start_offset, high_watermark), None
        return await self._open_noted(partition, note), note

    async def _open_noted(self, partition: TopicPartition, note: StrayNote) -> Log:
        if note.cleaner_offset is not None:
            self.cleaner_offsets.setdefault(partition, note.cleaner_offset)
        return await self._open_log(
            partition,
            note.recovery_point,
            note.log_start_offset,
            note.high_watermark,
            clean=False,
        )

    async def _open_log(
        self,
        partition: TopicPartition,
        recovery_point: Offset = 0,
        log_start_offset: Offset = 0,
        high_watermark: Offset = 0,
        *,
        clean: bool = True,
    ) -> Log:
        log = await Log.open(
            self._disk,
            self._clock,
            self.path_of(partition),
            partition,
            self._config_of(partition.topic),
            clean=clean and self.was_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            on_failure=self._failed,
            on_loss=partial(self._lost_records_of, partition),
            index_memory=self._index_memory,
        )
        log.persist_checkpoints = self.checkpoint
        return log

    def _lost_records_of(self, partition: TopicPartition) -> None:
        """On a disk thread. At the start the broker then tells that it is not intact. Once it is registered as intact
        it cannot take that back: a stray that lost records is not cut and served, but takes the directory offline.
        """
        remove_boot_note(self._disk, self.path)
        if self._is_loaded:
            raise StorageError(f"the log of {partition} was damaged while it was a stray in {self.path}")

    def path_of(self, partition: TopicPartition) -> str:
        return os.path.join(self.path, str(partition))

    # Partitions come and go

    async def create(self, partition: TopicPartition, topic_id: bytes | None = None) -> Log:
        """The log of a partition, found, brought back from a stray, or new; the same for all who ask at the same time.

        If one of that name is just being deleted, it has to be gone first.
        """
        while (deleting := self._deleting.get(partition)) is not None:
            await asyncio.shield(deleting)
        log = self.logs.get(partition)
        if log is not None:
            return log
        creating = self._creating.get(partition)
        if creating is None:
            creating = self._creating[partition] = asyncio.create_task(self._create(partition, topic_id))
            creating.add_done_callback(lambda _: self._creating.pop(partition))
        return await asyncio.shield(creating)

    async def _create(self, partition: TopicPartition, topic_id: bytes | None) -> Log:
        try:
            log = await self._bring_back(partition, topic_id or ZERO_UUID)
            if log is not None:
                return log
            log = await self._open_log(partition)
        except NoDescriptorError:
            raise
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
        log = self._leaving[partition] = self.logs.pop(partition)
        deleting = self._deleting[partition] = asyncio.create_task(self._delete(partition, log))
        deleting.add_done_callback(lambda _: self._deleting.pop(partition))
        await asyncio.shield(deleting)

    async def _delete(self, partition: TopicPartition, log: Log) -> None:
        target = self._aside(partition, names.DELETE_DIRECTORY)
        await self._take_away(partition, log, target, StorageError("it has been deleted"))
        self._remove_later(target, log.config)

    async def _take_away(
        self, partition: TopicPartition, log: Log, target: str, reason: StorageError, note: StrayNote | None = None
    ) -> None:
        async with log.reshaping:
            await log.abandon_cleaning()
        self.cleaner_offsets.pop(partition, None)
        source = log.directory

        def hide() -> None:
            if note is not None:
                write_note(self._disk, source, note)
            self._disk.rename(source, target)
            self._disk.sync_directory(self.path)

        log.failed = reason
        await log.work.end_with(hide)
        del self._leaving[partition]
        # What they say of it must not be taken for facts about the next log of this name.
        await self.checkpoint()

    def _aside(self, partition: TopicPartition, suffix: str) -> str:
        unique = f"{self._random.getrandbits(128):032x}"
        return os.path.join(self.path, names.aside(partition, unique, suffix))

    def _remove_later(self, path: str, config: TopicConfig) -> None:
        asyncio.get_running_loop().call_later(config.file_delete_delay_ms / 1000, self._remove_soon, path)

    def _remove_soon(self, path: str) -> None:
        FileWork(self._disk, path, self._failed).start(lambda: self._disk.remove_directory(path))

    # Strays

    async def set_aside(self, partition: TopicPartition) -> Stray:
        """The log is a stray from now on, complete and with its offsets. Its bytes stay until the operator acts."""
        if (creating := self._creating.get(partition)) is not None:
            await asyncio.shield(creating)
        log = self._leaving[partition] = self.logs.pop(partition)
        moving = asyncio.create_task(self._set_aside(partition, log))
        self._deleting[partition] = moving
        moving.add_done_callback(lambda _: self._deleting.pop(partition))
        return await asyncio.shield(moving)

    async def _set_aside(self, partition: TopicPartition, log: Log) -> Stray:
        cleaner_offset = self.cleaner_offsets.get(partition)
        await log.close()
        note = StrayNote(partition, log.recovery_point, log.log_start_offset, log.high_watermark, cleaner_offset)
        target = self._aside(partition, names.STRAY_DIRECTORY)
        await self._take_away(partition, log, target, StorageError("it is a stray"), note)
        stray = await self._work.run(lambda: read_stray(self._disk, target))
        if stray is None:
            raise StorageError(f"the stray {target} is gone")
        self.strays[target] = stray
        return stray

    def stray_of(self, partition: TopicPartition, topic_id: bytes) -> Stray | None:
        """The stray that is this very partition, by its topic id; of several the one with the most records."""
        same = [stray for stray in self.strays.values() if stray.partition == partition and stray.topic_id == topic_id]
        return max(same, key=lambda stray: stray.fullness, default=None)

    async def look_for_strays(self) -> None:
        """As they are on disk now: the operator may have removed some."""
        self.strays = await self._work.run(lambda: find_strays(self._disk, self.path))

    async def delete_stray(self, stray: Stray) -> None:
        """Its topic was deleted. Gone at once, and after a crash too; the bytes go later."""
        self.strays.pop(stray.path, None)  # the operator may have removed it
        target = self._aside(stray.partition, names.DELETE_DIRECTORY)
        if await self._work.run(lambda: move(self._disk, stray.path, target)):
            self._remove_later(target, self._config_of(stray.partition.topic))

    async def _bring_back(self, partition: TopicPartition, topic_id: bytes) -> Log | None:
        stray = self.stray_of(partition, topic_id)
        if stray is None:
            return None
        del self.strays[stray.path]
        disk, path = self._disk, self.path_of(partition)
        if not await self._work.run(lambda: move(disk, stray.path, path)):
            return await self._bring_back(partition, topic_id)  # the operator has just removed this one
        note = await self._work.run(lambda: read_note(disk, path))
        log = await (self._open_log(partition, clean=False) if note is None else self._open_noted(partition, note))
        _log.warning("%s is no stray any more: its log goes on at offset %d", partition, log.log_end_offset)
        self.logs[partition] = log
        await self._forget_notes([log])
        return log

    async def _forget_notes(self, logs: list[Log]) -> None:
        """From here on the checkpoints speak of these logs, as of any other."""
        await self.checkpoint()
        for log in logs:
            await log.work.run(partial(remove_note, self._disk, log.directory))

    # Checkpoints

    async def checkpoint(self) -> None:
        """Write down recovery points, log starts and high watermarks as they are now.

        Those who ask while one is being written share the next one.
        """
        if self._next_checkpoint is None:
            self._next_checkpoint = asyncio.create_task(self._write_checkpoints())
        await asyncio.shield(self._next_checkpoint)

    async def _write_checkpoints(self) -> None:
        async with self._one_checkpoint:
            self._next_checkpoint = None  # who asks from here on may know newer facts
            contents = self._checkpoint_contents()
            starts = [(log, log.log_start_offset) for log in self.logs.values()]

            def write() -> None:
                for name, offsets in contents.items():
                    write_offset_checkpoint(self._disk, os.path.join(self.path, name), offsets)

            await self._work.run(write)
            for log, start in starts:
                log.durable_log_start = min(start, log.log_start_offset)  # the log may have been cut meanwhile

    def _checkpoint_contents(self) -> dict[str, dict[TopicPartition, Offset]]:
        known = self.logs | self._leaving
        logs = known.items()
        # Only what is synced is ever cleaned: a recovery point below says that the log was cut, and is dirty again.
        self.cleaner_offsets = {
            partition: min(offset, known[partition].recovery_point)
            for partition, offset in self.cleaner_offsets.items()
            if partition in known
        }
        return {
            names.RECOVERY_POINTS: {partition: log.recovery_point for partition, log in logs},
            # Also where the first segment starts there: the names of those before it may come back with a power loss.
            names.LOG_STARTS: {partition: log.log_start_offset for partition, log in logs if log.log_start_offset},
            names.HIGH_WATERMARKS: {partition: log.high_watermark for partition, log in logs},
            names.CLEANER_OFFSETS: dict(self.cleaner_offsets),
        }

    async def note_boot(self, note: BootNote) -> None:
        await self._work.run(lambda: write_boot_note(self._disk, self.path, note))

    async def trust(self) -> None:
        """The cluster knows what kind of start this was: the next one is suspect only if a sync fails again."""
        if self.was_suspect and self.offline is None:
            await self._work.run(lambda: clear_suspect(self._disk, self.path, self._others))

    # The end

    async def close(self, broker_epoch: int = -1, *, mark_clean: bool = True) -> None:
        """Close every log; only if all of that went well is the directory marked as clean.

        A log that comes or goes is waited for: one that was about to become a stray may have bytes that are not synced.
        The mark must not be where the boot note does not yet tell what this process found: the mark says that the note
        is right, and the logs may just have lost their ends in a recovery.
        """
        try:
            moving = (*self._creating.values(), *self._deleting.values())
            await asyncio.gather(*moving, return_exceptions=True)
            if self.offline is None:
                await asyncio.gather(*(log.close() for log in list(self.logs.values())))
                await self.checkpoint()
                if mark_clean and not self._leaving:
                    await self._work.run(lambda: write_clean_shutdown(self._disk, self.path, broker_epoch))
                    self.is_marked_clean = True
        finally:
            if self._marking is not None:
                await asyncio.gather(self._marking, return_exceptions=True)
            self._lock.release()

    def _failed(self, failure: StorageError) -> None:
        if self.offline is None:
            self.offline = failure
            for log in self.logs.values():
                log.failed = failure
            _log.error("log directory %s is offline: %s", self.path, failure)
            self._on_offline(failure)
        if self._marking is None and isinstance(failure, SyncError):
            self._marking = asyncio.create_task(self._mark_suspect())

    async def _mark_suspect(self) -> None:
        is_marked = await self._disk.submit(self.path, lambda: mark_suspect(self._disk, self.path, self._others))
        if not is_marked:
            _log.error(
                "a sync failed in %s and that could be noted nowhere: before the broker is started again, restart the "
                "machine or take the directory out of log.dirs",
                self.path,
            )


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
