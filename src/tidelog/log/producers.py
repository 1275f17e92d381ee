"""What one partition knows of its idempotent and transactional producers (S13.1, S13.3).

Fed with batch headers only. `check` says whether a batch may be written, `append` records that it was; between the
two stands the write itself. Batches without a producer id never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from tidelog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tidelog.log.producer_silence import HeardMs, LongestSilent
from tidelog.log.producer_snapshot import SnapshotEntry
from tidelog.log.producer_state import (
    NO_TRANSACTION,
    SEQUENCE_MASK,
    WINDOW,
    AppendedBatch,
    ProducerFacts,
    ProducerState,
)
from tidelog.records.header import BatchHeader
from tidelog.types import NO_SEQUENCE, Epoch, Offset, ProducerId

_HALF_OF_ALL_SEQUENCES = 2**30
_TRANSACTIONAL = 0x10
_MORE_THAN_A_LEADER = 20
"""A replica that takes what its leader took remembers a twentieth more than a leader does (`producer_room`)."""


def _anyone() -> None:
    """There is room for any producer."""


class AppendOrigin(Enum):
    """Who writes, and so how much there is to check."""

    CLIENT = auto()
    """A producer: everything."""
    RETURNING = auto()
    """A producer that has nothing older to send: everything, but where it is unknown it may start with any sequence."""
    COORDINATOR = auto()
    """Offsets of a transaction, and markers: their sequences say nothing, but their epochs count."""
    REPLICATION = auto()
    """A copy of what a leader took, or one's own log at recovery: it is so, and is never refused."""


_CLIENTS = (AppendOrigin.CLIENT, AppendOrigin.RETURNING)


class SequenceGapError(OutOfOrderSequenceError):
    """Batches of this producer are missing before this one. They may be under way, so this one may come too early."""

    def __init__(self, message: str, state: ProducerState | None) -> None:
        super().__init__(message)
        self.is_unknown = state is None
        """The partition knows nothing of the producer: it is new, or its state has expired or was deleted."""
        self.last_offset: Offset = -1 if state is None else state.last_offset
        """Where its last batch is, -1 if that is not known."""


class CompletedTxn(NamedTuple):
    """A transaction that a marker ended; if it was aborted, this goes into the transaction index."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    aborted: bool
    last_stable_offset: Offset


class Producers:
    """All producers of one partition, their open transactions, and so what read_committed may see.

    Always: `first_unstable_offset` is the smallest first offset of a transaction that is open or whose marker is not
    yet below the high watermark; None if there is no such transaction. Expiry never takes an open transaction.
    """

    def __init__(self, expiration_ms: int, max_ids: int) -> None:
        self.expiration_ms = expiration_ms
        self._most_ids = max_ids + max_ids // _MORE_THAN_A_LEADER
        self.first_unstable_offset: Offset | None = None
        self._states: dict[ProducerId, ProducerState] = {}
        self._longest_silent = LongestSilent(self._states)
        self._ongoing: dict[Offset, ProducerId] = {}
        """By first offset; rising, because transactions are met in the order of the log."""
        self._unreplicated: dict[Offset, Offset] = {}
        """First offset -> marker's offset, of those whose marker is not yet known to be below the high watermark."""

    @property
    def states(self) -> Mapping[ProducerId, ProducerState]:
        return MappingProxyType(self._states)

    @property
    def ongoing(self) -> Mapping[Offset, ProducerId]:
        """The open transactions by first offset, oldest first."""
        return MappingProxyType(self._ongoing)

    def __len__(self) -> int:
        return len(self._states)

    def has_ongoing_transaction(self, producer_id: ProducerId) -> bool:
        state = self._states.get(producer_id)
        return state is not None and state.txn_first_offset >= 0

    # Data batches

    def check(
        self,
        header: BatchHeader,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        admit: Callable[[], None] = _anyone,
    ) -> AppendedBatch | None:
        """May this batch be written next? None: yes. A batch: it already was, answer with that one.

        `admit` is asked before a new producer is taken, and raises if there is no room for it. A batch that is not
        written shows nevertheless that its producer is at work.
        """
        state = self._states.get(header.producer_id)
        if (
            state is not None
            and header.base_sequence == state.next_sequence
            and header.producer_epoch == state.epoch
            and (state.txn_first_offset < 0 or header.attributes & _TRANSACTIONAL)
        ):
            return None
        if origin is AppendOrigin.REPLICATION:
            return None
        is_client = origin in _CLIENTS
        if is_client and header.base_sequence < 0:
            raise InvalidRecordError(f"producer {header.producer_id} sent a batch without a sequence")
        if state is None:
            if origin is AppendOrigin.CLIENT:
                _check_first_sequence(header)
            if is_client:
                admit()
            return None
        state.heard_ms = now_ms
        if is_client and (duplicate := state.duplicate_of(header)):
            return duplicate
        _check_epoch(header, state)
        if is_client:
            _check_sequence(header, state)
        if state.txn_first_offset >= 0 and not header.is_transactional:
            raise InvalidTxnStateError(
                f"producer {header.producer_id} has a transaction open since offset {state.txn_first_offset} "
                "and sent a batch that is not part of one"
            )
        return None

    def heard(self, producer_id: ProducerId, now_ms: int) -> None:
        """A batch of this producer came and was refused before it was checked."""
        state = self._states.get(producer_id)
        if state is not None:
            state.heard_ms = now_ms

    def append(self, header: BatchHeader, base_offset: Offset, now_ms: int) -> None:
        """A data batch was written at `base_offset`; at a replay `now_ms` is when it was, or later."""
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._new(producer_id, header.producer_epoch)
        elif header.producer_epoch != state.epoch:
            state.begin_epoch(header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        first = header.base_sequence
        last = (first + header.last_offset_delta) & SEQUENCE_MASK if first >= 0 else NO_SEQUENCE
        batches = state.batches
        batches.append((first, last, base_offset, last_offset, timestamp))
        if len(batches) > WINDOW:
            del batches[0]
        state.last_write = last_offset
        state.heard_ms = now_ms
        state.next_sequence = (last + 1) & SEQUENCE_MASK
        state.last_timestamp = timestamp
        if header.attributes & _TRANSACTIONAL and state.txn_first_offset < 0:
            state.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
            if self.first_unstable_offset is None or base_offset < self.first_unstable_offset:
                self.first_unstable_offset = base_offset

    # Markers

    def check_marker(
        self, header: BatchHeader, coordinator_epoch: Epoch, origin: AppendOrigin = AppendOrigin.COORDINATOR
    ) -> None:
        """May this control batch be written? Only if neither its producer nor its coordinator has been replaced.

        One with the epochs already seen may: so can a transaction that lost its marker be aborted by hand.
        """
        state = self._states.get(header.producer_id)
        if state is None or origin is AppendOrigin.REPLICATION:
            return
        _check_epoch(header, state)
        if coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"marker for producer {header.producer_id} is of coordinator epoch {coordinator_epoch}, "
                f"but epoch {state.coordinator_epoch} has been seen"
            )

    def append_marker(
        self, header: BatchHeader, offset: Offset, coordinator_epoch: Epoch, aborted: bool, now_ms: int
    ) -> CompletedTxn | None:
        """A marker was written at `offset`. None if the producer had written nothing here: nothing becomes readable.

        Not for a control batch that compaction has emptied: its transaction is gone from the log.
        """
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._new(producer_id, header.producer_epoch)
        elif header.producer_epoch != state.epoch:
            state.begin_epoch(header.producer_epoch)
        state.last_write = offset
        state.heard_ms = now_ms
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        first_offset = state.txn_first_offset
        if first_offset < 0:
            return None
        state.txn_first_offset = NO_TRANSACTION
        del self._ongoing[first_offset]
        self._unreplicated[first_offset] = offset
        last_stable_offset = next(iter(self._ongoing), offset + 1)
        return CompletedTxn(producer_id, first_offset, offset, aborted, last_stable_offset)

    # What read_committed may see

    def last_stable_offset(self, high_watermark: Offset, log_start_offset: Offset) -> Offset:
        """The smaller of the high watermark and the first offset whose transaction may still go either way."""
        first_unstable = self.first_unstable_offset
        if first_unstable is None or first_unstable >= high_watermark:
            return high_watermark
        return min(max(first_unstable, log_start_offset), high_watermark)

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Markers below it are committed: what they decided will stay decided."""
        if self._unreplicated:
            self._drop_unreplicated(below=high_watermark)

    def on_log_start(self, log_start_offset: Offset) -> None:
        """Records below it are gone. Their producers are still known, so that their retries are."""
        if self._unreplicated:
            self._drop_unreplicated(below=log_start_offset)

    def _drop_unreplicated(self, below: Offset) -> None:
        done = [first_offset for first_offset, marker_offset in self._unreplicated.items() if marker_offset < below]
        for first_offset in done:
            del self._unreplicated[first_offset]
        if done:
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        candidates = [*self._unreplicated, *([next(iter(self._ongoing))] if self._ongoing else ())]
        self.first_unstable_offset = min(candidates, default=None)

    # Forgetting and remembering

    def _new(self, producer_id: ProducerId, epoch: Epoch) -> ProducerState:
        if len(self._states) >= self._most_ids:
            # The batch is not a client's, for which room was made. It is a leader's, or of one's own log at the start.
            longest_silent = self._longest_silent.find()
            if longest_silent is not None:
                del self._states[longest_silent.producer_id]
        state = self._states[producer_id] = ProducerState(producer_id, epoch)
        self._longest_silent.added()
        return state

    def forget_silent(self, since_ms: int, high_watermark: Offset) -> bool:
        """Forget the longest silent producer, unless it was heard of after `since_ms`; whether it was forgotten.

        If its last batch is not committed it stays: its client may be waiting for the answer, and sends the batch again
        if none comes.
        """
        state = self._longest_silent.find_silent(since_ms)
        if state is None or state.last_write >= high_watermark:
            return False
        del self._states[state.producer_id]
        return True

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers that have been silent for producer.id.expiration.ms; how many they were.

        The time in the records is not asked: a producer that writes records of last week may be at work, and its
        retries must be known.
        """
        before_ms = now_ms - self.expiration_ms
        expired = [
            state.producer_id
            for state in self._states.values()
            if state.heard_ms <= before_ms and state.txn_first_offset < 0
        ]
        for producer_id in expired:
            del self._states[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget everything: the log is emptied, or read anew from its start."""
        self._unreplicated.clear()
        self.truncate(0)

    def truncate(self, end_offset: Offset) -> None:
        """The log is cut: state cannot be wound back, so `load` a snapshot from below and `append` what follows it.

        Markers that are still there and were not yet committed are remembered: a snapshot would not tell of them.
        """
        self._states.clear()
        self._longest_silent = LongestSilent(self._states)
        self._ongoing.clear()
        self._unreplicated = {first: marker for first, marker in self._unreplicated.items() if marker < end_offset}
        self._find_first_unstable()

    def load(self, entries: Iterable[SnapshotEntry], heard_ms: HeardMs) -> None:
        """Take up a snapshot."""
        for entry in sorted(entries, key=lambda entry: entry.txn_first_offset):
            state = ProducerState.from_snapshot(entry, heard_ms(entry.silent_ms))
            self._states[state.producer_id] = state
            if state.txn_first_offset >= 0:
                self._ongoing[state.txn_first_offset] = state.producer_id
        self._find_first_unstable()

    def heard_like(self, former: Producers) -> None:
        """The log was cut and read anew: when its producers were heard of is known from before."""
        known_before = former.states
        for producer_id, state in self._states.items():
            known = known_before.get(producer_id)
            if known is not None:
                state.heard_ms = known.heard_ms

    def snapshot(self) -> list[SnapshotEntry]:
        """What to keep in a file, with the log end offset for a name."""
        return [state.to_snapshot() for state in self._states.values()]

    def facts(self) -> list[ProducerFacts]:
        """For `to_entries` on another thread: to make a snapshot of many producers takes long."""
        return [state.facts() for state in self._states.values()]


def _check_first_sequence(header: BatchHeader) -> None:
    """Nothing is known of this producer, so an earlier batch of it may be missing (edge case 44).

    Its state may also have expired or been deleted, or the topic is new under an old name. The partition cannot tell
    that, but the producer can: if it has nothing older to send it comes with this batch again, as RETURNING.
    """
    if header.base_sequence > 0:
        raise SequenceGapError(
            f"producer {header.producer_id} is unknown here and starts with sequence {header.base_sequence}, "
            "so an earlier batch may be missing",
            None,
        )


def _check_epoch(header: BatchHeader, state: ProducerState) -> None:
    if header.producer_epoch < state.epoch:
        raise InvalidProducerEpochError(
            f"producer {header.producer_id} sent epoch {header.producer_epoch}, but {state.epoch} has been seen"
        )


def _check_sequence(header: BatchHeader, state: ProducerState) -> None:
    expected = state.next_sequence if header.producer_epoch == state.epoch else 0
    if header.base_sequence == expected:
        return
    message = (
        f"producer {header.producer_id} in epoch {header.producer_epoch} sent sequence {header.base_sequence}, "
        f"expected {expected}"
    )
    if is_behind(header.base_sequence, expected):
        raise SequenceGapError(message, state)
    raise OutOfOrderSequenceError(message)


def is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes later than the other; they wrap."""
    return 0 < (sequence - other) & SEQUENCE_MASK < _HALF_OF_ALL_SEQUENCES
