"""Writing segments anew with fewer records: what compaction keeps of each batch. On a disk thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.errors import CorruptBatchError
from tidelog.log.cleaning import Cleaning
from tidelog.log.segment import Segment
from tidelog.log.transaction_filter import TransactionFilter
from tidelog.records.compaction import OffsetMap, compact_batch, empty_batch, with_delete_horizon
from tidelog.records.control import control_type
from tidelog.records.header import BatchHeader, read_header
from tidelog.records.scan import scan
from tidelog.types import Buffer, Epoch, Offset, ProducerId

_CHUNK_BYTES = 256 << 10
_WRITE_BYTES = 1 << 20


def batches(segment: Segment, cleaning: Cleaning) -> Iterator[tuple[BatchHeader, Buffer, int]]:
    """(header, buffer, position in it) of each batch of a sealed segment, read in large chunks and checked."""
    position, want = 0, _CHUNK_BYTES
    while position < segment.size:
        cleaning.check()
        chunk = segment.file.read_at(position, min(want, segment.size - position))
        found = scan(chunk)
        for at, header in found.batches:
            yield header, chunk, at
        if found.reason not in (None, "torn") or (found.end == 0 and found.needed <= len(chunk)):
            raise CorruptBatchError(f"{segment.file.path} at byte {position + found.end}: {found.reason}")
        position += found.end
        want = max(_CHUNK_BYTES, found.needed)


class BatchFilter:
    """Says of each batch, met in order, what stays of it.

    Two batches stay even when all their records go: a producer's last, so that its sequence is known, and the last
    one of all, so that readers reach the end of the log (edge case 23).
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: TransactionFilter,
        last_of_producer: Mapping[ProducerId, tuple[Offset, Epoch]],
        last_offset: Offset,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self.transactions = transactions
        self._offsets = offsets
        self._last_of_producer = last_of_producer
        self._last_offset = last_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms

    def keep(self, header: BatchHeader, buffer: Buffer, position: int) -> tuple[BatchHeader, Buffer] | None:
        kept = self._keep_marker if header.is_control else self._keep_data
        return kept(header, buffer, position) or self._keep_empty(header)

    def _keep_data(self, header: BatchHeader, buffer: Buffer, position: int) -> tuple[BatchHeader, Buffer] | None:
        if self.transactions.drops_data(header):
            return None
        kept = compact_batch(
            self._offsets,
            buffer,
            header,
            position,
            drop_tombstones=self._horizon_passed(header),
            delete_horizon_ms=self._horizon_ms,
        )
        return None if kept.batch is None else (kept.header, kept.batch)

    def _keep_marker(self, header: BatchHeader, buffer: Buffer, position: int) -> tuple[BatchHeader, Buffer] | None:
        batch = memoryview(buffer)[position : position + header.size_bytes]
        if not self.transactions.marker_is_empty(header, control_type(buffer, header, position)):
            return header, batch
        if header.delete_horizon_ms is None:
            # Readers of now may still hold records of this transaction: they get as long as they get for tombstones.
            marked = with_delete_horizon(buffer, header, position, self._horizon_ms)
            return read_header(marked), marked
        return None if self._horizon_passed(header) else (header, batch)

    def _keep_empty(self, header: BatchHeader) -> tuple[BatchHeader, Buffer] | None:
        if header.last_offset != self._last_offset and not self._is_last_of_producer(header):
            return None
        batch = empty_batch(header)
        return read_header(batch), batch

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_of_producer.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset < 0:  # it has only ever ended transactions here
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == last_offset

    def _horizon_passed(self, header: BatchHeader) -> bool:
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is not None and self._now_ms >= horizon_ms


def rewrite(source: list[Segment], target: Segment, batch_filter: BatchFilter, cleaning: Cleaning) -> None:
    """Write what stays of `source` to `target`, complete and synced."""
    headers: list[BatchHeader] = []
    buffers: list[Buffer] = []
    size = 0
    for segment in source:
        for header, buffer, position in batches(segment, cleaning):
            kept = batch_filter.keep(header, buffer, position)
            if kept is None:
                continue
            headers.append(kept[0])
            buffers.append(kept[1])
            size += len(kept[1])
            if size >= _WRITE_BYTES:
                target.append(headers, buffers, size)
                headers, buffers, size = [], [], 0
    if headers:
        target.append(headers, buffers, size)
    aborted = batch_filter.transactions.still_aborted
    while aborted:
        target.transactions.append(aborted.pop(0))
    target.complete_time_index()
    target.save(sync=True)()
