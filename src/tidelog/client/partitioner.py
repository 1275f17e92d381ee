"""Which partition a record goes to: Kafka's rule, so that all clients put a key in the same place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.ports import Random
from tidelog.types import Buffer

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole < length:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


def partition_of_key(key: Buffer, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartition:
    """Where records without keys go: to one partition until a batch is full, then to another by chance."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: int | None = None

    def current(self, available: Sequence[int]) -> int:
        """Among partitions that have leaders."""
        if self._current is None or self._current not in available:
            self._current = available[self._random.randrange(0, len(available))]
        return self._current

    def move_on(self, available: Sequence[int]) -> None:
        others = [partition for partition in available if partition != self._current]
        if others:
            self._current = others[self._random.randrange(0, len(others))]
