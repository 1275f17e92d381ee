"""`tidelog cluster`, `elect`, `reassign` and `topics describe --watermarks`: tables, JSON, usage, exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kits.clientkit import values
from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tidelog.cli.main import main
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

ELECT, ALTER, LIST = 43, 45, 46
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        broker.add_topic("orders", 2)
        yield broker


def run(broker: FakeAdminBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"TIDELOG_BOOTSTRAP": broker.bootstrap})


def done(broker: FakeAdminBroker, *arguments: str) -> str:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# topics describe --watermarks


def test_watermarks_of_replicas_dead_and_alive(broker: FakeAdminBroker) -> None:
    broker.cluster.append(P0, bytes(values(3)))
    broker.cluster.leaders[P1] = 9
    shown = done(broker, "topics", "describe", "orders", "--watermarks")
    assert "1: 3/3" in shown
    assert "9: dead" in shown
    (described,) = rows(done(broker, "topics", "describe", "--watermarks", "--json"))
    assert [row["watermarks"] for row in described["detail"]] == [
        [{"broker": 1, "log_end_offset": 3, "high_watermark": 3}],
        [{"broker": 9, "log_end_offset": None, "high_watermark": None, "error": "dead"}],
    ]
    assert "watermarks" not in done(broker, "topics", "describe", "orders")


# cluster


def test_the_cluster(broker: FakeAdminBroker) -> None:
    shown = done(broker, "cluster", "describe")
    assert "cluster fake  controller 1" in shown
    assert "all 2 partitions have a leader" in shown
    broker.cluster.leaders[P1] = 9
    (described,) = rows(done(broker, "cluster", "describe", "--json"))
    alive = {"broker": 1, "address": broker.bootstrap, "rack": None, "alive": True, "controller": True}
    dead = {"broker": 9, "address": None, "rack": None, "alive": False, "controller": False}
    assert described == {
        "cluster_id": "fake",
        "controller": 1,
        "brokers": [{**alive, "leads": 1, "holds": 1}, {**dead, "leads": 1, "holds": 1}],
        "partitions": 2,
        "internal": {"topics": [], "partitions": 0},
        "under_replicated": [],
        "offline": [{"topic": "orders", "partition": 1, "leader": 9, "replicas": [9], "isr": [9]}],
        "strays": [],
        "failed_directories": [],
    }
    assert "offline (no leader): 1 partition\n" in done(broker, "cluster", "describe")


def test_strays_are_listed_with_the_cluster(broker: FakeAdminBroker) -> None:
    name = f"orders-3.{'0' * 32}-stray"
    broker.log_directories = [
        DescribeLogDirsResult(
            log_dir="/data",
            topics=[
                DescribeLogDirsTopic(name=topic, partitions=[DescribeLogDirsPartition(partition_size=size)])
                for topic, size in ((name, 77), ("orders", 5))
            ],
        )
    ]
    shown = done(broker, "cluster", "describe")
    assert "strays: 1 replica, 77 B" in shown
    assert name in shown
    (described,) = rows(done(broker, "cluster", "describe", "--json"))
    assert described["strays"] == [{"broker": 1, "log_directory": "/data", "stray": name, "bytes": 77}]


def test_internal_topics_are_summed_up(broker: FakeAdminBroker) -> None:
    broker.add_topic("__consumer_offsets", 50)
    assert "all 52 partitions (50 of internal topics) have a leader" in done(broker, "cluster", "describe")
    for number in range(50):
        broker.cluster.leaders[TopicPartition("__consumer_offsets", number)] = 9
    broker.cluster.leaders[P1] = 9
    shown = done(broker, "cluster", "describe")
    assert "offline (no leader): 51 partitions (50 of internal topics)" in shown
    assert "__consumer_offsets" not in shown
    assert "orders" in shown
    (dead,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["9"])
    assert dead == ["9", "no", "no", "51", "51"], "broker 9 is not alive"
    (described,) = rows(done(broker, "cluster", "describe", "--json"))
    assert described["internal"] == {"topics": ["__consumer_offsets"], "partitions": 50}
    assert len(described["offline"]) == 51


def test_log_directories_that_failed_are_shown(broker: FakeAdminBroker) -> None:
    failed = DescribeLogDirsResult(log_dir="/broken", error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    broker.log_directories = [DescribeLogDirsResult(log_dir="/data"), failed]
    shown = done(broker, "cluster", "describe")
    assert "failed log directories: 1" in shown
    assert "/broken" in shown
    (described,) = rows(done(broker, "cluster", "describe", "--json"))
    assert described["failed_directories"] == [
        {"broker": 1, "log_directory": "/broken", "error": "KAFKA_STORAGE_ERROR"}
    ]


# elect


def elects(broker: FakeAdminBroker, *codes: ErrorCode) -> None:
    results = [
        ElectLeadersResponsePartitionResult(partition_id=number, error_code=code, error_message="so it is")
        for number, code in enumerate(codes)
    ]
    topics = [ReplicaElectionResult(topic="orders", partition_result=results)] if codes else []
    broker.script[ELECT].append(lambda request: ElectLeadersResponse(replica_election_results=topics))


def test_an_election(broker: FakeAdminBroker) -> None:
    elects(broker, ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    elected = rows(done(broker, "elect", "preferred", "--topic", "orders", "--json"))
    assert [(row["partition"], row["leader"], row["result"]) for row in elected] == [
        (0, 1, "elected"),
        (1, 1, "ELECTION_NOT_NEEDED"),
    ]
    elects(broker, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    failed = run(broker, "elect", "--unclean", "--topic", "orders", "--partition", "0")
    assert failed.exit_code == 1
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in failed.stdout
    elects(broker)
    assert "no partition needs an election" in done(broker, "elect", "preferred", "--all")
    asked: list[ElectLeadersRequest] = broker.of_key(ELECT)
    assert [one.election_type for one in asked] == [0, 1, 0]
    named = [[topic.partitions for topic in one.topic_partitions or ()] for one in asked]
    assert named == [[[0, 1]], [[0]], []]


# reassign


def alters(broker: FakeAdminBroker, **failures: ErrorCode) -> None:
    def answer(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
        topics = [
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=one.partition_index,
                        error_code=failures.get(f"p{one.partition_index}", ErrorCode.NONE),
                        error_message=None,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return AlterPartitionReassignmentsResponse(error_message=None, responses=topics)

    broker.script[ALTER].append(answer)


def lists(broker: FakeAdminBroker, *numbers: int) -> None:
    partitions = [
        OngoingPartitionReassignment(
            partition_index=number, replicas=[2, 1], adding_replicas=[2], removing_replicas=[1]
        )
        for number in numbers
    ]
    topics = [OngoingTopicReassignment(name="orders", partitions=partitions)] if numbers else []
    broker.script[LIST].append(lambda request: ListPartitionReassignmentsResponse(error_message=None, topics=topics))


def asked(broker: FakeAdminBroker) -> list[tuple[int, list[int] | None]]:
    request: AlterPartitionReassignmentsRequest = broker.of_key(ALTER)[-1]
    return [(one.partition_index, one.replicas) for topic in request.topics for one in topic.partitions]


def test_a_plan_is_only_shown_until_it_is_told_to_be_executed(broker: FakeAdminBroker) -> None:
    plan = ("reassign", "--topic", "orders", "--replicas", "2,3")
    shown = run(broker, *plan, "--json")
    assert shown.exit_code == 0
    assert rows(shown.stdout) == [
        {"topic": "orders", "partition": number, "current": [1], "target": [2, 3]} for number in range(2)
    ]
    assert "--execute" in shown.stderr
    assert "warning: broker 2 is not alive; it would get 2 partitions\n" in shown.stderr
    assert not broker.of_key(ALTER)
    alters(broker, p1=ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    executed = run(broker, *plan, "--execute", "--json")
    assert executed.exit_code == 1
    assert [row["result"] for row in rows(executed.stdout)] == [
        "begun",
        "partition orders-1: INVALID_REPLICA_ASSIGNMENT",
    ]
    assert asked(broker) == [(0, [2, 3]), (1, [2, 3])]


def test_a_plan_of_a_file_waited_for(broker: FakeAdminBroker, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    entry = {"topic": "orders", "partition": 1, "replicas": [1], "log_dirs": ["any"]}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    alters(broker)
    lists(broker, 1)
    lists(broker)
    result = run(broker, "reassign", "--file", str(file), "--execute", "--wait")
    assert result.exit_code == 0, result.output
    assert "1 partition reassigned" in result.stderr
    assert asked(broker) == [(1, [1])]
    assert not broker.script[LIST]
    alters(broker)
    for _ in range(20):
        lists(broker, 1)
    late = run(broker, "reassign", "--file", str(file), "--execute", "--wait", "--timeout", "0.2")
    assert late.exit_code == 1
    assert "not done after 0.2 s: orders-1" in late.stderr
    assert "`tidelog reassign --list` shows it, and --cancel calls it off" in late.stderr


def test_a_plan_warns_of_partitions_that_nobody_can_copy(broker: FakeAdminBroker) -> None:
    broker.cluster.leaders[P1] = 9
    shown = run(broker, "reassign", "--topic", "orders", "--replicas", "1")
    assert shown.exit_code == 0
    assert "warning: orders-1 has no leader to copy from; that waits until a broker with the records" in shown.stderr
    assert "orders-0 has" not in shown.stderr


def test_a_plan_for_given_brokers_is_generated_and_read_again(broker: FakeAdminBroker, tmp_path: Path) -> None:
    generated = run(broker, "reassign", "--topic", "orders", "--brokers", "1,2", "--generate")
    assert generated.exit_code == 0, generated.output
    plan = json.loads(generated.stdout)
    assert plan["version"] == 1
    assert [one["replicas"] for one in plan["partitions"]] == [[2]], "one of two moves, and one stays"
    assert '"replicas": [1]' in generated.stderr
    assert "broker 2 is not alive" in generated.stderr
    file = tmp_path / "plan.json"
    file.write_text(generated.stdout)
    (shown,) = rows(done(broker, "reassign", "--file", str(file), "--json"))
    assert (shown["current"], shown["target"]) == ([1], [2])
    assert rows(done(broker, "reassign", "--topic", "orders", "--brokers", "1,2", "--json")) == [shown]
    done_already = run(broker, "reassign", "--topic", "orders", "--brokers", "1")
    assert "all partitions have these replicas already" in done_already.stdout
    assert "--execute" not in done_already.stderr, "there is nothing to carry out"
    nothing = run(broker, "reassign", "--topic", "orders", "--brokers", "1", "--generate")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert not broker.of_key(ALTER)


def test_what_is_under_way_and_called_off(broker: FakeAdminBroker) -> None:
    lists(broker, 1)
    (moving,) = rows(done(broker, "reassign", "--list", "--json"))
    assert moving == {
        "topic": "orders",
        "partition": 1,
        "replicas": [2, 1],
        "adding": [2],
        "removing": [1],
        "target": [2],
    }
    lists(broker)
    assert "nothing is being reassigned" in done(broker, "reassign", "--list")
    lists(broker, 1)
    alters(broker)
    assert "cancelled" in done(broker, "reassign", "--cancel", "--topic", "orders")
    assert asked(broker) == [(1, None)]
    alters(broker, p0=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    failed = run(broker, "reassign", "--cancel", "--topic", "orders", "--partition", "0")
    assert failed.exit_code == 1
    assert "NO_REASSIGNMENT_IN_PROGRESS" in failed.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a plan"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"version": 1, "partitions": []}', "names no partition"),
        ('{"partitions": [1]}', "partitions[0]: not an object"),
        ('{"partitions": [{"topic": "orders", "partition": "0", "replicas": [1]}]}', "partition is not a number"),
        ('{"partitions": [{"topic": "orders", "partition": 0, "replicas": []}]}', "replicas are not a list"),
        ('{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 1]}]}', "more than once"),
        (
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]}',
            "log_dirs other than",
        ),
        (
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}, '
            '{"topic": "orders", "partition": 0, "replicas": [2]}]}',
            "partitions[1]: orders-0 stands there before",
        ),
        ('{"partitions": [{"topic": "orders", "partition": 7, "replicas": [1]}]}', "no partition 7; it has 0 to 1"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told_in_one_line(
    broker: FakeAdminBroker, tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    result = run(broker, "reassign", "--file", str(file), "--execute")
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not broker.of_key(ALTER)


@pytest.mark.parametrize(
    "arguments",
    [
        ("elect", "preferred"),
        ("elect", "preferred", "--all", "--topic", "t"),
        ("elect", "preferred", "--all", "--partition", "0"),
        ("elect", "any", "--all"),
        ("elect", "--all"),
        ("elect", "preferred", "--unclean", "--all"),
        ("reassign",),
        ("reassign", "--replicas", "1"),
        ("reassign", "--topic", "t", "--replicas", "1,1"),
        ("reassign", "--topic", "t", "--replicas", "1,x"),
        ("reassign", "--brokers", "1"),
        ("reassign", "--topic", "t", "--replicas", "1", "--generate", "--execute"),
        ("reassign", "--topic", "t", "--replicas", "1", "--list"),
        ("reassign", "--topic", "t", "--replicas", "1", "--wait"),
        ("reassign", "--cancel"),
        ("reassign", "--cancel", "--topic", "t", "--execute"),
        ("reassign", "--list", "--partition", "0"),
        ("up", "--zookeeper", "/chroot"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2
