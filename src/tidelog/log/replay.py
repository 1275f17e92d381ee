"""From batches back to producers: what the log's records say about who wrote them.

The same code notes a batch when it is appended and when it is met again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.log.producer_silence import FileTimes
from tidelog.log.producers import Producers
from tidelog.log.segment import Segment
from tidelog.log.segments import Segments
from tidelog.log.transaction_index import AbortedTxn, TransactionIndex
from tidelog.records.control import ControlType, read_marker
from tidelog.records.header import BatchHeader
from tidelog.types import Buffer, Offset


def note_producer(
    producers: Producers,
    header: BatchHeader,
    base_offset: Offset,
    source: Buffer,
    position: int,
    transactions: TransactionIndex | None,
    now_ms: int,
) -> None:
    """What one batch that came at `now_ms` means for its producer; an aborted transaction is added to `transactions`,
    if given."""
    if not header.is_control:
        producers.append(header, base_offset, now_ms)
        return
    marker = read_marker(source, header, position)
    if marker is None:
        return
    aborted = marker.control_type is ControlType.ABORT
    done = producers.append_marker(header, base_offset, marker.coordinator_epoch, aborted, now_ms)
    if done is not None and done.aborted and transactions is not None:
        transactions.append(AbortedTxn(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset))


def replay(producers: Producers, segments: Segments, start: Offset, end: Offset, times: FileTimes) -> None:
    """Note all batches from `start` up to `end`. On a disk thread: it reads the log."""
    written_ms, dated = times.now_ms, None
    for segment, position, header in batches_between(segments, start, end):
        if header.producer_id >= 0:
            if segment is not dated:
                written_ms, dated = times.written_ms(segment.file.path), segment
            source = segment.file.read_at(position, header.size_bytes) if header.is_control else b""
            note_producer(producers, header, header.base_offset, source, 0, None, written_ms)


def has_control_batch(segments: Segments, start: Offset, end: Offset) -> bool:
    """Whether any batch from `start` up to `end` ends a transaction. On a disk thread."""
    return any(header.is_control for _, _, header in batches_between(segments, start, end))


def batches_between(segments: Segments, start: Offset, end: Offset) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """(segment, position, header) of the batches from the one that holds `start`, up to `end`. On a disk thread.

    The first may begin before `start`, where the log was cut inside a batch; it is still there, and counts.
    """
    if start >= end:
        return
    for place in range(segments.place_of(start), len(segments)):
        segment = segments[place]
        read = segment.file.read_at
        found = segment.find(start, read)
        if found is None:
            continue
        for position, header in segment.headers(found[0], read):
            if header.base_offset >= end:
                return
            yield segment, position, header
