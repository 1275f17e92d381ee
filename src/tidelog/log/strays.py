"""Strays: replicas that the controller does not name. They are set aside under another name, and kept.

Absence is no order to delete. A stray is `<topic>-<partition>.<unique>-stray`, Kafka's name for it; it comes back when
the controller names the partition again with the same topic id. Its own offsets, which otherwise stand in the
checkpoints of the log directory, are kept in a note inside it: without them deleted records would come back with it.
"""

from __future__ import annotations

import json
import logging
import os
from typing import NamedTuple

from tidelog.errors import StorageError
from tidelog.log import names
from tidelog.log.checkpoints import read_epoch_checkpoint
from tidelog.log.meta import parse_topic_id
from tidelog.ports import Disk
from tidelog.types import NO_EPOCH, Epoch, Offset, TopicPartition
from tidelog.wire.uuids import ZERO_UUID

_log = logging.getLogger(__name__)

UNREADABLE_ID = b""
"""In place of the topic id of a stray whose partition.metadata is damaged: it equals no topic's id."""


class StrayNote(NamedTuple):
    """What the checkpoints of the log directory said of the log when it was set aside."""

    partition: TopicPartition
    """The whole name; that of the directory may be cut."""
    recovery_point: Offset
    log_start_offset: Offset
    high_watermark: Offset
    cleaner_offset: Offset | None


class Stray(NamedTuple):
    path: str
    partition: TopicPartition
    topic_id: bytes
    """ZERO_UUID if the log has none."""
    size_bytes: int
    end_offset: Offset
    """At least so far the log goes; 0 if nothing is known."""
    last_epoch: Epoch = NO_EPOCH
    """The leader epoch of its last record."""

    @property
    def fullness(self) -> tuple[Epoch, Offset, str]:
        """The greatest of several strays of one partition has every committed record that another one has."""
        return self.last_epoch, self.end_offset, self.path

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_nameless(self) -> bool:
        """It may be of any topic of its name, the present one among them."""
        return self.topic_id in (ZERO_UUID, UNREADABLE_ID)


def find_strays(disk: Disk, log_directory: str) -> dict[str, Stray]:
    """By path. For a disk thread."""
    paths = [os.path.join(log_directory, name) for name in disk.list(log_directory) if names.is_stray(name)]
    found = (read_stray(disk, path) for path in paths)
    return {stray.path: stray for stray in found if stray is not None}


def read_stray(disk: Disk, path: str) -> Stray | None:
    """None if the directory is named in no way that tells a partition, or if it is gone by now."""
    partition = names.stray_partition(os.path.basename(path))
    if partition is None:
        return None
    try:
        note = read_note(disk, path)
        end_offset = 0 if note is None else note.recovery_point
        return Stray(
            path,
            partition if note is None else note.partition,
            _topic_id(disk, path),
            sum(disk.file_size(os.path.join(path, name)) for name in disk.list(path)),
            end_offset,
            _last_epoch(disk, path, end_offset),
        )
    except FileNotFoundError:
        return None  # the operator has just removed it


def _topic_id(disk: Disk, path: str) -> bytes:
    """A failed read is not caught here: it says nothing of the stray, but that the disk fails."""
    path = os.path.join(path, names.PARTITION_METADATA)
    if not disk.exists(path):
        return ZERO_UUID
    data = disk.read_file(path)
    try:
        return parse_topic_id(data, path)
    except StorageError as failure:
        _log.error("the stray %s has no readable topic id and cannot come back by itself: %s", path, failure)
        return UNREADABLE_ID


def _last_epoch(disk: Disk, path: str, end_offset: Offset) -> Epoch:
    try:
        entries = read_epoch_checkpoint(disk, os.path.join(path, names.LEADER_EPOCHS))
    except StorageError:
        return NO_EPOCH  # it is made anew from the batches when the log is opened
    return max((entry.epoch for entry in entries if entry.start_offset < end_offset), default=NO_EPOCH)


def read_note(disk: Disk, directory: str) -> StrayNote | None:
    """None if there is none, as in a log that never was a stray or that Kafka has set aside."""
    path = os.path.join(directory, names.STRAY_NOTE)
    if not disk.exists(path):
        return None
    try:
        fields = json.loads(disk.read_file(path))
        return StrayNote(
            TopicPartition(str(fields["topic"]), int(fields["partition"])),
            int(fields["recovery_point"]),
            int(fields["log_start_offset"]),
            int(fields["high_watermark"]),
            None if fields["cleaner_offset"] is None else int(fields["cleaner_offset"]),
        )
    except (ValueError, KeyError, TypeError) as failure:
        _log.error("%s is ignored, the whole log is checked instead: %r", path, failure)
        return None


def write_note(disk: Disk, directory: str, note: StrayNote) -> None:
    fields = {
        "version": 0,
        "topic": note.partition.topic,
        "partition": note.partition.partition,
        "recovery_point": note.recovery_point,
        "log_start_offset": note.log_start_offset,
        "high_watermark": note.high_watermark,
        "cleaner_offset": note.cleaner_offset,
    }
    disk.write_file(os.path.join(directory, names.STRAY_NOTE), json.dumps(fields).encode())


def remove_note(disk: Disk, directory: str) -> None:
    path = os.path.join(directory, names.STRAY_NOTE)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def move(disk: Disk, source: str, target: str) -> bool:
    """Rename a directory within its log directory, so that it outlives a power loss. False if the source is gone."""
    try:
        disk.rename(source, target)
    except FileNotFoundError:
        return False
    disk.sync_directory(os.path.dirname(target))
    return True


def discard(disk: Disk, stray: Stray) -> bool:
    """The operator's word. Renamed first: what is half removed when the process dies is no stray, and a broker that
    takes it back at the same moment has it whole or not at all. False if it is gone."""
    target = stray.path.removesuffix(names.STRAY_DIRECTORY) + names.DELETE_DIRECTORY
    if not move(disk, stray.path, target):
        return False
    disk.remove_directory(target)
    return True
