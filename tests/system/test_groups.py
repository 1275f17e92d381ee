"""Groups of librdkafka's consumers on real brokers: the rebalances of S8.4, a dead coordinator, and edge case 28."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kits.processclusterkit import TOPIC, ProcessCluster, process_cluster
from tests.kits.processkit import broker_process, wait_for

ONE = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "4",
    "group_initial_rebalance_delay_ms": "0",
}
GROUP = "readers"
PARTITIONS = range(4)


class Reader:
    """A consumer that is polled by a thread of its own until it is told to stop, or dies."""

    def __init__(self, bootstrap: str, name: str, **settings: str | int) -> None:
        self.assigned: set[int] = set()
        self.read: list[tuple[int, int]] = []
        self.commit_errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 6000,
                "partition.assignment.strategy": "range",
                "log_level": 0,
                **settings,
            }
        )
        self._consumer.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = {one.partition for one in partitions}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = set()

    def _run(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and not message.error():
                self._take(message)
        self._consumer.close()

    def _take(self, message: Message) -> None:
        self.read.append((message.partition(), message.offset()))
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as failure:
            self.commit_errors.append(failure.args[0].name())

    def leave(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def readers(bootstrap: str, *names: str) -> Iterator[list[Reader]]:
    all_of_them = [Reader(bootstrap, name) for name in names]
    try:
        yield all_of_them
    finally:
        for reader in all_of_them:
            reader.leave()


def produce(bootstrap: str, count: int) -> None:
    """So many records to each partition, acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        for partition in PARTITIONS:
            producer.produce(TOPIC, value=str(number), partition=partition)
    assert producer.flush(60) == 0


def share_all(*members: Reader) -> Callable[[], bool]:
    """Every partition is with one of them, and each has some."""

    def is_so() -> bool:
        shares = [reader.assigned for reader in members]
        return all(shares) and sorted(one for share in shares for one in share) == list(PARTITIONS)

    return is_so


def everything_is_read(*members: Reader, count: int) -> Callable[[], bool]:
    wanted = {(partition, offset) for partition in PARTITIONS for offset in range(count)}
    return lambda: {one for reader in members for one in reader.read} >= wanted


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, len(PARTITIONS), 1)])[TOPIC].result()


def test_members_come_go_and_die(tmp_path: Path) -> None:
    with broker_process(tmp_path, **ONE) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        create_topic(bootstrap)
        with readers(bootstrap, "first") as (first,):
            wait_for(share_all(first), "one member with all partitions")
            produce(bootstrap, 50)
            with readers(bootstrap, "second") as (second,):
                wait_for(share_all(first, second), "a share for the member that joined")
                produce(bootstrap, 50)
                wait_for(everything_is_read(first, second, count=100), "all records")
            wait_for(share_all(first), "all partitions again after one left")
            produce(bootstrap, 10)
            wait_for(everything_is_read(first, second, count=110), "all records")
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        assert admin.describe_consumer_groups([GROUP])[GROUP].result().state is ConsumerGroupState.EMPTY
        assert not first.commit_errors or set(first.commit_errors) <= {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"}


def test_a_restarted_group_goes_on_where_it_was_after_the_broker_was_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path, **ONE) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        create_topic(bootstrap)
        produce(bootstrap, 20)
        with readers(bootstrap, "first") as (first,):
            wait_for(everything_is_read(first, count=20), "all records")
        broker.kill()
        broker.start_again()
        bootstrap = f"127.0.0.1:{broker.port}"
        produce(bootstrap, 5)
        with readers(bootstrap, "second") as (second,):
            wait_for(lambda: len(second.read) >= 5 * len(PARTITIONS), "the new records")
        assert sorted(second.read) == [(one, offset) for one in PARTITIONS for offset in range(20, 25)]


def test_edge_28_a_commit_that_fails_in_a_rebalance_does_not_stop_fetching(tmp_path: Path) -> None:
    with broker_process(tmp_path, **ONE) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        create_topic(bootstrap)
        with readers(bootstrap, "first") as (first,):
            wait_for(share_all(first), "one member with all partitions")
            count = 0
            for turn in range(6):  # members come and go while the first one reads and commits each record
                produce(bootstrap, 40)
                count += 40
                with readers(bootstrap, f"other {turn}") as (other,):
                    wait_for(share_all(first, other), "a share for both")
                wait_for(share_all(first), "all partitions for the first")
                wait_for(lambda: first.read != [], "something to read")
            produce(bootstrap, 10)
            last = {(partition, count + 9) for partition in PARTITIONS}
            wait_for(lambda: last <= set(first.read), "the first one still reads")


@pytest.mark.long
def test_the_coordinator_is_killed(tmp_path: Path) -> None:
    with process_cluster(tmp_path, "embedded") as cluster:
        produce(cluster.bootstrap, 20)
        with readers(cluster.bootstrap, "first", "second") as (first, second):
            wait_for(share_all(first, second), "a share for both")
            wait_for(everything_is_read(first, second, count=20), "all records")
            dead = _coordinator(cluster)
            cluster.kill(dead)
            produce(cluster.bootstrap, 20)
            wait_for(everything_is_read(first, second, count=40), "what came after the coordinator's death")
            wait_for(lambda: _coordinator(cluster) not in (dead, -1), "another coordinator")
            cluster.restart(dead)
            produce(cluster.bootstrap, 20)
            wait_for(everything_is_read(first, second, count=60), "what came after its return")
            wait_for(share_all(first, second), "a share for both")


def _coordinator(cluster: ProcessCluster) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        found = admin.describe_consumer_groups([GROUP], request_timeout=10)[GROUP].result().coordinator
    except KafkaException:
        return -1
    return int(found.id) if found is not None else -1
