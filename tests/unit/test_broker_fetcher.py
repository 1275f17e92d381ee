"""What a fetcher asks its leader for, request by request; what it does with answers is told in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import batch
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.fetcher_settings import FetcherSettings
from tidelog.config.broker import BrokerConfig
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)

SETTINGS = FetcherSettings.of(BrokerConfig.defaults())
SESSION = 7


class Leader:
    """The other end: notes what comes, and answers when it is told to."""

    closed = False
    version: int | None = None
    """The newest that it speaks; None for all that the fetcher speaks."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    async def negotiate(self, *, timeout_ms: int) -> None:
        pass

    def pick(self, api_key: int, versions: Any) -> int:
        return self.version or int(versions.last)

    async def drain(self) -> None:
        pass

    def send(self, request: FetchRequest, version: int, *, timeout_ms: int) -> asyncio.Future[FetchResponse]:
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((request, answer))
        return answer

    def close(self) -> None:
        self.closed = True

    async def answers(self, count: int, response: FetchResponse | None = None) -> FetchRequest:
        """The request that comes after the answer to the last of so many."""
        self.asked[count - 1][1].set_result(response or FetchResponse(session_id=SESSION))
        await eventually(lambda: len(self.asked) > count)
        return self.asked[count][0]


def _named(request: FetchRequest) -> tuple[int, int, int, int]:
    """Session, its epoch, how many topics are named, and by which life."""
    return request.session_id, request.session_epoch, len(request.topics), request.replica_state.replica_epoch


def _answer(topic_id: bytes, records: bytes = b"", *, index: int = 0, code: int = 0) -> FetchResponse:
    data = FetchResponsePartitionData(partition_index=index, records=records, error_code=code, high_watermark=0)
    return FetchResponse(session_id=SESSION, responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])])


def _offsets(request: FetchRequest) -> dict[int, int]:
    """What is asked for, by partition."""
    return {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}


def _forgets(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


async def _following(
    kit: Kit, leader: Leader, broker_epoch: Callable[[], int] = lambda: 5, partitions: int = 1
) -> Fetcher:
    """Partitions of the kit's broker, followed in leader epoch 3."""

    async def connect(_: int) -> Connection:
        return cast(Connection, leader)

    fetcher = Fetcher(2, 1, broker_epoch, connect, SETTINGS, lambda size: None)
    for index in range(partitions):
        partition = kit.partition(index=index)
        partition.follow()
        partition.leader_epoch = 3
        fetcher.add(partition, 3)
    return fetcher


def test_edge_30_a_batch_of_a_later_leader_epoch_is_refused_with_all_that_came_with_it() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        old = batch([b"old"], base_offset=0, partition_leader_epoch=3)
        newer = batch([b"newer"], base_offset=1, partition_leader_epoch=4)
        forgetting = await leader.answers(1, _answer(topic_id, old + newer))
        assert kit.partition().log.log_end_offset == 0, "no byte of it is written"
        assert (_offsets(forgetting), _forgets(forgetting)) == ({}, [0]), "it rests"
        assert _offsets(await leader.answers(2)) == {0: 0}, "and is asked for again"
        await leader.answers(3, _answer(topic_id, old))
        assert kit.partition().log.log_end_offset == 1
        await fetcher.stop()

    run(story)


def test_a_fetch_names_so_many_partitions_and_the_next_one_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader refuses a request with too many elements, and would do so for ever."""
    monkeypatch.setattr("tidelog.broker.fetcher.MOST_NAMED", 2)

    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=5)
        leader = Leader()
        fetcher = await _following(kit, leader, partitions=5)
        await eventually(lambda: len(leader.asked) == 1)
        first = leader.asked[0][0]
        rest = [await leader.answers(count) for count in (1, 2, 3)]
        assert [list(_offsets(request)) for request in (first, *rest)] == [[0, 1], [2, 3], [4], []]
        assert [request.session_epoch for request in (first, *rest)] == [0, 1, 2, 3]
        assert [request.max_wait_ms for request in (first, *rest)] == [0, 0, 500, 500], "the rest does not wait"
        for index in range(5):
            await fetcher.remove(kit.partition(index=index))
        forgetting = [await leader.answers(count) for count in (4, 5, 6)]
        assert [_forgets(request) for request in forgetting] == [[0, 1], [2, 3], [4]]
        await fetcher.stop()

    run(story)


def test_a_leader_that_gives_no_session_hears_of_all_partitions_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.fetcher.MOST_NAMED", 2)

    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=3)
        leader = Leader()
        fetcher = await _following(kit, leader, partitions=3)
        await eventually(lambda: len(leader.asked) == 1)
        first = leader.asked[0][0]
        rest = [await leader.answers(count, FetchResponse()) for count in (1, 2, 3)]
        assert [list(_offsets(request)) for request in (first, *rest)] == [[0, 1], [2, 0], [1, 0], [2, 0]]
        await fetcher.stop()

    run(story)


def test_an_error_code_that_is_unknown_here_does_not_end_a_fetcher() -> None:
    unknown = 9999

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        forgetting = await leader.answers(1, _answer(topic_id, code=unknown))
        assert _forgets(forgetting) == [0]
        assert _offsets(await leader.answers(2)) == {0: 0}
        assert _offsets(await leader.answers(3, FetchResponse(error_code=unknown))) == {0: 0}
        await fetcher.stop()

    run(story)


@pytest.mark.parametrize("version", [12, 13, 17])
def test_a_leader_is_told_to_forget_a_partition_that_rests(version: int) -> None:
    """It would answer at once for a partition in error, again and again; below v13 it knows partitions by name."""

    async def story(kit: Kit) -> None:
        leader = Leader()
        leader.version = version
        await kit.create_topic("t", 2)
        fetcher = await _following(kit, leader, partitions=2)
        await eventually(lambda: leader.asked)
        partition = kit.partition(index=1)
        response = _answer(partition.topic_id, index=1, code=ErrorCode.FENCED_LEADER_EPOCH)
        if version < 13:
            response.responses[0].topic = partition.name.topic
        request = await leader.answers(1, response)
        assert _forgets(request) == [1]
        await fetcher.stop()

    run(story, topic=False)


def test_an_unexpected_failure_is_logged_and_the_fetcher_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        leader.asked[0][1].set_exception(ZeroDivisionError("unexpected"))
        await eventually(lambda: len(leader.asked) == 2)
        assert _offsets(leader.asked[1][0]) == {0: 0}
        await fetcher.stop()

    run(story)
    assert "failed unexpectedly" in caplog.text


def test_edge_32_nothing_is_asked_for_while_the_broker_epoch_is_unknown() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(partitions=2)
        leader, epoch = Leader(), [-1]
        fetcher = await _following(kit, leader, lambda: epoch[0])
        await asyncio.sleep(5)
        assert not leader.asked
        epoch[0] = 7
        fetcher.broker_epoch_changed()
        await eventually(lambda: len(leader.asked) == 1)
        await leader.answers(1)
        epoch[0] = -1
        fetcher.add(kit.partition(index=1), 3)  # due at once, while the leader holds the request back
        await asyncio.sleep(1)
        assert len(leader.asked) == 2
        leader.asked[1][1].set_result(FetchResponse(session_id=SESSION))
        await asyncio.sleep(5)
        assert len(leader.asked) == 2
        epoch[0] = 9
        fetcher.broker_epoch_changed()
        await eventually(lambda: len(leader.asked) == 3)
        assert {request.replica_state.replica_epoch for request, _ in leader.asked} == {7, 9}
        await fetcher.stop()

    run(story)


@pytest.mark.parametrize("policy", [{"flush_messages": "1"}, {"flush_ms": "0"}])
def test_edge_33_what_the_flush_policy_asks_for_is_synced_before_the_leader_hears_of_it(policy: dict[str, str]) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(**policy)
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        leader, log = Leader(), kit.partition().log
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        answer = _answer(topic_id, batch([b"0"], base_offset=0, partition_leader_epoch=3))
        leader.asked[0][1].set_result(answer)
        await eventually(lambda: log.log_end_offset == 1)
        await asyncio.sleep(0.03)
        assert (len(leader.asked), log.recovery_point) == (1, 0)
        await eventually(lambda: len(leader.asked) == 2)
        assert log.recovery_point == 1
        request = leader.asked[1][0]
        assert (_offsets(request), _forgets(request)) == ({0: 1}, []), "nothing else was asked for in between"
        await fetcher.stop()

    run(story)


def test_edge_33_a_log_that_is_not_synced_yet_is_synced_before_its_first_fetch() -> None:
    """After a kill its records are in the page cache alone."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"0"]))
        log = kit.partition().log
        assert log.recovery_point == 0
        await kit.alter_topic("t", flush_messages="1")
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        await eventually(lambda: any(_offsets(request) == {0: 1} for request, _ in leader.asked))
        assert log.recovery_point == 1
        await fetcher.stop()

    run(story)


def test_edge_33_partitions_without_a_flush_policy_do_not_wait_for_the_others() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(partitions=2)
        kit.partition(index=0).log.config = replace(kit.partition(index=0).log.config, flush_messages=1)
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        leader = Leader()
        fetcher = await _following(kit, leader, partitions=2)
        await eventually(lambda: len(leader.asked) == 1)
        records = batch([b"0"], base_offset=0, partition_leader_epoch=3)
        answer = _answer(topic_id, records)
        answer.responses += _answer(topic_id, records, index=1).responses
        loop = asyncio.get_running_loop()
        began = loop.time()
        second = await leader.answers(1, answer)
        assert loop.time() - began < 0.02
        assert (_offsets(second), _forgets(second)) == ({1: 1}, [0])
        await eventually(lambda: len(leader.asked) == 3)
        assert loop.time() - began > 0.04
        assert _offsets(leader.asked[2][0]) == {0: 1}
        await fetcher.stop()

    run(story)


def test_edge_33_partitions_that_are_synced_together_do_not_depend_on_each_other() -> None:
    """The request that takes one of them away is given up while it waits for the sync."""

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(partitions=2, flush_messages="1")
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        leader = Leader()
        fetcher = await _following(kit, leader, partitions=2)
        await eventually(lambda: len(leader.asked) == 1)
        records = batch([b"0"], base_offset=0, partition_leader_epoch=3)
        answer = _answer(topic_id, records)
        answer.responses += _answer(topic_id, records, index=1).responses
        leader.asked[0][1].set_result(answer)
        await asyncio.sleep(0.01)
        removing = asyncio.ensure_future(fetcher.remove(kit.partition(index=0)))
        await asyncio.sleep(0.01)
        removing.cancel()
        await eventually(lambda: any(_offsets(request) == {1: 1} for request, _ in leader.asked))
        await fetcher.stop()

    run(story)


def test_a_new_life_names_all_partitions_again() -> None:
    """Leaders of idle ones would go on with the life before, in which it may not join the ISR (seed 2755)."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        leader, life = Leader(), [5]

        async def connect(_: int) -> Connection:
            return cast(Connection, leader)

        fetcher = Fetcher(2, 1, lambda: life[0], connect, SETTINGS, lambda size: None)
        fetcher.add(kit.partition(), 0)
        await eventually(lambda: len(leader.asked) == 1)
        assert _named(leader.asked[0][0]) == (0, 0, 1, 5)
        assert _named(await leader.answers(1)) == (SESSION, 1, 0, 5)
        life[0] = 9
        assert _named(await leader.answers(2)) == (0, 0, 1, 9)
        assert _named(await leader.answers(3)) == (SESSION, 1, 0, 9)
        await fetcher.stop()

    run(story)


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_partition_that_is_taken_away_does_not_wait_for_a_frozen_leader(turns: int) -> None:
    """Whether its repair has asked already, or is just about to."""

    class Frozen(Leader):
        async def call(self, request: Any, version: int, *, timeout_ms: int) -> Any:
            await asyncio.sleep(timeout_ms / 1000)
            raise OSError("timed out")

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        leader = Frozen()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        partition = kit.partition()
        partition.pause()
        number = fetcher._copying[partition.name].asked_in
        fetcher._take_all(number, _answer(topic_id, code=ErrorCode.OFFSET_OUT_OF_RANGE))
        for _ in range(turns):
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await fetcher.remove(partition)
        assert asyncio.get_running_loop().time() - began < 1
        await fetcher.stop()

    run(story)


@pytest.mark.parametrize(("has_epochs", "end"), [(True, 2), (False, 1)])
def test_only_a_log_without_any_epoch_is_cut_to_its_hw(has_epochs: bool, end: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        partition = kit.partition()
        partition.follow()
        partition.log.append_as_follower(batch([b"not committed"], base_offset=1, partition_leader_epoch=0))
        assert (partition.log.log_end_offset, partition.log.high_watermark) == (2, 1)
        if not has_epochs:
            partition.log.epochs.clear()
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: leader.asked)
        asked = _offsets(leader.asked[0][0]) or _offsets(await leader.answers(1))  # nothing is asked during the cut
        assert asked == {0: end}
        assert partition.log.log_end_offset == end
        await fetcher.stop()

    run(story)
