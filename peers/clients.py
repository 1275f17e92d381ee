"""Topics and records through clients that are not ours: librdkafka, and Kafka's Java producer."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from peers.process import PeerFailedError, run_java

_DEADLINE_S = 30.0
_POLL_S = 0.05

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client sees it. `offset` is -1 before it was written."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()
    offset: int = -1
    log_append_time: bool = False


def create_topic(
    bootstrap: str, topic: str, *, partitions: int = 1, config: Mapping[str, str | int] | None = None
) -> None:
    """Returns when the topic exists."""
    text = {name: str(value) for name, value in (config or {}).items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=text)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([new], operation_timeout=_DEADLINE_S)[topic].result()


def consume(bootstrap: str, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted") -> list[Record]:
    """All records of a partition, from the log start to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "peers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        _wait_for_leader(consumer, topic, partition)
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_DEADLINE_S)
        consumer.assign([TopicPartition(topic, partition, start)])
        return _read_to_end(consumer)
    finally:
        consumer.close()


def _wait_for_leader(consumer: Consumer, topic: str, partition: int) -> None:
    """A broker that has just started learns of its partitions one by one."""
    give_up_at = time.monotonic() + _DEADLINE_S
    while True:
        found = consumer.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions.get(partition)
        if found is not None and found.leader >= 0:
            return
        if time.monotonic() > give_up_at:
            raise PeerFailedError(f"{topic}-{partition} has no leader after {_DEADLINE_S} s")
        time.sleep(_POLL_S)


def _read_to_end(consumer: Consumer) -> list[Record]:
    records: list[Record] = []
    while True:
        message = consumer.poll(_DEADLINE_S)
        if message is None:
            raise PeerFailedError(f"no answer within {_DEADLINE_S} s after {len(records)} records")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return records
            raise PeerFailedError(str(error))
        kind, timestamp = message.timestamp()
        records.append(
            Record(
                key=message.key(),
                value=message.value(),
                timestamp=timestamp,
                headers=cast(Headers, tuple(message.headers() or ())),
                offset=cast(int, message.offset()),
                log_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
            )
        )


def send_step(topic: str, record: Record, partition: int = 0) -> dict[str, Any]:
    """One `send` in the plan of RecordProducer.java."""
    return {
        "do": "send",
        "topic": topic,
        "partition": partition,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(value)] for name, value in record.headers],
    }


@dataclass(frozen=True, slots=True)
class JavaProducer:
    """What one producer shall do: its settings, and steps as tools/java/RecordProducer.java knows them."""

    config: Mapping[str, str | int]
    steps: Sequence[Mapping[str, Any]]


def run_java_producers(version: str, bootstrap: str, *producers: JavaProducer) -> list[int]:
    """Let Kafka's Java producers work, one after the other in one JVM; the offsets of what they sent."""
    given = ""
    for producer in producers:
        config = {"bootstrap.servers": bootstrap, **producer.config}
        given += json.dumps({"config": config, "steps": list(producer.steps)}) + "\n"
    return [int(line) for line in run_java(version, "RecordProducer", given=given).out.split()]


def text_of(data: bytes | None) -> str | None:
    """Base64, as JSON carries bytes."""
    return None if data is None else base64.b64encode(data).decode()
