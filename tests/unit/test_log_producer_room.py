"""How many producers are remembered, and who makes room for a new one."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import FixedClock, batch, new_producers
from tests.kits.metricskit import value
from tidelog.errors import ErrorCode
from tidelog.log.producer_room import ProducerRoom, TooManyProducersError
from tidelog.log.producer_silence import SILENT_MS
from tidelog.log.producers import AppendOrigin, Producers
from tidelog.metrics import Metrics
from tidelog.records.header import BatchHeader, headers
from tidelog.types import TopicPartition

MOST = 40
MOST_OF_A_FOLLOWER = 42


def header(producer_id: int, sequence: int = 0, **facts: object) -> BatchHeader:
    data = batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **facts)
    return next(iter(headers(data)))[1]


class Logs:
    """The partitions of one broker: all that are in `leaders`, of which it follows those in `followed`."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, Leader] = {}
        self.followed: set[TopicPartition] = set()
        self.asked: list[TopicPartition] = []

    @property
    def producer_count(self) -> int:
        return sum(len(leader.producers) for leader in self.leaders.values())

    def led_producer_counts(self) -> dict[TopicPartition, int]:
        led = {name: leader for name, leader in self.leaders.items() if name not in self.followed}
        return {name: len(leader.producers) for name, leader in led.items() if len(leader.producers)}

    def led_log(self, name: TopicPartition) -> Any:
        self.asked.append(name)
        return None if name in self.followed else self.leaders[name]


class Leader:
    """A log end, its producers, and the room of a broker that has this partition alone, or those `beside` it too;
    perhaps a follower."""

    def __init__(
        self,
        per_partition: int = MOST,
        per_broker: int = 1_000,
        follower: Producers | None = None,
        beside: Leader | None = None,
    ) -> None:
        self.producers = new_producers(max_ids=MOST)
        self.follower = follower
        self.end = 0
        self.committed: int | None = None
        """None: all is committed."""
        if beside is None:
            self.clock, self.metrics, self.logs = FixedClock(), Metrics(), Logs()
            self.room = ProducerRoom(per_partition, per_broker, self.logs, self.clock, self.metrics)
        else:
            self.clock, self.metrics, self.logs, self.room = beside.clock, beside.metrics, beside.logs, beside.room
        self.name = TopicPartition("t", len(self.logs.leaders))
        self.logs.leaders[self.name] = self

    @property
    def high_watermark(self) -> int:
        return self.end if self.committed is None else self.committed

    def write(self, producer_id: int, sequence: int = 0) -> bool:
        """False if it is a duplicate."""
        new, now_ms = header(producer_id, sequence), self.clock.now_ms
        if self.producers.check(
            new, now_ms, AppendOrigin.CLIENT, lambda: self.room.admit(self.producers, self.high_watermark)
        ):
            return False
        self.producers.append(new, self.end, now_ms)
        if self.follower is not None:
            self.follower.append(new, self.end, now_ms)
        self.end += 1
        return True

    def is_taken(self, producer_id: int) -> bool:
        try:
            return self.write(producer_id)
        except TooManyProducersError:
            return False

    def counted(self, name: str) -> float:
        return value(self.metrics, name)


@pytest.mark.parametrize("bounds", [{"per_partition": MOST}, {"per_partition": 10**6, "per_broker": MOST}])
def test_a_flood_of_new_ids_takes_nothing_from_a_producer_at_work(bounds: dict[str, int]) -> None:
    leader = Leader(**bounds)
    assert leader.write(7)
    for producer_id in range(1_000, 1_000 + MOST - 1):
        leader.write(producer_id)
    for producer_id in range(2_000, 2_000 + 2 * MOST):
        with pytest.raises(TooManyProducersError, match=r"producer\.ids\.max") as refusal:
            leader.write(producer_id)
        assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(leader.producers) == MOST
    assert leader.counted("tidelog_refused_producer_ids_total") == 2 * MOST
    assert not leader.write(7), "its first batch, sent again, is still known"
    assert leader.write(7, 1)


def full_leader() -> Leader:
    """Producers 0, 1, 2 and so on have written, one every millisecond."""
    leader = Leader()
    for producer_id in range(MOST):
        leader.write(producer_id)
        leader.clock.now_ms += 1
    return leader


def test_the_longest_silent_producer_makes_room_and_no_other() -> None:
    leader = full_leader()
    leader.clock.now_ms += SILENT_MS - MOST - 1
    assert not leader.is_taken(100), "producer 0 was silent for a millisecond less"
    leader.clock.now_ms += 1
    assert leader.is_taken(100)
    assert not leader.is_taken(101)
    assert sorted(leader.producers.states) == [*range(1, MOST), 100]
    leader.clock.now_ms += SILENT_MS // 2
    assert all(leader.is_taken(producer_id) for producer_id in range(101, 104))
    assert sorted(leader.producers.states) == [*range(4, MOST), *range(100, 104)]
    assert leader.counted("tidelog_evicted_producer_ids_total") == 4


def test_a_producer_that_wrote_since_stays() -> None:
    leader = full_leader()
    leader.clock.now_ms += 20_000
    for producer_id in (0, 2):
        leader.write(producer_id, 1)
    leader.clock.now_ms += SILENT_MS - 20_000
    assert [leader.is_taken(producer_id) for producer_id in (100, 101)] == [True, True]
    assert not {1, 3} & set(leader.producers.states)
    assert {0, 2} <= set(leader.producers.states)


def test_a_batch_that_is_not_written_is_a_sign_of_life() -> None:
    """A producer of Kafka Connect tries for ever. What it sends again is in the log, and would be written twice."""
    leader = full_leader()
    for _ in range(8):
        leader.clock.now_ms += SILENT_MS // 7
        for producer_id in range(0, MOST - 2, 2):
            assert not leader.write(producer_id), "a duplicate"
            leader.producers.heard(producer_id + 1, leader.clock.now_ms)
    leader.producers.heard(12_345, leader.clock.now_ms)
    assert [leader.is_taken(100 + number) for number in range(3)] == [True, True, False]
    assert sorted(leader.producers.states) == [*range(MOST - 2), 100, 101], "the two silent ones made room"


def test_a_gap_and_an_old_epoch_are_signs_of_life() -> None:
    leader = full_leader()
    leader.clock.now_ms += SILENT_MS
    with pytest.raises(Exception, match="expected 1"):
        leader.write(0, 7)
    with pytest.raises(Exception, match="has been seen"):
        leader.producers.check(header(1)._replace(producer_epoch=-1), leader.clock.now_ms)
    assert leader.is_taken(100)
    assert sorted(leader.producers.states) == [0, 1, *range(3, MOST), 100]


def test_a_producer_whose_batch_is_not_committed_stays() -> None:
    leader = full_leader()
    leader.committed = 0
    leader.clock.now_ms += 2 * SILENT_MS
    assert not leader.is_taken(100)
    leader.committed = 1
    assert leader.is_taken(100)
    assert 0 not in leader.producers.states


@pytest.mark.parametrize("transactional", [False, True])
def test_a_search_that_found_nothing_is_not_repeated(monkeypatch: pytest.MonkeyPatch, transactional: bool) -> None:
    leader = Leader()
    for producer_id in range(MOST):
        leader.producers.append(header(producer_id, transactional=transactional), producer_id, leader.clock.now_ms)
    asked = 0

    class Counting(dict[int, object]):
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            return super().values()

    monkeypatch.setattr(leader.producers._longest_silent, "_states", Counting(leader.producers._states))
    for producer_id in range(100, 200):
        leader.clock.now_ms += 1_000
        assert not leader.is_taken(producer_id)
        leader.producers.heard(producer_id % MOST, leader.clock.now_ms)
    assert asked == 1


def test_open_transactions_and_fences_are_not_forgotten() -> None:
    producers = new_producers(max_ids=MOST)
    producers.append(header(1, transactional=True), 0, 0)
    producers.append(header(2, transactional=True), 1, 0)
    marker = header(2, transactional=True, control=True)
    producers.append_marker(marker, 2, coordinator_epoch=0, aborted=False, now_ms=0)
    for producer_id in range(10, 10 + 5 * MOST):
        producers.append(header(producer_id), producer_id, producer_id)
    assert {1, 2} <= set(producers.states)
    assert len(producers) == MOST_OF_A_FOLLOWER
    while producers.forget_silent(10**9, 10**9):
        pass
    assert sorted(producers.states) == [1, 2]


def test_a_follower_forgets_nothing_that_its_leader_knows() -> None:
    """Its leader forgets one silent producer for a new one. All others have batches under way to be answered."""
    follower = new_producers(max_ids=MOST)
    leader = Leader(follower=follower)
    leader.write(0)
    leader.clock.now_ms += SILENT_MS
    for producer_id in range(1, MOST + 1):
        leader.write(producer_id)
    assert sorted(leader.producers.states) == list(range(1, MOST + 1))
    assert set(leader.producers.states) <= set(follower.states)
    for producer_id in leader.producers.states:
        assert follower.check(header(producer_id), leader.clock.now_ms) is not None, "a retry would be written again"


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_knows_what_its_leader_knows_whatever_comes(seed: int) -> None:
    random, follower = Random(seed), new_producers(max_ids=MOST)
    leader = Leader(follower=follower)
    next_id = 0
    for _ in range(2_000):
        leader.clock.now_ms += random.randrange(SILENT_MS // 10)
        if random.random() < 0.5 or not leader.producers.states:
            next_id += leader.is_taken(next_id)
        else:
            producer_id = random.choice(sorted(leader.producers.states))
            leader.write(producer_id, leader.producers.states[producer_id].next_sequence)
        assert set(leader.producers.states) <= set(follower.states)
        assert len(leader.producers) <= MOST
        assert len(follower) <= MOST_OF_A_FOLLOWER
    assert next_id > 10 * MOST


def test_a_follower_forgets_one_for_one_by_the_order_of_the_log() -> None:
    """Whatever the times are: what it keeps depends on the log alone, so replicas and a restart agree."""
    follower, again = new_producers(max_ids=MOST), new_producers(max_ids=MOST)
    for offset in range(10 * MOST):
        follower.append(header(offset), offset, offset * 1_000)
        again.append(header(offset), offset, 0)
        kept = range(max(0, offset + 1 - MOST_OF_A_FOLLOWER), offset + 1)
        assert list(follower.states) == list(again.states) == list(kept)


def test_a_leader_that_was_a_follower_comes_back_to_its_bound() -> None:
    leader = Leader()
    for producer_id in range(MOST_OF_A_FOLLOWER):
        leader.producers.append(header(producer_id), producer_id, leader.clock.now_ms)
    leader.end = MOST_OF_A_FOLLOWER
    assert not leader.is_taken(100)
    leader.clock.now_ms += SILENT_MS
    counts = [len(leader.producers) for producer_id in range(100, 104) if leader.is_taken(producer_id)]
    assert counts == [MOST + 1, MOST, MOST, MOST]


# The bound of a broker


def broker_with(*counts: int) -> list[Leader]:
    """Its partitions, with so many producers each, numbered from 0 on: that is as many as the broker remembers."""
    first = Leader(per_partition=10**6, per_broker=sum(counts))
    leaders = [first, *(Leader(beside=first) for _ in counts[1:])]
    next_id = 0
    for leader, count in zip(leaders, counts, strict=True):
        for producer_id in range(next_id, next_id + count):
            leader.write(producer_id)
        next_id += count
    return leaders


def test_a_partition_without_silent_producers_takes_a_new_one_in_place_of_anothers() -> None:
    """Otherwise whoever leaves so many ids in some partitions closes all others to new producers for a day."""
    small, large, new = broker_with(10, 20, 0)
    new.clock.now_ms += SILENT_MS - 1
    assert not new.is_taken(100), "none is silent yet"
    large.write(10, 1)
    new.clock.now_ms += 1_000
    assert [new.is_taken(producer_id) for producer_id in range(100, 105)] == [True] * 5
    assert sorted(new.producers.states) == list(range(100, 105))
    assert sorted(large.producers.states) == [10, *range(16, 30)], "the largest gave its longest silent ones"
    assert len(small.producers) == 10
    assert new.logs.producer_count == 30
    assert new.counted("tidelog_evicted_producer_ids_total") == 5


def test_none_at_work_makes_room_in_another_partition() -> None:
    large, small, new = broker_with(20, 10, 0)
    new.clock.now_ms += SILENT_MS
    for producer_id in range(20):
        large.write(producer_id, 1)
    small.committed = 20
    for producer_id in range(25, 30):
        small.producers.heard(producer_id, new.clock.now_ms)
    taken = [producer_id for producer_id in range(100, 120) if new.is_taken(producer_id)]
    assert taken == list(range(100, 105))
    assert sorted(large.producers.states) == list(range(20))
    assert sorted(small.producers.states) == list(range(25, 30))


def test_a_producer_of_another_partition_whose_batch_is_not_committed_stays() -> None:
    old, new = broker_with(5, 0)
    old.committed = 0
    new.clock.now_ms += SILENT_MS
    assert not new.is_taken(100)
    old.committed = 1
    new.clock.now_ms += 1_000
    assert [new.is_taken(100), new.is_taken(101)] == [True, False]
    assert sorted(old.producers.states) == [1, 2, 3, 4]


def test_what_a_follower_remembers_makes_no_room_here() -> None:
    """Its leader may know them all, and this broker may be the next leader."""
    followed, led, new = broker_with(20, 2, 0)
    new.logs.followed.add(followed.name)
    new.clock.now_ms += SILENT_MS
    assert [new.is_taken(producer_id) for producer_id in range(100, 103)] == [True, True, False]
    assert len(followed.producers) == 20
    assert not led.producers


def test_a_partition_that_is_led_no_more_makes_no_room() -> None:
    first, second, new = broker_with(20, 10, 0)
    new.clock.now_ms += SILENT_MS
    assert new.is_taken(100)
    new.logs.followed.add(first.name)
    assert new.is_taken(101)
    assert (len(first.producers), len(second.producers)) == (19, 9)


def test_a_full_partition_is_not_helped_by_others() -> None:
    first = Leader()
    full = Leader(beside=first)
    first.write(10_000)
    first.clock.now_ms += SILENT_MS
    for producer_id in range(MOST):
        full.write(producer_id)
    assert not full.is_taken(100)
    assert len(first.producers) == 1


def test_a_flood_does_not_look_at_all_partitions_for_each_id() -> None:
    *_, new = broker_with(*[2] * 1_000, 0)
    asked = new.logs.asked
    assert not new.is_taken(10_000)
    assert 0 < len(asked) <= 200
    for producer_id in range(10_001, 10_100):
        assert not new.is_taken(producer_id)
    assert len(asked) == len(set(asked)) == 1_000, "each was asked once"
    new.clock.now_ms += 1_000
    assert not new.is_taken(10_100)
    assert len(asked) <= 1_200


def test_silent_producers_of_the_smallest_partition_are_found_though_few_are_looked_at_for_one_id() -> None:
    """New ids come seldom: each goes on where the last one ended."""
    *large, small, new = broker_with(*[3] * 1_000, 2, 0)
    new.clock.now_ms += SILENT_MS
    for leader in large:
        for producer_id in leader.producers.states:
            leader.producers.heard(producer_id, new.clock.now_ms)
    tries = 0
    while not new.is_taken(10_000):
        tries += 1
        new.clock.now_ms += 2_000
        assert tries < 10
    assert len(small.producers) == 1


@pytest.mark.parametrize("seed", range(5))
def test_followers_know_what_their_leaders_know_when_one_makes_room_for_another(seed: int) -> None:
    random = Random(seed)
    first = Leader(per_broker=MOST, follower=new_producers(max_ids=MOST))
    leaders = [first, *(Leader(follower=new_producers(max_ids=MOST), beside=first) for _ in range(3))]
    next_id = 0
    for _ in range(2_000):
        first.clock.now_ms += random.randrange(SILENT_MS // 10)
        leader = random.choice(leaders)
        if random.random() < 0.5 or not leader.producers.states:
            next_id += leader.is_taken(next_id)
        else:
            producer_id = random.choice(sorted(leader.producers.states))
            leader.write(producer_id, leader.producers.states[producer_id].next_sequence)
        for leader in leaders:
            assert leader.follower is not None
            assert set(leader.producers.states) <= set(leader.follower.states)
        assert first.logs.producer_count <= MOST
    assert next_id > 10 * MOST


def test_a_new_topic_takes_new_producers_where_others_hold_all_ids_of_the_broker() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("old")
        await kit.create_topic("new")

        async def produce(topic: str, producer_id: int) -> int:
            data = batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            return int((await kit.produce(data, topic)).error_code)

        assert [await produce("old", number) for number in range(5)] == [0] * 5
        assert await produce("new", 5) == ErrorCode.NOT_ENOUGH_REPLICAS
        await asyncio.sleep(SILENT_MS / 1000)  # simulated
        assert await produce("new", 5) == 0
        assert sorted(kit.partition("old").log.producers.states) == [1, 2, 3, 4]

    run(story, tidelog_broker_producer_ids_max="5")


def test_a_client_is_refused_and_taken_later() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()

        async def produce(producer_id: int, sequence: int = 0) -> int:
            facts = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            return int((await kit.produce(batch([b"v"], **facts))).error_code)

        assert [await produce(number) for number in range(5)] == [0] * 5
        assert await produce(5) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(0, 1) == 0
        assert "tidelog_producer_ids 5" in kit.broker.metrics.text()
        await asyncio.sleep(SILENT_MS / 1000)  # simulated
        assert await produce(5) == 0
        assert kit.partition().log.log_end_offset == 7
        assert sorted(kit.partition().log.producers.states) == [0, 2, 3, 4, 5]

    run(story, tidelog_partition_producer_ids_max="5")
