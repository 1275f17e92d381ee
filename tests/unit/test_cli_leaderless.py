"""`tidelog consume` and `tidelog produce` where a partition has no leader: the others are read and written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tidelog.cli.main import main
from tidelog.client.partitioner import partition_of_key
from tidelog.errors import ErrorCode
from tidelog.records.batch import decode
from tidelog.types import TopicPartition
from tidelog.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
NOBODY = -1
LIST_OFFSETS = 2
DEADLINE_S = 60.0


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    """`orders` has the records 0, 1 and 2, each in the partition of its number, and nobody leads partition 1."""
    with served_broker() as broker:
        broker.add_topic("orders", 3)
        for number in range(3):
            run(broker, "produce", "orders", "--partition", str(number), input=f"{number}\n")
        broker.cluster.leaders[P1] = NOBODY
        yield broker


def run(broker: FakeAdminBroker, *arguments: str, input: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=input, env={"TIDELOG_BOOTSTRAP": broker.bootstrap})


class Started:
    """A command in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], files: Path) -> None:
        self.process = process
        self._files = files

    def printed(self) -> list[str]:
        return sorted((self._files / "out").read_text().split())

    def said(self) -> str:
        return (self._files / "err").read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{self.printed()} {self.said()}"
            assert self.process.poll() is None or condition(), self.said()
            time.sleep(0.01)


@contextmanager
def started(broker: FakeAdminBroker, directory: Path, *arguments: str) -> Iterator[Started]:
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": broker.bootstrap}
    with open(directory / "out", "wb") as out, open(directory / "err", "wb") as err:
        command = [sys.executable, "-m", "tidelog", *arguments]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err)
    try:
        yield Started(process, directory)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("arguments", [(), ("--offset", "0"), ("--offset=-1",), ("--since", "1000")])
def test_what_can_be_read_is_printed_and_the_end_names_the_partition(
    broker: FakeAdminBroker, arguments: tuple[str, ...]
) -> None:
    result = run(broker, "consume", "orders", *arguments, "--timeout", "0.5")
    assert sorted(result.stdout.split()) == ["0", "2"]
    assert result.exit_code == 1
    assert "orders-1: LEADER_NOT_AVAILABLE (it has no leader)" in result.stderr


def test_several_partitions_without_a_leader_are_named_together(broker: FakeAdminBroker) -> None:
    broker.add_topic("others", 1)
    broker.cluster.leaders[P2] = NOBODY
    result = run(broker, "consume", "others", "orders", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "partitions 1, 2 of orders: LEADER_NOT_AVAILABLE (they have no leader)" in result.stderr
    assert result.stdout == "0\n"


def test_enough_records_are_enough(broker: FakeAdminBroker) -> None:
    assert run(broker, "consume", "orders", "--max-messages", "2", "--timeout", "30").exit_code == 0


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_the_rest_is_read_when_a_leader_comes(broker: FakeAdminBroker, tmp_path: Path, follow: tuple[str, ...]) -> None:
    with started(broker, tmp_path, "consume", "orders", *follow) as consuming:
        consuming.wait_for(lambda: consuming.printed() == ["0", "2"])
        consuming.wait_for(lambda: "waiting: fetch of orders-1: orders-1: LEADER_NOT_AV" in consuming.said())
        run(broker, "produce", "orders", "--partition", "2", input="3\n")
        if follow:
            consuming.wait_for(lambda: consuming.printed() == ["0", "2", "3"])
        broker.cluster.leaders[P1] = broker.id
        consuming.wait_for(lambda: "1" in consuming.printed())
        if not follow:
            assert consuming.process.wait(DEADLINE_S) == 0


def test_a_partition_that_its_leader_refuses_does_not_keep_the_others(broker: FakeAdminBroker) -> None:
    broker.cluster.leaders[P1] = broker.id

    def refuse(request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Partition 1, when it is asked for with others or alone."""
        answers = []
        for asked in request.topics[0].partitions:
            if asked.partition_index == 1:
                code = ErrorCode.OFFSET_NOT_AVAILABLE
                answers.append(ListOffsetsPartitionResponse(partition_index=1, error_code=code))
            else:
                end = 1 if asked.timestamp == -1 else 0
                answers.append(ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=end))
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=answers)])

    broker.script[LIST_OFFSETS] = [refuse] * 1000
    result = run(broker, "consume", "orders", "--timeout", "2")
    assert sorted(result.stdout.split()) == ["0", "2"]
    assert result.exit_code == 1
    assert "orders-1: OFFSET_NOT_AVAILABLE" in result.stderr


def test_an_offset_that_no_partition_has_is_a_mistake_when_all_are_known(broker: FakeAdminBroker) -> None:
    broker.cluster.leaders[P1] = broker.id
    result = run(broker, "consume", "orders", "--offset", "9", "--timeout", "20")
    assert "no partition has got to offset 9 yet; there is: orders-0 0 to 1, orders-1 0 to 1" in result.stderr


def values(broker: FakeAdminBroker, partition: TopicPartition) -> list[bytes | None]:
    return [record.value for batch in broker.cluster.logs[partition] for record in decode(batch)]


def test_records_without_a_key_go_to_partitions_with_a_leader(broker: FakeAdminBroker) -> None:
    """S11.1: they go to partitions that are available."""
    broker.cluster.leaders[P2] = NOBODY
    result = run(broker, "produce", "orders", "--timeout", "20", input="a\nb\n")
    assert result.exit_code == 0, result.stderr
    assert values(broker, P0) == [b"0", b"a", b"b"]


def test_a_record_with_a_key_waits_for_its_partition(broker: FakeAdminBroker) -> None:
    keys = {partition_of_key(str(number).encode(), 3): str(number) for number in range(20)}
    lines = "".join(f"{keys[number]}:{number}\n" for number in range(3))
    result = run(broker, "produce", "orders", "--key-separator", ":", "--timeout", "0.5", input=lines)
    assert result.exit_code == 1
    assert "2 records written to orders" in result.stderr
    assert "1 record not written" in result.stderr
    assert "produce to orders-1: LEADER_NOT_AVAILABLE (it has no leader)" in result.stderr


def test_without_any_leader_there_is_nowhere_to_write(broker: FakeAdminBroker) -> None:
    broker.cluster.leaders |= dict.fromkeys((P0, P1, P2), NOBODY)
    result = run(broker, "produce", "orders", "--timeout", "0.5", input="a\n")
    assert result.exit_code == 1
    assert "no partition has a leader" in result.stderr
    missing = run(broker, "produce", "missing", "--timeout", "20", input="a\n")
    assert "topic missing: UNKNOWN_TOPIC_OR_PARTITION (it does not exist)" in missing.stderr
