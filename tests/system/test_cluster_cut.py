"""Two brokers do not hear each other, but clients, the third and the store do: the ISR shrinks and grows again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kits.processclusterkit import (
    BROKERS,
    CONTROLLER,
    FOLLOWER,
    HOMES,
    LEADER,
    LED_BY_CONTROLLER,
    LED_BY_LEADER,
    ProcessCluster,
    started,
)
from tests.kits.processkit import free_port
from tests.kits.proxykit import Wires

BEFORE, AFTER = 100, 200

pytestmark = [pytest.mark.parametrize("home", HOMES), pytest.mark.long]


class WiredCluster(ProcessCluster):
    """The brokers reach each other over wires; clients go straight to them."""

    def __init__(self, directory: Path, home: str) -> None:
        super().__init__(directory, home)
        self._inner_ports = {number: free_port() for number in BROKERS}
        self.wires = Wires(
            self._inner_ports,
            lambda: {number: one.process.pid for number, one in self.brokers.items() if one.is_alive},
        )

    def own_settings(self, number: int) -> dict[str, str]:
        outer, inner = f"OUTER://127.0.0.1:{self.ports[number]}", "INNER://127.0.0.1"
        return {
            **super().own_settings(number),
            "listeners": f"{outer},{inner}:{self._inner_ports[number]}",
            "advertised_listeners": f"{outer},{inner}:{self.wires.ports[number]}",
            "inter_broker_listener_name": "INNER",
            "listener_security_protocol_map": "OUTER:PLAINTEXT,INNER:PLAINTEXT",
        }


@contextmanager
def wired_cluster(directory: Path, home: str) -> Iterator[WiredCluster]:
    cluster = WiredCluster(directory, home)
    try:
        with started(cluster):
            yield cluster
    finally:
        cluster.wires.close()


def test_a_cut_between_leader_and_follower(tmp_path: Path, home: str) -> None:
    with wired_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.wires.cut(LEADER, FOLLOWER)
        cluster.wait_for_isr([LEADER, CONTROLLER], LED_BY_LEADER)
        load.wait_for_more(AFTER)
        cluster.wait_for_isr(BROKERS, LED_BY_CONTROLLER)
        cluster.wires.heal(LEADER, FOLLOWER)
        cluster.wait_for_isr(BROKERS)
        load.wait_for_more(AFTER)
        cluster.check(load)


def test_a_cut_between_a_leader_and_the_controller(tmp_path: Path, home: str) -> None:
    """The leader cannot ask for a smaller ISR, so what it cannot replicate to all of it stays unacknowledged (S3.4)."""
    with wired_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        load.wait_for_more(BEFORE)
        cluster.wires.cut(LEADER, CONTROLLER)
        cluster.wait_for_isr_at(FOLLOWER, [FOLLOWER, CONTROLLER], LED_BY_CONTROLLER)
        before = {partition: len(load.offsets[partition]) for partition in LED_BY_LEADER}
        load.wait_for_more(AFTER, LED_BY_CONTROLLER)
        assert {partition: len(load.offsets[partition]) for partition in LED_BY_LEADER} == before
        cluster.wires.heal(LEADER, CONTROLLER)
        cluster.wait_for_isr(BROKERS)
        load.wait_for_more(AFTER)
        cluster.check(load)
