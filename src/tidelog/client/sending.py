"""One batch on its way to a broker, and what becomes of one that is too large: it goes on in pieces."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.client.sequences import OutBatch
from tidelog.errors import TidelogError
from tidelog.records.header import read_header
from tidelog.records.splitting import split_batch
from tidelog.types import NO_TIMESTAMP, Offset, TopicPartition


class Produced(NamedTuple):
    """Where a batch is: the offset of its first record, -1 if the broker did not say (acks=0, or a late duplicate)."""

    partition: TopicPartition
    base_offset: Offset
    timestamp: int = NO_TIMESTAMP
    """When the broker took it, where that is the timestamp of its records; else -1."""
    last_offset: Offset = -1
    """Of its last record. If the batch was split, records of others may lie between its first and its last one."""


class PartlyWrittenError(TidelogError):
    """A batch was too large and was split, and not all of the pieces were written. The cause is the first failure."""

    def __init__(self, failure: TidelogError, produced: Produced, record_count: int, lost_count: int) -> None:
        self.code = failure.code
        self.produced = produced
        """Where those records are that were written."""
        self.lost_count = lost_count
        told = f"{lost_count} of the {record_count} records that were sent together are not written, the others are"
        super().__init__(f"{failure}; {told}")
        self.__cause__ = failure


class Sending(OutBatch):
    """A batch that somebody waits for, or a piece of one."""

    __slots__ = ("deadline_s", "expired", "future", "timer", "whole")

    def __init__(self, data: memoryview, future: asyncio.Future[Produced], deadline_s: float) -> None:
        super().__init__(data)
        self.future = future
        self.deadline_s = deadline_s
        """On the loop's clock: when it is given up."""
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False
        self.whole: _Whole | None = None
        """What it is a piece of."""

    def split(self) -> tuple[list[Sending], int]:
        """Its halves, and its size without compression. ValueError or TidelogError if it cannot be split."""
        first, second, uncompressed_bytes = split_batch(self.data, read_header(self.data))
        pieces = [Sending(half, self.future, self.deadline_s) for half in (first, second)]
        whole = self.whole or _Whole(self.record_count)
        whole.pending += len(pieces) - 1
        for piece in pieces:
            piece.whole = whole
        return pieces, uncompressed_bytes

    def end(self, produced: Produced | None, failure: BaseException | None) -> None:
        """It is written, or given up. The future is done with the last piece."""
        if self.whole is not None:
            if not self.whole.ended(self.record_count, produced, failure):
                return
            produced, failure = self.whole.outcome()
        if self.future.done():
            return
        if produced is not None:
            self.future.set_result(produced)
        else:
            self.future.set_exception(failure or AssertionError("a batch ends written or with a failure"))


class _Whole:
    """A batch that was split: what its pieces come to."""

    def __init__(self, record_count: int) -> None:
        self.pending = 1
        self._record_count = record_count
        self._lost_count = 0
        self._produced: Produced | None = None
        self._failure: BaseException | None = None

    def ended(self, record_count: int, produced: Produced | None, failure: BaseException | None) -> bool:
        """A piece of so many records has ended. True if it is the last one."""
        self.pending -= 1
        if produced is None:
            self._lost_count += record_count
            self._failure = self._failure or failure
        elif self._produced is None:
            self._produced = produced
        else:
            first = min(self._produced.base_offset, produced.base_offset)
            last = max(self._produced.last_offset, produced.last_offset)
            self._produced = self._produced._replace(base_offset=first, last_offset=last)
        return not self.pending

    def outcome(self) -> tuple[Produced | None, BaseException | None]:
        if self._produced is None or not isinstance(self._failure, TidelogError):
            return (None if self._failure else self._produced), self._failure
        return None, PartlyWrittenError(self._failure, self._produced, self._record_count, self._lost_count)


class SizeLimits:
    """What brokers refused as too large, by topic. What is made later is smaller.

    Always: batches are made no smaller than half of one that was too large, so few are refused before all are taken.
    A limit that is raised is not noticed.
    """

    def __init__(self) -> None:
        self._refused_bytes: dict[str, int] = {}
        """The size of the smallest batch that was refused for its size as it was sent."""
        self._batch_bytes: dict[str, int] = {}
        """How large batches are made, not counting compression."""

    def refused(self, topic: str, size_bytes: int) -> None:
        self._refused_bytes[topic] = min(size_bytes, self._refused_bytes.get(topic, size_bytes))

    def was_split(self, topic: str, uncompressed_bytes: int) -> None:
        self._batch_bytes[topic] = self.batch_bytes(topic, uncompressed_bytes // 2)

    def refuse(self, topic: str, size_bytes: int) -> bool:
        """Whether a batch that is not larger than this was refused."""
        limit_bytes = self._refused_bytes.get(topic)
        return limit_bytes is not None and size_bytes >= limit_bytes

    def batch_bytes(self, topic: str, wanted_bytes: int) -> int:
        """How large to make the next batch, not counting compression."""
        return min(wanted_bytes, self._batch_bytes.get(topic, wanted_bytes))
