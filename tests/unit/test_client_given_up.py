"""Batches that are given up while it is not known whether they are written: those behind them are written once."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clientkit import P0, P1, Saboteur, simulate, values, written
from tests.kits.fake_broker import CLOSE, SILENCE, SILENCE_AFTER, FakeCluster
from tests.unit.test_client_produce import refusal
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.produce import Produced, Producer
from tidelog.errors import ErrorCode
from tidelog.lab.world import World
from tidelog.records.header import read_header

PRODUCE, INIT_PRODUCER_ID = 0, 22


def numbering(fake: FakeCluster) -> list[tuple[int, int]]:
    """(epoch, sequence) of what is in the log."""
    return [(header.producer_epoch, header.base_sequence) for header in map(read_header, fake.logs[P0])]


def reset_at(*times_s: float) -> Saboteur:
    async def reset(world: World, fake: FakeCluster) -> None:
        loop = asyncio.get_running_loop()
        for time_s in times_s:
            await asyncio.sleep(time_s - loop.time())
            world.network.reset("client", "b1")

    return reset


async def send_two(cluster: Cluster, fake: FakeCluster, mishap: object) -> list[Produced | BaseException]:
    """One batch that is taken, then two that meet the mishap; the time of the first ends before the connection does."""
    producer = Producer(cluster, delivery_timeout_ms=1500)
    await producer.send(P0, values(1, 0))
    fake.brokers[1].script[PRODUCE] = [mishap, mishap]
    first = producer.send(P0, values(1, 1))
    await asyncio.sleep(0.9)
    second = producer.send(P0, values(1, 2))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    await producer.send(P0, values(1, 3))
    producer.close()
    return outcomes


def test_what_was_written_behind_a_batch_that_is_given_up_is_not_written_again() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        first, second = await send_two(cluster, fake, SILENCE_AFTER)
        assert isinstance(first, DeadlineError)
        assert second == Produced(P0, 2, last_offset=2)

    fake = simulate(story, saboteur=reset_at(2.0))
    assert written(fake, P0) == [0, 1, 2, 3]
    assert numbering(fake) == [(0, 0), (0, 1), (0, 2), (0, 3)], "the first of them was written: there is no gap"


def test_what_was_not_written_behind_a_batch_that_is_given_up_begins_a_new_epoch() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        first, second = await send_two(cluster, fake, SILENCE)
        assert isinstance(first, DeadlineError)
        assert second == Produced(P0, 1, last_offset=1)

    fake = simulate(story, saboteur=reset_at(2.0))
    assert written(fake, P0) == [0, 2, 3]
    assert numbering(fake) == [(0, 0), (1, 0), (1, 1)]


def test_what_was_written_behind_a_batch_that_is_refused_when_it_comes_again_is_not_written_again() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, values(1, 0))
        fake.brokers[1].script[PRODUCE] = [
            *(SILENCE_AFTER, SILENCE_AFTER),
            *(refusal(ErrorCode.INVALID_RECORD), CLOSE),
        ]
        futures = [producer.send(P0, values(1, number)) for number in (1, 2)]
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await futures[0]
        assert (await futures[1]).base_offset == 2
        producer.close()

    assert written(simulate(story, saboteur=reset_at(1.0)), P0) == [0, 1, 2]


def test_a_broker_that_knows_only_its_last_batch_again_does_not_make_the_client_write_twice() -> None:
    """As Kafka after a restart. It calls batches out of order that it has written."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, values(1, 0))
        fake.brokers[1].script[PRODUCE] = [SILENCE_AFTER] * 3
        futures = [producer.send(P0, values(1, number)) for number in (1, 2, 3)]
        await asyncio.sleep(0.5)
        for key, (epoch, last) in fake.producers.items():
            fake.producers[key] = (epoch, last[-1:])
        for future in futures[:2]:
            with pytest.raises(BrokerError, match="whether it is written is unknown"):
                await future
        assert (await futures[2]).base_offset == 3
        assert (await producer.send(P0, values(1, 4))).base_offset == 4
        producer.close()

    assert written(simulate(story, saboteur=reset_at(1.0)), P0) == [0, 1, 2, 3, 4]


def test_a_batch_that_hangs_at_a_former_leader_is_not_written_again() -> None:
    """It was written and copied; nine others are written behind it before the client hears of its connection's end."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, values(1, 0))
        fake.brokers[1].script[PRODUCE] = [SILENCE_AFTER]
        futures = [producer.send(P0, values(1, 1))]
        await asyncio.sleep(0.1)
        fake.leaders[P0] = 2
        fake.leader_epochs[P0] = 1
        cluster.metadata.led_elsewhere(P0, 2, 1)
        for number in range(2, 11):
            futures.append(producer.send(P0, values(1, number)))
            await asyncio.sleep(0.01)
        assert [(await future).base_offset for future in futures] == list(range(1, 11))
        producer.close()

    assert written(simulate(story, brokers=2, saboteur=reset_at(3.0)), P0) == list(range(11))


def test_a_queue_that_two_brokers_tasks_identify_does_not_use_a_sequence_twice() -> None:
    """The leader changes there and back while the producer id is awaited, so two tasks wait for it."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        identity: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        producer._init_producer_id = lambda: identity  # type: ignore[assignment,method-assign]
        futures = [producer.send(P0, values(1, 0))]
        for epoch, leader in enumerate((2, 1), 1):
            await asyncio.sleep(0.1)
            fake.leaders[P0], fake.leader_epochs[P0] = leader, epoch
            await cluster.refresh_once(["orders"])
            futures.append(producer.send(P0, values(1, epoch)))
        await asyncio.sleep(0.1)
        identity.set_result((7, 0))
        assert [(await future).base_offset for future in futures] == [0, 1, 2]
        producer.close()

    assert written(simulate(story, brokers=2), P0) == [0, 1, 2]


async def lose_answers(world: World, fake: FakeCluster) -> None:
    """Requests arrive and answers do not, for up to a second; then the connection ends. Leaders move now and then."""
    chance = world.chance_for("sabotage")
    while True:
        await asyncio.sleep(chance.uniform(0, 0.4))
        broker = f"b{chance.randrange(1, 3)}"
        world.network.cut(broker, "client", one_way=True)
        await asyncio.sleep(chance.uniform(0, 1))
        world.network.heal(broker, "client", reset=True)
        if chance.random() < 0.3:
            partition = chance.choice([P0, P1])
            fake.leaders[partition] = 3 - fake.leaders[partition]
            fake.leader_epochs[partition] += 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_given_up_nothing_is_written_twice_or_out_of_order(seed: int) -> None:
    """Batches have half a second, and wait for answers up to a second."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster, delivery_timeout_ms=500)
        futures = []
        for number in range(100):
            futures += [producer.send(partition, values(2, 2 * number)) for partition in (P0, P1)]
            await asyncio.sleep(cluster.random.random() * 0.3)
        await producer.flush()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, Produced):
                assert written(fake, outcome.partition)[outcome.base_offset] == number // 2 * 2
            else:
                assert isinstance(outcome, DeadlineError)
        assert any(isinstance(outcome, DeadlineError) for outcome in outcomes)
        producer.close()

    fake = simulate(story, brokers=2, seed=seed, saboteur=lose_answers)
    for partition in (P0, P1):
        log = written(fake, partition)
        assert log == sorted(set(log))
