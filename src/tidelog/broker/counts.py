"""What is counted by topic, by the names of Kafka's BrokerTopicMetrics; and refused batches by error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tidelog.errors import ErrorCode
from tidelog.metrics import COUNTER, Found, Metrics

_PREFIX = "kafka_server_brokertopicmetrics_"
_BY_TOPIC = {
    "messages_in": ("messagesin_total", "Records that producers have written; without a topic: to all topics."),
    "bytes_in": ("bytesin_total", "Bytes of batches that producers have written; without a topic: to all topics."),
    "bytes_out": ("bytesout_total", "Bytes of batches that consumers were sent; without a topic: of all topics."),
    "produces": (
        "totalproducerequests_total",
        "Partitions that producers wanted to write to, once for each request; without a topic: of all topics.",
    ),
    "failed_produces": (
        "failedproducerequests_total",
        "Partitions of produces that failed in a way that no client causes or expects; without a topic: of all topics.",
    ),
    "fetches": (
        "totalfetchrequests_total",
        "Partitions that were looked at for consumers and followers, once for each answer; without a topic: of all.",
    ),
    "failed_fetches": (
        "failedfetchrequests_total",
        "Partitions of fetches that failed in a way that no client causes or expects; without a topic: of all topics.",
    ),
}
_EXPECTED_OF_PRODUCE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
_EXPECTED_OF_FETCH = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Kafka does not count these as failures either."""
_NO_TOPIC = ""


class _OfTopic:
    __slots__ = tuple(_BY_TOPIC)

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self.produces = self.failed_produces = self.fetches = self.failed_fetches = 0


class TopicCounts:
    """Counters by topic, made when a topic is first used. Totals are added up when somebody looks."""

    def __init__(self, metrics: Metrics) -> None:
        self._topics: dict[str, _OfTopic] = {}
        self._others = _OfTopic()
        """What was counted for topics that are gone, that this broker does not hold, or that could not be read."""
        for attribute, (name, help_text) in _BY_TOPIC.items():
            metrics.series(_PREFIX + name, help_text, ("topic",), self._reader(attribute), COUNTER)
        self._copied_in = metrics.counter(
            _PREFIX + "replicationbytesin_total", "Bytes of batches that this broker has copied from leaders."
        )
        self._copied_out = metrics.counter(
            _PREFIX + "replicationbytesout_total", "Bytes of batches that followers were sent."
        )
        self._refused = metrics.counters(
            "tidelog_refused_batches_total", "Batches of producers that were not written, by error.", "error"
        )

    def _reader(self, attribute: str) -> Callable[[], Iterator[Found]]:
        return partial(self._counted, attribute)

    def _counted(self, attribute: str) -> Iterator[Found]:
        counted = [(topic, getattr(counts, attribute)) for topic, counts in self._topics.items()]
        yield (_NO_TOPIC,), getattr(self._others, attribute) + sum(count for _, count in counted)
        for topic, count in counted:
            yield (topic,), count

    def _of(self, topic: str | None) -> _OfTopic:
        if topic is None:
            return self._others
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _OfTopic()
        return found

    def written(self, topic: str, size: int, records: int) -> None:
        counts = self._topics.get(topic) or self._of(topic)
        counts.produces += 1
        counts.bytes_in += size
        counts.messages_in += records

    def refused(self, topic: str | None, code: ErrorCode) -> None:
        """A batch of a produce was not appended. `topic` is None if this broker does not hold the partition."""
        counts = self._of(topic)
        counts.produces += 1
        counts.failed_produces += code not in _EXPECTED_OF_PRODUCE
        self._refused.of(code.name).add()

    def read(self, topic: str | None, size: int, code: int) -> None:
        """A partition was looked at for a consumer. `topic` is None if nothing of it could be read."""
        counts = self._of(topic)
        counts.fetches += 1
        counts.bytes_out += size
        if code:
            counts.failed_fetches += code not in _EXPECTED_OF_FETCH

    def read_by_follower(self, topic: str | None, size: int, code: int) -> None:
        self._copied_out.value += size
        self.read(topic, 0, code)

    def copied(self, size: int) -> None:
        """This broker has appended what a leader sent."""
        self._copied_in.value += size

    def forget(self, topic: str) -> None:
        """It was deleted. What was counted stays in the totals, which never fall."""
        gone = self._topics.pop(topic, None)
        if gone is not None:
            for attribute in _BY_TOPIC:
                setattr(self._others, attribute, getattr(self._others, attribute) + getattr(gone, attribute))
