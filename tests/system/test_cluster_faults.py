"""Three real brokers under load, and some or all of them are killed: no acknowledged record is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.processclusterkit import (
    BROKERS,
    CONTROLLER,
    FOLLOWER,
    HOMES,
    LEADER,
    LED_BY_LEADER,
    SESSION_MS,
    ProcessCluster,
    process_cluster,
)

BEFORE, AFTER = 200, 200
"""Acknowledgements in each partition."""

pytestmark = pytest.mark.parametrize("home", HOMES)


def longest_gap_s(cluster: ProcessCluster) -> float:
    """How long acknowledgements may pause when a broker dies: its death is seen, others lead, clients find them."""
    return 5.0 + (SESSION_MS / 1000 if cluster.home == "zookeeper" else 0)


def test_a_leader_is_killed(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.kill(LEADER)
        load.wait_for_more(AFTER)
        cluster.wait_for_isr([FOLLOWER, CONTROLLER])
        gaps_s = load.longest_gap_s
        print(f"{home}: longest gap {max(gaps_s[one] for one in LED_BY_LEADER):.2f} s without the leader")
        assert max(gaps_s.values()) < longest_gap_s(cluster)
        cluster.restart(LEADER)
        load.wait_for_more(AFTER)
        cluster.check(load)


@pytest.mark.long
def test_a_follower_is_killed(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.kill(FOLLOWER)
        load.wait_for_more(AFTER)
        cluster.wait_for_isr([LEADER, CONTROLLER])
        assert [one.leader for one in cluster.view(LEADER).values()] == [LEADER, LEADER, CONTROLLER, CONTROLLER]
        cluster.restart(FOLLOWER)
        load.wait_for_more(AFTER)
        cluster.check(load)


@pytest.mark.long
def test_the_controller_is_killed(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.kill(CONTROLLER)
        load.wait_for_more(AFTER)
        cluster.wait_for_isr([LEADER, FOLLOWER])
        assert cluster.controller() in (LEADER, FOLLOWER)
        assert max(load.longest_gap_s.values()) < longest_gap_s(cluster)
        cluster.restart(CONTROLLER)
        load.wait_for_more(AFTER)
        cluster.check(load)


def test_all_are_killed_at_once(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.kill(*BROKERS)
        cluster.restart(*BROKERS)
        load.wait_for_more(AFTER)
        cluster.check(load)
