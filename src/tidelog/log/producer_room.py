"""How many producers a partition, and a broker, remembers: who has to make room for a new one.

Each remembered producer costs memory, and is written into a snapshot at every roll. Kafka forgets them by age alone
(producer.id.expiration.ms), so anybody can fill a broker with producer ids in a minute. Here their number has a bound.

Forgetting a producer has the consequence of an expiry: a batch that it sends again is not known to be a duplicate. So
the longest silent producer makes room, and only when it has been silent for longer than clients send a batch again
(`producer_silence`). A flood of new ids therefore never takes the state of a producer at work. While none is silent, a
new id is refused for a passing reason, and its producer tries again: NOT_ENOUGH_REPLICAS, which Java's client and
librdkafka repeat without a new producer epoch and without asking for metadata. A producer with an open transaction, or
with markers, whose epoch fences others, stays until it expires.

At the bound of the broker a silent producer of another partition makes room if the partition that is written to has
none. Otherwise ids that a client has left in some partitions would close all others to new producers. Only partitions
that this broker leads are asked, because a follower must know what its leader knows.

Only a leader refuses. A follower, or a log that is read at the start, takes what its leader took. It remembers a
twentieth more producers than a leader does, and above that it forgets the longest silent one for each new one. A leader
forgets in the same order and remembers fewer, so its followers know all producers that it knows. There is one
exception: a producer whose batches were refused or duplicates is at work to its leader, but has written nothing that
a follower could copy. The follower forgets it when it has been silent for the longest time, by what the log says, and
new ids have used up that twentieth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.producer_silence import SILENT_MS
from tidelog.metrics import Metrics
from tidelog.ports import Clock
from tidelog.types import Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.log.log import Log
    from tidelog.log.producers import Producers

_COUNT_EVERY_MS = 1_000
_LOOKED_AT_FOR_ONE = 20_000
"""Producers of other partitions that are looked at for one new id, at most; one partition may exceed it."""
_COST_OF_PARTITION = 100
"""A partition counts as so many producers beside its own."""


class TooManyProducersError(TidelogError):
    """A new producer id has to wait until one that is remembered has been silent for long enough."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class Logs(Protocol):
    """All logs of a broker. To count them is to look at each, so it is done seldom."""

    @property
    def producer_count(self) -> int:
        """How many producers they remember together."""
        ...

    def led_producer_counts(self) -> Mapping[TopicPartition, int]:
        """How many each log remembers that this broker leads; those with none may be left out."""
        ...

    def led_log(self, name: TopicPartition) -> Log | None:
        """None if this broker does not lead the partition now."""
        ...


class ProducerRoom:
    """The bounds of one broker."""

    def __init__(self, per_partition: int, per_broker: int, logs: Logs, clock: Clock, metrics: Metrics) -> None:
        self._per_partition = per_partition
        self._per_broker = per_broker
        self._logs = logs
        self._others = _OtherPartitions(logs)
        self._clock = clock
        self._counted = 0
        self._counted_ms: int | None = None
        self._refused = metrics.counter(
            "tidelog_refused_producer_ids_total",
            "Batches of new producers that were refused: there was no room for their ids.",
        )
        self._made_room = metrics.counter(
            "tidelog_evicted_producer_ids_total", "Silent producer ids that made room for new ones."
        )

    def admit(self, producers: Producers, high_watermark: Offset) -> None:
        """A leader is about to take a first batch of a producer. TooManyProducersError if there is no room for it."""
        now_ms = self._clock.monotonic_ms()
        excess = len(producers) - self._per_partition
        if excess >= 0 or self._total(now_ms) >= self._per_broker:
            # A leader that was a follower, or whose bound was lowered, has too many: then two go for one that comes.
            wanted = 2 if excess > 0 else 1
            removed = sum(producers.forget_silent(now_ms - SILENT_MS, high_watermark) for _ in range(wanted))
            if not removed and excess < 0:
                removed = self._others.forget_silent(now_ms)
            self._made_room.add(removed)
            self._counted -= removed
            if not removed:
                self._refuse(is_partition_full=excess >= 0)
        self._counted += 1

    def _refuse(self, is_partition_full: bool) -> None:
        self._refused.add()
        name, where = "tidelog.broker.producer.ids.max", "in the partitions that this broker leads"
        if is_partition_full:
            name, where = "tidelog.partition.producer.ids.max", "of this partition"
        raise TooManyProducersError(
            f"{name}: as many producers are remembered, and none was found {where} that has been silent for "
            f"{SILENT_MS // 1000} s"
        )

    def _total(self, now_ms: int) -> int:
        """Counted now and then, and in between by what was added and removed here."""
        if self._counted_ms is None or now_ms - self._counted_ms >= _COUNT_EVERY_MS:
            self._counted, self._counted_ms = self._logs.producer_count, now_ms
        return self._counted


class _OtherPartitions:
    """Finds a silent producer among all partitions that this broker leads, those with the most producers first.

    They are ranked once in a while. A partition without a silent producer is passed over until they are ranked anew.
    If one new id would have to look at too many, it is refused, and the next one goes on where it ended: so all of them
    are looked at in the end, but never all for one id.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._ranked: list[TopicPartition] = []
        """Those that may have a silent producer, the one with the most producers last."""
        self._ranked_ms: int | None = None
        self._is_interrupted = False

    def forget_silent(self, now_ms: int) -> bool:
        """Whether one was forgotten."""
        if not self._is_interrupted and (self._ranked_ms is None or now_ms - self._ranked_ms >= _COUNT_EVERY_MS):
            counts = self._logs.led_producer_counts()
            self._ranked, self._ranked_ms = sorted(counts, key=counts.__getitem__), now_ms
        found = self._look_for_one(now_ms - SILENT_MS)
        self._is_interrupted = bool(self._ranked) and not found
        return found

    def _look_for_one(self, since_ms: int) -> bool:
        left = _LOOKED_AT_FOR_ONE
        while self._ranked and left > 0:
            log = self._logs.led_log(self._ranked[-1])
            if log is not None and log.producers.forget_silent(since_ms, log.high_watermark):
                return True
            self._ranked.pop()
            left -= _COST_OF_PARTITION + (0 if log is None else len(log.producers))
        return False
