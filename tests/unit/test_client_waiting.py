"""What the client core notes in `Cluster.waits` while brokers refuse, are silent or lead nothing; it prints nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.kits.clientkit import P0, simulate, values
from tests.kits.fake_broker import SILENCE, FakeCluster
from tests.kits.fake_groups import LIST, FakeGroups, simulate_groups
from tests.unit.test_client_produce import refusal
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError, last_cause, named
from tidelog.client.fetch import Fetcher
from tidelog.client.groups import GroupsOfflineError, list_groups
from tidelog.client.produce import Producer
from tidelog.client.waits import Wait
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition

PRODUCE, METADATA = 0, 3
NOBODY = -1
O2 = TopicPartition("__consumer_offsets", 2)


async def until(condition: Callable[[], bool]) -> None:
    """Simulated time passes at once; that the condition never comes true is found by the deadline."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def longest(cluster: Cluster, at_least_s: float = 0.0) -> Wait | None:
    return cluster.waits.longest(asyncio.get_running_loop().time(), at_least_s)


def cause_of(wait: Wait | None) -> BaseException | str:
    assert wait is not None
    return last_cause(wait.cause) if isinstance(wait.cause, BaseException) else wait.cause


def test_a_refused_batch_is_waited_for_until_it_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [refusal(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000
        producer = Producer(cluster)
        sent = producer.send(P0, values(1))
        await until(lambda: longest(cluster, 5.0) is not None)
        cause = cause_of(longest(cluster, 5.0))
        assert isinstance(cause, BrokerError)
        assert (cause.code, cause.about) == (ErrorCode.NOT_ENOUGH_REPLICAS, "produce to orders-0")
        fake.brokers[1].script[PRODUCE] = []
        await sent
        assert longest(cluster) is None
        producer.close()

    simulate(story)
    assert capfd.readouterr() == ("", ""), "a library prints nothing"


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_batch_that_is_given_up_while_it_waits_says_what_for(is_silent: bool) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [SILENCE] if is_silent else []
        fake.leaders[P0] = 1 if is_silent else NOBODY
        await cluster.refresh_once(["orders"])
        producer = Producer(cluster, delivery_timeout_ms=10_000)
        with pytest.raises(DeadlineError) as told:
            await producer.send(P0, values(1))
        why = "did not answer Produce within 30000 ms" if is_silent else "LEADER_NOT_AVAILABLE (it has no leader)"
        assert "gave up after 10 s (delivery.timeout.ms); last: " in str(told.value)
        assert why in str(told.value)
        assert longest(cluster) is None
        producer.close()

    simulate(story)


def test_records_to_come_are_no_wait_and_a_missing_leader_is() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fetcher = Fetcher(cluster, {P0: 0})
        coming = asyncio.ensure_future(fetcher.next())
        for _ in range(3000):
            assert longest(cluster, 2.0) is None
            await asyncio.sleep(0.01)
        fake.leaders[P0] = NOBODY
        fake.leader_epochs[P0] += 1
        await until(lambda: longest(cluster, 2.0) is not None)
        assert "orders-0: LEADER_NOT_AVAILABLE (it has no leader)" in str(cause_of(longest(cluster, 2.0)))
        fake.leaders[P0] = 1
        fake.leader_epochs[P0] += 1
        await until(lambda: longest(cluster) is None or longest(cluster, 1.0) is None)
        fake.leaders[P0] = NOBODY
        fake.leader_epochs[P0] += 1
        await until(lambda: longest(cluster, 2.0) is not None)
        coming.cancel()
        fetcher.close()
        assert longest(cluster) is None

    simulate(story)


def test_a_call_that_is_not_answered_names_the_broker_and_the_request() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[METADATA] = [SILENCE]
        asking = asyncio.ensure_future(cluster.topic("orders", fresh=True))
        await until(lambda: longest(cluster, 2.0) is not None)
        wait = longest(cluster, 2.0)
        assert wait is not None
        assert (wait.what, wait.cause) == ("topic orders", "b1:9092 has not answered Metadata")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert longest(cluster) is None

    simulate(story)


def offline_groups(check: Callable[[Cluster, FakeGroups], Any]) -> None:
    """Two brokers with a partition of __consumer_offsets each, and one that nobody leads."""

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        for number, leader in enumerate((1, 2, NOBODY)):
            fake.leaders[TopicPartition("__consumer_offsets", number)] = leader
        fake.coordinators = {"a": 1, "b": 2}
        await check(cluster, fake)

    simulate_groups(story, brokers=2)


def test_a_list_that_lacks_groups_is_an_error_that_names_the_offline_partitions() -> None:
    async def check(cluster: Cluster, fake: FakeGroups) -> None:
        with pytest.raises(DeadlineError, match=r"__consumer_offsets-2 is offline: it has no leader") as told:
            await list_groups(cluster)
        cause = last_cause(told.value)
        assert isinstance(cause, GroupsOfflineError)
        assert [one.group for one in cause.listed] == ["a", "b"]
        fake.leaders[O2] = 1
        assert [one.group for one in await list_groups(cluster)] == ["a", "b"]

    offline_groups(check)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (range(50), "partitions 0 to 49 of orders"),
        ((3,), "orders-3"),
        ((4, 2), "partitions 2, 4 of orders"),
        ((0, 1, 3, 4, 5, 9), "partitions 0, 1, 3 to 5, 9 of orders"),
    ],
)
def test_many_partitions_are_all_named_in_few_words(numbers: Sequence[int], said: str) -> None:
    assert named(TopicPartition("orders", number) for number in numbers) == said


def test_partitions_of_several_topics_are_named() -> None:
    mixed = [TopicPartition(topic, number) for number in range(3) for topic in ("b", "a")]
    assert named([*mixed, TopicPartition("c", 7)]) == "partitions 0 to 2 of a and partitions 0 to 2 of b and c-7"


def test_a_coordinator_that_is_silent_is_named_with_the_partitions_that_it_leads() -> None:
    async def check(cluster: Cluster, fake: FakeGroups) -> None:
        fake.leaders[O2] = 2
        fake.brokers[2].script[LIST] = [SILENCE] * 10
        with pytest.raises(
            DeadlineError, match=r"b2:9092 did not answer ListGroups.*partitions 1, 2 of __consumer_offsets"
        ):
            await list_groups(cluster)

    offline_groups(check)
