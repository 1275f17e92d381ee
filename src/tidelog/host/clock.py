"""This machine's time and chance."""

from __future__ import annotations

import random
import time

from tidelog.ports import Clock


class SystemClock(Clock):
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # without a call in between: requests ask for it at every stage


def system_random() -> random.Random:
    """Chance from the kernel, which no seed repeats: ids made from it never collide between processes."""
    return random.SystemRandom()
