"""Record what real producers and brokers write: `python -m tools.record_batches` (after `make peers`).

Kafka 3.9.1 and 4.1.0 take known records from Kafka's Java producer, librdkafka and aiokafka, with every codec, in
transactions, with LogAppendTime, recompressed and compacted. Their segment files go to tests/unit/fixtures/batches,
each beside a JSON file that says what is in it: the records as librdkafka's consumer read them back (and, where
nothing was rewritten, equal to what was sent) and the batches as Kafka's DumpLogSegments prints them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from confluent_kafka import Producer

from peers import home
from peers.clients import JavaProducer, Record, consume, create_topic, run_java_producers, send_step, text_of
from peers.dump import DumpedFile, complaints, dump_segments
from peers.kafka import Broker, KraftBroker, ZooKeeperBroker
from peers.zookeeper import ZooKeeper

TARGET = home.CHECKOUT / "tests" / "unit" / "fixtures" / "batches"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class Round:
    """Records that are sent and flushed together; in a transaction, with its outcome."""

    records: Sequence[Record]
    outcome: str = "commit"


@dataclass(frozen=True)
class Case:
    """One topic, one producer, one file."""

    name: str
    producer: str
    codec: str
    mode: str = "idempotent"
    topic_config: dict[str, str | int] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        return self.topic_config.get("cleanup.policy") == "compact"

    @property
    def rewrites(self) -> bool:
        """Whether the broker changes what was sent, so that only the reader knows what is there."""
        return self.is_compacted or self.topic_config.get("message.timestamp.type") == "LogAppendTime"


def plain_rounds() -> list[Round]:
    """The shapes a record can have; times that go back; a batch whose lengths need long varints; a batch of one."""
    shapes = [
        Record(b"key", b"value", BASE_TIMESTAMP),
        Record(None, b"no key", BASE_TIMESTAMP + 1),
        Record(b"tombstone", None, BASE_TIMESTAMP + 2),
        Record(None, None, BASE_TIMESTAMP + 2),
        Record(b"", b"", BASE_TIMESTAMP + 5000),
        Record(b"went back", b"in time", BASE_TIMESTAMP - 100_000),
        Record(
            "schlüssel".encode(),
            "wert ☃".encode(),
            BASE_TIMESTAMP + 7,
            (("a", b"1"), ("a", b"2"), ("ü", b"\x00\xff"), ("none", None), ("empty", b"")),
        ),
    ]
    long = [Record(f"k{n}".encode(), b"abcdefgh" * (20 + 8 * n), BASE_TIMESTAMP + 100 + n) for n in range(4)]
    return [Round(shapes), Round(long), Round([Record(b"last", b"one", BASE_TIMESTAMP + 1000, (("h", b"v"),))])]


def transactional_rounds() -> list[Round]:
    def some(name: str, count: int) -> list[Record]:
        return [Record(f"{name}{n}".encode(), b"in a transaction", BASE_TIMESTAMP + n) for n in range(count)]

    return [Round(some("first", 3)), Round(some("dropped", 2), "abort"), Round(some("last", 1))]


def compacted_rounds() -> list[Round]:
    """Keys that come again, tombstones, batches of which nothing or a part stays, and a tail that is not cleaned."""

    def said(pairs: str, at: int) -> Round:
        named = [pair.split("=") for pair in pairs.split()]
        return Round(
            [
                Record(key.encode(), value.encode() or None, BASE_TIMESTAMP + at + n)
                for n, (key, value) in enumerate(named)
            ]
        )

    texts = ("a=1 b=1 c=1 d=1", "a=2 e=1", "b=2 c= f=1", "a=3 g=1 e=", "h=1 i=1", "z=1")
    return [said(text, 10 * n) for n, text in enumerate(texts)]


def rounds_of(case: Case) -> list[Round]:
    if case.is_compacted:
        return compacted_rounds()
    if case.mode == "transactional":
        return transactional_rounds()
    if case.producer == "aiokafka":  # it refuses a record with neither key nor value
        return [Round([r for r in one.records if r.key is not None or r.value is not None]) for one in plain_rounds()]
    return plain_rounds()


def produce_java(case: Case, broker: Broker) -> None:
    config: dict[str, str | int] = {
        "compression.type": case.codec,
        "linger.ms": 1000,
        "enable.idempotence": "false" if case.mode == "plain" else "true",
    }
    steps: list[dict[str, object]] = []
    if case.mode == "transactional":
        config["transactional.id"] = case.name
        steps.append({"do": "init"})
    for one in rounds_of(case):
        if case.mode == "transactional":
            steps.append({"do": "begin"})
        steps += [send_step(case.name, record) for record in one.records]
        steps.append({"do": "flush"})
        if case.mode == "transactional":
            steps.append({"do": one.outcome})
    run_java_producers(broker.version, broker.bootstrap, JavaProducer(config, steps))


def produce_librdkafka(case: Case, broker: Broker) -> None:
    config: dict[str, str | int | bool] = {
        "bootstrap.servers": broker.bootstrap,
        "compression.type": case.codec,
        "linger.ms": 1000,
        "enable.idempotence": case.mode != "plain",
        "log_level": 0,
    }
    if case.mode == "transactional":
        config["transactional.id"] = case.name
    producer = Producer(config)
    if case.mode == "transactional":
        producer.init_transactions()
    for one in rounds_of(case):
        if case.mode == "transactional":
            producer.begin_transaction()
        for r in one.records:
            producer.produce(
                case.name, r.value, r.key, partition=0, timestamp=r.timestamp, headers=list(r.headers) or None
            )
        assert producer.flush(30) == 0
        if case.mode == "transactional":
            (producer.commit_transaction if one.outcome == "commit" else producer.abort_transaction)()


def produce_aiokafka(case: Case, broker: Broker) -> None:
    asyncio.run(_produce_aiokafka(case, broker))


async def _produce_aiokafka(case: Case, broker: Broker) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=None if case.codec == "none" else case.codec,
        linger_ms=1000,
        acks="all",
        enable_idempotence=case.mode != "plain",
        transactional_id=case.name if case.mode == "transactional" else None,
    )
    await producer.start()
    try:
        for one in rounds_of(case):
            if case.mode == "transactional":
                await producer.begin_transaction()
            for r in one.records:
                headers = [(name, value) for name, value in r.headers]
                await producer.send(case.name, r.value, r.key, partition=0, timestamp_ms=r.timestamp, headers=headers)
            await producer.flush()
            if case.mode == "transactional":
                await (producer.commit_transaction if one.outcome == "commit" else producer.abort_transaction)()
    finally:
        await producer.stop()


PRODUCERS: dict[str, Callable[[Case, Broker], None]] = {
    "java": produce_java,
    "librdkafka": produce_librdkafka,
    "aiokafka": produce_aiokafka,
}


def cases(version: str) -> list[Case]:
    """4.1.0 sees idempotent producers and 3.9.1 plain ones; what a broker itself does is recorded of both."""
    short = version.replace(".", "")
    mode = "idempotent" if version == home.KAFKA_KRAFT else "plain"
    found = [Case(f"{short}-{name}-{codec}-{mode}", name, codec, mode) for name in PRODUCERS for codec in CODECS]
    found += [Case(f"{short}-{name}-none-transactional", name, "none", "transactional") for name in PRODUCERS]
    found.append(Case(f"{short}-java-lz4-transactional", "java", "lz4", "transactional"))
    stamped: dict[str, str | int] = {"message.timestamp.type": "LogAppendTime"}
    found += [Case(f"{short}-java-{codec}-logappendtime", "java", codec, mode, stamped) for codec in ("none", "gzip")]
    found += [
        Case(f"{short}-java-gzip-recompressed-{codec}", "java", "gzip", mode, {"compression.type": codec})
        for codec in ("uncompressed", "zstd")
    ]
    if version == home.KAFKA_ZOOKEEPER:  # only this version lets a segment be as small as this
        compact: dict[str, str | int] = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": 0,
            "segment.bytes": 150,
        }
        found += [
            Case(f"{short}-java-{codec}-compacted", "java", codec, "idempotent", compact) for codec in ("none", "zstd")
        ]
    return found


def sent_records(case: Case) -> list[Record]:
    return [record for one in rounds_of(case) if one.outcome == "commit" for record in one.records]


def run_case(case: Case, broker: Broker) -> list[Record]:
    """Produce, wait for the cleaner where it is wanted, and read back."""
    create_topic(broker.bootstrap, case.name, config={"retention.ms": -1, **case.topic_config})
    PRODUCERS[case.producer](case, broker)
    if case.is_compacted:
        broker.wait_for_line(rf"cleaned log {case.name}-0")
    read = consume(broker.bootstrap, case.name, isolation="read_committed")
    if not case.rewrites:
        without_place = [Record(r.key, r.value, r.timestamp, r.headers) for r in read]
        assert without_place == sent_records(case), f"{case.name}: read {read}"
    return read


def described(case: Case, version: str, read: list[Record], dumped: list[DumpedFile]) -> dict[str, object]:
    markers = [
        {"offset": record.offset, "type": record.marker, "coordinator_epoch": record.coordinator_epoch}
        for file in dumped
        for record in file.records
        if record.marker
    ]
    records = [
        {
            "offset": r.offset,
            "timestamp": r.timestamp,
            "key": text_of(r.key),
            "value": text_of(r.value),
            "headers": [[name, text_of(value)] for name, value in r.headers],
        }
        for r in read
    ]
    batches = [asdict(batch) for file in dumped for batch in file.batches]
    position = 0
    for batch in batches:  # positions in one file, though several segments may stand in it one after another
        batch["position"] = position
        position += int(batch["size"])
    return {
        "broker": version,
        "producer": case.producer,
        "mode": case.mode,
        "committed_records": records,
        "control_records": markers,
        "batches": batches,
    }


def keep(case: Case, broker: Broker, read: list[Record]) -> int:
    """Copy a stopped broker's segments and say what is in them; the number of bytes."""
    segments = sorted((broker.log_dir / f"{case.name}-0").glob("*.log"))
    dumped = dump_segments(broker.version, segments)
    found = [text for text in complaints(dumped) if not case.is_compacted or "onsecutive" not in text]
    assert not found, found
    data = b"".join(segment.read_bytes() for segment in segments)
    (TARGET / f"{case.name}.log").write_bytes(data)
    text = json_text(described(case, broker.version, read, [dumped[segment] for segment in segments]))
    (TARGET / f"{case.name}.json").write_text(text)
    return len(data) + len(text)


def json_text(description: dict[str, object]) -> str:
    """JSON with a line per record and per batch, so that a difference can be read."""

    def value_text(value: object) -> str:
        if not isinstance(value, list):
            return json.dumps(value)
        return "[" + ",".join(f"\n  {json.dumps(item)}" for item in value) + "]"

    return (
        "{" + ",".join(f"\n {json.dumps(name)}: {value_text(value)}" for name, value in description.items()) + "\n}\n"
    )


def record_on(broker: Broker) -> None:
    wanted = cases(broker.version)
    with broker:
        read = {case.name: run_case(case, broker) for case in wanted}
    total = sum(keep(case, broker, read[case.name]) for case in wanted)
    print(f"Kafka {broker.version}: {len(wanted)} files, {total} bytes with their descriptions")


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        record_on(KraftBroker(directory / "kraft"))
        with ZooKeeper(directory / "zookeeper") as zookeeper:
            record_on(ZooKeeperBroker(directory / "kafka", zookeeper, settings={"log.cleaner.backoff.ms": 100}))


if __name__ == "__main__":
    main()
