"""confluent-kafka (librdkafka) as a driver."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from driver import (
    DEADLINE_S,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
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

_LOCAL = {
    -188: UNKNOWN_TOPIC_OR_PARTITION,
    -190: UNKNOWN_TOPIC_OR_PARTITION,
    -156: UNKNOWN_TOPIC_OR_PARTITION,
    -140: OFFSET_OUT_OF_RANGE,
}
"""librdkafka's own codes: for what it did not find in the metadata, and for an offset that it may not reset."""


def failed(error: Any) -> ClientError:
    return ClientError(_LOCAL.get(error.code(), error.code()), str(error))


def result_of(future: Any) -> Any:
    try:
        return future.result(DEADLINE_S)
    except KafkaException as raised:
        raise failed(raised.args[0]) from raised


class Confluent(Driver):
    name: ClassVar[str] = "confluent-kafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "log-dirs": "librdkafka has no such call",
        "consume-from-unknown-topic": "it waits in silence for the topic to appear",
    }

    def version(self) -> str:
        return f"{confluent_kafka.__version__} with librdkafka {confluent_kafka.libversion()[0]}"

    def __init__(self) -> None:
        self._admins: dict[str, AdminClient] = {}

    def admin(self) -> AdminClient:
        """It has to outlive the calls that are under way."""
        if self.bootstrap not in self._admins:
            self._admins[self.bootstrap] = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admins[self.bootstrap]

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.codec": sending.codec,
                "acks": sending.acks,
                "enable.idempotence": sending.idempotent,
                "linger.ms": sending.linger_ms,
                "message.max.bytes": 4_000_000,
                "topic.metadata.propagation.max.ms": 1000,
                "log_level": 0,
            }
        )
        offsets = [-1] * len(records)
        errors: list[Any] = []

        def delivered(index: int, error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets[index] = -1 if message.offset() is None else message.offset()

        for index, record in enumerate(records):
            optional = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=lambda error, message, index=index: delivered(index, error, message),
                **optional,
            )
        assert producer.flush(DEADLINE_S) == 0
        if errors:
            raise failed(errors[0])
        return offsets

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "conformance",
                "enable.auto.commit": False,
                "auto.offset.reset": {"none": "error"}.get(reading.reset, reading.reset),
                "isolation.level": reading.isolation,
                "max.partition.fetch.bytes": reading.max_bytes,
                "fetch.wait.max.ms": reading.max_wait_ms,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        try:
            special = {EARLIEST: confluent_kafka.OFFSET_BEGINNING, LATEST: confluent_kafka.OFFSET_END}
            consumer.assign([TopicPartition(topic, part, special.get(start, start)) for topic, part, start in places])
            return _poll(consumer, count)
        finally:
            consumer.close()

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        specs = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest, MAX_TIMESTAMP: OffsetSpec.max_timestamp}
        spec = specs[timestamp]() if timestamp in specs else OffsetSpec.for_timestamp(timestamp)
        (future,) = self.admin().list_offsets({TopicPartition(topic, partition): spec}).values()
        found = result_of(future)
        return Listed(found.offset, found.timestamp)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        result_of(self.admin().create_topics([new], validate_only=validate_only)[topic])

    def delete_topic(self, topic: str) -> None:
        result_of(self.admin().delete_topics([topic])[topic])

    def list_topics(self) -> list[str]:
        return list(self.admin().list_topics(timeout=DEADLINE_S).topics)

    def describe_topic(self, topic: str) -> list[Partition]:
        found = result_of(self.admin().describe_topics(TopicCollection([topic]))[topic])
        return partitions_of(
            [(p.id, p.leader.id, [n.id for n in p.replicas], [n.id for n in p.isr]) for p in found.partitions]
        )

    def create_partitions(self, topic: str, count: int) -> None:
        result_of(self.admin().create_partitions([NewPartitions(topic, count)])[topic])

    def describe_configs(self, resource: str, name: str) -> dict[str, Setting]:
        (future,) = self.admin().describe_configs([ConfigResource(_type(resource), name)]).values()
        return {key: Setting(entry.value, entry.source) for key, entry in result_of(future).items()}

    def alter_configs(self, resource: str, name: str, changes: Sequence[tuple[str, str, str | None]]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType[operation])
            for operation, key, value in changes
        ]
        target = ConfigResource(_type(resource), name, incremental_configs=entries)
        (future,) = self.admin().incremental_alter_configs([target]).values()
        result_of(future)

    def replace_configs(self, resource: str, name: str, config: Mapping[str, str]) -> None:
        target = ConfigResource(_type(resource), name, set_config=dict(config))
        (future,) = self.admin().alter_configs([target]).values()
        result_of(future)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        (future,) = self.admin().delete_records([TopicPartition(topic, partition, offset)]).values()
        return int(result_of(future).low_watermark)

    def describe_cluster(self) -> Cluster:
        found = result_of(self.admin().describe_cluster())
        return Cluster(found.cluster_id, found.controller.id, tuple((n.id, n.host, n.port) for n in found.nodes))


def _type(resource: str) -> ResourceType:
    return ResourceType.BROKER if resource == "broker" else ResourceType.TOPIC


def _poll(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    give_up_at = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < give_up_at, f"only {len(records)} records until the deadline"
        for message in consumer.consume(count - len(records), timeout=0.2):
            if message.error() is not None:
                raise failed(message.error())
            records.append(record_of(message))
    return records


def record_of(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=timestamp,
        partition=message.partition(),
        offset=message.offset(),
        topic=message.topic(),
        log_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
    )
