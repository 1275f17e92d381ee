"""meta.properties, partition.metadata and the clean shutdown note, as Kafka 3.9 reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.errors import StorageError
from tidelog.host.disk import RealDisk
from tidelog.log.meta import (
    CleanShutdown,
    MetaProperties,
    format_clean_shutdown,
    format_meta_properties,
    format_topic_id,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_topic_id,
    read_clean_shutdown,
    read_meta_properties,
    read_topic_id,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
    write_topic_id,
)

ID = bytes(range(1, 17))
VERSION_0 = b"#\n#Sun Nov 15 22:25:41 UTC 2026\nbroker.id=5\nversion=0\ncluster.id=kLw3_Q-x\\:1\n"
VERSION_1 = (
    b"#\n#Sun Nov 15 22:25:41 UTC 2026\nnode.id=7\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA\nversion=1\ncluster.id=c\n"
)


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk()
    yield disk
    disk.close()


def test_meta_properties_of_a_broker_under_zookeeper() -> None:
    assert parse_meta_properties(VERSION_0, "file") == MetaProperties("kLw3_Q-x:1", 5)


def test_meta_properties_of_version_1() -> None:
    assert parse_meta_properties(VERSION_1, "file") == MetaProperties("c", 7, ID, version=1)


def test_meta_properties_without_a_version_are_version_0_and_may_lack_everything() -> None:
    assert parse_meta_properties(b"", "file") == MetaProperties(None, None)


def test_meta_properties_are_written_for_kafka() -> None:
    assert format_meta_properties(MetaProperties("a=b", 5)) == b"version=0\nbroker.id=5\ncluster.id=a\\=b\n"
    assert format_meta_properties(MetaProperties("c", 7, ID, version=1)) == (
        b"version=1\nnode.id=7\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA\ncluster.id=c\n"
    )


BAD_META = {
    "a later version": (b"version=2\n", "version '2' is unknown"),
    "an id that is no number": (b"broker.id=one\n", "invalid literal"),
    "no node id": (b"version=1\ncluster.id=c\n", "needs both"),
    "no cluster id": (b"version=1\nnode.id=1\n", "needs both"),
    "half an escape": (b"cluster.id=\\u12\n", "Malformed"),
    "a short directory id": (b"directory.id=AAAA\n", "'AAAA' holds 3 bytes"),
}


@pytest.mark.parametrize(("data", "message"), BAD_META.values(), ids=BAD_META.keys())
def test_bad_meta_properties_name_the_file(data: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=r"dir/meta\.properties") as caught:
        parse_meta_properties(data, "dir/meta.properties")
    assert message in str(caught.value)


def test_partition_metadata() -> None:
    data = b"version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA"
    assert format_topic_id(ID) == data
    assert parse_topic_id(data, "file") == ID
    assert parse_topic_id(b"version: 1\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA\nmore: 1\n", "file") == ID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 0",
        b"topic_id: AQIDBAUGBwgJCgsMDQ4PEA",
        b"version: 0\ntopic_id: AQID",
        b"\0\0\0\0",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    ],
    ids=repr,
)
def test_bad_partition_metadata_names_the_file(data: bytes) -> None:
    with pytest.raises(StorageError, match=r"dir/partition\.metadata"):
        parse_topic_id(data, "dir/partition.metadata")


def test_clean_shutdown_is_written_as_kafka_does() -> None:
    assert format_clean_shutdown(77) == b'{"version":0,"brokerEpoch":77}'
    assert parse_clean_shutdown(b'{"version":0,"brokerEpoch":77}') == CleanShutdown(77)
    assert parse_clean_shutdown(b'{"version":3,"brokerEpoch":77,"more":{}}') == CleanShutdown(77)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"{", b'{"brokerEpoch":"77"}', b"\xff"], ids=repr)
def test_a_clean_shutdown_is_one_even_if_it_says_no_epoch(data: bytes) -> None:
    assert parse_clean_shutdown(data) == CleanShutdown(None)


def test_files(disk: RealDisk, tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert read_meta_properties(disk, directory) is None
    assert read_topic_id(disk, directory) is None
    assert read_clean_shutdown(disk, directory) is None

    write_meta_properties(disk, directory, MetaProperties("c", 1))
    write_topic_id(disk, directory, ID)
    write_clean_shutdown(disk, directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".kafka_cleanshutdown",
        "meta.properties",
        "partition.metadata",
    ]
    assert read_meta_properties(disk, directory) == MetaProperties("c", 1)
    assert read_topic_id(disk, directory) == ID
    assert read_clean_shutdown(disk, directory) == CleanShutdown(-1)

    remove_clean_shutdown(disk, directory)
    remove_clean_shutdown(disk, directory)
    assert read_clean_shutdown(disk, directory) is None
