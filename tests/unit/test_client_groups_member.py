"""A member of a group on the simulated loop: what makes it join again, what it tells its reader, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kits.fake_broker import CLOSE
from tests.kits.fake_groups import (
    COMMIT,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    FakeGroups,
    committed,
    shares_of,
    simulate_groups,
)
from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import encode_assignment
from tidelog.client.errors import BrokerError
from tidelog.client.group_offsets import CommittedOffset
from tidelog.client.membership import Assignment, Member
from tidelog.client.seat import MemberSettings
from tidelog.errors import ErrorCode
from tidelog.groups.assignors import COOPERATIVE_STICKY, RANGE, STICKY
from tidelog.types import TopicPartition
from tidelog.wire.messages.groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

ORDERS = tuple(TopicPartition("orders", number) for number in range(3))
BEAT_S = MemberSettings().heartbeat_interval_ms / 1000


class Heard:
    """What a member told its listeners, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def listeners(self) -> dict[str, Any]:
        return {f"on_{what}": self._listener(what) for what in ("assigned", "revoked", "lost")}

    def _listener(self, what: str) -> Callable[[tuple[TopicPartition, ...]], Awaitable[None]]:
        async def note(partitions: tuple[TopicPartition, ...]) -> None:
            self.events.append((what, len(partitions)))

        return note


def beat(code: ErrorCode) -> Callable[[Any], HeartbeatResponse]:
    return lambda request: HeartbeatResponse(error_code=code)


def refused(code: ErrorCode) -> Callable[[Any], JoinGroupResponse]:
    return lambda request: JoinGroupResponse(error_code=code)


def test_joined_kept_by_heartbeats_and_left() -> None:
    heard = Heard()

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders", "gone"], **heard.listeners()) as member:
            assert member.assignment == Assignment(1, ORDERS)
            assert await member.next_assignment() == member.assignment
            assert heard.events == [("assigned", 3)]
            await asyncio.sleep(10 * BEAT_S)
            assert len(fake.brokers[1].of_key(HEARTBEAT)) in (9, 10)
            await member.commit({ORDERS[0]: 5})
            assert await member.committed(ORDERS) == {ORDERS[0]: CommittedOffset(5)}
        (left,) = fake.brokers[1].of_key(LEAVE)
        assert [one.member_id for one in left.members] == ["member-1"]

    fake = simulate_groups(story)
    assert heard.events == [("assigned", 3), ("revoked", 3)]
    (sync,) = fake.brokers[1].of_key(SYNC)
    assert shares_of(sync) == {"member-1": ["orders-0", "orders-1", "orders-2"]}
    first, second = fake.brokers[1].of_key(JOIN)
    assert (first.member_id, second.member_id) == ("", "member-1")


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
def test_joining_is_tried_again(code: ErrorCode) -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.brokers[1].script[JOIN] = [refused(code), CLOSE, refused(code)]
        fake.brokers[1].script[SYNC] = [CLOSE, lambda request: SyncGroupResponse(error_code=code)]
        async with Member(cluster, "g", ["orders"]) as member:
            assert member.assignment.partitions == ORDERS

    simulate_groups(story)


def test_a_coordinator_that_moved_is_found() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders"]) as member:
            fake.coordinators["g"] = 2
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.NOT_COORDINATOR)]
            await member.commit({ORDERS[0]: 5})  # broker 1 refuses it too
            await asyncio.sleep(2 * BEAT_S)
            assert fake.brokers[2].of_key(HEARTBEAT)
            assert member.assignment.generation == 1
        assert fake.brokers[2].of_key(LEAVE)

    assert simulate_groups(story, brokers=2).committed == {ORDERS[0]: 5}


@pytest.mark.parametrize("mishap", [CLOSE, beat(ErrorCode.COORDINATOR_NOT_AVAILABLE)])
def test_a_heartbeat_that_fails_in_passing_changes_nothing(mishap: object) -> None:
    heard = Heard()

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.brokers[1].script[HEARTBEAT] = [mishap, mishap]
        async with Member(cluster, "g", ["orders"], **heard.listeners()) as member:
            await asyncio.sleep(3 * BEAT_S)
            assert len(fake.brokers[1].of_key(HEARTBEAT)) >= 4
            assert member.assignment.generation == 1
            assert heard.events == [("assigned", 3)]

    simulate_groups(story)


def test_a_rebalance_revokes_first_and_heartbeats_go_on_meanwhile() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        revoking = asyncio.Event()

        async def slowly(partitions: tuple[TopicPartition, ...]) -> None:
            revoking.set()
            assert member.assignment.partitions == ORDERS
            await member.commit({ORDERS[0]: 9})
            before = len(fake.brokers[1].of_key(HEARTBEAT))
            await asyncio.sleep(5 * BEAT_S)
            assert len(fake.brokers[1].of_key(HEARTBEAT)) >= before + 4

        member = Member(cluster, "g", ["orders"], on_revoked=slowly)
        async with member:
            assert (await member.next_assignment()).generation == 1
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS)] * 4
            await revoking.wait()
            assert await member.next_assignment() == Assignment(1)
            assert await member.next_assignment() == Assignment(2, ORDERS)
            assert len(fake.brokers[1].of_key(JOIN)) == 3

    assert simulate_groups(story).committed == {ORDERS[0]: 9}


def test_a_cooperative_member_keeps_what_it_has_while_it_joins() -> None:
    heard = Heard()

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders"], assignors=[COOPERATIVE_STICKY], **heard.listeners()) as member:
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS)]
            fake.leaders[TopicPartition("orders", 3)] = 1
            while member.assignment.generation == 1:
                assert member.assignment.partitions == ORDERS
                await asyncio.sleep(0.1)
            assert len(member.assignment.partitions) == 4

    simulate_groups(story)
    assert heard.events == [("assigned", 3), ("assigned", 1), ("revoked", 4)]


def test_an_eager_member_that_could_cooperate_owns_nothing_while_it_joins() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        assignors = [COOPERATIVE_STICKY, STICKY, RANGE]
        async with Member(cluster, "g", ["orders"], assignors=assignors) as member:
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS)]
            while member.assignment != Assignment(2, ORDERS):
                await asyncio.sleep(0.1)
        names = [protocol.name for protocol in fake.brokers[1].of_key(JOIN)[-1].protocols]
        assert names == ["cooperative-sticky", "sticky", "range"]

    simulate_groups(story)


@pytest.mark.parametrize(
    ("code", "next_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, "member-2"), (ErrorCode.ILLEGAL_GENERATION, "member-1")]
)
@pytest.mark.parametrize("assignor", [RANGE, COOPERATIVE_STICKY])
def test_who_was_put_out_has_lost_its_partitions(code: ErrorCode, next_id: str, assignor: Any) -> None:
    heard = Heard()

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders"], assignors=[assignor], **heard.listeners()) as member:
            await member.next_assignment()
            fake.brokers[1].script[HEARTBEAT] = [beat(code)]
            assert await member.next_assignment() == Assignment()
            assert await member.next_assignment() == Assignment(2, ORDERS)
            assert member.member_id == next_id

    simulate_groups(story)
    assert heard.events == [("assigned", 3), ("lost", 3), ("assigned", 3), ("revoked", 3)]


def test_a_failure_that_cannot_be_mended_ends_the_member() -> None:
    heard = Heard()

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        settings = MemberSettings(group_instance_id="one")
        async with Member(cluster, "g", ["orders"], settings=settings, **heard.listeners()) as member:
            await member.next_assignment()
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.FENCED_INSTANCE_ID)]
            for call in (member.next_assignment, member.next_assignment, lambda: member.commit({})):
                with pytest.raises(BrokerError) as failure:
                    await call()
                assert failure.value.code is ErrorCode.FENCED_INSTANCE_ID
            with pytest.raises(BrokerError):
                await member.committed(ORDERS)
            with pytest.raises(BrokerError):  # a reader that only looks at its assignment is told too (seed 3692)
                _ = member.assignment
        fake.brokers[1].script[JOIN] = [refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
        with pytest.raises(BrokerError) as failure:
            async with Member(cluster, "g", ["orders"]):
                pass
        assert failure.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED

    fake = simulate_groups(story)
    assert heard.events == [("assigned", 3)]
    assert fake.brokers[1].of_key(LEAVE) == []  # a static member stays, and the other one was never in


def test_a_listener_that_fails_ends_the_member_which_leaves() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async def fail(partitions: tuple[TopicPartition, ...]) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with Member(cluster, "g", ["orders"], on_assigned=fail):
                pass
        assert len(fake.brokers[1].of_key(LEAVE)) == 1
        async with Member(cluster, "g", ["orders"], on_revoked=fail) as member:
            await member.next_assignment()
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS)]
            with pytest.raises(ZeroDivisionError):
                await member.next_assignment()
        assert len(fake.brokers[1].of_key(LEAVE)) == 2

    simulate_groups(story)


def test_a_commit_is_of_the_generation_it_was_called_in() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders"], assignors=[COOPERATIVE_STICKY]) as member:
            fake.brokers[1].script[COMMIT] = [
                lambda request: committed(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            ] * 20
            committing = asyncio.ensure_future(member.commit({ORDERS[0]: 5}))
            await asyncio.sleep(0.05)
            fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS)]
            while member.assignment.generation == 1:
                await asyncio.sleep(0.1)
            with pytest.raises(BrokerError) as failure:
                await committing
            assert failure.value.code is ErrorCode.ILLEGAL_GENERATION
            assert fake.committed == {}
            with pytest.raises(BrokerError, match="not assigned"):
                await member.commit({TopicPartition("orders", 7): 1})

    simulate_groups(story)


def test_the_leader_looks_for_growth() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        settings = MemberSettings(metadata_max_age_ms=20_000)
        async with Member(cluster, "g", ["orders"], settings=settings) as member:
            added = TopicPartition("orders", len(ORDERS))
            fake.leaders[added] = 1
            await asyncio.sleep(10)
            assert member.assignment == Assignment(1, ORDERS)
            await asyncio.sleep(20)
            assert member.assignment == Assignment(2, (*ORDERS, added))
            await asyncio.sleep(100)
            assert member.assignment.generation == 2

    simulate_groups(story)


def test_the_leader_looks_for_an_unknown_topic_with_each_heartbeat() -> None:
    """It may be unknown for a moment only, and its group would not read it for metadata.max.age.ms."""

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        settings = MemberSettings(heartbeat_interval_ms=3_000)
        async with Member(cluster, "g", ["orders", "returns"], settings=settings) as member:
            fake.leaders[TopicPartition("returns", 0)] = 1
            await asyncio.sleep(7)
            assert member.assignment == Assignment(2, (*ORDERS, TopicPartition("returns", 0)))
            await asyncio.sleep(100)
            assert member.assignment.generation == 2

    simulate_groups(story)


def _orders(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in numbers]


@pytest.mark.parametrize(
    ("annas", "zoes", "is_right"),
    [
        (_orders(0), _orders(1, 2), True),
        (_orders(2), _orders(0, 1), True),
        # of a time with fewer partitions, though zoe has as many as she would get now
        (_orders(0), _orders(1), False),
        ([], [], False),
        # of a time with another topic
        ([TopicPartition("returns", 0)], _orders(0, 1, 2), False),
        (_orders(0), [TopicPartition("returns", 0), *_orders(1, 2)], False),
        # somebody who is gone has it
        (None, _orders(1, 2), False),
    ],
)
def test_a_static_leader_that_came_back_sees_to_it_that_all_is_assigned(
    annas: list[TopicPartition] | None, zoes: list[TopicPartition], is_right: bool
) -> None:
    """The coordinator hands out the assignment of before (KIP-814), which may not fit any more."""

    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        broker = fake.brokers[1]

        def come_back(request: JoinGroupRequest) -> JoinGroupResponse:
            joined = broker._joined(request)
            joined.skip_assignment = True
            anna = JoinGroupResponseMember(
                member_id="anna-1", group_instance_id="anna", metadata=joined.members[0].metadata
            )
            joined.members.append(anna)
            return joined

        def describe(request: DescribeGroupsRequest) -> DescribeGroupsResponse:
            held = {"anna-1" if annas is not None else "gone": annas or _orders(0), "member-1": zoes}
            members = [
                DescribedGroupMember(member_id=name, member_assignment=encode_assignment(partitions))
                for name, partitions in held.items()
            ]
            group = DescribeGroupsResponseDescribedGroup(
                group_id="g", group_state="Stable", protocol_type="consumer", members=members
            )
            return DescribeGroupsResponse(groups=[group])

        broker.script[JOIN] = [come_back]
        broker.script[SYNC] = [lambda request: SyncGroupResponse(assignment=encode_assignment(zoes))]
        broker.script[DESCRIBE] = [describe]
        settings = MemberSettings(group_instance_id="zoe", metadata_max_age_ms=20_000)
        async with Member(cluster, "g", ["orders"], settings=settings) as member:
            await asyncio.sleep(1)
            assert member.assignment == (Assignment(1, tuple(zoes)) if is_right else Assignment(2, ORDERS))
            assert shares_of(broker.of_key(SYNC)[0]) == {}
            added = TopicPartition("orders", len(ORDERS))
            fake.leaders[added] = 1
            await asyncio.sleep(30)
            assert member.assignment.partitions == (*ORDERS, added)

    simulate_groups(story)


def test_closing_does_not_wait_for_a_coordinator_that_is_gone() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        async with Member(cluster, "g", ["orders"]):
            fake.brokers[1].script[LEAVE] = [CLOSE]
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 1

    simulate_groups(story)


def test_equal_seeds_give_equal_requests() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.brokers[1].script[JOIN] = [CLOSE, refused(ErrorCode.NOT_COORDINATOR), CLOSE]
        fake.brokers[1].script[HEARTBEAT] = [beat(ErrorCode.REBALANCE_IN_PROGRESS), CLOSE]
        async with Member(cluster, "g", ["orders"]) as member:
            while member.assignment.generation < 2:
                await asyncio.sleep(0.1)

    runs = [simulate_groups(story, seed=3).brokers[1].requests for _ in range(2)]
    assert [repr(request) for request in runs[0]] == [repr(request) for request in runs[1]]
