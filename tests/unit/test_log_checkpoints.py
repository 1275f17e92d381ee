"""Kafka's checkpoint files, byte for byte as Kafka 3.9 writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.errors import ErrorCode, StorageError
from tidelog.host.disk import RealDisk
from tidelog.log.checkpoints import (
    format_epochs,
    format_offsets,
    parse_epochs,
    parse_offsets,
    read_epoch_checkpoint,
    read_offset_checkpoint,
    write_epoch_checkpoint,
    write_offset_checkpoint,
)
from tidelog.log.epochs import EpochEntry
from tidelog.types import TopicPartition

OFFSETS_OF_KAFKA = b"0\n2\na.b-c_d 3 17\n__consumer_offsets 49 0\n"
EPOCHS_OF_KAFKA = b"0\n2\n0 0\n4 120\n"


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk()
    yield disk
    disk.close()


def test_offsets_as_kafka_writes_them() -> None:
    offsets = parse_offsets(OFFSETS_OF_KAFKA, "file")
    assert offsets == {TopicPartition("a.b-c_d", 3): 17, TopicPartition("__consumer_offsets", 49): 0}


def test_offsets_are_written_sorted_so_that_equal_contents_are_equal_bytes() -> None:
    offsets = {TopicPartition("b", 0): 5, TopicPartition("a", 10): 2**62, TopicPartition("a", 9): 0}
    assert format_offsets(offsets) == b"0\n3\na 9 0\na 10 4611686018427387904\nb 0 5\n"
    assert parse_offsets(format_offsets(offsets), "file") == offsets


def test_epochs_as_kafka_writes_them() -> None:
    entries = [EpochEntry(0, 0), EpochEntry(4, 120)]
    assert parse_epochs(EPOCHS_OF_KAFKA, "file") == entries
    assert format_epochs(entries) == EPOCHS_OF_KAFKA


@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n", b"0\n0"], ids=repr)
def test_no_entries(data: bytes) -> None:
    """Kafka makes the file before it has anything to write into it."""
    assert parse_offsets(data, "file") == {}


def test_nothing_to_write() -> None:
    assert format_offsets({}) == format_epochs([]) == b"0\n0\n"


MALFORMED = {
    "another version": (b"1\n0\n", "dir/file, line 1: version 1 is unknown, expected 0"),
    "no number": (b"zero\n0\n", "dir/file, line 1: 'zero' is malformed"),
    "no count": (b"0\nmany\n", "dir/file, line 2: 'many' is malformed"),
    "a word too few": (b"0\n1\ntopic 5\n", "dir/file, line 3: 'topic 5' is malformed"),
    "a word too many": (b"0\n2\ntopic 0 5\nto pic 0 5\n", "dir/file, line 4: 'to pic 0 5' is malformed"),
    "an offset that is none": (b"0\n1\ntopic 0 five\n", "dir/file, line 3: 'topic 0 five' is malformed"),
    "cut short": (b"0\n2\ntopic 0 5\n", "dir/file, line 2: 2 entries are announced, 1 are there"),
    "too long": (b"0\n0\ntopic 0 5\n", "dir/file, line 2: 0 entries are announced, 1 are there"),
    "an empty line": (b"0\n1\n\ntopic 0 5\n", "dir/file, line 3: '' is malformed"),
    "zeros, as a torn file has them": (b"\0\0\0\0", "dir/file, line 1: "),
    "no text": (b"0\n1\n\xff\xfe 0 5\n", "dir/file is not text"),
}


@pytest.mark.parametrize(("data", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_offsets_name_file_and_line(data: bytes, message: str) -> None:
    with pytest.raises(StorageError) as caught:
        parse_offsets(data, "dir/file")
    assert message in str(caught.value)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_malformed_epochs_name_file_and_line() -> None:
    with pytest.raises(StorageError, match=r"dir/file, line 3: '1 2 3' is malformed"):
        parse_epochs(b"0\n1\n1 2 3\n", "dir/file")


def test_files(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    assert read_offset_checkpoint(disk, path) == {}
    for offset in (1, 22):
        write_offset_checkpoint(disk, path, {TopicPartition("t", 0): offset})
        assert read_offset_checkpoint(disk, path) == {TopicPartition("t", 0): offset}

    path = str(tmp_path / "leader-epoch-checkpoint")
    assert read_epoch_checkpoint(disk, path) == []
    write_epoch_checkpoint(disk, path, [EpochEntry(0, 0), EpochEntry(4, 120)])
    assert Path(path).read_bytes() == EPOCHS_OF_KAFKA
    assert read_epoch_checkpoint(disk, path) == [(0, 0), (4, 120)]


def test_a_malformed_file_is_named(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_bytes(b"0\n1\nhalf")
    with pytest.raises(StorageError, match=r"replication-offset-checkpoint, line 3: 'half'"):
        read_offset_checkpoint(disk, str(path))
