"""The words every package shares."""

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


def java_hash(text: str) -> int:
    """Java's String.hashCode, by which Kafka deals things out: over UTF-16 units, in 32 bits with a sign."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(encoded), 2):
        value = (31 * value + (encoded[position] << 8) + encoded[position + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
