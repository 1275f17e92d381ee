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

from tidelog.client.addresses import KnownBrokers
from tidelog.client.cluster import Cluster
from tidelog.client.group_offsets import commit_offsets
from tidelog.errors import TidelogError
from tidelog.host.clock import SystemClock
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError
from tidelog.spark.limits import MinimumGate, available, limited, split, stream_ranges
from tidelog.spark.losses import check_losses
from tidelog.spark.offsets import (
    JsonOffsets,
    Offsets,
    Position,
    from_json,
    initial_of,
    made_anew,
    position_of,
    position_to_json,
    to_json,
    with_initial,
)
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
        self._target: Position | None = None
        """Where Trigger.AvailableNow ends."""
        self._is_new = False
        """Whether the query has no micro-batch in its checkpoint that is done, so that it begins at {}."""
        self._shown: Offsets | None = None
        """The last progress that the group was told."""
        self._not_shown: str | None = None
        """Why the group could not be told, if it could not."""
        self._show_again_ns = 0
        self._gate = None if options.min_offsets is None else MinimumGate(options.min_offsets, options.max_delay_ms)

    # Offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        """Nothing is read yet.

        Where the query begins is found out once, for its first micro-batch, and noted in the offsets of that one, which
        Spark writes to the checkpoint before it runs it. Spark asks here again when it runs the first micro-batch, and
        when a query whose first micro-batch failed is started again: the answer of today would skip what came since.
        """
        self._is_new = True
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._run(lambda cluster: latest_offsets(cluster, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        self._is_new = self._is_new and not start
        self._stay_with(position_of(start).cluster_id)
        begun = self._starting() if self._is_new else position_of(start)
        self._show_progress(begun.offsets)
        end = self._run(lambda cluster: self._end(cluster, begun, limit))
        end = end._replace(cluster_id=self._connection().known.cluster_id)
        renewed = made_anew(begun.topic_ids, end.topic_ids)
        if self._is_new:
            return with_initial(position_to_json(end), begun.without(renewed).offsets)
        return start if end.offsets == begun.offsets and not renewed else position_to_json(end)

    def _starting(self) -> Position:
        return self._run(lambda cluster: starting_offsets(cluster, self._options))

    async def _end(self, cluster: Cluster, start: Position, limit: ReadLimit) -> Position:
        """Where the next micro-batch ends; `start` itself if there is none."""
        end = await self._available(cluster, start)
        self._latest = end.offsets
        begun = start.without(made_anew(start.topic_ids, end.topic_ids)).offsets
        if new := [partition for partition in end.offsets if partition not in begun]:
            begun = {**begun, **await earliest_offsets(cluster, new, self._options)}
        if isinstance(limit, ReadAllAvailable):
            return end
        is_held = self._gate is not None and self._target is None
        if is_held and not self._gate_opens(available(begun, end.offsets)):
            return start
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets
        return end if max_offsets is None else end._replace(offsets=limited(max_offsets, begun, end.offsets))

    async def _available(self, cluster: Cluster, start: Position) -> Position:
        if self._target is None:
            return await latest_from(cluster, self._options, start)
        self._target = await until_target(cluster, self._options, start, self._target)
        return self._target

    def _gate_opens(self, offsets: int) -> bool:
        assert self._gate is not None
        return self._gate.opens(offsets, SystemClock().wall_ms())

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    # Micro-batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._stay_with(position_of(end).cluster_id or position_of(start).cluster_id)
        begun, ended = self._begin(start, end), position_of(end)
        renewed = made_anew(begun.topic_ids, ended.topic_ids)
        kept = begun.without(renewed).offsets
        new = [partition for partition in ended.offsets if partition not in kept]
        earliest = self._run(lambda cluster: earliest_offsets(cluster, new, self._options))
        ranges, losses = stream_ranges(begun.offsets, ended.offsets, earliest, renewed)
        check_losses(losses, self._options.fail_on_data_loss)
        parts = split(ranges, self._options.min_partitions, self._options.max_records)
        known = self._connection().known
        return [RangePartition(part, known, ended.topic_ids.get(part.partition.topic)) for part in parts]

    def _begin(self, start: dict[str, Any], end: dict[str, Any]) -> Position:
        """Of the first micro-batch, what is noted with its end. Checkpoints of former versions have no note."""
        noted = None if start else initial_of(end)
        if noted is not None:
            return Position(noted, {})
        return self._starting() if self._is_new and not start and end else position_of(start)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    # Progress

    def commit(self, end: dict[str, Any]) -> None:
        self._show_progress(from_json(end))

    def _show_progress(self, done: Offsets) -> None:
        """Commit to the group what it was not told yet.

        A query that begins is refused a group that does not take its offsets. Later on nothing ends it that happens to
        the group, or to its coordinator: that is logged once, and tried again with the next trigger. An attempt that
        took long is followed by a pause as long, so that the query is not held up all the time.
        """
        group, clock = self._options.group, SystemClock()
        if group is None or not done or done == self._shown or clock.monotonic_ns() < self._show_again_ns:
            return

        async def commit(cluster: Cluster) -> None:
            async with asyncio.timeout(_COMMIT_S):
                await commit_offsets(cluster, group, done)

        began_ns = clock.monotonic_ns()
        try:
            self._run(commit)
        except (TidelogError, TimeoutError) as failure:
            is_wrong = isinstance(failure, TidelogError) and not failure.code.retriable
            if is_wrong and self._is_new and self._shown is None:
                raise OptionError("group", f"group {group} does not take the query's offsets: {failure}") from failure
            self._show_again_ns = 2 * clock.monotonic_ns() - began_ns
            self._tell_not_shown(str(failure) or f"no answer in {_COMMIT_S} s")
        else:
            self._shown, self._not_shown = done, None

    def _tell_not_shown(self, why: str) -> None:
        if why != self._not_shown:
            log.warning(
                "group %s does not show the query's progress, which is tried again: %s", self._options.group, why
            )
        self._not_shown = why

    # The cluster

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _stay_with(self, cluster_id: str | None) -> None:
        """The query goes on with the cluster of its checkpoint: another one's topics are not those that it has read.

        Trigger.AvailableNow asks for its target before Spark tells the checkpoint. If the user's addresses lead to
        several clusters, it may have asked another one.
        """
        known = None if self._connected is None else self._connected.known.cluster_id
        if cluster_id is None or (self._connected is not None and known in (None, cluster_id)):
            return
        self.stop()
        self._connected = Connected(self._options.addresses, self._options.client, KnownBrokers((), cluster_id))
        if self._target is not None:
            self.prepareForTriggerAvailableNow()

    def _connection(self) -> Connected:
        if self._connected is None:
            self._connected = Connected(self._options.addresses, self._options.client)
        return self._connected

    def _run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        return self._connection().run(work)
