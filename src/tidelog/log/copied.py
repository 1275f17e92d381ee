"""Batches that a follower has copied from its leader, checked before they are written."""

from __future__ import annotations

from tidelog.errors import CorruptBatchError, LaterEpochError
from tidelog.records.control import read_marker
from tidelog.records.header import BatchHeader, check_crc, headers
from tidelog.types import Buffer, Epoch, Offset, TopicPartition


def checked_batches(
    partition: TopicPartition, buffer: Buffer, log_end_offset: Offset, leader_epoch: Epoch | None
) -> tuple[list[BatchHeader], int]:
    """The whole batches in the buffer, and how many bytes they have; the first error refuses all of them.

    A batch of a later epoch than the one it was fetched in cannot be what that leader had: its log was cut while it
    was answering, and these bytes were written after that. The kernel may send such bytes even after the leader has
    checked its answer, because sendfile queues pages and not copies of them (edge case 30).
    """
    batches: list[BatchHeader] = []
    size, expected = 0, log_end_offset
    for position, header in headers(buffer):
        check_crc(header, buffer, position)
        if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
            raise LaterEpochError(
                f"{partition}: batch {header.base_offset}..{header.last_offset} is of leader epoch "
                f"{header.partition_leader_epoch}, but was fetched in leader epoch {leader_epoch}"
            )
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptBatchError(
                f"{partition}: batch {header.base_offset}..{header.last_offset} does not follow {expected - 1}"
            )
        if header.is_control and header.producer_id >= 0:
            read_marker(buffer, header, position)
        batches.append(header)
        size = position + header.size_bytes
        expected = header.next_offset
    return batches, size
