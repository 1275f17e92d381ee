"""Very many fetches that wait: how many a connection may have, and how many are told of a change in one turn."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import FETCH_BY_NAME, Kit, fetch_request, fetched, run, values_of, within
from tests.kits.logkit import FixedClock
from tests.unit.test_broker_waiting import SlowClock
from tidelog.broker.waiting import AnswerTime
from tidelog.broker.waiting_fetches import MOST_OF_CONNECTION
from tidelog.broker.watchers import Watchers
from tidelog.lab.broker import eventually

MANY = 200
NEVER_ENOUGH = 2**31 - 1


def parked(kit: Kit) -> int:
    return len(kit.broker._dispatcher._parked)


# Of one connection


def test_so_many_fetches_of_a_connection_wait() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        client, other = await kit.connect(), await kit.connect()
        request = fetch_request({("t", 0): 0}, max_wait_ms=60_000)
        waiting = [client.send(request, FETCH_BY_NAME) for _ in range(50)]
        await eventually(lambda: parked(kit) == MOST_OF_CONNECTION)
        others = other.send(request, FETCH_BY_NAME)
        await eventually(lambda: parked(kit) == MOST_OF_CONNECTION + 1)
        assert not any(answer.done() for answer in waiting), "answers keep their order"
        async with within(1.0):
            await kit.produce()
            assert values_of(fetched(await others)["t", 0]) == [b"value"]
            answers = [values_of(fetched(await answer)["t", 0]) for answer in waiting]
        assert answers[:MOST_OF_CONNECTION] == [[b"value"]] * MOST_OF_CONNECTION
        again = client.send(fetch_request({("t", 0): 1}, max_wait_ms=60_000), FETCH_BY_NAME)
        await eventually(lambda: parked(kit) == 1)
        client.close()
        await asyncio.gather(again, return_exceptions=True)
        await eventually(lambda: parked(kit) == 0)
        assert not kit.broker.waiting_fetches._of

    run(story)


def test_as_many_as_may_wait_go_on_waiting_when_there_is_too_little() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        client = await kit.connect()
        request = fetch_request({("t", 0): 0}, max_wait_ms=30_000, min_bytes=NEVER_ENOUGH)
        waiting = [client.send(request, FETCH_BY_NAME) for _ in range(MOST_OF_CONNECTION)]
        await eventually(lambda: parked(kit) == MOST_OF_CONNECTION)
        for _ in range(3):
            await kit.produce()
        assert parked(kit) == MOST_OF_CONNECTION
        for answer in waiting:
            assert values_of(fetched(await answer)["t", 0]) == [b"value"] * 3

    run(story)


# Of one partition


class Listener:
    def __init__(self, number: int, told: list[int]) -> None:
        self._number = number
        self._told = told

    def changed(self) -> None:
        self._told.append(self._number)


class Listeners:
    """Hear of the changes of a partition, with a clock by which 5 ms are over after some dozens of them."""

    def __init__(self, count: int) -> None:
        self.told: list[int] = []
        self.watchers = Watchers(AnswerTime(SlowClock()))
        self.all = [Listener(number, self.told) for number in range(count)]
        for listener in self.all:
            self.watchers.add(listener)

    async def all_told(self, times: int) -> None:
        """Waits for it, for a bounded number of turns of the loop."""
        for _ in range(100):
            if len(self.told) >= times:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{len(self.told)} of {times} were told")


def test_many_hear_of_a_change_in_several_turns() -> None:
    async def story() -> None:
        listeners = Listeners(MANY)
        listeners.watchers.tell()
        at_once = len(listeners.told)
        assert 0 < at_once < MANY
        in_between: list[int] = []
        asyncio.get_running_loop().call_soon(lambda: in_between.append(len(listeners.told)))
        await listeners.all_told(MANY)
        assert in_between[0] < MANY, "others are served before all have heard of it"
        assert listeners.told == list(range(MANY))

    asyncio.run(story())


def test_a_change_while_some_have_not_heard_of_the_last_one_is_told_with_it() -> None:
    async def story() -> None:
        listeners = Listeners(MANY)
        listeners.watchers.tell()
        first = len(listeners.told)
        listeners.watchers.tell()
        assert len(listeners.told) == first
        await listeners.all_told(MANY + first)
        assert listeners.told == [*range(MANY), *range(first)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(listeners.told) == MANY + first, "each hears of it once"

    asyncio.run(story())


def test_those_who_have_gone_do_not_hear_of_it_and_those_who_stay_do() -> None:
    async def story() -> None:
        listeners = Listeners(MANY)
        listeners.watchers.tell()
        for listener in listeners.all[1::2]:
            listeners.watchers.discard(listener)
        first = len(listeners.told)
        await listeners.all_told(MANY // 2 + first // 2)
        assert set(range(0, MANY, 2)) <= set(listeners.told)
        assert not [number for number in listeners.told[first:] if number % 2]

    asyncio.run(story())


@pytest.mark.parametrize("clock", [SlowClock(), FixedClock()], ids=["slow", "fixed"])
def test_few_hear_of_a_change_at_once(clock: SlowClock | FixedClock) -> None:
    async def story() -> None:
        listeners = Listeners(16)
        listeners.watchers._answer_time = AnswerTime(clock)
        for times in range(1, 20):
            listeners.watchers.tell()
            assert listeners.told == [*range(16)] * times

    asyncio.run(story())
