"""The topic id of a topic that StopReplica deletes.

Kafka's StopReplica names topics only, and two topics may have had the same name: a broker that deletes strays has to
know which of them goes (edge case 35). The id travels as a tagged field that Kafka's definition does not have: Kafka's
brokers skip it (KIP-482), and the requests of Kafka's controllers come without it. A topic may be deleted because its
node cannot be read: then its id is not known, and the tag is empty.
"""

from __future__ import annotations

from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import StopReplicaTopicState

_TOPIC_ID_TAG = 0x7469
"""The letters "ti". Kafka numbers the tags of a message from 0 on."""
UNREADABLE_ID = b""


def set_topic_id(topic: StopReplicaTopicState, topic_id: bytes) -> None:
    topic.set_unknown_tagged_field(_TOPIC_ID_TAG, topic_id)


def topic_id_of(topic: StopReplicaTopicState) -> bytes:
    """ZERO_UUID if the request does not tell it, UNREADABLE_ID if the controller does not know it either."""
    for tag, content in topic.unknown_tagged_fields:
        if tag == _TOPIC_ID_TAG and len(content) in (len(UNREADABLE_ID), len(ZERO_UUID)):
            return bytes(content)
    return ZERO_UUID
