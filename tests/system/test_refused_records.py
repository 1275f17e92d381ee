"""What librdkafka tells a program of single records that a broker refuses (KIP-467)."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import Message, NewTopic

from tests.kits.processkit import broker_process

COUNT = 100
LACKING = list(range(3, COUNT, 10))


def test_a_program_learns_which_records_lack_a_key(tmp_path: Path) -> None:
    told: dict[int, KafkaError] = {}

    def heard(error: KafkaError | None, message: Message) -> None:
        assert error is not None
        told[int(message.value())] = error

    with broker_process(tmp_path) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        topic = NewTopic("t", num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"})
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([topic])["t"].result(30)
        # All in one batch: the broker answers for a batch, and says which of its records are at fault.
        producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 500, "log_level": 0, "log.connection.close": False}
        )
        for number in range(COUNT):
            key = None if number in LACKING else b"k"
            producer.produce("t", value=str(number), key=key, partition=0, on_delivery=heard)
        assert producer.flush(30) == 0
    assert len(told) == COUNT
    refused = [number for number, error in sorted(told.items()) if error.code() == KafkaError.INVALID_RECORD]
    assert refused == LACKING
    others = {error.code() for number, error in told.items() if number not in LACKING}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}
