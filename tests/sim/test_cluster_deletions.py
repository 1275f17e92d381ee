"""A DeleteRecords that was acknowledged does not come undone, whoever is killed or loses power afterwards (S10.2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.sim.client_mutations import deletions_are_acknowledged_too_early
from tests.unit.test_broker_offsets import delete_records
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS
from tidelog.lab.loop import SimulationError
from tidelog.types import TopicPartition

RECORDS = 6
DELETED = 4


async def _filled(cluster: ClusterKit) -> None:
    for number in range(RECORDS):
        assert await cluster.produce(b"%d" % number) is ErrorCode.NONE
    await cluster.all_in_sync()


async def _delete(cluster: ClusterKit, offset: int = DELETED) -> None:
    answer = await delete_records(cluster[cluster.leader()], offset)
    assert (answer.error_code, answer.low_watermark) == (0, offset)


def _starts(cluster: ClusterKit) -> list[int]:
    """As the replicas have them, whether or not they have been told of a leader yet."""
    logs = [kit.broker.storage.directories[0].logs[TopicPartition("t", 0)] for kit in cluster.kits.values()]
    return [log.log_start_offset for log in logs]


async def _all_killed(cluster: ClusterKit, *without_power: int) -> None:
    """All at once, just after a deletion was acknowledged; all back."""
    await _filled(cluster)
    await _delete(cluster)
    for number, kit in cluster.kits.items():
        (kit.lose_power if number in without_power else kit.kill)()
    await asyncio.sleep(SESSION_MS / 1000 * 2)
    for kit in cluster.kits.values():
        await kit.start()
    assert min(_starts(cluster)) >= DELETED, "deleted records are back"
    await eventually(cluster.is_in_sync, 60)
    assert min(_starts(cluster)) >= DELETED, "deleted records are back"


def test_records_stay_deleted_when_all_brokers_are_killed() -> None:
    run(_all_killed)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_records_stay_deleted_when_one_broker_loses_power_too(number: int) -> None:
    run(lambda cluster: _all_killed(cluster, number))


def test_without_the_fix_they_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    deletions_are_acknowledged_too_early(monkeypatch)
    with pytest.raises(SimulationError, match="deleted records are back"):
        run(_all_killed)


def test_a_deletion_that_was_not_acknowledged_may_come_undone() -> None:
    """The process dies before the log start is on the device: the records are there again, as if never deleted."""

    async def story(cluster: ClusterKit) -> None:
        await _filled(cluster)
        for kit in cluster.kits.values():
            kit.host.disk.work.delay_ms = (200.0, 200.0)
        leader = cluster[cluster.leader()]
        deleting = asyncio.ensure_future(delete_records(leader, DELETED))
        log = cluster.replicas()[cluster.leader()].log
        await eventually(lambda: log.log_start_offset == DELETED)
        for kit in cluster.kits.values():
            kit.kill()
        assert not deleting.done()
        deleting.cancel()
        await asyncio.sleep(SESSION_MS / 1000 * 2)
        for kit in cluster.kits.values():
            kit.host.disk.work.delay_ms = (0.0, 0.0)
            await kit.start()
        await eventually(cluster.is_in_sync, 60)
        await _delete(cluster)

    run(story)


def test_a_replica_that_returns_joins_the_isr_with_a_log_start_that_is_on_its_device() -> None:
    """It was away during the deletion. As a member of the ISR it may lead after a kill of all, and lead alone."""

    async def story(cluster: ClusterKit) -> None:
        await _filled(cluster)
        away = cluster.followers()[0]
        cluster[away].kill()
        await eventually(lambda: away not in cluster.isr())
        await _delete(cluster)
        await cluster[away].start()
        while away not in cluster.stored_isr():
            await asyncio.sleep(0.001)
        for kit in cluster.kits.values():
            kit.kill()
        await asyncio.sleep(SESSION_MS / 1000 * 2)
        await cluster[away].start()
        assert await cluster.leads() == away
        assert cluster.replicas()[away].log.log_start_offset >= DELETED, "deleted records are back"
        for number, kit in cluster.kits.items():
            if number != away:
                await kit.start()
        await eventually(cluster.is_in_sync, 60)

    run(story)
