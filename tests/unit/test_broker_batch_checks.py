"""Batches as a leader checks them: what is refused and how, and the order of those that take long to check."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.brokerkit import PRODUCE_BY_NAME, Kit, code_of, produce_request, run
from tests.logkit import batch, batch_around, idempotent
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.types import Buffer

NOW = 1_700_000_000_000
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BIG = b"\0" * 800_000
"""Compressed it is small, so only a try shows that it is too large for the loop."""


def heavy(sequence: int, codec: Codec = Codec.LZ4, producer_id: int = 7) -> Buffer:
    return build_batch(
        [(NOW, None, BIG)], codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


def off_loop(kit: Kit) -> float:
    return kit.broker.metrics.counter("tidelog_batches_checked_off_loop_total").value


def refused(kit: Kit, code: ErrorCode) -> float:
    return kit.broker.metrics.counter("tidelog_refused_batches_total", error=code.name).value


@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_that_no_consumer_could_read_is_not_stored(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        bad = [
            batch_around(b"", 2**31 - 1),
            batch_around(b"", 1),
            batch_around(b"\xff" * 50, 1),
            batch_around(bytes(batch([b"a", b"b"])[61:]), 1),
            batch_around(bytes(batch([b"a", b"b"])[61:]), 3),
            *(batch_around(b"\xff" * 50, 1, codec) for codec in COMPRESSING),
        ]
        for data in bad:
            answer = await kit.produce(data, acks=acks)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
            assert answer.error_message
        assert kit.partition().log.log_end_offset == 0
        assert refused(kit, ErrorCode.INVALID_RECORD) == len(bad)
        assert (await kit.produce(acks=acks)).base_offset == 0

    run(story)


def test_the_malformed_record_is_named() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        good = bytes(batch([b"a", b"b"])[61:])
        answer = await kit.produce(batch_around(good + good, 4))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors] == [
            (2, "The record has the offset delta 0")
        ]

    run(story)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_large_compressed_batch_is_checked_off_the_loop(codec: Codec) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert (await kit.produce(heavy(0, codec))).base_offset == 0
        assert off_loop(kit) == 1
        assert await kit.values() == [BIG]
        small = build_batch([(NOW, None, b"v" * 1000)], codec=codec)
        assert (await kit.produce(small)).base_offset == 1
        assert off_loop(kit) == 1

    run(story)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tidelog_batch_max_uncompressed_bytes", "3000000"), ("tidelog_batch_max_expansion_ratio", "10")],
)
@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_batch_that_expands_too_far_is_too_large(codec: Codec, setting: str, value: str) -> None:
    """MESSAGE_TOO_LARGE: Java's producer then splits the batch and sends it again in parts."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        bomb = build_batch([(NOW, None, bytes(4_000_000))], codec=codec)
        answer = await kit.produce(bomb)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "tidelog.batch.max" in (answer.error_message or "")
        assert kit.partition().log.log_end_offset == 0
        within = build_batch([(NOW, None, bytes(1_000_000))], codec=codec)
        assert await code_of(kit.produce(within)) == ErrorCode.NONE, "as large as it might be uncompressed"

    run(story, **{setting: value})


def test_what_is_too_large_is_refused_before_it_is_looked_at() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(max_message_bytes="1000")
        answer = await kit.produce(batch_around(b"\xff" * 1000, 1, Codec.ZSTD))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert off_loop(kit) == 0

    run(story)


# Order


@pytest.mark.parametrize("acks", [1, -1])
def test_later_batches_of_a_connection_do_not_pass_a_heavy_one(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2)
        connection = await kit.connect()
        sent = [heavy(0), idempotent(1), idempotent(2), heavy(3), idempotent(4)]
        answers = [connection.send(produce_request({("t", 0): data}, acks=acks), PRODUCE_BY_NAME) for data in sent]
        results = [(await answer).responses[0].partition_responses[0] for answer in answers]
        assert [(one.error_code, one.base_offset) for one in results] == [(0, offset) for offset in range(5)]
        assert await kit.values() == [BIG, b"1", b"2", BIG, b"4"]
        assert not kit.broker.batch_checks.under_way

    run(story)


def test_other_connections_and_requests_do_not_wait_for_it() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        slow, quick = await kit.connect(), await kit.connect()
        kit.host.disk.work.delay_ms = (5000.0, 5000.0)
        first = slow.send(produce_request({("t", 0): heavy(0)}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.broker.batch_checks.under_way)
        second = await quick.call(produce_request({("t", 0): batch([b"quick"])}, acks=1), PRODUCE_BY_NAME)
        assert second.responses[0].partition_responses[0].base_offset == 0
        assert not first.done()
        assert (await first).responses[0].partition_responses[0].base_offset == 1

    run(story)


def test_the_batches_of_one_request_are_appended_together() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=3)
        bad = batch_around(b"\xff" * 70_000, 1, Codec.ZSTD)
        wanted: dict[tuple[str, int], Buffer | None] = {("t", 0): batch(), ("t", 1): heavy(0), ("t", 2): bad}
        answer = await kit.call(produce_request(wanted), PRODUCE_BY_NAME)
        codes = [(one.index, one.error_code) for one in answer.responses[0].partition_responses]
        assert codes == [(0, 0), (1, 0), (2, ErrorCode.INVALID_RECORD)]
        assert off_loop(kit) == 2

    run(story)


def test_acks_0_is_written_though_the_client_has_gone() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        connection = await kit.connect()
        kit.host.disk.work.delay_ms = (500.0, 500.0)
        connection.post(produce_request({("t", 0): heavy(0)}, acks=0), PRODUCE_BY_NAME)
        connection.post(produce_request({("t", 0): idempotent(1)}, acks=0), PRODUCE_BY_NAME)
        await eventually(lambda: kit.broker.batch_checks.under_way)
        connection.close()
        await eventually(lambda: kit.partition().log.log_end_offset == 2)
        assert not kit.broker.batch_checks.under_way

    run(story)


def test_acks_0_with_a_bomb_ends_the_connection() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        connection = await kit.connect()
        bomb = build_batch([(NOW, None, bytes(4_000_000))], codec=Codec.ZSTD)
        connection.post(produce_request({("t", 0): bomb}, acks=0), PRODUCE_BY_NAME)
        await eventually(lambda: connection.closed)
        assert kit.partition().log.log_end_offset == 0

    run(story, tidelog_batch_max_uncompressed_bytes="1048576")


# What may change meanwhile


async def _while_it_is_checked(kit: Kit) -> tuple[Connection, asyncio.Future[object]]:
    await kit.create_topic()
    connection = await kit.connect()
    kit.host.disk.work.delay_ms = (500.0, 500.0)
    answer = connection.send(produce_request({("t", 0): heavy(0)}), PRODUCE_BY_NAME)
    await eventually(lambda: kit.broker.batch_checks.under_way)
    return connection, answer


def test_a_topic_whose_settings_change_meanwhile_refuses_for_now() -> None:
    async def story(kit: Kit) -> None:
        _, answer = await _while_it_is_checked(kit)
        kit.partition().rules = replace(kit.partition().rules, needs_keys=True)
        result = (await answer).responses[0].partition_responses[0]  # type: ignore[attr-defined]
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert kit.partition().log.log_end_offset == 0

    run(story)


def test_a_leader_that_follows_meanwhile_appends_nothing() -> None:
    async def story(kit: Kit) -> None:
        _, answer = await _while_it_is_checked(kit)
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        result = (await answer).responses[0].partition_responses[0]  # type: ignore[attr-defined]
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert kit.partition().log.log_end_offset == 0

    run(story)


def test_a_recompressed_batch_of_some_size_is_made_off_the_loop() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(compression_type="gzip")
        assert (await kit.produce(batch([b"v" * 100_000]))).base_offset == 0
        assert off_loop(kit) == 1
        assert await kit.values() == [b"v" * 100_000]

    run(story)
