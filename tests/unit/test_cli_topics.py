"""`tidelog topics` and `tidelog configs`: tables, JSON, errors in one line, exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kits.clientkit import values
from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tidelog.cli.main import main
from tidelog.types import TopicPartition
from tidelog.wire.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tidelog.wire.messages.topics import DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic

DELETE_RECORDS = 21


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        yield broker


def run(broker: FakeAdminBroker, *arguments: str, input: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=input, env={"TIDELOG_BOOTSTRAP": broker.bootstrap})


def done(broker: FakeAdminBroker, *arguments: str) -> str:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_topic_from_its_making_to_its_end(broker: FakeAdminBroker) -> None:
    made = done(broker, "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=5")
    assert made == "created topic orders: 3 partitions, replication factor 1\n"
    (listed,) = rows(done(broker, "topics", "list", "--json"))
    assert (listed["topic"], listed["partitions"], listed["replication_factor"]) == ("orders", 3, 1)
    done(
        broker,
        "topics",
        "alter",
        "orders",
        "--partitions",
        "4",
        "--config",
        "cleanup.policy=b=c",
        "--delete-config",
        "retention.ms",
    )
    (described,) = rows(done(broker, "topics", "describe", "orders", "--json"))
    assert described["configs"] == {"cleanup.policy": ["b=c"]}
    assert [row["leader"] for row in described["detail"]] == [1] * 4
    shown = done(broker, "topics", "describe")
    assert "cleanup.policy=b=c" in shown
    assert "leader epoch" in shown
    assert "deleted topic orders" in done(broker, "topics", "delete", "orders", "--yes")
    assert "there are no topics" in done(broker, "topics", "list")
    assert done(broker, "topics", "list", "--json") == ""


def test_a_topic_that_is_there_is_an_error_unless_it_may_be(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 2)
    failed = run(broker, "topics", "create", "orders")
    assert failed.exit_code == 1
    assert failed.stderr.count("\n") == 1
    assert "TOPIC_ALREADY_EXISTS" in failed.stderr
    assert "--if-not-exists" in failed.stderr
    assert "already a topic orders: 2 partitions" in done(broker, "topics", "create", "orders", "--if-not-exists")


def test_deleting_asks_first(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 1)
    assert run(broker, "topics", "delete", "orders", input="n\n").exit_code == 1
    assert TopicPartition("orders", 0) in broker.cluster.leaders
    assert run(broker, "topics", "delete", "orders", input="y\n").exit_code == 0
    assert TopicPartition("orders", 0) not in broker.cluster.leaders


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "describe", "nope"),
        ("topics", "delete", "nope", "--yes"),
        ("topics", "alter", "nope", "--partitions", "2"),
        ("configs", "describe", "--topic", "nope"),
        ("produce", "nope"),
        ("consume", "nope"),
    ],
)
def test_an_unknown_topic_is_named_with_what_to_do(broker: FakeAdminBroker, arguments: tuple[str, ...]) -> None:
    result = run(broker, *arguments)
    assert result.exit_code == 1
    assert "topic nope: UNKNOWN_TOPIC_OR_PARTITION" in result.stderr
    assert "tidelog topics list" in result.stderr


def test_configs_are_set_shown_and_taken_back(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 1)
    assert "nothing is set for topic orders" in done(broker, "configs", "describe", "--topic", "orders")
    changed = done(broker, "configs", "alter", "--topic", "orders", "retention.ms=5", "cleanup.policy=y,z")
    assert changed == "changed retention.ms, cleanup.policy of topic orders\n"
    described = rows(done(broker, "configs", "describe", "--topic", "orders", "--json"))
    assert [(row["name"], row["value"], row["source"]) for row in described] == [
        ("cleanup.policy", ["y", "z"], "DYNAMIC_TOPIC"),
        ("retention.ms", 5, "DYNAMIC_TOPIC"),
    ]
    done(broker, "configs", "delete", "--topic", "orders", "cleanup.policy")
    assert broker.configs[2, "orders"] == {"retention.ms": "5"}
    assert "flush.ms" in done(broker, "configs", "describe", "--topic", "orders", "--all")
    assert "flush.ms" in done(broker, "configs", "describe", "--topic", "orders", "flush.ms")
    done(broker, "configs", "alter", "--broker-default", "log.retention.ms=7")
    assert broker.configs[4, ""] == {"log.retention.ms": "7"}
    done(broker, "configs", "alter", "--broker", "1", "log.retention.ms=8")
    assert broker.configs[4, "1"] == {"log.retention.ms": "8"}
    assert "broker 7: BROKER_NOT_AVAILABLE" in run(broker, "configs", "describe", "--broker", "7").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topics", "create"), "Missing argument"),
        (("topics", "create", "t", "--config", "x"), "NAME=VALUE"),
        (("topics", "create", "t", "--partitions", "0"), "--partitions"),
        (("topics", "alter", "t"), "nothing to change"),
        (("topics", "list", "--bootstrap", "h:x"), "HOST:PORT"),
        (("configs", "describe"), "exactly one of"),
        (("configs", "describe", "--topic", "t", "--broker", "1"), "exactly one of"),
        (("configs", "alter", "--topic", "t", "x"), "NAME=VALUE"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_nobody_at_the_address_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "tidelog", "topics", "list", "--bootstrap", f"127.0.0.1:{port}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for part in (f"127.0.0.1:{port}", "Connection refused", "tidelog up", "--bootstrap", "TIDELOG_BOOTSTRAP"):
        assert part in result.stderr


def test_every_noun_has_its_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for noun in ("topics", "produce", "consume", "configs", "log"):
        assert f"  {noun} " in result.stdout


def test_deleting_looks_before_it_asks(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 3)
    refused = run(broker, "topics", "delete", "orders", "nope", input="y\n")
    assert refused.exit_code == 1
    assert "topic nope: UNKNOWN_TOPIC_OR_PARTITION" in refused.stderr
    assert "Delete" not in refused.output
    assert TopicPartition("orders", 0) in broker.cluster.leaders
    asked = run(broker, "topics", "delete", "orders", "orders", input="n\n")
    assert "Delete orders (3 partitions) and all records in it?" in asked.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("configs", "describe", "--topic", "orders", "flush.m"), "topics have no setting 'flush.m'"),
        (("configs", "alter", "--topic", "orders", "retention.m=5"), "Did you mean 'retention.ms'?"),
        (("configs", "alter", "--broker", "1", "log.retention.m=5"), "Did you mean 'log.retention.ms'?"),
        (("configs", "alter", "--broker-default", "log.cleaner.thread=5"), "Did you mean 'log.cleaner.threads'?"),
        (("configs", "delete", "--broker-default", "zzz"), "brokers have no setting 'zzz'."),
        (("topics", "alter", "orders", "--delete-config", "retention.m"), "Did you mean 'retention.ms'?"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused(
    broker: FakeAdminBroker, arguments: tuple[str, ...], says: str
) -> None:
    broker.add_topic("orders", 1)
    refused = run(broker, *arguments)
    assert refused.exit_code == 1
    assert says in refused.stderr
    assert not broker.configs


# topics trim, and sizes


def deletes(broker: FakeAdminBroker) -> None:
    """The next DeleteRecords is answered as if it had been carried out."""

    def answer(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        topics = [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=part.offset)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return DeleteRecordsResponse(topics=topics)

    broker.script[DELETE_RECORDS].append(answer)


def asked_to_delete(broker: FakeAdminBroker) -> list[tuple[int, int]]:
    requests: list[DeleteRecordsRequest] = broker.of_key(DELETE_RECORDS)
    topics = [topic for request in requests for topic in request.topics]
    return [(part.partition_index, part.offset) for topic in topics for part in topic.partitions]


def test_trimming_shows_a_plan_until_it_is_told_to_be_executed(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 2)
    broker.cluster.append(TopicPartition("orders", 0), bytes(values(5)))
    trim = ("topics", "trim", "orders")
    planned = run(broker, *trim, "--before-offset", "3", "--json")
    assert [(row["partition"], row["new_start_offset"], row["deleted_offsets"]) for row in rows(planned.stdout)] == [
        (0, 3, 3),
        (1, 0, 0),
    ]
    assert "nothing was deleted; --execute carries it out" in planned.stderr
    assert asked_to_delete(broker) == []
    deletes(broker)
    executed = run(broker, *trim, "--before-offset", "3", "--execute")
    assert executed.exit_code == 0, executed.output
    assert "1 of 2 partitions start later now" in executed.stderr
    assert asked_to_delete(broker) == [(0, 3)]


def test_trimming_never_goes_beyond_the_high_watermark(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 1)
    broker.cluster.append(TopicPartition("orders", 0), bytes(values(5)))
    for way in (("--all",), ("--before-offset", "99")):
        (row,) = rows(run(broker, "topics", "trim", "orders", *way, "--json").stdout)
        assert (row["new_start_offset"], row["high_watermark"]) == (5, 5), way


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--before-offset", "1"), ("--before-time", "noon"), ("--before-offset", "-1")]
)
def test_trimming_wants_one_place(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ("topics", "trim", "orders", *arguments)).exit_code == 2


def test_sizes_of_replicas_and_log_directories(broker: FakeAdminBroker) -> None:
    broker.add_topic("orders", 1)
    sizes = [DescribeLogDirsPartition(partition_index=0, partition_size=77, offset_lag=2)]
    held = [DescribeLogDirsTopic(name="orders", partitions=sizes)]
    broker.log_directories = [DescribeLogDirsResult(log_dir="/data", topics=held, total_bytes=1000, usable_bytes=600)]
    assert "1: 77" in done(broker, "topics", "describe", "orders", "--sizes")
    (described,) = rows(done(broker, "topics", "describe", "orders", "--sizes", "--json"))
    replica = {"broker": 1, "log_directory": "/data", "bytes": 77, "offset_lag": 2, "is_future": False}
    assert described["detail"][0]["sizes"] == [replica]
    (directory,) = rows(done(broker, "cluster", "log-dirs", "--json"))
    volume = {"volume_bytes": 1000, "free_bytes": 600, "error": None}
    assert directory == {"broker": 1, "log_directory": "/data", "replicas": 1, "bytes": 77, **volume}
    assert "/data" in done(broker, "cluster", "log-dirs")
