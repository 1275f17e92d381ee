"""Producer state against models that keep everything and search it the slow way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kits.logkit import new_producers
from tidelog.errors import InvalidProducerEpochError, OutOfOrderSequenceError, TidelogError
from tidelog.log.producer_snapshot import (
    CorruptSnapshotError,
    EarlierBatch,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from tidelog.log.producer_state import AppendedBatch
from tidelog.log.producers import AppendOrigin, Producers
from tidelog.log.transaction_index import AbortedTxn, TransactionIndex
from tidelog.ports import Disk
from tidelog.records.header import BatchHeader
from tidelog.types import Buffer

SEQUENCES = 2**31


def header(pid: int, epoch: int, sequence: int, count: int, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, 1000, 1000, pid, epoch, sequence, count)


# Idempotence


class Written(NamedTuple):
    epoch: int
    sequence: int
    records: int
    offset: int


class NaiveProducer:
    """All batches of one producer, and S13.1 as it reads."""

    def __init__(self) -> None:
        self.written: list[Written] = []

    @property
    def epoch(self) -> int:
        return self.written[-1].epoch if self.written else 0

    @property
    def expected(self) -> int:
        last = self.written[-1] if self.written else Written(0, SEQUENCES - 6, 0, 0)
        return (last.sequence + last.records) % SEQUENCES

    def answer(self, epoch: int, sequence: int, count: int) -> AppendedBatch | type[TidelogError] | None:
        if not self.written:
            return None
        for batch in self.written[-5:]:
            if batch[:3] == (epoch, sequence, count) and epoch == self.epoch:
                return AppendedBatch(batch.offset, batch.offset + count - 1, 1000)
        if epoch < self.epoch:
            return InvalidProducerEpochError
        if sequence != (0 if epoch > self.epoch else self.expected):
            return OutOfOrderSequenceError
        return None


SENT = st.lists(
    st.tuples(
        st.integers(0, 2),  # producer
        st.sampled_from(["next", "next", "again", "next epoch", "anything"]),
        st.integers(0, 7),  # how far back, or how far off
        st.integers(1, 4),  # records
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(SENT)
def test_s13_1_retries_gaps_epochs_and_wraps(sent: list[tuple[int, str, int, int]]) -> None:
    producers, end = new_producers(), 5
    model = [NaiveProducer() for _ in range(3)]
    for pid, what, number, count in sent:
        naive = model[pid]
        epoch, sequence = naive.epoch, naive.expected
        if what == "again" and number < len(naive.written):
            epoch, sequence, count, _ = naive.written[-1 - number]
        elif what == "next epoch":
            epoch, sequence = epoch + 1, 0 if number else sequence
        elif what == "anything":
            epoch, sequence = max(epoch + number % 3 - 1, 0), (sequence + number - 4) % SEQUENCES
        batch = header(pid, epoch, sequence, count)
        expected = naive.answer(epoch, sequence, count)
        found: AppendedBatch | type[TidelogError] | None
        try:
            found = producers.check(batch, 0, AppendOrigin.RETURNING)
        except OutOfOrderSequenceError:
            found = OutOfOrderSequenceError
        except TidelogError as refusal:
            found = type(refusal)
        assert found == expected
        if found is None:
            producers.append(batch, end, 0)
            naive.written.append(Written(epoch, sequence, count, end))
            end += count


# Transactions


class Event(NamedTuple):
    """A batch or a marker in the log."""

    offset: int
    pid: int
    kind: str  # data, txn, commit, abort
    records: int


class Txn(NamedTuple):
    pid: int
    first_offset: int
    marker_offset: int | None
    aborted: bool


def transactions_in(events: Sequence[Event]) -> list[Txn]:
    """All transactions a log tells of, open ones too, by pairing records with the next marker of their producer."""
    found = []
    begun: dict[int, int] = {}
    for event in events:
        if event.kind == "txn":
            begun.setdefault(event.pid, event.offset)
        elif event.kind != "data" and event.pid in begun:
            found.append(Txn(event.pid, begun.pop(event.pid), event.offset, event.kind == "abort"))
    return found + [Txn(pid, first, None, False) for pid, first in begun.items()]


def stable_offset(events: Sequence[Event], high_watermark: int) -> int:
    """S13.3: below it there is no record of a transaction that is not completed below the high watermark."""
    unstable = (
        txn.first_offset
        for txn in transactions_in(events)
        if txn.marker_offset is None or txn.marker_offset >= high_watermark
    )
    return min([high_watermark, *unstable])


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    end = 0
    in_transaction: set[int] = set()
    for pid, kind, count in draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(["data", "txn", "txn", "commit", "abort"]), st.integers(1, 3)),
            max_size=30,
        )
    ):
        if kind == "data" and pid in in_transaction:
            continue
        if kind == "txn":
            in_transaction.add(pid)
        elif kind != "data":
            in_transaction.discard(pid)
            count = 1
        events.append(Event(end, pid, kind, count))
        end += count
    return events


def feed(producers: Producers, events: Sequence[Event], index: TransactionIndex | None = None) -> None:
    for event in events:
        if event.kind in ("data", "txn"):
            attributes = 0x10 if event.kind == "txn" else 0
            producers.append(header(event.pid, 0, event.offset, event.records, attributes), event.offset, 0)
            continue
        marker = header(event.pid, 0, -1, 1, 0x30)
        done = producers.append_marker(marker, event.offset, 0, event.kind == "abort", 0)
        if done is not None and done.aborted and index is not None:
            index.append(AbortedTxn(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset))


def end_of(events: Sequence[Event]) -> int:
    return events[-1].offset + events[-1].records if events else 0


@settings(max_examples=200)
@given(logs(), st.data())
def test_s13_3_the_last_stable_offset_while_the_log_grows_and_the_watermark_rises(
    log: list[Event], data: st.DataObject
) -> None:
    producers, high_watermark = new_producers(), 0
    for count in range(1, len(log) + 1):
        feed(producers, log[count - 1 : count])
        high_watermark = data.draw(st.integers(high_watermark, end_of(log[:count])))
        producers.on_high_watermark(high_watermark)
        assert producers.last_stable_offset(high_watermark, 0) == stable_offset(log[:count], high_watermark)
    assert dict(producers.ongoing) == {
        txn.first_offset: txn.pid for txn in transactions_in(log) if txn.marker_offset is None
    }
    assert list(producers.ongoing) == sorted(producers.ongoing)


@settings(max_examples=200)
@given(logs(), st.data())
def test_cut_and_replayed_from_a_snapshot_it_is_as_if_the_rest_had_never_been(
    log: list[Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log)))
    taken = data.draw(st.integers(0, cut))
    high_watermark = data.draw(st.integers(0, end_of(log[:cut])))
    producers = new_producers()
    feed(producers, log[:taken])
    snapshot = decode_snapshot(encode_snapshot(producers.snapshot()))
    feed(producers, log[taken:])
    producers.on_high_watermark(high_watermark)

    producers.truncate(end_of(log[:cut]))
    producers.load(snapshot, lambda silent_ms: 0)
    feed(producers, log[taken:cut])

    fresh = new_producers()
    feed(fresh, log[:cut])
    assert sorted(producers.snapshot()) == sorted(fresh.snapshot())
    assert dict(producers.ongoing) == dict(fresh.ongoing)
    for later in range(high_watermark, end_of(log[:cut]) + 1):
        producers.on_high_watermark(later)
        assert producers.last_stable_offset(later, 0) == stable_offset(log[:cut], later)


class NoDisk:
    """Takes what is written and never has anything."""

    def read_file(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def open(self, path: str, *, create: bool = False) -> NoDisk:
        return self

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        pass


@settings(max_examples=200)
@given(logs(), st.lists(st.integers(0, 30), max_size=3), st.data())
def test_s13_3_a_reader_below_the_stable_offset_is_told_of_every_aborted_transaction_it_meets(
    log: list[Event], rolls: list[int], data: st.DataObject
) -> None:
    """Segment by segment, stopping as soon as an index says that it was all."""
    producers = new_producers()
    indexes = []
    places = [0, *sorted(rolls), len(log)]
    for start, end in pairwise(places):
        index = TransactionIndex(cast(Disk, NoDisk()), f"{start}.txnindex")
        feed(producers, log[start:end], index)
        indexes.append(index)
    stable = producers.last_stable_offset(end_of(log), 0)
    upper = data.draw(st.integers(0, stable))
    fetch = data.draw(st.integers(0, upper))

    found: list[AbortedTxn] = []
    for index in indexes:
        some, complete = index.collect(fetch, upper)
        found += some
        if complete:
            break
    told = {(txn.producer_id, txn.first_offset, txn.last_offset) for txn in found}
    assert len(told) == len(found)
    assert told == {
        (txn.pid, txn.first_offset, txn.marker_offset)
        for txn in transactions_in(log)
        if txn.aborted and txn.marker_offset is not None and txn.marker_offset >= fetch and txn.first_offset < upper
    }


# Snapshots

INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
EARLIER = st.lists(st.builds(EarlierBatch, INT32, INT64, INT32, INT64), max_size=4).map(tuple)
SILENCE = st.integers(0, 2**63 - 1)
ENTRIES = st.lists(
    st.builds(SnapshotEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64, EARLIER, SILENCE), max_size=5
)


@given(ENTRIES)
def test_a_snapshot_is_read_as_it_was_written(entries: list[SnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


@given(ENTRIES, st.data())
def test_a_changed_snapshot_is_never_taken_for_a_good_one(entries: list[SnapshotEntry], data: st.DataObject) -> None:
    good = encode_snapshot(entries)
    cut = data.draw(st.integers(0, len(good)))
    if cut == len(good):
        place = data.draw(st.integers(0, len(good) - 1))
        bit = data.draw(st.integers(0, 7))
        bad = good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :]
    else:
        bad = good[:cut]
    try:
        decode_snapshot(bad)
    except CorruptSnapshotError:
        return
    raise AssertionError("taken for a good one")
