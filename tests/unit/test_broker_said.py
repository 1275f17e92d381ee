"""Logs while something is away: each reason is said once, not ten times a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tidelog.broker.said import AGAIN_AFTER_S, Said
from tidelog.lab.world import World


def test_a_reason_is_news_once_a_minute_until_it_is_over() -> None:
    async def story() -> None:
        said = Said()
        assert said.is_news("no route")
        assert said.is_news("refused")
        assert not said.is_news("no route"), "two reasons that take turns are two lines"
        await asyncio.sleep(AGAIN_AFTER_S)
        assert said.is_news("no route")
        assert not said.is_news("no route")
        said.is_over()
        assert said.is_news("no route")

    with World(1) as world:
        world.run(story())


def test_reasons_that_are_never_the_same_are_not_kept_for_ever() -> None:
    async def story() -> None:
        said = Said()
        assert all(said.is_news(str(number)) for number in range(1000))
        assert len(said._at_s) <= 100

    with World(1) as world:
        world.run(story())


@pytest.mark.parametrize("what", ["a broker", "the store", "the store at a start"])
def test_a_cluster_that_misses_something_does_not_flood_its_logs(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """For 20 s in which everything is tried again."""

    async def story(cluster: ClusterKit) -> None:
        await cluster.all_in_sync()
        caplog.clear()
        leader = cluster[cluster.leader(0)]
        if what != "the store":
            leader.kill()
        if what != "a broker":
            cluster.store.stop()
        starting = asyncio.ensure_future(leader.start()) if what == "the store at a start" else None
        await asyncio.sleep(20)
        if starting is not None:
            starting.cancel()

    with caplog.at_level(logging.INFO, "tidelog"):
        run(story)
    lines = Counter(record.msg for record in caplog.records)
    assert lines
    assert max(lines.values()) <= 3 * 4, lines.most_common(5)
