"""Fetch sessions (KIP-227): what is remembered, what an incremental answer holds, and what it costs."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.kits.brokerkit import FETCH, FETCH_BY_NAME, Kit, fetch_request, fetched, run, values_of, within
from tests.kits.logkit import FixedClock, batch
from tidelog.broker.fetch_reading import FetchReading
from tidelog.broker.fetch_sessions import FetchSession, FetchSessions, PartitionTotal
from tidelog.broker.handlers import fetch as fetch_handler
from tidelog.broker.pacing import SLICE
from tidelog.errors import ErrorCode
from tidelog.host.clock import system_random
from tidelog.lab.broker import eventually
from tidelog.metrics import Metrics
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchResponse,
    FetchResponsePartitionData,
)

MANY = 1_000_000
Found = dict[tuple[str | bytes, int], FetchResponsePartitionData]


class Reader:
    """A client with a session: sends what is new, keeps what it was told, counts what is read for it."""

    def __init__(self, kit: Kit, version: int = FETCH_BY_NAME) -> None:
        self.kit = kit
        self.version = version
        self.session_id = 0
        self.epoch = 0

    async def ask(
        self,
        wanted: Mapping[tuple[str | bytes, int], int] | None = None,
        *,
        forget: Iterable[tuple[str | bytes, int]] = (),
        **options: Any,
    ) -> FetchResponse:
        request = fetch_request(wanted or {}, session_id=self.session_id, session_epoch=self.epoch, **options)
        request.forgotten_topics_data = [
            FetchRequestForgottenTopic(topic_id=name, partitions=[index])
            if isinstance(name, bytes)
            else FetchRequestForgottenTopic(topic=name, partitions=[index])
            for name, index in forget
        ]
        answer: FetchResponse = await self.kit.call(request, self.version)
        return answer

    async def fetch(self, wanted: Mapping[tuple[str | bytes, int], int] | None = None, **options: Any) -> Found:
        answer = await self.ask(wanted, **options)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.session_id = answer.session_id
        self.epoch += 1
        return fetched(answer)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    """Every look at a partition that a fetch takes."""
    found: list[TopicPartition] = []
    read, read_cold = FetchReading.read, FetchReading.read_cold

    def counted(self: Any, item: Any) -> Any:
        found.append(TopicPartition(item.topic, item.index))
        return read(self, item)

    async def counted_cold(self: Any, item: Any) -> Any:
        found.append(TopicPartition(item.topic, item.index))
        return await read_cold(self, item)

    monkeypatch.setattr(FetchReading, "read", counted)
    monkeypatch.setattr(FetchReading, "read_cold", counted_cold)
    return found


@pytest.mark.parametrize("version", [7, 9, FETCH_BY_NAME])
def test_a_session_by_name(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        reader = Reader(kit, version)
        first = await reader.fetch({("t", index): 0 for index in range(3)})
        assert reader.session_id > 0
        assert list(first) == [("t", 0), ("t", 1), ("t", 2)], "the first answer names all"
        assert await reader.fetch() == {}
        await kit.produce(index=1)
        assert {key: values_of(one) for key, one in (await reader.fetch()).items()} == {("t", 1): [b"value"]}
        assert {key: values_of(one) for key, one in (await reader.fetch()).items()} == {("t", 1): [b"value"]}
        assert await reader.fetch({("t", 1): 1}) == {}
        assert await reader.fetch() == {}

    run(story)


def test_a_session_by_id() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t", 2)
        reader = Reader(kit, FETCH)
        await reader.fetch({(topic_id, 0): 0, (topic_id, 1): 0})
        await kit.produce(index=1)
        assert list(await reader.fetch()) == [(topic_id, 1)]
        reader.version = FETCH_BY_NAME
        assert (await reader.ask()).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    run(story)


def test_an_incremental_fetch_looks_at_what_changed_alone(reads: list[TopicPartition]) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1000)
        reader = Reader(kit)
        assert len(await reader.fetch({("t", index): 0 for index in range(1000)})) == 1000
        assert len(reads) == 1000
        reads.clear()
        for _ in range(3):
            assert await reader.fetch() == {}
        assert reads == []
        await kit.produce(index=700)
        assert list(await reader.fetch()) == [("t", 700)]
        assert reads == [TopicPartition("t", 700)]
        reads.clear()
        assert await reader.fetch({("t", 700): 1}, max_wait_ms=50) == {}
        assert reads == [TopicPartition("t", 700)]
        reads.clear()
        async with within(1.0):
            connection = await kit.connect()
            request = fetch_request({}, session_id=reader.session_id, session_epoch=reader.epoch, max_wait_ms=60_000)
            waiting = connection.send(request, FETCH_BY_NAME)
            await eventually(lambda: next(iter(kit.broker.fetch_sessions._sessions.values())).parked is not None)
            await kit.produce(index=3)
            assert list(fetched(await waiting)) == [("t", 3)]
        assert reads == [TopicPartition("t", 3)]

    run(story)


def test_news_without_records() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        reader = Reader(kit)
        await reader.fetch({("t", 0): 1})
        assert await reader.fetch() == {}
        kit.partition().log.log_start_offset = 1
        kit.partition().log_start_moved()
        news = await reader.fetch()
        assert news["t", 0].log_start_offset == 1
        assert await reader.fetch() == {}

    run(story)


def test_who_names_a_partition_again_without_having_read_on_is_told_all_again() -> None:
    """It has passed over an answer, maybe (seed 30191: a follower that had begun anew never heard of the HW)."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        reader = Reader(kit)
        assert (await reader.fetch({("t", 0): 1}))["t", 0].high_watermark == 1
        assert (await reader.fetch({("t", 0): 1}))["t", 0].high_watermark == 1
        assert await reader.fetch() == {}

    run(story)


def test_what_is_told_beside_records_that_the_client_has_already_is_told_again() -> None:
    """Two fetches of a session may wait for the device and read one position: the client takes one of the answers.

    A follower that was told of a HW in the other one alone stayed behind until the next record (seed 192).
    """
    session = FetchSession(7, uses_topic_ids=False, now_ms=0, total=PartitionTotal())
    item = session.add(FetchPartition(partition=0, fetch_offset=97), "t", b"")
    first = FetchResponsePartitionData(high_watermark=98, records=b"the record at 97")
    second = FetchResponsePartitionData(high_watermark=99, records=b"the record at 97")
    later = FetchResponsePartitionData(high_watermark=99, records=b"")
    assert item.is_news(first, 0)
    assert item.is_news(second, 1)
    assert item.told_high_watermark == 98, "of the answer that the client takes"
    session.add(FetchPartition(partition=0, fetch_offset=98), "t", b"")
    assert item.is_news(later, 2)
    assert not item.is_news(later, 3)


def test_what_is_told_to_a_fetch_from_before_the_partition_was_named_is_told_again() -> None:
    """The fetch waited for the device, and answers of a partition that the next one has named: the client passes over.

    A follower that was told of a HW or of a log start in that answer alone stayed behind (seed 20177).
    """
    session = FetchSession(7, uses_topic_ids=False, now_ms=0, total=PartitionTotal())
    session.requests = 2
    item = session.add(FetchPartition(partition=0, fetch_offset=97), "t", b"")
    answer = FetchResponsePartitionData(high_watermark=99, log_start_offset=6, records=b"")
    assert item.is_news(answer, 1)
    assert item.is_news(answer, 2), "the client has not heard of it"
    assert not item.is_news(answer, 3)


def test_forgotten_partitions_say_no_more() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        reader = Reader(kit)
        await reader.fetch({("t", 0): 0, ("t", 1): 0})
        assert await reader.fetch(forget=[("t", 0), ("nobody", 5)]) == {}
        assert not kit.partition("t", 0).watchers
        await kit.produce(index=0)
        await kit.produce(index=1)
        assert list(await reader.fetch()) == [("t", 1)]
        assert list(await reader.fetch({("t", 0): 0})) == [("t", 1), ("t", 0)]

    run(story)


def test_epochs_and_unknown_sessions() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = Reader(kit)
        await reader.fetch({("t", 0): 0})
        reader.epoch += 1
        answer = await reader.ask()
        assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
        reader.epoch -= 1
        assert await reader.fetch() == {}
        assert (await Reader(kit).ask({("t", 0): 0})).error_code == 0
        lost = Reader(kit)
        lost.session_id, lost.epoch = 12345, 3
        assert (await lost.ask()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        lost.session_id, lost.epoch = 0, 3
        assert (await lost.ask()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(story)


def test_closing_a_session() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = Reader(kit)
        await reader.fetch({("t", 0): 0})
        session_id = reader.session_id
        reader.epoch = -1
        answer = await reader.ask({("t", 0): 0})
        assert (answer.error_code, answer.session_id) == (0, 0)
        assert not kit.partition().watchers
        reader.session_id, reader.epoch = session_id, 1
        assert (await reader.ask()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(story)


def test_a_new_session_takes_the_place_of_the_old() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = Reader(kit)
        for _ in range(5):
            reader.epoch = 0
            await reader.fetch({("t", 0): 0})
        assert len(kit.broker.fetch_sessions._sessions) == 1
        assert len(kit.partition().watchers) == 1

    run(story)


def test_without_a_free_slot_there_is_no_session() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        first, second = Reader(kit), Reader(kit)
        await first.fetch({("t", 0): 0})
        await second.fetch({("t", 0): 0})
        assert second.session_id == 0
        assert await first.fetch() == {}

    run(story, max_incremental_fetch_session_cache_slots="1")


def test_a_session_unused_for_long_makes_room() -> None:
    clock = FixedClock()
    metrics = Metrics()
    sessions = FetchSessions(1, MANY, clock, system_random(), metrics)

    def new() -> int:
        opened = sessions.open(fetch_request({}, session_epoch=0), True)
        assert not isinstance(opened, ErrorCode)
        return opened.session.id

    old = new()
    clock.now_ms += 119_000
    assert new() == 0
    clock.now_ms += 2_000
    assert new() not in (0, old)
    known = sessions.open(fetch_request({}, session_id=old, session_epoch=1), True)
    assert known is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert "evictions_total 1" in metrics.text()


class Cache:
    """Sessions of clients and followers, with a clock that stands still."""

    def __init__(self, slots: int, most_partitions: int = 1_000) -> None:
        self.clock, self.metrics = FixedClock(), Metrics()
        self._sessions = FetchSessions(slots, most_partitions, self.clock, system_random(), self.metrics)

    def new(self, partitions: int = 1, *, follower: bool = False) -> FetchSession:
        request = fetch_request({("t", index): 0 for index in range(partitions)}, session_epoch=0)
        opened = self._sessions.open(request, False, is_privileged=follower)
        assert not isinstance(opened, ErrorCode)
        self._add(opened.session, request)
        return opened.session

    def use(self, session: FetchSession, *partitions: int) -> ErrorCode:
        request = fetch_request(
            {("t", index): 0 for index in partitions}, session_id=session.id, session_epoch=session.epoch
        )
        opened = self._sessions.open(request, False, is_privileged=session.is_privileged)
        if isinstance(opened, ErrorCode):
            return opened
        self._add(opened.session, request)
        return ErrorCode.NONE

    def partitions(self) -> int:
        (line,) = [line for line in self.metrics.text().splitlines() if "partitionscached " in line and line[0] != "#"]
        return int(line.split()[1])

    @staticmethod
    def _add(session: FetchSession, request: FetchRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                session.add(partition, topic.topic, b"")


def test_clients_do_not_take_the_place_of_a_follower_at_work() -> None:
    cache = Cache(slots=2)
    followers = [cache.new(follower=True) for _ in range(2)]
    for _ in range(5):
        cache.clock.now_ms += 100_000
        assert [cache.use(session) for session in followers] == [ErrorCode.NONE] * 2
        assert cache.new(500).id == 0
    cache.clock.now_ms += 121_000
    assert cache.new().id != 0, "they are gone"


def test_a_follower_takes_the_place_of_a_client_that_has_had_its_time() -> None:
    cache = Cache(slots=2)
    small, large = cache.new(1), cache.new(50)
    cache.clock.now_ms += 60_000
    assert cache.new(follower=True).id == 0, "not so soon"
    cache.clock.now_ms += 59_000
    assert (cache.use(small), cache.use(large)) == (ErrorCode.NONE, ErrorCode.NONE)
    cache.clock.now_ms += 2_000
    assert cache.new(follower=True).id != 0
    assert cache.use(small) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.use(large) is ErrorCode.NONE


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_has_had_its_time() -> None:
    cache = Cache(slots=1)
    small = cache.new(10)
    cache.clock.now_ms += 119_000
    cache.use(small)
    cache.clock.now_ms += 2_000
    assert cache.new(10).id == 0, "one of the same size is worth no more"
    large = cache.new(11)
    assert large.id != 0
    assert cache.use(small) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.partitions() == 11


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    cache = Cache(slots=10, most_partitions=20)
    first = cache.new(15)
    assert (cache.new(6).id, cache.partitions()) == (0, 15)
    assert (cache.use(first, *range(20)), cache.partitions()) == (ErrorCode.NONE, 20)
    assert cache.use(first, 3, 4, 5) is ErrorCode.NONE, "it has them already"
    assert cache.new(30, follower=True).id != 0, "followers are not bounded"
    assert cache.use(first, 20) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.partitions() == 30
    assert cache.new(21).id == 0, "so the client goes on without a session"


def test_session_epochs_begin_again_at_one() -> None:
    sessions = FetchSessions(1, MANY, FixedClock(), system_random(), Metrics())
    opened = sessions.open(fetch_request({}, session_epoch=0), True)
    assert not isinstance(opened, ErrorCode)
    opened.session.epoch = 2**31 - 1
    request = fetch_request({}, session_id=opened.session.id, session_epoch=2**31 - 1)
    assert not isinstance(sessions.open(request, True), ErrorCode)
    assert opened.session.epoch == 1


def test_errors_are_told_again_and_again_until_they_are_over() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        reader = Reader(kit)
        await reader.fetch({("t", 0): 0, ("late", 0): 0})
        for _ in range(3):
            found = await reader.fetch()
            assert {key: one.error_code for key, one in found.items()} == {
                ("late", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
        await kit.create_topic("late")
        found = await reader.fetch()
        assert (found["late", 0].error_code, found["late", 0].high_watermark) == (0, 0)
        assert await reader.fetch() == {}

    run(story)


def test_an_unknown_id_becomes_known() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        reader = Reader(kit, FETCH)
        late = b"\x01" * 16
        assert (await reader.fetch({(late, 0): 0}))[late, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        partition = kit.partition()
        partition.topic_id = late
        kit.broker.metadata._names[late] = "t"
        assert (await reader.fetch())[late, 0].error_code == 0

    run(story)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_topic_that_is_deleted_and_made_anew(by_id: bool) -> None:
    async def story(kit: Kit) -> None:
        old = await kit.create_topic("t")
        reader = Reader(kit, FETCH if by_id else FETCH_BY_NAME)
        key: tuple[str | bytes, int] = (old, 0) if by_id else ("t", 0)
        await reader.fetch({key: 0})
        gone = weakref.ref(kit.partition())
        await kit.delete_topic()
        code = (await reader.fetch())[key].error_code
        assert code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        gc.collect()
        assert gone() is None, "nobody holds what was deleted"
        new = await kit.create_topic("t")
        await kit.produce()
        found = (await reader.fetch())[key]
        if by_id:
            assert found.error_code in (ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID)
            found = (await reader.fetch({(new, 0): 0}, forget=[key]))[new, 0]
        assert values_of(found) == [b"value"]

    run(story)


# Fairness


@pytest.mark.parametrize("cold", [False, True])
def test_what_did_not_fit_comes_with_the_next_fetch(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 4)
        for index in range(3):
            await kit.produce(batch([b"x" * 1000]), index=index)
        reader = Reader(kit)
        wanted: dict[tuple[str | bytes, int], int] = {("t", index): 0 for index in range(4)}
        got: dict[tuple[str | bytes, int], int] = {}
        for _ in range(3):
            found = await reader.fetch(wanted, max_bytes=1000)
            wanted = {key: 1 for key, one in found.items() if one.records}
            got.update(dict.fromkeys(wanted, 1))
        assert list(got) == [("t", 0), ("t", 1), ("t", 2)]

    run(story, cold=cold)


@pytest.mark.parametrize("cold", [False, True])
def test_nobody_starves_beside_a_busy_partition(cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 5)
        for index in (0, 1, 2):
            for _ in range(10):
                await kit.produce(batch([b"x" * 1000]), index=index)
        reader = Reader(kit)
        offsets = dict.fromkeys(range(5), 0)
        wanted: dict[tuple[str | bytes, int], int] = {("t", index): 0 for index in offsets}
        turns: list[int] = []
        for _ in range(9):
            found = await reader.fetch(wanted, max_bytes=1000)
            wanted = {}
            for (_, index), one in found.items():
                if one.records:
                    turns.append(index)
                    offsets[index] += 1
                    wanted["t", index] = offsets[index]
        assert {index: turns.count(index) for index in (0, 1, 2)} == {0: 3, 1: 3, 2: 3}, turns

    run(story, cold=cold)


def test_a_parked_fetch_of_a_session_that_is_closed_is_answered() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = Reader(kit)
        await reader.fetch({("t", 0): 0})
        connection = await kit.connect()
        request = fetch_request({}, session_id=reader.session_id, session_epoch=1, max_wait_ms=60_000)
        waiting = connection.send(request, FETCH_BY_NAME)
        await eventually(lambda: next(iter(kit.broker.fetch_sessions._sessions.values())).parked is not None)
        async with within(1.0):
            reader.epoch = -1
            await reader.ask()
            assert fetched(await waiting) == {}

    run(story)


def test_abandoned_sessions_cost_their_partitions_nothing_for_long() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(50):
            await Reader(kit).fetch({("t", 0): 0})
        partition = kit.partition()
        assert len(partition.watchers) == 50
        await kit.produce()
        assert not partition.watchers
        last = Reader(kit)
        last.session_id, last.epoch = list(kit.broker.fetch_sessions._sessions)[-1], 1
        assert values_of((await last.fetch())["t", 0]) == [b"value"]
        assert len(partition.watchers) == 1

    run(story)


def test_a_session_closed_while_the_device_is_read_is_not_heard_of_again() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 5)
        for index in range(5):
            await kit.produce(index=index)
        reader = Reader(kit)
        await reader.fetch({("t", index): 0 for index in range(5)})
        for steps in range(1, 40, 3):
            connection = await kit.connect()
            request = fetch_request({}, session_id=reader.session_id, session_epoch=reader.epoch, max_wait_ms=100)
            waiting = connection.send(request, FETCH_BY_NAME)
            for _ in range(steps):
                await asyncio.sleep(0.0001)
            reader.epoch = -1
            await reader.ask()
            await waiting
            assert not any(partition.watchers for partition in kit.partitions())
            reader.epoch = 0
            await reader.fetch({("t", index): 0 for index in range(5)})

    run(story, cold=True)


# In slices


def test_a_session_that_is_closed_while_a_fetch_names_partitions_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions were counted for ever, and after some such fetches no client got a session."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1_200)
        sessions = kit.broker.fetch_sessions
        name, times = fetch_handler._name, 0

        def names_and_closes(broker: Any, session: FetchSession, *rest: Any) -> None:
            nonlocal times
            times += 1
            name(broker, session, *rest)
            if times == 2:
                sessions.forget([session])

        for wanted in range(600, 1_200, 300):
            reader = Reader(kit)
            await reader.fetch({("t", 0): 0})
            times = 0
            with monkeypatch.context() as patched:
                patched.setattr(fetch_handler, "_name", names_and_closes)
                answer = await reader.ask({("t", index): 0 for index in range(wanted)})
            assert times == 2
            assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert sessions._total.count == 0
            assert not any(partition.watchers for partition in kit.partitions())

    run(story)


class WorkInTurns:
    """How many partitions are read or answered from one turn of the loop to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        read, add_answers = FetchReading.read, FetchReading.add_answers

        def counted_read(fetch: Any, item: Any) -> Any:
            self._count(1)
            return read(fetch, item)

        def counted_answers(fetch: Any, topics: Any, answers: Any) -> None:
            self._count(len(answers))
            add_answers(fetch, topics, answers)

        monkeypatch.setattr(FetchReading, "read", counted_read)
        monkeypatch.setattr(FetchReading, "add_answers", counted_answers)

    def _count(self, partitions: int) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._now += partitions

    def _end_turn(self) -> None:
        self.most = max(self.most, self._now)
        self._now = 0


PARKED, WIDE = 20, 400


async def park(kit: Kit, max_wait_ms: int) -> list[Any]:
    """Fetches that wait, each with many partitions."""
    await kit.create_topic("t", WIDE)
    request = fetch_request({("t", index): 0 for index in range(WIDE)}, max_wait_ms=max_wait_ms)
    waiting = [(await kit.connect()).send(request, FETCH_BY_NAME) for _ in range(PARKED)]
    await eventually(lambda: len(kit.broker._dispatcher._parked) == PARKED)
    return waiting


def change_all(kit: Kit) -> None:
    for partition in kit.partitions():
        for item in list(partition.watchers):
            item.changed()


def test_fetches_that_wake_together_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        waiting = await park(kit, 60_000)
        work = WorkInTurns(monkeypatch)
        change_all(kit)
        await asyncio.sleep(0.1)
        assert WIDE <= work.most <= 2 * SLICE + WIDE
        assert len(kit.broker._dispatcher._parked) == PARKED, "there is nothing to read yet"
        await kit.produce()
        async with within(5.0):
            assert all([len(fetched(await answer)) == WIDE for answer in waiting])
        assert work.most <= 2 * SLICE + WIDE

    run(story)


def test_fetches_whose_time_is_over_together_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        waiting = await park(kit, 1_000)
        work = WorkInTurns(monkeypatch)
        for item in list(kit.partition().watchers):
            asyncio.get_running_loop().call_later(0.1, item.session.parked.give_way)
        assert all([len(fetched(await answer)) == WIDE for answer in waiting])
        assert WIDE <= work.most <= 2 * SLICE + WIDE

    run(story)


def test_a_woken_fetch_that_waits_for_its_turn_is_answered_when_its_time_is_over() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 100)
        connection = await kit.connect()
        request = fetch_request({("t", index): 0 for index in range(100)}, max_wait_ms=1_000)
        waiting = connection.send(request, FETCH_BY_NAME)
        await eventually(lambda: len(kit.broker._dispatcher._parked) == 1)
        (parked,) = {item.session.parked for partition in kit.partitions() for item in partition.watchers}
        assert parked is not None
        kit.broker.lane.take(SLICE)  # nothing is left of this turn
        change_all(kit)
        parked._look()  # type: ignore[attr-defined]
        parked.give_way()
        async with within(0.5):
            assert len(fetched(await waiting)) == 100
        assert not any(partition.watchers for partition in kit.partitions())

    run(story)


def test_fetches_without_a_session_wait_with_so_many_partitions() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        first, second = await kit.connect(), await kit.connect()
        request = fetch_request({("t", index): 0 for index in range(3)}, max_wait_ms=60_000)
        waiting = first.send(request, FETCH_BY_NAME)
        await eventually(lambda: len(kit.broker._dispatcher._parked) == 1)
        async with within(1.0):
            assert len(fetched(await second.send(request, FETCH_BY_NAME))) == 3, "at once, with what there is"
            reader = Reader(kit)
            await reader.fetch({("t", 0): 0})
        await kit.produce()
        assert len(fetched(await waiting)) == 3
        assert kit.broker.waiting_fetches._partitions == 0
        again = first.send(fetch_request({("t", 1): 0}, max_wait_ms=1_000), FETCH_BY_NAME)
        await eventually(lambda: len(kit.broker._dispatcher._parked) == 1)
        await again
        assert kit.broker.waiting_fetches._partitions == 0

    run(story, tidelog_fetch_session_partitions_max="5")
