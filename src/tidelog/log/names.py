"""What the files and directories of a log are called: Kafka's names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tidelog.types import Offset, TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED = ".deleted"
"""Out of the log, waiting for its delay to be removed."""
CLEANED = ".cleaned"
"""Written by a cleaning that is not finished: worth nothing after a crash."""
SWAP = ".swap"
"""Written by a cleaning that is finished: after a crash it takes the place of what it was made from."""

DELETE_DIRECTORY = "-delete"
FUTURE_DIRECTORY = "-future"
STRAY_DIRECTORY = "-stray"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
STRAY_NOTE = "stray-checkpoint"
"""In a stray: what the checkpoints of the log directory said of it. Kafka has no such file, and ignores it."""
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_NOTE = ".tidelog_boot"
LOCK = ".lock"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"

LOST_AND_FOUND = "lost+found"
"""In the root of a file system that was just made."""
_TEMPORARY = ".tmp"
_BEFORE_USE = {
    LOCK,
    META_PROPERTIES,
    META_PROPERTIES + _TEMPORARY,
    BOOT_NOTE + _TEMPORARY,
    RECOVERY_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    CLEANER_OFFSETS,
    LOST_AND_FOUND,
}

_MAX_NAME = 255


def segment_path(directory: str, base_offset: Offset, suffix: str) -> str:
    return os.path.join(directory, f"{base_offset:020d}{suffix}")


def base_offset_of(name: str) -> Offset | None:
    """The offset a segment's file is named after, or None if it is no such file."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory this is. Not one: a deleted, future or stray one, or anything else."""
    if name.endswith((DELETE_DIRECTORY, FUTURE_DIRECTORY, STRAY_DIRECTORY)):
        return None
    topic, dash, number = name.rpartition("-")
    if not (dash and topic and number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def is_unused(found: Iterable[str]) -> bool:
    """Whether a log directory holds only what it holds before its first boot note is written. A start that is
    interrupted leaves checkpoints too; the caller has to check that they name no partition."""
    return _BEFORE_USE.issuperset(found)


def is_stray(name: str) -> bool:
    return name.endswith(STRAY_DIRECTORY)


def stray_partition(name: str) -> TopicPartition | None:
    """The partition that a stray's directory is named after; a long topic is cut."""
    return partition_of(name.removesuffix(STRAY_DIRECTORY).rpartition(".")[0])


def is_aside(partition: TopicPartition, found: Iterable[str]) -> bool:
    """Whether one of these directories is that partition, deleted or set aside; a long topic is cut in its name."""
    for name in found:
        for suffix in (DELETE_DIRECTORY, STRAY_DIRECTORY):
            unique = name.removesuffix(suffix).rpartition(".")[2]
            if name.endswith(suffix) and name == aside(partition, unique, suffix):
                return True
    return False


def aside(partition: TopicPartition, unique: str, suffix: str) -> str:
    """`topic-partition.unique-delete` or `-stray`; a long topic is cut, because file systems end names at 255 bytes."""
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: _MAX_NAME - len(tail)] + tail
