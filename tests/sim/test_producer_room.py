"""A partition that remembers as many producers as it may, and a follower that becomes its leader."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kits.brokerkit import code_of
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import idempotent
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.producer_silence import SILENT_MS

MOST = 40
NONE, REFUSED = ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_retry_to_a_new_leader_is_a_duplicate_where_the_former_one_was_full() -> None:
    """Producer 0 is silent and makes room for the last one. The others were not answered by the leader that dies."""

    async def story(cluster: ClusterKit) -> None:
        first = cluster.leader()

        async def write(broker: int, producer_id: int) -> tuple[ErrorCode, int]:
            answer = await cluster.kits[broker].produce(idempotent(0, producer_id=producer_id))
            return ErrorCode(answer.error_code), answer.base_offset

        assert await write(first, 0) == (NONE, 0)
        await asyncio.sleep(SILENT_MS / 1000)
        for producer_id in range(1, MOST + 1):
            assert await write(first, producer_id) == (NONE, producer_id)
        assert (
            await code_of(cluster.kits[first].produce(idempotent(0, producer_id=99))) == ErrorCode.NOT_ENOUGH_REPLICAS
        )
        assert sorted(cluster.kits[first].partition().log.producers.states) == list(range(1, MOST + 1))

        cluster.kits[first].kill()
        others = [number for number in cluster.kits if number != first]
        await eventually(lambda: cluster.leader() in others)
        new = cluster.leader()
        await eventually(lambda: cluster.kits[new].partition().leader is not None)
        for producer_id in range(1, MOST + 1):
            assert await write(new, producer_id) == (NONE, producer_id)
        assert cluster.kits[new].partition().log.log_end_offset == MOST + 1

    run(story, tidelog_partition_producer_ids_max=str(MOST))


def test_a_producer_that_is_refused_for_lack_of_replicas_is_at_work() -> None:
    """Its first batch is in the log. If it were forgotten, a retry of that batch would be written again."""

    async def story(cluster: ClusterKit) -> None:
        leader = cluster.leader()
        kit = cluster.kits[leader]

        async def write(*producer_ids: int, sequence: int = 0, **options: Any) -> list[ErrorCode]:
            batches = [idempotent(sequence, producer_id=producer_id) for producer_id in producer_ids]
            return [await code_of(kit.produce(batch, **options)) for batch in batches]

        assert await write(*range(5)) == [NONE] * 5
        for number in cluster.kits:
            if number != leader:
                cluster.kits[number].kill()
        await eventually(lambda: kit.partition().isr == (leader,))
        by_id = {"topic": "", "version": 13, "topic_id": kit.partition().topic_id}
        for _ in range(8):
            await asyncio.sleep(SILENT_MS / 7 / 1000)
            assert await write(0, 1, sequence=1) == [REFUSED] * 2
            assert await write(2, sequence=1, **by_id) == [REFUSED]
        assert await write(10, 11, 12, acks=1) == [NONE, NONE, REFUSED]
        assert sorted(kit.partition().log.producers.states) == [0, 1, 2, 10, 11]
        assert await write(0, 1, 2, acks=1) == [NONE] * 3
        assert kit.partition().log.log_end_offset == 7, "the first batches of 0, 1 and 2 were duplicates"

    run(story, tidelog_partition_producer_ids_max="5", min_insync_replicas="2")


def test_only_the_leader_of_a_partition_forgets_its_producers_for_those_of_another() -> None:
    """A follower that forgot some could become the leader, and would write a retry of theirs again."""

    async def story(cluster: ClusterKit) -> None:
        first, *others = (cluster.leader(), *cluster.followers())
        await cluster.create_topic("here", [[first]], min_insync_replicas="1")
        await cluster.create_topic("there", [[others[0]]], min_insync_replicas="1")
        for producer_id in range(5):
            assert await code_of(cluster.kits[first].produce(idempotent(0, producer_id=producer_id))) == NONE
        await cluster.all_in_sync()
        await asyncio.sleep(SILENT_MS / 1000)

        new = idempotent(0, producer_id=99)
        assert await code_of(cluster.kits[others[0]].produce(new, "there")) == REFUSED
        assert await code_of(cluster.kits[first].produce(new, "here")) == NONE
        known = {number: sorted(kit.partition().log.producers.states) for number, kit in cluster.kits.items()}
        assert known == {first: [1, 2, 3, 4], **{number: [0, 1, 2, 3, 4] for number in others}}

    run(story, tidelog_broker_producer_ids_max="5")
