"""What the driver finds out: partitions that exist, ranges of a batch, and what is wrong with an option."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.clientkit import P0, P1, simulate, values
from tests.fake_broker import FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.spark.errors import DataLossError, OptionError
from tidelog.spark.offsets import OffsetRange
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
        assert await latest_offsets(cluster, options) == {P0: 8, P1: 0}
        assert await earliest_offsets(cluster, [P1, TopicPartition("gone", 0)], options) == {P1: 0}
        assert await starting_offsets(cluster, _options(streaming=True)) == {P0: 8, P1: 0}

    simulate(story)


def test_an_end_before_what_was_read_is_asked_for_again() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        options = _options(streaming=True)
        loop = asyncio.get_running_loop()
        fake.append(P0, bytes(values(5)))
        loop.call_later(1.5, fake.append, P0, bytes(values(3)))
        assert await latest_from(cluster, options, {P0: 8, P1: 0}) == {P0: 8, P1: 0}
        begun = loop.time()
        assert await latest_from(cluster, options, {P0: 9, P1: 0}) == {P0: 8, P1: 0}
        assert 2 <= loop.time() - begun < 3

    simulate(story)


def test_a_partition_that_is_missing_is_asked_for_again() -> None:
    """A broker that has just started may not know the topic yet; that is no loss."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(5)))
        leader = fake.leaders.pop(P1)
        asyncio.get_running_loop().call_later(1.5, fake.leaders.update, {P1: leader})
        assert await latest_from(cluster, _options(streaming=True), {P0: 5, P1: 0}) == {P0: 5, P1: 0}

    simulate(story)


def test_available_now_never_goes_back_unless_the_log_did() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        options = _options(streaming=True, **{"fetchOffset.numRetries": "1"})
        fake.append(P0, bytes(values(8)))
        target = {P0: 5, P1: 0}
        assert await until_target(cluster, options, {P0: 2, P1: 0}, target) == target
        assert await until_target(cluster, options, {P0: 7, P1: 0}, target) == {P0: 7, P1: 0}, "it began at a later end"
        assert await until_target(cluster, options, {P0: 20, P1: 0}, target) == {P0: 8, P1: 0}, "the log was cut"

    simulate(story)
