"""The records of classic groups in __consumer_offsets, and which of its partitions holds a group (S8.1, S9.1)."""

from __future__ import annotations

import struct
from typing import TypeAlias

from tidelog.errors import ErrorCode
from tidelog.groups.effects import Record
from tidelog.types import java_hash
from tidelog.wire.codec import decode_from
from tidelog.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.wire.stored import decode_versioned, encode_key, encode_versioned

OFFSET_COMMIT_VERSION = 4
EXPIRING_OFFSET_COMMIT_VERSION = 1
"""The only one with a time of expiry, which OffsetCommit v2-4 may ask for."""
GROUP_METADATA_VERSION = 3

_KIND = struct.Struct(">h")
_OFFSET_KINDS = (0, 1)
"""The key's version was its kind once: 0 and 1 are both OffsetCommitKey."""
_GROUP_KIND = 2
_NO_TIME = -1

Stored: TypeAlias = (
    tuple[OffsetCommitKey, OffsetCommitValue | None] | tuple[GroupMetadataKey, GroupMetadataValue | None]
)


def partition_of(group_id: str, partitions: int) -> int:
    """The partition of __consumer_offsets whose leader coordinates the group: Java's hash, without its sign."""
    value = java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partitions


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue | None) -> Record:
    key = encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))
    if value is None:
        return key, None
    version = OFFSET_COMMIT_VERSION if value.expire_timestamp == _NO_TIME else EXPIRING_OFFSET_COMMIT_VERSION
    return key, encode_versioned(value, version)


def group_record(group_id: str, value: GroupMetadataValue | None) -> Record:
    key = encode_key(GroupMetadataKey(group=group_id))
    return key, None if value is None else encode_versioned(value, GROUP_METADATA_VERSION)


def read_record(key: bytes, value: bytes | None) -> Stored | None:
    """None for records of other kinds of groups, and of none, which are of no concern here."""
    if len(key) < _KIND.size:
        return None
    (kind,) = _KIND.unpack_from(key)
    if kind in _OFFSET_KINDS:
        offset_key = decode_from(OffsetCommitKey, key, 0, _KIND.size)[0]
        return offset_key, None if value is None else decode_versioned(OffsetCommitValue, value)[0]
    if kind == _GROUP_KIND:
        group_key = decode_from(GroupMetadataKey, key, 0, _KIND.size)[0]
        return group_key, None if value is None else decode_versioned(GroupMetadataValue, value)[0]
    return None


_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answered_error(append_error: int) -> int:
    """What a client is told when the append failed: it knows of coordinators, not of their log."""
    return _APPEND_ERRORS.get(ErrorCode(append_error), append_error)
