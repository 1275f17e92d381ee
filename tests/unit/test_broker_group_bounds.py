"""What groups keep on one broker, across its partitions of the offsets topic: who makes room, and who is refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, MemberKit, commit_request, ready
from tidelog.errors import ErrorCode
from tidelog.groups import partition_of
from tidelog.net.calling import Connection
from tidelog.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)

SETTINGS = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "5",
    "group_initial_rebalance_delay_ms": "0",
}
NOT_NOW = ErrorCode.COORDINATOR_NOT_AVAILABLE


def join_request(group: str, member_id: str = "", metadata: bytes = b"") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def gauge(kit: Kit, name: str) -> float:
    line = next(line for line in kit.broker.metrics.text().splitlines() if line.startswith(f"tidelog_group_{name} "))
    return float(line.split()[1])


def test_the_oldest_pending_ids_of_a_broker_make_room_whatever_partition_they_are_in() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        groups = [f"g{number}" for number in range(20)]
        assert len({partition_of(group, 5) for group in groups}) == 5
        ids = []
        for group in groups:
            answer = await kit.call(join_request(group), 9)
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            ids.append(answer.member_id)
        assert gauge(kit, "pending_member_ids") == 3
        assert gauge(kit, "evicted_pending_member_ids_total") == 17
        listed = [group.group_id for group in (await kit.call(ListGroupsRequest(), 5)).groups]
        assert sorted(listed) == sorted(groups[-3:]), "groups that were only an id are gone with it"
        codes = [
            (await kit.call(join_request(group, member_id), 9)).error_code
            for group, member_id in zip(groups, ids, strict=True)
        ]
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID] * 17 + [0] * 3

    run(story, tidelog_broker_pending_members_max="3", **SETTINGS)


async def _abandoned_members(kit: Kit, count: int) -> None:
    """They have joined with much metadata and a long session, and their connections are closed."""
    for number in range(count):
        connection = await Connection.open(kit.host_name, kit.port, client_id="stranger")
        request = join_request(f"strange-{number}", metadata=b"m" * 10_000)
        assert (await connection.call(request, 3, timeout_ms=5_000)).error_code == 0
        connection.close()


def test_members_whose_client_left_keep_others_out_for_a_minute_at_most(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story(kit: Kit) -> None:
        await ready(kit)
        loop = asyncio.get_running_loop()
        honest = await kit.call(join_request("honest"), 3)
        await _abandoned_members(kit, 9)
        began = loop.time()
        member = MemberKit(kit)
        big = join_request("big", metadata=b"m" * 10_000)
        while (code := (await kit.call(big, 3)).error_code) == NOT_NOW:
            assert gauge(kit, "member_bytes") <= 105_000
            alive = HeartbeatRequest(group_id="honest", generation_id=1, member_id=honest.member_id)
            assert (await kit.call(alive, 4)).error_code == 0
            await asyncio.sleep(1)
        assert code == 0
        assert 55 <= loop.time() - began <= 65
        assert await member.join() is ErrorCode.NONE, "who comes with little finds room as well"
        assert (await kit.call(alive, 4)).error_code == 0, "who is heard of stays"
        assert gauge(kit, "member_bytes") < 30_000
        named = [line for line in caplog.messages if "tidelog.broker.members.max.bytes" in line]
        assert "=105000 is reached" in named[0]
        assert len(named) == 3, "not one for each refusal"

    run(story, tidelog_broker_members_max_bytes="105000", **SETTINGS)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_member_that_waits_for_its_answer_is_not_silent_while_it_can_hear_it(is_closed: bool) -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        holder = await kit.call(join_request("g"), 3)
        connection = await Connection.open(kit.host_name, kit.port, client_id="waits")
        waiting: Any = asyncio.ensure_future(
            connection.call(join_request("g", metadata=b"m" * 10_000), 3, timeout_ms=1_000_000)
        )
        alive = HeartbeatRequest(group_id="g", generation_id=1, member_id=holder.member_id)
        groups = kit.broker.groups.shard_of("g").groups
        while (await kit.call(alive, 4)).error_code == 0:
            await asyncio.sleep(0.1)
        if is_closed:
            connection.close()
        for _ in range(70):
            await kit.call(alive, 4)
            assert (await kit.call(join_request("other", metadata=b"m" * 10_000), 3)).error_code in (0, NOT_NOW)
            await asyncio.sleep(1)
        assert len(groups.describe("g", 5).members) == (1 if is_closed else 2)
        connection.close()
        await asyncio.gather(waiting, return_exceptions=True)

    run(story, tidelog_broker_members_max_bytes="15000", **SETTINGS)


def test_a_bound_that_loses_nothing_refuses_and_names_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    """Groups that only hold offsets are not forgotten for others."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        await kit.create_topic("t")
        codes = []
        for number in range(6):
            answer = await kit.call(commit_request(f"g{number}", {("t", 0): number}), COMMIT)
            codes.append(answer.topics[0].partitions[0].error_code)
        assert codes == [0, 0, 0, NOT_NOW, NOT_NOW, NOT_NOW]
        assert [await MemberKit(kit, group=f"g{number}").committed() for number in range(4)] == [0, 1, 2, -1]
        (line,) = [line for line in caplog.messages if "tidelog.broker.groups.max" in line]
        assert "tidelog.broker.groups.max=3 is reached" in line

    run(story, tidelog_broker_groups_max="3", **SETTINGS)
