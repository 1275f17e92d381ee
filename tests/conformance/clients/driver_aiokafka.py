"""aiokafka as a driver: each call has an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import KafkaError
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

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def _run(work: Awaitable[Any]) -> Any:
    async def within_deadline() -> Any:
        return await asyncio.wait_for(work, DEADLINE_S)

    try:
        return asyncio.run(within_deadline())
    except KafkaError as raised:
        raise failed(raised) from raised


def failed(error: KafkaError) -> ClientError:
    return ClientError(getattr(error, "errno", None) or -1, repr(error))


def check(code: int, message: object) -> None:
    if code:
        raise ClientError(code, str(message))


class AioKafka(Driver):
    name: ClassVar[str] = "aiokafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "log-dirs": "aiokafka has no such call",
        "incremental-alter-configs": "aiokafka alters configurations as a whole",
        "append-and-subtract-configs": "aiokafka alters configurations as a whole",
        "alter-broker-config": "aiokafka alters configurations as a whole",
        "offset-of-max-timestamp": "aiokafka does not ask for it",
        "default-partitions": "aiokafka wants a number",
        "invalid-config": "aiokafka alters configurations as a whole",
        "consume-from-unknown-topic": "it waits in silence for the topic to appear",
        "offsets-of-unknown-topic": "it waits in silence for the topic to appear",
    }

    def version(self) -> str:
        return str(aiokafka.__version__)

    def call(self, do: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
        async def call() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await do(admin)
            finally:
                await admin.close()

        return _run(call())

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        return list(_run(self._produce(topic, records, sending)))

    async def _produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if sending.codec == "none" else sending.codec,
            acks=sending.acks if sending.acks == "all" else int(sending.acks),
            enable_idempotence=sending.idempotent,
            linger_ms=sending.linger_ms,
            max_request_size=4_000_000,
            request_timeout_ms=3000,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            await producer.flush()
            results = [await future for future in sent]
            return [-1 if result is None else result.offset for result in results]
        finally:
            await producer.stop()

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        return list(_run(self._consume(places, count, reading)))

    async def _consume(self, places: Sequence[Place], count: int, reading: Reading) -> list[Record]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            auto_offset_reset=reading.reset,
            isolation_level=reading.isolation,
            max_partition_fetch_bytes=reading.max_bytes,
            fetch_max_wait_ms=reading.max_wait_ms,
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, partition) for topic, partition, _ in places])
            for topic, partition, start in places:
                place = TopicPartition(topic, partition)
                if start == EARLIEST:
                    await consumer.seek_to_beginning(place)
                elif start == LATEST:
                    await consumer.seek_to_end(place)
                else:
                    consumer.seek(place, start)
            return await _poll(consumer, count)
        finally:
            await consumer.stop()

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        async def ask() -> Listed:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None)
            await consumer.start()
            place = TopicPartition(topic, partition)
            try:
                if timestamp == EARLIEST:
                    return Listed((await consumer.beginning_offsets([place]))[place])
                if timestamp == LATEST:
                    return Listed((await consumer.end_offsets([place]))[place])
                found = (await consumer.offsets_for_times({place: timestamp}))[place]
                return Listed(-1) if found is None else Listed(found.offset, found.timestamp)
            finally:
                await consumer.stop()

        listed: Listed = _run(ask())
        return listed

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, topic_configs=dict(config or {}))
        answer = self.call(lambda admin: admin.create_topics([new], validate_only=validate_only))
        for _, code, message, *_ in answer.topic_errors:
            check(code, message)

    def delete_topic(self, topic: str) -> None:
        answer = self.call(lambda admin: admin.delete_topics([topic]))
        for name, code, *_ in answer.topic_error_codes:
            check(code, name)

    def list_topics(self) -> list[str]:
        return list(self.call(lambda admin: admin.list_topics()))

    def describe_topic(self, topic: str) -> list[Partition]:
        (found,) = self.call(lambda admin: admin.describe_topics([topic]))
        check(found["error_code"], found)
        return partitions_of([(p["partition"], p["leader"], p["replicas"], p["isr"]) for p in found["partitions"]])

    def create_partitions(self, topic: str, count: int) -> None:
        self.call(lambda admin: admin.create_partitions({topic: NewPartitions(count)}))

    def describe_configs(self, resource: str, name: str) -> dict[str, Setting]:
        (answer,) = self.call(lambda admin: admin.describe_configs([ConfigResource(resource, name)]))
        ((code, message, _, _, entries, *_),) = answer.resources
        check(code, message)
        return {entry[0]: Setting(entry[1], entry[3]) for entry in entries}

    def replace_configs(self, resource: str, name: str, config: Mapping[str, str]) -> None:
        answers = self.call(lambda admin: admin.alter_configs([ConfigResource(resource, name, dict(config))]))
        for answer in answers:
            for code, message, *_ in answer.resources:
                check(code, message)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        answer = self.call(lambda admin: admin.delete_records({place: RecordsToDelete(offset)}))
        return int(answer[place])

    def describe_cluster(self) -> Cluster:
        found = self.call(lambda admin: admin.describe_cluster())
        brokers = tuple((b["node_id"], b["host"], b["port"]) for b in found["brokers"])
        return Cluster(found["cluster_id"], found["controller_id"], brokers)


async def _poll(consumer: AIOKafkaConsumer, count: int) -> list[Record]:
    records: list[Record] = []
    give_up_at = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < give_up_at, f"only {len(records)} records until the deadline"
        for found in (await consumer.getmany(timeout_ms=200)).values():
            records += map(record_of, found)
    return records


def record_of(record: Any) -> Record:
    return Record(
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp=record.timestamp,
        partition=record.partition,
        offset=record.offset,
        topic=record.topic,
        log_append_time=record.timestamp_type == 1,
    )
