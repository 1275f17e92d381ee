"""Compaction of one batch, and the map of last offsets behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.kits.records_lives import both_lives, compiled, plain
from tidelog.records.header import Codec, read_header

SEED = bytes(range(16))
codecs = pytest.mark.parametrize("codec", list(Codec))

# Of SipHash-2-4 with 128 bits, from its authors' test vectors: key 00..0f, message the first n of 00 01 02...
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
}


@both_lives
def test_keys_are_known_by_siphash(life: Any) -> None:
    for size, digest in VECTORS.items():
        assert life.offset_map.key_hash(SEED, bytes(range(size))).hex() == digest


def test_both_lives_hash_alike() -> None:
    for size in range(64):
        key = bytes(range(size))
        assert plain.offset_map.key_hash(SEED, key) == compiled.offset_map.key_hash(SEED, key)


def _map(life: Any, slots: int = 100) -> Any:
    return life.compaction.OffsetMap(24 * slots, SEED)


def _index(life: Any, offsets: Any, batch: memoryview) -> bool:
    done: bool = life.compaction.index_batch(offsets, batch, read_header(batch))
    return done


@both_lives
def test_the_last_offset_of_each_key(life: Any) -> None:
    offsets = _map(life)
    assert _index(
        life, offsets, life.build.build_batch([(0, b"a", b""), (0, None, b""), (0, b"b", None)], base_offset=5)
    )
    assert _index(
        life, offsets, life.build.build_batch([(0, b"a", b""), (0, b"", b"")], base_offset=8, codec=Codec.LZ4)
    )
    assert [offsets.latest(key) for key in (b"a", b"b", b"", b"c")] == [8, 7, 9, None]
    assert (len(offsets), offsets.used, offsets.latest_offset) == (3, 3, 9)
    assert _index(life, offsets, life.build.build_batch([(0, b"a", b"")], base_offset=2))
    assert offsets.latest(b"a") == 8, "offsets never fall"
    assert offsets.latest_offset == 9


@both_lives
def test_a_full_map_takes_nothing_of_a_batch(life: Any) -> None:
    offsets = _map(life, 10)
    assert offsets.capacity == 9
    assert _index(life, offsets, life.build.build_batch([(0, b"%d" % n, b"") for n in range(6)]))
    assert not _index(life, offsets, life.build.build_batch([(0, b"x%d" % n, b"") for n in range(4)], base_offset=6))
    assert offsets.latest(b"x0") is None
    assert (offsets.used, offsets.latest_offset) == (6, 5)
    assert _index(life, offsets, life.build.build_batch([(0, b"y%d" % n, b"") for n in range(3)], base_offset=6))
    assert [offsets.latest(b"y%d" % n) for n in range(3)] == [6, 7, 8], "full to the brim, every key is found"


@both_lives
def test_maps_that_cannot_be(life: Any) -> None:
    for size, seed, factor in ((10, SEED, 0.9), (2400, b"short", 0.9), (2400, SEED, 1.0), (2400, SEED, 0.0)):
        with pytest.raises(ValueError, match=r"map|seed"):
            life.compaction.OffsetMap(size, seed, factor)


@both_lives
def test_control_batches_only_move_the_end(life: Any) -> None:
    offsets = _map(life)
    marker = life.control.build_marker(
        life.control.EndTxnMarker(life.control.ControlType.COMMIT, 0), 1, 0, 0, base_offset=7
    )
    assert _index(life, offsets, marker)
    assert (offsets.used, offsets.latest_offset) == (0, 7)


def _records(life: Any, batch: Any) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in life.batch.decode(batch)]


@codecs
@both_lives
def test_only_the_last_of_each_key_stays(life: Any, codec: Codec) -> None:
    batch = life.build.build_batch(
        [(100, b"a", b"1"), (900, b"b", b"1"), (300, b"a", b"2"), (400, None, b"?"), (500, b"c", b"1")],
        base_offset=10,
        codec=codec,
        producer_id=4,
        producer_epoch=1,
        base_sequence=20,
        partition_leader_epoch=6,
    )
    later = life.build.build_batch([(0, b"b", b"2")], base_offset=15)
    offsets = _map(life)
    assert _index(life, offsets, batch)
    assert _index(life, offsets, later)
    kept = life.compaction.compact_batch(offsets, bytes(7) + bytes(batch), read_header(batch), 7, drop_tombstones=False)
    assert _records(life, kept.batch) == [(12, 300, b"a", b"2"), (14, 500, b"c", b"1")]
    assert (kept.record_count, kept.tombstones) == (2, 0)
    before, after = read_header(batch), read_header(kept.batch)
    assert kept.header == after
    assert after.max_timestamp == 500
    unchanged = ("base_offset", "last_offset", "codec", "producer_id", "producer_epoch", "base_sequence")
    for name in (*unchanged, "partition_leader_epoch", "base_timestamp"):
        assert getattr(before, name) == getattr(after, name), name


@both_lives
def test_a_batch_that_loses_nothing_is_not_copied(life: Any) -> None:
    batch = life.build.build_batch([(1, b"a", b"1"), (2, b"b", None)], codec=Codec.ZSTD)
    offsets = _map(life)
    _index(life, offsets, batch)
    kept = life.compaction.compact_batch(offsets, batch, read_header(batch), drop_tombstones=False)
    assert kept.batch.obj is batch.obj
    assert (kept.record_count, kept.tombstones) == (2, 1)


@both_lives
def test_nothing_stays(life: Any) -> None:
    batch = life.build.build_batch([(1, b"a", b"1"), (2, None, b"1")], producer_id=3, producer_epoch=0, base_sequence=0)
    offsets = _map(life)
    _index(life, offsets, batch)
    _index(life, offsets, life.build.build_batch([(1, b"a", b"2")], base_offset=2))
    kept = life.compaction.compact_batch(offsets, batch, read_header(batch), drop_tombstones=False)
    assert (kept.batch, kept.record_count) == (None, 0)
    empty = life.compaction.empty_batch(read_header(batch))
    header = read_header(empty)
    assert (header.record_count, header.last_offset, header.producer_id, header.last_sequence) == (0, 1, 3, 1)
    assert (header.base_timestamp, header.max_timestamp) == (-1, 2)
    assert life.batch.decode(empty) == []
    again = life.compaction.compact_batch(offsets, empty, header, drop_tombstones=True)
    assert again.batch is None


@both_lives
def test_what_came_after_the_map_stays(life: Any) -> None:
    offsets = _map(life)
    _index(life, offsets, life.build.build_batch([(1, b"a", b"1")], base_offset=5))
    batch = life.build.build_batch([(1, b"a", b"0"), (1, b"a", b"2"), (1, None, None)], base_offset=5)
    kept = life.compaction.compact_batch(offsets, batch, read_header(batch), drop_tombstones=True)
    assert [row[0] for row in _records(life, kept.batch)] == [5, 6, 7]


@codecs
@both_lives
def test_tombstones_get_a_horizon_and_go_after_it(life: Any, codec: Codec) -> None:
    batch = life.build.build_batch(
        [(100, b"a", b"1"), (300, b"b", None), (200, b"a", None), (50, b"c", b"3")], base_offset=10, codec=codec
    )
    offsets = _map(life)
    _index(life, offsets, batch)
    stay = [(11, 300, b"b", None), (12, 200, b"a", None), (13, 50, b"c", b"3")]
    kept = life.compaction.compact_batch(
        offsets, batch, read_header(batch), drop_tombstones=False, delete_horizon_ms=7777
    )
    assert _records(life, kept.batch) == stay
    assert (kept.tombstones, kept.header.delete_horizon_ms, kept.header.codec) == (2, 7777, codec)
    assert (kept.header.max_timestamp, kept.header.last_offset) == (300, 13)
    again = life.compaction.compact_batch(
        offsets, kept.batch, kept.header, drop_tombstones=False, delete_horizon_ms=8888
    )
    assert again.header.delete_horizon_ms == 7777, "a horizon once set does not move"
    gone = life.compaction.compact_batch(offsets, kept.batch, kept.header, drop_tombstones=True, delete_horizon_ms=8888)
    assert _records(life, gone.batch) == stay[2:]
    assert gone.header.delete_horizon_ms == 7777
    assert gone.header.max_timestamp == 50


@both_lives
def test_markers_and_append_time_keep_their_meaning_with_a_horizon(life: Any) -> None:
    control = life.control
    marker = control.EndTxnMarker(control.ControlType.ABORT, 3)
    batch = control.build_marker(marker, 1, 2, 500, base_offset=9)
    marked = life.compaction.with_delete_horizon(batch, read_header(batch), 0, 9000)
    header = life.validate.validate(marked)
    assert control.read_marker(marked, header) == marker
    assert (header.delete_horizon_ms, header.is_control, header.is_transactional) == (9000, True, True)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.max_timestamp) == (9, 1, 2, 500)
    stamped = life.build.build_batch([(1, b"a", None), (2, b"b", b"v")], log_append_time_ms=600)
    marked = life.compaction.with_delete_horizon(stamped, read_header(stamped), 0, 9000)
    assert read_header(marked).uses_log_append_time
    assert [r.timestamp for r in life.batch.decode(marked)] == [600, 600]


@pytest.mark.skipif(not compiled.kernel.COMPILED, reason="plain Python never lets go of the GIL")
def test_two_maps_filled_at_once_do_not_mix() -> None:
    """The loops run without the GIL, so two threads truly are in them together."""
    life = compiled
    maps = [_map(life, 50_000) for _ in range(2)]
    batches = [life.build.build_batch([(0, b"%d-%d" % (which, n), b"v") for n in range(20_000)]) for which in range(2)]
    threads = [threading.Thread(target=_index, args=(life, maps[which], batches[which])) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in range(2):
        assert maps[which].used == 20_000
        assert all(maps[which].latest(b"%d-%d" % (which, n)) == n for n in range(0, 20_000, 97))
        assert maps[which].latest(b"%d-1" % (1 - which)) is None
