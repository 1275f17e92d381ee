"""Long work in slices, so that no request holds the loop for long.

A handler with much to do counts what it has done and gives the loop back after each slice. It counts elements and not
time, so the simulator replays it. In each turn of the loop all requests together work on about two slices: one slice is
shared by the requests that begin, and one request that has begun before gets a slice for itself. So many large requests
together take no more of a turn than a few do, and a small request does not wait for the large ones.

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

FIRST = 100
"""Elements that a request may work on when it begins. Most requests need no more."""

PIECE = 1_000
"""Topics and partitions of a request that are worked on in one go, where a request is taken in pieces."""

T = TypeVar("T")
P = TypeVar("P")


_UNITS_OF_ELEMENT = 200


def cost_of_id(name: str) -> int:
    """Elements of a slice that an id takes which is hashed: one of 30,000 characters takes as much as 150."""
    return 1 + len(name) // _UNITS_OF_ELEMENT


class _Queue:
    """Requests that wait. Brokers and clients are served alternately, and each kind in the order it came.

    Nothing proves that a request is of a broker, so brokers do not keep clients from being served.
    """

    __slots__ = ("_brokers", "_clients", "_was_broker", "size")

    def __init__(self) -> None:
        self._brokers: deque[tuple[asyncio.Future[None], int]] = deque()
        self._clients: deque[tuple[asyncio.Future[None], int]] = deque()
        self._was_broker = False
        """The request that was served last."""
        self.size = 0

    def add(self, is_broker: bool, elements: int) -> asyncio.Future[None]:
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._brokers if is_broker else self._clients).append((begun, elements))
        self.size += 1
        return begun

    def serve(self) -> int:
        """Let the next request go on. How many elements it will work on; 0 if none waits."""
        while self.size:
            self.size -= 1
            is_broker = bool(self._brokers) and not (self._was_broker and self._clients)
            begun, elements = (self._brokers if is_broker else self._clients).popleft()
            if not begun.done():  # else it was cancelled
                self._was_broker = is_broker
                begun.set_result(None)
                return elements
        return 0


class SlowLane:
    """Shares each turn of the loop among the requests that work in slices.

    A turn has room for the first elements of several requests (`take`). If it is used up, a request waits for its first
    slice, and those who came before it are served before it. For each further slice a request waits for a turn in
    which no other request has one.

    Always: while something waits, or room of the present turn is used, `_begin_turn` is scheduled for the next one.
    """

    def __init__(self) -> None:
        self.room = SLICE
        """Elements that can still be worked on in this turn of the loop by requests that begin."""
        self._beginners = _Queue()
        self._waiting = _Queue()
        self._is_scheduled = False

    @property
    def is_crowded(self) -> bool:
        """Requests wait for each other."""
        return self._beginners.size + self._waiting.size > 0

    def take(self, elements: int) -> bool:
        """Whether a request may work on so many elements now, without a slice of its own. The last one to take room
        may take more than there is."""
        if self.room <= 0:
            return False
        self.room -= elements
        self._schedule()
        return True

    async def first_turn(self, elements: int, is_broker: bool = False) -> None:
        """Returns in a later turn of the loop, which has room for so many elements of this request."""
        self._schedule()
        await self._beginners.add(is_broker, elements)

    async def turn(self, is_broker: bool = False) -> None:
        """Returns in a later turn of the loop, and no other request gets a slice in that turn."""
        await self.next_turn(is_broker)

    def next_turn(self, is_broker: bool = False) -> asyncio.Future[None]:
        """Is done when `turn` would return, for a request that is no coroutine."""
        self._schedule()
        return self._waiting.add(is_broker, SLICE)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self.room = SLICE
        while self.room > 0 and (elements := self._beginners.serve()):
            self.room -= elements
        if self._waiting.serve() or self.room < SLICE:
            self._schedule()


class Pace:
    """How much of the present slice one handler has used.

    It begins with what the turn has room for, up to FIRST elements. `is_broker`: it works for another broker.
    """

    __slots__ = ("_first", "_is_broker", "_lane", "_left")

    def __init__(self, lane: SlowLane, is_broker: bool = False) -> None:
        self._lane = lane
        self._is_broker = is_broker
        self._first = FIRST
        """What is left of the elements that it may begin with; 0 when it has waited for a slice."""
        self._left = 0
        """Of its own slice."""

    @property
    def is_used_up(self) -> bool:
        """Whether `spend` would wait for the next slice."""
        return self._left <= 0 and (self._first <= 0 or self._lane.room <= 0)

    async def spend(self, elements: int = 1) -> None:
        """So many elements will be worked on next; waits for another slice if this one is used up."""
        if self._left <= 0 and self._first > 0 and self._lane.take(elements):
            self._first -= elements
            return
        if self._left <= 0:
            await self._wait(elements)
        self._left -= elements

    async def _wait(self, elements: int) -> None:
        if self._first > 0:
            await self._lane.first_turn(max(self._first, elements), self._is_broker)
            self._left, self._first = self._first, 0
        else:
            await self._lane.turn(self._is_broker)
            self._left = SLICE

    async def each(self, items: Iterable[T], cost: int = 1) -> AsyncIterator[T]:
        """The items, one after the other, with a rest after each slice."""
        for item in items:
            await self.spend(cost)
            yield item

    async def slices(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """The items, as many at once as the slice has room for."""
        start = 0
        while start < len(items):
            if self.is_used_up:
                await self._wait(1)
            room = self._left if self._left > 0 else min(self._first, self._lane.room)
            part = items[start : start + room]
            await self.spend(len(part))
            yield part
            start += len(part)


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
