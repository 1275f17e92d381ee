"""kafka-python as a driver."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import kafka
from driver import (
    DEADLINE_S,
    EARLIEST,
    LATEST,
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
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigSourceType, KafkaAdminClient
from kafka.errors import KafkaError


def failed(error: BaseException) -> ClientError:
    return ClientError(getattr(error, "errno", None) or -1, repr(error))


class KafkaPython(Driver):
    name: ClassVar[str] = "kafka-python"
    lacks: ClassVar[Mapping[str, str]] = {
        "replace-configs": "it adds what it was not told",
        "configs-of-unknown-topic": "it does not show the error",
        "consume-from-unknown-topic": "it waits in silence for the topic to appear",
        "produce-to-unknown-topic": "it shows only that the time ran out",
        "null-header": "its headers have values",
    }

    def version(self) -> str:
        return str(kafka.__version__)

    def call(self, do: Callable[[KafkaAdminClient], Any]) -> Any:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            return do(admin)
        except KafkaError as raised:
            raise failed(raised) from raised
        finally:
            admin.close()

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if sending.codec == "none" else sending.codec,
            acks=sending.acks if sending.acks == "all" else int(sending.acks),
            enable_idempotence=sending.idempotent,
            linger_ms=sending.linger_ms,
            max_block_ms=1500,
            max_request_size=4_000_000,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(DEADLINE_S)
            return [future.get(DEADLINE_S).offset for future in sent]
        except KafkaError as raised:
            raise failed(raised) from raised
        finally:
            producer.close(5)

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            auto_offset_reset=reading.reset,
            isolation_level=reading.isolation,
            max_partition_fetch_bytes=reading.max_bytes,
            fetch_max_wait_ms=reading.max_wait_ms,
            allow_auto_create_topics=False,
        )
        try:
            return _poll(consumer, places, count)
        except KafkaError as raised:
            raise failed(raised) from raised
        finally:
            consumer.close()

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        place = TopicPartition(topic, partition)
        found = self.call(lambda admin: admin.list_partition_offsets({place: timestamp}))[place]
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
        new = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": dict(config or {})}
        self.call(lambda admin: admin.create_topics({topic: new}, validate_only=validate_only))

    def delete_topic(self, topic: str) -> None:
        self.call(lambda admin: admin.delete_topics([topic]))

    def list_topics(self) -> list[str]:
        return list(self.call(lambda admin: admin.list_topics()))

    def describe_topic(self, topic: str) -> list[Partition]:
        (found,) = self.call(lambda admin: admin.describe_topics([topic]))
        if found["error_code"]:
            raise ClientError(found["error_code"], str(found))
        return partitions_of(
            [(p["partition_index"], p["leader_id"], p["replica_nodes"], p["isr_nodes"]) for p in found["partitions"]]
        )

    def create_partitions(self, topic: str, count: int) -> None:
        self.call(lambda admin: admin.create_partitions({topic: count}))

    def describe_configs(self, resource: str, name: str) -> dict[str, Setting]:
        asked = [ConfigResource(resource, name)]
        found = self.call(lambda admin: admin.describe_configs(asked, config_filter="all"))[resource][name]
        return {key: Setting(entry["value"], _source(entry)) for key, entry in found.items()}

    def alter_configs(self, resource: str, name: str, changes: Sequence[tuple[str, str, str | None]]) -> None:
        configs = {key: (AlterConfigOp[operation], value) for operation, key, value in changes}
        self._alter(ConfigResource(resource, name, configs), incremental=True)

    def replace_configs(self, resource: str, name: str, config: Mapping[str, str]) -> None:
        self._alter(ConfigResource(resource, name, dict(config)), incremental=False)

    def _alter(self, resource: ConfigResource, incremental: bool) -> None:
        answer = self.call(
            lambda admin: admin.alter_configs([resource], raise_on_unknown=False, incremental=incremental)
        )
        result = answer[resource.resource_type.name.lower()][resource.name]
        if result != "OK":
            raise ClientError(int(re.findall(r"Error (\d+)", result)[0]), result)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        found = self.call(lambda admin: admin.delete_records({place: offset}))[place]
        if found["error_code"]:
            raise ClientError(found["error_code"], str(found))
        return int(found["low_watermark"])

    def describe_cluster(self) -> Cluster:
        found = self.call(lambda admin: admin.describe_cluster())
        brokers = tuple((b["broker_id"], b["host"], b["port"]) for b in found["brokers"])
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

    def log_dirs(self) -> dict[str, dict[str, int]]:
        (answer,) = self.call(lambda admin: admin.describe_log_dirs())
        return {
            found["log_dir"]: {
                f"{topic['name']}-{partition['partition_index']}": partition["partition_size"]
                for topic in found["topics"]
                for partition in topic["partitions"]
            }
            for found in answer["log_dirs"]
        }


def _source(entry: Mapping[str, Any]) -> int:
    return int(ConfigSourceType[entry["config_source"]])


def _poll(consumer: KafkaConsumer, places: Sequence[Place], count: int) -> list[Record]:
    consumer.assign([TopicPartition(topic, partition) for topic, partition, _ in places])
    for topic, partition, start in places:
        place = TopicPartition(topic, partition)
        if start == EARLIEST:
            consumer.seek_to_beginning(place)
        elif start == LATEST:
            consumer.seek_to_end(place)
        else:
            consumer.seek(place, start)
    records: list[Record] = []
    give_up_at = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < give_up_at, f"only {len(records)} records until the deadline"
        for found in consumer.poll(timeout_ms=200).values():
            records += map(record_of, found)
    return records


def record_of(record: Any) -> Record:
    return Record(
        key=record.key,
        value=record.value,
        headers=tuple((name, value) for name, value in record.headers),
        timestamp=record.timestamp,
        partition=record.partition,
        offset=record.offset,
        topic=record.topic,
        log_append_time=record.timestamp_type == 1,
    )
