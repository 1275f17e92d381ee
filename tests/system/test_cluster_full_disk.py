"""The disk of one broker takes no more: its replicas are offline, the others go on, nothing acknowledged is lost.

As in test_full_disk.py no file system is full, but files may not grow beyond a limit. It is set while the broker runs,
so that the fault comes in the middle of the load, and a restart is a disk with room.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.kits.processclusterkit import (
    BROKERS,
    CONTROLLER,
    FOLLOWER,
    HOMES,
    LEADER,
    LED_BY_LEADER,
    ProcessCluster,
    process_cluster,
)
from tests.kits.processkit import DEADLINE_S, BrokerProcess, wait_for

BEFORE, AFTER = 50, 100
LIMIT_BYTES = 1_000_000
"""More than any file of the cluster but the segments that a load of large records fills."""
LARGE = 10_000
BIG_SEGMENTS = {"segment_bytes": "100000000"}

pytestmark = [pytest.mark.parametrize("home", HOMES), pytest.mark.long]


def fill_disk(broker: BrokerProcess) -> None:
    """From now on no file of this process grows beyond the limit."""
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))


def wait_for_its_end(cluster: ProcessCluster, number: int) -> None:
    broker = cluster[number]
    assert broker.process.wait(DEADLINE_S) == 1, "it must say by its status that it could not go on"
    assert broker.lines("ERROR", "is offline")
    assert broker.lines("CRITICAL", "the last log directory is offline")


@pytest.mark.parametrize("victim", [pytest.param(LEADER, id="leader"), pytest.param(FOLLOWER, id="follower")])
def test_a_broker_without_any_room_ends_and_the_others_go_on(tmp_path: Path, home: str, victim: int) -> None:
    others = [number for number in BROKERS if number != victim]
    with process_cluster(tmp_path, home, topic=BIG_SEGMENTS) as cluster:
        load = cluster.load(size=LARGE)
        load.wait_for_more(BEFORE)
        fill_disk(cluster[victim])
        wait_for_its_end(cluster, victim)
        cluster.wait_for_leader(other_than=victim, partitions=load.partitions)
        cluster.wait_for_isr(others)
        load.wait_for_more(AFTER)
        cluster.restart(victim)
        load.wait_for_more(AFTER)
        cluster.check(load)


def test_a_leader_without_room_in_one_of_two_directories_keeps_the_other(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home, data=("data-a", "data-b"), topic=BIG_SEGMENTS) as cluster:
        full, roomy = sorted(cluster.partitions_by_directory(LEADER), key=lambda held: LED_BY_LEADER[0] not in held)
        leaders = [cluster.view(FOLLOWER)[partition].leader for partition in roomy]
        heavy, light = cluster.load(full, size=LARGE), cluster.load(roomy)
        for load in (heavy, light):
            load.wait_for_more(BEFORE)
        fill_disk(cluster[LEADER])
        wait_for(lambda: bool(cluster[LEADER].lines("ERROR", "is offline")), "a directory to be offline")
        cluster.wait_for_leader(other_than=LEADER, partitions=full)
        cluster.wait_for_isr([FOLLOWER, CONTROLLER], full)
        heavy.wait_for_more(AFTER)
        light.wait_for_more(AFTER)
        assert cluster[LEADER].is_alive
        assert [cluster.view(FOLLOWER)[partition].leader for partition in roomy] == leaders
        assert cluster[LEADER].stop() == 0
        cluster.restart(LEADER)
        heavy.wait_for_more(AFTER)
        cluster.check(heavy, light)
