"""What is counted by topic: records and bytes in, bytes out; and refused batches by error."""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.metrics import Counter, Metrics

_PREFIX = "kafka_server_broker_topic_metrics_"


class _OfTopic:
    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self, metrics: Metrics, topic: str) -> None:
        self.messages_in: Counter = metrics.counter(_PREFIX + "messages_in_total", topic=topic)
        self.bytes_in: Counter = metrics.counter(_PREFIX + "bytes_in_total", topic=topic)
        self.bytes_out: Counter = metrics.counter(_PREFIX + "bytes_out_total", topic=topic)


class TopicCounts:
    """Counters by topic, made when a topic is first used."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._topics: dict[str, _OfTopic] = {}

    def _of(self, topic: str) -> _OfTopic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _OfTopic(self._metrics, topic)
        return found

    def written(self, topic: str, size: int, records: int) -> None:
        counts = self._of(topic)
        counts.bytes_in.value += size
        counts.messages_in.value += records

    def read(self, topic: str, size: int) -> None:
        self._of(topic).bytes_out.value += size

    def refused(self, code: ErrorCode) -> None:
        """A batch of a produce was not appended."""
        self._metrics.counter("tidelog_refused_batches_total", error=code.name).add()

    def forget(self, topic: str) -> None:
        """It was deleted."""
        if self._topics.pop(topic, None) is not None:
            for name in ("messages_in_total", "bytes_in_total", "bytes_out_total"):
                self._metrics.remove(_PREFIX + name, topic=topic)
