"""Three brokers, one topic with three replicas and min.insync.replicas=2: what each failure does and does not do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.brokerkit import PRODUCE_BY_NAME, produce_request, within
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tidelog.broker.fetcher import Fetcher
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import LAG_MS, SESSION_MS
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID


async def _fill(cluster: ClusterKit, *numbers: int) -> list[bytes]:
    values = [b"%d" % number for number in numbers]
    for value in values:
        assert await cluster.produce(value) is ErrorCode.NONE
    return values


def test_replicas_are_byte_equal_and_hw_moves_on_all() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, *range(20))
        await eventually(lambda: set(cluster.ends().values()) == {(20, 20)})
        cluster.check_equal()
        assert all(cluster.values(number) == values for number in cluster.kits)

    run(story)


def test_followers_hear_of_a_new_hw_at_once() -> None:
    """Their next fetch finds nothing to copy, and does not wait for replica.fetch.wait.max.ms, which is 0.5 s."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, 1)
        await eventually(lambda: set(cluster.ends().values()) == {(1, 1)})
        loop = asyncio.get_running_loop()
        for number in range(2, 7):
            await _fill(cluster, number)
            began = loop.time()
            while set(cluster.ends().values()) != {(number, number)}:
                assert loop.time() - began < 0.1
                await asyncio.sleep(0.002)

    run(story)


def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, *range(5))
        old = cluster.leader()
        cluster[old].kill()
        new = await cluster.leads(but=old)
        values += await _fill(cluster, *range(5, 10))
        assert cluster.values(new) == values
        await eventually(lambda: cluster.isr() == [n for n in cluster.kits if n != old])
        await cluster[old].start()
        await cluster.all_in_sync()
        assert cluster.leader() == new
        assert cluster.values(old) == values

    run(story)


def test_what_only_the_old_leader_has_is_cut_by_epochs() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, 1, 2)
        await eventually(lambda: set(cluster.ends().values()) == {(2, 2)})
        old = cluster.leader()
        cluster.cut_off(old)
        assert (await cluster[old].produce(batch([b"lost"]), acks=1)).error_code == 0
        cluster[old].kill()
        cluster.heal(old, reset=True)  # what was on its way does not come either
        new = await cluster.leads(but=old)
        values += await _fill(cluster, 3, 4)
        await cluster[old].start()
        await cluster.all_in_sync()
        assert cluster.values(old) == values == cluster.values(new)
        logs = [partition.log for partition in cluster.replicas().values()]
        assert all(log.epochs.entries == logs[0].epochs.entries for log in logs)

    run(story)


def test_what_peers_do_not_tell_in_a_fetch_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.fetcher._TELLS_DIVERGENCE", 99)  # before diverging epochs (S4.4)
    test_what_only_the_old_leader_has_is_cut_by_epochs()


def test_a_new_partition_does_not_wait_behind_a_fetch_that_the_leader_holds_back() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, 1)
        await eventually(lambda: set(cluster.ends().values()) == {(1, 1)})
        leader = cluster.leader()
        loop = asyncio.get_running_loop()
        for number in range(5):
            began = loop.time()
            replicas = [leader, *cluster.followers()]
            await cluster.create_topic(f"u{number}", [replicas])
            while (await cluster[leader].produce(batch([b"1"]), f"u{number}")).error_code:
                assert loop.time() < began + 1
            assert loop.time() - began < 0.1, "replica.fetch.wait.max.ms is 0.5 s"

    run(story)


def test_a_follower_that_is_cut_off_leaves_the_isr_and_comes_back() -> None:
    async def story(cluster: ClusterKit) -> None:
        leader = cluster.leader()
        lost = next(n for n in cluster.kits if n not in (leader, cluster.controller))
        loop = asyncio.get_running_loop()
        cluster.cut_off(lost)
        began = loop.time()
        await _fill(cluster, 1)  # answered when the follower has left
        took_ms = (loop.time() - began) * 1000
        assert LAG_MS * 0.7 <= took_ms <= LAG_MS * 2, took_ms
        assert lost not in cluster.isr()
        await _fill(cluster, 2, 3)
        assert cluster.ends()[lost][0] <= 1
        cluster.heal(lost, reset=True)
        await cluster.all_in_sync()
        assert cluster.leader() == leader

    run(story)


def test_an_idle_partition_keeps_its_isr() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, 1)
        epochs = {n: one.partition_epoch for n, one in cluster.replicas().items()}
        await asyncio.sleep(LAG_MS / 1000 * 5)
        assert cluster.isr() == [1, 2, 3]
        assert {n: one.partition_epoch for n, one in cluster.replicas().items()} == epochs
        await _fill(cluster, 2)
        await asyncio.sleep(LAG_MS / 1000 * 2)
        assert {n: one.partition_epoch for n, one in cluster.replicas().items()} == epochs

    run(story)


def test_a_frozen_leader_acknowledges_nothing_and_follows() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, 1, 2)
        old = cluster.leader()
        connection = await cluster[old].connect()
        cluster[old].host.freeze()
        late = [
            connection.send(
                produce_request({("t", 0): batch([b"late"])}, acks=acks), PRODUCE_BY_NAME, timeout_ms=60_000
            )
            for acks in (-1, 1)
        ]
        await cluster.leads(but=old)
        values += await _fill(cluster, 3)
        await asyncio.sleep(SESSION_MS / 1000)
        cluster[old].host.thaw()
        for answer in await asyncio.gather(*late, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, ConnectionClosedError)
            else:
                code = answer.responses[0].partition_responses[0].error_code
                assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        values += await _fill(cluster, 4)
        await cluster.all_in_sync()
        assert cluster.leader() != old
        assert cluster.values(old) == values

    run(story)


def test_all_killed_at_once_and_restarted() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, *range(10))
        for kit in cluster.kits.values():
            kit.kill()
        await asyncio.sleep(SESSION_MS / 1000 * 2)
        await asyncio.gather(*(kit.start() for kit in cluster.kits.values()))
        await cluster.all_in_sync()
        values += await _fill(cluster, 10, 11)
        await eventually(lambda: set(cluster.ends().values()) == {(12, 12)})
        assert all(cluster.values(number) == values for number in cluster.kits)

    run(story)


def test_the_controller_is_killed() -> None:
    async def story(cluster: ClusterKit) -> None:
        values = await _fill(cluster, 1)
        old = cluster.controller
        cluster[old].kill()
        await eventually(lambda: cluster.controller not in (0, old), 60)
        await eventually(lambda: cluster.leader() not in (0, old) and old not in cluster.isr(), 60)
        values += await _fill(cluster, 2)
        await cluster[old].start()
        await cluster.all_in_sync()
        assert cluster.values(old) == values

    run(story)


def test_with_one_replica_left_acks_all_is_refused() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, 1)
        leader = cluster.leader()
        for number in cluster.followers():
            cluster[number].kill()
        await eventually(lambda: cluster.isr() == [leader], 60)
        assert await cluster.produce(b"no") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await cluster.produce(b"one", acks=1) is ErrorCode.NONE
        assert cluster.ends()[leader] == (2, 1), "HW does not move below min.insync.replicas"
        for number in cluster.followers():
            await cluster[number].start()
        await cluster.all_in_sync()
        assert set(cluster.ends().values()) == {(2, 2)}

    run(story)


def test_an_answer_by_topic_id_is_understood_when_metadata_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: ClusterKit) -> None:
        async with await cluster.connect() as client:
            await client.topic("t")
            producer = Producer(client)
            follower = cluster.followers()[0]
            cluster.cut_off(follower)
            sent = producer.send(TopicPartition("t", 0), memoryview(bytearray(batch())))
            await asyncio.sleep(0.5)
            monkeypatch.setattr(type(client.metadata), "topic_id", lambda *_: ZERO_UUID)  # of one that just started
            cluster.heal(follower)
            assert (await sent).base_offset == 0
            producer.close()

    run(story)


def test_a_broker_frozen_while_it_waits_for_its_name_joins_after_all() -> None:
    async def story(cluster: ClusterKit) -> None:
        kit = cluster[3]
        kit.kill()
        starting = asyncio.ensure_future(kit.start())
        await asyncio.sleep(0.5)  # its earlier life still holds the name
        kit.host.freeze()
        await asyncio.sleep(SESSION_MS / 1000 * 1.5)  # both sessions end meanwhile, and the watch with the second
        kit.host.thaw()
        async with within(2.0):
            await starting
        await cluster.all_in_sync()

    run(story)


def test_an_answer_of_before_a_partition_was_followed_anew_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real_request, real_take = Fetcher._request, Fetcher._take

    def request(fetcher: Fetcher) -> Any:
        made = real_request(fetcher)
        if any(one.partition == 0 for topic in made.topics for one in topic.partitions):
            seen.append("asked")
        return made

    def take(fetcher: Fetcher, one: Any, answer: Any) -> None:
        if one.partition.name.partition == 0:
            seen.append("taken")
        real_take(fetcher, one, answer)

    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", [(1, 2, 3), (1, 2, 3)])
        await eventually(lambda: cluster.isr(0) == cluster.isr(1) == [1, 2, 3])
        cluster[3].kill()
        await eventually(lambda: cluster.isr() == [1, 2], 60)
        fetchers, partition = cluster[2].broker.fetchers, cluster.replicas()[2]
        monkeypatch.setattr(Fetcher, "_request", request)
        monkeypatch.setattr(Fetcher, "_take", take)
        await fetchers.release(partition)
        seen.clear()
        fetchers.follow(partition, 1, partition.leader_epoch)
        await _fill(cluster, 1)  # the fetch that waits at the leader is answered with it
        assert seen[0] == "asked"

    run(story, topic=False)
