"""The sparse indexes: raw entries, searched in place."""

import pytest

from tidelog.log.index import OffsetIndex, TimeIndex, write_index
from tidelog.ports import Disk

BASE = 1000


@pytest.fixture
def offsets() -> OffsetIndex:
    index = OffsetIndex("x.index", BASE, 1 << 20)
    for last_offset, position in [(1004, 500), (1009, 900), (1020, 5000)]:
        index.append(last_offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "position"),
    [(1000, 0), (1003, 0), (1004, 500), (1005, 500), (1009, 900), (1019, 900), (1020, 5000), (9999, 5000)],
)
def test_a_lookup_is_never_past_the_batch_that_holds_the_offset(offsets: OffsetIndex, offset: int, position: int):
    assert offsets.position_for(offset) == position


def test_offset_entries_are_kafkas_eight_bytes(offsets: OffsetIndex):
    assert offsets.changes() == (0, bytes.fromhex("00000004000001f4 0000000900000384 0000001400001388"))


@pytest.mark.parametrize(("cut", "left"), [(1000, 0), (1004, 0), (1005, 1), (1020, 2), (1021, 3)])
def test_truncation_drops_entries_of_batches_that_end_at_or_after_it(offsets: OffsetIndex, cut: int, left: int):
    assert len(offsets.truncated(cut)) == left
    assert len(offsets) == 3


def test_only_what_is_new_is_written_and_a_shorter_index_shortens_the_file(
    offsets: OffsetIndex, disk: Disk, directory: str
):
    path = directory + "/x.index"
    write_index(disk, path, *offsets.changes(), sync=True)
    offsets.append(1030, 6000)
    position, data = offsets.changes()
    assert (position, len(data)) == (24, 8)
    write_index(disk, path, position, data, sync=True)
    write_index(disk, path, *offsets.truncated(1009).changes(), sync=True)
    read_back = OffsetIndex(path, BASE, 1 << 20, disk.read_file(path))
    assert [read_back[slot] for slot in range(len(read_back))] == [(1004, 500)]


@pytest.mark.parametrize(
    ("data", "segment_bytes", "sane"),
    [
        (b"", 0, True),
        (bytes(7), 100, False),
        (bytes.fromhex("0000000400000050"), 100, True),
        (bytes.fromhex("0000000400000064"), 100, False),
        (bytes.fromhex("ffffffff00000010"), 100, False),
    ],
    ids=["empty", "torn entry", "good", "points past the segment", "negative offset"],
)
def test_sanity_of_an_index_found_on_disk(data: bytes, segment_bytes: int, sane: bool):
    assert OffsetIndex("x", BASE, 1 << 20, data).sane(segment_bytes) is sane


def test_an_index_is_full_before_it_has_no_room_for_the_last_entry_of_a_roll():
    index = OffsetIndex("x", 0, 24)
    assert not index.full
    index.append(1, 10)
    assert not index.full
    index.append(2, 20)
    assert index.full


@pytest.fixture
def times() -> TimeIndex:
    index = TimeIndex("x.timeindex", BASE, 1 << 20)
    for timestamp, offset in [(50, 1004), (70, 1009), (70, 1012), (60, 1015), (90, 1020)]:
        index.append(timestamp, offset)
    return index


def test_the_time_index_takes_only_rising_timestamps(times: TimeIndex):
    assert [times[slot] for slot in range(len(times))] == [(50, 1004), (70, 1009), (90, 1020)]


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(0, 1000), (50, 1000), (51, 1004), (70, 1004), (71, 1009), (90, 1009), (91, 1020)]
)
def test_everything_before_the_offset_of_a_time_is_older(times: TimeIndex, timestamp: int, offset: int):
    assert times.offset_before(timestamp) == offset


@pytest.mark.parametrize(("cut", "left"), [(1004, 0), (1005, 1), (1020, 2), (1021, 3)])
def test_time_entries_at_or_past_a_cut_go(times: TimeIndex, cut: int, left: int):
    assert len(times.truncated(cut)) == left
