"""Whether this broker may act as a leader now (decision 5 of docs/ARCHITECTURE.md): the one place where partitions ask.

A broker whose session with the coordination store may be over moves no high watermark and acknowledges nothing: another
one may lead by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

_LOOK_AGAIN_S = 0.05


class HeldBack(Protocol):
    """A partition whose high watermark would have moved."""

    def try_advance(self) -> None: ...


class Standing:
    """Partitions that were held back are told when the session is current again. A lost session ends their terms."""

    def __init__(self, is_current: Callable[[], bool]) -> None:
        self.is_current = is_current
        self._held_back: dict[HeldBack, None] = {}

    def may_commit(self, partition: HeldBack) -> bool:
        if self.is_current():
            return True
        if not self._held_back:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._look_again)
        self._held_back[partition] = None
        return False

    def _look_again(self) -> None:
        """Those that still may not commit, and still lead, come back here by `may_commit`."""
        held_back, self._held_back = self._held_back, {}
        for partition in held_back:
            partition.try_advance()
