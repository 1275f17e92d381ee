"""Idempotence and transactions on one partition (S13.1, S13.3), and the snapshots that keep what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.kits.logkit import new_producers
from tidelog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TidelogError,
    TransactionCoordinatorFencedError,
)
from tidelog.host.disk import RealDisk
from tidelog.log.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshots,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
)
from tidelog.log.producer_state import AppendedBatch
from tidelog.log.producers import AppendOrigin, CompletedTxn, SequenceGapError
from tidelog.records.header import BatchHeader

P, Q = 100, 200
MAX_SEQUENCE = 2**31 - 1
CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION
RETURNING = AppendOrigin.RETURNING
DAY_MS = 86_400_000


def batch(
    sequence: int, count: int = 1, *, pid: int = P, epoch: int = 0, txn: bool = False, timestamp: int = 1000
) -> BatchHeader:
    attributes = 0x10 if txn else 0
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, sequence, count)


def marker(*, pid: int = P, epoch: int = 0, timestamp: int = 2000) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, 0x30, 0, timestamp, timestamp, pid, epoch, -1, 1)


class Log:
    """A log that consists of its end: writes a batch if it may be written."""

    def __init__(self, end: int = 0) -> None:
        self.producers = new_producers()
        self.end = end
        self.now_ms = 0

    def write(self, header: BatchHeader, origin: AppendOrigin = CLIENT) -> AppendedBatch | None:
        duplicate = self.producers.check(header, self.now_ms, origin)
        if duplicate is None:
            self.producers.append(header, self.end, self.now_ms)
            self.end += header.record_count
        return duplicate

    def finish(self, header: BatchHeader, *, aborted: bool = False, coordinator_epoch: int = 0) -> CompletedTxn | None:
        self.producers.check_marker(header, coordinator_epoch)
        completed = self.producers.append_marker(header, self.end, coordinator_epoch, aborted, self.now_ms)
        self.end += 1
        return completed

    def lso(self, high_watermark: int | None = None, log_start: int = 0) -> int:
        """The last stable offset once the high watermark is there; by default it has reached the end."""
        high_watermark = self.end if high_watermark is None else high_watermark
        self.producers.on_high_watermark(high_watermark)
        return self.producers.last_stable_offset(high_watermark, log_start)


# S13.1: sequences and epochs. Each row: batches (sequence, count, epoch) already there, the new one, what comes of it.

Facts = tuple[int, int, int]
ROWS: dict[str, tuple[list[Facts], Facts, type[TidelogError] | None]] = {
    "the next in order": ([(0, 5, 0)], (5, 2, 0), None),
    "a gap": ([(0, 5, 0)], (6, 1, 0), OutOfOrderSequenceError),
    "an old one that is no exact duplicate": ([(0, 5, 0)], (0, 4, 0), OutOfOrderSequenceError),
    "an overlap": ([(0, 5, 0)], (4, 3, 0), OutOfOrderSequenceError),
    "a lower epoch": ([(0, 5, 3)], (5, 1, 2), InvalidProducerEpochError),
    "a lower epoch, from the start": ([(0, 5, 3)], (0, 1, 2), InvalidProducerEpochError),
    "a new epoch from 0": ([(0, 5, 0)], (0, 1, 1), None),
    "a new epoch that goes on": ([(0, 5, 0)], (5, 1, 1), OutOfOrderSequenceError),
    "the last number": ([(MAX_SEQUENCE - 1, 1, 0)], (MAX_SEQUENCE, 1, 0), None),
    "after the last number comes 0": ([(MAX_SEQUENCE, 1, 0)], (0, 1, 0), None),
    "a batch may wrap": ([(MAX_SEQUENCE - 1, 4, 0)], (2, 1, 0), None),
    "a gap after a wrap": ([(MAX_SEQUENCE - 1, 4, 0)], (3, 1, 0), OutOfOrderSequenceError),
    "no sequence": ([(0, 1, 0)], (-1, 1, 0), InvalidRecordError),
    "no sequence from somebody new": ([], (-1, 1, 0), InvalidRecordError),
}


@pytest.mark.parametrize(("before", "new", "error"), ROWS.values(), ids=ROWS.keys())
def test_s13_1_a_clients_batch(before: list[Facts], new: Facts, error: type[TidelogError] | None) -> None:
    log = Log(end=50)
    for sequence, count, epoch in before:
        log.write(batch(sequence, count, epoch=epoch), RETURNING)
    end, known = log.end, log.producers.snapshot()
    header = batch(new[0], new[1], epoch=new[2])
    if error is None:
        assert log.write(header) is None
        assert log.producers.states[P].last_offset == end + new[1] - 1
    else:
        with pytest.raises(error, match=rf"producer {P}"):
            log.write(header)
        assert log.producers.snapshot() == known, "a refused batch leaves no trace"


@pytest.mark.parametrize(("before", "new", "error"), ROWS.values(), ids=ROWS.keys())
def test_a_replicated_batch_is_recorded_whatever_it_is(
    before: list[Facts], new: Facts, error: type[TidelogError] | None
) -> None:
    log = Log(end=50)
    for sequence, count, epoch in before:
        log.write(batch(sequence, count, epoch=epoch), REPLICATION)
    sequence, count, epoch = new
    assert log.write(batch(sequence, count, epoch=epoch), REPLICATION) is None
    state = log.producers.states[P]
    assert (state.epoch, state.last_offset) == (epoch, log.end - 1)
    assert state.next_sequence == ((sequence + count) & MAX_SEQUENCE if sequence >= 0 else 0)


def test_producers_do_not_know_each_other() -> None:
    log = Log()
    log.write(batch(0, 5, pid=P))
    log.write(batch(0, 3, pid=Q))
    assert log.write(batch(5, 1, pid=P)) is None
    assert log.write(batch(3, 1, pid=Q)) is None


def test_a_new_epoch_forgets_the_batches_of_the_old() -> None:
    log = Log()
    log.write(batch(0, 1, epoch=0))
    log.write(batch(0, 1, epoch=1))
    assert log.write(batch(0, 1, epoch=1)) == (1, 1, 1000)
    with pytest.raises(InvalidProducerEpochError):
        log.write(batch(0, 1, epoch=0))


def test_edge_18_with_no_state_a_returning_producer_may_start_with_any_sequence() -> None:
    """The state has expired, or went with the records; the producer goes on where it was and may send again."""
    log = Log(end=7)
    assert log.write(batch(41, 2), RETURNING) is None
    assert log.write(batch(41, 2)) == (7, 8, 1000)
    assert log.write(batch(43, 1)) is None


@pytest.mark.parametrize("end", [0, 7])
def test_edge_18_the_retry_of_a_first_batch_does_not_fail_for_ever(end: int) -> None:
    """Two batches are in flight and the first is sent back, the partition not being ready.

    Were the second taken, the first could never follow: so an unknown producer starts with 0.
    """
    log = Log(end=end)
    first, second = batch(0, 17), batch(17, 5)
    with pytest.raises(SequenceGapError, match="an earlier batch may be missing"):
        log.write(second)
    assert log.write(first) is None
    assert log.write(second) is None


@pytest.mark.parametrize("back", range(5))
def test_edge_19_a_duplicate_of_the_last_five_is_answered_with_its_old_offsets(back: int) -> None:
    log = Log(end=1000)
    headers = [batch(3 * n, 3, timestamp=n) for n in range(8)]
    for header in headers:
        assert log.write(header) is None
    n = 7 - back
    assert log.write(headers[n]) == AppendedBatch(1000 + 3 * n, 1002 + 3 * n, timestamp=n)
    assert log.end == 1024, "and not written again"
    assert log.write(batch(24, 1)) is None, "nor does it disturb what follows"


def test_edge_19_the_window_is_five_batches() -> None:
    log = Log()
    headers = [batch(3 * n, 3) for n in range(6)]
    for header in headers:
        log.write(header)
    with pytest.raises(OutOfOrderSequenceError):
        log.write(headers[0])


def test_edge_19_also_when_the_sequences_wrap() -> None:
    log = Log(end=10)
    log.write(batch(MAX_SEQUENCE - 1, 4), RETURNING)
    log.write(batch(2, 1))
    assert log.write(batch(MAX_SEQUENCE - 1, 4)) == (10, 13, 1000)


def test_edge_19_also_inside_a_transaction_and_after_its_end() -> None:
    log = Log()
    log.write(batch(0, 2, txn=True))
    assert log.write(batch(0, 2, txn=True)) == (0, 1, 1000)
    log.finish(marker())
    assert log.write(batch(0, 2, txn=True)) == (0, 1, 1000)
    assert not log.producers.has_ongoing_transaction(P)
    assert log.write(batch(2, 1, txn=True)) is None


# Transactions


def test_a_transaction_from_begin_to_commit() -> None:
    log = Log(end=10)
    log.write(batch(0, 5, txn=True))
    log.write(batch(5, 5, txn=True))
    assert log.producers.has_ongoing_transaction(P)
    assert dict(log.producers.ongoing) == {10: P}
    assert log.lso() == 10
    assert log.finish(marker()) == CompletedTxn(P, 10, 20, aborted=False, last_stable_offset=21)
    assert not log.producers.has_ongoing_transaction(P)
    assert log.lso() == 21


def test_an_aborted_one_is_told_apart() -> None:
    log = Log()
    log.write(batch(0, 5, txn=True))
    assert log.finish(marker(), aborted=True) == CompletedTxn(P, 0, 5, aborted=True, last_stable_offset=6)


def test_the_stable_offset_of_a_completed_one_is_where_the_next_open_one_starts() -> None:
    log = Log()
    log.write(batch(0, 2, pid=P, txn=True))
    log.write(batch(0, 2, pid=Q, txn=True))
    completed = log.finish(marker(pid=P), aborted=True)
    assert completed == CompletedTxn(P, 0, 4, aborted=True, last_stable_offset=2)
    completed = log.finish(marker(pid=Q), aborted=True)
    assert completed == CompletedTxn(Q, 2, 5, aborted=True, last_stable_offset=6)


def test_a_marker_without_records_completes_nothing_but_counts() -> None:
    log = Log(end=5)
    assert log.finish(marker(epoch=4), coordinator_epoch=2) is None
    state = log.producers.states[P]
    assert (state.epoch, state.coordinator_epoch, state.last_offset) == (4, 2, -1)
    assert log.lso() == 6
    with pytest.raises(OutOfOrderSequenceError):
        log.write(batch(7, 1, epoch=4))
    assert log.write(batch(0, 1, epoch=4)) is None


def test_a_marker_with_a_higher_epoch_fences_the_producer() -> None:
    log = Log()
    log.write(batch(0, 3, txn=True))
    assert log.finish(marker(epoch=1), aborted=True) == CompletedTxn(P, 0, 3, aborted=True, last_stable_offset=4)
    with pytest.raises(InvalidProducerEpochError):
        log.write(batch(3, 1, txn=True))
    assert log.write(batch(0, 1, epoch=1, txn=True)) is None


def test_a_marker_with_a_lower_epoch_is_refused() -> None:
    log = Log()
    log.write(batch(0, 3, epoch=2, txn=True))
    with pytest.raises(InvalidProducerEpochError):
        log.finish(marker(epoch=1))
    assert log.producers.has_ongoing_transaction(P)


def test_a_replaced_coordinator_is_fenced() -> None:
    log = Log()
    log.write(batch(0, 1, txn=True))
    log.finish(marker(), coordinator_epoch=5)
    log.write(batch(1, 1, txn=True))
    with pytest.raises(TransactionCoordinatorFencedError, match="coordinator epoch 4"):
        log.finish(marker(), coordinator_epoch=4)
    log.producers.check_marker(marker(), 4, REPLICATION)
    assert log.finish(marker(), coordinator_epoch=5) is not None


def test_a_plain_batch_does_not_fit_into_a_transaction() -> None:
    log = Log()
    log.write(batch(0, 1, txn=True))
    for origin in (CLIENT, COORDINATOR):
        with pytest.raises(InvalidTxnStateError, match="open since offset 0"):
            log.write(batch(1, 1), origin)
    log.finish(marker())
    assert log.write(batch(1, 1)) is None


@pytest.mark.parametrize("sequence", [0, -1])
def test_the_sequences_of_a_coordinator_say_nothing_but_its_epochs_count(sequence: int) -> None:
    log = Log()
    for _ in range(2):
        assert log.write(batch(sequence, 2, epoch=3, txn=True), COORDINATOR) is None, "not a duplicate"
    assert (log.end, dict(log.producers.ongoing)) == (4, {0: P})
    with pytest.raises(InvalidProducerEpochError):
        log.write(batch(sequence, 1, epoch=2, txn=True), COORDINATOR)


# S13.3: the last stable offset


def test_s13_3_without_transactions_it_is_the_high_watermark() -> None:
    log = Log()
    log.write(batch(0, 10))
    assert log.lso(high_watermark=7) == 7


def test_s13_3_an_open_transaction_above_the_high_watermark_does_not_matter_yet() -> None:
    log = Log(end=10)
    log.write(batch(0, 5, txn=True))
    assert log.lso(high_watermark=8) == 8
    assert log.lso(high_watermark=10) == 10
    assert log.lso(high_watermark=15) == 10


def test_s13_3_the_oldest_open_one_decides() -> None:
    log = Log()
    log.write(batch(0, 2, pid=P, txn=True))
    log.write(batch(0, 2, pid=Q, txn=True))
    log.finish(marker(pid=Q))
    assert log.lso() == 0
    log.finish(marker(pid=P))
    assert log.lso() == 6


def test_s13_3_it_is_not_below_the_log_start() -> None:
    log = Log()
    log.write(batch(0, 10, txn=True))
    assert log.lso(log_start=4) == 4


def test_edge_14_records_below_the_high_watermark_wait_for_their_marker_to_be_below_it_too() -> None:
    log = Log()
    log.write(batch(0, 5, txn=True))
    log.finish(marker())  # at offset 5
    assert log.producers.first_unstable_offset == 0
    assert log.lso(high_watermark=5) == 0, "the marker is at the high watermark, so it is not committed"
    assert log.lso(high_watermark=6) == 6
    assert log.producers.first_unstable_offset is None


def test_edge_14_one_marker_below_the_high_watermark_does_not_release_the_next() -> None:
    log = Log()
    log.write(batch(0, 2, pid=P, txn=True))  # 0, 1
    log.write(batch(0, 2, pid=Q, txn=True))  # 2, 3
    log.finish(marker(pid=Q))  # 4
    log.finish(marker(pid=P))  # 5
    assert log.lso(high_watermark=5) == 0
    assert log.lso(high_watermark=6) == 6


def test_edge_14_a_cut_above_the_high_watermark_keeps_what_waits_for_it() -> None:
    """A snapshot tells of open transactions only; those whose marker is not committed have to be kept beside it."""
    log = Log()
    log.write(batch(0, 2, txn=True))
    log.finish(marker())  # at offset 2, the high watermark being 1
    log.write(batch(2, 5))
    taken = log.producers.snapshot()
    log.producers.truncate(4)
    log.producers.load(taken, lambda silent_ms: 0)
    assert log.producers.last_stable_offset(1, 0) == 0
    log.producers.on_high_watermark(3)
    assert log.producers.last_stable_offset(3, 0) == 3


def test_edge_14_a_marker_that_was_cut_away_decides_nothing() -> None:
    log = Log()
    log.write(batch(0, 2, txn=True))
    taken = log.producers.snapshot()
    log.finish(marker())  # at offset 2
    log.producers.truncate(2)
    assert log.producers.first_unstable_offset is None
    log.producers.load(taken, lambda silent_ms: 0)
    assert dict(log.producers.ongoing) == {0: P}
    assert log.lso(high_watermark=2) == 0


def test_edge_14_replay_may_find_an_older_transaction_than_those_that_were_kept() -> None:
    log = Log()
    log.write(batch(0, 1, pid=P, txn=True))  # 0
    log.write(batch(0, 1, pid=Q, txn=True))  # 1
    log.finish(marker(pid=Q))  # 2
    log.producers.truncate(3)
    assert log.producers.first_unstable_offset == 1
    log.producers.append(batch(0, 1, pid=P, txn=True), 0, 0)
    assert log.producers.first_unstable_offset == 0


def test_edge_22_a_transaction_that_lost_its_marker_can_be_aborted() -> None:
    """The epochs of an abort by hand are those that the partition itself tells."""
    log = Log()
    log.write(batch(0, 5, epoch=3, txn=True))
    log.write(batch(0, 5, pid=Q))
    assert log.lso() == 0, "read_committed stands still"
    first_offset, pid = next(iter(log.producers.ongoing.items()))
    hanging = log.producers.states[pid]
    completed = log.finish(
        marker(pid=pid, epoch=hanging.epoch), aborted=True, coordinator_epoch=hanging.coordinator_epoch
    )
    assert completed == CompletedTxn(P, first_offset, 10, aborted=True, last_stable_offset=11)
    assert log.lso() == 11


def test_what_is_below_the_log_start_is_not_waited_for_but_its_producer_is_still_known() -> None:
    log = Log()
    log.write(batch(0, 5, txn=True))
    log.finish(marker())
    log.producers.on_log_start(6)
    assert log.producers.first_unstable_offset is None
    assert log.write(batch(0, 5, txn=True)) == (0, 4, 1000)


# Forgetting


def test_an_idle_producer_is_forgotten_after_a_day() -> None:
    log = Log()
    log.now_ms = 5_000
    log.write(batch(0, 1, pid=P))
    log.write(batch(0, 1, pid=Q))
    log.now_ms = 6_000
    log.write(batch(1, 1, pid=Q))
    assert log.producers.remove_expired(6_000) == 0
    assert log.producers.remove_expired(DAY_MS + 4_999) == 0
    assert log.producers.remove_expired(DAY_MS + 5_000) == 1
    assert list(log.producers.states) == [Q]
    assert log.producers.remove_expired(DAY_MS + 6_000) == 1


def test_a_producer_that_writes_old_records_is_not_idle() -> None:
    """Its retry would be written twice."""
    log = Log()
    for number in range(5):
        log.now_ms = (number + 3) * DAY_MS
        log.write(batch(number, 1, timestamp=1000))
        assert log.producers.remove_expired(log.now_ms + DAY_MS - 1) == 0
    assert log.write(batch(4, 1, timestamp=1000)) == (4, 4, 1000)


def test_not_while_a_transaction_is_open() -> None:
    log = Log()
    log.write(batch(0, 1, txn=True))
    for days in (1, 10):
        assert log.producers.remove_expired(days * DAY_MS) == 0
    log.now_ms = 11 * DAY_MS
    log.finish(marker())
    assert log.producers.remove_expired(12 * DAY_MS - 1) == 0
    assert log.producers.remove_expired(12 * DAY_MS) == 1


def test_clear_forgets_everything() -> None:
    log = Log()
    log.write(batch(0, 1, txn=True))
    log.finish(marker())
    log.write(batch(1, 1, txn=True))
    log.producers.clear()
    assert (log.producers.snapshot(), dict(log.producers.ongoing)) == ([], {})
    assert log.lso(high_watermark=1) == 1


# Snapshots

SNAPSHOT_OF_KAFKA = bytes.fromhex(
    "0001e730c34b00000003"
    "00000000000000070003000000630000000000000064000000040000011f71fb04cb0000000b000000000000002a"
    "00000000000000080000ffffffffffffffffffffffff00000000ffffffffffffffffffffffffffffffffffffffff"
    "00000000000000097fff00000001000000000000000700000004000000000000000500000002ffffffffffffffff"
)
ENTRIES_OF_KAFKA = [
    SnapshotEntry(7, 3, 99, 100, 4, 1234567890123, 11, 42),
    SnapshotEntry(8, 0, -1, -1, 0, -1, -1, -1),
    SnapshotEntry(9, 32767, 1, 7, 4, 5, 2, -1),
]


def test_a_snapshot_is_as_kafka_writes_it() -> None:
    assert decode_snapshot(SNAPSHOT_OF_KAFKA) == ENTRIES_OF_KAFKA
    assert encode_snapshot(ENTRIES_OF_KAFKA) == SNAPSHOT_OF_KAFKA
    assert encode_snapshot([]).hex() == "0001" + "48674bc7" + "00000000"


def test_what_a_snapshot_tells() -> None:
    producers = new_producers()
    producers.load(ENTRIES_OF_KAFKA, lambda silent_ms: 0)
    assert dict(producers.ongoing) == {42: 7}
    assert producers.first_unstable_offset == 42
    assert producers.check(batch(95, 5, pid=7, epoch=3, txn=True), 0) == (96, 100, 1234567890123)
    assert producers.check(batch(100, 1, pid=7, epoch=3, txn=True), 0) is None
    assert producers.check(batch(MAX_SEQUENCE - 2, 5, pid=9, epoch=32767), 0) == (3, 7, 5)
    assert producers.check(batch(2, 1, pid=9, epoch=32767), 0) is None
    assert sorted(producers.snapshot()) == ENTRIES_OF_KAFKA


def test_edge_19_the_window_outlives_a_snapshot() -> None:
    before = new_producers()
    sent = [batch(5 * number, 5, timestamp=100 + number) for number in range(7)]
    for number, one in enumerate(sent):
        before.append(one, 1000 + 5 * number, 0)
    after = new_producers()
    after.load(decode_snapshot(encode_snapshot(before.snapshot())), lambda silent_ms: 0)
    for number, one in list(enumerate(sent))[2:]:
        assert after.check(one, 0) == (1000 + 5 * number, 1004 + 5 * number, 100 + number)
    with pytest.raises(OutOfOrderSequenceError):
        after.check(sent[1], 0)
    assert after.check(batch(35, 1), 0) is None


def test_open_transactions_are_kept_in_order_whatever_the_order_of_the_snapshot() -> None:
    producers = new_producers()
    later, earlier = SnapshotEntry(1, 0, 0, 50, 0, 0, 0, 50), SnapshotEntry(2, 0, 0, 40, 0, 0, 0, 40)
    producers.load([later, earlier], lambda silent_ms: 0)
    assert list(producers.ongoing.items()) == [(40, 2), (50, 1)]
    completed = producers.append_marker(marker(pid=1), 60, 0, aborted=True, now_ms=0)
    assert completed == CompletedTxn(1, 50, 60, aborted=True, last_stable_offset=40)


def test_producers_of_a_snapshot_are_silent_since_it_was_written() -> None:
    producers = new_producers()
    producers.load(ENTRIES_OF_KAFKA, lambda silent_ms: 20 * DAY_MS - silent_ms)
    assert producers.remove_expired(21 * DAY_MS - 1) == 0
    assert producers.remove_expired(21 * DAY_MS) == 2
    assert list(producers.states) == [7], "it has a transaction open"


def _with_crc(body: bytes) -> bytes:
    return b"\0\1" + crc32c(body).to_bytes(4, "big") + body


CORRUPT = {
    "empty": (b"", "too few"),
    "short": (SNAPSHOT_OF_KAFKA[:9], "too few"),
    "another version": (b"\x00\x02" + SNAPSHOT_OF_KAFKA[2:], "version 2"),
    "a flipped bit": (SNAPSHOT_OF_KAFKA[:-1] + b"\xfe", "CRC"),
    "torn": (SNAPSHOT_OF_KAFKA[:-46], "CRC"),
    "zeros": (bytes(len(SNAPSHOT_OF_KAFKA)), "version 0"),
    "bytes behind it": (_with_crc(SNAPSHOT_OF_KAFKA[6:] + b"sea"), "unknown bytes"),
    "too few batches": (_with_crc(SNAPSHOT_OF_KAFKA[6:] + b"tide\2"), "ends within"),
    "too many batches": (_with_crc(SNAPSHOT_OF_KAFKA[6:] + b"tide\0\0\0\0"), "unknown bytes"),
    "too few silences": (_with_crc(SNAPSHOT_OF_KAFKA[6:] + b"mute" + bytes(23)), "not tell of all"),
    "too many silences": (_with_crc(SNAPSHOT_OF_KAFKA[6:] + b"mute" + bytes(25)), "unknown bytes"),
    "a negative count": (_with_crc(b"\xff\xff\xff\xff"), "announces -1 entries"),
    "a wrong count": (b"\0\1" + crc32c(b"\0\0\0\1").to_bytes(4, "big") + b"\0\0\0\1", "announces 1 entries"),
}


@pytest.mark.parametrize(("data", "message"), CORRUPT.values(), ids=CORRUPT.keys())
def test_a_corrupt_snapshot_is_reported(data: bytes, message: str) -> None:
    with pytest.raises(CorruptSnapshotError, match=message):
        decode_snapshot(data)


# Snapshot files


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[ProducerSnapshots]:
    disk = RealDisk()
    snapshots = ProducerSnapshots(disk, str(tmp_path))
    for offset in (300, 100, 200):
        snapshots.write(offset, [SnapshotEntry(offset, 0, 0, 0, 0, 0, 0, -1)])
    yield snapshots
    disk.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_snapshots_are_named_by_their_offset(snapshots: ProducerSnapshots, tmp_path: Path) -> None:
    assert names(tmp_path) == [snapshot_name(offset) for offset in (100, 200, 300)]
    assert snapshot_name(100) == "00000000000000000100.snapshot"
    assert list(snapshots.offsets) == [100, 200, 300]
    snapshots.write(200, [])
    assert list(snapshots.offsets) == [100, 200, 300]


def test_the_directory_is_found_as_it_is(snapshots: ProducerSnapshots, tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").touch()
    (tmp_path / "00000000000000000150.snapshot.deleted").touch()
    (tmp_path / "other.snapshot").touch()
    disk = RealDisk()
    assert list(ProducerSnapshots(disk, str(tmp_path)).offsets) == [100, 200, 300]
    disk.close()


LATEST = {
    "the newest": (0, 1000, 300),
    "not above the log end": (0, 299, 200),
    "at the log end": (0, 300, 300),
    "above the log start": (200, 1000, 300),
    "none between": (101, 150, None),
    "at the log start": (300, 1000, 300),
    "none from the log start on": (301, 1000, None),
}


@pytest.mark.parametrize(("log_start", "at_most", "offset"), LATEST.values(), ids=LATEST.keys())
def test_the_latest_snapshot(snapshots: ProducerSnapshots, log_start: int, at_most: int, offset: int | None) -> None:
    found = snapshots.load_latest(log_start, at_most)
    assert (found and found[0]) == offset
    assert found is None or found[1][0].producer_id == offset


def test_a_corrupt_one_is_removed_and_an_older_one_taken(snapshots: ProducerSnapshots, tmp_path: Path) -> None:
    (tmp_path / snapshot_name(300)).write_bytes(b"torn")
    (tmp_path / snapshot_name(200)).unlink()
    found = snapshots.load_latest(0, 1000)
    assert found is not None
    assert found[0] == 100
    assert list(snapshots.offsets) == [100]
    assert names(tmp_path) == [snapshot_name(100)]


def test_removal(snapshots: ProducerSnapshots, tmp_path: Path) -> None:
    snapshots.remove_before(200)
    assert list(snapshots.offsets) == [200, 300]
    snapshots.remove_after(200)
    assert list(snapshots.offsets) == [200]
    assert names(tmp_path) == [snapshot_name(200)]
    snapshots.remove(200)
    snapshots.remove(200)
    assert names(tmp_path) == []


STRAYS = {
    "all have their segment": ([100, 200, 300], [100, 200, 300]),
    "the newest of a clean close stays": ([0, 100, 200], [100, 200, 300]),
    "only the newest stray can be that": ([0, 100], [100, 300]),
    "a stray below the last segment goes": ([100, 300], [100, 300]),
    "past all of them there is none": ([400], []),
    "without segments the newest stays": ([], [300]),
}


@pytest.mark.parametrize(("segments", "left"), STRAYS.values(), ids=STRAYS.keys())
def test_strays(snapshots: ProducerSnapshots, segments: list[int], left: list[int]) -> None:
    snapshots.remove_strays(segments)
    assert list(snapshots.offsets) == left
