"""Eligible leader replicas, told in the controller's messages (KIP-966).

Kafka 3.9's LeaderAndIsr, UpdateMetadata and AlterPartition know no ELR. It travels as tagged fields that their
definitions do not have: Kafka's brokers skip them (KIP-482), and of a Kafka controller's messages the ELR is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidelog.types import BrokerId
from tidelog.wire.schema import Message

_ELR_TAG = 0x656C
"""The letters "el". Kafka numbers the tags of a message from 0 on."""
_LAST_KNOWN_ELR_TAG = 0x6C65
_ID_BYTES = 4


def set_elr(message: Message, elr: Sequence[BrokerId]) -> None:
    _set(message, _ELR_TAG, elr)


def elr_of(message: Message) -> tuple[BrokerId, ...]:
    return _get(message, _ELR_TAG)


def set_last_known_elr(message: Message, brokers: Sequence[BrokerId]) -> None:
    """Replicas that were eligible until they may have lost records."""
    _set(message, _LAST_KNOWN_ELR_TAG, brokers)


def last_known_elr_of(message: Message) -> tuple[BrokerId, ...]:
    return _get(message, _LAST_KNOWN_ELR_TAG)


def _set(message: Message, tag: int, brokers: Sequence[BrokerId]) -> None:
    """An empty list is told by leaving it out."""
    if brokers:
        message.set_unknown_tagged_field(tag, struct.pack(f">{len(brokers)}i", *brokers))


def _get(message: Message, wanted: int) -> tuple[BrokerId, ...]:
    for tag, content in message.unknown_tagged_fields:
        if tag == wanted and len(content) % _ID_BYTES == 0:
            return struct.unpack(f">{len(content) // _ID_BYTES}i", content)
    return ()
