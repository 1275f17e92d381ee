"""How long requests spend where, by Kafka's names (S7.5)."""

from __future__ import annotations

from tidelog.metrics import Metrics

_NS_PER_MS = 1e6
_MOST_NOTED = 256
_STAGES = (
    "request_queue_time_ms",
    "local_time_ms",
    "remote_time_ms",
    "response_queue_time_ms",
    "total_time_ms",
)


class RequestStages:
    """The times of requests of one kind.

    Times are noted as they come and sorted into the histograms now and then, and before somebody looks at them.
    """

    __slots__ = ("_histograms", "_noted", "note")

    def __init__(self, metrics: Metrics, request: str) -> None:
        prefix = "kafka_network_request_metrics_"
        self._histograms = [metrics.histogram(prefix + name, request=request) for name in _STAGES]
        self._noted: list[tuple[int, int, int, int, int]] = []
        self.note = self._noted.append
        """When it arrived, was taken, handled, answered, sent."""
        metrics.before_reading(self.sort)

    @property
    def is_due(self) -> bool:
        return len(self._noted) >= _MOST_NOTED

    def sort(self) -> None:
        queue, local, remote, response, total = self._histograms
        for arrived_ns, taken_ns, handled_ns, answered_ns, sent_ns in self._noted:
            queue.observe((taken_ns - arrived_ns) / _NS_PER_MS)
            local.observe((handled_ns - taken_ns) / _NS_PER_MS)
            remote.observe((answered_ns - handled_ns) / _NS_PER_MS)
            response.observe((sent_ns - answered_ns) / _NS_PER_MS)
            total.observe((sent_ns - arrived_ns) / _NS_PER_MS)
        self._noted.clear()
