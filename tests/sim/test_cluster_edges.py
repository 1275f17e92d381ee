"""Known ways to lose data (EDGE_CASES.md), each told with three brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.brokerkit import FETCH, FETCH_BY_NAME, fetch_request
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tidelog.broker.fetcher import Fetcher
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import LAG_MS, SESSION_MS
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import FetchRequest, FetchRequestReplicaState
from tidelog.wire.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


async def _fill(cluster: ClusterKit, *values: bytes) -> None:
    for value in values:
        assert await cluster.produce(value) is ErrorCode.NONE
    await eventually(lambda: len(set(cluster.ends().values())) == 1)


async def _in_order(cluster: ClusterKit) -> tuple[int, int, int]:
    """The topic, with the controller as the second of its replicas: it lives on when the first leader is killed."""
    second = cluster.controller
    first, third = [number for number in cluster.kits if number != second]
    await cluster.create_topic("t", [(first, second, third)])
    await eventually(lambda: cluster.leader() == first and len(cluster.isr()) == 3)
    await _fill(cluster, b"0", b"1")
    return first, second, third


def test_edge_01_a_restart_does_not_cut_to_the_high_watermark() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0", b"1", b"2")
        for kit in cluster.kits.values():
            kit.kill()
        await asyncio.sleep(SESSION_MS / 1000 * 2)
        for number in (2, 3, 1):
            await cluster[number].start()
            (directory,) = cluster[number].broker.storage.directories
            log = directory.logs[TopicPartition("t", 0)]
            assert (log.log_end_offset, log.high_watermark) == (3, 0), "HW comes from a checkpoint of before"
            assert await cluster.leads() == 2, "the first that is back is intact (edge case 9)"
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1", b"2"] for number in cluster.kits)

    run(story)


def test_edge_02_elections_back_to_back() -> None:
    async def story(cluster: ClusterKit) -> None:
        first, second, third = await _in_order(cluster)
        cluster.cut_off(first)
        assert (await cluster[first].produce(batch([b"only first"]), acks=1)).error_code == 0
        cluster[first].kill()
        await eventually(lambda: cluster.leader() == second, 60)
        cluster.cut_off(second)
        for value in (b"only second", b"only second too"):
            assert (await cluster[second].produce(batch([value]), acks=1)).error_code == 0
        cluster[second].kill()
        await eventually(lambda: cluster.leader() == third, 60)
        assert cluster.ends()[third][0] == 2
        assert (await cluster[third].produce(batch([b"2"]), acks=1)).error_code == 0
        cluster.world.network.heal_all()
        await cluster[first].start()
        await cluster[second].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1", b"2"] for number in cluster.kits)
        entries = [one.log.epochs.entries for one in cluster.replicas().values()]
        assert entries[0] == entries[1] == entries[2]

    run(story, topic=False)


@pytest.mark.parametrize("tells", [True, False], ids=["in a fetch", "when it is asked"])
def test_edge_02_the_answer_names_the_epoch_that_was_found(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last leader never heard of the term between: where it ends the term before, the returning one has its own."""
    if not tells:
        monkeypatch.setattr("tidelog.broker.fetcher._TELLS_DIVERGENCE", 99)

    async def story(cluster: ClusterKit) -> None:
        first, second, third = await _in_order(cluster)
        network = cluster.world.network
        network.cut(f"b{first}", f"b{second}")
        for value in (b"2", b"3"):
            assert (await cluster[first].produce(batch([value]), acks=1)).error_code == 0
        await eventually(lambda: cluster.ends()[third][0] == 4)
        assert cluster.ends()[second][0] == 2
        cluster[first].kill()
        network.cut(f"b{second}", f"b{third}")
        await eventually(lambda: cluster.leader() == second, 60)
        assert (await cluster[second].produce(batch([b"only second"]), acks=1)).error_code == 0
        cluster[second].kill()
        await eventually(lambda: cluster.leader() == third, 60)
        assert [entry.start_offset for entry in cluster.replicas()[third].log.epochs.entries] == [0, 4]
        network.heal_all()
        await cluster[second].start()
        await cluster[first].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1", b"2", b"3"] for number in cluster.kits)

    run(story, topic=False)


def test_edge_04_fetches_of_another_term_are_fenced_and_tell_nothing() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0", b"1")
        number = cluster.leader()
        partition = cluster.replicas()[number]
        leader, follower = partition.leader, cluster.followers()[0]
        assert leader is not None
        cluster.cut_off(follower)
        cases = ((leader.epoch - 1, ErrorCode.FENCED_LEADER_EPOCH), (leader.epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH))
        if leader.epoch == 0:
            cases = cases[1:]
        leader.remotes[follower].log_end_offset = 1
        for epoch, code in cases:
            request = fetch_request({("t", 0): 2}, current_leader_epoch=epoch, replica_id=follower)
            answer = await cluster[number].call(request, FETCH_BY_NAME)
            assert answer.responses[0].partitions[0].error_code == code
            wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=0)
            question = OffsetForLeaderEpochRequest(
                replica_id=follower, topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])]
            )
            answer = await cluster[number].call(question, 4)
            assert answer.topics[0].partitions[0].error_code == code
            assert leader.remotes[follower].log_end_offset == 1

    async def after_an_election(cluster: ClusterKit) -> None:
        old = cluster.leader()
        cluster[old].kill()
        await cluster.leads(but=old)
        await cluster[old].start()
        await cluster.all_in_sync()
        await story(cluster)

    run(story)
    run(after_an_election)


def _late_fetch(cluster: ClusterKit, follower: int, broker_epoch: int) -> FetchRequest:
    """Of an earlier life of a follower, with all there is."""
    partition = cluster.replicas()[cluster.leader()]
    request = fetch_request(
        {(partition.topic_id, 0): partition.log.log_end_offset}, current_leader_epoch=partition.leader_epoch
    )
    request.replica_state = FetchRequestReplicaState(replica_id=follower, replica_epoch=broker_epoch)
    return request


@pytest.mark.parametrize("is_back", [False, True], ids=["while it is dead", "when it is back"])
def test_edge_08_an_earlier_life_does_not_join_the_isr(is_back: bool) -> None:
    async def story(cluster: ClusterKit) -> None:
        first, _, third = await _in_order(cluster)
        epoch = cluster[third].broker.epoch
        cluster[third].kill()
        await eventually(lambda: third not in cluster.isr(), 60)
        if is_back:
            cluster.world.network.cut(f"b{first}", f"b{third}")
            await cluster[third].start()
        await eventually(lambda: (third in cluster[first].broker.metadata.brokers) == is_back, 60)
        for _ in range(5):
            answer = await cluster[first].call(_late_fetch(cluster, third, epoch), FETCH)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await asyncio.sleep(LAG_MS / 1000 / 2)
            assert third not in cluster.isr()
        cluster.world.network.heal_all()
        if not is_back:
            await cluster[third].start()
        await cluster.all_in_sync()

    run(story, topic=False)


def test_edge_10_a_term_without_records_is_forgotten_by_who_led_it() -> None:
    async def story(cluster: ClusterKit) -> None:
        first, second, third = await _in_order(cluster)
        cluster[first].kill()
        cluster.world.network.cut(f"b{second}", f"b{third}")
        await eventually(lambda: cluster.leader() == second, 60)
        empty = cluster.replicas()[second].leader_epoch
        cluster[second].kill()
        await eventually(lambda: cluster.leader() == third, 60)
        assert (await cluster[third].produce(batch([b"2"]), acks=1)).error_code == 0
        assert empty not in [entry.epoch for entry in cluster.replicas()[third].log.epochs.entries]
        cluster.world.network.heal_all()
        await cluster[second].start()
        await cluster[first].start()
        await cluster.all_in_sync()
        for one in cluster.replicas().values():
            assert empty not in [entry.epoch for entry in one.log.epochs.entries]

    run(story, topic=False)


def test_edge_11_an_empty_answer_does_not_wipe_the_last_fetched_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    real = Fetcher._request

    def watched(fetcher: Fetcher) -> Any:
        request = real(fetcher)
        asked.extend((one.fetch_offset, one.last_fetched_epoch) for topic in request.topics for one in topic.partitions)
        return request

    monkeypatch.setattr(Fetcher, "_request", watched)

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0", b"1")
        await asyncio.sleep(3)  # several empty answers
        for number in cluster.followers():
            cluster.world.network.reset(f"b{number}", f"b{cluster.leader()}")  # a full request again
        await _fill(cluster, b"2")
        await asyncio.sleep(1)

    run(story)
    assert (2, 0) in asked
    assert all(epoch == 0 for offset, epoch in asked if offset > 0)


@pytest.mark.parametrize("has_epochs", [True, False])
def test_edge_13_a_follower_past_the_leaders_end_truncates(has_epochs: bool) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0", b"1")
        leader, follower = cluster.leader(), cluster.followers()[0]
        cluster.cut_off(follower)
        log = cluster.replicas()[follower].log
        epoch = cluster.replicas()[leader].leader_epoch
        log.append_as_follower(batch([b"x", b"y"], base_offset=2, partition_leader_epoch=epoch))
        if not has_epochs:
            log.epochs.clear()
        cluster.heal(follower, reset=True)
        await cluster.all_in_sync()
        assert set(cluster.ends().values()) == {(2, 2)}
        await _fill(cluster, b"2")
        assert cluster.values(follower) == [b"0", b"1", b"2"]

    run(story)
