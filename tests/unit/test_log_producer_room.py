"""How many producers are remembered, and who makes room for a new one."""

from __future__ import annotations

import pytest

from tests.brokerkit import Kit, run
from tests.logkit import batch
from tidelog.errors import ErrorCode
from tidelog.log.producer_room import SILENT_MS, ProducerRoom, TooManyProducersError
from tidelog.log.producers import AppendOrigin, Producers
from tidelog.metrics import Metrics
from tidelog.records.header import BatchHeader, headers

MOST = 40


def header(producer_id: int, sequence: int = 0, **facts: object) -> BatchHeader:
    data = batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **facts)
    return next(iter(headers(data)))[1]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms


class Leader:
    """A log end, its producers, and the room of a broker that has this partition alone."""

    def __init__(self, per_partition: int = MOST, per_broker: int = 1_000) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.producers = Producers(max_ids=MOST)
        self.end = 0
        self.room = ProducerRoom(per_partition, per_broker, lambda: len(self.producers), self.clock, self.metrics)

    def write(self, producer_id: int, sequence: int = 0) -> bool:
        """False if it is a duplicate."""
        new = header(producer_id, sequence)
        if self.producers.check(new, AppendOrigin.CLIENT, lambda: self.room.admit(self.producers, self.end)):
            return False
        self.producers.append(new, self.end)
        self.end += 1
        return True

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


def test_silent_producers_make_room() -> None:
    leader = Leader()
    for producer_id in range(MOST):
        leader.write(producer_id)
    leader.clock.now_ms += SILENT_MS // 2
    leader.write(5, 1)
    with pytest.raises(TooManyProducersError):
        leader.write(100)
    leader.clock.now_ms += SILENT_MS // 2
    with pytest.raises(TooManyProducersError):
        leader.write(100)  # the first time that is known is half of it ago
    leader.clock.now_ms += SILENT_MS // 2
    assert leader.write(100)
    assert sorted(leader.producers.states) == [100], "5 wrote before that time as well"
    assert leader.counted("tidelog_evicted_producer_ids_total") == MOST


def test_who_wrote_since_stays() -> None:
    leader = Leader()
    for producer_id in range(MOST):
        leader.write(producer_id)
    leader.producers.mark(leader.clock.now_ms, leader.end)
    leader.clock.now_ms += 20_000
    leader.producers.mark(leader.clock.now_ms, leader.end)
    leader.write(5, 1)
    leader.clock.now_ms += SILENT_MS
    assert leader.write(100)
    assert sorted(leader.producers.states) == [5, 100]


def test_a_search_that_found_nothing_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    for producer_id in range(MOST):
        leader.write(producer_id)
    leader.clock.now_ms += SILENT_MS
    leader.producers.mark(leader.clock.now_ms, leader.end)
    for producer_id in range(MOST):
        leader.write(producer_id, 1)
    asked = 0

    class Counting(dict[int, object]):
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            return super().values()

    monkeypatch.setattr(leader.producers, "_states", Counting(leader.producers._states))
    for producer_id in range(100, 200):
        with pytest.raises(TooManyProducersError):
            leader.write(producer_id)
    assert asked <= 1


def test_open_transactions_and_fences_are_not_forgotten() -> None:
    producers = Producers(max_ids=MOST)
    producers.append(header(1, transactional=True), 0)
    producers.append(header(2, transactional=True), 1)
    marker = header(2, transactional=True, control=True)
    producers.append_marker(marker, 2, coordinator_epoch=0, aborted=False)
    producers.mark(0, 3)
    for producer_id in range(10, 10 + 5 * MOST):
        producers.append(header(producer_id), producer_id)
    assert {1, 2} <= set(producers.states)
    assert len(producers) <= MOST
    assert producers.remove_silent(1_000_000) == 0


def test_a_follower_keeps_those_that_wrote_last() -> None:
    """Whatever the times are: what it keeps depends on the log alone, so replicas and a restart agree."""
    follower, again = Producers(max_ids=MOST), Producers(max_ids=MOST)
    for offset in range(10 * MOST):
        for producers in (follower, again):
            producers.append(header(offset), offset)
        again.mark(offset * 10_000, offset)
    assert sorted(follower.states) == sorted(again.states)
    assert len(follower) <= MOST
    newest = range(10 * MOST - MOST // 2, 10 * MOST)
    assert set(newest) <= set(follower.states)


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
        kit.partition().log.producers._marks.clear()
        kit.partition().log.producers.mark(-(10**9), kit.partition().log.log_end_offset)  # a long time ago
        assert await produce(5) == 0
        assert kit.partition().log.log_end_offset == 7

    run(story, tidelog_partition_producer_ids_max="5")
