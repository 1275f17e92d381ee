"""Batches of idempotent producers that were refused and will come again: those behind them are not out of order.

A producer has several batches under way. If the first is refused for a passing reason, and the reason has passed before
the second comes, that one finds a gap. OUT_OF_ORDER_SEQUENCE_NUMBER would be the truth, but librdkafka answers it
with a new producer epoch, and what it has sent before and not heard of is then written twice. So whoever comes behind
a refused batch hears the same as that one, until it has come again.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import ErrorCode
from tidelog.types import Epoch, ProducerId

PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Why a batch is refused now and may be taken when it is sent again as it is."""
_MOST = 10_000
_HALF_OF_ALL_SEQUENCES = 2**30
_SEQUENCE_MASK = 2**31 - 1


class Sent(NamedTuple):
    """A batch as its producer numbered it."""

    topic: str
    partition: int
    producer_id: ProducerId
    epoch: Epoch
    base_sequence: int

    def is_behind(self, other: int) -> bool:
        """Whether it has a later sequence; they wrap."""
        return 0 < (self.base_sequence - other) & _SEQUENCE_MASK < _HALF_OF_ALL_SEQUENCES


class _Refused(NamedTuple):
    epoch: Epoch
    first_sequence: int
    code: ErrorCode


class Refusals:
    """The first refused batch of each producer and partition. At most so many; the oldest are forgotten."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int, ProducerId], _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def refused(self, sent: Sent, code: ErrorCode) -> None:
        """It was refused for a passing reason."""
        key = sent[:3]
        known = self._refused.get(key)
        if known is not None and known.epoch == sent.epoch and sent.is_behind(known.first_sequence):
            return
        self._refused.pop(key, None)
        self._refused[key] = _Refused(sent.epoch, sent.base_sequence, code)
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def taken(self, sent: Sent) -> None:
        """It was written, or had been before."""
        known = self._refused.get(sent[:3])
        if known is not None and (known.epoch != sent.epoch or not sent.is_behind(known.first_sequence)):
            del self._refused[sent[:3]]

    def reason_for(self, sent: Sent) -> ErrorCode | None:
        """Of one that does not follow what is in the log: what the one before it was told, if that was refused here."""
        known = self._refused.get(sent[:3])
        if known is not None and known.epoch == sent.epoch and sent.is_behind(known.first_sequence):
            return known.code
        return None
