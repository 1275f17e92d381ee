"""Consumer groups from outside: which there are, who is in them, and removing them.

What they have committed is in `group_offsets`; being a member is `membership`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from tidelog.client.coordinators import (
    call_coordinators,
    find_coordinators,
    learn_group_partitions,
    led_partitions,
    offline_partitions,
)
from tidelog.client.errors import BrokerError, CoordinatorError, check, named
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tidelog.wire.versions import Versions

DEAD = "Dead"
"""The state of a group that does not exist."""

EMPTY = "Empty"
_WITHOUT_MEMBERS = (DEAD, EMPTY)

_LIST_BY_STATE = 4
_LIST_BY_TYPE = 5


class GroupListing(NamedTuple):
    """A group as a list shows it. Old brokers do not tell the state and the type."""

    group: str
    protocol_type: str
    state: str
    type: str
    coordinator: BrokerId


class GroupMember(NamedTuple):
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: list[TopicPartition]


class GroupDescription(NamedTuple):
    """One group with its members. A group that does not exist is Dead."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor that the members agreed on."""
    members: list[GroupMember]
    coordinator: BrokerId

    @property
    def is_active(self) -> bool:
        return self.state not in _WITHOUT_MEMBERS


class GroupsOfflineError(BrokerError):
    """Some partitions of __consumer_offsets have no leader, so the groups in them cannot be listed."""

    def __init__(self, listed: list[GroupListing], offline: Sequence[TopicPartition]) -> None:
        self.listed = listed
        """The groups of the other partitions."""
        have = "is offline: it has no leader" if len(offline) == 1 else "are offline: they have no leader"
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the list of groups", f"{named(offline)} {have}")


async def list_groups(cluster: Cluster, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
    """All groups of all brokers by name, or those in these states and of these types.

    A list that lacks groups is not returned: while a coordinator does not answer, or a partition of __consumer_offsets
    has no leader, the brokers are asked again. In the end the cause of the DeadlineError is a CoordinatorError or a
    GroupsOfflineError.
    """
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    first = _LIST_BY_TYPE if types else _LIST_BY_STATE if states else 0

    async def of_broker(broker: BrokerId) -> list[GroupListing]:
        try:
            response: ListGroupsResponse = await cluster.call(request, to=broker, versions=Versions(first, 5))
        except ConnectionClosedError as failure:
            raise CoordinatorError(failure, led_partitions(cluster, broker)) from failure
        check(response.error_code, f"the groups of broker {broker}")
        return [
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type, broker)
            for one in response.groups
        ]

    async def attempt() -> list[GroupListing]:
        """A broker that does not answer may have died: who took over its groups is in newer metadata."""
        offline = await offline_partitions(cluster)
        of_brokers = await asyncio.gather(*(of_broker(broker) for broker in cluster.metadata.brokers))
        listed = sorted(dict.fromkeys(listing for listings in of_brokers for listing in listings))
        if offline:
            raise GroupsOfflineError(listed, offline)
        return listed

    return await cluster.retrying(attempt, "the list of groups")


async def describe_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, GroupDescription]:
    """By group, in the order asked for; what does not exist is Dead."""
    asked = list(dict.fromkeys(groups))
    await learn_group_partitions(cluster)
    coordinators = await find_coordinators(cluster, asked)

    def read(response: DescribeGroupsResponse) -> Iterator[tuple[str, int, GroupDescription]]:
        for one in response.groups:
            # Since version 6 a group that does not exist is an error. That of another kind has a message.
            gone = one.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            code = ErrorCode.NONE if gone else one.error_code
            yield one.group_id, code, _description(one, coordinators[one.group_id])

    return await call_coordinators(
        cluster, asked, lambda some: DescribeGroupsRequest(groups=list(some)), read, "describing group"
    )


def _description(one: DescribeGroupsResponseDescribedGroup, coordinator: BrokerId) -> GroupDescription:
    members = [_member(member, one.protocol_type) for member in one.members]
    members.sort()
    state = one.group_state or DEAD
    return GroupDescription(one.group_id, state, one.protocol_type, one.protocol_data, members, coordinator)


def _member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    """Of a group that is not a consumer's (Connect's, Schema Registry's) the assignment is its own business."""
    try:
        assignment = decode_assignment(member.member_assignment) if protocol_type == PROTOCOL_TYPE else []
    except TidelogError:
        assignment = []
    return GroupMember(member.member_id, member.client_id, member.client_host, member.group_instance_id, assignment)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """BrokerError with GROUP_ID_NOT_FOUND if there is no such group."""
    described = (await describe_groups(cluster, [group]))[group]
    if described.state == DEAD:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}", "it does not exist")
    return described


async def delete_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, BrokerError | None]:
    """With all they have committed. What became of each: None if it is gone, else why it is not."""

    def read(response: DeleteGroupsResponse) -> Iterator[tuple[str, int, BrokerError | None]]:
        for one in response.results:
            failure = BrokerError(one.error_code, f"deleting group {one.group_id}") if one.error_code else None
            again = error_code(one.error_code).retriable
            yield one.group_id, one.error_code if again else ErrorCode.NONE, failure

    await learn_group_partitions(cluster)
    return await call_coordinators(
        cluster, groups, lambda some: DeleteGroupsRequest(groups_names=list(some)), read, "deleting group"
    )
