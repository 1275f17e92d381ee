"""What a case plays on: a client, a broker, and beside them a client of the suite that prepares and feeds.

The client beside them is librdkafka, so that a case about one client does not hang on its other calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from driver import DEADLINE_S, ClientError, Driver, Record
from stored import StoredBatch, stored_batches
from targets import Server

D = TypeVar("D", bound=Driver)
_POLL_S = 0.02


class Stage:
    """A running broker with the suite's own client; one for all scenes that play on it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.bootstrap = server.bootstrap
        self.log_dir = server.log_dir
        self.names = itertools.count()

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @cached_property
    def producer(self) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 2, "message.max.bytes": 4_000_000, "log_level": 0}
        return Producer(settings)


@dataclass
class Scene(Generic[D]):
    client: D
    stage: Stage
    case: str
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def bootstrap(self) -> str:
        return self.stage.bootstrap

    def name(self) -> str:
        """A topic name that nobody used."""
        return f"{self.case}-{next(self.stage.names)}"

    def topic(self, partitions: int = 1, **config: str | int) -> str:
        """A new topic, known with all its leaders; settings with _ for each dot."""
        topic = self.name()
        named = {name.replace("_", "."): str(value) for name, value in config.items()}
        self.create([topic], partitions, named)
        return topic

    def create(self, topics: Sequence[str], partitions: int, config: Mapping[str, str]) -> None:
        new = [NewTopic(topic, partitions, 1, config=dict(config)) for topic in topics]
        for future in self.stage.admin.create_topics(new, operation_timeout=DEADLINE_S).values():
            future.result(DEADLINE_S)
        for topic in topics:
            eventually(lambda topic=topic: self.is_ready(topic, partitions))

    def add_partitions(self, topic: str, count: int) -> None:
        """Until it has that many, known with all their leaders."""
        (future,) = self.stage.admin.create_partitions([NewPartitions(topic, count)]).values()
        future.result(DEADLINE_S)
        eventually(lambda: self.is_ready(topic, count))

    def is_ready(self, topic: str, partitions: int) -> bool:
        """It has that many partitions, and each serves: a broker may tell of a leader that has yet to open its log."""
        if self.leaders(topic) != [1] * partitions:
            return False
        places = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        asked = self.stage.admin.list_offsets(places).values()
        return all(future.exception(DEADLINE_S) is None for future in asked)

    def leaders(self, topic: str) -> list[int]:
        """Of each partition; empty if there is no such topic."""
        found = self.stage.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        return [partition.leader for partition in found.partitions.values()]

    def feed(self, topic: str, records: Iterable[Record]) -> None:
        """Written by the suite's own client, acknowledged when this returns."""
        for record in records:
            optional = {} if record.timestamp is None else {"timestamp": record.timestamp}
            self.stage.producer.produce(
                topic, value=record.value, key=record.key, partition=record.partition, **optional
            )
        assert self.stage.producer.flush(DEADLINE_S) == 0

    def delete_records(self, topic: str, before: int) -> None:
        (future,) = self.stage.admin.delete_records([TopicPartition(topic, 0, before)]).values()
        future.result(DEADLINE_S)

    def batches(self, topic: str, partition: int = 0) -> list[StoredBatch]:
        return stored_batches(self.stage.log_dir, topic, partition)

    def beside(self, work: Callable[[], list[Record]]) -> Future[list[Record]]:
        """Start it in a thread."""
        return self._pool.submit(work)

    def fails(self, code: int, work: Callable[[], object]) -> None:
        """The client shows this error of Kafka's."""
        with pytest.raises(ClientError) as raised:
            work()
        assert raised.value.code == code, str(raised.value)


def eventually(condition: Callable[[], bool]) -> None:
    """What a broker tells the others takes a moment to be known."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, "did not become true"
        time.sleep(_POLL_S)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
