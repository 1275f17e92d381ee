"""The protocol's codecs beside kio's, which decodes in Rust and encodes in Python."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import kio.index
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from bench.table import Row, alternate
from tidelog.wire import Message, decode, encode
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ENCODE_BAR, DECODE_BAR = 3, 1
TOPICS = PARTITIONS = 10
BATCH = bytes(range(256)) * 4


def metadata() -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(
            partition_index=index, leader_id=1, leader_epoch=3, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for index in range(10)
    ]
    return MetadataResponse(
        cluster_id="bench",
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=9092) for node in (1, 2, 3)],
        topics=[
            MetadataResponseTopic(name=f"topic-{number}", topic_id=number.to_bytes(16, "big"), partitions=partitions)
            for number in range(1, 101)
        ],
    )


def spread(topic: Callable[[str], Any]) -> list[Any]:
    """100 partitions, as a busy client has them: ten topics of ten."""
    return [topic(f"topic-{number}") for number in range(TOPICS)]


def messages() -> list[tuple[str, str, int, EntityType, Message]]:
    indexes = range(PARTITIONS)
    produce = [PartitionProduceData(index=index, records=BATCH) for index in indexes]
    produced = [PartitionProduceResponse(index=index, base_offset=1 << 33) for index in indexes]
    fetch = [
        FetchPartition(partition=index, fetch_offset=1 << 33, partition_max_bytes=1 << 20, current_leader_epoch=3)
        for index in indexes
    ]
    fetched = [
        FetchResponsePartitionData(
            partition_index=index, high_watermark=1 << 33, last_stable_offset=1 << 33, log_start_offset=0, records=BATCH
        )
        for index in indexes
    ]
    request, response = EntityType.request, EntityType.response
    return [
        ("Metadata response, 100 topics of 10 partitions", "metadata", 12, response, metadata()),
        (
            "Produce request, 100 partitions of 1 kB",
            "produce",
            9,
            request,
            ProduceRequest(
                acks=-1, topic_data=spread(lambda name: TopicProduceData(name=name, partition_data=produce))
            ),
        ),
        (
            "Produce response, 100 partitions",
            "produce",
            9,
            response,
            ProduceResponse(
                responses=spread(lambda name: TopicProduceResponse(name=name, partition_responses=produced))
            ),
        ),
        (
            "Fetch request, 100 partitions",
            "fetch",
            12,
            request,
            FetchRequest(max_wait_ms=500, topics=spread(lambda name: FetchTopic(topic=name, partitions=fetch))),
        ),
        (
            "Fetch response, 100 partitions of 1 kB",
            "fetch",
            12,
            response,
            FetchResponse(responses=spread(lambda name: FetchableTopicResponse(topic=name, partitions=fetched))),
        ),
    ]


def rows() -> list[Row]:
    result: list[Row] = []
    for what, name, version, kind, message in messages():
        entity = kio.index.load_entity_schema(name, version, kind)
        write, read = entity_writer(entity), entity_reader(entity)
        encoded = encode(message, version)
        theirs = read(encoded, 0)[0]

        def kio_encode(write: Any = write, theirs: Any = theirs) -> bytes:
            buffer = io.BytesIO()
            write(buffer, theirs)
            return buffer.getvalue()

        assert kio_encode() == encoded
        assert decode(type(message), encoded, version) == message
        rounds = 20 if name == "metadata" else 100
        mine: Callable[[], object] = partial(encode, message, version)
        result.append(row(f"encode {what}", measured(mine, kio_encode, rounds // 10), ENCODE_BAR))
        mine = partial(decode, type(message), encoded, version)
        result.append(row(f"decode {what}", measured(mine, partial(read, encoded, 0), rounds), DECODE_BAR))
    return result


def measured(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds for one of each; some are too short to be timed alone."""

    def repeated(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeats):
                work()

        return run

    mine, theirs = alternate(repeated(ours), repeated(peer))
    return mine / repeats, theirs / repeats


def row(what: str, seconds: tuple[float, float], bar: float) -> Row:
    ours, peer = seconds
    return Row(what, f"{ours * 1e6:.0f} us", f"kio {peer * 1e6:.0f} us", peer / ours, bar)
