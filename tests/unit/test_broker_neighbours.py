"""Requests to the controller: one connection, however many questions there are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.kits.netkit import every_loop
from tidelog.broker.metadata import MetadataCache
from tidelog.broker.neighbours import Neighbours
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.types import BrokerId
from tidelog.wire.messages.controller import AlterPartitionRequest

OPENING_S = 0.02


class Metadata:
    controller_id = 2


class Peer:
    """A connection that answers with the broker it leads to."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.closed = False

    async def call(self, request: object, version: int, timeout_ms: float) -> BrokerId:
        return self.broker

    def close(self) -> None:
        self.closed = True


class Opened(Neighbours):
    """Connections that take a while to open, or fail then."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(1, cast(MetadataCache, metadata), "L", lambda: 30_000)
        self.peers: list[Peer] = []
        self.tries = 0
        self.failure: Exception | None = None

    async def connect(self, broker: BrokerId, purpose: str, timeout_ms: float = 0.0) -> Connection:
        self.tries += 1
        await asyncio.sleep(OPENING_S)
        if self.failure is not None:
            raise self.failure
        self.peers.append(Peer(broker))
        return cast(Connection, self.peers[-1])

    async def ask(self) -> Any:
        return await self.ask_controller(AlterPartitionRequest(), 3)


@every_loop
async def test_questions_that_come_at_once_share_one_connection() -> None:
    neighbours = Opened(Metadata())
    assert await asyncio.gather(*(neighbours.ask() for _ in range(1000))) == [2] * 1000
    assert await neighbours.ask() == 2
    assert neighbours.tries == 1


@every_loop
async def test_a_connection_that_fails_is_opened_anew_by_the_next_question() -> None:
    neighbours = Opened(Metadata())
    neighbours.failure = OSError("refused")
    failures = await asyncio.gather(*(neighbours.ask() for _ in range(10)), return_exceptions=True)
    assert {str(failure) for failure in failures} == {"refused"}
    assert neighbours.tries == 1
    neighbours.failure = None
    assert await neighbours.ask() == 2


@every_loop
async def test_a_question_that_is_given_up_leaves_the_connection_to_the_others() -> None:
    neighbours = Opened(Metadata())
    asking = [asyncio.ensure_future(neighbours.ask()) for _ in range(2)]
    await asyncio.sleep(OPENING_S / 2)
    asking[0].cancel()
    assert await asking[1] == 2


@every_loop
async def test_a_new_controller_is_asked_while_the_connection_to_the_old_one_is_being_opened() -> None:
    metadata = Metadata()
    neighbours = Opened(metadata)
    old = asyncio.ensure_future(neighbours.ask())
    await asyncio.sleep(OPENING_S / 2)
    metadata.controller_id = 3
    neighbours.controller_changed()
    assert await neighbours.ask() == 3
    with pytest.raises(ConnectionClosedError):
        await old
    await asyncio.sleep(2 * OPENING_S)
    assert await neighbours.ask() == 3
    assert [peer.broker for peer in neighbours.peers if not peer.closed] == [3]


@every_loop
async def test_nothing_is_opened_after_the_end() -> None:
    neighbours = Opened(Metadata())
    asking = asyncio.ensure_future(neighbours.ask())
    await asyncio.sleep(OPENING_S / 2)
    neighbours.close()
    with pytest.raises(ConnectionClosedError):
        await asking
    assert [peer for peer in neighbours.peers if not peer.closed] == []
