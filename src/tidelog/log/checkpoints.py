"""Kafka's checkpoint files: a version, a count, then a line per entry.

They are small, and are replaced as a whole so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.errors import StorageError
from tidelog.log.epochs import EpochEntry
from tidelog.ports import Disk
from tidelog.types import Offset, TopicPartition

_VERSION = 0

Entry = TypeVar("Entry")


def parse_offsets(data: bytes, name: str) -> dict[TopicPartition, Offset]:
    """An offset per partition, as in recovery-point-offset-checkpoint. `name` is for the error."""
    return dict(_parse(data, name, _offset_entry))


def format_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    """Sorted, so that equal contents are equal bytes."""
    return _format(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def parse_epochs(data: bytes, name: str) -> list[EpochEntry]:
    """The lines of leader-epoch-checkpoint, in their order.

    The file may know too much: forgetting may be written late, so whoever opens a log cuts the epochs to its start
    and end. It never knows too little: a new entry is written and synced at once (S4.2).
    """
    return _parse(data, name, _epoch_entry)


def format_epochs(entries: Iterable[EpochEntry]) -> bytes:
    return _format(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def read_offset_checkpoint(disk: Disk, path: str) -> dict[TopicPartition, Offset]:
    """Without the file nothing is known: empty."""
    return parse_offsets(_read(disk, path), path)


def write_offset_checkpoint(disk: Disk, path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    disk.write_file(path, format_offsets(offsets))


def read_epoch_checkpoint(disk: Disk, path: str) -> list[EpochEntry]:
    return parse_epochs(_read(disk, path), path)


def write_epoch_checkpoint(disk: Disk, path: str, entries: Iterable[EpochEntry]) -> None:
    disk.write_file(path, format_epochs(entries))


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return b""


def _offset_entry(words: list[str]) -> tuple[TopicPartition, Offset]:
    topic, partition, offset = words
    return TopicPartition(topic, int(partition)), int(offset)


def _epoch_entry(words: list[str]) -> EpochEntry:
    epoch, start_offset = words
    return EpochEntry(int(epoch), int(start_offset))


def _format(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "\n".join([str(_VERSION), str(len(body)), *body, ""]).encode()


def _parse(data: bytes, name: str, entry: Callable[[list[str]], Entry]) -> list[Entry]:
    """An empty file has no entries: that is how Kafka creates them."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as failure:
        raise StorageError(f"checkpoint {name} is not text: {failure}") from failure
    head: list[int] = []
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        try:
            if number <= 2:
                head.append(int(line))
            else:
                entries.append(entry(line.split()))
        except ValueError as failure:
            raise StorageError(f"checkpoint {name}, line {number}: {line!r} is malformed") from failure
    if head and head[0] != _VERSION:
        raise StorageError(f"checkpoint {name}, line 1: version {head[0]} is unknown, expected {_VERSION}")
    if len(head) == 2 and len(entries) != head[1]:
        raise StorageError(f"checkpoint {name}, line 2: {head[1]} entries are announced, {len(entries)} are there")
    return entries
