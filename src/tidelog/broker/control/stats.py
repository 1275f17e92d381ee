"""What a broker that is controller has to show: counts, over all its terms, and facts of the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.controller.events import Outcome
from tidelog.controller.image import Image
from tidelog.ports import Clock

_NS_PER_MS = 1e6


class ControlFacts(NamedTuple):
    """What the controller shows as gauges."""

    global_topic_count: int
    global_partition_count: int
    offline_partitions_count: int
    preferred_replica_imbalance_count: int
    reassigning_partitions: int


class ControlStats:
    """Kafka's ControllerStats. Numbers only grow."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.elections = 0
        """Partitions that got another leader."""
        self.unclean_elections = 0
        """Those of them whose leader was not in sync (UncleanLeaderElectionsPerSec)."""
        self.on_election: Callable[[float], None] = _ignore
        """Called with the time in ms that an event took which elected leaders (LeaderElectionRateAndTimeMs)."""

    def count(self, outcome: Outcome, started_ns: int) -> None:
        """An event's outcome is written."""
        self.elections += outcome.elections
        self.unclean_elections += len(outcome.unclean)
        if outcome.elections:
            self.on_election((self.clock.monotonic_ns() - started_ns) / _NS_PER_MS)


def facts_of(image: Image | None) -> ControlFacts:
    """All zero without an image. Goes through all partitions: for gauges, not for decisions."""
    if image is None:
        return ControlFacts(0, 0, 0, 0, 0)
    return ControlFacts(
        len(image.topics),
        sum(len(topic.assignments) for topic in image.topics.values()),
        image.offline_partitions,
        image.preferred_replica_imbalance,
        sum(1 for _ in image.reassigning()),
    )


def _ignore(_ms: float) -> None:
    pass
