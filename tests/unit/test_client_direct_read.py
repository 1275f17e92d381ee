"""Reading the files of a leader that works on: the same records as by fetches, or it is said that they must be fetched.

The broker is a real one on real files, in this process, so that a test can compact, cut or delete between two reads.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.kits.brokerkit import Kit, run_here
from tests.kits.logkit import batch, marker
from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.direct_read import DirectRead, FetchInstead
from tidelog.client.direct_read_files import CannotReadFilesError
from tidelog.client.offsets import Isolation
from tidelog.host.clock import system_random
from tidelog.lab.broker import eventually
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.meta import MetaProperties, format_meta_properties, format_topic_id
from tidelog.log.producers import AppendOrigin
from tidelog.log.trimming import advance_log_start, delete_expired, truncate_to
from tidelog.records.header import Codec, headers
from tidelog.types import Buffer, TopicPartition

P = TopicPartition("t", 0)
SMALL = {"segment_bytes": "400", "retention_ms": "-1"}
Read = list[tuple[int, bytes | None]]


class Reader:
    """Reads on, from the files where they have it, else by fetches; `fetches` says up to where, each time."""

    def __init__(self, kit: Kit, cluster: Cluster, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> None:
        self._kit = kit
        self._cluster = cluster
        self._isolation = isolation
        self.fetches: list[int | None] = []
        self.pieces = 0
        self.direct: DirectRead
        self.position = 0

    async def open(self) -> Reader:
        self.direct = await DirectRead.open(self._cluster, P, self._isolation)
        return self

    async def next(self, end: int) -> Read:
        found = await self.direct.next(self.position, end)
        if not isinstance(found, FetchInstead):
            self.pieces += 1
            assert found.fetch_offset == self.position < found.next_offset
            records = visible_records(found.records, (), self.position)
            read = [(record.offset, record.value) for record in records if record.offset < end]
            self.position = found.next_offset
            return read
        self.fetches.append(found.until)
        read = []
        until = end if found.until is None else min(end, found.until)
        while self.position < until:
            answer = await self._kit.fetch(self.position, isolation_level=int(self._isolation), partition_max_bytes=1)
            assert answer.error_code == 0
            assert answer.records, f"nothing to fetch at {self.position}"
            aborted = answer.aborted_transactions or ()
            records = visible_records(answer.records, aborted, self.position)
            read += [(record.offset, record.value) for record in records if record.offset < end]
            self.position = max(self.position, _next_offset(answer.records))
        return read

    async def all(self, end: int, start: int = 0) -> Read:
        self.position = start
        read: Read = []
        while self.position < end:
            read += await self.next(end)
        return read


def _next_offset(records: Buffer) -> int:
    return [header.next_offset for _, header in headers(records)][-1]


def tell(directory: Path, story: Callable[[Kit, Cluster], Awaitable[None]], **config: str) -> None:
    """A story of a broker and a client of it, with a topic of small segments."""

    async def whole(kit: Kit) -> None:
        await kit.create_topic(**{**SMALL, **config})
        async with await Cluster.open([("127.0.0.1", kit.port)], random=system_random()) as cluster:
            await story(kit, cluster)

    run_here(whole, directory)


async def _fill(
    kit: Kit, batches: int, size: int = 3, start: int = 0, *, keys: int = 0, codec: Codec = Codec.NONE
) -> Read:
    """Record n has value v{n}; what will be read of it."""
    written: Read = []
    for number in range(start // size, start // size + batches):
        offsets = range(number * size, (number + 1) * size)
        values = [b"v%d" % offset for offset in offsets]
        named = [b"k%d" % (offset % keys) for offset in offsets] if keys else None
        assert (await kit.produce(batch(values, keys=named, codec=codec))).error_code == 0
        written += zip(offsets, values, strict=True)
    return written


def _segments(kit: Kit) -> list[int]:
    return [segment.base_offset for segment in kit.partition().log.segments]


@pytest.mark.parametrize("piece_bytes", [70, 300, 1 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.LZ4])
def test_sealed_segments_come_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, codec: Codec
) -> None:
    monkeypatch.setattr("tidelog.client.direct_read_files._PIECE_BYTES", piece_bytes)

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 20, codec=codec)
        bases = _segments(kit)
        assert len(bases) > 3
        for start, end in [(0, 60), (1, 60), (5, 59), (bases[1], bases[2]), (bases[2] - 1, bases[2] + 1), (59, 60)]:
            reader = await Reader(kit, cluster).open()
            assert await reader.all(end, start) == written[start:end]
            assert reader.fetches == ([None] if end > bases[-1] else [])
            assert reader.pieces >= (start < bases[-1])
            reader.direct.close()

    tell(tmp_path, story)


def test_an_index_that_is_missing_or_wrong(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 40)
        base, end = _segments(kit)[1:3]
        index = tmp_path / "t-0" / f"{base:020d}.index"
        await kit.partition().log.work.run(lambda: None)  # what was rolled is complete
        for content in (None, b"", b"\0" * 7, bytes([0, 0, 0, 1, 0, 0, 0, 9]), bytes([0, 0, 0, 1, 127, 0, 0, 0])):
            if content is None:
                index.unlink()
            else:
                index.write_bytes(content)
            reader = await Reader(kit, cluster).open()
            assert await reader.all(end, end - 1) == written[end - 1 : end], content
            reader.direct.close()

    tell(tmp_path, story, index_interval_bytes="100", segment_bytes="1200")


def test_compaction_leaves_gaps(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        await _fill(kit, 30, keys=7)
        log = kit.partition().log
        await log.flush()
        assert await clean(log, await plan_cleaning(log, 0), random.Random(1)) is not None
        await log.work.run(lambda: None)
        left = await Reader(kit, cluster).open()
        expected = await _fetched(kit, 90)
        assert len(expected) < 40
        assert await left.all(90) == expected
        assert left.pieces
        for start in range(90):
            assert await left.all(90, start) == [record for record in expected if record[0] >= start]
        left.direct.close()

    tell(tmp_path, story, cleanup_policy="compact", segment_bytes="500")


async def _fetched(kit: Kit, end: int) -> Read:
    read: Read = []
    position = 0
    while position < end:
        answer = await kit.fetch(position)
        assert answer.records
        read += [(record.offset, record.value) for record in visible_records(answer.records, (), position)]
        position = _next_offset(answer.records)
    return read


def test_compacted_under_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each place in turn: no record that stays is missed, and none comes that was not written."""
    monkeypatch.setattr("tidelog.client.direct_read_files._PIECE_BYTES", 150)

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 30, keys=7)
        log = kit.partition().log
        await log.flush()
        reader = await Reader(kit, cluster).open()
        read: Read = []
        while reader.position < 90:
            read += await reader.next(90)
            if len(read) in range(20, 23):
                assert await clean(log, await plan_cleaning(log, 0), random.Random(1)) is not None
        assert sorted(read) == read
        assert set(read) <= set(written)
        assert set(await _fetched(kit, 90)) <= set(read)
        reader.direct.close()

    tell(tmp_path, story, cleanup_policy="compact", segment_bytes="500")


def test_a_segment_that_is_just_renamed_is_not_passed_over(tmp_path: Path) -> None:
    """Between two steps of a compaction its name is not there: the one before it must not seem to be all there is."""

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 20)
        base, end = _segments(kit)[2:4]
        path = tmp_path / "t-0" / f"{base:020d}.log"
        reader = await Reader(kit, cluster).open()
        await kit.values()  # the broker has all its files open
        path.rename(tmp_path / "away")
        assert await reader.all(60) == written
        assert reader.fetches == [end, None]
        reader.direct.close()

    tell(tmp_path, story)


def test_deleted_under_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What retention took is not read any more, though the file is still open."""
    monkeypatch.setattr("tidelog.client.direct_read_files._PIECE_BYTES", 150)

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 20)
        reader = await Reader(kit, cluster).open()
        assert await reader.next(60) == written[:3]
        log = kit.partition().log
        advance_log_start(log, 30)
        assert await delete_expired(log) == 2
        assert await reader.direct.next(3, 60) == FetchInstead(4)
        assert reader.direct.ended
        reader = await Reader(kit, cluster).open()
        assert await reader.all(60, 30) == written[30:]
        assert reader.pieces
        reader.direct.close()

    tell(tmp_path, story)


def test_records_before_the_log_start_are_gone_though_their_segment_is_not(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        await _fill(kit, 20)
        advance_log_start(kit.partition().log, 2)
        reader = await Reader(kit, cluster).open()
        assert await reader.direct.next(1, 60) == FetchInstead(2)
        reader.direct.close()

    tell(tmp_path, story)


def test_nothing_behind_the_high_watermark(tmp_path: Path) -> None:
    """It stands in a sealed segment, for a replica that is in the ISR does not fetch."""

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 6)
        await cluster.topic("t")
        assert await kit.lead_and_isr(isr=[1, 2]) == 0
        for number in range(6, 20):
            values = [b"v%d" % offset for offset in range(3 * number, 3 * number + 3)]
            assert (await kit.produce(batch(values), acks=1)).error_code == 0
        partition = kit.partition()
        assert partition.log.high_watermark == 18
        assert any(base > 18 for base in _segments(kit))
        cluster.metadata.led_elsewhere(P, 1, partition.leader_epoch)
        reader = await Reader(kit, cluster).open()
        assert await reader.all(18) == written
        assert reader.pieces
        assert await reader.direct.next(18, 60) == FetchInstead(19)
        assert await reader.direct.next(15, 60) != FetchInstead(16)
        reader.direct.close()

    tell(tmp_path, story)


def test_another_epoch_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old records were read already, but who may say that they still count is gone: they are not handed out."""
    monkeypatch.setattr("tidelog.client.direct_read_files._PIECE_BYTES", 150)

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 20)
        reader = await Reader(kit, cluster).open()
        read = await reader.next(60)
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        log = kit.partition().log
        await truncate_to(log, 4)
        assert await kit.lead_and_isr(leader=1, isr=[1]) == 0
        for number in range(20):
            assert (await kit.produce(batch([b"new%d" % number]))).error_code == 0
        assert await reader.direct.next(3, 60) == FetchInstead(4)
        assert reader.direct.ended
        assert read == written[:3]
        cluster.metadata.led_elsewhere(P, 1, kit.partition().leader_epoch)
        reader = await Reader(kit, cluster).open()
        assert [value for _, value in await reader.all(20, 3)] == [b"new%d" % number for number in range(17)]
        reader.direct.close()

    tell(tmp_path, story)


def test_read_committed_leaves_transactions_to_the_broker(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        partition = kit.partition()

        def append(data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
            partition.log.append_as_leader(data, partition.leader_epoch, origin=origin)

        await _fill(kit, 4)
        mine = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        append(batch([b"aborted"] * 3, **mine))
        append(marker(7, abort=True), AppendOrigin.COORDINATOR)
        await _fill(kit, 8, start=18)
        end = partition.log.high_watermark
        await eventually(lambda: partition.log.last_stable_offset == end)
        for isolation, aborted in ((Isolation.READ_COMMITTED, 0), (Isolation.READ_UNCOMMITTED, 3)):
            reader = await Reader(kit, cluster, isolation).open()
            read = await reader.all(end)
            assert sum(value == b"aborted" for _, value in read) == aborted
            assert len(read) == 12 + aborted + 24
            assert len(reader.fetches) == (2 if isolation is Isolation.READ_COMMITTED else 1)
            assert reader.pieces
            reader.direct.close()

    tell(tmp_path, story)


def test_whose_files_they_are_is_looked_at(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        await _fill(kit, 2)
        meta, topic = tmp_path / "meta.properties", tmp_path / "t-0" / "partition.metadata"
        good = {path: path.read_bytes() for path in (meta, topic)}
        assert cluster.metadata.cluster_id is not None
        cases = [
            (meta, format_meta_properties(MetaProperties("another", 1)), "belongs to broker 1 of cluster another"),
            (meta, format_meta_properties(MetaProperties(cluster.metadata.cluster_id, 2)), "belongs to broker 2"),
            (meta, b"version=9\n", "version '9' is unknown"),
            (topic, format_topic_id(b"x" * 16), "another topic of the same name"),
            (topic, b"", "does not hold a topic id"),
            (topic, None, "No such file"),
            (meta, None, "No such file"),
        ]
        for path, content, why in cases:
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(CannotReadFilesError, match=why):
                await DirectRead.open(cluster, P, Isolation.READ_UNCOMMITTED)
            path.write_bytes(good[path])
        (await DirectRead.open(cluster, P, Isolation.READ_UNCOMMITTED)).close()
        shutil.move(tmp_path / "t-0", tmp_path / "hidden")
        with pytest.raises(CannotReadFilesError, match="No such file"):
            await DirectRead.open(cluster, P, Isolation.READ_UNCOMMITTED)
        shutil.move(tmp_path / "hidden", tmp_path / "t-0")
        assert not [name for name in os.listdir("/proc/self/fd") if _is_directory_of(name, tmp_path / "t-0")]

    tell(tmp_path, story)


def _is_directory_of(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


def test_a_copy_that_is_out_of_date_is_not_believed(tmp_path: Path) -> None:
    """Same cluster, broker and topic, other records: a directory that was copied once."""

    async def story(kit: Kit, cluster: Cluster) -> None:
        written = await _fill(kit, 20)
        await kit.values()
        path = tmp_path / "t-0" / f"{_segments(kit)[1]:020d}.log"
        changed = bytearray(path.read_bytes())
        changed[20] ^= 1  # of the CRC
        path.unlink()
        path.write_bytes(changed)
        reader = await Reader(kit, cluster).open()
        assert await reader.all(60) == written
        assert len(reader.fetches) == 2
        reader.direct.close()

    tell(tmp_path, story)


def test_a_topic_made_anew_is_another(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        await _fill(kit, 20)
        reader = await Reader(kit, cluster).open()
        await reader.next(60)
        await kit.delete_topic()
        await kit.create_topic(**SMALL)
        await _fill(kit, 20)
        assert await reader.direct.next(reader.position, 60) == FetchInstead(reader.position + 1)
        assert reader.direct.ended
        reader.direct.close()

    tell(tmp_path, story)
