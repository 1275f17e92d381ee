"""Messages that carry their version with them: the records of Kafka's internal topics, and the consumer protocol.

The key of such a record begins with two bytes that say which record it is, its value with two bytes of version.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TypeVar

from tidelog.errors import UnsupportedVersionError, WireError
from tidelog.types import Buffer
from tidelog.wire.api import message_class
from tidelog.wire.codec import decode, decode_from, encode
from tidelog.wire.schema import Message

_INT16 = struct.Struct(">h")
_KEY_VERSION = 0

M = TypeVar("M", bound=Message)


def encode_versioned(message: Message, version: int) -> bytes:
    """The version in two bytes, then the message: a record's value, a subscription, an assignment."""
    return _INT16.pack(version) + encode(message, version)


def decode_versioned(message: type[M], data: Buffer) -> tuple[M, int]:
    """The message and the version it was written in.

    What a later version adds stands at the end, so a version above all known is read as the last known one.
    """
    version = _leading_int16(data)
    known = message.__schema__.versions
    if version < known.first:
        raise UnsupportedVersionError(f"{message.__name__} has versions {known}, not {version}")
    return decode_from(message, data, min(version, known.last), _INT16.size)[0], version


def encode_key(key: Message) -> bytes:
    """The key of a record in an internal topic."""
    return _INT16.pack(key.__schema__.api_key) + encode(key, _KEY_VERSION)


class InternalTopic:
    """The kinds of records in one of Kafka's own topics."""

    def __init__(self, name: str, *records: str) -> None:
        self.name = name
        self._records = records

    @cached_property
    def _classes(self) -> dict[int, tuple[type[Message], type[Message]]]:
        pairs = [(message_class(record + "Key"), message_class(record + "Value")) for record in self._records]
        return {key.__schema__.api_key: (key, value) for key, value in pairs}

    def has_kind(self, kind: int) -> bool:
        """Whether keys of records in this topic begin with that number."""
        return kind in self._classes

    def decode_key(self, data: Buffer) -> Message:
        """UnsupportedVersionError for a record of a kind that is not known, as from a later release."""
        kind = _leading_int16(data)
        if kind not in self._classes:
            raise UnsupportedVersionError(f"{self.name} has no records of type {kind}")
        return decode(self._classes[kind][0], memoryview(data)[_INT16.size :], _KEY_VERSION)

    def decode_value(self, key: Message, data: Buffer) -> Message:
        """The value that stands beside the key."""
        value = self._classes[key.__schema__.api_key][1]
        return decode(value, memoryview(data)[_INT16.size :], _leading_int16(data))


CONSUMER_OFFSETS = InternalTopic(
    "__consumer_offsets",
    "LegacyOffsetCommit",
    "OffsetCommit",
    "GroupMetadata",
    "ConsumerGroupMetadata",
    "ConsumerGroupPartitionMetadata",
    "ConsumerGroupMemberMetadata",
    "ConsumerGroupTargetAssignmentMetadata",
    "ConsumerGroupTargetAssignmentMember",
    "ConsumerGroupCurrentMemberAssignment",
    "ShareGroupPartitionMetadata",
    "ShareGroupMemberMetadata",
    "ShareGroupMetadata",
    "ShareGroupTargetAssignmentMetadata",
    "ShareGroupTargetAssignmentMember",
    "ShareGroupCurrentMemberAssignment",
    "ShareGroupStatePartitionMetadata",
    "ConsumerGroupRegularExpression",
    "StreamsGroupMetadata",
    "StreamsGroupMemberMetadata",
    "StreamsGroupTargetAssignmentMetadata",
    "StreamsGroupTargetAssignmentMember",
    "StreamsGroupCurrentMemberAssignment",
    "StreamsGroupTopology",
)
TRANSACTION_STATE = InternalTopic("__transaction_state", "TransactionLog")
SHARE_GROUP_STATE = InternalTopic("__share_group_state", "ShareSnapshot", "ShareUpdate")


def _leading_int16(data: Buffer) -> int:
    if len(data) < _INT16.size:
        raise WireError(f"{len(data)} bytes are too few for a version")
    number: int = _INT16.unpack_from(data)[0]
    return number
