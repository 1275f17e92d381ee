"""The records of classic groups in __consumer_offsets, and which of its partitions holds a group (S8.1, S9.1)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tidelog.errors import ErrorCode, UnsupportedVersionError, WireError
from tidelog.groups.effects import Record
from tidelog.types import java_hash
from tidelog.wire.codec import decode_from
from tidelog.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.wire.schema import Message
from tidelog.wire.stored import CONSUMER_OFFSETS, decode_versioned, encode_key, encode_versioned

OFFSET_COMMIT_VERSION = 4
EXPIRING_OFFSET_COMMIT_VERSION = 1
"""The only one with a time of expiry, which OffsetCommit v2-4 may ask for."""
GROUP_METADATA_VERSION = 3

_KIND = struct.Struct(">h")
_OFFSET_KINDS = (0, 1)
"""The key's version was its kind once: 0 and 1 are both OffsetCommitKey."""
_GROUP_KIND = 2
_NO_TIME = -1

M = TypeVar("M", bound=Message)

Stored: TypeAlias = (
    tuple[OffsetCommitKey, OffsetCommitValue | None] | tuple[GroupMetadataKey, GroupMetadataValue | None]
)


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Records of the log that no coordinator can have written."""

    count: int
    first: Exception | None
    """What is wrong with the first of them."""

    def __add__(self, other: BadRecords) -> BadRecords:
        return BadRecords(self.count + other.count, self.first or other.first)


NO_BAD_RECORDS = BadRecords(0, None)


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
    """None for records of other kinds of groups, which are of no concern here.

    WireError or UnsupportedVersionError for what is no record of this topic: clients named __admin_client may write
    anything to it.
    """
    if len(key) < _KIND.size:
        raise WireError(f"a key of {len(key)} bytes does not say what kind of record it is")
    (kind,) = _KIND.unpack_from(key)
    if kind in _OFFSET_KINDS:
        offset_key = decode_from(OffsetCommitKey, key, 0, _KIND.size)[0]
        return offset_key, None if value is None else _read_value(OffsetCommitValue, value)
    if kind == _GROUP_KIND:
        group_key = decode_from(GroupMetadataKey, key, 0, _KIND.size)[0]
        return group_key, None if value is None else _checked_group(_read_value(GroupMetadataValue, value))
    if not CONSUMER_OFFSETS.has_kind(kind):
        raise UnsupportedVersionError(f"there is no record of kind {kind} in {CONSUMER_OFFSETS.name}")
    return None


def read_good_records(records: Iterable[Record]) -> tuple[list[Stored | None], BadRecords]:
    """All that can be read of them, in their order. Whatever is wrong with one record, the others are read."""
    found: list[Stored | None] = []
    count, first = 0, None
    known: set[Record] = set()  # bad ones: a small batch may hold one of them millions of times
    for record in records:
        if record not in known:
            try:
                found.append(read_record(*record))
                continue
            except Exception as failure:
                known.add(record)
                first = first or failure
        count += 1
    return found, BadRecords(count, first)


def _read_value(message: type[M], value: bytes) -> M:
    """A version above all known may be laid out in another way, so it is not read as if it were a known one."""
    found, version = decode_versioned(message, value)
    last = message.__schema__.versions.last
    if version > last:
        raise UnsupportedVersionError(f"{message.__name__} is known up to version {last}, not {version}")
    return found


def _checked_group(value: GroupMetadataValue) -> GroupMetadataValue:
    """What a coordinator could have written: the rules of groups rely on it."""
    if value.generation < 0:
        raise WireError(f"a group has generation {value.generation}")
    member_ids, instance_ids = set(), set()
    for member in value.members:
        if member.member_id in member_ids:
            raise WireError(f"a group has two members {member.member_id!r}")
        if member.group_instance_id in instance_ids:
            raise WireError(f"a group has two members with group.instance.id {member.group_instance_id!r}")
        member_ids.add(member.member_id)
        if member.group_instance_id is not None:
            instance_ids.add(member.group_instance_id)
    return value


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
