"""The headers of the batches in a partition's files, read byte by byte: what was stored, whoever shows what."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD = 12
"""Base offset and length, which the length does not count."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    base_offset: int
    magic: int
    codec: str
    log_append_time: bool
    count: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def stored_batches(log_dir: Path, topic: str, partition: int = 0) -> list[StoredBatch]:
    """All batches that lie there now, in order."""
    batches: list[StoredBatch] = []
    for file in sorted((log_dir / f"{topic}-{partition}").glob("*.log")):
        data = file.read_bytes()
        at = 0
        while at + _HEADER.size <= len(data):
            fields = _HEADER.unpack_from(data, at)
            if fields[1] == 0:
                break
            batches.append(_batch(fields))
            at += _OVERHEAD + fields[1]
    return batches


def _batch(fields: tuple[int, ...]) -> StoredBatch:
    base_offset, _, _, magic, _, attributes, last, _, newest, producer_id, epoch, sequence, count = fields
    assert count == last + 1, f"a batch of {count} records whose last offset is {last} after its first"
    return StoredBatch(
        base_offset=base_offset,
        magic=magic,
        codec=CODECS[attributes & 7],
        log_append_time=bool(attributes & 8),
        count=count,
        max_timestamp=newest,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
