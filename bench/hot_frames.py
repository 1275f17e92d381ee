"""Kafka frames that are built once and sent many times: requests of the `hot` table, and answers of its bare server."""

from __future__ import annotations

import socket
import struct
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from tidelog.records.build import build_batch
from tidelog.types import Buffer
from tidelog.wire import Message
from tidelog.wire.frames import decode_response, encode_request, encode_response
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PRODUCE_VERSION, FETCH_VERSION = 9, 12
"""Both brokers serve them, and topics have names in them; in later ones they have ids, which each broker chooses."""
_BASE_OFFSET = struct.Struct(">q")
_CHANGED_BYTES = 16
"""Of a batch a broker sets the base offset and the leader epoch, between which its length stands."""

_CLIENT_ID = "hot"
_TIMEOUT_MS = 10_000
_JOINED_BYTES = 64 * 1024
_CHECKS = 8
_MOST_PARTS = 64


class Batch(NamedTuple):
    data: bytes
    records: int


def batch_of(timestamp_ms: int, record_bytes: int, size: int | None = None) -> Batch:
    """One record, or as many as make a batch of exactly this size: the last one takes what is left over."""
    value = (bytes(range(256)) * (record_bytes // 256 + 1))[:record_bytes]

    def built(count: int, last_bytes: int) -> bytes:
        values = [value] * (count - 1) + [bytes(last_bytes)]
        return bytes(build_batch([(timestamp_ms, None, value) for value in values]))

    if size is None:
        return Batch(built(1, record_bytes), 1)
    one, ten = len(built(1, record_bytes)), len(built(10, record_bytes))
    count = max(1 + 9 * (size - one) // (ten - one), 1)
    while count > 1 and len(built(count, 0)) > size:
        count -= 1
    last = size - len(built(count, 0))
    for last_bytes in range(last, last - _CHECKS, -1):  # its length takes more bytes as it grows
        if last_bytes >= 0 and len(batch := built(count, last_bytes)) == size:
            return Batch(batch, count)
    raise ValueError(f"no batch of records of {record_bytes} bytes has {size} bytes")


# Requests


def produce_frame(topic: str, partition: int, batch: bytes, correlation_id: int) -> list[Buffer]:
    """acks=1, in parts. A large batch is a part of its own, which many frames share."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(acks=1, timeout_ms=_TIMEOUT_MS, topic_data=[data])
    parts = encode_request(request, PRODUCE_VERSION, correlation_id, _CLIENT_ID)
    return parts if len(batch) > _JOINED_BYTES else [b"".join(parts)]


def fetch_frame(topic: str, partition: int, offset: int, size: int, correlation_id: int) -> list[Buffer]:
    """Without a session and without waiting: what is there from this offset on, at most so many bytes."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, topics=topics)
    return [b"".join(encode_request(request, FETCH_VERSION, correlation_id, _CLIENT_ID))]


def frame_size(parts: list[Buffer]) -> int:
    return sum(map(len, parts))


def send_pending(connection: socket.socket, pending: deque[Buffer]) -> None:
    """As much as the socket takes; the rest is left in it."""
    while pending:
        try:
            sent = connection.sendmsg(list(islice(pending, _MOST_PARTS)))
        except BlockingIOError:
            return
        while sent and sent >= len(pending[0]):
            sent -= len(pending.popleft())
        if sent:
            pending[0] = memoryview(pending[0])[sent:]


# Answers


class WrongAnswerError(Exception):
    """What was measured is not what was asked for."""


def check_produced(frame: bytes) -> None:
    """Of an answer without its size."""
    answer = decode_response(ProduceRequest.__schema__.api_key, PRODUCE_VERSION, frame).response
    assert isinstance(answer, ProduceResponse)
    error = answer.responses[0].partition_responses[0].error_code
    if error:
        raise WrongAnswerError(f"produce: error {error}")


def check_fetched(frame: bytes, batch: Batch, offset: int, count: int) -> None:
    """These are `count` such batches from this offset on. A broker sets base offset and leader epoch."""
    answer = decode_response(FetchRequest.__schema__.api_key, FETCH_VERSION, frame).response
    assert isinstance(answer, FetchResponse)
    partition = answer.responses[0].partitions[0]
    if answer.error_code or partition.error_code:
        raise WrongAnswerError(f"fetch at {offset}: error {answer.error_code or partition.error_code}")
    records = memoryview(partition.records or b"")
    size = len(batch.data)
    if len(records) != size * count:
        raise WrongAnswerError(f"fetch at {offset}: {len(records)} bytes, not {size * count}")
    for number in range(count):
        found = records[number * size : (number + 1) * size]
        base_offset = _BASE_OFFSET.unpack_from(found)[0]
        if base_offset != offset + number * batch.records or found[_CHANGED_BYTES:] != batch.data[_CHANGED_BYTES:]:
            raise WrongAnswerError(f"fetch at {offset}: batch {number} of base offset {base_offset} is not as written")


def at_offset(batch: Batch, base_offset: int) -> bytes:
    """The batch as a broker stores it."""
    return _BASE_OFFSET.pack(base_offset) + batch.data[_BASE_OFFSET.size :]


def produce_answer(topic: str) -> bytes:
    """The whole frame, of correlation id 0 and partition 0."""
    partitions = [PartitionProduceResponse(index=0, base_offset=0, log_start_offset=0)]
    response = ProduceResponse(responses=[TopicProduceResponse(name=topic, partition_responses=partitions)])
    return _joined(response, PRODUCE_VERSION)


def fetch_answer(topic: str, size: int) -> tuple[bytes, bytes]:
    """What stands before and behind the records in the frame of an answer with so many bytes of them."""
    records = b"\xff" * size
    partition = FetchResponsePartitionData(
        partition_index=0, high_watermark=1 << 33, last_stable_offset=1 << 33, log_start_offset=0, records=records
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic=topic, partitions=[partition])])
    before, _, behind = _joined(response, FETCH_VERSION).rpartition(records)
    return before, behind


def _joined(response: Message, version: int) -> bytes:
    parts: list[Any] = encode_response(response, version, 0)
    return b"".join(parts)
