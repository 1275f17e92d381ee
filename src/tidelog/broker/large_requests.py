"""How many large requests are decoded and handled at a time.

A decoded request takes up to 40 times the memory of its bytes, and its answer as much again. So a large request waits
for a place before it is decoded, and keeps it until it is answered, or until only waiting is left of it: it is parked
in purgatory, or rests until the change that it asked for shows (`long_waits`). Requests get their places in the order
they came. Resting requests may be as large together as those with a place; if they are larger, the first is given up.

Places are counted in elements. How many elements a request has is known when it is decoded. Until then it counts with
as many as its bytes may hold.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.long_waits import GiveUp
from tidelog.metrics import Metrics
from tidelog.net.channel import Call

_BYTES_OF_ELEMENT = 512
"""Of a request with long strings the bytes count too. An element with its answer takes about so much memory."""


def weight(elements: int, frame_bytes: int) -> int:
    """Elements that a request counts for."""
    return elements + frame_bytes // _BYTES_OF_ELEMENT


class Place:
    """The place of one request. `leave` is called once by each of its users."""

    __slots__ = ("_elements", "_rests", "_room", "_users")

    def __init__(self, room: LargeRequests, elements: int) -> None:
        self._room = room
        self._elements = elements
        self._users = 1
        self._rests = False

    def shrink(self, elements: int) -> None:
        """The request has only so many."""
        surplus = self._elements - elements
        if surplus > 0:
            self._elements = elements
            self._room.give(surplus)

    def share(self) -> None:
        """One more user."""
        self._users += 1

    def rest(self, give_up: GiveUp) -> None:
        """Only waiting is left: others get the place. `give_up` ends the wait, if too much rests."""
        if not self._rests:
            self._rests = True
            self._room.give(self._elements)
        self._room.rest(self, self._elements, give_up)

    def leave(self) -> bool:
        """Whether this was the last user."""
        self._users -= 1
        if self._users:
            return False
        if self._rests:
            self._room.rested(self)
        else:
            self._room.give(self._elements)
        return True


class LargeRequests:
    """The places for the requests of one kind of sender.

    Always: `_held` is what the requests with a place count for. Only a request that is alone may exceed `max_elements`.
    """

    def __init__(self, sender: str, max_elements: int, metrics: Metrics) -> None:
        self._max_elements = max_elements
        self._held = 0
        self._waiting: dict[asyncio.Future[bool], int] = {}
        self._resting: dict[Place, tuple[int, GiveUp]] = {}
        """Those that have given up their places; the first has rested for the longest time."""
        self._resting_elements = 0
        metrics.gauges(
            "tidelog_network_request_channel_large_request_elements",
            "Elements of large requests that are being decoded and handled.",
            "sender",
        ).add(lambda: self._held, sender)
        metrics.gauges(
            "tidelog_network_request_channel_large_requests_waiting",
            "Large requests that wait until there is room for their elements.",
            "sender",
        ).add(lambda: len(self._waiting), sender)
        metrics.gauges(
            "tidelog_network_request_channel_large_requests_resting",
            "Large requests that were handled and wait for something else before they are answered.",
            "sender",
        ).add(lambda: len(self._resting), sender)

    async def enter(self, call: Call, elements: int) -> Place | None:
        """A place as soon as there is one; None if the client goes before."""
        if call.connection.is_closed:
            return None
        if not self._waiting and self._fits(elements):
            self._held += elements
            return Place(self, elements)
        admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[admitted] = elements
        call.when_gone = lambda: None if admitted.done() else admitted.set_result(False)
        try:
            return Place(self, elements) if await admitted else None
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.result():
                self.give(elements)
            raise
        finally:
            call.when_gone = None
            if self._waiting.pop(admitted, None) is not None:
                self._admit()

    def _fits(self, elements: int) -> bool:
        return not self._held or self._held + elements <= self._max_elements

    def give(self, elements: int) -> None:
        self._held -= elements
        self._admit()

    def rest(self, place: Place, elements: int, give_up: GiveUp) -> None:
        self.rested(place)
        self._resting[place] = elements, give_up
        self._resting_elements += elements
        while self._resting_elements > self._max_elements and len(self._resting) > 1:
            first = next(iter(self._resting))
            end_wait = self._resting[first][1]
            self.rested(first)
            end_wait()

    def rested(self, place: Place) -> None:
        """It is given up, or answered."""
        elements, _ = self._resting.pop(place, (0, None))
        self._resting_elements -= elements

    def _admit(self) -> None:
        while self._waiting:
            admitted, elements = next(iter(self._waiting.items()))
            if not admitted.done():
                if not self._fits(elements):
                    return
                self._held += elements
                admitted.set_result(True)
            del self._waiting[admitted]
