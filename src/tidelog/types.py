"""The words every package shares."""

import sys
from array import array
from operator import mul
from typing import NamedTuple, TypeAlias

Offset: TypeAlias = int
"""The place of a record in its partition; the next one to be written has the log end offset."""

Epoch: TypeAlias = int
BrokerId: TypeAlias = int
ProducerId: TypeAlias = int

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are moved and not copied."""

NO_TIMESTAMP = -1
NO_EPOCH = -1
NO_PRODUCER = -1
NO_SEQUENCE = -1


class TopicPartition(NamedTuple):
    """The name of one partition; as a string it is the name of its directory, `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_UTF_16 = f"utf-16-{sys.byteorder[0]}e"
_POWERS_OF_31 = [1]
"""As many as the longest text has had units; a name on the wire has at most 32767."""


def java_hash(text: str) -> int:
    """Java's String.hashCode, by which Kafka deals things out: over UTF-16 units, in 32 bits with a sign."""
    units = array("H", text.encode(_UTF_16, "surrogatepass"))
    while len(_POWERS_OF_31) < len(units):
        _POWERS_OF_31.append(31 * _POWERS_OF_31[-1] & 0xFFFFFFFF)
    value: int = sum(map(mul, reversed(units), _POWERS_OF_31)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
