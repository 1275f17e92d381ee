"""Which batches of a fetch answer a reader sees. Pure.

The broker gives all batches below the last stable offset and the list of aborted transactions; leaving their batches
out is the reader's part (S13.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.records.batch import decode_batch
from tidelog.records.control import ControlType, control_type
from tidelog.records.header import BatchHeader, check_crc, headers
from tidelog.records.kernel import Record
from tidelog.types import Buffer, Offset, ProducerId
from tidelog.wire.messages.fetch import AbortedTransaction


def visible_batches(
    buffer: Buffer, aborted: Iterable[AbortedTransaction] = (), from_offset: Offset = 0
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch with data that counts: no control batches, nothing that was aborted."""
    coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[ProducerId] = set()
    view = memoryview(buffer)
    for position, header in headers(view):
        while coming and coming[-1].first_offset <= header.last_offset:
            aborting.add(coming.pop().producer_id)
        if header.is_control:
            if header.producer_id in aborting and control_type(view, header, position) is ControlType.ABORT:
                aborting.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in aborting:
            continue
        if header.last_offset >= from_offset:
            yield position, header


def visible_records(
    buffer: Buffer, aborted: Iterable[AbortedTransaction] = (), from_offset: Offset = 0
) -> Iterator[Record]:
    """The records of those batches, whose CRC is checked; the first batch may begin before the offset asked for."""
    for position, header in visible_batches(buffer, aborted, from_offset):
        check_crc(header, buffer, position)
        for record in decode_batch(buffer, header, position):
            if record.offset >= from_offset:
                yield record
