"""`tidelog cluster`, `elect`, `reassign` and `topics describe --watermarks` on three real brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kits.coordinationkit import zookeeper_server
from tests.system.test_up import TIDELOG, Up, until

VICTIM = 2


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Three brokers that come back when they die, and `orders` with a partition for each to lead."""
    # Who stops last has nobody to hand its partitions to; it need not wait for somebody here.
    up = Up(tmp_path, "--restart", "--set", "controlled.shutdown.retry.backoff.ms=100", brokers=3)
    try:
        up.wait_ready()
        up.run("topics", "create", "orders", "--partitions", "3", "--replication-factor", "3")
        up.run("produce", "orders", stdin="".join(f"{number}\n" for number in range(30)))
        yield up
        assert up.stop() == 0, up.output
    finally:
        if up.process.poll() is None:
            up.stop()


def rows(up: Up, *command: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in up.run(*command, "--json").splitlines()]


def cluster(up: Up) -> dict[str, Any]:
    (described,) = rows(up, "cluster", "describe")
    return described


def partitions(up: Up, *options: str) -> list[dict[str, Any]]:
    (described,) = rows(up, "topics", "describe", "orders", *options)
    return list(described["detail"])


def in_sync(up: Up) -> bool:
    return all(len(partition["isr"]) == len(partition["replicas"]) for partition in partitions(up))


@contextmanager
def dead(up: Up, broker: int) -> Iterator[None]:
    """Killed, and kept from coming back: its port is taken meanwhile."""
    name = f"broker-{broker}.properties".encode()
    (pid,) = [pid for pid in up.broker_pids() if name in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGKILL)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def is_taken() -> bool:
            try:
                taken.bind(("127.0.0.1", up.port + broker - 1))
            except OSError:
                return False
            return True

        until(is_taken)
        taken.listen()
        yield


def test_what_the_replicas_have_and_a_partition_with_fewer_of_them_and_more_again(up: Up):
    def is_everywhere(partition: dict[str, Any]) -> bool:
        ends = {(one["log_end_offset"], one["high_watermark"]) for one in partition["watermarks"]}
        return len(ends) == 1 and all(end == watermark for end, watermark in ends)

    until(lambda: all(map(is_everywhere, partitions(up, "--watermarks"))))
    shown = partitions(up, "--watermarks")
    assert [[one["broker"] for one in partition["watermarks"]] for partition in shown] == [
        partition["replicas"] for partition in shown
    ]
    assert sum(partition["watermarks"][0]["high_watermark"] for partition in shown) == 30
    end = shown[0]["watermarks"][0]["log_end_offset"]
    assert f"1: {end}/{end}" in up.run("topics", "describe", "orders", "--watermarks")

    before = shown[0]["replicas"]
    move = ("reassign", "--topic", "orders", "--partition", "0", "--replicas")
    fewer, more = ",".join(map(str, before[:2])), ",".join(map(str, before))
    (plan,) = rows(up, *move, fewer)
    assert plan == {"topic": "orders", "partition": 0, "current": before, "target": before[:2]}
    assert partitions(up)[0]["replicas"] == before, "a plan changes nothing"
    for target in (fewer, more):
        (moved,) = rows(up, *move, target, "--execute", "--wait", "--timeout", "20")
        assert moved["result"] == "begun"
        assert partitions(up)[0]["replicas"] == [int(broker) for broker in target.split(",")]
    assert rows(up, "reassign", "--list") == []
    assert "nothing" in up.run("reassign", "--cancel", "--topic", "orders")
    until(lambda: is_everywhere(partitions(up, "--watermarks")[0]))
    assert [one["log_end_offset"] for one in partitions(up, "--watermarks")[0]["watermarks"]] == [end] * 3


def test_a_broker_that_dies_and_gets_its_partitions_back(up: Up):
    healthy = cluster(up)
    assert [(row["broker"], row["leads"], row["holds"]) for row in healthy["brokers"]] == [
        (1, 1, 3),
        (2, 1, 3),
        (3, 1, 3),
    ]
    assert healthy["brokers"][0]["address"] == up.bootstrap
    assert healthy["controller"] in (1, 2, 3)
    assert (healthy["under_replicated"], healthy["offline"]) == ([], [])
    assert "all 3 partitions" in up.run("cluster", "describe")

    with dead(up, VICTIM):
        until(lambda: len(cluster(up)["under_replicated"]) == 3)
        assert [(row["broker"], row["alive"]) for row in cluster(up)["brokers"]] == [(1, True), (2, False), (3, True)]
        assert "under-replicated: 3 partitions" in up.run("cluster", "describe")
        assert cluster(up)["offline"] == []
        assert f"{VICTIM}: dead" in up.run("topics", "describe", "orders", "--watermarks")
    until(lambda: f"broker {VICTIM} is ready again" in up.output)
    until(lambda: in_sync(up))
    assert VICTIM not in [partition["leader"] for partition in partitions(up)]

    (elected,) = rows(up, "elect", "preferred", "--all")
    assert (elected["leader"], elected["result"]) == (VICTIM, "elected")
    again = rows(up, "elect", "preferred", "--topic", "orders")
    assert [row["result"] for row in again] == ["ELECTION_NOT_NEEDED"] * 3
    assert [row["leads"] for row in cluster(up)["brokers"]] == [1, 1, 1]


def test_brokers_wait_for_a_zookeeper_and_say_where_they_look(tmp_path: Path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{nobody.getsockname()[1]}/tides"
        up = Up(tmp_path, "--zookeeper", where, "--set", "zookeeper.connection.timeout.ms=300")
        log = up.data / "broker-1.log"
        try:
            until(lambda: log.exists() and f"no ZooKeeper at {where}" in log.read_text())
            assert not (up.data / "coordination").exists()
        finally:
            assert up.stop() == 0, up.output


@pytest.mark.jvm
def test_up_with_zookeeper(tmp_path: Path):
    where = f"{zookeeper_server().connect}/tides"
    up = Up(tmp_path, "--zookeeper", where, "--set", "controlled.shutdown.retry.backoff.ms=100", brokers=2)
    try:
        up.wait_ready()
        up.run("topics", "create", "orders", "--partitions", "2", "--replication-factor", "2")
        until(lambda: in_sync(up))
        assert [row["alive"] for row in cluster(up)["brokers"]] == [True, True]
        with zookeeper_server().client() as client:
            assert sorted(client.get_children("/tides/brokers/ids")) == ["1", "2"]
        assert not (up.data / "coordination").exists()
    finally:
        assert up.stop() == 0, up.output


def test_a_broker_that_does_not_answer_gets_no_replicas(tmp_path: Path):
    """As on a machine that has just died: its session goes on for a while, and so long the cluster lists it."""
    pid = 0
    up = Up(tmp_path, "--metrics-port", "-1", "--set", "zookeeper.session.timeout.ms=60000", brokers=3)
    try:
        up.wait_ready()
        up.run("topics", "create", "orders", "--partitions", "3", "--replication-factor", "2")
        until(lambda: in_sync(up))
        name = b"broker-3.properties"
        (pid,) = [pid for pid in up.broker_pids() if name in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(pid, signal.SIGSTOP)
        command = [*TIDELOG, "reassign", "--replication-factor", "2", "--topic", "orders", "--json"]
        done = subprocess.run([*command, "--bootstrap", up.bootstrap], capture_output=True, text=True, check=True)
        plan = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(plan) == 2, "two of the three partitions had a replica there"
        assert all(sorted(row["target"]) == [1, 2] for row in plan)
        assert "broker 3 counts as dead: " in done.stderr
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)
        up.stop()
