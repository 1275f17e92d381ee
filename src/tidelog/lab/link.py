"""The way from one host to another, and what is wrong with it."""

from __future__ import annotations

import random


class Link:
    """One direction between two hosts. Both have their own faults, so a cut can be one-sided."""

    def __init__(self, chance: random.Random, latency_ms: float, jitter_ms: float) -> None:
        self.chance = chance
        self.latency_ms = latency_ms
        self.jitter_ms = jitter_ms
        self.bytes_per_s: float | None = None
        self.split_chance = 0.02
        """How often a segment is cut in two, as streams may be at any byte."""
        self.is_cut = False
        self.late_chance = 0.0
        """How often the bytes of a connection that its sender closes come late."""
        self.late_s = 0.0
        self._free_at = 0.0

    def delay_s(self) -> float:
        """How long a packet is under way this time."""
        return (self.latency_ms + self.jitter_ms * self.chance.random()) / 1e3

    def arrival_time(self, now: float, size: int) -> float:
        """When `size` bytes sent now are there. A slow link is shared: what is sent later waits for it to be free."""
        if self.bytes_per_s is None:
            return now + self.delay_s()
        self._free_at = max(now, self._free_at) + size / self.bytes_per_s
        return self._free_at + self.delay_s()

    def split_point(self, size: int) -> int:
        """Where to cut a segment of this size; its size if it stays whole."""
        if size > 1 and self.chance.random() < self.split_chance:
            return self.chance.randrange(1, size)
        return size

    def lateness_s(self) -> float:
        """How much later than in time the last bytes of a connection arrive that its sender closes now."""
        if self.late_chance and self.chance.random() < self.late_chance:
            return self.late_s * (0.5 + self.chance.random() / 2)
        return 0.0
