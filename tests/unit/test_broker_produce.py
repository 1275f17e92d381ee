"""Produce: what is written, and what is refused and how (S13.1)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import PRODUCE, PRODUCE_BY_NAME, Kit, code_of, produce_request, run
from tests.kits.logkit import batch, idempotent, marker
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.records.batch import decode
from tidelog.records.build import BatchFacts, build_batch
from tidelog.records.header import Codec, headers, read_header
from tidelog.types import Buffer
from tidelog.wire import ZERO_UUID


@pytest.mark.parametrize("version", range(3, PRODUCE_BY_NAME + 1))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_is_answered(version: int, acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for offset in (0, 1):
            answer = await kit.produce(version=version, acks=acks)
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, offset, -1)
            assert answer.log_start_offset == (0 if version >= 5 else -1)

    run(story)


def test_topic_ids_in_version_13() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        answer = await kit.produce(version=PRODUCE, topic_id=topic_id)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        refused = await kit.produce(version=PRODUCE, topic_id=b"?" * 16)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        zero = await kit.produce(version=PRODUCE, topic_id=ZERO_UUID)
        assert zero.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(story)


def test_the_id_of_a_deleted_topic_writes_nothing_to_its_namesake() -> None:
    async def story(kit: Kit) -> None:
        old = await kit.create_topic()
        await kit.delete_topic()
        new = await kit.create_topic()
        assert new != old
        assert await code_of(kit.produce(version=PRODUCE, topic_id=old)) == ErrorCode.UNKNOWN_TOPIC_ID
        kit.broker.metadata._names[old] = "t"  # as between a LeaderAndIsr and the UpdateMetadata that follows it
        assert await code_of(kit.produce(version=PRODUCE, topic_id=old)) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await kit.values() == []

    run(story)


def test_several_partitions_each_with_its_own_fate() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("a", 2)
        await kit.create_topic("b")
        bad = bytearray(batch())
        bad[-1] ^= 1
        wanted: dict[tuple[str, int], Buffer | None] = {
            ("a", 0): batch([b"x"]),
            ("a", 1): bytes(bad),
            ("b", 0): batch([b"y"]),
            ("b", 7): batch([b"z"]),
            ("nobody", 0): batch([b"z"]),
        }
        answer = await kit.call(produce_request(wanted), PRODUCE_BY_NAME)
        codes = {
            (topic.name, one.index): ErrorCode(one.error_code)
            for topic in answer.responses
            for one in topic.partition_responses
        }
        assert codes == {
            ("a", 0): ErrorCode.NONE,
            ("a", 1): ErrorCode.CORRUPT_MESSAGE,
            ("b", 0): ErrorCode.NONE,
            ("b", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await kit.values("a", 0) == [b"x"]
        assert await kit.values("a", 1) == []
        assert await kit.values("b", 0) == [b"y"]

    run(story)


# acks


def test_acks_0_is_not_answered_and_keeps_its_place() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        connection = await kit.connect()
        connection.post(produce_request({("t", 0): batch([b"silent"])}, acks=0), PRODUCE_BY_NAME)
        answer = await connection.call(produce_request({("t", 0): batch([b"loud"])}), PRODUCE_BY_NAME)
        assert answer.responses[0].partition_responses[0].base_offset == 1
        assert await kit.values() == [b"silent", b"loud"]

    run(story)


def test_an_error_at_acks_0_closes_the_connection() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        connection = await kit.connect()
        connection.post(produce_request({("nobody", 0): batch()}, acks=0), PRODUCE_BY_NAME)
        await eventually(lambda: connection.closed)

    run(story)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce(acks=acks)) == ErrorCode.INVALID_REQUIRED_ACKS
        assert await kit.values() == []

    run(story)


# Batches that are refused


def _two_batches() -> bytes:
    return batch() + batch()


def _transactional() -> bytes:
    return batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


def _of_magic(magic: int) -> bytes:
    old = bytearray(batch())
    old[16] = magic
    return bytes(old)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (b"x" * 61, ErrorCode.CORRUPT_MESSAGE),
        (_two_batches(), ErrorCode.INVALID_RECORD),
        (batch() + b"x", ErrorCode.INVALID_RECORD),
        (_of_magic(0), ErrorCode.INVALID_RECORD),
        (_of_magic(1), ErrorCode.INVALID_RECORD),
        (_of_magic(3), ErrorCode.CORRUPT_MESSAGE),
        (_transactional(), ErrorCode.INVALID_TXN_STATE),
        (marker(7, abort=False), ErrorCode.INVALID_RECORD),
        (batch([b"x" * 2000]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["null", "empty", "torn", "noise", "two", "tail", "v0", "v1", "v3", "transactional", "control", "large"],
)
def test_what_is_no_good_batch(records: bytes | None, code: ErrorCode) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(max_message_bytes="1000")
        request = produce_request({("t", 0): records, ("t", 1): records})
        answer = await kit.call(request, PRODUCE_BY_NAME)
        first, second = answer.responses[0].partition_responses
        assert (ErrorCode(first.error_code), first.base_offset) == (code, -1)
        assert second.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await kit.values() == []

    run(story)


def test_zstd_needs_version_7() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        zstd = batch([b"x" * 100], codec=Codec.ZSTD)
        assert await code_of(kit.produce(zstd, version=6)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert await code_of(kit.produce(zstd, version=7)) == ErrorCode.NONE

    run(story)


def test_a_compacted_topic_wants_keys() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(cleanup_policy="compact")
        assert await code_of(kit.produce(batch([b"v"], keys=[None]))) == ErrorCode.INVALID_RECORD
        assert await code_of(kit.produce(batch([b"v"], keys=[b"k"]))) == ErrorCode.NONE
        assert await code_of(kit.produce(batch([None], keys=[b"k"]))) == ErrorCode.NONE

    run(story)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("setting", [{"cleanup_policy": "compact"}, {"compression_type": "uncompressed"}])
def test_compressed_noise_is_an_error_of_its_partition_alone(codec: Codec, setting: dict[str, str]) -> None:
    """Where single records are looked at, garbage in them must not end the connection: others were written."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("strict", **setting)
        await kit.create_topic("t")
        noise = bytearray(batch([b"v" * 50], keys=[b"k"], codec=codec))
        noise[65:75] = b"\xff" * 10
        noise[17:21] = _crc(noise)
        answer = await kit.call(produce_request({("t", 0): batch(), ("strict", 0): bytes(noise)}), PRODUCE_BY_NAME)
        codes = [ErrorCode(topic.partition_responses[0].error_code) for topic in answer.responses]
        assert codes[0] == ErrorCode.NONE
        assert codes[1] in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)

    run(story)


def _crc(data: bytearray) -> bytes:
    import crc32c

    return int(crc32c.crc32c(bytes(data[21:]))).to_bytes(4, "big")


@pytest.mark.parametrize("version", [3, 7, 8, 9, PRODUCE_BY_NAME])
def test_a_client_learns_which_records_are_refused(version: int) -> None:
    """Of 100 records 10 lack a key (KIP-467). Before v8 there is only the code."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(cleanup_policy="compact")
        keys = [None if number % 10 == 3 else b"k" for number in range(100)]
        answer = await kit.produce(batch([b"v"] * 100, keys=keys), version=version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        if version >= 8:
            assert [error.batch_index for error in answer.record_errors] == list(range(3, 100, 10))
            assert answer.record_errors[0].batch_index_error_message == (
                "Compacted topic cannot accept message without key"
            )
            assert answer.error_message == "10 of 100 records have no key; a compacted topic needs one"
        assert kit.partition().log.log_end_offset == 0

    run(story)


def test_internal_topics_are_not_for_clients() -> None:
    """A record that no coordinator wrote would be read as its state."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("__consumer_offsets")
        await kit.create_topic("__transaction_state")
        for topic in ("__consumer_offsets", "__transaction_state"):
            assert await code_of(kit.produce(topic=topic)) == ErrorCode.INVALID_TOPIC_EXCEPTION
        tool = await Connection.open("b1", kit.port, client_id="__admin_client")
        answer = await tool.call(produce_request({("__consumer_offsets", 0): batch()}), PRODUCE_BY_NAME)
        assert answer.responses[0].partition_responses[0].error_code == 0

    run(story)


# What a topic changes


def test_log_append_time() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(message_timestamp_type="LogAppendTime")
        answer = await kit.produce(idempotent(0, 3))
        now_ms = kit.broker.clock.wall_ms()
        assert abs(answer.log_append_time_ms - now_ms) < 1000
        stored = bytes((await kit.fetch()).records or b"")
        assert [record.timestamp for record in decode(stored)] == [answer.log_append_time_ms] * 3
        await asyncio.sleep(5)
        again = await kit.produce(idempotent(0, 3))
        assert (again.error_code, again.base_offset) == (0, 0)
        assert again.log_append_time_ms == answer.log_append_time_ms, "the time it was written at"

    run(story)


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"])
@pytest.mark.parametrize("sent", [Codec.NONE, Codec.GZIP])
def test_compression_type(wanted: str, sent: Codec) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(compression_type=wanted)
        assert await code_of(kit.produce(batch([b"v" * 100] * 3, codec=sent))) == ErrorCode.NONE
        stored = bytes((await kit.fetch()).records or b"")
        codecs = {"uncompressed": Codec.NONE, "producer": sent}
        assert read_header(stored).codec == codecs.get(wanted, Codec[wanted.upper()] if wanted not in codecs else sent)
        assert await kit.values() == [b"v" * 100] * 3

    run(story)


def test_timestamp_bounds() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(message_timestamp_before_max_ms="10000", message_timestamp_after_max_ms="20000")
        now_ms = kit.broker.clock.wall_ms()
        assert await code_of(kit.produce(batch(timestamp=now_ms - 60_000))) == ErrorCode.INVALID_TIMESTAMP
        assert await code_of(kit.produce(batch(timestamp=now_ms + 60_000))) == ErrorCode.INVALID_TIMESTAMP
        assert await code_of(kit.produce(batch(timestamp=now_ms - 5_000))) == ErrorCode.NONE
        assert await code_of(kit.produce(batch(timestamp=now_ms + 15_000))) == ErrorCode.NONE
        assert await code_of(kit.produce(bytes(build_batch([(-1, None, b"v")], BatchFacts())))) == ErrorCode.NONE

    run(story)


def test_offsets_and_epochs_are_the_leaders() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(3):
            await kit.produce(batch([b"a", b"b"]))
        stored = bytes((await kit.fetch()).records or b"")
        found = [(header.base_offset, header.partition_leader_epoch) for _, header in headers(stored)]
        assert found == [(0, 0), (2, 0), (4, 0)]

    run(story)


# Idempotence


def test_edge_19_a_duplicate_within_five_batches_is_a_success_with_its_old_offset() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for sequence in range(6):
            assert (await kit.produce(idempotent(sequence))).base_offset == sequence
        for sequence in range(1, 6):
            for acks in (1, -1):
                again = await kit.produce(idempotent(sequence), acks=acks)
                assert (again.error_code, again.base_offset, again.log_start_offset) == (0, sequence, 0)
        assert len(await kit.values()) == 6

    run(story)


def test_gaps_and_old_epochs_are_refused() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce(idempotent(0, epoch=1))) == ErrorCode.NONE
        assert await code_of(kit.produce(idempotent(2, epoch=1))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await code_of(kit.produce(idempotent(1, epoch=0))) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code_of(kit.produce(idempotent(1, epoch=1))) == ErrorCode.NONE
        assert await kit.values() == [b"0", b"1"]

    run(story)


def test_edge_18_the_first_batch_of_a_producer_that_comes_too_early_can_come_again() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce(idempotent(1))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code_of(kit.produce(idempotent(0))) == ErrorCode.NONE
        assert await code_of(kit.produce(idempotent(1))) == ErrorCode.NONE

    run(story)


def test_ten_requests_in_flight_are_written_and_answered_in_order() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        connection = await kit.connect()
        futures = [
            connection.send(produce_request({("t", 0): idempotent(sequence)}), PRODUCE_BY_NAME)
            for sequence in range(10)
        ]
        answers = await asyncio.gather(*futures)
        found = [answer.responses[0].partition_responses[0] for answer in answers]
        assert [(one.error_code, one.base_offset) for one in found] == [(0, offset) for offset in range(10)]

    run(story)


def test_edge_20_no_answer_of_a_produce_is_unknown_server_error() -> None:
    """Every byte of a batch changed, one at a time: always an answer, and never the one that makes clients give up."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        good = batch([b"abc"], keys=[b"k"])
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 0x55
            code = await code_of(kit.produce(bytes(bad)))
            assert code in (
                ErrorCode.NONE,
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
            ), (place, code)

    run(story)
