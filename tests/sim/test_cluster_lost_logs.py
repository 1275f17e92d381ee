"""Logs that are damaged, missing or without a topic id: no broker leads with them as if it had kept everything."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.sim.test_cluster_absence import T, all_on_disk, bad_id, change, lose_controller
from tests.sim.test_cluster_log_directories import _reassign
from tests.sim.test_cluster_returns import (
    _all_end_one_after_the_other,
    _one_waits_for_the_others,
    _run_four,
    _unclean_elections,
)
from tidelog.controller import nodes
from tidelog.errors import ErrorCode
from tidelog.lab.broker import DATA, KilledWhileStartingError, eventually
from tidelog.lab.cluster import SESSION_MS
from tidelog.lab.tree import failure
from tidelog.log import names
from tidelog.types import TopicPartition
from tidelog.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

VALUES = [b"0", b"1", b"2", b"3"]
_LOG = f"{0:020d}{names.LOG}"
_ALL_ENDED_S = SESSION_MS / 1000 * 2
_CHECKPOINT_S = 6.0
_MOMENT_S = 1e-6
"""Shorter than any work of the disk."""


async def _fill(cluster: ClusterKit, values: list[bytes] = VALUES) -> None:
    for value in values:
        assert await cluster.produce(value) is ErrorCode.NONE
    await cluster.all_in_sync()


async def _made_in_two_lives(cluster: ClusterKit, one: int, replicas: tuple[int, ...]) -> None:
    """A topic whose log broker `one` began to make in a life that ended before the topic id was written."""
    disk = cluster[one].host.disk
    making = asyncio.ensure_future(cluster.create_topic("t", (replicas,)))
    while not disk.exists(f"{DATA}/t-0"):
        await asyncio.sleep(_MOMENT_S)
    assert not disk.exists(f"{DATA}/t-0/{names.PARTITION_METADATA}")
    cluster[one].kill()
    await asyncio.sleep(_ALL_ENDED_S)
    await cluster[one].start()
    await making
    await eventually(lambda: cluster.isr() == [1, 2, 3], 60)


def test_a_log_whose_making_was_cut_short_is_not_taken_for_that_of_a_later_topic() -> None:
    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        one, other = [number for number in cluster.kits if number != controller]
        await _made_in_two_lives(cluster, one, (other, controller, one))
        await _fill(cluster)
        cluster[one].kill()
        await _reassign(cluster, other, controller)
        await cluster[controller].delete_topic("t")
        await eventually(lambda: cluster.store.tree.exists(T) is None)
        making = asyncio.ensure_future(cluster.create_topic("t", ((other, controller, one),)))
        await eventually(lambda: bool(cluster.leader()) and cluster.isr() == sorted((other, controller)), 60)
        later = [b"later %d" % number for number in range(2 * len(VALUES))]
        for value in later:
            assert await cluster.produce(value) is ErrorCode.NONE
        await cluster[one].start()
        await making
        await cluster.all_in_sync()
        assert all(cluster.values(number) == later for number in cluster.kits)

    run(story, topic=False, rules=())


def test_a_log_whose_making_was_cut_short_comes_back_when_it_was_a_stray() -> None:
    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        one, other = [number for number in cluster.kits if number != controller]
        await _made_in_two_lives(cluster, one, (one, other, controller))
        await _fill(cluster)
        await _becomes_a_stray_and_returns(cluster)
        await eventually(lambda: all_on_disk(cluster) == [["t-0"]] * 3)
        await cluster.all_in_sync()
        assert all(cluster.values(number) == VALUES for number in cluster.kits)

    run(story, topic=False)


async def _becomes_a_stray_and_returns(cluster: ClusterKit, meanwhile: object = None) -> None:
    good = await change(cluster, T, bad_id)
    await lose_controller(cluster)
    await eventually(lambda: all_on_disk(cluster) == [["t-0-stray"]] * 3)
    if callable(meanwhile):
        meanwhile()
    await change(cluster, T, lambda _: good)
    await eventually(lambda: bool(cluster.leader()), 60)


@pytest.mark.parametrize("damage", ["a failed read", "its topic id", "its last batch"])
def test_edge_35_a_stray_that_cannot_be_trusted_does_not_make_way_for_an_empty_log(damage: str) -> None:
    """Its broker, which leads by preference, steps back; the others have everything."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        one, other = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", ((one, other, controller),))
        await eventually(lambda: cluster.isr() == [1, 2, 3], 60)
        await _fill(cluster)
        disk = cluster[one].host.disk
        read_file = disk.read_file

        def fails_once(path: str) -> bytes:
            if path.endswith(f"{names.STRAY_DIRECTORY}/{names.PARTITION_METADATA}"):
                disk.read_file = read_file  # type: ignore[method-assign]
                raise failure("read", path, errno.EIO)
            return read_file(path)

        def is_damaged() -> None:
            (stray,) = [name for name in disk.list(DATA) if name.endswith(names.STRAY_DIRECTORY)]
            path, at = f"{DATA}/{stray}/{_LOG}", 80
            file = disk.open(path)
            file.write_at(file.size() - at, [b"?"])
            file.close()

        if damage == "a failed read":
            disk.read_file = fails_once  # type: ignore[method-assign]
        if damage == "its topic id":
            path = f"{cluster.replicas()[one].log.directory}/{names.PARTITION_METADATA}"
            disk.write_file(path, b"no id")
        await _becomes_a_stray_and_returns(cluster, is_damaged if damage == "its last batch" else None)
        assert cluster.leader() != one
        assert await cluster.produce(b"more") is ErrorCode.NONE
        for number in (other, controller):
            assert cluster.values(number)[: len(VALUES)] == VALUES

    run(story, topic=False, rules=())


@pytest.mark.parametrize("change_of", ["the setting", "a config node that cannot be read"])
def test_members_stay_eligible_without_a_leader_when_min_insync_replicas_falls(change_of: str) -> None:
    """One lost power, two were killed, and their sessions end one after the other: the last of the ISR is the one that
    lost power, and the intact one is eligible."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        first, second, third = await _all_end_one_after_the_other(cluster)
        if change_of == "the setting":
            await _set_min_insync_replicas(cluster, "1")
        else:
            good = await change(cluster, nodes.config_path("topics", "t"), lambda _: b"{")
            cluster[controller].expire_session()
            await asyncio.sleep(_ALL_ENDED_S)
            await change(cluster, nodes.config_path("topics", "t"), lambda _: good)
        await asyncio.sleep(1)
        assert cluster.stored_state().elr == (second,)
        await cluster[second].start()
        assert await cluster.leads() == second
        for number in (third, first):
            await cluster[number].start()
        await eventually(lambda: len(cluster.isr()) == 3, 60)
        assert all(cluster.values(number) == VALUES for number in (first, second, third))
        assert _unclean_elections(cluster) == 0

    _run_four(story, seed=1)


async def _set_min_insync_replicas(cluster: ClusterKit, value: str) -> None:
    setting = IncrementalAlterConfigsRequestAlterableConfig(name="min.insync.replicas", config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    answer = await cluster[cluster.controller].call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0


@pytest.mark.parametrize("is_replaced", [False, True])
def test_edge_31_an_isr_that_lost_its_only_log_makes_way_for_the_replica_that_has_most(is_replaced: bool) -> None:
    """Broker 1, alone in the ISR, starts with a log directory too few, or with an empty one in its place."""

    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", ((1, 2, 3),), min_insync_replicas="1")
        await eventually(lambda: len(cluster.isr()) == 3)
        await _fill(cluster)
        for number in (2, 3):
            cluster[number].kill()
        await eventually(lambda: cluster.isr() == [1], 60)
        assert await cluster.produce(b"alone") is ErrorCode.NONE
        at = TopicPartition("t", 0)
        (holding,) = [directory.path for directory in cluster[1].broker.storage.directories if at in directory.logs]
        await cluster[1].stop()
        if is_replaced:
            cluster[1].host.disk.remove_directory(holding)
        else:
            cluster[1].settings["log.dirs"] = "/second" if holding == "/first" else "/first"
        await cluster[1].start()
        await cluster[2].start()
        await asyncio.sleep(_ALL_ENDED_S)
        assert cluster.leader() == 0, "the third may have more"
        await cluster[3].start()
        await cluster.all_in_sync()
        assert all(cluster.values(number) == VALUES for number in cluster.kits)
        assert _unclean_elections(cluster) == 1, "what broker 1 wrote alone is lost, and that is reported"

    run(story, topic=False, rules=(), log_dirs="/first,/second")


@pytest.mark.parametrize("lost", ["a batch", "all", "a batch after a clean stop and a killed start"])
def test_edge_09_a_log_that_is_shorter_than_its_recovery_point_is_not_intact_after_a_kill_either(lost: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await cluster.replicas()[1].log.flush()
        await asyncio.sleep(_CHECKPOINT_S)
        disk, path = cluster[1].host.disk, f"{DATA}/t-0/{_LOG}"
        for number in (2, 3):
            cluster[number].kill()
        if "clean stop" in lost:
            await cluster[1].stop()
        else:
            cluster[1].kill()
        await asyncio.sleep(_ALL_ENDED_S)
        if lost == "all":
            disk.remove(path)
        else:
            file = disk.open(path)
            file.truncate(file.size() * (len(VALUES) - 1) // len(VALUES))
            file.close()
        if "killed start" in lost:
            await _killed_start(cluster)
        await _one_waits_for_the_others(cluster, "its log ends before its recovery point")

    run(story, controlled_shutdown_enable="false")


async def _killed_start(cluster: ClusterKit) -> None:
    """Broker 1 is killed when the mark of its clean shutdown is gone, and before its log is opened."""
    disk = cluster[1].host.disk
    starting = asyncio.ensure_future(cluster[1].start())
    while disk.exists(f"{DATA}/{names.CLEAN_SHUTDOWN}"):
        await asyncio.sleep(_MOMENT_S)
    cluster[1].kill()
    with pytest.raises(KilledWhileStartingError):
        await starting
    await asyncio.sleep(_ALL_ENDED_S)


def test_the_mark_of_a_failed_sync_counts_also_when_its_directory_has_another_path() -> None:
    """The directory takes no mark, so another one holds it. The disk is mounted elsewhere, and the kernel has dropped
    the pages that it could not write."""

    async def story(cluster: ClusterKit) -> None:
        at = TopicPartition("t", 0)
        (holding,) = [directory.path for directory in cluster[1].broker.storage.directories if at in directory.logs]
        other = "/first" if holding == "/second" else "/second"
        disk, path = cluster[1].host.disk, f"{holding}/t-0/{_LOG}"
        await _fill(cluster, VALUES[:1])
        await cluster.replicas()[1].log.flush()
        synced_bytes = disk.file_size(path)
        await _fill(cluster, VALUES[1:])
        for number in (2, 3):
            cluster[number].kill()
        disk.fail_next("sync", count=None, under=holding)
        disk.fail_next("write", count=None, under=f"{holding}/.tidelog-suspect")
        await asyncio.gather(cluster.replicas()[1].log.flush(), return_exceptions=True)
        await eventually(lambda: any("suspect" in name for name in disk.list(other)))
        cluster[1].kill()
        await asyncio.sleep(_ALL_ENDED_S)
        disk.mend()
        file = disk.open(path)
        file.truncate(synced_bytes)
        file.close()
        disk.rename(holding, "/third")
        cluster[1].settings["log.dirs"] = f"{other},/third"
        await _one_waits_for_the_others(cluster, "a sync failed in one of its directories")

    run(story, log_dirs="/first,/second")
