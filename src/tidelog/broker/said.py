"""What is tried again many times a second is not logged each time."""

from __future__ import annotations

import asyncio

AGAIN_AFTER_S = 60.0
"""How often a reason that does not change is logged."""
_MOST_REASONS = 100


class Said:
    """The reasons that were logged for one thing that goes on failing."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def is_news(self, reason: str) -> bool:
        """Whether to log it: it is another one than before, or was last logged a minute ago. It counts as logged."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._at_s.get(reason, -AGAIN_AFTER_S) + AGAIN_AFTER_S:
            return False
        if len(self._at_s) >= _MOST_REASONS:
            self._at_s.clear()
        self._at_s[reason] = now_s
        return True

    def is_over(self) -> None:
        """It works: the next failure is news."""
        self._at_s.clear()
