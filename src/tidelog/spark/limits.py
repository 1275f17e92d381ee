"""How much one micro-batch takes, and how a read is cut into tasks: the rules of Spark's Kafka connector. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from tidelog.spark.losses import Loss
from tidelog.spark.offsets import OffsetRange, Offsets
from tidelog.types import Offset, TopicPartition


def limited(limit: int, start: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset]) -> Offsets:
    """Ends such that about `limit` offsets lie between, split in proportion to what each partition has.

    A partition that has anything gets at least one, so that a small one is never starved. What `start` does not name
    is taken whole: it has nothing, or planning will tell why.
    """
    sizes = {partition: max(0, end[partition] - start.get(partition, end[partition])) for partition in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    return {
        partition: until
        if not sizes[partition]
        else min(until, start[partition] + max(1, limit * sizes[partition] // total))
        for partition, until in end.items()
    }


def available(start: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset]) -> int:
    """How many offsets lie between."""
    return sum(max(0, until - start.get(partition, until)) for partition, until in end.items())


class MinimumGate:
    """Holds a micro-batch back until it is worth its while (minOffsetsPerTrigger) or has waited (maxTriggerDelay)."""

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._opened_ms: int | None = None

    def opens(self, offsets: int, now_ms: int) -> bool:
        """The first batch goes at once, as in Spark's connector."""
        waited = self._opened_ms is None or now_ms - self._opened_ms >= self._max_delay_ms
        if not waited and offsets < self._min_offsets:
            return False
        self._opened_ms = now_ms
        return True


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The tasks of a read: one for each range with anything in it, or parts of large ones.

    First no part has more than `max_records` offsets; then, if there are fewer than `min_partitions`, large parts are
    cut further, in proportion to their size. So there are about that many, not exactly.
    """
    parts = [one for one in ranges if one.size > 0]
    if max_records is not None:
        parts = [part for one in parts for part in _cut(one, math.ceil(one.size / max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(part.size for part in parts)
    small = [part for part in parts if _share(part.size, total, min_partitions) == 1]
    rest = total - sum(part.size for part in small)
    wanted = max(1, min_partitions - len(small))
    kept = set(small)
    return [
        piece for part in parts for piece in ([part] if part in kept else _cut(part, _share(part.size, rest, wanted)))
    ]


def _share(size: int, total: int, parts: int) -> int:
    """Rounded half up."""
    return max(1, (2 * size * parts + total) // (2 * total))


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [one.start + one.size * part // parts for part in range(parts + 1)]
    pieces = [OffsetRange(one.partition, start, end) for start, end in itertools.pairwise(edges)]
    return [piece for piece in pieces if piece.size > 0]


def stream_ranges(
    start: Mapping[TopicPartition, Offset],
    end: Mapping[TopicPartition, Offset],
    earliest: Mapping[TopicPartition, Offset],
    renewed: Collection[str] = (),
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges of a micro-batch, and what was lost on the way.

    `renewed` are topics that were deleted and made again since `start`: what was not read of the old ones is lost, and
    the partitions of the new ones are new. `earliest` has the partitions that are new. They begin there, and if that
    is not 0, records came and went unseen.
    """
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    read: Offsets = {}
    for partition, offset in sorted(start.items()):
        if partition.topic in renewed:
            losses.append(Loss(partition, offset, None, f"topic {partition.topic} was deleted and made again"))
        elif partition in end:
            read[partition] = offset
        else:
            losses.append(Loss(partition, offset, None, f"partition {partition} is gone"))
    for partition, until in sorted(end.items()):
        first = read.get(partition, earliest.get(partition))
        if first is None:
            losses.append(Loss(partition, 0, until, f"partition {partition} is new and gone again"))
            continue
        if partition not in read and first > 0:
            why = f"partition {partition} is new and begins at offset {first}, not at 0"
            losses.append(Loss(partition, 0, min(first, until), why))
        elif until < first:
            why = f"partition {partition} ends at offset {until}, before {first}, up to which it was read"
            losses.append(Loss(partition, until, first, why))
        ranges.append(OffsetRange(partition, first, max(first, until)))
    return ranges, losses
