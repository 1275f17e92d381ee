"""A mark on what a leader asks for once more, because an earlier request may have been granted unheard.

Copies of the earlier request may still be under way, and arrive after this one was refused. So the controller makes the
refusal of a marked request final: it writes the state anew, and what still comes with the old partition epoch is void.
The mark is a tagged field that Kafka's definitions do not have; Kafka's controllers skip it (KIP-482).
"""

from __future__ import annotations

from tidelog.wire.messages.controller import AlterPartitionRequestPartitionData

_TAG = 0x6162
"""The letters "ab". Kafka numbers the tags of a message from 0 on."""


def mark_asked_before(data: AlterPartitionRequestPartitionData) -> None:
    data.set_unknown_tagged_field(_TAG, b"")


def was_asked_before(data: AlterPartitionRequestPartitionData) -> bool:
    return any(tag == _TAG for tag, _ in data.unknown_tagged_fields)
