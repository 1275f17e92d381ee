"""An acknowledgement is of the record that was written, not of another one that stands at its offset later."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import produce_request
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.wire.messages.topics import ElectLeadersRequest


def test_a_record_that_was_cut_off_while_another_partition_was_synced_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request writes to two partitions, with flush.messages=1, and the device is slow to sync the second.

    Meanwhile the broker is deposed, cuts the first record off, and leads again. HW then passes the offset of the lost
    record with another one.
    """

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        old, other = [number for number in cluster.kits if number != controller]
        replicas = (old, controller, other)
        await cluster.create_topic("t", [replicas, replicas], flush_messages="1", min_insync_replicas="2")
        await eventually(lambda: all(cluster.leader(index) == old and len(cluster.isr(index)) == 3 for index in (0, 1)))
        assert await cluster.produce(b"first") is ErrorCode.NONE
        await cluster.all_in_sync(0)
        cluster.cut_off(old)  # so that the next record is not copied
        log = cluster.replicas(1)[old].log
        synced, flush = asyncio.Event(), log.flush

        async def slow_flush() -> None:
            await synced.wait()
            await flush()

        monkeypatch.setattr(log, "flush", slow_flush)
        records = {("t", 0): batch([b"lost"]), ("t", 1): batch([b"slow"])}
        answer = asyncio.ensure_future(cluster[old].call(produce_request(records, acks=-1, timeout_ms=30_000), 12))
        await eventually(lambda: cluster.ends(0)[old][0] == 2)
        cluster[old].expire_session()
        await eventually(lambda: all(cluster.leader(index) not in (0, old) for index in (0, 1)))
        cluster.heal(old)
        await eventually(lambda: cluster.ends(0)[old][0] == 1)
        await cluster.all_in_sync(0)
        synced.set()
        await eventually(lambda: len(cluster.isr(1)) == 3)
        await cluster[cluster.controller].call(ElectLeadersRequest(timeout_ms=1000, topic_partitions=None), 2)
        await eventually(lambda: cluster.leader(0) == old)
        assert await cluster.produce(b"another") is ErrorCode.NONE
        told = [one.error_code for one in (await answer).responses[0].partition_responses]
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        await cluster.all_in_sync(0)
        assert all(cluster.values(number) == [b"first", b"another"] for number in cluster.kits)

    run(story, topic=False, replica_lag_time_max_ms="30000")
