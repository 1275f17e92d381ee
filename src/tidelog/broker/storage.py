"""The broker's log directories: opened, checked to be its own, kept in order, closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import TopicConfig
from tidelog.errors import StorageError
from tidelog.log.continuity import BROKEN, BootNote, Continuity, continued, of_all, read_boot_note
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.log import Log
from tidelog.log.meta import MetaProperties, read_meta_properties, write_meta_properties
from tidelog.log.strays import Stray
from tidelog.ports import Disk, Ports
from tidelog.types import NO_EPOCH, BrokerId, Epoch, Offset, TopicPartition
from tidelog.wording import counted

_log = logging.getLogger(__name__)


_MOST_FLUSH_CHECK_MS = 1_000
"""log.flush.scheduler.interval.ms is "never" by default; a flush.ms of a topic must be kept all the same."""


class Storage:
    """All log directories of one broker. One that cannot be used is left out while another one can."""

    def __init__(self, config: BrokerConfig, ports: Ports, on_offline: Callable[[LogDirectory], None]) -> None:
        self.disk = ports.disk
        self.directories: list[LogDirectory] = []
        self.left_out: list[str] = []
        """Directories that could not be used when the broker started; what they hold may be needed all the same."""
        self.continuity = BROKEN
        """Since which broker epoch nothing of all this was lost."""
        self._cluster_id = ""
        self._config = config
        self._ports = ports
        self._on_offline = on_offline
        self._housekeeping: list[Housekeeping] = []
        self._is_noted = False
        """The directories hold the note of what this process found in them."""

    async def open(self, broker_id: BrokerId, cluster_id: str, config_of: Callable[[str], TopicConfig]) -> None:
        """Recovers what needs it. StorageError if no directory can be used."""
        self._cluster_id = cluster_id
        failures: list[str] = []
        notes: list[BootNote | None] = []
        for path in self._config.log_dirs:
            try:
                self.directories.append(await self._open_one(path, broker_id, cluster_id, config_of))
                notes.append(await self.disk.submit(path, partial(read_boot_note, self.disk, path)))
            except (StorageError, FileNotFoundError) as failure:  # nothing is there if it is a link to a lost volume
                _log.error("log directory %s cannot be used: %s", path, failure)
                self.left_out.append(path)
                failures.append(f"{path}: {failure}")
        if not self.directories:
            raise StorageError(f"no log directory can be used (log.dirs): {'; '.join(failures)}")
        superseded = self._superseded()
        self.continuity = BROKEN if superseded or self.left_out else self._continuity_of(notes)
        await self._note(self.continuity)  # the next process may be of this boot, and die like this one
        for name, directory in superseded:
            await self._supersede(name, directory)

    def _superseded(self) -> list[tuple[TopicPartition, LogDirectory]]:
        """Logs of partitions that have a fuller one in another directory.

        A directory that was away, by a fault or because log.dirs did not name it, comes back with a log whose partition
        was copied anew into another one meanwhile. The fuller log has every committed record that the other one has, if
        both are of the same topic.
        """
        held: dict[TopicPartition, list[LogDirectory]] = {}
        for directory in self.directories:
            for name in directory.logs:
                held.setdefault(name, []).append(directory)
        return [
            (name, directory)
            for name, directories in held.items()
            for directory in sorted(directories, key=lambda each: _fullness(each.logs[name]), reverse=True)[1:]
        ]

    async def _supersede(self, name: TopicPartition, directory: LogDirectory) -> None:
        """Not deleted: if the two are of different topics of one name, the controller knows which one is wanted."""
        _log.error("%s has a log in more than one log directory; the one in %s is not used", name, directory.path)
        try:
            stray = await directory.set_aside(name)
        except StorageError as failure:
            _log.error("%s in %s cannot be set aside as a stray: %s", name, directory.path, failure)
        else:
            _log.warning("%d bytes of %s are kept as the stray %s", stray.size_bytes, name, stray.path)

    def _continuity_of(self, notes: Sequence[BootNote | None]) -> Continuity:
        """Each directory has its own note. An operator may add an empty directory, for instance a new disk: it takes
        nothing away from the others."""
        found = zip(self.directories, notes, strict=True)
        used = [(directory, note) for directory, note in found if not directory.was_unused]
        return of_all(
            BROKEN
            if directory.was_suspect
            else continued(note, self._ports.boot_id, directory.was_clean, len(used), self._cluster_id)
            for directory, note in used
        )

    def compare(self, noted: Epoch | None) -> None:
        """`noted` is the last epoch of this broker by the store, which hears of it after the directories.

        Those that do not know it were put back from a copy, or were away: they have missed what was written since.
        """
        if noted is None or self.continuity.last_epoch < noted:
            self.continuity = BROKEN

    async def registered(self, broker_epoch: Epoch) -> None:
        """From now on this broker may come into ISRs by this epoch, so its directories note it first.

        Then those in which a sync had failed need no mark any more: the note says since when they are whole.
        """
        since, last = self.continuity
        # Nothing was lost since the last epoch either: the store knows of none that the directories missed (`compare`).
        # A `since` above the last epoch is of lives in which a directory was away: what came into ISRs in those may be
        # stale in it. A `since` above this epoch is from before the store was put back to an older state.
        is_joined = 0 <= since <= min(last, broker_epoch)
        self.continuity = Continuity(since if is_joined else broker_epoch, broker_epoch)
        await self._note(self.continuity)
        for directory in self.directories:
            with contextlib.suppress(StorageError):  # then it is offline, and has said so
                await directory.trust()

    async def _note(self, continuity: Continuity) -> None:
        """A directory that cannot take it is offline then, and none of its replicas is used.

        New directories get their first note before the others count them. If the process is killed in between, the
        next start finds no note that counts a directory without one, which looks like a directory that was lost."""
        note = BootNote(self._ports.boot_id, continuity, len(self._config.log_dirs), cluster_id=self._cluster_id)
        for are_new in (True, False):
            writing = [
                directory.note_boot(note)
                for directory in self.directories
                if directory.offline is None and directory.was_unused is are_new
            ]
            for failure in await asyncio.gather(*writing, return_exceptions=True):
                if failure is not None and not isinstance(failure, StorageError):
                    raise failure
        self._is_noted = True

    async def _open_one(
        self, path: str, broker_id: BrokerId, cluster_id: str, config_of: Callable[[str], TopicConfig]
    ) -> LogDirectory:
        ports, disk = self._ports, self._ports.disk
        opened: list[LogDirectory] = []
        begun_ns = ports.clock.monotonic_ns()
        directory = await LogDirectory.open(
            disk,
            ports.clock,
            ports.random,
            path,
            config_of,
            on_offline=lambda _: self._on_offline(opened[0]) if opened else None,
            others=[other for other in self._config.log_dirs if other != path],
            boot_id=ports.boot_id,
        )
        opened.append(directory)
        _tell_opened(directory, (ports.clock.monotonic_ns() - begun_ns) / 1e9)
        try:
            if directory.offline is not None:
                raise directory.offline
            await disk.submit(path, lambda: _claim(disk, path, broker_id, cluster_id))
        except BaseException:
            await self._close(directory, NO_EPOCH)
            raise
        return directory

    async def _close(self, directory: LogDirectory, broker_epoch: Epoch) -> None:
        """After a start that failed before it noted what it found, only a directory that was clean is clean again."""
        await directory.close(broker_epoch, mark_clean=self._is_noted or directory.was_clean)
        how = "marked as clean" if directory.is_marked_clean else "not marked as clean: the next start checks its logs"
        _log.info("log directory %s is closed and %s", directory.path, how)

    def start_housekeeping(self) -> None:
        for directory in self.directories:
            housekeeping = Housekeeping(directory, self._ports.random)
            self._housekeeping.append(housekeeping)
        self.reconfigure(self._config)
        for housekeeping in self._housekeeping:
            housekeeping.start()

    def reconfigure(self, config: BrokerConfig) -> None:
        """From the next round on."""
        intervals = Intervals(
            retention_check_ms=config["log.retention.check.interval.ms"],
            flush_check_ms=min(config["log.flush.scheduler.interval.ms"], _MOST_FLUSH_CHECK_MS),
            checkpoint_ms=min(
                config["log.flush.offset.checkpoint.interval.ms"],
                config["replica.high.watermark.checkpoint.interval.ms"],
            ),
            cleaner_backoff_ms=config["log.cleaner.backoff.ms"],
            producer_expiration_check_ms=config["producer.id.expiration.check.interval.ms"],
        )
        for housekeeping in self._housekeeping:
            housekeeping.intervals = intervals
            housekeeping.dedupe_buffer_bytes = config["log.cleaner.dedupe.buffer.size"]
            housekeeping.may_clean = config["log.cleaner.enable"]

    @property
    def is_partly_offline(self) -> bool:
        return bool(self.left_out) or any(directory.offline is not None for directory in self.directories)

    @property
    def were_unused(self) -> bool:
        """Nothing was in any of them when the broker started."""
        return bool(self.directories) and all(directory.was_unused for directory in self.directories)

    @property
    def is_offline(self) -> bool:
        return all(directory.offline is not None for directory in self.directories)

    @property
    def strays(self) -> list[Stray]:
        """Replicas that the controller does not name, in directories that work."""
        return [
            stray for directory in self.directories if directory.offline is None for stray in directory.strays.values()
        ]

    async def close(self, broker_epoch: int) -> None:
        for housekeeping in self._housekeeping:
            await housekeeping.stop()
        closing = [self._close(directory, broker_epoch) for directory in self.directories]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result  # when the others are closed too


def _tell_opened(directory: LogDirectory, took_s: float) -> None:
    if directory.was_unused:
        _log.info("log directory %s is new: it holds no logs", directory.path)
        return
    was_clean = "was clean" if directory.was_clean else "was not clean, so the ends of the logs were checked"
    count = counted(len(directory.logs), "log")
    _log.info("log directory %s: %s opened in %.1f s, the last stop %s", directory.path, count, took_s, was_clean)


def _fullness(log: Log) -> tuple[Epoch, Offset]:
    """As elections compare replicas of which none is intact."""
    return log.epochs.latest_epoch, log.log_end_offset


def _claim(disk: Disk, path: str, broker_id: BrokerId, cluster_id: str) -> None:
    """A directory belongs to one broker of one cluster; a new one becomes ours."""
    meta = read_meta_properties(disk, path)
    if meta is None:
        write_meta_properties(disk, path, MetaProperties(cluster_id, broker_id))
        return
    if meta.node_id is not None and meta.node_id != broker_id:
        raise StorageError(f"it belongs to broker {meta.node_id} and broker.id is {broker_id}; change log.dirs")
    if meta.cluster_id is not None and meta.cluster_id != cluster_id:
        raise StorageError(
            f"it belongs to cluster {meta.cluster_id}, not to {cluster_id}; change log.dirs or tidelog.coordination.dir"
        )
