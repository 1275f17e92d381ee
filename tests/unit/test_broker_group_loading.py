"""Loading a partition of __consumer_offsets: bad records are skipped and counted, a failed load is tried again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.kits.brokerkit import FETCH, PRODUCE_BY_NAME, Kit, follower_request, produce_request, run
from tests.kits.groupkit import group_config
from tests.kits.memberkit import GROUP, MemberKit, ready
from tests.kits.metricskit import value
from tests.unit.test_broker_groups import ONE
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups import Groups, partition_of
from tidelog.groups.records import group_record, read_record
from tidelog.lab.broker import eventually
from tidelog.log.log import Log
from tidelog.net.calling import Connection
from tidelog.records.build import build_batch
from tidelog.records.header import HEADER_SIZE, Codec, read_header, seal
from tidelog.types import Buffer
from tidelog.wire.codec import encode
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata, OffsetCommitKey, OffsetCommitValue
from tidelog.wire.messages.groups import DescribeGroupsResponse, ListGroupsRequest
from tidelog.wire.stored import encode_key, encode_versioned

PARTITION = partition_of(GROUP, 5)
EPOCH_OF_FOLLOWER = 700
BAD_RECORDS = "tidelog_group_shard_bad_records_total"
FAILURES = "tidelog_group_shard_load_failures_total"


def _member(member_id: str, instance_id: str | None = None, **fields: Any) -> MemberMetadata:
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="h",
        rebalance_timeout=fields.pop("rebalance_timeout", 1),
        session_timeout=fields.pop("session_timeout", 10_000),
        subscription=fields.pop("subscription", b""),
        assignment=b"",
    )


def _group(*members: MemberMetadata, generation: int = 1, version: int = 3, group: str = GROUP) -> tuple[bytes, bytes]:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=generation,
        protocol="p",
        leader=members[0].member_id if members else None,
        current_state_timestamp=1,
        members=list(members),
    )
    return group_record(group, None)[0], encode_versioned(value, version)


def _offset(value: bytes) -> tuple[bytes, bytes]:
    return encode_key(OffsetCommitKey(group=GROUP, topic="t", partition=0)), value


BAD = {
    "a key of one byte": (b"\0", b"y"),
    "a key of a kind that does not exist": (b"\x7f\xff", b"y"),
    "a key of a negative kind": (b"\xff\xfe", b"y"),
    "a group's key that is cut off": (b"\0\2\xff\xff\xff", b"y"),
    "a group's key that is not UTF-8": (b"\0\2\0\1\xff", b"y"),
    "an offset's key that is not UTF-8": (b"\0\1\0\1\xff\0\1t\0\0\0\0", b"y"),
    "an empty value": _offset(b""),
    "half a version": _offset(b"\0"),
    "a negative version": _offset(b"\xff\xff" + bytes(30)),
    "a version above all known": _offset(
        encode_versioned(OffsetCommitValue(offset=1), 3).replace(b"\0\3", b"\0\x63", 1)
    ),
    "a value that is cut off": _offset(b"\0\1\0\0"),
    "metadata that is not UTF-8": _offset(b"\0\1" + bytes(8) + b"\0\1\xff" + bytes(16)),
    "metadata of 40,000 bytes": _offset(b"\0\4" + bytes(12) + b"\xc1\xb8\2" + b"m" * 40_000 + bytes(9)),
    "two billion members": (_group()[0], _group()[1][:-4] + b"\x7f\xff\xff\xff"),
    "two members of one instance id": _group(_member("a", "same"), _member("b", "same")),
    "two members of one id": _group(_member("a"), _member("a")),
    "a negative generation": _group(_member("a"), generation=-5),
    "a group's value of a version above all known": (_group()[0], b"\0\x63" + _group()[1][2:]),
}
LEGAL_BUT_ODD = {
    "a subscription that is no subscription": _group(_member("a", subscription=b"\xff" * 9)),
    "a subscription that announces two billion topics": _group(_member("a", subscription=b"\0\1\x7f\xff\xff\xff")),
    "the last generation that there is": _group(_member("a"), generation=2**31 - 1),
    "time-outs that are negative": _group(_member("a", session_timeout=-(2**31), rebalance_timeout=-(2**31))),
    "time-outs of a month": _group(_member("a", session_timeout=2**31 - 1, rebalance_timeout=2**31 - 1)),
    "numbers as large as they can be": _offset(
        encode_versioned(OffsetCommitValue(offset=2**63 - 1, leader_epoch=2**31 - 1, commit_timestamp=2**63 - 1), 3)
    ),
}


async def write_as_admin(kit: Kit, records: Buffer, index: int = PARTITION) -> None:
    """By this name Kafka lets any client write to internal topics."""
    tool = await Connection.open(kit.host_name, kit.port, client_id="__admin_client")
    answer = await tool.call(produce_request({(GROUP_OFFSETS_TOPIC, index): records}), PRODUCE_BY_NAME)
    assert answer.responses[0].partition_responses[0].error_code == 0
    tool.close()


def _records(*records: tuple[bytes, bytes | None], codec: Codec = Codec.NONE) -> Buffer:
    return build_batch([(1_700_000_000_000, key, value) for key, value in records], codec=codec)


async def _listed(kit: Kit) -> tuple[ErrorCode, list[str]]:
    answer = await kit.call(ListGroupsRequest(), 4)
    return ErrorCode(answer.error_code), sorted(group.group_id for group in answer.groups)


def _counted(kit: Kit, name: str) -> float:
    return value(kit.broker.metrics, name)


async def _restarted(kit: Kit) -> None:
    await kit.restart()
    await ready(kit)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_edge_38_a_bad_record_is_skipped(bad: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        assert await MemberKit(kit).commit(7) is ErrorCode.NONE
        await write_as_admin(kit, _records(bad))
        await write_as_admin(kit, _records(bad, bad))
        with caplog.at_level(logging.WARNING, "tidelog.broker.group.shard"):
            await _restarted(kit)
        assert await MemberKit(kit).committed() == 7, "what was committed before is still known"
        assert _counted(kit, BAD_RECORDS) == 3
        assert _counted(kit, FAILURES) == 0
        lines = [record.getMessage() for record in caplog.records if "are skipped" in record.getMessage()]
        assert len(lines) == 1
        assert "3 records" in lines[0]
        assert await MemberKit(kit).join() is ErrorCode.NONE
        code, groups = await _listed(kit)
        assert (code, groups) == (ErrorCode.NONE, [GROUP])

    run(story, **ONE)


@pytest.mark.parametrize("odd", LEGAL_BUT_ODD.values(), ids=LEGAL_BUT_ODD)
def test_edge_38_odd_records_do_not_stop_the_group_or_the_others(odd: tuple[bytes, bytes]) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        await write_as_admin(kit, _records(odd))
        await _restarted(kit)
        assert _counted(kit, BAD_RECORDS) == 0
        assert (await _listed(kit))[0] is ErrorCode.NONE
        await asyncio.sleep(20)  # the member that the record tells of was not heard of, and is gone
        (neighbour,) = (f"n{number}" for number in range(5) if partition_of(f"n{number}", 5) == PARTITION)
        for group in (GROUP, neighbour):
            member = MemberKit(kit, group=group)
            code = await member.join()
            if code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                assert (group, odd) == (GROUP, LEGAL_BUT_ODD["time-outs of a month"])
                continue
            assert code is ErrorCode.NONE
            assert 0 < member.generation < 100
            await asyncio.sleep(60)
            assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID, "time still passes for this partition"

    run(story, **ONE)


def test_edge_38_a_malformed_batch_is_skipped() -> None:
    """Its CRC is right, its records are noise: a leader that does not compact the topic takes such a batch."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        assert await MemberKit(kit).commit(7) is ErrorCode.NONE
        for codec in (Codec.NONE, Codec.ZSTD):
            noise = bytearray(_records((b"k", b"v" * 50), (b"k", b"w" * 50), codec=codec))
            noise[HEADER_SIZE : HEADER_SIZE + 10] = b"\xff" * 10
            seal(noise)
            kit.partition(GROUP_OFFSETS_TOPIC, PARTITION).append(noise, read_header(noise))
        await _restarted(kit)
        assert await MemberKit(kit).committed() == 7
        assert _counted(kit, BAD_RECORDS) == 4
        assert await MemberKit(kit).join() is ErrorCode.NONE

    run(story, **ONE)


def test_edge_38_a_small_batch_of_many_records_is_loaded_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes may be hundreds of thousands of records: the broker serves others while it reads them."""
    sizes: list[int] = []

    async def story(kit: Kit) -> None:
        await ready(kit)
        records = [(b"\0\1%06d" % (number % 7), b"v") for number in range(30_000)]
        await write_as_admin(kit, _records(*records, codec=Codec.ZSTD))
        groups_type = type(kit.broker.groups.shards[PARTITION].groups)
        replay = groups_type.replay

        def counting(self: Any, records: Any) -> Any:
            sizes.append(len(records))
            return replay(self, records)

        monkeypatch.setattr(groups_type, "replay", counting)
        await _restarted(kit)
        assert sum(sizes) >= 30_000
        assert max(sizes) <= 2_000
        assert _counted(kit, BAD_RECORDS) >= 30_000

    run(story, **ONE)


def test_edge_38_a_load_that_fails_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason; meanwhile the groups of the other partitions are listed, and this one has no coordinator."""
    broken, tries = [True], []

    def breaking(read: Callable[..., Any]) -> Callable[..., Any]:
        async def bytes_of(log: Log, region: Any) -> Any:
            if log.partition == (GROUP_OFFSETS_TOPIC, PARTITION) and region.size and broken[0]:
                tries.append(asyncio.get_running_loop().time())
                raise RuntimeError("a reason that was not foreseen")
            return await read(log, region)

        return bytes_of

    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        other = next(f"g{number}" for number in range(99) if partition_of(f"g{number}", 5) != PARTITION)
        for group in (GROUP, other):
            assert await MemberKit(kit, group=group).commit(7) is ErrorCode.NONE
        monkeypatch.setattr(Log, "bytes_of", breaking(Log.bytes_of))
        await kit.restart()
        shards = kit.broker.groups.shards
        await eventually(lambda: len(shards) == 5 and len(tries) == 5)
        assert await MemberKit(kit).committed() is ErrorCode.NOT_COORDINATOR
        assert await MemberKit(kit, group=other).committed() == 7
        assert await _listed(kit) == (ErrorCode.NONE, [other])
        rests = [round(later - earlier, 1) for earlier, later in pairwise(tries)]
        assert rests == [0.1, 0.2, 0.4, 0.8]
        await asyncio.sleep(300)
        assert 10 < len(tries) < 25, "it rests longer and longer, up to half a minute"
        assert _counted(kit, FAILURES) == len(tries)
        assert "a reason that was not foreseen" in caplog.text
        broken[0] = False
        await eventually(lambda: shards[PARTITION].is_active, 40)
        assert await MemberKit(kit).committed() == 7
        assert await _listed(kit) == (ErrorCode.NONE, sorted([GROUP, other]))

    run(story, **ONE)


def test_a_coordinator_that_no_follower_follows_answers_no_reader() -> None:
    """The request that made it leader came late, and another one leads by now: its log is empty, and all of an empty
    log is committed. What members would be told is that the group has no offsets (seed 8474)."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        member = MemberKit(kit)
        name, index = GROUP_OFFSETS_TOPIC, PARTITION
        assert await kit.lead_and_isr(name, index, leader=2, isr=[1, 2]) == 0
        assert await kit.lead_and_isr(name, index, isr=[1, 2]) == 0
        kit.registered(2, EPOCH_OF_FOLLOWER)
        await asyncio.sleep(5)
        assert await member.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        partition = kit.partition(name, index)
        ask = follower_request(
            partition.topic_id,
            {index: partition.log.log_end_offset},
            follower=2,
            broker_epoch=EPOCH_OF_FOLLOWER,
            current_leader_epoch=partition.leader_epoch,
        )
        await kit.call(ask, FETCH)
        await eventually(lambda: kit.broker.groups.shards[index].is_active)
        assert await member.committed() == -1

    run(story, **ONE)


def test_a_coordinator_that_waits_for_its_followers_between_two_terms_goes_on_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both requests that made it leader came late. The second term begins while its log is being flushed."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        member = MemberKit(kit)
        name, index = GROUP_OFFSETS_TOPIC, PARTITION
        kit.registered(2, EPOCH_OF_FOLLOWER)
        assert await kit.lead_and_isr(name, index, leader=2, isr=[1, 2]) == 0
        assert await kit.lead_and_isr(name, index, isr=[1, 2]) == 0

        async def slow(log: Log) -> None:
            await asyncio.sleep(1)

        monkeypatch.setattr(Log, "flush_if_due", slow)
        assert await kit.lead_and_isr(name, index, isr=[1, 2]) == 0
        await asyncio.sleep(5)
        assert await member.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(story, **ONE)


def test_while_a_partition_loads_the_groups_of_the_others_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        other = next(f"g{number}" for number in range(99) if partition_of(f"g{number}", 5) != PARTITION)
        for group in (GROUP, other):
            assert await MemberKit(kit, group=group).commit(7) is ErrorCode.NONE
        may_go_on = asyncio.Event()
        read = Log.bytes_of

        async def slow(log: Log, region: Any) -> Any:
            if log.partition == (GROUP_OFFSETS_TOPIC, PARTITION):
                await may_go_on.wait()
            return await read(log, region)

        monkeypatch.setattr(Log, "bytes_of", slow)
        await kit.restart()
        await ready(kit, other)
        assert await _listed(kit) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [other])
        assert await MemberKit(kit).committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        may_go_on.set()
        await ready(kit)
        assert await _listed(kit) == (ErrorCode.NONE, sorted([GROUP, other]))

    run(story, **ONE)


def test_what_was_committed_for_a_topic_that_is_deleted_while_the_partition_loads_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        await ready(kit)
        assert await MemberKit(kit).commit(7) is ErrorCode.NONE
        may_go_on = asyncio.Event()
        read = Log.bytes_of

        async def slow(log: Log, region: Any) -> Any:
            if log.partition == (GROUP_OFFSETS_TOPIC, PARTITION):
                await may_go_on.wait()
            return await read(log, region)

        monkeypatch.setattr(Log, "bytes_of", slow)
        await kit.restart()
        await eventually(lambda: PARTITION in kit.broker.groups.shards)
        await kit.delete_topic("t")
        await kit.create_topic("t")
        may_go_on.set()
        await ready(kit)
        assert await MemberKit(kit).committed() == -1
        shard = kit.broker.groups.shards[PARTITION]
        await eventually(lambda: not shard.has_deleted_topics)
        await kit.restart()
        await ready(kit)
        assert await MemberKit(kit).committed() == -1, "the log knows of it"

    run(story, **ONE)


def test_edge_38_no_bytes_make_the_reader_of_records_fail_in_another_way() -> None:
    """Every prefix and every changed byte of good records is read, passed over, or one of our errors."""
    chance = random.Random(1)
    good = [
        _group(_member("a", "i", subscription=b"\0\1\0\0\0\1\0\1t\0\0\0\0"), _member("b"), version=version)
        for version in range(3, 5)
    ] + [_offset(encode_versioned(OffsetCommitValue(offset=5, metadata="m"), version)) for version in range(5)]
    for _ in range(20_000):
        key, value = (bytearray(part) for part in chance.choice(good))
        for part in (key, value):
            for _ in range(chance.randrange(4)):
                part[chance.randrange(len(part))] = chance.choice((0, 1, 2, 127, 128, 255, chance.randrange(256)))
        value = value[: chance.randrange(len(value) + 1)] if chance.random() < 0.2 else value
        try:
            read_record(bytes(key), bytes(value))
        except TidelogError:
            continue
        groups = Groups(group_config())
        assert groups.replay([(bytes(key), bytes(value))]).count == 0
        groups.loaded(0)
        groups.expire(1 << 40)
        described = [groups.describe(listed.group_id, 5) for listed in groups.list_groups()]
        encode(DescribeGroupsResponse(groups=described), 5)
