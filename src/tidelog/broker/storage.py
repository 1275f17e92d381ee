"""The broker's log directories: opened, checked to be its own, kept in order, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog.config.broker import BrokerConfig
from tidelog.errors import StorageError
from tidelog.log.config import LogConfig
from tidelog.log.directory import LogDirectory
from tidelog.log.housekeeping import Housekeeping, Intervals
from tidelog.log.meta import MetaProperties, read_meta_properties, write_meta_properties
from tidelog.ports import Disk, Ports
from tidelog.types import BrokerId

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
        self._config = config
        self._ports = ports
        self._on_offline = on_offline
        self._housekeeping: list[Housekeeping] = []

    async def open(self, broker_id: BrokerId, cluster_id: str, config_of: Callable[[str], LogConfig]) -> None:
        """Recovers what needs it. StorageError if no directory can be used."""
        failures = []
        for path in self._config.log_dirs:
            try:
                self.directories.append(await self._open_one(path, broker_id, cluster_id, config_of))
            except StorageError as failure:
                _log.error("log directory %s cannot be used: %s", path, failure)
                self.left_out.append(path)
                failures.append(f"{path}: {failure}")
        if not self.directories:
            raise StorageError(f"no log directory can be used (log.dirs): {'; '.join(failures)}")

    async def _open_one(
        self, path: str, broker_id: BrokerId, cluster_id: str, config_of: Callable[[str], LogConfig]
    ) -> LogDirectory:
        ports, disk = self._ports, self._ports.disk
        opened: list[LogDirectory] = []
        directory = await LogDirectory.open(
            disk,
            ports.clock,
            ports.random,
            path,
            config_of,
            on_offline=lambda _: self._on_offline(opened[0]) if opened else None,
        )
        opened.append(directory)
        try:
            if directory.offline is not None:
                raise directory.offline
            await disk.submit(path, lambda: _claim(disk, path, broker_id, cluster_id))
        except BaseException:
            await directory.close()
            raise
        return directory

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
    def is_offline(self) -> bool:
        return all(directory.offline is not None for directory in self.directories)

    async def close(self, broker_epoch: int) -> None:
        for housekeeping in self._housekeeping:
            await housekeeping.stop()
        closing = [directory.close(broker_epoch) for directory in self.directories]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result  # when the others are closed too


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
