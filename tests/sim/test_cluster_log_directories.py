"""Log directories that are away at one start and there at the next: which log counts, who may lead (edge case 9)."""

from __future__ import annotations

import asyncio

import pytest

from tests.clusterkit import ClusterKit, run
from tidelog.errors import ErrorCode
from tidelog.lab.broker import KilledWhileStartingError, eventually
from tidelog.lab.cluster import SESSION_MS
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic

T = TopicPartition("t", 0)
BOTH = "/first,/second"
_ALL_ENDED_S = SESSION_MS / 1000 * 2
_A_MOMENT_S = 0.000_001
"""Shorter than any work of the disk."""


async def _fill(cluster: ClusterKit, *values: bytes) -> None:
    for value in values:
        assert await cluster.produce(value) is ErrorCode.NONE
    await cluster.all_in_sync()


async def _reassign(cluster: ClusterKit, *replicas: int) -> None:
    partition = ReassignablePartition(partition_index=0, replicas=list(replicas))
    topic = ReassignableTopic(name="t", partitions=[partition])
    request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)
    answer = await cluster[cluster.controller].call(request, 0)
    assert answer.responses[0].partitions[0].error_code == 0, answer
    await eventually(lambda: cluster.assigned() == sorted(replicas))


def _holding(cluster: ClusterKit, number: int) -> list[str]:
    """The log directories of the broker that hold a log of t."""
    return [directory.path for directory in cluster[number].broker.storage.directories if T in directory.logs]


def _log_path(cluster: ClusterKit, number: int) -> str:
    partition = cluster.replica(number)
    assert partition is not None
    return partition.log.directory


async def _two_logs_are_never_mixed(cluster: ClusterKit, used: str) -> None:
    """Broker 1 has just been started with a log of t in each of its directories, and `used` was the last in use.

    Topics that come later make the other directory the fuller one or the emptier one. Neither decides.
    """
    storage = cluster[1].broker.storage
    assert storage.continuity.intact_since == cluster[1].broker.epoch, "it is not sure which log is the right one"
    assert _holding(cluster, 1) == [used]
    (stray,) = storage.strays
    assert stray.partition == T
    await cluster.all_in_sync()
    for topic in ("u", "v", "w"):
        await cluster.create_topic(topic, ((1, 2, 3),))
    await _fill(cluster, b"2", b"3")
    for kit in cluster.kits.values():
        kit.kill()
    await asyncio.sleep(_ALL_ENDED_S)
    await cluster[1].start()
    assert await cluster.leads() == 1
    assert _log_path(cluster, 1) == f"{used}/t-0"
    for number in (2, 3):
        await cluster[number].start()
    await cluster.all_in_sync()
    assert all(cluster.values(number) == [b"0", b"1", b"2", b"3"] for number in cluster.kits)
    assert len(cluster[1].broker.storage.strays) == 1, "what was set aside stays aside"


def test_edge_09_a_directory_that_log_dirs_names_again_does_not_bring_its_old_log_back() -> None:
    """The directory was taken out of log.dirs, as the broker advises when a device fails."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        old = _holding(cluster, 1)[0]
        used = "/second" if old == "/first" else "/first"
        await cluster[1].stop()
        cluster[1].settings["log.dirs"] = used
        await cluster[1].start()
        await _fill(cluster, b"1")
        await cluster[1].stop()
        cluster[1].settings["log.dirs"] = BOTH
        await cluster[1].start()
        await _two_logs_are_never_mixed(cluster, used)

    run(story, log_dirs=BOTH)


def test_edge_09_a_directory_that_works_again_does_not_bring_its_old_log_back() -> None:
    """While its device failed the partition moved away, and back into the other directory."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        old = _holding(cluster, 1)[0]
        used = "/second" if old == "/first" else "/first"
        cluster[1].kill()
        await asyncio.sleep(_ALL_ENDED_S)
        await _reassign(cluster, 2, 3)
        cluster[1].host.disk.fail_next("read", count=None, under=f"{old}/")
        await cluster[1].start()
        await _reassign(cluster, 2, 3, 1)
        await _fill(cluster, b"1")
        await cluster[1].stop()
        cluster[1].host.disk.mend()
        await cluster[1].start()
        await _two_logs_are_never_mixed(cluster, used)

    run(story, log_dirs=BOTH)


def test_edge_09_a_killed_start_does_not_hide_that_there_were_two_logs() -> None:
    """The log that is out of date is set aside only when the notes say that the broker is not intact."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        used = _holding(cluster, 1)[0]
        other = "/second" if used == "/first" else "/first"
        for kit in cluster.kits.values():
            kit.kill()
        await asyncio.sleep(_ALL_ENDED_S)
        disk = cluster[1].host.disk
        disk.make_directory(f"{other}/t-0")
        starting = asyncio.ensure_future(cluster[1].start())
        while not starting.done() and not any(name.endswith("-stray") for name in disk.list(other)):
            await asyncio.sleep(_A_MOMENT_S)
        cluster[1].kill()
        with pytest.raises(KilledWhileStartingError):
            await starting
        await cluster[1].start()
        await asyncio.sleep(1)
        assert cluster.leader() == 0
        for number in (2, 3):
            await cluster[number].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0"] for number in cluster.kits)

    run(story, log_dirs=BOTH)


@pytest.mark.parametrize("min_insync_replicas", ["1", "2"])
def test_edge_31_brokers_whose_directory_fails_at_their_start_take_the_isr_from_none(min_insync_replicas: str) -> None:
    """They cannot lead. Then the one that has every record can, and new disks of the others wipe nothing."""

    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic(min_insync_replicas=min_insync_replicas)
        await _fill(cluster, b"0", b"1")
        holding = {number: _holding(cluster, number)[0] for number in cluster.kits}
        for kit in cluster.kits.values():
            kit.kill()
        await asyncio.sleep(_ALL_ENDED_S)
        for number in (1, 2):
            cluster[number].host.disk.fail_next("read", count=None, under=f"{holding[number]}/")
        await asyncio.gather(cluster[1].start(), cluster[2].start())
        await asyncio.sleep(3)
        assert (cluster.leader(), cluster.stored_isr()) == (0, [1, 2, 3])
        await cluster[3].start()
        assert await cluster.leads() == 3
        for number in (1, 2):
            await cluster[number].stop()
            cluster[number].host.disk.mend()
            cluster[number].host.disk.remove_directory(holding[number])
            await cluster[number].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1"] for number in cluster.kits)
        assert sum(cluster[number].broker.controller.stats.unclean_elections for number in cluster.kits) == 0

    run(story, topic=False, log_dirs=BOTH)


@pytest.mark.parametrize("min_insync_replicas", ["1", "2"])
def test_edge_31_a_new_controller_asks_which_logs_are_there_before_it_elects(min_insync_replicas: str) -> None:
    """The log directories of two brokers fail while the third is dead, which led the partition and was the controller.

    No controller has heard which replicas are gone with them.
    """

    async def story(cluster: ClusterKit) -> None:
        third = cluster.controller
        others = [number for number in cluster.kits if number != third]
        await cluster.create_topic("t", ((third, *others),), min_insync_replicas=min_insync_replicas)
        await _fill(cluster, b"0", b"1")
        holding = {number: _holding(cluster, number)[0] for number in others}
        cluster[third].kill()
        for number in others:
            cluster[number].host.disk.fail_next("write", count=None, under=f"{holding[number]}/")
        await asyncio.sleep(_ALL_ENDED_S)
        assert cluster.controller in others
        assert (cluster.leader(), cluster.stored_isr()) == (0, [1, 2, 3])
        await cluster[third].start()
        assert await cluster.leads() == third
        for number in others:
            await cluster[number].stop()
            cluster[number].host.disk.mend()
            await cluster[number].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1"] for number in cluster.kits)

    checkpoint_ms = "500"  # and so a failing device is noticed before the session of the dead broker is over
    run(story, topic=False, log_dirs=BOTH, log_flush_offset_checkpoint_interval_ms=checkpoint_ms)
