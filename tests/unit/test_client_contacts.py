"""Whom a client asks: bootstrap addresses before those it knows, no broker of another cluster, and none that hangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.kits.clientkit import simulate
from tests.kits.fake_broker import SILENCE, FakeBroker, FakeCluster
from tidelog.client.addresses import KnownBrokers
from tidelog.client.cluster import Cluster
from tidelog.client.errors import DeadlineError, WrongClusterError
from tidelog.client.racing import NoneSucceededError, first_success
from tidelog.errors import TidelogError
from tidelog.net.calling import CannotConnectError

METADATA, API_VERSIONS = 3, 18
OURS, OTHERS, NOWHERE = ("b1", 9092), ("client", 7), ("b1", 1)


async def _other_cluster(cluster_id: str | None = "other") -> FakeBroker:
    """On the client's own host, where a test can start brokers."""
    return await FakeBroker(FakeCluster(cluster_id), 1, "client").serve(7)


async def _opened(*bootstrap: tuple[str, int], **more: Any) -> str | None:
    async with await Cluster.open(bootstrap, random=random.Random(3), **more) as opened:
        return opened.metadata.cluster_id


def test_known_brokers_are_asked_only_if_no_bootstrap_address_answers() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        other = await _other_cluster()
        known = KnownBrokers((OURS,), "fake")
        before = len(fake.brokers[1].requests)
        for _ in range(10):
            assert await _opened(OTHERS, known=known) == "other"
        assert len(fake.brokers[1].requests) == before
        other.close()
        assert await _opened(OTHERS, known=known) == "fake"

    simulate(story)


def test_a_known_broker_that_is_of_another_cluster_now_is_not_believed() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        await _other_cluster()
        known = KnownBrokers((OTHERS, OURS), "fake")
        assert await _opened(NOWHERE, known=known) == "fake"
        with pytest.raises(CannotConnectError, match="client:7 is a broker of cluster other, not of fake"):
            await _opened(NOWHERE, known=KnownBrokers((OTHERS,), "fake"))
        with pytest.raises(DeadlineError, match=r"cannot connect to b1:1.*client:7 is a broker of cluster other"):
            await _opened(NOWHERE, known=KnownBrokers((OTHERS,), "fake"), timeout_ms=2_000)

    simulate(story)


def test_a_bootstrap_address_of_another_cluster_than_the_wanted_one_is_dropped() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        await _other_cluster()
        assert await _opened(OTHERS, known=KnownBrokers((OURS,), "fake"), cluster_id="fake") == "fake"
        for seed in range(6):
            opened = await Cluster.open([OTHERS, OURS], random=random.Random(seed), cluster_id="fake")
            assert opened.metadata.cluster_id == "fake"
            opened.close()
        began = asyncio.get_running_loop().time()
        with pytest.raises(WrongClusterError, match="client:7 is a broker of cluster other, not of fake"):
            await _opened(OTHERS, cluster_id="fake", timeout_ms=60_000)
        assert asyncio.get_running_loop().time() - began < 1, "no address is left to wait for"

    simulate(story)


def test_an_address_that_another_cluster_takes_over_is_not_heard() -> None:
    """Broker 2 leaves, and its address gets a broker of another cluster, with the same id and the same topic."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        other = FakeCluster("other")
        other.leaders = dict.fromkeys(fake.leaders, 2)
        (await cluster.connection(2)).close()
        taken = fake.brokers.pop(2)
        taken.cluster = other
        other.brokers[2] = taken
        before = len(taken.of_key(METADATA))
        for _ in range(6):
            await cluster.refresh_once(["orders"], elsewhere=True)
            assert list(cluster.metadata.brokers) == [1]
            assert cluster.metadata.cluster_id == "fake"
        assert len(taken.of_key(METADATA)) == before + 1
        assert cluster.known_addresses == [OURS]

    simulate(story, brokers=2)


def test_brokers_that_tell_no_cluster_id_are_taken() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        await _other_cluster(None)
        assert await _opened(OTHERS) is None
        assert await _opened(OTHERS, cluster_id="fake") == "fake"
        assert await _opened(NOWHERE, known=KnownBrokers((OTHERS,), "fake")) is None
        assert await _opened(NOWHERE, known=KnownBrokers((OURS,), None)) == "fake"

    simulate(story)


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA])
def test_a_broker_that_hangs_delays_a_bootstrap_by_a_second(api_key: int) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[api_key] = [SILENCE] * 1000
        loop = asyncio.get_running_loop()
        before = len(fake.brokers[1].transports)
        began = loop.time()
        async with await Cluster.open([OURS], random=random.Random(3), known=KnownBrokers((("b2", 9092),))) as opened:
            assert 1 <= loop.time() - began < 1.5
            await asyncio.sleep(0.1)
            assert len(fake.brokers[1].transports) == before, "what was overtaken is closed"
            began = loop.time()
            await opened.refresh_once(elsewhere=True)
            assert loop.time() - began < 1, "and is not asked again soon"

    simulate(story, brokers=2)


def test_a_broker_that_hangs_with_an_open_connection_delays_metadata_by_a_second_once() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        connection = await cluster.connection(1)
        fake.brokers[1].script[METADATA] = [SILENCE] * 1000
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.refresh_once()
        assert 1 <= loop.time() - began < 1.5
        assert not connection.closed, "requests of others may be under way"
        for _ in range(20):
            await cluster.refresh_once(["orders"], elsewhere=False)
        assert loop.time() - began < 2

    simulate(story, brokers=2)


# The race


def _attempt(seconds: float, result: str | TidelogError, began: list[str]) -> Callable[[], Coroutine[Any, Any, str]]:
    async def attempt() -> str:
        began.append(str(result))
        await asyncio.sleep(seconds)
        if isinstance(result, TidelogError):
            raise result
        return result

    return attempt


def test_the_next_attempt_begins_when_one_fails_or_takes_long() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        loop = asyncio.get_running_loop()
        began: list[str] = []
        discarded: list[str] = []
        start = loop.time()
        attempts = [_attempt(0.5, TidelogError("a"), began), _attempt(9, "b", began), _attempt(0.5, "c", began)]
        last = _attempt(0, "d", began)
        assert await first_success([*attempts, last], 1, discarded.append) == (2, "c")
        assert loop.time() - start == pytest.approx(2.0)
        assert (began, discarded) == (["a", "b", "c"], [])
        both = [_attempt(2, "slow", began), _attempt(1, "late", began)]
        number, winner = await first_success(both, 1, discarded.append)
        assert (number, winner, discarded) == (0, "slow", ["late"])
        failing = [_attempt(3, TidelogError("x"), began), _attempt(0, TidelogError("y"), began)]
        with pytest.raises(NoneSucceededError) as none:
            await first_success(failing, 1, discarded.append)
        assert [str(failure) for failure in none.value.failures] == ["y", "x"]

    simulate(story)
