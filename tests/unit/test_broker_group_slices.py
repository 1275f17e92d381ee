"""Groups with very many members, offsets or bytes: no part of the work on them takes a long turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, GROUP, JOIN, LEAVE, MemberKit, commit_request, ready, stable_generation
from tidelog.broker.group.replies import in_slices, is_large
from tidelog.broker.group.shard import ANSWERS_AT_ONCE
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import ErrorCode
from tidelog.groups import Answer, Client, Write, offsets, subscriptions
from tidelog.groups import joining as joining_rules
from tidelog.groups.rebalance import joined
from tidelog.lab.broker import eventually
from tidelog.wire.frames import ResponseEncoding
from tidelog.wire.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.messages.groups import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
)

ONE = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
}


class _PerTurn:
    """Counts something within each turn of the loop."""

    def __init__(self) -> None:
        self.count = self.most = self.all = 0

    def add(self, amount: int = 1) -> None:
        if not self.count:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.count += amount
        self.all += amount
        self.most = max(self.most, self.count)

    def _next_turn(self) -> None:
        self.count = 0


class _Ticket:
    is_gone = False

    def __init__(self, number: int, given: list[int], turns: _PerTurn) -> None:
        self._number, self._given, self._turns = number, given, turns

    def give(self, message: Any) -> None:
        self._given.append(self._number)
        self._turns.add()


def join_request(member_id: str = "", metadata: bytes = b"") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def _join(kit: Kit, number: int, ticket: Any, metadata: bytes = b"") -> None:
    shard = kit.broker.groups.shards[0]
    client, now_ms = Client("reader", "/127.0.0.1"), kit.broker.groups.now_ms()
    shard.perform(shard.groups.join(join_request(metadata=metadata), 3, client, f"{number:05}", now_ms, ticket))


async def _completing(kit: Kit, members: int, metadata: bytes = b"") -> tuple[list[int], _PerTurn]:
    """A rebalance of so many members is complete. Who was answered, in this order, and how many in a turn."""
    given: list[int] = []
    turns = _PerTurn()
    for number in range(members):
        _join(kit, number, _Ticket(number, given, turns), metadata)
    await eventually(lambda: len(given) == members)
    return given, turns


def test_thousands_of_members_are_answered_some_in_each_turn() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        given, turns = await _completing(kit, 2_000)
        assert given == list(range(2_000))
        assert turns.most <= ANSWERS_AT_ONCE

    run(story, **ONE)


def test_records_do_not_wait_for_the_answers_before_them() -> None:
    """What comes later is then written behind them, whoever still waits for an answer."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        shard = kit.broker.groups.shards[0]
        given: list[int] = []
        turns = _PerTurn()
        end = kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset
        answers = [Answer(_Ticket(number, given, turns), HeartbeatResponse()) for number in range(5_000)]
        shard.perform([*answers, Write([(b"", None)], lambda error, now_ms: [])])
        while kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == end:
            assert len(given) < 5_000
            await asyncio.sleep(0)
        await eventually(lambda: len(given) == 5_000)
        assert given == list(range(5_000))

    run(story, **ONE)


def test_answers_of_a_rebalance_do_not_wait_for_the_slices_of_clients() -> None:
    """The sessions of the members go on meanwhile: behind very many requests they would be over before they hear."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        shard, lane = kit.broker.groups.shards[0], kit.broker.lane
        given: list[int] = []
        slices = [lane.next_turn() for _ in range(5_000)]
        shard.perform([Answer(_Ticket(number, given, _PerTurn()), HeartbeatResponse()) for number in range(2_000)])
        while len(given) < 2_000:
            await asyncio.sleep(0)
        assert sum(turn.done() for turn in slices) < 100

    run(story, **ONE)


def test_answers_that_still_wait_when_the_coordinator_moves_away_are_given() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        given: list[int] = []
        turns = _PerTurn()
        for number in range(1_000):
            _join(kit, number, _Ticket(number, given, turns))
        kit.partition(GROUP_OFFSETS_TOPIC).follow()
        await eventually(lambda: len(given) == 1_000)
        assert turns.most <= ANSWERS_AT_ONCE

    run(story, **ONE)


def test_a_leader_that_asks_again_gets_its_large_answer_in_slices_and_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise some bytes of requests would have very large answers made, all of them at once."""
    events: list[str] = []
    step = ResponseEncoding.step

    def counted_step(encoding: ResponseEncoding) -> list[Any] | None:
        parts = step(encoding)
        events.append("step" if parts is None else "encoded")
        return parts

    def counted_joined(*arguments: Any) -> Any:
        events.append("joined")
        return joined(*arguments)

    monkeypatch.setattr(ResponseEncoding, "step", counted_step)
    monkeypatch.setattr(joining_rules, "joined", counted_joined)

    async def story(kit: Kit) -> None:
        await ready(kit)
        await _completing(kit, 8_000)
        connection = await kit.connect()
        request = join_request("reader-00000")
        answers = await asyncio.gather(*(connection.send(request, 5) for _ in range(3)))
        connection.close()
        assert [len(answer.members) for answer in answers] == [8_000] * 3
        assert events == ["joined", "step", "encoded"] * 3

    run(story, **ONE)


def test_large_answers_that_are_asked_for_at_the_same_time_begin_one_in_a_turn() -> None:
    async def story(kit: Kit) -> None:
        turns = _PerTurn()
        message = JoinGroupResponse(members=[JoinGroupResponseMember(member_id="m", metadata=b"")] * 2_000)
        assert is_large(message)

        async def begin() -> None:
            assert await in_slices(kit.broker.lane, message) is message
            turns.add()

        await asyncio.gather(*(begin() for _ in range(20)))
        assert (turns.all, turns.most) == (20, 1)

    run(story, **ONE)


def test_a_join_that_is_parked_keeps_no_later_request_of_its_connection_waiting() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        members = [MemberKit(kit, f"m{number}") for number in range(2)]
        await asyncio.gather(*(member.live(lambda: len(stable_generation(members)) == 1) for member in members))
        follower = next(member for member in members if not member.is_leader)
        connection = await kit.connect()
        parked = connection.send(join_request(follower.id, b"new"), JOIN)
        leave = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=follower.id)])
        left = await connection.call(leave, LEAVE, timeout_ms=5_000)
        assert left.members[0].error_code == ErrorCode.NONE
        assert (await parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        connection.close()

    run(story, **ONE)


def test_very_many_groups_that_end_at_the_same_check_end_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _PerTurn()
    write_commits = offsets.write_commits

    def counted(*arguments: Any, **options: Any) -> None:
        turns.add()
        write_commits(*arguments, **options)

    monkeypatch.setattr(offsets, "write_commits", counted)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        groups, now_ms = kit.broker.groups.shards[0].groups, kit.broker.groups.now_ms()
        value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=now_ms, expire_timestamp=now_ms)
        for number in range(3_000):
            groups._create(f"group-{number}", now_ms).commits.put("t", 0, value)
        await eventually(lambda: not groups.ids())
        assert turns.all == 3_000
        assert turns.most <= 250
        answer = await kit.call(commit_request("later", {("t", 0): 1}), COMMIT)
        assert answer.topics[0].partitions[0].error_code == 0

    run(story, offsets_retention_check_interval_ms="1000", **ONE)


def test_what_a_large_group_reads_is_found_out_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _PerTurn()
    decode_from = subscriptions.decode_from

    def counted(*arguments: Any) -> Any:
        turns.add()
        return decode_from(*arguments)

    monkeypatch.setattr(subscriptions, "decode_from", counted)

    async def story(kit: Kit) -> None:
        await ready(kit)
        await _completing(kit, 2_000, b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff")
        assert turns.all == 0
        partitions = [OffsetDeleteRequestPartition(partition_index=0)]
        topics = [OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in ("t", "u")]
        answer = await kit.call(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        assert turns.all == 2_000
        assert turns.most <= 500

    run(story, **ONE)
