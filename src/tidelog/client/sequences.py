"""Batches of one partition on their way to its leader: their order, and the sequences that make retries harmless. Pure.

A broker takes the batches of a producer epoch only in sequence, and knows the last five again (S13.1). So a batch
that came back keeps its sequence, however often it is sent, and five batches at most are sent from the oldest
unanswered one on.

A batch that is given up may be written or not: if it is not, there is a gap. Batches that were sent behind it may be
written too, so they are still sent with their sequences, and the broker's answer tells. If it takes one, there is no
gap. If the oldest of them is out of sequence, neither it nor any behind it is written, and all go on in a new epoch.
What was never sent begins a new epoch when nothing that was sent is left to tell.

Kafka takes any sequence of a producer that a partition does not know. If it refuses the first batch and takes the
second, the first can only follow behind it. So the first batch of a producer id goes alone.

A batch that is refused for its size is split. It was not written, so its pieces share out its sequences, and the
batches behind it keep theirs.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from itertools import chain

from tidelog.errors import ErrorCode
from tidelog.records.header import read_header, seal
from tidelog.types import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, Epoch, ProducerId, TopicPartition

MAX_IN_FLIGHT = 5
"""As many as brokers remember."""

MAX_EPOCH = 32767
_SEQUENCE_MASK = 0x7FFFFFFF
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_NOT_IN_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


class OutBatch:
    """An encoded batch that is to be written. `index` is its place among all batches of its queue."""

    __slots__ = ("attempts", "data", "epoch", "index", "is_doubtful", "producer_id", "record_count", "sequence")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.record_count = read_header(data).record_count
        self.index = -1
        self.producer_id: ProducerId = NO_PRODUCER
        self.epoch: Epoch = NO_EPOCH
        self.sequence = NO_SEQUENCE
        self.attempts = 0
        self.is_doubtful = False
        """A piece of a batch that had been sent before it was refused: what became of that attempt is not known."""


class PartitionQueue:
    """What is to be written to one partition.

    Always: batches leave in the order they came. After one came back, nothing leaves until all others that were on
    their way are back or acknowledged, so that a retry never overtakes. Until the partition has acknowledged a batch of
    this producer id, one batch is on its way at a time.
    """

    def __init__(self, partition: TopicPartition, *, idempotent: bool) -> None:
        self.partition = partition
        self.waiting: deque[OutBatch] = deque()
        self.in_flight: list[OutBatch] = []
        self._idempotent = idempotent
        self._producer_id: ProducerId = NO_PRODUCER
        self._epoch: Epoch = NO_EPOCH
        self._next_sequence = 0
        self._next_index = 0
        self._settling = False
        self._is_known = not idempotent
        """The partition has acknowledged a batch of this producer id, so it knows which one comes next."""
        self._gap_at: int | None = None
        """The index of the last batch that the broker may miss: what has no sequence cannot follow in this epoch."""

    @property
    def producer_id(self) -> ProducerId:
        return self._producer_id

    @property
    def needs_producer_id(self) -> bool:
        """A first one, or another because the epochs of this one are used up."""
        if not self._idempotent or self._producer_id == NO_PRODUCER:
            return self._idempotent
        if self._epoch < MAX_EPOCH or self.in_flight or not self.waiting:
            return False
        return self._begins_epoch(self.waiting[0])

    @property
    def sendable(self) -> bool:
        if not self.waiting:
            return False
        if not self.in_flight:
            return True
        if self.waiting[0].index - self.in_flight[0].index >= MAX_IN_FLIGHT:
            return False  # the broker would not know the oldest one again
        return self._is_known and not self._settling and not self._begins_epoch(self.waiting[0])

    def identify(self, producer_id: ProducerId, epoch: Epoch) -> None:
        self._producer_id = producer_id
        self._is_known = False
        self._begin_epoch(epoch)

    def add(self, batch: OutBatch) -> None:
        batch.index = self._next_index
        self._next_index += 1
        self.waiting.append(batch)

    def take(self) -> OutBatch:
        """The next one to send, with its sequence; only if `sendable`, and the producer id is known."""
        if not self.in_flight:
            self._settling = False
        if self._begins_epoch(self.waiting[0]):
            self._begin_epoch(self._epoch + 1)
        batch = self.waiting.popleft()
        batch.attempts += 1
        if self._idempotent and batch.sequence == NO_SEQUENCE:
            self._number(batch)
        self.in_flight.append(batch)
        return batch

    def acknowledged(self, batch: OutBatch) -> list[OutBatch]:
        """It is written. Returns the older batches that are in doubt for good.

        These exist if the oldest of them was out of sequence, and yet this one was not. A broker answers so if it
        knows only its last batch again. Then they are written, but it cannot confirm that.
        """
        self._is_known = True
        self.in_flight.remove(batch)
        if self._gap_at is None:
            return []
        if batch.index > self._gap_at:
            self._gap_at = None
        if not self.waiting or self.waiting[0].sequence != NO_SEQUENCE:
            return []
        return [other for other in self.waiting if other.index < batch.index]

    def came_back(self, batch: OutBatch, code: ErrorCode) -> None:
        """It was not written, or that is unknown: it will be sent again, with its sequence.

        Out of sequence while all before it are written or given up means that the broker misses one of these, or has
        forgotten this producer. So this batch is not written: it begins a new epoch. Behind another that came back it
        only means that its turn had not come.
        """
        self.in_flight.remove(batch)
        if code in _NOT_IN_SEQUENCE and not self._behind_another(batch):
            batch.sequence = NO_SEQUENCE
            self._note_gap(batch)
            self._is_known = False
        self._settling = True
        place = sum(1 for other in self.waiting if other.index < batch.index)
        self.waiting.insert(place, batch)

    def given_up(self, batch: OutBatch) -> None:
        """It will not be sent again. If it was sent at all, its sequence may leave a gap."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        else:
            self.waiting.remove(batch)
        if batch.sequence != NO_SEQUENCE:
            self._settling = True
            self._note_gap(batch)

    def split(self, batch: OutBatch, pieces: Sequence[OutBatch]) -> None:
        """The pieces take the place of a batch that was not written, in order, and its sequences if it has some."""
        place = sum(1 for other in self.waiting if other.index < batch.index)
        if batch in self.in_flight:
            self.in_flight.remove(batch)
            self._settling = True
        else:
            self.waiting.remove(batch)
        self._make_room(batch.index, len(pieces) - 1)
        sequence = batch.sequence
        for number, piece in enumerate(pieces):
            piece.index = batch.index + number
            piece.is_doubtful = batch.is_doubtful or batch.attempts > 1
            if sequence != NO_SEQUENCE:
                self._stamp(piece, batch.producer_id, batch.epoch, sequence)
                sequence = (sequence + piece.record_count) & _SEQUENCE_MASK
            self.waiting.insert(place + number, piece)

    def may_be_written(self, batch: OutBatch, code: ErrorCode) -> bool:
        """A doubtful piece is out of sequence: its whole is in the log, or the broker has forgotten this producer."""
        return batch.is_doubtful and code in _NOT_IN_SEQUENCE and not self._behind_another(batch)

    @property
    def begins_unsent(self) -> bool:
        """What leaves next was never sent. If batches that were sent wait behind it, it is a piece."""
        return bool(self.waiting) and not self.waiting[0].attempts

    def _make_room(self, index: int, count: int) -> None:
        """Move what comes after this index back by so many places."""
        for other in chain(self.waiting, self.in_flight):
            if other.index > index:
                other.index += count
        if self._gap_at is not None and self._gap_at >= index:
            self._gap_at += count
        self._next_index += count

    def _note_gap(self, batch: OutBatch) -> None:
        self._gap_at = batch.index if self._gap_at is None else max(self._gap_at, batch.index)

    def _behind_another(self, batch: OutBatch) -> bool:
        oldest_waiting = self.waiting[0].index if self.waiting else batch.index
        oldest_in_flight = self.in_flight[0].index if self.in_flight else batch.index
        return min(oldest_waiting, oldest_in_flight) < batch.index

    def _begins_epoch(self, batch: OutBatch) -> bool:
        """A batch that has a sequence never does: it may be written under it."""
        return batch.sequence == NO_SEQUENCE and self._gap_at is not None

    def _begin_epoch(self, epoch: Epoch) -> None:
        """Brokers take a higher epoch, or a new producer id, that starts with sequence 0.

        What waits behind a batch that is surely not written is not written either, so it may be numbered anew.
        """
        self._epoch = epoch
        self._gap_at = None
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE
            batch.is_doubtful = False

    def _number(self, batch: OutBatch) -> None:
        self._stamp(batch, self._producer_id, self._epoch, self._next_sequence)
        self._next_sequence = (self._next_sequence + batch.record_count) & _SEQUENCE_MASK

    def _stamp(self, batch: OutBatch, producer_id: ProducerId, epoch: Epoch, sequence: int) -> None:
        batch.producer_id, batch.epoch, batch.sequence = producer_id, epoch, sequence
        _PRODUCER.pack_into(batch.data, _PRODUCER_AT, producer_id, epoch, sequence)
        seal(batch.data)
