"""Three brokers on a real ZooKeeper that is killed and started again, or stopped, under a producer with acks=all.

What is asked of the cluster: it acknowledges nothing when its sessions may be over, and it is back within a second of
ZooKeeper's return (edge case 41).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kits.coordinationkit import zookeeper_server
from tests.kits.loadkit import Load
from tests.kits.processclusterkit import BROKERS, SESSION_MS, ProcessCluster, process_cluster
from tests.kits.processkit import wait_for

pytestmark = [pytest.mark.jvm, pytest.mark.long]

RESTARTS = 9
AWAY_S = 1.5 * SESSION_MS / 1e3
"""Longer than a session; every fourth time."""
BACK_S = 1.0
BACK_WITH_NEW_SESSIONS_S = 5.0
"""A server that was stopped may end the sessions: the brokers register anew, and elect a controller and leaders."""


def acknowledged(load: Load) -> list[int]:
    return [len(offsets) for offsets in load.offsets.values()]


def seconds_until_back(load: Load) -> float:
    """Until each partition has acknowledged something more."""
    before, began_s = acknowledged(load), time.monotonic()

    def are_all_back() -> bool:
        return all(now > then for now, then in zip(acknowledged(load), before, strict=True))

    wait_for(are_all_back, "acknowledgements")
    return time.monotonic() - began_s


def stays_silent(load: Load) -> None:
    """Sessions may be over by now: nothing more is acknowledged. What was, the client may hear a little later."""
    time.sleep(SESSION_MS / 1e3 + 0.7)
    before = acknowledged(load)
    time.sleep(AWAY_S - SESSION_MS / 1e3)
    assert acknowledged(load) == before


def registrations(cluster: ProcessCluster) -> int:
    return sum(len(cluster[number].lines("is registered with epoch")) for number in BROKERS)


def test_edge_41_restarts_of_zookeeper_cost_a_second_each_at_most(tmp_path: Path) -> None:
    server = zookeeper_server()
    with process_cluster(tmp_path, "zookeeper") as cluster:
        load = cluster.load()
        load.wait_for_more(50)
        before, waits_s = registrations(cluster), []
        for number in range(RESTARTS):
            server.kill()
            try:
                if number % 4 == 3:
                    stays_silent(load)
            finally:
                server.start()
            waits_s.append(seconds_until_back(load))
            time.sleep(0.5)
        assert max(waits_s) <= BACK_S, f"seconds until the cluster was back: {[round(wait, 2) for wait in waits_s]}"
        assert registrations(cluster) == before, "every broker goes on with its session"
        cluster.check(load)


def test_edge_41_a_zookeeper_that_is_stopped_for_longer_than_a_session(tmp_path: Path) -> None:
    server = zookeeper_server()
    with process_cluster(tmp_path, "zookeeper") as cluster:
        load = cluster.load()
        load.wait_for_more(50)
        waits_s = []
        for _ in range(2):
            with server.frozen():
                stays_silent(load)
            waits_s.append(seconds_until_back(load))
            time.sleep(0.5)
        assert max(waits_s) <= BACK_WITH_NEW_SESSIONS_S, f"seconds until the cluster was back: {waits_s}"
        cluster.check(load)
