"""How many producers are remembered, and who makes room for a new one."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.brokerkit import Kit, run
from tests.logkit import FixedClock, batch
from tidelog.errors import ErrorCode
from tidelog.log.producer_room import ProducerRoom, TooManyProducersError
from tidelog.log.producer_silence import SILENT_MS
from tidelog.log.producers import AppendOrigin, Producers
from tidelog.metrics import Metrics
from tidelog.records.header import BatchHeader, headers

MOST = 40
MOST_OF_A_FOLLOWER = 42


def header(producer_id: int, sequence: int = 0, **facts: object) -> BatchHeader:
    data = batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **facts)
    return next(iter(headers(data)))[1]


class Leader:
    """A log end, its producers, and the room of a broker that has this partition alone; perhaps a follower."""

    def __init__(self, per_partition: int = MOST, per_broker: int = 1_000, follower: Producers | None = None) -> None:
        self.clock, self.metrics = FixedClock(), Metrics()
        self.producers = Producers(max_ids=MOST)
        self.follower = follower
        self.end = 0
        self.high_watermark: int | None = None
        """None: all is committed."""
        self.room = ProducerRoom(per_partition, per_broker, lambda: len(self.producers), self.clock, self.metrics)

    def write(self, producer_id: int, sequence: int = 0) -> bool:
        """False if it is a duplicate."""
        new, now_ms = header(producer_id, sequence), self.clock.now_ms
        high_watermark = self.end if self.high_watermark is None else self.high_watermark
        if self.producers.check(
            new, now_ms, AppendOrigin.CLIENT, lambda: self.room.admit(self.producers, high_watermark)
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

    def counted(self, name: str) -> int:
        return self.metrics.counter(name).value


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
    leader.high_watermark = 0
    leader.clock.now_ms += 2 * SILENT_MS
    assert not leader.is_taken(100)
    leader.high_watermark = 1
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
    producers = Producers(max_ids=MOST)
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
    follower = Producers(max_ids=MOST)
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
    random, follower = Random(seed), Producers(max_ids=MOST)
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
    follower, again = Producers(max_ids=MOST), Producers(max_ids=MOST)
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
