"""Walking log bytes: sound prefixes of damaged logs."""

from __future__ import annotations

import struct

import pytest

from tidelog.records.build import build_batch
from tidelog.records.compaction import empty_batch
from tidelog.records.header import HEADER_SIZE, Codec, read_header, seal
from tidelog.records.scan import TORN, scan

FIRST = bytes(build_batch([(1, b"a", b"1"), (2, b"b", b"2")], base_offset=10))
SECOND = bytes(build_batch([(3, b"c", b"3" * 300)], base_offset=12, codec=Codec.ZSTD))
THIRD = bytes(build_batch([(4, b"d", b"4")], base_offset=20))
LOG = FIRST + SECOND + THIRD
STARTS = [0, len(FIRST), len(FIRST + SECOND)]


def test_a_sound_log() -> None:
    found = scan(LOG)
    assert [position for position, _ in found.batches] == STARTS
    assert [header.base_offset for _, header in found.batches] == [10, 12, 20]
    assert (found.end, found.reason, found.needed) == (len(LOG), None, 0)
    assert [header for _, header in found.batches] == [read_header(LOG, position) for position in STARTS]


def test_from_a_position_and_nothing() -> None:
    assert [position for position, _ in scan(LOG, STARTS[1]).batches] == STARTS[1:]
    assert scan(b"") == ([], 0, None, 0)


@pytest.mark.parametrize("cut", range(1, len(LOG)))
def test_cut_at_every_byte(cut: int) -> None:
    found = scan(memoryview(LOG)[:cut])
    ends = [*STARTS, len(LOG)]
    whole = max(end for end in ends if end <= cut)
    assert found.end == whole
    assert len(found.batches) == ends.index(whole)
    if cut == whole:
        assert found.reason is None
    else:
        assert found.reason == TORN
        torn = ends[ends.index(whole) + 1] - whole
        assert found.needed == (torn if cut - whole >= HEADER_SIZE else HEADER_SIZE)


@pytest.mark.parametrize("place", range(STARTS[1] + 16, STARTS[2]))
def test_a_flipped_bit_ends_the_prefix(place: int) -> None:
    damaged = bytearray(LOG)
    damaged[place] ^= 0x10
    found = scan(damaged)
    assert found.end == STARTS[1]
    assert len(found.batches) == 1
    assert found.reason not in (None, TORN)


def _patched(layout: str, place: int, number: int) -> bytearray:
    batch = bytearray(THIRD)
    struct.pack_into(layout, batch, place, number)
    seal(batch) if read_header(THIRD).length == struct.unpack_from(">i", batch, 8)[0] else None
    return batch


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (_patched(">i", 8, 48), "length of 48"),
        (_patched(">i", 8, -1), "length of -1"),
        (_patched(">i", 8, 2**31 - 1), "length of 2147483647"),
        (_patched(">b", 16, 1), "magic 1"),
        (_patched(">b", 16, 3), "magic 3"),
        (_patched(">q", 0, 5), "13 or later is due"),
        (_patched(">h", 21, 5), "compression 5"),
        (_patched(">i", 23, -1), "up to delta -1"),
        (_patched(">i", 57, 2), "claims 2 records"),
        (_patched(">i", 57, -1), "claims -1 records"),
        (bytes(100), "length of 0"),
    ],
)
def test_what_is_wrong_is_said(batch: bytes, says: str) -> None:
    found = scan(FIRST + SECOND + bytes(batch))
    assert found.end == STARTS[2]
    assert found.reason is not None
    assert says in found.reason


def test_limits_of_the_caller() -> None:
    assert scan(LOG, min_offset=10).reason is None
    below = scan(LOG, min_offset=11)
    assert (below.batches, below.end) == ([], 0)
    assert scan(LOG, max_batch_bytes=len(FIRST)).end in (0, len(FIRST))
    assert scan(LOG, max_batch_bytes=60).end == 0


def test_without_the_crc_only_headers_count() -> None:
    damaged = bytearray(LOG)
    damaged[STARTS[1] + 70] ^= 1
    assert scan(damaged, verify_crc=False).reason is None


def test_what_compaction_leaves_is_sound() -> None:
    found = scan(FIRST + bytes(empty_batch(read_header(SECOND))) + THIRD)
    assert found.reason is None
    assert [header.record_count for _, header in found.batches] == [2, 0, 1]
