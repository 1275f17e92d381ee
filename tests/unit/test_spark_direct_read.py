"""A task that may read from files: the same records either way, what is refused, and what is fetched all the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run_here
from tests.kits.logkit import batch
from tidelog.client.cluster import Cluster
from tidelog.client.direct_read import DirectRead, FetchInstead
from tidelog.client.fetch import Fetched
from tidelog.host.clock import system_random
from tidelog.log.trimming import advance_log_start
from tidelog.spark.errors import DataLossError, OptionError
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.options import read_options
from tidelog.spark.reading import Decoder, RangeFetch
from tidelog.types import TopicPartition

P = TopicPartition("t", 0)
ALL = ("auto", "true", "false")


class Counted(DirectRead):
    """Counts what it hands out."""

    pieces = 0

    async def next(self, position: int, end: int) -> Fetched | FetchInstead:
        found = await super().next(position, end)
        Counted.pieces += isinstance(found, Fetched)
        return found


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.reading.DirectRead", Counted)
    Counted.pieces = 0


class Task:
    """Reads a range as a task of Spark does."""

    def __init__(self, cluster: Cluster, start: int, end: int, topic_id: bytes | None = None, **options: str) -> None:
        base = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
        one = OffsetRange(P, start, end)
        self._cluster = cluster
        self._source = RangeFetch(read_options({**base, **options}, streaming=False), one, topic_id)
        self._decoder = Decoder(one, False)

    async def read(self, at: int = -1, happens: Callable[[], Coroutine[Any, Any, None]] | None = None) -> list[bytes]:
        """`happens` is told in between, at that offset."""
        found: list[Any] = []
        while (fetched := await self._source.next(self._cluster)) is not None:
            found += self._decoder.decode(fetched)
            if fetched.next_offset == at and happens is not None:
                await happens()
        self._source.close()
        found += self._decoder.rest()
        return [value for rows in found for value in rows.column("value").to_pylist()]


def tell(directory: Path, story: Callable[[Kit, Cluster], Coroutine[Any, Any, None]]) -> None:
    """With sixty records in a topic of small segments, the last of them not sealed."""

    async def whole(kit: Kit) -> None:
        await kit.create_topic(segment_bytes="400", retention_ms="-1")
        for number in range(0, 60, 3):
            await kit.produce(batch(_values(number, number + 3)))
        async with await Cluster.open([("127.0.0.1", kit.port)], random=system_random()) as cluster:
            await story(kit, cluster)

    run_here(whole, directory)


def _values(start: int, end: int) -> list[bytes]:
    return [b"v%d" % offset for offset in range(start, end)]


@pytest.mark.parametrize("direct_read", ALL)
@pytest.mark.parametrize(("start", "end"), [(0, 60), (7, 44), (58, 60), (20, 21)])
def test_the_same_rows_either_way(tmp_path: Path, direct_read: str, start: int, end: int) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        assert await Task(cluster, start, end, directRead=direct_read).read() == _values(start, end)
        sealed = start < kit.partition().log.segments.active.base_offset
        assert (Counted.pieces > 0) == (sealed and direct_read != "false")

    tell(tmp_path, story)


def test_files_that_cannot_be_seen(tmp_path: Path) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        await kit.values()  # the broker has all its files open
        shutil.move(tmp_path / "meta.properties", tmp_path / "hidden")
        for choice in ("auto", "false"):
            assert await Task(cluster, 0, 60, directRead=choice).read() == _values(0, 60)
        with pytest.raises(OptionError, match=r"option 'directRead': .* cannot be read directly: .*No such file"):
            await Task(cluster, 0, 60, directRead="true").read()
        assert not Counted.pieces

    tell(tmp_path, story)


@pytest.mark.parametrize("direct_read", ALL)
def test_deleted_records_are_lost_either_way(tmp_path: Path, direct_read: str) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        advance_log_start(kit.partition().log, 10)
        with pytest.raises(DataLossError, match="begins at offset 10, and 4 was to be read next"):
            await Task(cluster, 4, 60, directRead=direct_read).read()
        allowed = Task(cluster, 4, 60, directRead=direct_read, failOnDataLoss="false")
        assert await allowed.read() == _values(10, 60)
        assert (Counted.pieces > 0) == (direct_read != "false")

    tell(tmp_path, story)


@pytest.mark.parametrize("direct_read", ALL)
def test_the_files_of_another_topic_of_the_same_name_are_not_read(tmp_path: Path, direct_read: str) -> None:
    async def story(kit: Kit, cluster: Cluster) -> None:
        topic_id = (await cluster.topic("t")).topic_id
        soon = {"kafkaConsumer.pollTimeoutMs": "100", "fetchOffset.retryIntervalMs": "0", "directRead": direct_read}
        with pytest.raises(DataLossError, match="topic t was deleted and made again, and 4 was to be read next"):
            await Task(cluster, 4, 60, b"the former topic", **soon).read()
        assert await Task(cluster, 4, 60, b"the former topic", **soon, failOnDataLoss="false").read() == []
        assert not Counted.pieces
        assert await Task(cluster, 4, 60, topic_id, directRead=direct_read).read() == _values(4, 60)

    tell(tmp_path, story)


def test_a_leader_of_another_epoch_is_read_from_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.direct_read_files._PIECE_BYTES", 150)
    opened: list[Any] = []
    known = Counted.open

    async def open_counted(*given: Any) -> Any:
        opened.append(given)
        return await known(*given)

    monkeypatch.setattr(Counted, "open", open_counted)

    async def story(kit: Kit, cluster: Cluster) -> None:
        async def new_epoch() -> None:
            assert await kit.lead_and_isr() == 0
            cluster.metadata.led_elsewhere(P, 1, kit.partition().leader_epoch)

        small = {"kafka.max.partition.fetch.bytes": "1", "directRead": "true"}
        assert await Task(cluster, 0, 60, **small).read(9, new_epoch) == _values(0, 60)
        assert len(opened) == 2
        assert Counted.pieces > 10

    tell(tmp_path, story)
