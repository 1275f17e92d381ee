"""Batches as a leader checks them: what is refused and how, and the order of those that take long to check."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.kits.brokerkit import PRODUCE_BY_NAME, Kit, code_of, produce_request, run
from tests.kits.logkit import batch, batch_around, idempotent
from tests.kits.metricskit import counted, value
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.ports import Clock
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.types import Buffer
from tidelog.wire.messages.produce import ProduceRequest

NOW = 1_700_000_000_000
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BIG = b"\0" * 800_000
"""Compressed it is small, so only a try shows that it is too large for the loop."""


def heavy(sequence: int, codec: Codec = Codec.LZ4, producer_id: int = 7) -> Buffer:
    return build_batch(
        [(NOW, None, BIG)], codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


def off_loop(kit: Kit) -> float:
    return value(kit.broker.metrics, "tidelog_batches_checked_off_loop_total")


def refused(kit: Kit, code: ErrorCode) -> float:
    return counted(kit.broker.metrics, f'tidelog_refused_batches_total{{error="{code.name}"}}')


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


def test_each_batch_of_a_request_has_its_own_fate() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=3)
        bad = batch_around(b"\xff" * 70_000, 1, Codec.ZSTD)
        wanted: dict[tuple[str, int], Buffer | None] = {("t", 0): batch(), ("t", 1): heavy(0), ("t", 2): bad}
        answer = await kit.call(produce_request(wanted), PRODUCE_BY_NAME)
        codes = [(one.index, one.error_code) for one in answer.responses[0].partition_responses]
        assert codes == [(0, 0), (1, 0), (2, ErrorCode.INVALID_RECORD)]
        assert off_loop(kit) == 2

    run(story)


def test_each_batch_is_appended_when_it_is_checked() -> None:
    """What a topic makes of a small batch may be large, so it is not kept until the last one is checked."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=4, compression_type="uncompressed")
        connection = await kit.connect()
        kit.host.disk.work.delay_ms = (500.0, 500.0)
        answer = connection.send(produce_request({("t", index): heavy(0) for index in range(4)}), PRODUCE_BY_NAME)
        for appended in range(1, 4):
            await eventually(lambda wanted=appended: kit.partition("t", wanted - 1).log.log_end_offset == 1)
            ends = [kit.partition("t", index).log.log_end_offset for index in range(4)]
            assert ends == [1] * appended + [0] * (4 - appended)
        assert [one.error_code for one in (await answer).responses[0].partition_responses] == [0] * 4

    run(story)


def test_a_small_batch_does_not_wait_behind_the_large_ones_of_others() -> None:
    """All are tried with little room first. Those that need more wait longer, but not for ever."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2)
        large = build_batch([(NOW, None, bytes(10_000_000))], codec=Codec.LZ4)
        others = [await kit.connect() for _ in range(5)]
        honest = await kit.connect()
        kit.host.disk.work.delay_ms = (500.0, 500.0)
        waiting = [other.send(produce_request({("t", 0): large}), PRODUCE_BY_NAME) for other in others]
        await eventually(lambda: len(kit.broker.batch_checks.under_way) == 5)
        for begun in range(3):
            answer = await honest.call(produce_request({("t", 1): build_batch([(NOW, None, BIG)], codec=Codec.LZ4)}), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert sum(other.done() for other in waiting) <= begun, "at most one was begun before each small batch came"
        for other in waiting:
            assert (await other).responses[0].partition_responses[0].error_code == 0

    run(story)


def test_a_large_batch_does_not_wait_for_ever_behind_the_small_ones_of_others() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2)
        others = [await kit.connect() for _ in range(4)]
        honest = await kit.connect()
        kit.host.disk.work.delay_ms = (500.0, 500.0)
        small = build_batch([(NOW, None, BIG)], codec=Codec.LZ4)
        large = build_batch([(NOW, None, bytes(5_000_000))], codec=Codec.LZ4)
        is_over = False

        async def keep_sending(other: Connection) -> None:
            while not is_over:
                await other.call(produce_request({("t", 1): small}), PRODUCE_BY_NAME)

        tasks = [asyncio.ensure_future(keep_sending(other)) for other in others]
        await eventually(lambda: len(kit.broker.batch_checks.under_way) == 4)
        answer = await honest.call(produce_request({("t", 0): large}), PRODUCE_BY_NAME)
        assert answer.responses[0].partition_responses[0].error_code == 0
        is_over = True
        await asyncio.gather(*tasks)

    run(story)


def test_a_request_that_takes_long_gives_the_loop_back_between_its_batches() -> None:
    """What a compressed batch takes is not known before, so the clock ends a slice."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=12)
        turns = 0
        turn = kit.broker.lane.turn

        async def counted() -> None:
            nonlocal turns
            turns += 1
            await turn()

        kit.broker.lane.turn = counted  # type: ignore[method-assign]
        kit.broker.clock = Ticking(kit.broker.clock)
        small = build_batch([(NOW, None, b"v" * 1000)], codec=Codec.GZIP)
        connection = await kit.connect()
        many = connection.send(produce_request({("t", index): small for index in range(12)}), PRODUCE_BY_NAME)
        after = connection.send(produce_request({("t", 0): small}), PRODUCE_BY_NAME)
        assert [one.error_code for one in (await many).responses[0].partition_responses] == [0] * 12
        assert (await after).responses[0].partition_responses[0].base_offset == 1, "it does not pass the first"
        assert turns >= 3
        assert not kit.broker.batch_checks.under_way

    run(story)


class Ticking(Clock):
    """A clock by which every look at it takes two milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks = 0

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_ns(self) -> int:
        self._looks += 1
        return self._clock.monotonic_ns() + 2_000_000 * self._looks


def test_log_append_time_is_that_of_the_append() -> None:
    """So it does not run backwards where a batch is appended while an earlier one is checked."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(message_timestamp_type="LogAppendTime")
        slow = await kit.connect()
        kit.host.disk.work.delay_ms = (5000.0, 5000.0)
        first = slow.send(produce_request({("t", 0): heavy(0)}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.broker.batch_checks.under_way)
        await asyncio.sleep(2)
        second = await kit.produce(batch([b"quick"]))
        kit.host.disk.work.delay_ms = (0.05, 2.0)
        late = (await first).responses[0].partition_responses[0]
        assert (second.base_offset, late.base_offset) == (0, 1)
        assert late.log_append_time_ms > second.log_append_time_ms
        stored = bytes((await kit.fetch()).records or b"")
        assert [record.timestamp for record in decode(stored)] == [second.log_append_time_ms, late.log_append_time_ms]

    run(story)


# Clients that go meanwhile


def used(kit: Kit) -> float:
    """Bytes of requests that the broker holds."""
    name = "kafka_network_socketserver_memorypoolused "
    lines = kit.broker.metrics.text().splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def send_and_forget(connection: Connection, request: ProduceRequest) -> None:
    """Its answer never comes, because the connection is closed."""
    connection.send(request, PRODUCE_BY_NAME).add_done_callback(lambda answer: answer.exception())


@pytest.mark.parametrize("acks", [1, -1])
def test_requests_of_a_client_that_has_gone_are_dropped_while_they_wait(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2)
        first, gone = await kit.connect(), await kit.connect()
        kit.host.disk.work.delay_ms = (5000.0, 5000.0)
        kept = first.send(produce_request({("t", 0): heavy(0)}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.broker.batch_checks.under_way)
        alone = used(kit)
        for sequence in range(3):
            wanted: dict[tuple[str, int], Buffer | None] = {("t", 1): heavy(sequence), ("t", 0): heavy(sequence)}
            send_and_forget(gone, produce_request(wanted, acks=acks))
        await eventually(lambda: len(kit.broker.batch_checks.under_way) == 2 and used(kit) > 3 * alone)
        gone.close()
        await eventually(lambda: len(kit.broker.batch_checks.under_way) == 1)
        assert used(kit) == alone
        assert not kept.done(), "it did not have to wait for the disk thread"
        assert (await kept).responses[0].partition_responses[0].error_code == 0
        await eventually(lambda: not kit.broker.batch_checks.under_way)
        assert [kit.partition("t", index).log.log_end_offset for index in (0, 1)] == [1, 0]
        assert used(kit) == 0
        kit.host.disk.work.delay_ms = (0.05, 2.0)
        assert await code_of(kit.produce(heavy(1), acks=acks)) == ErrorCode.NONE, "others are checked as before"

    run(story)


@pytest.mark.parametrize("acks", [1, -1])
def test_bytes_that_a_disk_thread_works_on_count_though_the_client_has_gone(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        gone = await kit.connect()
        kit.host.disk.work.delay_ms = (5000.0, 5000.0)
        for sequence in range(2):
            send_and_forget(gone, produce_request({("t", 0): heavy(sequence)}, acks=acks))
        await eventually(lambda: kit.broker.batch_checks.under_way)
        both = used(kit)
        gone.close()
        await asyncio.sleep(3)
        assert used(kit) == both
        await eventually(lambda: not kit.broker.batch_checks.under_way)
        assert used(kit) == 0
        assert kit.partition().log.log_end_offset == 0

    run(story)


def test_what_was_appended_before_the_client_went_is_flushed_and_seen() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2, flush_messages="1")
        gone = await kit.connect()
        kit.host.disk.work.delay_ms = (500.0, 500.0)
        wanted: dict[tuple[str, int], Buffer | None] = {("t", 0): batch([b"light"]), ("t", 1): heavy(0)}
        send_and_forget(gone, produce_request(wanted))
        await eventually(lambda: kit.broker.batch_checks.under_way)
        gone.close()
        await eventually(lambda: kit.partition("t", 0).log.high_watermark == 1)
        assert kit.partition("t", 1).log.log_end_offset == 0

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
        await eventually(lambda: not kit.broker.batch_checks.under_way)
        assert kit.partition().log.log_end_offset == 2
        assert used(kit) == 0

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
