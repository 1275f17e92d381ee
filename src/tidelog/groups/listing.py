"""DescribeGroups v0-6 and ListGroups v0-5: groups as administrators see them.

DescribeGroups v4 shows static members, v6 says of a group that is not there that it is not. ListGroups v4 can be asked
for groups in some states, v5 for some types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidelog.errors import ErrorCode
from tidelog.groups.group import Group
from tidelog.groups.states import GroupState
from tidelog.wire.messages.groups import DescribeGroupsResponseDescribedGroup, ListedGroup

CLASSIC = "classic"
_NOT_FOUND_SINCE = 6


def described(group_id: str, group: Group | None, version: int) -> DescribeGroupsResponseDescribedGroup:
    """What members subscribed to is told when it is settled; a group that is not there is Dead."""
    if group is None:
        answer = DescribeGroupsResponseDescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= _NOT_FOUND_SINCE:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = f"Group {group_id} not found."
        return answer
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[member.described(protocol) for member in group.members.values()],
    )


def listed(groups: Iterable[Group], states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
    """Without filters all; case does not matter."""
    wanted = {state.strip().lower() for state in states}
    if types and CLASSIC not in {group_type.strip().lower() for group_type in types}:
        return []
    return [
        ListedGroup(
            group_id=group.id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in groups
        if not wanted or group.state.value.lower() in wanted
    ]
