"""Fetch without sessions: what may be read, how much of it, and how long it waits (S1.3, S2.10)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import FETCH, FETCH_BY_NAME, Kit, code_of, fetch_request, fetched, run, values_of, within
from tests.kits.logkit import batch, marker, whole_batches_end
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.producers import AppendOrigin
from tidelog.net.calling import Connection
from tidelog.wire import ZERO_UUID


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("version", range(4, FETCH_BY_NAME + 1))
def test_every_version_by_name(version: int, cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"]))
        await kit.produce(batch([b"c"]))
        answer = await kit.fetch(version=version)
        assert values_of(answer) == [b"a", b"b", b"c"]
        assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        middle = await kit.fetch(1, version=version)
        assert values_of(middle) == [b"a", b"b", b"c"], "whole batches"
        assert values_of(await kit.fetch(3, version=version)) == []

    run(story, cold=cold)


@pytest.mark.parametrize("version", range(13, FETCH + 1))
def test_every_version_by_id(version: int) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.produce()
        answer = await kit.call(fetch_request({(topic_id, 0): 0, (b"?" * 16, 0): 0, (ZERO_UUID, 0): 0}), version)
        found = fetched(answer)
        assert values_of(found[topic_id, 0]) == [b"value"]
        for unknown in (b"?" * 16, ZERO_UUID):
            assert found[unknown, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(story)


def test_what_is_not_here() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.fetch(topic="nobody")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code_of(kit.fetch(index=1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await kit.delete_topic()
        assert await code_of(kit.fetch()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story)


def test_an_id_of_an_earlier_topic_of_that_name() -> None:
    async def story(kit: Kit) -> None:
        old = await kit.create_topic()
        await kit.delete_topic()
        await kit.create_topic()
        answer = await kit.call(fetch_request({(old, 0): 0}), FETCH)
        assert fetched(answer)[old, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(story)


@pytest.mark.parametrize("cold", [False, True])
def test_offsets_out_of_range(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(5):
            await kit.produce()
        kit.partition().log.log_start_offset = 2
        for offset in (-1, 0, 1, 6, 1000):
            answer = await kit.fetch(offset)
            assert (ErrorCode(answer.error_code), answer.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert values_of(await kit.fetch(2)) == [b"value"] * 3
        assert values_of(await kit.fetch(5)) == []

    run(story, cold=cold)


def test_between_hw_and_the_end_there_is_nothing_yet() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"committed"]))
        assert await kit.lead_and_isr(isr=[1, 2]) == 0
        await kit.produce(batch([b"not yet"]), acks=1)
        for offset, expected in ((0, [b"committed"]), (1, []), (2, [])):
            answer = await kit.fetch(offset)
            assert (answer.error_code, answer.high_watermark, values_of(answer)) == (0, 1, expected)
        assert await code_of(kit.fetch(3)) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "the controller does not know this ISR"
        assert await kit.lead_and_isr(isr=[1]) == 0
        assert await code_of(kit.fetch(3)) == ErrorCode.OFFSET_OUT_OF_RANGE, "no other broker can have been elected"

    run(story)


# Epochs


def test_leader_epochs() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(leader_epoch=5) == 0
        for epoch, code in (
            (4, ErrorCode.FENCED_LEADER_EPOCH),
            (5, ErrorCode.NONE),
            (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-1, ErrorCode.NONE),
        ):
            assert await code_of(kit.fetch(current_leader_epoch=epoch)) == code
        assert await code_of(kit.fetch(current_leader_epoch=4, version=8)) == ErrorCode.NONE, "it cannot say it"

    run(story)


def test_diverging_epochs() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"]))
        assert await kit.lead_and_isr(leader_epoch=3) == 0
        await kit.produce(batch([b"c"]))
        fine = await kit.fetch(3, last_fetched_epoch=3)
        assert (fine.error_code, fine.diverging_epoch.epoch) == (0, -1)
        past = await kit.fetch(3, last_fetched_epoch=0)
        assert (past.diverging_epoch.epoch, past.diverging_epoch.end_offset) == (0, 2)
        unknown = await kit.fetch(3, last_fetched_epoch=2)
        assert (unknown.diverging_epoch.epoch, unknown.diverging_epoch.end_offset) == (0, 2)
        assert not unknown.records

    run(story)


def test_a_diverging_epoch_is_answered_at_once() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"]))
        assert await kit.lead_and_isr(leader_epoch=3) == 0
        async with within(0.1):
            answer = await kit.fetch(2, last_fetched_epoch=1, max_wait_ms=5000)
        assert answer.diverging_epoch.epoch == 0

    run(story)


def test_not_leader_names_the_leader_from_version_16_on() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        for version in (15, 16, FETCH):
            answer = await kit.call(fetch_request({(topic_id, 0): 0}), version)
            refused = fetched(answer)[topic_id, 0]
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            hint = (refused.current_leader.leader_id, [(one.node_id, one.port) for one in answer.node_endpoints])
            assert hint == ((1, [(1, 9092)]) if version >= 16 else (-1, []))

    run(story)


# How much


@pytest.mark.parametrize("cold", [False, True])
def test_max_bytes_over_partitions(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        one = batch([b"x" * 1000])
        for index in range(3):
            for _ in range(3):
                await kit.produce(one, index=index)
        wanted = {("t", index): 0 for index in range(3)}
        sizes = [
            len(answer.records or b"")
            for answer in fetched(await kit.call(fetch_request(wanted, max_bytes=len(one) * 4), FETCH_BY_NAME)).values()
        ]
        assert sizes == [3 * len(one), len(one), 0]
        small = fetched(await kit.call(fetch_request(wanted, max_bytes=10), FETCH_BY_NAME))
        assert [len(answer.records or b"") for answer in small.values()] == [len(one), 0, 0], "the first is taken whole"
        limited = fetch_request(wanted, partition_max_bytes=10)
        found = [len(answer.records or b"") for answer in fetched(await kit.call(limited, FETCH_BY_NAME)).values()]
        assert found == [len(one), 0, 0]
        half = await kit.fetch(partition_max_bytes=len(one) + len(one) // 2)
        assert len(half.records or b"") in (len(one), len(one) + len(one) // 2)
        assert whole_batches_end(bytes(half.records or b"")) == 1

    run(story, cold=cold)


def test_fetch_max_bytes_of_the_broker() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(4):
            await kit.produce(batch([b"x" * 1000]))
        answer = await kit.fetch()
        assert len(answer.records or b"") <= 2500

    run(story, fetch_max_bytes="2500")


# How long


def test_a_long_poll_is_woken_by_a_produce() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        reader = await kit.connect()
        waiting = reader.send(fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=5000), FETCH_BY_NAME)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        async with within(0.1):
            await kit.produce(index=1)
            found = fetched(await waiting)
        assert values_of(found["t", 1]) == [b"value"]
        assert values_of(found["t", 0]) == []
        assert not kit.partition("t", 0).watchers
        assert not kit.partition("t", 1).watchers

    run(story)


def test_a_long_poll_waits_for_min_bytes_and_no_longer_than_max_wait() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = await kit.connect()
        one = batch([b"x" * 100])
        waiting = reader.send(fetch_request({("t", 0): 0}, max_wait_ms=5000, min_bytes=len(one) * 3), FETCH_BY_NAME)
        for count in range(3):
            assert not waiting.done(), count
            await kit.produce(one)
        async with within(0.1):
            assert len(values_of(fetched(await waiting)["t", 0])) == 3
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await kit.fetch(3, max_wait_ms=500)
        assert values_of(answer) == []
        assert 0.5 <= loop.time() - began < 0.6

    run(story)


def test_min_bytes_above_max_bytes_does_not_wait_in_vain() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"x" * 1000]))
        async with within(0.1):
            answer = await kit.fetch(min_bytes=10_000, max_bytes=1000, max_wait_ms=5000)
        assert answer.records

    run(story)


def test_what_has_no_room_counts_for_min_bytes() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        await kit.produce(batch([b"x" * 100]), index=0)
        await kit.produce(batch([b"x" * 1000]), index=1)
        request = fetch_request({("t", 0): 0, ("t", 1): 0}, min_bytes=900, max_bytes=1000, max_wait_ms=5000)
        async with within(0.1):
            found = fetched(await kit.call(request, FETCH_BY_NAME))
        assert [len(values_of(one)) for one in found.values()] == [1, 0]

    run(story)


def test_the_end_of_a_segment_is_not_the_end_of_what_there_is() -> None:
    """A reader that wants much is not kept waiting where one segment ends and the next has more."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(segment_bytes="1048576")
        one = batch([b"x" * 1000])
        await kit.produce(one)
        kit.partition().log.roll()
        for _ in range(20):
            await kit.produce(one)
        async with within(0.1):
            answer = await kit.fetch(min_bytes=10_000, max_wait_ms=5000)
        assert answer.records

    run(story)


def test_an_error_is_answered_at_once() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        async with within(0.1):
            request = fetch_request({("t", 0): 0, ("nobody", 0): 0}, max_wait_ms=5000)
            assert len(fetched(await kit.call(request, FETCH_BY_NAME))) == 2

    run(story)


@pytest.mark.parametrize("end", ["leader", "delete", "offline"])
def test_a_long_poll_hears_of_the_end_at_once(end: str) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.create_topic("other", flush_messages="1")
        reader = await kit.connect()
        waiting = reader.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), FETCH_BY_NAME)
        await eventually(lambda: kit.partition().watchers)
        async with within(1.0):
            if end == "leader":
                assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
            elif end == "delete":
                await kit.delete_topic()
            else:
                kit.host.disk.fail_next("sync", count=None)
                await kit.produce(topic="other")
            code = fetched(await waiting)["t", 0].error_code
        assert (
            code
            == {
                "leader": ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "delete": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "offline": ErrorCode.KAFKA_STORAGE_ERROR,
            }[end]
        )

    run(story)


def test_a_reader_that_leaves_is_forgotten() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(3):
            reader = await kit.connect()
            reader.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), FETCH_BY_NAME).cancel()
            await eventually(lambda: kit.partition().watchers)
            reader.close()
            await eventually(lambda: not kit.partition().watchers)

    run(story)


@pytest.mark.parametrize("cold", [False, True])
def test_many_readers_are_woken_by_one_produce(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        readers: list[Connection] = [await kit.connect() for _ in range(20)]
        waiting = [one.send(fetch_request({("t", 0): 0}, max_wait_ms=5000), FETCH_BY_NAME) for one in readers]
        await eventually(lambda: len(kit.partition().watchers) == 20)
        async with within(1.0):
            await kit.produce()
            for answer in await asyncio.gather(*waiting):
                assert values_of(fetched(answer)["t", 0]) == [b"value"]

    run(story, cold=cold)


# read_committed


@pytest.mark.parametrize("cold", [False, True])
def test_read_committed(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        log = kit.partition().log

        def write(data: bytes, origin: AppendOrigin = AppendOrigin.COORDINATOR) -> None:
            log.append_as_leader(data, 0, origin=origin)
            leader = kit.partition().leader
            assert leader is not None
            leader.appended(log.log_end_offset)
            log.high_watermark = log.log_end_offset

        facts = {"producer_epoch": 0, "transactional": True}
        await kit.produce(batch([b"plain"]))
        write(batch([b"aborted"], producer_id=1, base_sequence=0, **facts))
        write(marker(1, abort=True))
        write(batch([b"open"], producer_id=2, base_sequence=0, **facts))
        everything = await kit.fetch()
        assert values_of(everything) == [b"plain", b"aborted", b"open"]
        assert everything.aborted_transactions is None
        committed = await kit.fetch(isolation_level=1)
        assert values_of(committed) == [b"plain", b"aborted"]
        assert (committed.high_watermark, committed.last_stable_offset) == (4, 3)
        aborted = [(one.producer_id, one.first_offset) for one in committed.aborted_transactions or ()]
        assert aborted == [(1, 1)]
        async with within(0.6):
            assert values_of(await kit.fetch(3, isolation_level=1, max_wait_ms=500)) == []
        write(marker(2, abort=False))
        assert values_of(await kit.fetch(3, isolation_level=1)) == [b"open"]

    run(story, cold=cold)


# What else may come


def test_zstd_topics_need_version_10() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(compression_type="zstd")
        await kit.produce(batch([b"x" * 100]), version=3)
        assert await code_of(kit.fetch(version=9)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert values_of(await kit.fetch(version=10)) == [b"x" * 100]

    run(story)


def test_a_fetch_of_nothing() -> None:
    async def story(kit: Kit) -> None:
        async with within(0.1):
            answer = await kit.call(fetch_request({}, max_wait_ms=5000), FETCH)
        assert (answer.error_code, answer.responses) == (0, [])

    run(story)


def test_a_device_that_cannot_be_read() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        await kit.restart()
        await kit.leads("t")
        kit.host.disk.fail_next("read", count=None)
        assert await code_of(kit.fetch()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert kit.broker.failed.done()

    run(story, cold=True)
