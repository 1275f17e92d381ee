"""What a task reads: the records of its range that count, over gaps, moves of leaders, and losses that are allowed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.kits.clientkit import P0, sabotage, simulate, values
from tests.kits.fake_broker import SILENCE, FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetched
from tidelog.errors import CorruptBatchError, ErrorCode
from tidelog.records.build import build_batch
from tidelog.records.control import ControlType, EndTxnMarker, build_marker
from tidelog.records.kernel import Record
from tidelog.spark.errors import DataLossError, ReadTimeoutError
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.options import ReadOptions, read_options
from tidelog.spark.reading import Decoder, RangeFetch
from tidelog.spark.rows import arrow_schema, ddl
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
P = TopicPartition("t", 3)


def _fetched(records: bytes, fetch_offset: int = 0, aborted: list[AbortedTransaction] | None = None) -> Fetched:
    return Fetched(P, fetch_offset, 0, 0, 0, records, aborted or [])


def _decoded(start: int, end: int, *answers: Fetched, include_headers: bool = False) -> list[dict[str, Any]]:
    decoder = Decoder(OffsetRange(P, start, end), include_headers)
    batches = [batch for answer in answers for batch in decoder.decode(answer)]
    batches += decoder.rest()
    for batch in batches:
        assert batch.schema.equals(arrow_schema(include_headers))
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def _numbers(count: int, base: int, **facts: Any) -> bytes:
    records = [(1000 + n, b"k%d" % n, b"v%d" % n) for n in range(base, base + count)]
    return bytes(build_batch(records, base_offset=base, **facts))


def _offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def test_rows() -> None:
    records = [(5, None, b"v"), (6, b"k", None, [("h", b"1")])]
    plain, late = bytes(build_batch(records)), bytes(build_batch(records, base_offset=2, log_append_time_ms=77))
    rows = _decoded(0, 10, _fetched(plain + late), include_headers=True)
    assert [row.pop("headers") for row in rows] == [None, [{"key": "h", "value": b"1"}]] * 2
    assert [row.pop("timestamp").timestamp() for row in rows] == [0.005, 0.006, 0.077, 0.077]
    assert rows[1] == {"key": b"k", "value": None, "topic": "t", "partition": 3, "offset": 1, "timestampType": 0}
    assert [row["timestampType"] for row in rows] == [0, 0, 1, 1]


@pytest.mark.parametrize(("start", "end"), [(0, 30), (3, 30), (0, 17), (12, 13), (10, 20), (9, 21)])
def test_only_the_range(start: int, end: int) -> None:
    log = b"".join(_numbers(10, base) for base in (0, 10, 20))
    assert _offsets(_decoded(start, end, _fetched(log, start))) == list(range(start, end))


def test_gaps_are_no_end() -> None:
    """As compaction leaves them."""
    kept = [Record(offset, 1, b"k", b"v") for offset in (2, 5, 9)]
    log = bytes(build_batch(kept, base_offset=0)) + _numbers(3, 20)
    assert _offsets(_decoded(0, 22, _fetched(log))) == [2, 5, 9, 20, 21]
    assert _offsets(_decoded(3, 8, _fetched(log, 3))) == [5]
    assert _decoded(10, 15, _fetched(log, 10)) == []


def test_aborted_transactions_and_markers_are_left_out() -> None:
    mine = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    abort = bytes(build_marker(EndTxnMarker(ControlType.ABORT, 0), 7, 0, 1, base_offset=4))
    log = _numbers(2, 0, **mine) + _numbers(2, 2) + abort + _numbers(1, 5, **mine)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    assert _offsets(_decoded(0, 9, _fetched(log, 0, aborted))) == [2, 3, 5]
    assert _offsets(_decoded(0, 9, _fetched(log))) == [0, 1, 2, 3, 5]


def test_a_batch_that_changed_on_the_way_is_refused() -> None:
    log = bytearray(_numbers(3, 0))
    log[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        _decoded(0, 3, _fetched(bytes(log)))


def test_the_columns_told_to_spark_are_those_of_arrow() -> None:
    for include_headers in (False, True):
        names = arrow_schema(include_headers).names
        assert [column.split(" ")[0] for column in ddl(include_headers).split(", ")[: len(names)]] == names


# Fetching


def _options(**options: str) -> ReadOptions:
    base = {
        "kafka.bootstrap.servers": "b1:9092",
        "subscribe": "orders",
        "kafkaConsumer.pollTimeoutMs": "3000",
        "directRead": "false",
    }
    return read_options({**base, **options}, streaming=False)


async def _fetch(cluster: Cluster, start: int, end: int, **options: str) -> list[int]:
    one = OffsetRange(P0, start, end)
    source, decoder = RangeFetch(_options(**options), one), Decoder(one, False)
    found: list[int] = []
    while (fetched := await source.next(cluster)) is not None:
        found += [offset for batch in decoder.decode(fetched) for offset in batch.column("offset").to_pylist()]
    found += [offset for batch in decoder.rest() for offset in batch.column("offset").to_pylist()]
    source.close()
    return found


def _fill(fake: FakeCluster, count: int) -> None:
    for number in range(count):
        fake.append(P0, bytes(values(2, 2 * number)))


def test_a_range_is_fetched_and_nothing_behind_it() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 20)
        assert await _fetch(cluster, 3, 9) == list(range(3, 9))
        asked = [
            data.fetch_offset for request in fake.brokers[1].of_key(FETCH) for data in request.topics[0].partitions
        ]
        assert asked == [3, 4, 6, 8]

    simulate(story)


def test_leaders_move_and_connections_end() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 40)
        assert await _fetch(cluster, 0, 80, **{"kafkaConsumer.pollTimeoutMs": "120000"}) == list(range(80))

    simulate(story, brokers=2, saboteur=sabotage)


def test_what_is_behind_the_log_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Behind its end, or up to it: then the leader answers, and says that there is no more."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 3)
        for start, kept in ((8, []), (2, [2, 3, 4, 5])):
            caplog.clear()
            lost = max(start, 6)
            with pytest.raises(DataLossError, match=rf"ends before offset {lost}.*log ends at 6.*failOnDataLoss"):
                await _fetch(cluster, start, 12)
            assert not caplog.records
            assert await _fetch(cluster, start, 12, failOnDataLoss="false") == kept
            (told,) = caplog.records
            assert f"topic orders, partition 0, from offset {lost} up to 12" in told.getMessage()

    simulate(story)


async def _read_on(source: RangeFetch, cluster: Cluster, taken: list[Fetched] | None = None) -> None:
    while (fetched := await source.next(cluster)) is not None:
        if taken is not None:
            taken.append(fetched)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_edge_39_a_broker_that_says_nothing_is_no_loss(fail: str) -> None:
    """It is paused after the first batch, for longer than a task waits. The records are there."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 20)
        source = RangeFetch(_options(failOnDataLoss=fail), OffsetRange(P0, 0, 40))
        assert await source.next(cluster) is not None
        fake.brokers[1].script.update({FETCH: [SILENCE] * 99, LIST_OFFSETS: [SILENCE] * 99})
        with pytest.raises(ReadTimeoutError, match=r"gave nothing at offset \d+ in 3000 ms.*No data is lost"):
            await _read_on(source, cluster)
        source.close()

    simulate(story)


def test_a_log_that_has_the_records_is_no_loss_though_they_do_not_come() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 3)
        fake.brokers[1].script[FETCH] = [SILENCE] * 99
        with pytest.raises(ReadTimeoutError):
            await _fetch(cluster, 0, 6, failOnDataLoss="false")

    simulate(story)


def test_an_end_of_the_past_is_no_loss() -> None:
    """A leader that has just begun says that the position is outside of its log, and soon knows better."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 3)
        asyncio.get_running_loop().call_later(0.5, _fill, fake, 3)
        assert await _fetch(cluster, 8, 12, failOnDataLoss="false") == [8, 9, 10, 11]

    simulate(story)


def test_a_topic_that_is_not_known_for_a_moment_is_no_loss() -> None:
    """So a broker answers that was just started."""

    def unknown(request: MetadataRequest) -> MetadataResponse:
        broker = fakes[0].brokers[1]
        topics = [
            MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=topic.name)
            for topic in request.topics or ()
        ]
        node = MetadataResponseBroker(node_id=1, host=broker.host, port=broker.port)
        return MetadataResponse(brokers=[node], cluster_id="fake", controller_id=1, topics=topics)

    fakes: list[FakeCluster] = []

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fakes.append(fake)
        _fill(fake, 3)
        fake.brokers[1].script[METADATA] = [unknown] * 4
        await cluster.refresh_once(["orders"])
        assert await _fetch(cluster, 0, 6, failOnDataLoss="false") == list(range(6))

    simulate(story)


def test_a_topic_that_is_gone_is_lost() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 3)
        fake.leaders.clear()
        patient = {"kafkaConsumer.pollTimeoutMs": "600000"}
        with pytest.raises(DataLossError, match="orders-0 is gone"):
            await _fetch(cluster, 0, 6, **patient)
        assert await _fetch(cluster, 0, 6, failOnDataLoss="false", **patient) == []

    simulate(story)


@pytest.mark.parametrize("planned", [True, False], ids=["an id from the plan", "the id that was found first"])
@pytest.mark.parametrize("poll_timeout_ms", ["600000", "3000"])
def test_a_task_does_not_go_on_in_a_topic_that_was_made_anew(
    caplog: pytest.LogCaptureFixture, planned: bool, poll_timeout_ms: str
) -> None:
    """However long the new one is, and whether the task gives up before the client does or after."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        for fail in ("false", "true"):
            fake.make_anew("orders")
            await cluster.refresh_once(["orders"])
            _fill(fake, 20)
            options = _options(**{"failOnDataLoss": fail, "kafkaConsumer.pollTimeoutMs": poll_timeout_ms})
            source = RangeFetch(options, OffsetRange(P0, 0, 40), fake.topic_id("orders") if planned else None)
            assert await source.next(cluster) is not None
            fake.make_anew("orders")
            _fill(fake, 30)
            taken: list[Fetched] = []
            told = "from offset [0-9]+ up to 40: topic orders was deleted and made again"
            if fail == "true":
                with pytest.raises(DataLossError, match=told):
                    await _read_on(source, cluster, taken)
            else:
                await _read_on(source, cluster, taken)
                assert re.search(told, caplog.text)
            source.close()
            assert {fetched.high_watermark for fetched in taken} <= {40}, "what was fetched ahead of the old one"

    simulate(story)


@pytest.mark.parametrize("poll_timeout_ms", ["600000", "3000"])
def test_a_broker_that_knows_only_the_past_is_no_loss(poll_timeout_ms: str) -> None:
    """It names another topic of the same name, until another broker is asked."""

    def past(request: MetadataRequest) -> MetadataResponse:
        said = fakes[0].brokers[1]._metadata(request)
        for topic in said.topics:
            topic.topic_id = b"the past".ljust(16, b".")
        return said

    fakes: list[FakeCluster] = []

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fakes.append(fake)
        fake.leaders[P0] = 2
        _fill(fake, 3)
        fake.brokers[1].script[METADATA] = [past] * 99
        await cluster.refresh_once(["orders"])
        options = _options(**{"kafkaConsumer.pollTimeoutMs": poll_timeout_ms, "fetchOffset.numRetries": "1"})
        source = RangeFetch(options, OffsetRange(P0, 0, 6), fake.topic_id("orders"))
        for _ in range(4):  # whichever of the two was asked last
            assert not await source._is_made_anew(cluster)
            await cluster.refresh_once(["orders"])
        while (fetched := await source.next(cluster)) is not None:
            position = fetched.next_offset
        assert position == 6

    simulate(story, brokers=2)


def test_other_errors_are_no_loss() -> None:
    def refuse(request: FetchRequest) -> FetchResponse:
        data = FetchResponsePartitionData(partition_index=0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = request.topics[0]
        return FetchResponse(
            responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])]
        )

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        _fill(fake, 3)
        fake.brokers[1].script[FETCH] = [refuse]
        with pytest.raises(BrokerError) as failure:
            await _fetch(cluster, 0, 6, failOnDataLoss="false")
        assert failure.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    simulate(story)
