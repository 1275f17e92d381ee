"""Long work in slices, so that no request holds the loop for long.

A handler with much to do counts what it has done and gives the loop back after each slice. It counts elements and not
time, so the simulator replays it. Whoever waits for a slice stands in one queue, and each turn of the loop serves one
of them: many large requests together take no more of a turn than one does.

Between two slices everything else goes on. A handler takes the list of what it will look at before the first slice, and
looks at each element as it is when its slice comes, as Kafka does whose handlers run beside each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

SLICE = 500
"""Elements of a slice. The work on one takes up to some ten microseconds."""

PIECE = 1_000
"""Topics and partitions of a request that are worked on in one go, where a request is taken in pieces."""

T = TypeVar("T")
P = TypeVar("P")


_UNITS_OF_ELEMENT = 200


def cost_of_id(name: str) -> int:
    """Elements of a slice that an id takes which is hashed: one of 30,000 characters takes as much as 150."""
    return 1 + len(name) // _UNITS_OF_ELEMENT


class SlowLane:
    """Those who wait for their next slice, in the order they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def turn(self) -> None:
        """Returns in a later turn of the loop, alone."""
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()
        self._waiting.append(begun)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._serve)
        await begun

    def _serve(self) -> None:
        while self._waiting:
            begun = self._waiting.popleft()
            if not begun.done():  # else it was cancelled
                begun.set_result(None)
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._serve)


class Pace:
    """How much of the present slice one handler has used."""

    __slots__ = ("_lane", "_left")

    def __init__(self, lane: SlowLane) -> None:
        self._lane = lane
        self._left = SLICE

    @property
    def is_used_up(self) -> bool:
        """Whether `spend` would wait for the next slice."""
        return self._left <= 0

    async def spend(self, elements: int = 1) -> None:
        """So many elements will be worked on next; waits for another slice if this one is used up."""
        if self._left <= 0:
            await self._lane.turn()
            self._left = SLICE
        self._left -= elements

    async def each(self, items: Iterable[T], cost: int = 1) -> AsyncIterator[T]:
        """The items, one after the other, with a rest after each slice."""
        for item in items:
            await self.spend(cost)
            yield item

    async def slices(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """The items, as many at once as the slice has room for."""
        start = 0
        while start < len(items):
            await self.spend(0)
            end = start + max(self._left, 1)
            part = items[start:end]
            self._left -= len(part)
            yield part
            start = end


def pieces(
    topics: Sequence[T], partitions_of: Callable[[T], list[P]], part: Callable[[T, list[P]], T]
) -> Iterator[list[T]]:
    """The topics of a request in pieces; `part` is a topic with some of its partitions. At least one, be it empty."""
    piece: list[T] = []
    room = PIECE
    for topic in topics:
        partitions, start = partitions_of(topic), 0
        while True:
            taken = partitions[start : start + room]
            piece.append(part(topic, taken))
            start += len(taken)
            room -= 1 + len(taken)
            if room <= 0:
                yield piece
                piece, room = [], PIECE
            if start >= len(partitions):
                break
    if piece or not topics:
        yield piece
