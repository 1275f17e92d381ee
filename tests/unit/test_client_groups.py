"""Groups from outside: who is asked, what is tried again, what is no offset, and what members tell each other."""

from __future__ import annotations

import pytest

from tests.kits.fake_broker import CLOSE
from tests.kits.fake_groups import COMMIT, DESCRIBE, FIND, LIST, FakeGroups, committed, simulate_groups
from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.coordinators import find_coordinators
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.group_lag import PartitionLag, lags
from tidelog.client.group_offsets import CommittedOffset, commit_offsets, committed_offsets
from tidelog.client.groups import GroupDescription, GroupMember, describe_groups, list_groups
from tidelog.errors import ErrorCode
from tidelog.groups.assignors import COOPERATIVE_STICKY, STICKY, Subscription
from tidelog.types import TopicPartition
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.groups import ListGroupsResponse
from tidelog.wire.messages.metadata import Coordinator, FindCoordinatorResponse
from tidelog.wire.stored import encode_versioned

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def test_coordinators_are_found_together_and_until_all_are() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.coordinators = {"a": 1, "b": 2, "c": 1}
        codes = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
        refused = [
            FindCoordinatorResponse(
                coordinators=[Coordinator(key="a", node_id=1), Coordinator(key="b", node_id=-1, error_code=code)]
            )
            for code in codes
        ]
        for broker in fake.brokers.values():
            broker.script[FIND] = [CLOSE, lambda request: refused[0], lambda request: refused[1]]
        assert await find_coordinators(cluster, ["a", "b", "c", "a"]) == {"a": 1, "b": 2, "c": 1}
        asked = [request for broker in fake.brokers.values() for request in broker.of_key(FIND)]
        assert len(asked) >= 4
        assert all(request.coordinator_keys == ["a", "b", "c"] for request in asked)
        assert await find_coordinators(cluster, []) == {}

    simulate_groups(story, brokers=2)


def test_a_coordinator_that_is_not_there_is_waited_for() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.coordinators = {"a": 7}
        with pytest.raises(DeadlineError, match="not among the live brokers"):
            await find_coordinators(cluster, ["a"])

    simulate_groups(story)


def test_each_group_is_described_by_its_coordinator() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.coordinators = {"a": 1, "b": 2, "c": 2}
        described = await describe_groups(cluster, ["c", "a", "b"])
        assert [(one.group, one.coordinator) for one in described.values()] == [("c", 2), ("a", 1), ("b", 2)]
        assert [request.groups for request in fake.brokers[2].of_key(DESCRIBE)] == [["c", "b"]]

    simulate_groups(story, brokers=2)


def test_only_what_failed_is_asked_again_and_of_the_new_coordinator() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.coordinators = {"a": 1, "b": 2}
        second = fake.brokers[2]

        def move(request: object) -> object:
            fake.coordinators["b"] = 1
            return second._answer(request)  # type: ignore[arg-type]

        second.script[DESCRIBE] = [move]
        assert list(await describe_groups(cluster, ["a", "b"])) == ["a", "b"]
        assert [request.groups for request in fake.brokers[1].of_key(DESCRIBE)] == [["a"], ["b"]]

    simulate_groups(story, brokers=2)


def test_all_brokers_are_asked_for_their_groups() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.coordinators = {"b": 1, "a": 2}
        loading = ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        fake.brokers[2].script[LIST] = [lambda request: loading]
        listed = await list_groups(cluster)
        assert [(one.group, one.coordinator) for one in listed] == [("a", 2), ("b", 1)]
        await list_groups(cluster, states=["Stable"], types=["classic"])
        assert fake.brokers[1].of_key(LIST)[-1].states_filter == ["Stable"]

    simulate_groups(story, brokers=2)


def test_no_offset_is_left_out_and_0_is_not() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.committed = {P1: 0, P0: 5}
        assert await committed_offsets(cluster, "g", [P0, P1, P2]) == {P0: CommittedOffset(5), P1: CommittedOffset(0)}
        assert list(await committed_offsets(cluster, "g")) == [P0, P1]
        assert await committed_offsets(cluster, "g", []) == {}

    simulate_groups(story)


def test_a_commit_is_tried_again_if_that_can_help() -> None:
    async def story(cluster: Cluster, fake: FakeGroups) -> None:
        fake.brokers[1].script[COMMIT] = [
            lambda request: committed(request, ErrorCode.NOT_COORDINATOR),
            lambda request: committed(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ]
        await commit_offsets(cluster, "g", {P0: 5})
        assert fake.committed == {P0: 5}
        fake.brokers[1].script[COMMIT] = [lambda request: committed(request, ErrorCode.UNKNOWN_MEMBER_ID)]
        with pytest.raises(BrokerError) as failure:
            await commit_offsets(cluster, "g", {P0: 6})
        assert failure.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert fake.committed == {P0: 5}

    simulate_groups(story)


def test_lag_of_what_is_committed_and_of_what_is_held() -> None:
    member = GroupMember("m", "c", "/h", None, [P1, P2])
    group = GroupDescription("g", "Stable", "consumer", "range", [member], 1)
    found = lags(group, {P0: 3, P1: 10}, {P0: 3, P1: 8, P2: 4})
    assert found == [
        PartitionLag(P0, 3, 3, None),
        PartitionLag(P1, 10, 8, member),
        PartitionLag(P2, None, 4, member),
    ]
    assert [one.lag for one in found] == [0, -2, None]
    assert lags(group._replace(members=[]), {P0: 3}, {})[0].lag is None


# What members tell each other


def test_subscriptions_and_assignments_read_back() -> None:
    wanted = Subscription(["orders", "returns"], [P0, P2], 4)
    assert decode_subscription(encode_subscription(wanted), COOPERATIVE_STICKY, None) == wanted
    eager = Subscription(["orders"], (), 4)
    assert decode_subscription(encode_subscription(eager, [P1]), STICKY, "i") == Subscription(["orders"], [P1], 4, "i")
    assert decode_subscription(encode_subscription(eager), STICKY, None) == Subscription(["orders"], [], -1)
    assert decode_assignment(encode_assignment([P2, P0])) == [P0, P2]
    assert decode_assignment(encode_assignment([])) == []
    assert decode_assignment(b"") == []


def test_subscriptions_of_old_clients() -> None:
    plain = encode_versioned(ConsumerProtocolSubscription(topics=["orders"]), 0)
    assert decode_subscription(plain, COOPERATIVE_STICKY, None) == Subscription(["orders"], [], -1)
    # One partition of orders, and nothing where newer ones write the generation.
    had = bytes.fromhex("000000010006") + b"orders" + bytes.fromhex("0000000100000002")
    old = encode_versioned(ConsumerProtocolSubscription(topics=["orders"], user_data=had), 0)
    assert decode_subscription(old, STICKY, None) == Subscription(["orders"], [P2], -1)
    foreign = encode_versioned(ConsumerProtocolSubscription(topics=["orders"], user_data=b"?"), 0)
    assert decode_subscription(foreign, STICKY, None) == Subscription(["orders"], [], -1)
