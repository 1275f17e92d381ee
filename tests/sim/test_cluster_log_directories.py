"""Log directories that are away at one start and there at the next: which log counts, who may lead (edge case 9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from tests.kits.clusterkit import ClusterKit, Story, run
from tidelog.errors import ErrorCode, StorageError
from tidelog.lab.broker import KilledWhileStartingError, eventually
from tidelog.lab.cluster import SESSION_MS, store_of
from tidelog.lab.world import World
from tidelog.log import names
from tidelog.log.continuity import read_boot_note
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic

T = TopicPartition("t", 0)
BOTH = "/first,/second"
ALL_THREE = f"{BOTH},/third"
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


async def _end_all(cluster: ClusterKit, how: str = "kill") -> None:
    for kit in cluster.kits.values():
        if how == "kill":
            kit.kill()
        else:
            await kit.stop()
    await asyncio.sleep(_ALL_ENDED_S)


async def _is_killed_in_its_start(cluster: ClusterKit, is_far_enough: Callable[[], bool]) -> None:
    """Broker 1 is killed as soon as its start has come far enough."""
    starting = asyncio.ensure_future(cluster[1].start())
    while not starting.done() and not is_far_enough():
        await asyncio.sleep(_A_MOMENT_S)
    assert is_far_enough()
    cluster[1].kill()
    with pytest.raises(KilledWhileStartingError):
        await starting
    await asyncio.sleep(_ALL_ENDED_S)


async def _one_may_lead(cluster: ClusterKit, *, is_intact: bool) -> None:
    """Broker 1 starts while the others are down, and leads if it is intact. When all are back, nothing is lost."""
    await cluster[1].start()
    await asyncio.sleep(2)
    assert cluster.leader() == (1 if is_intact else 0)
    for number in (2, 3):
        await cluster[number].start()
    await cluster.all_in_sync()
    assert all(cluster.values(number) == [b"0"] for number in cluster.kits)
    assert _unclean_elections(cluster) == 0


def _unclean_elections(cluster: ClusterKit) -> int:
    return sum(cluster[number].broker.controller.stats.unclean_elections for number in cluster.kits)


def _counted(cluster: ClusterKit, path: str) -> int:
    """How many log directories the boot note in this directory of broker 1 counts."""
    note = read_boot_note(cluster[1].host.disk, path)
    return 0 if note is None else note.directories


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_edge_09_brokers_with_one_more_log_directory_are_as_intact_as_before(how: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0", b"1")
        for more in (ALL_THREE, f"{ALL_THREE},/fourth"):
            await _end_all(cluster, how)
            for kit in cluster.kits.values():
                kit.settings["log.dirs"] = more
            for number in (2, 3):  # one of them was the last to stop, and so the last ISR may be that one alone
                await cluster[number].start()
            assert await cluster.leads() in (2, 3)
            await cluster[1].start()
            await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1"] for number in cluster.kits)
        assert _unclean_elections(cluster) == 0

    run(story, log_dirs=BOTH)


@pytest.mark.parametrize("moment", ["claimed", "noted", "counted"])
def test_edge_09_a_kill_in_the_first_start_with_a_new_log_directory_loses_nothing(moment: str) -> None:
    """No directory counts the new one before that has its own note, so it is never taken for a lost one."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        await _end_all(cluster)
        cluster[1].settings["log.dirs"] = ALL_THREE
        disk = cluster[1].host.disk
        is_far_enough = {
            "claimed": lambda: disk.exists(f"/third/{names.META_PROPERTIES}"),
            "noted": lambda: disk.exists(f"/third/{names.BOOT_NOTE}"),
            "counted": lambda: 3 in (_counted(cluster, "/first"), _counted(cluster, "/second")),
        }
        await _is_killed_in_its_start(cluster, is_far_enough[moment])
        await _one_may_lead(cluster, is_intact=True)

    run(story, log_dirs=BOTH)


@pytest.mark.parametrize("moment", ["noted", "counted"])
def test_edge_09_a_new_log_directory_does_not_hide_that_another_one_is_lost(moment: str) -> None:
    """The directory with the log is replaced by an empty one, after a kill in the first start with the new one."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        holding = _holding(cluster, 1)[0]
        await _end_all(cluster)
        cluster[1].settings["log.dirs"] = ALL_THREE
        disk = cluster[1].host.disk
        is_far_enough = {
            "noted": lambda: disk.exists(f"/third/{names.BOOT_NOTE}"),
            "counted": lambda: 3 in (_counted(cluster, "/first"), _counted(cluster, "/second")),
        }
        await _is_killed_in_its_start(cluster, is_far_enough[moment])
        disk.remove_directory(holding)
        await _one_may_lead(cluster, is_intact=False)

    run(story, log_dirs=BOTH)


@pytest.mark.parametrize("log_dirs", [BOTH, ALL_THREE, "remaining and third"])
def test_edge_09_an_empty_log_directory_in_the_place_of_another_one_is_not_new(log_dirs: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        holding = _holding(cluster, 1)[0]
        remaining = "/second" if holding == "/first" else "/first"
        await _end_all(cluster)
        cluster[1].settings["log.dirs"] = log_dirs if "first" in log_dirs else f"{remaining},/third"
        cluster[1].host.disk.remove_directory(holding)
        await _one_may_lead(cluster, is_intact=False)

    run(story, log_dirs=BOTH)


def test_edge_09_a_new_log_directory_that_was_in_use_and_is_empty_again_is_lost() -> None:
    """Broker 1 has its replica in the directory that was added."""

    async def story(cluster: ClusterKit) -> None:
        for kit in cluster.kits.values():
            await kit.stop()
            kit.settings["log.dirs"] = f"/third,{BOTH}"
        await cluster.start()
        await cluster.create_topic()
        await eventually(lambda: cluster.isr() == [1, 2, 3])
        await _fill(cluster, b"0")
        assert _holding(cluster, 1) == ["/third"]
        await _end_all(cluster)
        cluster[1].host.disk.remove_directory("/third")
        await _one_may_lead(cluster, is_intact=False)

    run(story, topic=False, log_dirs=BOTH)


def test_edge_09_old_directories_that_could_not_count_a_new_one_do_not_hide_its_loss() -> None:
    """The old directory of broker 1 fails as it is to count the new one, so only that is used, and is lost later.

    The note in the old one does not count it. But it does not know the last broker epoch either, and the store does.
    """

    async def story(cluster: ClusterKit) -> None:
        await cluster[1].stop()
        cluster[1].settings["log.dirs"] = BOTH
        disk = cluster[1].host.disk
        disk.fail_next("write", count=None, under=f"/first/{names.BOOT_NOTE}")
        await cluster[1].start()
        await cluster.create_topic()
        await eventually(lambda: cluster.isr() == [1, 2, 3])
        await _fill(cluster, b"0")
        assert _holding(cluster, 1) == ["/second"]
        assert _counted(cluster, "/first") == 1
        await _end_all(cluster)
        disk.mend()
        disk.remove_directory("/second")
        await _one_may_lead(cluster, is_intact=False)

    run(story, topic=False, log_dirs="/first")


def test_edge_09_a_new_log_directory_does_not_replace_one_that_cannot_be_used() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster, b"0")
        holding = _holding(cluster, 1)[0]
        await _end_all(cluster)
        cluster[1].settings["log.dirs"] = ALL_THREE
        cluster[1].host.disk.fail_next("read", count=None, under=f"{holding}/")
        await cluster[1].start()
        await asyncio.sleep(2)
        assert cluster.leader() == 0
        assert cluster[1].broker.storage.continuity.intact_since == cluster[1].broker.epoch
        await cluster[1].stop()
        cluster[1].host.disk.mend()
        cluster[1].host.disk.remove_directory(holding)
        await _one_may_lead(cluster, is_intact=False)

    run(story, log_dirs=BOTH)


async def _fail_directory(cluster: ClusterKit, number: int, path: str) -> None:
    (directory,) = [each for each in cluster[number].broker.storage.directories if each.path == path]
    cluster[number].host.disk.fail_next("write", count=None, under=f"{path}/")
    with pytest.raises(StorageError):
        await directory.checkpoint()
    await asyncio.sleep(3)


def test_a_replica_is_added_although_the_request_that_calls_it_new_is_lost() -> None:
    """Its broker has a failed log directory and loses its session when the reassignment begins."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        added, other = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", ((other, controller),))
        assert await cluster.produce(b"0") is ErrorCode.NONE
        await _fail_directory(cluster, added, "/second")
        cluster.cut_off(added)
        await _reassign(cluster, other, controller, added)
        cluster[added].expire_session()
        await asyncio.sleep(1)
        cluster.heal(added)
        await cluster.all_in_sync()
        assert cluster.values(added) == [b"0"]

    run(story, topic=False, log_dirs=BOTH)


def test_edge_09_a_replica_that_was_added_to_the_isr_and_left_it_is_made_anew_and_its_old_log_is_not_mixed_in() -> None:
    """Its log directory fails while the reassignment still waits for another broker."""

    async def story(cluster: ClusterKit) -> None:
        async with _added_to_the_isr(cluster) as (stays, added):
            old = _holding(cluster, added)[0]
            used = "/second" if old == "/first" else "/first"
            cluster[added].kill()
            await asyncio.sleep(_ALL_ENDED_S)
            assert await cluster.produce(b"1") is ErrorCode.NONE
            cluster[added].host.disk.fail_next("read", count=None, under=f"{old}/")
            await cluster[added].start()
            await eventually(lambda: added in cluster.isr(), 60)
            assert _holding(cluster, added) == [used]
            assert await cluster.produce(b"2") is ErrorCode.NONE
            for number in (*stays, added):
                cluster[number].kill()
            await asyncio.sleep(_ALL_ENDED_S)
            cluster[added].host.disk.mend()
            await cluster[added].start()
            await asyncio.sleep(2)
            assert cluster.leader() == 0, "it has two logs and is not intact"
            assert _holding(cluster, added) == [used]
            assert [stray.partition for stray in cluster[added].broker.storage.strays] == [T]

    _run_four(story, [b"0", b"1", b"2"])


def test_edge_31_no_empty_log_is_made_for_an_added_replica_that_the_partition_waits_for() -> None:
    """All members of the ISR are killed; the one that was added comes back first, without the directory of its log."""

    async def story(cluster: ClusterKit) -> None:
        async with _added_to_the_isr(cluster) as (stays, added):
            old = _holding(cluster, added)[0]
            for number in (*stays, added):
                cluster[number].kill()
            await asyncio.sleep(_ALL_ENDED_S)
            cluster[added].host.disk.fail_next("read", count=None, under=f"{old}/")
            await cluster[added].start()
            await asyncio.sleep(5)
            assert (cluster.leader(), cluster.stored_isr()) == (0, sorted((*stays, added)))
            assert _holding(cluster, added) == []
            await cluster[added].stop()
            cluster[added].host.disk.mend()

    _run_four(story, [b"0"])


@contextlib.asynccontextmanager
async def _added_to_the_isr(cluster: ClusterKit) -> AsyncIterator[tuple[tuple[int, int], int]]:
    """Two replicas stay, one is added and in the ISR, and another one that is to be added is dead meanwhile.

    In the end all are up again, and the reassignment ends.
    """
    first, second, added, awaited = cluster.kits
    await cluster.create_topic("t", ((first, second),))
    assert await cluster.produce(b"0") is ErrorCode.NONE
    cluster.cut_off(awaited)
    await _reassign(cluster, first, second, added, awaited)
    cluster[awaited].kill()
    cluster.heal(awaited)
    await eventually(lambda: cluster.isr() == sorted((first, second, added)), 60)
    await asyncio.sleep(_ALL_ENDED_S)
    yield (first, second), added
    await cluster.start()
    await cluster.all_in_sync()


def _run_four(story: Story, values: list[bytes]) -> None:
    """Each of four brokers has these values in the end."""
    with World(1) as world:
        cluster = ClusterKit(world, store_of(world), 4, log_dirs=BOTH)

        async def whole() -> None:
            await cluster.start()
            await world.host("client").start(story(cluster))
            assert all(cluster.values(number) == values for number in cluster.kits)
            assert _unclean_elections(cluster) == 0

        world.run(whole(), limit_s=600)
