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

    __slots__ = ("_histograms", "_noted")

    def __init__(self, metrics: Metrics, request: str) -> None:
        prefix = "kafka_network_request_metrics_"
        self._histograms = [metrics.histogram(prefix + name, request=request) for name in _STAGES]
        self._noted: list[tuple[int, int, int, int, int]] = []
        metrics.before_reading(self.sort)

    def note(self, times_ns: tuple[int, int, int, int, int]) -> None:
        """When it arrived, was taken, handled, answered, sent."""
        self._noted.append(times_ns)
        if len(self._noted) >= _MOST_NOTED:
            self.sort()

    def sort(self) -> None:
        queue, local, remote, response, total = self._histograms
        noted = self._noted
        queue.observe_all([(taken_ns - arrived_ns) / _NS_PER_MS for arrived_ns, taken_ns, _, _, _ in noted])
        local.observe_all([(handled_ns - taken_ns) / _NS_PER_MS for _, taken_ns, handled_ns, _, _ in noted])
        remote.observe_all([(answered_ns - handled_ns) / _NS_PER_MS for _, _, handled_ns, answered_ns, _ in noted])
        response.observe_all([(sent_ns - answered_ns) / _NS_PER_MS for _, _, _, answered_ns, sent_ns in noted])
        total.observe_all([(sent_ns - arrived_ns) / _NS_PER_MS for arrived_ns, _, _, _, sent_ns in noted])
        noted.clear()
