"""How many producers a partition, and a broker, remembers: who has to make room for a new one.

Each remembered producer costs memory, and is written into a snapshot at every roll. Kafka forgets them by age alone
(producer.id.expiration.ms), so anybody can fill a broker with producer ids in a minute. Here their number has a bound.

Forgetting a producer has the consequence of an expiry: a batch that it sends again is not known to be a duplicate. So
a producer makes room only when it has been silent for longer than any client sends a batch again. A flood of new ids
therefore never takes the state of a producer at work. While there is no silent one, a new id is refused for a passing
reason, and its producer tries again: NOT_ENOUGH_REPLICAS, which Java's client and librdkafka repeat without a new
producer epoch and without asking for metadata. A producer with an open transaction, or with markers, whose epoch fences
others, stays until it expires.

Only a leader refuses. A follower, or a log that is read at the start, takes what its leader took: above the bound it
forgets those whose last write is furthest back in the log. A leader's longest silent producers are the same ones, so
replicas differ at most in what they know of producers that are silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.errors import ErrorCode, TidelogError
from tidelog.metrics import Metrics
from tidelog.ports import Clock
from tidelog.types import Offset

if TYPE_CHECKING:
    from tidelog.log.producers import Producers

SILENT_MS = 5 * 60_000
"""Clients give a batch up after delivery.timeout.ms (2 minutes)."""
_COUNT_EVERY_MS = 1_000


class TooManyProducersError(TidelogError):
    """A new producer id has to wait until one that is remembered has been silent for long enough."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class ProducerRoom:
    """The bounds of one broker. `count` tells how many producers all of its logs remember now; it is asked seldom."""

    def __init__(
        self, per_partition: int, per_broker: int, count: Callable[[], int], clock: Clock, metrics: Metrics
    ) -> None:
        self._per_partition = per_partition
        self._per_broker = per_broker
        self._count = count
        self._clock = clock
        self._counted = 0
        self._counted_ms: int | None = None
        self._refused = metrics.counter("tidelog_refused_producer_ids_total")
        self._made_room = metrics.counter("tidelog_evicted_producer_ids_total")

    def admit(self, producers: Producers, log_end_offset: Offset) -> None:
        """A leader is about to take a first batch of a producer. TooManyProducersError if there is no room for it."""
        now_ms = self._clock.monotonic_ns() // 1_000_000
        producers.mark(now_ms, log_end_offset)
        is_full = len(producers) >= self._per_partition
        if is_full or self._total(now_ms) >= self._per_broker:
            removed = producers.remove_silent(now_ms - SILENT_MS)
            self._made_room.add(removed)
            self._counted -= removed
            if not removed:
                self._refused.add()
                name = "tidelog.partition.producer.ids.max" if is_full else "tidelog.broker.producer.ids.max"
                raise TooManyProducersError(
                    f"{name}: as many producers are remembered, and none of this partition has been silent for "
                    f"{SILENT_MS // 1000} s"
                )
        self._counted += 1

    def _total(self, now_ms: int) -> int:
        """Counted now and then, and in between by what was added and removed here."""
        if self._counted_ms is None or now_ms - self._counted_ms >= _COUNT_EVERY_MS:
            self._counted, self._counted_ms = self._count(), now_ms
        return self._counted
