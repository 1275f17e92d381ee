"""What the driver finds out: partitions that exist, ranges of a batch, and what is wrong with an option."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.kits.clientkit import P0, P1, simulate, values
from tests.kits.fake_broker import FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.client.offsets import EARLIEST, LATEST
from tidelog.records.build import build_batch
from tidelog.spark.errors import DataLossError, OptionError
from tidelog.spark.offsets import OffsetRange, Offsets, Position
from tidelog.spark.options import ReadOptions, read_options
from tidelog.spark.planning import (
    Narrowing,
    assigned_partitions,
    batch_ranges,
    earliest_offsets,
    latest_from,
    latest_offsets,
    starting_offsets,
    until_target,
)
from tidelog.types import TopicPartition
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse

LIST_OFFSETS, METADATA = 2, 3


def _options(streaming: bool = False, **options: str) -> ReadOptions:
    chosen = options if "assign" in options or "subscribePattern" in options else {"subscribe": "orders", **options}
    return read_options({"bootstrap.servers": "b1:9092", **chosen}, streaming=streaming)


def _json(first: int, second: int) -> str:
    return json.dumps({"orders": {"0": first, "1": second}})


def test_ranges_of_a_batch() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(8)))
        fake.append(P1, bytes(values(3)))
        assert await batch_ranges(cluster, _options()) == [OffsetRange(P0, 0, 8), OffsetRange(P1, 0, 3)]
        cut = _options(startingOffsets=_json(2, -2), endingOffsets=_json(-1, 1))
        assert await batch_ranges(cluster, cut) == [OffsetRange(P0, 2, 8), OffsetRange(P1, 0, 1)]
        narrowing = Narrowing(max_partition=0, min_offset=3, max_offset=4)
        assert await batch_ranges(cluster, _options(), narrowing) == [OffsetRange(P0, 3, 5)]
        one = _options(assign='{"orders": [1]}')
        assert await batch_ranges(cluster, one) == [OffsetRange(P1, 0, 3)]
        pattern = _options(subscribePattern="ord.*")
        assert await assigned_partitions(cluster, pattern.subscription) == [P0, P1]
        assert await assigned_partitions(cluster, _options(subscribePattern="ord").subscription) == []

    simulate(story)


def test_what_is_wrong_is_named() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(8)))
        for option, options in [
            ("subscribe", {"subscribe": "missing"}),
            ("assign", {"assign": '{"orders": [2]}'}),
            ("startingOffsets", {"startingOffsets": '{"orders": {"0": 1}}'}),
            ("startingOffsets", {"startingOffsets": _json(9, 0)}),
            ("endingOffsetsByTimestamp", {"endingOffsetsByTimestamp": '{"orders": {"0": 1}}'}),
        ]:
            with pytest.raises(OptionError) as refusal:
                await batch_ranges(cluster, _options(**options))
            assert refusal.value.option == option, options
        behind = {"endingOffsets": _json(9, 0)}
        with pytest.raises(DataLossError, match="'endingOffsets' ends orders-0 at 9; its log ends at 8"):
            await batch_ranges(cluster, _options(**behind))
        allowed = await batch_ranges(cluster, _options(**behind, failOnDataLoss="false"))
        assert allowed == [OffsetRange(P0, 0, 8), OffsetRange(P1, 0, 0)]

    simulate(story)


def test_a_stream_goes_on_without_what_was_deleted() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(8)))
        options = _options(streaming=True, subscribe="orders,gone")
        with pytest.raises(OptionError, match="option 'subscribe': topic gone does not exist"):
            await starting_offsets(cluster, options)
        there = Position({P0: 8, P1: 0}, {"orders": fake.topic_id("orders")})
        assert await latest_offsets(cluster, options) == there
        assert await earliest_offsets(cluster, [P1, TopicPartition("gone", 0)], options) == {P1: 0}
        assert await starting_offsets(cluster, _options(streaming=True)) == there

    simulate(story)


def test_an_end_before_what_was_read_is_asked_for_again() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        options = _options(streaming=True)
        loop = asyncio.get_running_loop()
        fake.append(P0, bytes(values(5)))
        loop.call_later(1.5, fake.append, P0, bytes(values(3)))
        assert (await latest_from(cluster, options, _read(8, 0))).offsets == {P0: 8, P1: 0}
        begun = loop.time()
        assert (await latest_from(cluster, options, _read(9, 0))).offsets == {P0: 8, P1: 0}
        assert 2 <= loop.time() - begun < 3

    simulate(story)


def test_a_partition_that_is_missing_is_asked_for_again() -> None:
    """A broker that has just started may not know the topic yet; that is no loss."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(5)))
        leader = fake.leaders.pop(P1)
        asyncio.get_running_loop().call_later(1.5, fake.leaders.update, {P1: leader})
        assert (await latest_from(cluster, _options(streaming=True), _read(5, 0))).offsets == {P0: 5, P1: 0}

    simulate(story)


def _read(first: int, second: int, topic_id: bytes | None = None) -> Position:
    """How far the topic was read."""
    return Position({P0: first, P1: second}, {} if topic_id is None else {"orders": topic_id})


def test_a_topic_made_anew_is_another_even_if_it_is_as_long() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(5)))
        old = fake.topic_id("orders")
        fake.make_anew("orders")
        fake.append(P0, bytes(values(5)))
        new = fake.topic_id("orders")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await latest_from(cluster, _options(streaming=True), _read(5, 0, old)) == _read(5, 0, new)
        assert 2 <= loop.time() - begun < 3, "it is asked for again before that is believed"
        begun = loop.time()
        assert await latest_from(cluster, _options(streaming=True), _read(5, 0, new)) == _read(5, 0, new)
        assert loop.time() - begun < 1

    simulate(story)


def test_a_broker_that_knows_only_the_past_does_not_make_a_topic_another() -> None:
    """It is cut off from the others since before the topic was made again, and clients still reach it."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        new = fake.topic_id("orders")
        old = b"the past".ljust(16, b".")
        stale, fresh = fake.brokers[1], fake.brokers[2]
        fake.leaders = {P0: 2, P1: 2}
        fake.append(P0, bytes(values(5)))
        answer = stale._metadata

        def past(request: MetadataRequest) -> MetadataResponse:
            said = answer(request)
            for topic in said.topics:
                topic.topic_id = old
            return said

        stale.script[METADATA] = [past] * 99
        options = _options(streaming=True, **{"fetchOffset.numRetries": "1"})
        for _ in range(4):  # whichever of the two is asked first
            assert await latest_from(cluster, options, _read(5, 0, new)) == _read(5, 0, new)
        assert len(stale.script[METADATA]) < 99
        assert fresh.of_key(METADATA)

    simulate(story, brokers=2)


def test_a_topic_that_is_deleted_while_its_end_is_asked_for_is_left_out() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(5)))
        listed = fake.brokers[1]._list_offsets

        def deleted(request: ListOffsetsRequest) -> ListOffsetsResponse:
            fake.leaders.clear()
            return listed(request)

        fake.brokers[1].script[LIST_OFFSETS] = [deleted]
        assert await latest_offsets(cluster, _options(streaming=True)) == Position({}, {})

    simulate(story)


def test_available_now_never_goes_back_unless_the_log_did() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        options = _options(streaming=True, **{"fetchOffset.numRetries": "1"})
        fake.append(P0, bytes(values(8)))
        target = _read(5, 0)

        async def end(first: int) -> Offsets:
            return (await until_target(cluster, options, _read(first, 0), target)).offsets

        assert await end(2) == target.offsets
        assert await end(7) == {P0: 8, P1: 0}, "it began at a later end"
        assert await end(20) == {P0: 8, P1: 0}, "the log was cut"

    simulate(story)


def test_available_now_takes_in_what_its_target_does_not_know() -> None:
    """A topic that appeared between the target and the first offsets, or that a broker did not know for a moment."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        other = TopicPartition("other", 0)
        options = _options(streaming=True, subscribePattern="o.*")
        fake.append(P0, bytes(values(8)))
        target = await latest_offsets(cluster, options)
        fake.leaders[other] = 1
        fake.append(other, bytes(values(4)))
        fake.append(P0, bytes(values(2)))
        assert await until_target(cluster, options, target, target) == target, "what is new waits for the next run"
        start = await starting_offsets(cluster, options)
        assert start.offsets == {P0: 10, P1: 0, other: 4}
        start = start._replace(offsets={P0: 3, P1: 0, other: 1})
        renewed = await until_target(cluster, options, start, target)
        assert renewed.offsets == {P0: 8, P1: 0, other: 4}
        assert renewed.topic_ids == {topic: fake.topic_id(topic) for topic in ("orders", "other")}
        del fake.leaders[other]
        assert await until_target(cluster, options, start, target) == target, "gone, which planning will tell"

    simulate(story)


def test_available_now_of_a_topic_made_anew() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        options = _options(streaming=True)
        fake.append(P0, bytes(values(8)))
        start = await latest_offsets(cluster, options)
        fake.make_anew("orders")
        fake.append(P0, bytes(values(9)))
        target = await latest_offsets(cluster, options)
        fake.append(P0, bytes(values(1)))
        new = fake.topic_id("orders")
        assert await until_target(cluster, options, start, target) == _read(10, 0, new)

    simulate(story)


def test_a_filter_on_times_before_1970_leaves_records_without_a_timestamp() -> None:
    """They have -1, and brokers know no time before 0."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(build_batch([(-1, None, b"v")] * 3)))
        for time in (-5, -1, 0):
            ranges = await batch_ranges(cluster, _options(), Narrowing(min_timestamp=time))
            assert ranges == [OffsetRange(P0, 0, 3), OffsetRange(P1, 0, 0)]
        assert {asked.timestamp for asked in _asked(fake)} == {EARLIEST, LATEST}
        await batch_ranges(cluster, _options(), Narrowing(min_timestamp=1))
        assert {asked.timestamp for asked in _asked(fake)} == {EARLIEST, LATEST, 1}

    simulate(story)


def _asked(fake: FakeCluster) -> list[ListOffsetsPartition]:
    requests: list[ListOffsetsRequest] = fake.brokers[1].of_key(LIST_OFFSETS)
    return [asked for request in requests for topic in request.topics for asked in topic.partitions]
