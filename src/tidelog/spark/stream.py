"""The streaming source: which offsets a micro-batch takes, and the group in which its progress shows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.client.cluster import Cluster
from tidelog.client.group_offsets import commit_offsets
from tidelog.errors import TidelogError
from tidelog.host.clock import SystemClock
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError
from tidelog.spark.limits import MinimumGate, available, check_losses, limited, split, stream_ranges
from tidelog.spark.offsets import JsonOffsets, Offsets, from_json, to_json
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import earliest_offsets, latest_from, latest_offsets, starting_offsets, until_target
from tidelog.spark.source import RangePartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger(__name__)

_COMMIT_S = 10
"""A query is not held up for longer by a group whose coordinator is away."""


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process beside the driver for as long as the query; copies of it read in tasks.

    Spark asks for the latest offset from where all is processed, so that call, besides `commit`, tells how far the
    query is: `commit` alone never hears of the last micro-batch. It comes with the next trigger. So a query that is
    stopped between two triggers, far apart, shows its last micro-batch in the group only when it runs again.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connected: Connected | None = None
        self._latest: Offsets | None = None
        self._target: Offsets | None = None
        """Where Trigger.AvailableNow ends."""
        self._shown: Offsets | None = None
        """The last progress that the group was told, or could not be told."""
        self._gate = None if options.min_offsets is None else MinimumGate(options.min_offsets, options.max_delay_ms)

    # Offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        return to_json(self._run(lambda cluster: starting_offsets(cluster, self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._run(lambda cluster: latest_offsets(cluster, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        begun = from_json(start)
        self._show_progress(begun)
        return to_json(self._run(lambda cluster: self._end(cluster, begun, limit)))

    async def _end(self, cluster: Cluster, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next micro-batch ends; `start` itself if there is none."""
        end = self._latest = await self._available(cluster, start)
        new = [partition for partition in end if partition not in start]
        start = {**start, **await earliest_offsets(cluster, new, self._options)} if new else start
        if isinstance(limit, ReadAllAvailable):
            return end
        is_held = self._gate is not None and self._target is None
        if is_held and not self._gate_opens(available(start, end)):
            return {partition: offset for partition, offset in start.items() if partition not in new}
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets
        return end if max_offsets is None else limited(max_offsets, start, end)

    async def _available(self, cluster: Cluster, start: Offsets) -> Offsets:
        if self._target is None:
            return await latest_from(cluster, self._options, start)
        return await until_target(cluster, self._options, start, self._target)

    def _gate_opens(self, offsets: int) -> bool:
        assert self._gate is not None
        return self._gate.opens(offsets, SystemClock().wall_ms())

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    # Micro-batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = from_json(start), from_json(end)
        new = [partition for partition in ended if partition not in begun]
        earliest = self._run(lambda cluster: earliest_offsets(cluster, new, self._options)) if new else {}
        ranges, losses = stream_ranges(begun, ended, earliest)
        check_losses(losses, self._options.fail_on_data_loss)
        for loss in losses:
            log.warning("%s; some data may have been missed", loss)
        return [RangePartition(one) for one in split(ranges, self._options.min_partitions, self._options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    # Progress

    def commit(self, end: dict[str, Any]) -> None:
        self._show_progress(from_json(end))

    def _show_progress(self, done: Offsets) -> None:
        """Commit to the group what is new. That brokers cannot be reached is no reason to end the query."""
        group = self._options.group
        if group is None or done == self._shown or not done:
            return
        self._shown = done

        async def commit(cluster: Cluster) -> None:
            async with asyncio.timeout(_COMMIT_S):
                await commit_offsets(cluster, group, done)

        try:
            self._run(commit)
        except (TidelogError, TimeoutError) as failure:
            if isinstance(failure, TidelogError) and not failure.code.retriable:
                raise OptionError("group", f"group {group} does not take the query's offsets: {failure}") from failure
            why = str(failure) or f"no answer in {_COMMIT_S} s"
            log.warning("group %s: progress is not shown, the next micro-batch tries again: %s", group, why)

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        if self._connected is None:
            self._connected = Connected(self._options.addresses, self._options.client)
        return self._connected.run(work)
