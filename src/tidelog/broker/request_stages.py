"""How many requests there were, and how long they spent where, by Kafka's names (S7.5)."""

from __future__ import annotations

from typing import TypeAlias

from tidelog.metrics import Counter, Metrics, Summary
from tidelog.ports import Clock

_NS_PER_MS = 1e6
_MOST_NOTED = 256
FETCH, FETCH_OF_CONSUMER, FETCH_OF_FOLLOWER = "Fetch", "FetchConsumer", "FetchFollower"
"""As Kafka calls them."""
_PREFIX = "kafka_network_requestmetrics_"
_STAGES = (
    ("requestqueuetimems", "Time in ms that requests waited in the queue."),
    ("localtimems", "Time in ms that the broker worked on requests until they were handled or had to wait."),
    ("remotetimems", "Time in ms that requests waited for something, such as followers or new records."),
    ("responsequeuetimems", "Time in ms that answers waited until they were on their way."),
    ("totaltimems", "Time in ms from the arrival of requests until their answers were on their way."),
)

Noted: TypeAlias = tuple[int, int, int, int, int]
"""When a request arrived, was taken, handled, answered and sent, in ns."""


class RequestTimes:
    """Of all kinds of requests. Kafka's ResponseSendTimeMs is in none of them: the kernel sends an answer later."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._requests = metrics.counters(
            _PREFIX + "requests_total", "Requests that were answered, by kind and version.", "request", "version"
        )
        self._stages = [
            metrics.summaries(_PREFIX + name, help_text, "request", now_ns=clock.monotonic_ns)
            for name, help_text in _STAGES
        ]

        for stage in self._stages:
            stage.together([(FETCH_OF_CONSUMER,), (FETCH_OF_FOLLOWER,)], FETCH)

    def of(self, request: str, version: int, *, is_follower: bool) -> RequestStages:
        """Asked for once for each kind and version. All versions share the summaries. Fetches of consumers and of
        followers are told apart, and shown together as well."""
        counts = [self._requests.of(request, str(version))]
        if request == FETCH:
            request = FETCH_OF_FOLLOWER if is_follower else FETCH_OF_CONSUMER
            counts.append(self._requests.of(request, str(version)))
        stages = RequestStages(counts, [stage.of(request) for stage in self._stages])
        self._metrics.before_reading(stages.sort)
        return stages


class RequestStages:
    """The times of requests of one kind and version.

    Times are noted as they come and sorted into the summaries now and then, and before somebody looks at them.
    """

    __slots__ = ("_counts", "_noted", "_summaries")

    def __init__(self, counts: list[Counter], summaries: list[Summary]) -> None:
        self._counts = counts
        self._summaries = summaries
        self._noted: list[Noted] = []

    def note(self, noted: Noted) -> None:
        self._noted.append(noted)
        if len(self._noted) >= _MOST_NOTED:
            self.sort()

    def sort(self) -> None:
        queue, local, remote, response, total = self._summaries
        noted = self._noted
        queue.observe_all([(taken_ns - arrived_ns) / _NS_PER_MS for arrived_ns, taken_ns, _, _, _ in noted])
        local.observe_all([(handled_ns - taken_ns) / _NS_PER_MS for _, taken_ns, handled_ns, _, _ in noted])
        remote.observe_all([(answered_ns - handled_ns) / _NS_PER_MS for _, _, handled_ns, answered_ns, _ in noted])
        response.observe_all([(sent_ns - answered_ns) / _NS_PER_MS for _, _, _, answered_ns, sent_ns in noted])
        total.observe_all([(sent_ns - arrived_ns) / _NS_PER_MS for arrived_ns, _, _, _, sent_ns in noted])
        for count in self._counts:
            count.add(len(noted))
        noted.clear()
