"""Drivers for clients in other languages: each is a process that takes JSON (peers.shell)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from driver import (
    DEADLINE_S,
    ClientError,
    Cluster,
    Driver,
    Listed,
    Partition,
    Place,
    Reading,
    Record,
    Sending,
    Setting,
    partitions_of,
)

from peers import franz, home
from peers.shell import Shell
from peers.tools import JavaShell


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


class ShellDriver(Driver):
    """Started with the first question."""

    def __init__(self) -> None:
        self._started: Shell | None = None

    def start(self) -> Shell:
        raise NotImplementedError

    @property
    def shell(self) -> Shell:
        if self._started is None:
            self._started = self.start()
        return self._started

    def close(self) -> None:
        if self._started is not None:
            self._started.close()

    def _ask(self, op: str, **request: Any) -> dict[str, Any]:
        answer = self.shell.ask({"op": op, "bootstrap": self.bootstrap, **request})
        if "error" in answer:
            raise ClientError(answer["error"], answer["message"])
        return answer

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        given = [
            {
                "partition": record.partition,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
            for record in records
        ]
        answer = self._ask(
            "produce",
            topic=topic,
            records=given,
            codec=sending.codec,
            acks=sending.acks,
            idempotent=sending.idempotent,
            linger_ms=sending.linger_ms,
            auto_create=True,
        )
        return list(answer["offsets"])

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        answer = self._ask(
            "consume",
            partitions=places,
            count=count,
            reset=reading.reset,
            isolation=reading.isolation,
            max_bytes=reading.max_bytes,
            max_wait_ms=reading.max_wait_ms,
            deadline_ms=int(DEADLINE_S * 1000),
        )
        return [
            Record(
                key=_bytes(found["key"]),
                value=_bytes(found["value"]),
                headers=tuple((name, _bytes(value)) for name, value in found["headers"]),
                timestamp=found["timestamp"],
                partition=found["partition"],
                offset=found["offset"],
                topic=found["topic"],
                log_append_time=found["log_append_time"],
            )
            for found in answer["records"]
        ]

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        answer = self._ask("list_offsets", topic=topic, partition=partition, timestamp=timestamp)
        return Listed(answer["offset"], answer["timestamp"])

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        self._ask(
            "create_topic",
            topic=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
            validate_only=validate_only,
        )

    def delete_topic(self, topic: str) -> None:
        self._ask("delete_topic", topic=topic)

    def list_topics(self) -> list[str]:
        return list(self._ask("list_topics")["topics"])

    def describe_topic(self, topic: str) -> list[Partition]:
        return partitions_of(self._ask("describe_topic", topic=topic)["partitions"])

    def create_partitions(self, topic: str, count: int) -> None:
        self._ask("create_partitions", topic=topic, count=count)

    def describe_configs(self, resource: str, name: str) -> dict[str, Setting]:
        found = self._ask("describe_configs", resource=resource, name=name)["configs"]
        return {name: Setting(value, source) for name, (value, source) in found.items()}

    def alter_configs(self, resource: str, name: str, changes: Sequence[tuple[str, str, str | None]]) -> None:
        self._ask("alter_configs", resource=resource, name=name, changes=list(changes), incremental=True)

    def replace_configs(self, resource: str, name: str, config: Mapping[str, str]) -> None:
        changes = [("SET", key, value) for key, value in config.items()]
        self._ask("alter_configs", resource=resource, name=name, changes=changes, incremental=False)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        answer = self._ask("delete_records", topic=topic, partition=partition, offset=offset)
        return int(answer["low_watermark"])

    def describe_cluster(self) -> Cluster:
        found = self._ask("describe_cluster")
        brokers = tuple((number, host, port) for number, host, port in found["brokers"])
        return Cluster(found["cluster_id"], found["controller"], brokers)

    def log_dirs(self) -> dict[str, dict[str, int]]:
        return dict(self._ask("log_dirs")["dirs"])


class FranzGo(ShellDriver):
    name: ClassVar[str] = "franz-go"
    lacks: ClassVar[Mapping[str, str]] = {"consume-from-unknown-topic": "it waits in silence for the topic to appear"}

    def start(self) -> Shell:
        return franz.shell()

    def version(self) -> str:
        return franz.version()


class Java(ShellDriver):
    """Producer, consumer and admin client of Kafka itself."""

    kafka: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {
        "replace-configs": "its admin client only alters what it is told",
        "invalid-replaced-config": "its admin client only alters what it is told",
        "consume-from-unknown-topic": "it waits in silence for the topic to appear",
    }

    def start(self) -> JavaShell:
        return JavaShell(self.kafka)

    @property
    def tools(self) -> JavaShell:
        assert isinstance(self.shell, JavaShell)
        return self.shell

    def version(self) -> str:
        return self.kafka


class Java3(Java):
    name: ClassVar[str] = "Java 3.9"
    kafka = home.KAFKA_ZOOKEEPER


class Java4(Java):
    name: ClassVar[str] = "Java 4.1"
    kafka = home.KAFKA_KRAFT


class Tools(Java):
    """The tools of Kafka's bin directory; they are run by name."""

    lacks: ClassVar[Mapping[str, str]] = {}


class Tools3(Tools):
    name: ClassVar[str] = "tools 3.9"
    kafka = home.KAFKA_ZOOKEEPER


class Tools4(Tools):
    name: ClassVar[str] = "tools 4.1"
    kafka = home.KAFKA_KRAFT
