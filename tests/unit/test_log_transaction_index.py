"""The transaction index: aborted transactions by segment, in Kafka's format (S13.3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.host.disk import RealDisk
from tidelog.log.transaction_index import ENTRY_SIZE, AbortedTxn, CorruptIndexError, TransactionIndex

WRITTEN_BY_KAFKA = bytes.fromhex(
    "000000000000000000070000000000000000000000000000000a000000000000000b"
    "000000000000000000080000000000000005000000000000000c000000000000000d"
)
FIRST = AbortedTxn(producer_id=7, first_offset=0, last_offset=10, last_stable_offset=11)
SECOND = AbortedTxn(producer_id=8, first_offset=5, last_offset=12, last_stable_offset=13)


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk()
    yield disk
    disk.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


def index_of(disk: RealDisk, path: Path, entries: list[AbortedTxn]) -> TransactionIndex:
    index = TransactionIndex(disk, str(path))
    for entry in entries:
        index.append(entry)
    return index


def test_the_format_is_kafkas(disk: RealDisk, path: Path) -> None:
    index = index_of(disk, path, [FIRST, SECOND])
    index.sync()
    index.close()
    assert path.read_bytes() == WRITTEN_BY_KAFKA
    assert TransactionIndex(disk, str(path)).entries() == [FIRST, SECOND]


def test_there_is_no_file_until_the_first_entry(disk: RealDisk, path: Path) -> None:
    index = TransactionIndex(disk, str(path))
    known_to_be_empty = [index.empty]
    assert index.entries() == []
    known_to_be_empty.append(index.empty)
    assert known_to_be_empty == [False, True], "before it is read nobody knows"
    assert index.collect(0, 100) == ([], False)
    index.truncate(0)
    index.reset()
    index.check(0)
    index.sync()
    index.close()
    assert not path.exists()
    index.append(FIRST)
    assert path.stat().st_size == ENTRY_SIZE == 34
    assert not index.empty


def test_entries_come_in_the_order_of_their_markers(disk: RealDisk, path: Path) -> None:
    index = index_of(disk, path, [FIRST])
    with pytest.raises(ValueError, match="does not come after"):
        index.append(FIRST)
    assert index.entries() == [FIRST]


# Three transactions: 0 to 10, 5 to 12 and, after a pause, 20 to 30. While the last was open the first two ended.
A, B, C = AbortedTxn(1, 0, 10, 5), AbortedTxn(2, 5, 12, 13), AbortedTxn(3, 20, 30, 31)

COLLECT_ROWS: dict[str, tuple[int, int, list[AbortedTxn], bool]] = {
    "all": (0, 100, [A, B, C], False),
    "the upper bound is exclusive": (0, 5, [A], True),
    "a first record below the bound": (0, 6, [A, B], True),
    "a marker at the fetch offset still counts": (12, 13, [B], True),
    "one past it does not": (13, 14, [], True),
    "the gap between them": (13, 20, [], True),
    "only the last": (13, 21, [C], True),
    "past all markers: later segments may have more": (31, 40, [], False),
}


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "found", "complete"), COLLECT_ROWS.values(), ids=COLLECT_ROWS.keys()
)
def test_s13_3_collect(
    disk: RealDisk, path: Path, fetch_offset: int, upper_bound: int, found: list[AbortedTxn], complete: bool
) -> None:
    assert index_of(disk, path, [A, B, C]).collect(fetch_offset, upper_bound) == (found, complete)


@pytest.mark.parametrize(
    ("offset", "left"), [(31, [A, B, C]), (30, [A, B]), (12, [A]), (11, [A]), (10, []), (0, [])], ids=str
)
def test_truncation_drops_markers_at_or_after_the_cut(
    disk: RealDisk, path: Path, offset: int, left: list[AbortedTxn]
) -> None:
    index_of(disk, path, [A, B, C]).close()
    index = TransactionIndex(disk, str(path))
    index.truncate(offset)
    assert index.entries() == TransactionIndex(disk, str(path)).entries() == left
    again = AbortedTxn(9, 31, 32, 33)
    index.append(again)
    assert TransactionIndex(disk, str(path)).entries() == [*left, again]


def test_a_torn_entry_is_not_seen_and_is_overwritten(disk: RealDisk, path: Path) -> None:
    path.write_bytes(WRITTEN_BY_KAFKA[:-1])
    index = TransactionIndex(disk, str(path))
    assert index.entries() == [FIRST]
    index.append(SECOND)
    assert path.read_bytes() == WRITTEN_BY_KAFKA


def test_reset_empties_even_what_cannot_be_read(disk: RealDisk, path: Path) -> None:
    path.write_bytes(b"\x00\x09" + WRITTEN_BY_KAFKA[2:])
    index = TransactionIndex(disk, str(path))
    with pytest.raises(CorruptIndexError, match="version 9"):
        index.entries()
    index.reset()
    index.append(SECOND)
    assert TransactionIndex(disk, str(path)).entries() == [SECOND]


def test_an_entry_that_the_loop_adds_while_a_disk_thread_reads_is_not_lost(disk: RealDisk, path: Path) -> None:
    class SlowDisk(RealDisk):
        """Between its reading and its return, the other thread appends."""

        interrupted = False

        def read_file(self, path: str) -> bytes:
            try:
                return disk.read_file(path)
            finally:
                if not self.interrupted:
                    self.interrupted = True
                    index.append(SECOND)

    index_of(disk, path, [FIRST]).close()
    slow = SlowDisk()
    index = TransactionIndex(slow, str(path))
    assert index.collect(0, 100) == ([FIRST, SECOND], False)
    index.append(C)
    assert TransactionIndex(disk, str(path)).entries() == index.entries() == [FIRST, SECOND, C]
    slow.close()


CORRUPT = {
    "a marker before the segment": (20, [FIRST]),
    "one that ends before it starts": (0, [AbortedTxn(1, 20, 10, 30)]),
}


@pytest.mark.parametrize(("start_offset", "entries"), CORRUPT.values(), ids=CORRUPT.keys())
def test_check_finds_what_cannot_be(disk: RealDisk, path: Path, start_offset: int, entries: list[AbortedTxn]) -> None:
    with pytest.raises(CorruptIndexError, match="cannot follow offset"):
        index_of(disk, path, entries).check(start_offset)


def test_check_finds_markers_out_of_order(disk: RealDisk, path: Path) -> None:
    path.write_bytes(WRITTEN_BY_KAFKA[ENTRY_SIZE:] + WRITTEN_BY_KAFKA[:ENTRY_SIZE])
    with pytest.raises(CorruptIndexError, match="cannot follow offset 12"):
        TransactionIndex(disk, str(path)).check(0)


def test_a_transaction_may_begin_in_an_earlier_segment(disk: RealDisk, path: Path) -> None:
    index_of(disk, path, [FIRST, SECOND]).check(9)
