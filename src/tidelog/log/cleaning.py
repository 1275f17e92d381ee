"""A cleaning under way, and how to stop it."""

from __future__ import annotations

import asyncio


class CleaningAbandonedError(Exception):
    """Raised inside a cleaning that was asked to stop."""


class Cleaning:
    """Whoever is about to take segments away from under it abandons it first, and waits until it has let go."""

    def __init__(self) -> None:
        self._abandoned = False
        self._ended = asyncio.Event()

    async def abandon(self) -> None:
        self._abandoned = True
        await self._ended.wait()

    def check(self) -> None:
        """Called between two pieces of work, on whatever thread."""
        if self._abandoned:
            raise CleaningAbandonedError

    def end(self) -> None:
        """It is over; if it was cancelled, its disk thread is told to stop too."""
        self._abandoned = True
        self._ended.set()
