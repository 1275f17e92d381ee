"""One producer on one partition: its epoch, its last batches, its open transaction; and its entry in a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from tidelog.log.producer_snapshot import EarlierBatch, SnapshotEntry
from tidelog.records.header import BatchHeader
from tidelog.types import NO_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, Epoch, Offset, ProducerId

WINDOW = 5
"""Batches remembered per producer: as many as a client may have in flight and so may send again."""
NO_TRANSACTION: Offset = -1

SEQUENCE_MASK = 0x7FFFFFFF


class AppendedBatch(NamedTuple):
    """A batch in the log, as the answer to its duplicate tells it."""

    base_offset: Offset
    last_offset: Offset
    timestamp: int


WrittenBatch: TypeAlias = tuple[int, int, Offset, Offset, int]
"""First sequence, last sequence, base offset, last offset, timestamp."""
ProducerFacts: TypeAlias = tuple[ProducerId, Epoch, tuple[WrittenBatch, ...], int, Epoch, Offset, int]
"""Producer id, epoch, batches, last timestamp, coordinator epoch, first offset of the open transaction, heard_ms."""


class ProducerState:
    """One producer on this partition: its epoch, its last five batches, its open transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "heard_ms",
        "last_timestamp",
        "last_write",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: ProducerId, epoch: Epoch = NO_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[WrittenBatch] = []
        """All of this epoch, at most WINDOW. A list, because a deque takes six times the memory."""
        self.last_write: Offset = -1
        """The offset of the last batch or marker."""
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch: Epoch = NO_EPOCH
        self.txn_first_offset: Offset = NO_TRANSACTION
        self.heard_ms = 0
        """When a batch of it last came, by a clock that never falls, be it that the batch was refused or a duplicate.
        Where the log was opened since, it may have been earlier."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> Offset:
        return self.batches[-1][3] if self.batches else -1

    def begin_epoch(self, epoch: Epoch) -> None:
        """Sequences start again at 0. An open transaction stays open until its marker comes."""
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch with exactly these sequences, if there is one."""
        if header.producer_epoch == self.epoch:
            first_sequence, last_sequence = header.base_sequence, header.last_sequence
            for first, last, base_offset, last_offset, timestamp in self.batches:
                if first == first_sequence and last == last_sequence:
                    return AppendedBatch(base_offset, last_offset, timestamp)
        return None

    @property
    def may_be_forgotten(self) -> bool:
        """Whether it may make room for others before it expires: it has neither a transaction nor markers."""
        return self.txn_first_offset < 0 and self.coordinator_epoch < 0

    @property
    def silence(self) -> tuple[int, Offset]:
        """The smaller, the longer it has been silent; where times are equal, the log tells."""
        return self.heard_ms, self.last_write

    def to_snapshot(self) -> SnapshotEntry:
        """Without its silence: that depends on when it is asked."""
        return _entry(self.facts(), 0)

    def facts(self) -> ProducerFacts:
        """What a snapshot tells of it, as it is now."""
        return (
            self.producer_id,
            self.epoch,
            tuple(self.batches),
            self.last_timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
            self.heard_ms,
        )

    @classmethod
    def from_snapshot(cls, entry: SnapshotEntry, heard_ms: int) -> ProducerState:
        state = cls(entry.producer_id, entry.epoch)
        state.heard_ms = heard_ms
        state.last_timestamp = entry.timestamp
        state.coordinator_epoch = entry.coordinator_epoch
        state.txn_first_offset = max(entry.txn_first_offset, NO_TRANSACTION)
        if entry.last_offset >= 0:
            last_batch = EarlierBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            state.batches = [
                (
                    (last - delta) & SEQUENCE_MASK if last >= 0 else NO_SEQUENCE,
                    last,
                    last_offset - delta,
                    last_offset,
                    timestamp,
                )
                for last, last_offset, delta, timestamp in (*entry.earlier, last_batch)[-WINDOW:]
            ]
            state.last_write = entry.last_offset
            state.next_sequence = (entry.last_sequence + 1) & SEQUENCE_MASK
        return state


def to_entries(producers: Iterable[ProducerFacts], now_ms: int) -> list[SnapshotEntry]:
    """`now_ms`: when these were the facts."""
    return [_entry(facts, max(0, now_ms - facts[-1])) for facts in producers]


def _entry(facts: ProducerFacts, silent_ms: int) -> SnapshotEntry:
    producer_id, epoch, batches, timestamp, coordinator_epoch, txn_first_offset, _ = facts
    _, last, base_offset, last_offset, _ = batches[-1] if batches else (-1, NO_SEQUENCE, -1, -1, -1)
    earlier = tuple(
        EarlierBatch(last, last_offset, last_offset - base_offset, timestamp)
        for _, last, base_offset, last_offset, timestamp in batches[:-1]
    )
    delta = last_offset - base_offset
    return SnapshotEntry(
        producer_id, epoch, last, last_offset, delta, timestamp, coordinator_epoch, txn_first_offset, earlier, silent_ms
    )
