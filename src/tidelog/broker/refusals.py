"""Batches of idempotent producers that were refused and will come again: those behind them come too early.

A producer has several batches under way. If the first is refused for a passing reason, and the reason has passed before
the second comes, that one finds a gap. OUT_OF_ORDER_SEQUENCE_NUMBER would be the truth, but librdkafka answers it
with a new producer epoch, and what it has sent before and not heard of is then written twice. To take the second would
be worse where the producer is unknown: librdkafka then believes that the first was written too (edge case 44). So what
comes behind a refused batch hears the same as that one, until the refused one has come again.

A new leader does not know what the former one refused, or what is still under way to it. There a batch behind a gap is
refused for a passing reason as well. Clients send what was refused again in order, and the oldest first. So a refused
batch that comes again, with nothing older before it, shows that its producer has nothing older to send: then a gap is
a gap, and an unknown producer is one whose state has expired or was deleted. And if a producer starts over with a later
batch, it has given the refused one up: that later batch is then its oldest. Only a batch that comes again on the same
connection shows that: copies on several connections, as after a freeze of the broker, come mixed with each other.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import ReferenceType, ref

from tidelog.broker.partition import RequestError
from tidelog.errors import ErrorCode
from tidelog.log.producers import SequenceGapError, is_behind
from tidelog.ports import Clock
from tidelog.types import Epoch, Offset, ProducerId

PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Why a batch is refused now and may be taken when it is sent again as it is."""
LIFETIME_MS = 120_000
"""Clients give a batch up after delivery.timeout.ms (2 minutes): then it does not come again."""
_MOST = 10_000


class Sent(NamedTuple):
    """A batch as its producer named and numbered it."""

    topic: str
    """The topic's name, or its id in hexadecimal digits where the request has ids."""
    partition: int
    producer_id: ProducerId
    epoch: Epoch
    base_sequence: int

    def is_behind(self, other: int) -> bool:
        """Whether it has a later sequence; they wrap."""
        return is_behind(self.base_sequence, other)


class _Refused(NamedTuple):
    epoch: Epoch
    first_sequence: int
    code: ErrorCode
    since_ms: int
    last_sequence: int
    """The sequence of the batch that was refused last: while it rises, the producer has not started over."""
    last_connection: ReferenceType[object]
    """That batch came on it."""

    def is_given_up(self, sent: Sent, connection: object) -> bool:
        """Whether the producer has started over with a later batch."""
        return self.last_connection() is connection and not sent.is_behind(self.last_sequence)


class Refusals:
    """The first refused batch of each producer and partition, for two minutes. Of more than `_MOST` the oldest go.

    A producer whose refusal went that way is refused once more, for a passing reason. The broker calls `forget_old` now
    and then, so that refusals are forgotten also if no other batch is refused.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[tuple[str, int, ProducerId], _Refused] = {}
        """In the order of `since_ms`."""

    def __len__(self) -> int:
        return len(self._refused)

    def __bool__(self) -> bool:
        return bool(self._refused)

    def refused(self, sent: Sent, code: ErrorCode, connection: object) -> None:
        """It came on this connection and was refused for a passing reason."""
        key, now_ms = sent[:3], self._now_ms()
        known, first = self._of(sent), sent.base_sequence
        if known is not None and sent.is_behind(known.first_sequence) and not known.is_given_up(sent, connection):
            self._refused[key] = known._replace(last_sequence=first, last_connection=ref(connection))
            return
        self._refused.pop(key, None)
        self._refused[key] = _Refused(sent.epoch, first, code, now_ms, first, ref(connection))
        self.forget_old()
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def taken(self, sent: Sent) -> None:
        """It is in the log, and so is all that comes before it."""
        known = self._refused.get(sent[:3])
        if known is not None and (
            known.epoch != sent.epoch
            or known.first_sequence == sent.base_sequence
            or sent.is_behind(known.first_sequence)
        ):
            del self._refused[sent[:3]]

    def reason_for(self, sent: Sent) -> ErrorCode | None:
        """The error that an earlier batch of this producer was refused with here, if this batch comes behind it."""
        known = self._of(sent)
        return known.code if known is not None and sent.is_behind(known.first_sequence) else None

    def comes_again(self, sent: Sent) -> bool:
        """Whether it was refused here, and nothing older of its producer was."""
        known = self._of(sent)
        return known is not None and known.first_sequence == sent.base_sequence

    def check_gap(self, sent: Sent, gap: SequenceGapError, epoch_start_offset: Offset) -> None:
        """A batch came behind a gap: raise the error for its producer, or return if the batch is to be written.

        `epoch_start_offset` is where the leader's own epoch begins. What the producer has here from earlier epochs went
        to a former leader, and so may have what is missing.
        """
        reason = self.reason_for(sent)
        if reason is not None:
            raise RequestError(reason, f"{gap}: an earlier batch was refused and has to come first")
        if gap.is_unknown and self.comes_again(sent):
            return
        if self.comes_again(sent) or gap.last_offset >= epoch_start_offset:
            raise gap
        raise RequestError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{gap}: send this batch again after those that are not acknowledged"
        )

    def _of(self, sent: Sent) -> _Refused | None:
        known = self._refused.get(sent[:3])
        if known is None or known.epoch != sent.epoch or self._is_over(known, self._now_ms()):
            return None
        return known

    def forget_old(self) -> None:
        now_ms = self._now_ms()
        while self._refused and self._is_over(next(iter(self._refused.values())), now_ms):
            del self._refused[next(iter(self._refused))]

    def _is_over(self, known: _Refused, now_ms: int) -> bool:
        return now_ms - known.since_ms >= LIFETIME_MS

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()
