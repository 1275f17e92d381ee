"""What members of a classic group tell each other, as bytes: subscriptions and assignments.

The coordinator passes them on unread, so any client that calls itself a consumer can read ours, and we theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.client.leaders import by_topic
from tidelog.errors import WireError
from tidelog.groups.assignors import STICKY, Assignor, Subscription
from tidelog.types import Buffer, TopicPartition
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from tidelog.wire.schema import Message, array, int32
from tidelog.wire.stored import decode_versioned, encode_versioned

PROTOCOL_TYPE = "consumer"
_VERSION = 3


class _StickyUserData(Message, kind="data", versions="0-1"):
    """What the sticky assignor sends along: its members give up everything before they join, and so own nothing."""

    previous_assignment: list[ConsumerProtocolAssignmentTopicPartition] = array(
        ConsumerProtocolAssignmentTopicPartition, "0+"
    )
    generation: int = int32("1+", default=-1)


def encode_subscription(subscription: Subscription, previous: Sequence[TopicPartition] | None = None) -> bytes:
    """What the member holds while it joins; for the sticky assignor also what it held before."""
    user_data = None
    if previous is not None:
        user_data = encode(
            _StickyUserData(
                previous_assignment=[
                    ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
                    for topic, numbers in by_topic(previous).items()
                ],
                generation=subscription.generation,
            ),
            1,
        )
    message = ConsumerProtocolSubscription(
        topics=list(subscription.topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(subscription.owned).items()
        ],
        generation_id=subscription.generation,
    )
    return encode_versioned(message, _VERSION)


def decode_subscription(data: Buffer, assignor: Assignor, instance_id: str | None) -> Subscription:
    message, _ = decode_versioned(ConsumerProtocolSubscription, data)
    if assignor is not STICKY:
        owned = [TopicPartition(one.topic, number) for one in message.owned_partitions for number in one.partitions]
        return Subscription(message.topics, owned, message.generation_id, instance_id)
    had = _previous(message.user_data)
    owned = [TopicPartition(one.topic, number) for one in had.previous_assignment for number in one.partitions]
    return Subscription(message.topics, owned, had.generation, instance_id)


def _previous(user_data: bytes | None) -> _StickyUserData:
    """Old clients write no generation; what cannot be read is as good as nothing."""
    for version in (1, 0):
        try:
            return decode(_StickyUserData, user_data or b"", version)
        except WireError:
            continue
    return _StickyUserData()


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(sorted(partitions)).items()
        ]
    )
    return encode_versioned(message, _VERSION)


def decode_assignment(data: Buffer) -> list[TopicPartition]:
    """Sorted; no bytes are no partitions."""
    if not data:
        return []
    message, _ = decode_versioned(ConsumerProtocolAssignment, data)
    return sorted(TopicPartition(one.topic, number) for one in message.assigned_partitions for number in one.partitions)
