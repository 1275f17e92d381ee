"""One broker that agrees with itself through a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peers.clients import consume, create_topic
from tests.kits.coordinationkit import zookeeper_server
from tests.kits.processkit import broker_process, wait_for

pytestmark = pytest.mark.jvm

SESSION_TIMEOUT_MS = 3_000


def tidelog(port: int, *command: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *command, "--bootstrap", f"127.0.0.1:{port}"],
        input=given,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings(chroot: str) -> dict[str, str]:
    return {
        "zookeeper_connect": f"{zookeeper_server().connect}/{chroot}",
        "zookeeper_session_timeout_ms": str(SESSION_TIMEOUT_MS),
    }


def test_topics_and_records_outlive_a_restart(tmp_path: Path) -> None:
    with broker_process(tmp_path, **settings("restart")) as broker:
        tidelog(broker.port, "topics", "create", "orders", "--partitions", "2", "--config", "retention.ms=86400000")
        tidelog(broker.port, "produce", "orders", given="a\nb\nc\n")
        assert broker.stop() == 0
    with zookeeper_server().client() as client:
        assert client.get_children("/restart/brokers/ids") == [], "a broker that stops takes its name with it"
    with broker_process(tmp_path, **settings("restart")) as broker:
        assert "orders" in tidelog(broker.port, "topics", "list")
        found = [
            record.value for number in range(2) for record in consume(f"127.0.0.1:{broker.port}", "orders", number)
        ]
        assert sorted(value for value in found if value is not None) == [b"a", b"b", b"c"]


def test_a_broker_lives_through_a_silence_of_zookeeper(tmp_path: Path) -> None:
    """For longer than a connection lasts, and for less than a session."""
    with broker_process(tmp_path, **settings("frozen-broker")) as broker:
        create_topic(f"127.0.0.1:{broker.port}", "before")
        with zookeeper_server().frozen():
            wait_for(lambda: bool(broker.lines("coordination", "suspended")), "the session to be suspended")
        wait_for(lambda: bool(broker.lines("coordination", "connected")), "the session to go on")
        create_topic(f"127.0.0.1:{broker.port}", "after")
        assert len(broker.log.splitlines()) < 40, "a bad line must not fill the log"
        assert broker.stop() == 0


def test_edge_41_a_broker_that_was_killed_does_not_wait_for_the_end_of_its_session(tmp_path: Path) -> None:
    """ZooKeeper is killed as well, and so gives the session of the dead process a new timeout."""
    server = zookeeper_server()
    longest = {**settings("killed-broker"), "zookeeper_session_timeout_ms": "10000"}
    with broker_process(tmp_path, **longest) as broker:
        create_topic(f"127.0.0.1:{broker.port}", "orders")
        broker.kill()
        server.kill()
        server.start()
        broker.start_again()
        assert broker.lines("/brokers/ids/1", "of our former session")
        tidelog(broker.port, "produce", "orders", given="a\n")
        assert broker.stop() == 0
