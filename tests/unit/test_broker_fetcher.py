"""What a fetcher asks its leader for, request by request; what it does with answers is told in the simulator."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.brokerkit import Kit, run
from tidelog.broker.fetcher import Fetcher, FetcherSettings
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse

SESSION = 7


class Leader:
    """The other end: notes what comes, and answers when it is told to."""

    closed = False

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    async def negotiate(self, *, timeout_ms: int) -> None:
        pass

    def pick(self, api_key: int, versions: Any) -> int:
        return int(versions.last)

    async def drain(self) -> None:
        pass

    def send(self, request: FetchRequest, version: int, *, timeout_ms: int) -> asyncio.Future[FetchResponse]:
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((request, answer))
        return answer

    def close(self) -> None:
        self.closed = True

    async def answers(self, count: int) -> FetchRequest:
        """The request that comes after the answer to the last of so many."""
        self.asked[count - 1][1].set_result(FetchResponse(session_id=SESSION))
        await eventually(lambda: len(self.asked) > count)
        return self.asked[count][0]


def _named(request: FetchRequest) -> tuple[int, int, int, int]:
    """Session, its epoch, how many topics are named, and by which life."""
    return request.session_id, request.session_epoch, len(request.topics), request.replica_state.replica_epoch


def test_a_new_life_names_all_partitions_again() -> None:
    """Leaders of idle ones would go on with the life before, in which it may not join the ISR (seed 2755)."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        leader, life = Leader(), [5]

        async def connect(_: int) -> Connection:
            return cast(Connection, leader)

        fetcher = Fetcher(2, 1, lambda: life[0], connect, FetcherSettings())
        fetcher.add(kit.partition(), 0)
        await eventually(lambda: len(leader.asked) == 1)
        assert _named(leader.asked[0][0]) == (0, 0, 1, 5)
        assert _named(await leader.answers(1)) == (SESSION, 1, 0, 5)
        life[0] = 9
        assert _named(await leader.answers(2)) == (0, 0, 1, 9)
        assert _named(await leader.answers(3)) == (SESSION, 1, 0, 9)
        await fetcher.stop()

    run(story)
