"""What a reader asks for: its settings, and the request that a step of its fetch session becomes."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.fetch_session import FetchStep
from tidelog.client.offsets import Isolation
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchRequestForgottenTopic, FetchTopic
from tidelog.wire.uuids import ZERO_UUID


class FetchSettings(NamedTuple):
    """By Kafka's names and defaults."""

    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    out_of_range: int | None = None
    """Where to go on if a position is outside of the log: EARLIEST, LATEST, or None: that is an error."""


DEFAULT_FETCH = FetchSettings()


def fetch_request(step: FetchStep, settings: FetchSettings) -> FetchRequest:
    """What one step of a fetch session asks for."""
    topics: dict[str, FetchTopic] = {}
    for (name, number), want in step.changed.items():
        topic = topics.setdefault(name, FetchTopic(topic=name, topic_id=want.topic_id, partitions=[]))
        topic.partitions.append(
            FetchPartition(
                partition=number,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.fetch_offset,
                partition_max_bytes=settings.max_partition_fetch_bytes,
            )
        )
    forgotten: dict[bytes | str, FetchRequestForgottenTopic] = {}
    for (name, number), before in step.forgotten.items():
        topic_id = before.topic_id
        gone = forgotten.setdefault(
            topic_id if topic_id != ZERO_UUID else name,
            FetchRequestForgottenTopic(topic=name, topic_id=topic_id, partitions=[]),
        )
        gone.partitions.append(number)
    return FetchRequest(
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        isolation_level=settings.isolation,
        session_id=step.session_id,
        session_epoch=step.session_epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )
