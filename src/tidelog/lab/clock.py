"""Clocks that disagree as much as a test wants."""

from __future__ import annotations

from typing import Protocol

from tidelog.ports import Clock

EPOCH_MS = 1_767_225_600_000
"""What a simulated wall clock shows at virtual time 0: 2026-01-01, the same in every run."""


class HasTime(Protocol):
    """The loop, as far as a clock needs it."""

    def time(self) -> float: ...


class SimClock(Clock):
    """The clock of one host: virtual time, off by a fixed amount and running fast or slow by some ppm.

    Always: monotonic_ns never falls, whatever is done to the wall clock.
    """

    def __init__(self, loop: HasTime, *, offset_ms: int = 0, drift_ppm: float = 0.0) -> None:
        self.offset_ms = offset_ms
        self._loop = loop
        self._rate = 1.0 + drift_ppm / 1e6

    def wall_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._loop.time() * self._rate * 1e3)

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * self._rate * 1e9)

    def jump(self, milliseconds: int) -> None:
        """Step the wall clock, as an administrator or a bad NTP server would."""
        self.offset_ms += milliseconds
