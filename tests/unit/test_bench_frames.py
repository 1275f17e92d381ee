"""The prebuilt frames of the `hot` table are what their names say, and what is wrong in an answer is found."""

from __future__ import annotations

import pytest

from bench import hot_frames
from bench.hot_frames import Batch, WrongAnswerError, at_offset, batch_of, check_fetched, check_produced
from tidelog.records.scan import scan
from tidelog.types import NO_PRODUCER
from tidelog.wire.frames import decode_request, decode_response, encode_response
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

NOW_MS = 1_700_000_000_000
SIZE_BYTES = 4


@pytest.fixture(scope="module")
def batch() -> Batch:
    return batch_of(NOW_MS, 100, 10_000)


@pytest.mark.parametrize(
    ("record_bytes", "size"), [(100, 10_000), (100, 16 * 1024), (1000, 1 << 19), (1000, 2000), (10, 1000)]
)
def test_a_batch_has_exactly_its_size(record_bytes: int, size: int) -> None:
    batch = batch_of(NOW_MS, record_bytes, size)
    found = scan(batch.data)
    ((_, header),) = found.batches
    assert found.reason is None
    assert len(batch.data) == size
    assert header.record_count == batch.records >= size // (record_bytes + 20) - 1
    assert header.producer_id == NO_PRODUCER


def test_without_a_size_a_batch_is_one_record() -> None:
    batch = batch_of(NOW_MS, 100)
    assert batch.records == 1
    assert 100 < len(batch.data) < 200


def test_a_produce_frame_is_a_request_of_the_batch(batch: Batch) -> None:
    frame = b"".join(hot_frames.produce_frame("hot", 3, batch.data, 7))
    header, request = decode_request(frame[SIZE_BYTES:])
    assert int.from_bytes(frame[:SIZE_BYTES], "big") == len(frame) - SIZE_BYTES
    assert header.correlation_id == 7
    assert isinstance(request, ProduceRequest)
    assert request.acks == 1
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, bytes(partition.records)) == ("hot", 3, batch.data)


def test_frames_share_a_large_batch() -> None:
    batch = batch_of(NOW_MS, 1000, 1 << 19)
    frames = [hot_frames.produce_frame("hot", 0, batch.data, number) for number in range(2)]
    shared = [part for parts in frames for part in parts if len(part) == len(batch.data)]
    assert len(shared) == 2
    assert all(part.obj is batch.data if isinstance(part, memoryview) else part is batch.data for part in shared)


def test_a_fetch_frame_asks_for_so_much_and_does_not_wait() -> None:
    (frame,) = hot_frames.fetch_frame("hot", 2, 500, 10_000, 9)
    header, request = decode_request(frame[SIZE_BYTES:])
    assert header.correlation_id == 9
    assert isinstance(request, FetchRequest)
    assert (request.max_wait_ms, request.max_bytes, request.session_epoch) == (0, 10_000, -1)
    (partition,) = request.topics[0].partitions
    assert (partition.partition, partition.fetch_offset, partition.partition_max_bytes) == (2, 500, 10_000)


def test_the_answer_of_the_bare_server_to_a_fetch_is_right(batch: Batch) -> None:
    check_fetched(fetched(batch, [5, 5 + batch.records]), batch, 5, 2)


def fetched(batch: Batch, offsets: list[int]) -> bytes:
    """Without its size."""
    records = b"".join(at_offset(batch, offset) for offset in offsets)
    before, behind = hot_frames.fetch_answer("hot", len(records))
    return (before + records + behind)[SIZE_BYTES:]


def test_other_records_than_those_asked_for_are_found(batch: Batch) -> None:
    right = fetched(batch, [5, 5 + batch.records])
    changed = bytearray(right)
    changed[-100] ^= 1
    for frame, offset, count in [(right, 6, 2), (right, 5, 1), (right, 5, 3), (bytes(changed), 5, 2)]:
        with pytest.raises(WrongAnswerError):
            check_fetched(frame, batch, offset, count)


def test_the_answer_of_the_bare_server_to_a_produce_is_right() -> None:
    frame = hot_frames.produce_answer("hot")
    check_produced(frame[SIZE_BYTES:])
    assert decode_response(0, hot_frames.PRODUCE_VERSION, frame[SIZE_BYTES:]).correlation_id == 0


def test_an_error_is_found() -> None:
    partitions = [PartitionProduceResponse(index=0, error_code=6)]
    response = ProduceResponse(responses=[TopicProduceResponse(name="hot", partition_responses=partitions)])
    frame = b"".join(encode_response(response, hot_frames.PRODUCE_VERSION, 0))
    with pytest.raises(WrongAnswerError, match="error 6"):
        check_produced(frame[SIZE_BYTES:])
