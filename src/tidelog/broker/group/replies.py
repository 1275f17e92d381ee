"""Tickets: the way of an answer back to the request, whether it is there at once or comes later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeGuard, TypeVar

from tidelog.broker.dispatch import Later
from tidelog.broker.pacing import FIRST, SlowLane
from tidelog.net.connection import ServerConnection
from tidelog.wire import Message
from tidelog.wire.frames import FIRST_STEP_ELEMENTS
from tidelog.wire.messages.groups import JoinGroupResponse

Part = TypeVar("Part", bound=Message)
Fact = TypeVar("Fact")


LARGE_BYTES = 64 * 1024
"""A JoinGroup response with more metadata is encoded in slices."""


def is_large(message: Message | Later) -> TypeGuard[JoinGroupResponse]:
    """The leader of a group is told the metadata of all members, which may be 128 MiB."""
    if not isinstance(message, JoinGroupResponse) or not message.members:
        return False
    return len(message.members) > FIRST or sum(len(member.metadata) for member in message.members) > LARGE_BYTES


async def in_slices(lane: SlowLane, message: JoinGroupResponse) -> Message:
    """The answer of a handler that awaits something is encoded in slices (`dispatch`). Many may begin at the same time,
    so each waits for a turn with room for its first slice. All members wait for their leader, so it does not wait
    behind the requests of all clients."""
    await lane.first_turn(min(len(message.members), FIRST_STEP_ELEMENTS), is_broker=True)
    return message


class Reply(Later):
    """The ticket of a request with one answer."""

    __slots__ = ("_connection", "_lane", "_message")

    def __init__(self, connection: ServerConnection | None = None, lane: SlowLane | None = None) -> None:
        super().__init__()
        self._connection = connection
        self._lane = lane
        """Where a large answer waits for its turn, if one may come."""
        self._message: Message | None = None

    @property
    def is_gone(self) -> bool:
        """The connection is closed, so the answer cannot be delivered."""
        return self._connection is not None and self._connection.is_closed

    def give(self, message: Message) -> None:
        lane = self._lane
        if self._send is None:
            self._message = message
        elif lane is not None and is_large(message):
            self.answer(lambda: in_slices(lane, message))
        else:
            self.answer(lambda: message)

    @property
    def result(self) -> Message | Later:
        """For the handler to return."""
        return self if self._message is None else self._message

    async def wait(self) -> Message:
        return await super().wait() if self._message is None else self._message


class Told(Generic[Fact]):
    """The ticket of a handler that needs something to go on with."""

    def __init__(self) -> None:
        self._told: asyncio.Future[Fact] = asyncio.get_running_loop().create_future()

    def give(self, fact: Fact) -> None:
        if not self._told.done():
            self._told.set_result(fact)

    async def wait(self) -> Fact:
        return await self._told


class _Share(Generic[Part]):
    """The ticket of one part of a request."""

    __slots__ = ("_index", "_whole")

    def __init__(self, whole: Gathered[Part], index: int) -> None:
        self._whole = whole
        self._index = index

    def give(self, part: Part) -> None:
        self._whole.part_given(self._index, part)


class Gathered(Generic[Part]):
    """A request whose parts are answered each by itself: its answer is there when the last of them is."""

    def __init__(self, count: int, make: Callable[[list[Part]], Message]) -> None:
        self.tickets = [_Share(self, index) for index in range(count)]
        self._parts: list[Any] = [None] * count
        self._missing = count
        self._make = make
        self._reply = Reply()

    def part_given(self, index: int, part: Part) -> None:
        self._parts[index] = part
        self._missing -= 1
        if not self._missing:
            self._reply.give(self._make(self._parts))

    @property
    def result(self) -> Message | Later:
        """For the handler to return."""
        return self._reply.result if self._parts else self._make([])

    async def wait(self) -> Message:
        """For a handler that has awaited something before."""
        result = self.result
        return await result.wait() if isinstance(result, Later) else result
