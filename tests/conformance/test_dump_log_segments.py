"""Kafka's DumpLogSegments reads what tidelog wrote, in every kind of file, and finds nothing wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from kafka_directory import Cluster
from tidelog_directory import TOPICS, Written, write_directory

from peers import home
from peers.dump import complaints, dump_segments, fields
from peers.process import PeerFailedError
from tidelog.types import TopicPartition

CLUSTER = Cluster("a-cluster", {topic: bytes([n + 1]) * 16 for n, topic in enumerate(TOPICS)}, {})
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    path = tmp_path_factory.mktemp("written") / "log"
    return path, asyncio.run(write_directory(path, CLUSTER))


def files_of(path: Path, partition: TopicPartition) -> list[Path]:
    return sorted(file for file in (path / str(partition)).iterdir() if file.suffix in KINDS)


@pytest.mark.parametrize("version", home.VERSIONS)
def test_kafka_finds_no_error_in_what_tidelog_wrote(version: str, directory: tuple[Path, Written]) -> None:
    path, written = directory
    files = [file for partition in written.records for file in files_of(path, partition)]
    assert {file.suffix for file in files} == set(KINDS)
    dumped = dump_segments(version, files)
    # A compacted log has gaps, which the tool mentions: they are the point of compaction, and all it may mention.
    found = {file: dump for file, dump in dumped.items() if not file.match("compacted-0/*.log")}
    gaps = {file: dump for file, dump in dumped.items() if file.match("compacted-0/*.log")}
    assert not complaints(found)
    assert all("Non-consecutive" in text for text in complaints(gaps))
    for partition, records in written.records.items():
        logs = [file for file in files_of(path, partition) if file.suffix == ".log"]
        offsets = [record.offset for file in logs for record in dumped[file].records if record.marker is None]
        assert set(offsets) >= {record.offset for record in records}
        assert len(logs) > 1


@pytest.mark.parametrize("version", home.VERSIONS)
def test_kafka_takes_the_indexes_as_they_are(version: str, directory: tuple[Path, Written]) -> None:
    """--index-sanity-check is what a broker does at start to decide whether an index must be rebuilt."""
    path, written = directory
    kinds = (".index", ".timeindex")
    files = [file for partition in written.records for file in files_of(path, partition) if file.suffix in kinds]
    for file, dumped in dump_segments(version, files, "--index-sanity-check").items():
        assert any("passed sanity check" in line or "is empty" in line for line in dumped.entries), file


@pytest.mark.parametrize("version", home.VERSIONS)
def test_kafka_reads_producer_state_and_aborted_transactions(version: str, directory: tuple[Path, Written]) -> None:
    path, written = directory
    for topic in ("idempotent", "transactions"):
        partition = TopicPartition(topic, 0)
        last = max(file for file in files_of(path, partition) if file.suffix == ".snapshot")
        entries = [fields(line) for line in dump_segments(version, [last])[last].entries]
        assert [(entry["producerId"], entry["lastSequence"], entry["lastOffset"]) for entry in entries] == [
            (entry.producer_id, entry.last_sequence, entry.last_offset) for entry in written.producers[partition]
        ]
    files = [file for file in files_of(path, TopicPartition("transactions", 0)) if file.suffix == ".txnindex"]
    aborted: set[int] = set()
    for dumped in dump_segments(version, files).values():
        for entry in map(fields, dumped.entries):
            first, last_offset = entry["firstOffset"], entry["lastOffset"]
            assert first is not None
            assert last_offset is not None
            aborted.update(range(first, last_offset + 1))
    assert aborted >= written.aborted[TopicPartition("transactions", 0)]


def damaged(path: Path, target: Path, suffix: str, at: int) -> list[Path]:
    """A copy of the first partition's first segment and indexes, with one byte changed in one of the files."""
    target.mkdir()
    base = min(file for file in (path / "plain-0").iterdir() if file.suffix == ".log").stem
    copies = [
        Path(shutil.copy(path / "plain-0" / f"{base}{kind}", target)) for kind in (".log", ".index", ".timeindex")
    ]
    victim = target / f"{base}{suffix}"
    data = bytearray(victim.read_bytes())
    data[at] ^= 0x01
    victim.write_bytes(data)
    return copies


@pytest.mark.parametrize("version", home.VERSIONS)
@pytest.mark.parametrize(("suffix", "at"), [(".log", 80), (".log", -3), (".index", 7), (".timeindex", 6)])
def test_kafka_does_find_damage(
    version: str, suffix: str, at: int, directory: tuple[Path, Written], tmp_path: Path
) -> None:
    """So that the silence above means something."""
    files = damaged(directory[0], tmp_path / "damaged", suffix, at)
    try:
        found = complaints(dump_segments(version, files))
    except PeerFailedError as failure:
        found = [str(failure)]
    assert found
