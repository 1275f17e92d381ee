"""How many producers a partition, and a broker, remembers: who has to make room for a new one.

Each remembered producer costs memory, and is written into a snapshot at every roll. Kafka forgets them by age alone
(producer.id.expiration.ms), so anybody can fill a broker with producer ids in a minute. Here their number has a bound.

Forgetting a producer has the consequence of an expiry: a batch that it sends again is not known to be a duplicate. So
the longest silent producer makes room, and only when it has been silent for longer than clients send a batch again
(`producer_silence`). A flood of new ids therefore never takes the state of a producer at work. While none is silent, a
new id is refused for a passing reason, and its producer tries again: NOT_ENOUGH_REPLICAS, which Java's client and
librdkafka repeat without a new producer epoch and without asking for metadata. A producer with an open transaction, or
with markers, whose epoch fences others, stays until it expires.

Only a leader refuses. A follower, or a log that is read at the start, takes what its leader took. It remembers a
twentieth more producers than a leader does, and above that it forgets the longest silent one for each new one. A leader
forgets in the same order and remembers fewer, so its followers know all producers that it knows. There is one
exception: a producer whose batches were refused or duplicates is at work to its leader, but has written nothing that
a follower could copy. The follower forgets it when it has been silent for the longest time, by what the log says, and
new ids have used up that twentieth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.producer_silence import SILENT_MS
from tidelog.metrics import Metrics
from tidelog.ports import Clock
from tidelog.types import Offset

if TYPE_CHECKING:
    from tidelog.log.producers import Producers

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

    def admit(self, producers: Producers, high_watermark: Offset) -> None:
        """A leader is about to take a first batch of a producer. TooManyProducersError if there is no room for it."""
        now_ms = self._clock.monotonic_ns() // 1_000_000
        excess = len(producers) - self._per_partition
        if excess >= 0 or self._total(now_ms) >= self._per_broker:
            # A leader that was a follower, or whose bound was lowered, has too many: then two go for one that comes.
            wanted = 2 if excess > 0 else 1
            removed = sum(producers.forget_silent(now_ms - SILENT_MS, high_watermark) for _ in range(wanted))
            self._made_room.add(removed)
            self._counted -= removed
            if not removed:
                self._refused.add()
                name = "tidelog.partition.producer.ids.max" if excess >= 0 else "tidelog.broker.producer.ids.max"
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
