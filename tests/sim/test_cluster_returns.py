"""Brokers that died come back: who leads then, and what is lost (S6.2, edge cases 9 and 31)."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from itertools import permutations

import pytest

from tests.kits.brokerkit import Kit
from tests.kits.clusterkit import ClusterKit, Story, run
from tests.kits.logkit import batch
from tidelog.broker.membership import BrokerIdTakenError
from tidelog.broker.storage import Storage
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode, StorageError
from tidelog.lab.broker import DATA, KilledWhileStartingError, eventually
from tidelog.lab.cluster import SESSION_MS, settings_of, store_of
from tidelog.lab.disk import SimDisk
from tidelog.lab.world import SimHost, World
from tidelog.log import names
from tidelog.wire.messages.metadata import DescribeTopicPartitionsRequest, DescribeTopicPartitionsRequestTopicRequest

VALUES = [b"0", b"1", b"2", b"3"]
_ALL_ENDED_S = SESSION_MS / 1000 * 2
_CHECKPOINT_S = 6.0
"""replica.high.watermark.checkpoint.interval.ms, and a little more."""


async def _fill(cluster: ClusterKit) -> None:
    for value in VALUES:
        assert await cluster.produce(value) is ErrorCode.NONE
    await eventually(lambda: len(set(cluster.ends().values())) == 1)


def _unclean_elections(cluster: ClusterKit) -> int:
    return sum(cluster[number].broker.controller.stats.unclean_elections for number in cluster.up)


async def _kill_all(cluster: ClusterKit) -> None:
    for kit in cluster.kits.values():
        kit.kill()
    await asyncio.sleep(_ALL_ENDED_S)


async def _one_waits_for_the_others(cluster: ClusterKit, why: str) -> None:
    """Broker 1 comes back first, and does not lead."""
    await cluster[1].start()
    await asyncio.sleep(1)
    assert cluster.leader() == 0, why
    for number in (3, 2):
        await cluster[number].start()
    await _all_have_all(cluster)


async def _all_have_all(cluster: ClusterKit) -> None:
    await cluster.all_in_sync()
    assert all(cluster.values(number) == VALUES for number in cluster.kits)
    assert _unclean_elections(cluster) == 0


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_edge_31_one_lost_power_two_were_killed_and_any_order_of_return_loses_nothing(order: tuple[int, ...]) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        cluster[1].kill()
        cluster[2].kill()
        cluster[3].lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        for number in order:
            await cluster[number].start()
            await asyncio.sleep(1)
            if number == 3 == order[0]:
                assert cluster.leader() == 0, "it may have lost records, and the others are waited for"
                assert cluster.stored_isr() == [1, 2, 3], "its return takes no member out of the ISR"
            else:
                assert cluster.leader() in (1, 2)
        await _all_have_all(cluster)

    run(story)


def test_edge_09_killed_processes_come_back_intact_after_a_second_kill_too() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for _ in range(2):
            for kit in cluster.kits.values():
                kit.kill()
            await asyncio.sleep(_ALL_ENDED_S)
            await cluster[3].start()
            assert await cluster.leads() == 3
        await cluster[1].start()
        await cluster[2].start()
        await _all_have_all(cluster)

    run(story)


@pytest.mark.parametrize("deaths_later", [0, 1])
def test_edge_09_a_power_loss_is_remembered_through_the_kills_after_it(deaths_later: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (2, 3):
            cluster[number].kill()
        cluster[1].lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        await cluster[1].start()
        for _ in range(deaths_later):
            cluster[1].kill()
            await asyncio.sleep(_ALL_ENDED_S)
            await cluster[1].start()
        await asyncio.sleep(2)
        assert cluster.leader() == 0, "the same boot as the process before it, but not as the one in the ISR"
        await cluster[2].start()
        assert await cluster.leads() == 2
        await cluster[3].start()
        await _all_have_all(cluster)

    run(story)


@pytest.mark.parametrize("how", ["unreadable", "another id", "stopped"])
def test_edge_09_a_start_that_fails_after_its_recovery_does_not_hide_the_power_loss(how: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (2, 3):
            cluster[number].kill()
        cluster[1].lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        await _fail_to_start(cluster[1], how)
        await asyncio.sleep(_ALL_ENDED_S)
        await cluster[1].start()
        await asyncio.sleep(2)
        assert cluster.leader() == 0, "the failed start has cut its log and stopped in good order"
        await cluster[2].start()
        assert await cluster.leads() == 2
        await cluster[3].start()
        await _all_have_all(cluster)

    run(story)


async def _fail_to_start(kit: Kit, how: str) -> None:
    """Its log directory is recovered, and then the start ends."""
    former, broker_id = kit.broker, kit.broker_id
    if how == "unreadable":
        kit.host.disk.fail_next("read", under=f"{DATA}/{names.META_PROPERTIES}")
    elif how == "another id":
        kit.broker_id = 7
    starting = asyncio.ensure_future(kit.start())
    if how == "stopped":
        while kit.broker is former or not kit.broker.storage.directories:
            await asyncio.sleep(0.00001)
        kit.interrupt()
    with pytest.raises(asyncio.CancelledError if how == "stopped" else StorageError):
        await starting
    kit.broker_id = broker_id


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_edge_31_all_lost_power_and_the_fullest_leads_when_all_are_back(
    order: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: ClusterKit) -> None:
        """Broker 3 has synced one record at least, 2 three of them, 1 none."""
        for value in VALUES:
            assert await cluster.produce(value) is ErrorCode.NONE
            await eventually(lambda: len(set(cluster.ends().values())) == 1)
            if value == VALUES[0]:
                await cluster.replicas()[3].log.flush()
            if value == VALUES[2]:
                await cluster.replicas()[2].log.flush()
        for kit in cluster.kits.values():
            kit.lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        for number in order:
            assert cluster.leader() == 0
            assert cluster.stored_isr() == [1, 2, 3]
            await cluster[number].start()
            await asyncio.sleep(0.5)
        await cluster.leads()
        assert _unclean_elections(cluster) == 1, "that records may be lost is counted"
        (said,) = [record.message for record in caplog.records if "may be lost" in record.message]
        assert re.search(r"t-0: broker \d leads, the last ISR was \[1, 2, 3\]; logs end: .*broker 2 at [34]", said)
        await eventually(lambda: cluster.is_in_sync(0, 3), 60)
        cluster.check_equal()
        assert all(end >= 3 for end, _ in cluster.ends().values()), "the fullest was chosen"

    # The witness' rules speak of what must not happen within the fault budget; this is outside.
    run(story, rules=())


def test_edge_31_the_operator_need_not_wait() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for kit in cluster.kits.values():
            kit.lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        await cluster[2].start()
        await asyncio.sleep(1)
        assert cluster.leader() == 0
        await cluster.elect_unclean(2)
        assert await cluster.leads() == 2
        assert _unclean_elections(cluster) == 1

    run(story, rules=())


def test_edge_09_an_empty_directory_is_not_intact() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await _kill_all(cluster)
        cluster[1].host.disk.remove_directory(DATA)
        await cluster[1].start()
        await asyncio.sleep(1)
        assert cluster.leader() == 0
        await cluster[3].start()
        assert await cluster.leads() == 3
        await cluster[2].start()
        await _all_have_all(cluster)

    run(story)


def test_edge_09_a_directory_without_its_boot_note_is_not_intact() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await _kill_all(cluster)
        cluster[1].host.disk.remove(f"{DATA}/{names.BOOT_NOTE}")
        await cluster[1].start()
        await asyncio.sleep(1)
        assert cluster.leader() == 0
        await cluster[2].start()
        assert await cluster.leads() == 2

    run(story)


def test_a_copy_of_a_running_brokers_directory_does_not_take_its_place() -> None:
    async def story(cluster: ClusterKit) -> None:
        assert await cluster.produce(VALUES[0]) is ErrorCode.NONE
        await cluster.all_in_sync()
        await asyncio.sleep(_CHECKPOINT_S)
        host = cluster.world.host("b4")
        host.__class__ = _MachineOfOne
        _copy(cluster[1].host.disk, host.disk, DATA)
        for value in VALUES[1:]:
            assert await cluster.produce(value) is ErrorCode.NONE
        epoch = cluster[1].broker.epoch
        twin = Kit(host, cluster.store, settings_of(4), 1, "b4")
        with pytest.raises(BrokerIdTakenError):
            await twin.start()
        assert cluster[1].broker.epoch == epoch
        assert cluster[1].broker.is_current
        await _all_have_all(cluster)

    run(story)


def test_edge_09_a_directory_of_another_cluster_is_not_intact() -> None:
    """The operator took meta.properties out of it so that the broker starts. Its epochs are those of another store."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await cluster[1].restart()
        await cluster.all_in_sync()
        host = cluster.world.host("b4")
        elsewhere = MemoryCoordination(host.clock)
        stranger = Kit(host, elsewhere, settings_of(4), 1, "b4")
        await stranger.start()
        assert stranger.broker.epoch < cluster[1].broker.epoch
        await stranger.stop()
        session = await elsewhere.connect(60_000)
        for number in range(100):
            await session.ensure(f"/{number}")
        await stranger.start()
        assert stranger.broker.epoch > cluster[1].broker.epoch
        await stranger.stop()
        await _kill_all(cluster)
        disk = cluster[1].host.disk
        disk.remove_directory(DATA)
        _copy(host.disk, disk, DATA)
        with pytest.raises(StorageError, match="belongs to cluster"):
            await cluster[1].start()
        disk.remove(f"{DATA}/{names.META_PROPERTIES}")
        await cluster[1].start()
        await asyncio.sleep(1)
        assert cluster.leader() == 0
        await cluster[2].start()
        assert await cluster.leads() == 2
        await cluster[3].start()
        await _all_have_all(cluster)

    run(story)


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_edge_09_a_directory_that_was_put_back_from_a_copy_is_not_intact_after_later_kills_either(kills: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        assert await cluster.produce(VALUES[0]) is ErrorCode.NONE
        await cluster.all_in_sync()
        await cluster[1].stop()
        disk, backup = cluster[1].host.disk, cluster.world.host("backup").disk
        _copy(disk, backup, DATA)
        await cluster[1].start()
        await cluster.all_in_sync()
        for value in VALUES[1:]:
            assert await cluster.produce(value) is ErrorCode.NONE
        await cluster.all_in_sync()
        await _kill_all(cluster)
        disk.remove_directory(DATA)
        _copy(backup, disk, DATA)
        await cluster[1].start()
        for _ in range(kills):
            cluster[1].kill()
            await asyncio.sleep(_ALL_ENDED_S)
            await cluster[1].start()
        await asyncio.sleep(2)
        assert cluster.leader() == 0, "it has missed an epoch, however often it was registered since"
        for number in (2, 3):
            await cluster[number].start()
        await _all_have_all(cluster)

    run(story)


class _MachineOfOne(SimHost):
    """Another process on the machine of broker 1: the same kernel tells it the same boot."""

    @property
    def boot_id(self) -> str:
        return "b1 boot 1"


def _copy(source: SimDisk, target: SimDisk, path: str) -> None:
    """cp -r, of the page cache as it is."""
    target.make_directory(path)
    for name in source.list(path):
        inner = f"{path}/{name}"
        try:
            content = source.read_file(inner)
        except StorageError:  # a directory
            _copy(source, target, inner)
        else:
            target.write_file(inner, content)


@pytest.mark.parametrize("is_torn", [True, False])
def test_edge_09_a_log_that_was_damaged_on_the_same_boot_is_not_intact_and_a_torn_write_is_no_damage(
    is_torn: bool,
) -> None:
    """The kernel may drop a page that it could not write. A process that is killed in a write leaves a part of it."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await _kill_all(cluster)
        file = cluster[1].host.disk.open(f"{DATA}/t-0/{0:020d}{names.LOG}")
        torn = len(VALUES).to_bytes(8, "big") + batch([b"torn"])[8:-1]  # the next offset, and all but its last byte
        file.write_at(file.size() - (0 if is_torn else 1), [torn if is_torn else b"?"])
        file.close()
        await cluster[1].start()
        await asyncio.sleep(1)
        assert cluster.leader() == (1 if is_torn else 0)
        for number in (2, 3):
            await cluster[number].start()
        await _all_have_all(cluster)

    run(story)


@pytest.mark.parametrize("lost", ["a batch", "a byte", "all"])
def test_edge_09_a_directory_that_was_copied_in_part_after_a_clean_stop_is_not_intact(lost: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (2, 3):
            cluster[number].kill()
        await cluster[1].stop()
        await asyncio.sleep(_ALL_ENDED_S)
        path, disk = f"{DATA}/t-0/{0:020d}{names.LOG}", cluster[1].host.disk
        if lost == "all":
            disk.remove(path)
        else:
            file = disk.open(path)
            file.truncate(file.size() - (file.size() // len(VALUES) if lost == "a batch" else 1))
            file.close()
        await _one_waits_for_the_others(cluster, "its log ends before its recovery point, or within a batch")

    run(story, controlled_shutdown_enable="false")


def test_edge_09_a_broker_with_a_replica_that_was_removed_by_hand_is_not_intact() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await asyncio.sleep(_CHECKPOINT_S)
        await _kill_all(cluster)
        cluster[1].host.disk.remove_directory(f"{DATA}/t-0")
        await _one_waits_for_the_others(cluster, "it would lead with an empty log, and the others would cut theirs")

    run(story)


def test_edge_09_a_broker_without_one_of_its_log_directories_is_not_intact() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await _kill_all(cluster)
        has_first = cluster[1].host.disk.exists("/first/t-0")
        cluster[1].settings["log.dirs"] = "/second" if has_first else "/first"
        await _one_waits_for_the_others(cluster, "its replica is in the directory that log.dirs does not name any more")

    run(story, log_dirs="/first,/second")


def test_edge_09_a_replica_that_was_moved_to_another_log_directory_is_there() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        await asyncio.sleep(_CHECKPOINT_S)
        await _kill_all(cluster)
        disk = cluster[1].host.disk
        source, target = ("/first", "/second") if disk.exists("/first/t-0") else ("/second", "/first")
        disk.rename(f"{source}/t-0", f"{target}/t-0")
        await cluster[1].start()
        assert await cluster.leads() == 1
        for number in (3, 2):
            await cluster[number].start()
        await _all_have_all(cluster)

    run(story, log_dirs="/first,/second")


def test_edge_09_a_clean_stop_before_the_reboot_keeps_everything() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (3, 2, 1):
            await cluster[number].stop()
        await asyncio.sleep(_ALL_ENDED_S)
        for kit in cluster.kits.values():
            kit.host.power_loss()  # the machines reboot while no broker runs
        await cluster[1].start()
        assert await cluster.leads() == 1
        await cluster[2].start()
        await cluster[3].start()
        await _all_have_all(cluster)

    run(story)


def test_edge_09_a_kill_in_the_first_start_after_the_reboot_forgets_no_clean_stop() -> None:
    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (3, 2, 1):
            await cluster[number].stop()
        await asyncio.sleep(_ALL_ENDED_S)
        for kit in cluster.kits.values():
            kit.host.power_loss()
        starting = asyncio.ensure_future(cluster[1].start())
        while cluster[1].host.disk.exists(f"{DATA}/{names.CLEAN_SHUTDOWN}"):
            await asyncio.sleep(0.000_001)  # shorter than any work of the disk
        cluster[1].kill()
        with pytest.raises(KilledWhileStartingError):
            await starting
        await asyncio.sleep(_ALL_ENDED_S)
        await cluster[1].start()
        assert await cluster.leads() == 1
        await cluster[2].start()
        await cluster[3].start()
        await _all_have_all(cluster)

    run(story)


def test_an_isr_that_can_commit_nothing_leaves_its_last_members_eligible() -> None:
    """All three die in one moment, and a fourth broker, the controller, hears of one death after the other (ELR)."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        first, second, third = await _all_end_one_after_the_other(cluster)
        await cluster[third].start()
        await asyncio.sleep(2)
        assert cluster.leader() == 0, "it may have lost records, and the second may not"
        told = cluster[controller].broker.metadata.partition("t", 0)
        assert told is not None
        assert (told.elr, told.last_known_elr) == ((second,), (third,))
        wanted = [DescribeTopicPartitionsRequestTopicRequest(name="t")]
        answer = await cluster[controller].call(DescribeTopicPartitionsRequest(topics=wanted), 0)
        (shown,) = answer.topics[0].partitions
        assert (shown.eligible_leader_replicas, shown.last_known_elr) == ([second], [third])
        await cluster[second].start()
        assert await cluster.leads() == second
        await cluster[first].start()
        await eventually(lambda: cluster.is_in_sync(0, 3), 60)
        assert all(cluster.values(number) == VALUES for number in (first, second, third))
        assert _unclean_elections(cluster) == 0

    _run_four(story, 1)


def test_edge_09_a_life_whose_epoch_no_directory_could_note_loses_nothing() -> None:
    """The device is full, or fails, when the broker has just lost its session."""

    async def story(cluster: ClusterKit) -> None:
        await _fill(cluster)
        for number in (2, 3):
            cluster[number].kill()
        disk, broker = cluster[1].host.disk, cluster[1].broker
        disk.fail_next("write", count=None, under=f"{DATA}/{names.BOOT_NOTE}")
        cluster[1].expire_session()
        await eventually(broker.failed.done)
        await cluster[1].stop()
        disk.mend()
        await asyncio.sleep(_ALL_ENDED_S)
        await cluster[1].start()
        assert await cluster.leads() == 1
        for number in (2, 3):
            await cluster[number].start()
        await _all_have_all(cluster)

    run(story)


@pytest.mark.parametrize("end", ["kill", "lost session"])
@pytest.mark.parametrize("min_insync_replicas", ["1", "2"])
def test_edge_09_a_life_that_ends_before_its_epoch_is_noted_loses_nothing(
    min_insync_replicas: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has made the broker the leader in that life. It has not led, and is as intact as before."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        replicas = tuple(number for number in cluster.kits if number != controller)
        await cluster.create_topic("t", [replicas], min_insync_replicas=min_insync_replicas)
        await eventually(lambda: len(cluster.isr()) == 3)
        await _fill_on(cluster, replicas)
        for number in replicas:
            cluster[number].kill()
        await asyncio.sleep(_ALL_ENDED_S)
        first = cluster[replicas[0]]
        with monkeypatch.context() as patched:
            patched.setattr(Storage, "registered", lambda storage, epoch: asyncio.sleep(1))
            starting = asyncio.ensure_future(first.start())
            await eventually(lambda: cluster.stored_state().leader == first.broker_id)
        if end == "kill":
            first.kill()
            with pytest.raises(KilledWhileStartingError):
                await starting
            await asyncio.sleep(_ALL_ENDED_S)
            starting = asyncio.ensure_future(first.start())
        else:
            first.expire_session()
        await starting
        await asyncio.sleep(1)
        assert await cluster.leads() == first.broker_id
        assert _unclean_elections(cluster) == 0

    _run_four(story, 1)


def _isr_is(cluster: ClusterKit, members: tuple[int, ...]) -> bool:
    return cluster.stored_state().isr == members


async def _fill_on(cluster: ClusterKit, replicas: tuple[int, ...]) -> None:
    for value in VALUES:
        assert await cluster.produce(value) is ErrorCode.NONE
    await eventually(lambda: len({cluster.ends()[number] for number in replicas}) == 1)


async def _all_end_one_after_the_other(cluster: ClusterKit) -> tuple[int, int, int]:
    """The replicas of t, which are not the controller: two are killed and the third loses power in one moment, and the
    controller hears of one death after the other. The third is left in the ISR, and the second is eligible."""
    first, second, third = [number for number in cluster.kits if number != cluster.controller]
    await cluster.create_topic("t", [(first, second, third)])
    await eventually(lambda: len(cluster.isr()) == 3)
    await _fill_on(cluster, (first, second, third))
    sessions = {number: cluster[number].broker.session.id for number in (first, second, third)}
    cluster[third].lose_power()
    for number in (first, second):
        cluster[number].kill()
    for number, left in ((first, (second, third)), (second, (third,))):
        cluster.store.expire(sessions[number])
        await eventually(partial(_isr_is, cluster, left), 2)
    cluster.store.expire(sessions[third])
    await eventually(lambda: cluster.stored_state().leader == -1, 2)
    assert (cluster.stored_state().isr, cluster.stored_state().elr) == ((third,), (second,))
    return first, second, third


def _run_four(story: Story, seed: int) -> None:
    with World(seed) as world:
        cluster = ClusterKit(world, store_of(world), 4)

        async def whole() -> None:
            await cluster.start()
            await world.host("client").start(story(cluster))

        world.run(whole(), limit_s=600)
