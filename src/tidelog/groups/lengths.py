"""How long the names may be that clients choose and groups keep, and how many members a group may have.

Flexible versions can carry strings of any length, while the records of __consumer_offsets, and older versions of the
answers, hold at most 32,767 bytes: a longer name would break the answers that others get. Kafka's own bound is that of
group.instance.id, which its clients hold to the rule for topic names.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.wire.messages.groups import JoinGroupRequest

MAX_GROUP_ID = 1_024
MAX_INSTANCE_ID = 249
MAX_PROTOCOL = 255
MAX_CLIENT_ID = 255
"""A longer client id is cut, not refused: it is only a part of the member id, and shown."""
MAX_PROTOCOLS_BYTES = 1 << 20
"""Of all protocols of a member together: a record of the group with more would be above message.max.bytes."""
MAX_MEMBERS = 10_000
"""Of a group, if group.max.size is not smaller. A rebalance is done in one go, its SyncGroup names all members, and the
record of a group of about so many is above message.max.bytes."""
MAX_RECORD_BYTES = 16 << 20
"""Of the record of a group. The log takes max.message.bytes of __consumer_offsets, which is 1 MB by default."""


def refusal_of(request: JoinGroupRequest) -> ErrorCode:
    """The error for a join with names that are too long, NONE if they are not."""
    if len(request.group_id) > MAX_GROUP_ID:
        return ErrorCode.INVALID_GROUP_ID
    if len(request.group_instance_id or "") > MAX_INSTANCE_ID or len(request.protocol_type) > MAX_PROTOCOL:
        return ErrorCode.INVALID_REQUEST
    if any(len(protocol.name) > MAX_PROTOCOL for protocol in request.protocols):
        return ErrorCode.INVALID_REQUEST
    if sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols) > MAX_PROTOCOLS_BYTES:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE
