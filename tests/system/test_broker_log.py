"""What the logs of running brokers tell, and that they tell it in few lines and without a false alarm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kits.processkit import BrokerProcess, broker_process
from tests.system.test_up import DEADLINE_S, TIDELOG, Up, gone, until

BROKERS = (1, 2, 3)
ALARM = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ")


def log_of(up: Up, broker: int) -> list[str]:
    return (up.data / f"broker-{broker}.log").read_text().splitlines()


def alarms(up: Up) -> list[str]:
    return [line for broker in BROKERS for line in log_of(up, broker) if ALARM.match(line)]


def everything(up: Up) -> str:
    """All lines of all brokers, in the order of their times."""
    return "\n".join(sorted(line for broker in BROKERS for line in log_of(up, broker)))


def is_whole(up: Up) -> bool:
    described = json.loads(up.run("cluster", "describe", "--json"))
    alive = [broker for broker in described["brokers"] if broker["alive"]]
    return len(alive) == 3 and not described["under_replicated"] and not described["offline"]


def down(up: Up, *options: str) -> None:
    done = subprocess.run(
        [*TIDELOG, "down", "--data", str(up.data), *options], capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def by_hand(up: Up, broker: int) -> Iterator[subprocess.Popen[bytes]]:
    """A broker of the cluster that was stopped, started as `tidelog up` says."""
    files = (
        "--config",
        str(up.data / f"broker-{broker}.properties"),
        "--log-file",
        str(up.data / f"broker-{broker}.log"),
    )
    process = subprocess.Popen([*TIDELOG, "broker", *files], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(DEADLINE_S)


STORY = [
    r"tidelog \S+ starts as broker 2: process \d+, Python 3\S+, listeners PLAINTEXT://127.0.0.1:\d+,",
    r"log directory \S+/broker-2 is new: it holds no logs",
    r"broker \d became controller, controller epoch 1 ",
    r"the controller has taken over: brokers [\d,]+, 0 topics, 0 partitions, 0 without a leader",
    r"broker \d joined the cluster, broker epoch \d+",
    r"broker \d of cluster \S{22} is ready after \d+\.\d s: PLAINTEXT port \d+",
    r"client tidelog at 127.0.0.1 created 1 topic: orders "
    r"\(6 partitions, replication factor 3, min.insync.replicas=2\)",
    r"1 new topic has first leaders: orders \(6 partitions, 3 replicas in sync, led by 1,2,3\)",
    r"a rebalance of group billing began, generation 0 with 1 member: member \S+ at 127.0.0.1 joined",
    r"the rebalance of group billing is complete after \d\.\d s: generation 1 has 1 member, protocol \S+, leader \S+;",
    r"group billing is empty, generation 2, after \d\.\d s; 0 joined and 1 went: member \S+ at 127.0.0.1 left",
    r"client tidelog at 127.0.0.1 changed settings of topic orders \(retention.ms=3600000\)",
    r"broker 2 stops: it got SIGTERM",
    r"broker 2 shuts down: others lead its partitions",
    r"\d+ partitions have a new leader, since broker 2 shuts down: \S+ broker 2 -> [13] \(leader epoch 1, ISR [\d,]+\)",
    r"controlled shutdown of broker 2: its partitions were handed over in \d\.\d s",
    r"log directory \S+/broker-2 is closed and marked as clean",
    r"broker 2 left the cluster, broker epoch \d+, ",
    r"log directory \S+/broker-2: \d+ logs opened in \d\.\d s, the last stop was clean",
    r"broker 2 joined the cluster, broker epoch \d+",
    r"the ISR of \d+ partitions? expanded: \S+ ISR \S+ -> \S+,2 "
    r"\(leader epoch \d+; broker 2 has caught up at offset \d+\)",
    r"client tidelog at 127.0.0.1 asked for an election of preferred leaders of all partitions",
    r"\d+ partitions have a new leader, the preferred leader that was asked for: \S+ broker \d -> 2 ",
    r"client tidelog at 127.0.0.1 asked to reassign 1 partition: orders-0",
    r"the reassignment of 1 partition is complete: orders-0 replicas [\d,]+ -> \d,\d",
    r"client tidelog at 127.0.0.1 asked to delete 1 group: billing",
    r"client tidelog at 127.0.0.1 began to delete 1 topic: orders",
    r"the deletion of 1 topic is complete: orders",
    r"broker \d ceased to be controller, controller epoch \d+: the broker stops",
]


def test_the_story_of_a_cluster_and_no_alarm_in_it(tmp_path: Path) -> None:
    up = Up(tmp_path, "--metrics-port", "-1", brokers=3)
    try:
        up.wait_ready()
        up.run(
            *("topics", "create", "orders", "--partitions", "6", "--replication-factor", "3"),
            *("--config", "min.insync.replicas=2"),
        )
        up.run("produce", "orders", stdin="a\nb\nc\n")
        assert len(up.run("consume", "orders", "--group", "billing").split()) == 3
        up.run("configs", "alter", "retention.ms=3600000", "--topic", "orders")
        down(up, "--broker", "2")
        assert alarms(up) == [], "nor in the logs of those that remain"
        up.run("produce", "orders", stdin="d\n")
        with by_hand(up, 2) as process:
            until(lambda: is_whole(up))
            up.run("elect", "preferred", "--all")
            (first,) = json.loads(up.run("topics", "describe", "orders", "--json"))["detail"][:1]
            fewer = ",".join(str(broker) for broker in first["replicas"][1:])
            move = ("reassign", "--topic", "orders", "--partition", "0", "--replicas", fewer, "--execute", "--wait")
            up.run(*move)
            up.run("groups", "delete", "billing", "--yes")
            up.run("topics", "delete", "orders", "--yes")
            until(lambda: "the deletion of 1 topic is complete" in everything(up))
            down(up)
            assert process.wait(DEADLINE_S) == 0
        assert up.process.wait(DEADLINE_S) == 0
    finally:
        if up.process.poll() is None:
            up.stop()
    assert alarms(up) == []
    told = everything(up)
    for line in STORY:
        assert re.search(line, told), f"no log says: {line}\n{told}"
    for broker in BROKERS:
        assert "has stopped, after" in log_of(up, broker)[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_all_brokers_stopped_at_once_raise_no_alarm(tmp_path: Path, number: int) -> None:
    up = Up(tmp_path, "--metrics-port", "-1", brokers=3)
    try:
        up.wait_ready()
        up.run("topics", "create", "orders", "--partitions", "6", "--replication-factor", "3")
        up.run("topics", "create", "thin", "--partitions", "6", "--replication-factor", "1")
        up.run("produce", "orders", stdin="a\nb\nc\n")
        assert up.run("consume", "orders", "--group", "billing").split()
    finally:
        status = up.stop(number)
    assert status == 0, up.output
    assert alarms(up) == []
    assert "warning" not in up.output


def test_a_broker_whose_disk_was_emptied_says_so_in_its_log_and_on_the_terminal(tmp_path: Path) -> None:
    up = Up(tmp_path, "--metrics-port", "-1")
    try:
        up.wait_ready()
        up.run("topics", "create", "thin")
        up.run("produce", "thin", stdin="a\n")
        assert up.stop() == 0
        assert "error" not in up.output
        shutil.rmtree(up.data / "broker-1")
        up.start_again()
        up.wait_ready()
        until(lambda: "with an empty log" in up.output)
        until(lambda: len([line for line in log_of(up, 1) if " ERROR " in line]) == 3)
    finally:
        up.stop()
    begins, *leads = [line for line in log_of(up, 1) if " ERROR " in line]
    assert "starts with empty log directories" in begins
    assert "registered before, with broker epoch" in begins
    assert any("all records of 1 partition may be lost: broker 1 leads with an empty log" in line for line in leads)
    assert any("all records of thin-0 may be lost: broker 1 leads it with an empty log" in line for line in leads)
    assert all("thin-0" in line for line in leads)
    shown = [line for line in up.output.splitlines() if line.startswith("broker 1: error: ")]
    assert len(shown) == 3, up.output


def test_up_shows_warnings_with_the_number_of_the_broker_and_why_one_ends(tmp_path: Path) -> None:
    """With --detach the same lines are in up.log."""
    done = subprocess.run(
        [*TIDELOG, "up", "--brokers", "2", "--port", "0", "--metrics-port", "-1", "--detach", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stderr
        # The only log directory of broker 2 goes away, and a new log cannot be made there.
        processes = json.loads((tmp_path / "up.json").read_text())["brokers"]
        (pid,) = [one["process"] for one in processes if one["broker"] == 2]
        shutil.rmtree(tmp_path / "broker-2")
        (tmp_path / "broker-2").write_text("")
        at = ("--bootstrap", json.loads((tmp_path / "up.json").read_text())["brokers"][0]["address"])
        made = ("topics", "create", "orders", "--partitions", "2", "--replication-factor", "2", *at)
        subprocess.run([*TIDELOG, *made], capture_output=True, timeout=DEADLINE_S, check=False)
        until(lambda: gone(pid))
        until(lambda: "broker 2 ended with status 1: " in (tmp_path / "up.log").read_text())
    finally:
        subprocess.run(
            [*TIDELOG, "down", "--data", str(tmp_path)], capture_output=True, timeout=DEADLINE_S, check=False
        )
    said = (tmp_path / "up.log").read_text()
    assert "broker 2: error: log directory" in said
    assert "broker 2: critical: broker 2 stops: the last log directory is offline" in said
    assert "broker 2 ended with status 1: broker 2 stops: the last log directory is offline" in said


def test_slow_requests_are_named(tmp_path: Path) -> None:
    """Every request is slow that takes a millisecond; each API has one line for many of them."""
    with broker_process(tmp_path, tidelog_slow_request_ms="1") as broker:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}", "client.id": "a\nclient"})
        for number in range(3):
            made = admin.create_topics([NewTopic(f"t{number}-{one}", 4, 1) for one in range(100)])
            for future in made.values():
                future.result(DEADLINE_S)
        until(lambda: bool(broker.lines("slow request: CreateTopics")))
        assert broker.stop() == 0
    (line,) = broker.lines("slow request: CreateTopics")
    assert re.search(
        r"CreateTopics v\d of client a\\nclient at 127.0.0.1, [\d,]+ bytes: \d+ ms in the queue, \d+ ms", line
    )


def create_many(broker: BrokerProcess, names: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    made = admin.create_topics([NewTopic(name, 1, 1) for name in names], operation_timeout=30.0, request_timeout=40.0)
    for future in made.values():
        future.result(DEADLINE_S)


def test_a_thousand_topics_of_one_request_have_few_lines(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        before = len(broker.log.splitlines())
        create_many(broker, [f"topic-{number}" for number in range(1_000)])
        (created,) = broker.lines("created 1,000 topics")
        assert "and 997 more" in created
        assert len(broker.log.splitlines()) - before < 200
        before = len(broker.log.splitlines())
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        for future in admin.delete_topics(
            [f"topic-{number}" for number in range(1_000)], operation_timeout=30.0
        ).values():
            future.result(DEADLINE_S)
        assert broker.lines("began to delete 1,000 topics")
        assert len(broker.log.splitlines()) - before < 200
        assert broker.stop() == 0


def test_a_log_that_cannot_be_written_keeps_nobody_from_anything(tmp_path: Path) -> None:
    """Each line fails as it does on a full disk."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n"
        f"tidelog.coordination.dir={tmp_path}/coordination\n"
    )
    ready, told = os.pipe()
    process = subprocess.Popen(
        [*TIDELOG, "broker", "--config", str(properties), "--log-file", "/dev/full", "--ready-fd", str(told)],
        pass_fds=[told],
    )
    os.close(told)
    try:
        with os.fdopen(ready, "rb") as pipe:
            port = json.loads(pipe.readline())["PLAINTEXT"]
        at = ("--bootstrap", f"127.0.0.1:{port}")
        for command, given in ((("topics", "create", "orders"), ""), (("produce", "orders"), "a\n")):
            subprocess.run([*TIDELOG, *command, *at], input=given, text=True, timeout=DEADLINE_S, check=True)
        read = subprocess.run(
            [*TIDELOG, "consume", "orders", *at], capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        assert read.stdout == "a\n"
    finally:
        process.terminate()
        status = process.wait(DEADLINE_S)
    assert status == 0


@pytest.mark.long
def test_two_thousand_partitions_that_change_leader_have_few_lines(tmp_path: Path) -> None:
    up = Up(tmp_path, "--metrics-port", "-1", brokers=3)
    try:
        up.wait_ready()
        # Broker 2 leads them all, and the others follow.
        assignments = [[2, 3, 1], [2, 1, 3]] * 1_000
        admin = AdminClient({"bootstrap.servers": up.bootstrap})
        (future,) = admin.create_topics(
            [NewTopic("many", len(assignments), replica_assignment=assignments)],
            operation_timeout=30.0,
            request_timeout=40.0,
        ).values()
        future.result(DEADLINE_S)
        until(lambda: is_whole(up))
        before = {broker: len(log_of(up, broker)) for broker in BROKERS}
        (pid,) = [
            pid for pid in up.broker_pids() if b"broker-2.properties" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(pid, signal.SIGKILL)
        until(lambda: "2,000 partitions have a new leader, " in everything(up))
        until(lambda: not json.loads(up.run("cluster", "describe", "--json"))["offline"])
        with by_hand(up, 2):
            until(lambda: is_whole(up))
            down(up)
        assert max(len(log_of(up, broker)) - before[broker] for broker in BROKERS) < 120
    finally:
        if up.process.poll() is None:
            up.stop()


def test_one_logger_is_raised_to_debug_while_the_broker_runs(tmp_path: Path) -> None:
    logger = "tidelog.broker.group.story"
    with broker_process(tmp_path, group_initial_rebalance_delay_ms="0", offsets_topic_replication_factor="1") as broker:

        def tidelog(*command: str) -> subprocess.CompletedProcess[str]:
            at = ("--bootstrap", f"127.0.0.1:{broker.port}")
            return subprocess.run(
                [*TIDELOG, *command, *at], capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )

        alter = tidelog("configs", "alter", f"{logger}=DEBUG", "--broker-logger", "1")
        assert alter.stdout == f"changed {logger} of the loggers of broker 1\n", alter.stderr
        assert "DEBUG" in tidelog("configs", "describe", logger, "--broker-logger", "1").stdout
        assert broker.lines("changed settings of the loggers of broker 1", f"{logger}=DEBUG")
        assert tidelog("topics", "create", "orders").returncode == 0
        assert tidelog("consume", "orders", "--group", "billing").returncode == 0
        until(lambda: bool(broker.lines(" DEBUG ", "group billing, generation 0: member ")))
        unknown = tidelog("configs", "alter", "tidelog.broker.group.storm=DEBUG", "--broker-logger", "1")
        assert unknown.returncode == 1
        assert f"Did you mean '{logger}'?" in unknown.stderr
        assert tidelog("configs", "delete", logger, "--broker-logger", "1").returncode == 0
