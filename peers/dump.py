"""Kafka's DumpLogSegments, run over files and read back: what is in them and what Kafka finds wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from peers.process import run_java

_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<count>\d+) "
    r"baseSequence: (?P<base_sequence>-?\d+) lastSequence: (?P<last_sequence>-?\d+) producerId: (?P<producer_id>-?\d+) "
    r"producerEpoch: (?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<partition_leader_epoch>-?\d+) "
    r"isTransactional: (?P<is_transactional>true|false) isControl: (?P<is_control>true|false) "
    r"deleteHorizonMs: (?P<delete_horizon>\S+) position: (?P<position>\d+) "
    r"(?P<timestamp_type>CreateTime|LogAppendTime|NoTimestampType): (?P<max_timestamp>-?\d+) size: (?P<size>\d+) "
    r"magic: (?P<magic>\d) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<is_valid>true|false)"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?:CreateTime|LogAppendTime): (?P<timestamp>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<header_names>[^\]]*)\]"
    r"(?: endTxnMarker: (?P<marker>\w+) coordinatorEpoch: (?P<coordinator_epoch>-?\d+))?"
)
_COMPLAINTS = re.compile(r"invalid bytes at the end|isvalid: false|Exception|^Ignoring unknown file|^Could not")
_LOGGING = ("log4j:", "SLF4J:")
"""What Java's loggers say of themselves on the stream that the tool uses for what it found."""


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One batch as Kafka reads its header."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    partition_leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int
    timestamp_type: str
    max_timestamp: int
    size: int
    codec: str
    crc: int


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record, without its bytes; `marker` is COMMIT or ABORT in a control batch."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    sequence: int
    header_names: tuple[str, ...]
    marker: str | None
    coordinator_epoch: int | None


@dataclass(slots=True)
class DumpedFile:
    """What Kafka printed about one file. `entries` are the lines of an index or a snapshot."""

    path: Path
    batches: list[DumpedBatch] = field(default_factory=list)
    records: list[DumpedRecord] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def dump_segments(version: str, paths: Iterable[Path], *options: str) -> dict[Path, DumpedFile]:
    """DumpLogSegments --deep-iteration over .log, .index, .timeindex, .txnindex and .snapshot files.

    One run for all files. Where the tool itself fails (a corrupt batch inside a compressed one, an index that is no
    index), it stops there: PeerFailedError carries its exception.
    """
    wanted = list(paths)
    arguments = ["--files", ",".join(map(str, wanted)), "--deep-iteration", *options]
    printed = run_java(version, "kafka.tools.DumpLogSegments", arguments)
    files: dict[Path, DumpedFile] = {}
    current = DumpedFile(Path())
    for line in printed.out.splitlines():
        if line.startswith("Dumping "):
            path = Path(line.removeprefix("Dumping "))
            current = files[path] = DumpedFile(path)
        else:
            _read_line(line, current)
    _read_complaints(printed.err, files)
    missing = [path for path in wanted if path not in files]
    assert not missing, f"DumpLogSegments said nothing of {missing}"
    return files


def complaints(files: dict[Path, DumpedFile]) -> list[str]:
    """Everything Kafka found wrong, of all files."""
    return [f"{path.name}: {text}" for path, file in files.items() for text in file.complaints]


def _read_line(line: str, current: DumpedFile) -> None:
    if record := _RECORD.match(line):
        current.records.append(_record(record))
        return
    if batch := _BATCH.match(line):
        current.batches.append(_batch(batch))
    elif line and not line.startswith("Log starting offset"):
        current.entries.append(line)
    if _COMPLAINTS.search(line):
        current.complaints.append(line)


def _read_complaints(printed: str, files: dict[Path, DumpedFile]) -> None:
    """What does not match is printed at the end, as lists, each under a line that ends with the name of its file."""
    current = DumpedFile(Path())
    for line in printed.splitlines():
        current = next((file for path, file in files.items() if line.endswith(str(path))), current)
        if not line.startswith(_LOGGING):
            current.complaints.append(line)


def _batch(found: re.Match[str]) -> DumpedBatch:
    horizon = re.fullmatch(r"OptionalLong\[(\d+)\]", found["delete_horizon"])
    return DumpedBatch(
        base_offset=int(found["base_offset"]),
        last_offset=int(found["last_offset"]),
        count=int(found["count"]),
        base_sequence=int(found["base_sequence"]),
        producer_id=int(found["producer_id"]),
        producer_epoch=int(found["producer_epoch"]),
        partition_leader_epoch=int(found["partition_leader_epoch"]),
        is_transactional=found["is_transactional"] == "true",
        is_control=found["is_control"] == "true",
        delete_horizon_ms=int(horizon[1]) if horizon else None,
        position=int(found["position"]),
        timestamp_type=found["timestamp_type"],
        max_timestamp=int(found["max_timestamp"]),
        size=int(found["size"]),
        codec=found["codec"],
        crc=int(found["crc"]),
    )


def _record(found: re.Match[str]) -> DumpedRecord:
    return DumpedRecord(
        offset=int(found["offset"]),
        timestamp=int(found["timestamp"]),
        key_size=int(found["key_size"]),
        value_size=int(found["value_size"]),
        sequence=int(found["sequence"]),
        header_names=tuple(name for name in found["header_names"].split(",") if name),
        marker=found["marker"],
        coordinator_epoch=int(found["coordinator_epoch"]) if found["coordinator_epoch"] else None,
    )


def fields(entry: str) -> dict[str, int | None]:
    """The numbers in a line of a snapshot or a transaction index, by Kafka's names; None where it has none."""
    pairs = re.findall(r"(\w+): (\S+)", entry)
    return {name: int(text) if re.fullmatch(r"-?\d+", text) else _optional(text) for name, text in pairs}


def _optional(text: str) -> int | None:
    found = re.search(r"\[(-?\d+)\]|\((-?\d+)\)", text)
    return int(found[1] or found[2]) if found else None
