"""The life of a broker: start, stop, kill, and a session that is lost (S12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kits.brokerkit import PRODUCE_BY_NAME, UPDATE_METADATA, Kit, code_of, produce_request, run, run_here, within
from tests.kits.logkit import batch
from tests.kits.logkit import idempotent as _idempotent
from tidelog.broker.broker import Broker
from tidelog.broker.fetchers import Fetchers
from tidelog.broker.membership import BrokerIdTakenError
from tidelog.broker.partition import Partition
from tidelog.config.broker import BrokerConfig
from tidelog.errors import ErrorCode, StorageError
from tidelog.lab.broker import DATA, eventually
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import TopicPartition
from tidelog.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tidelog.wire.messages.controller import UpdateMetadataRequest


def idempotent(kit: Kit, sequence: int) -> bytes:
    """Of now: a producer that was last heard of years ago is forgotten by a restart."""
    return _idempotent(sequence, timestamp=kit.ports.clock.wall_ms())


async def _writes_and_reads(kit: Kit) -> None:
    await kit.create_topic("t", 2)
    answer = await kit.produce()
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert await kit.values() == [b"value"]


def test_in_the_world() -> None:
    run(_writes_and_reads)


def test_on_this_machine(tmp_path: Path) -> None:
    run_here(_writes_and_reads, tmp_path)


def test_on_this_machine_after_a_restart(tmp_path: Path) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        for number in range(3):
            await kit.produce(idempotent(kit, number))
        await kit.restart()
        await kit.leads("t", 2)
        assert await kit.values() == [b"0", b"1", b"2"]
        again = await kit.produce(idempotent(kit, 2))
        assert (again.error_code, again.base_offset) == (0, 2)

    run_here(story, tmp_path)


# Restarts


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_back_after_a_restart(clean: bool) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t", 2, retention_ms="12345", min_insync_replicas="1")
        for number in range(5):
            await kit.produce(idempotent(kit, number))
        before = kit.broker.epoch
        if clean:
            await kit.stop()
        else:
            kit.kill()
        await kit.start()
        await kit.leads("t", 2)
        assert kit.broker.epoch > before
        assert all(directory.was_clean is clean for directory in kit.broker.storage.directories)
        partition = kit.partition()
        assert (partition.topic_id, partition.log.high_watermark) == (topic_id, 5)
        assert partition.log.config.retention_ms == 12345
        assert await kit.values() == [b"0", b"1", b"2", b"3", b"4"]
        again = await kit.produce(idempotent(kit, 4))
        assert (again.error_code, again.base_offset) == (0, 4)
        assert (await kit.produce(idempotent(kit, 5))).base_offset == 5

    run(story)


def test_hw_is_kept_over_a_clean_restart() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        await kit.stop()
        text = kit.host.disk.read_file(f"{DATA}/replication-offset-checkpoint").decode()
        assert "t 0 1" in text

    run(story)


def test_a_topic_deleted_just_before_a_kill_stays_deleted() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        await kit.delete_topic()
        kit.kill()
        await kit.start()
        await kit.create_topic()
        assert await kit.values() == []

    run(story)


def test_the_directory_of_another_broker_is_not_taken() -> None:
    async def story(kit: Kit) -> None:
        await kit.stop()
        kit.broker_id = 2
        with pytest.raises(StorageError, match="belongs to broker 1"):
            await kit.start()
        assert not kit.host.disk._locks

    run(story)


def test_an_id_that_is_taken() -> None:
    async def story(kit: Kit) -> None:
        await kit.stop()
        other = await kit.store.connect(60_000)
        await other.create("/brokers/ids/1", b"{}", ephemeral=True)
        with pytest.raises(BrokerIdTakenError):
            await kit.start()

    run(story)


def test_a_broker_waits_for_the_session_of_its_earlier_life() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.kill()
        async with within(10):
            await kit.start()
        await kit.leads("t")

    run(story)


def test_a_link_to_a_volume_that_is_gone_is_left_out(tmp_path: Path) -> None:
    async def story(kit: Kit) -> None:
        await kit.stop()
        (tmp_path / "volume").rename(tmp_path / "elsewhere")
        await kit.start()
        assert kit.broker.storage.left_out == [str(tmp_path / "second")]
        assert kit.broker.storage.continuity.intact_since == kit.broker.epoch

    (tmp_path / "volume").mkdir()
    (tmp_path / "second").symlink_to(tmp_path / "volume")
    run_here(story, tmp_path, log_dirs=f"{tmp_path}/first,{tmp_path}/second")


# A session that is lost


def test_a_lost_session_ends_leading_at_once_and_a_new_one_brings_it_back() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        before, partition = kit.broker.epoch, kit.partition()
        kit.store.delay_s = lambda: 0.05  # it is back before long
        kit.expire_session()
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await eventually(lambda: kit.broker.epoch > before)
        await eventually(lambda: partition.leader is not None)
        assert (await kit.produce()).base_offset == 1
        assert not kit.broker.failed.done()
        assert len(await kit.values()) == 2

    run(story)


def test_a_session_lost_again_and_again() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.store.delay_s = lambda: 0.003
        kit.expire_session()
        for pause_ms in range(1, 120, 4):  # at every step of joining again
            await eventually(lambda: kit.store._seats)
            await asyncio.sleep(pause_ms / 1000)
            for session in list(kit.store._seats):
                kit.store.expire(session)
        await eventually(lambda: kit.broker.is_current and kit.partition().leader is not None)
        await eventually(lambda: kit.broker.is_current and kit.broker.controller.is_active)
        assert not kit.broker.failed.done(), kit.broker.failed.result()
        assert await code_of(kit.produce()) == ErrorCode.NONE

    run(story)


def test_a_store_that_cannot_be_reached_for_a_while() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.store.suspend()
        await asyncio.sleep(3)
        kit.store.resume()
        await asyncio.sleep(1)
        assert await code_of(kit.produce()) == ErrorCode.NONE
        kit.store.suspend()
        await asyncio.sleep(10)
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        kit.store.resume()
        await eventually(lambda: kit.broker.is_current and kit.partition().leader is not None)
        assert await code_of(kit.produce()) == ErrorCode.NONE
        assert not kit.broker.failed.done()

    run(story)


def test_a_store_that_flaps_while_the_broker_joins() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.store.delay_s = lambda: 0.003
        kit.expire_session()
        for pause_ms in range(1, 120, 4):
            await eventually(lambda: kit.store._seats)
            await asyncio.sleep(pause_ms / 1000)
            kit.store.suspend()
            await asyncio.sleep(0.01)
            kit.store.resume()
        await eventually(lambda: kit.broker.is_current and kit.partition().leader is not None)
        assert not kit.broker.failed.done(), kit.broker.failed.result()
        assert await code_of(kit.produce()) == ErrorCode.NONE

    run(story)


def test_requests_of_the_controller_wait_until_the_broker_is_a_member_again() -> None:
    """Between two lives it must not be told to lead by somebody who speaks of the first."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        old = kit.broker.epoch
        kit.expire_session()
        kit.store.suspend()  # so that no new session can be opened
        await asyncio.sleep(8)
        assert not kit.broker.is_current
        with pytest.raises(ConnectionClosedError):
            await kit.lead_and_isr(broker_epoch=old)
        update = UpdateMetadataRequest(controller_id=9, controller_epoch=kit.controller_epoch, broker_epoch=old)
        with pytest.raises(ConnectionClosedError):
            await kit.call(update, UPDATE_METADATA)
        assert kit.partition().leader is None
        kit.store.resume()
        await eventually(lambda: kit.partition().leader is not None)
        assert await kit.lead_and_isr(broker_epoch=old) == ErrorCode.STALE_BROKER_EPOCH

    run(story)


def test_a_session_lost_while_a_role_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is being taken from its fetcher when the session ends: it must not lead when that is done."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        partition = kit.partition()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def slow(self: Fetchers, partition: Partition) -> None:
            begun.set_result(None)
            await go_on

        with monkeypatch.context() as patched:
            patched.setattr(Fetchers, "release", slow)
            taking = asyncio.ensure_future(kit.lead_and_isr(leader_epoch=9))
            await begun
        kit.expire_session()
        kit.store.suspend()  # so that no new session can be opened
        await asyncio.sleep(8)
        go_on.set_result(None)
        assert await taking == ErrorCode.STALE_BROKER_EPOCH
        assert partition.leader is None

    run(story)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_frozen_broker_wakes_up_and_promises_nothing(acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        connection = await kit.connect()
        kit.host.freeze()
        request = produce_request({("t", 0): batch()}, acks=acks)
        waiting = None
        if acks:
            waiting = connection.send(request, PRODUCE_BY_NAME)
        else:
            connection.post(request, PRODUCE_BY_NAME)
        await asyncio.sleep(20)
        before = kit.broker.epoch
        kit.host.thaw()
        if waiting is not None:
            answer = (await waiting).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            await eventually(lambda: connection.closed)
        await eventually(lambda: kit.broker.epoch > before and kit.partition().leader is not None)
        assert await kit.values() == [b"value"]
        assert (await kit.produce()).base_offset == 1

    run(story)


def test_a_session_lost_while_the_broker_starts() -> None:
    lives = 0

    async def lose_it(kit: Kit) -> None:
        nonlocal lives
        connect, lives = kit.store.connect, 0

        async def connect_and_lose(timeout_ms: int) -> object:
            nonlocal lives
            session = await connect(timeout_ms)
            lives += 1
            if lives <= 4:
                asyncio.get_running_loop().call_later(0.0005 * lives, kit.store.expire, session.id)
            return session

        kit.store.connect = connect_and_lose  # type: ignore[method-assign, assignment]

    async def story(kit: Kit) -> None:
        await eventually(lambda: lives > 4 and kit.broker.controller.is_active)
        await kit.create_topic()
        assert await code_of(kit.produce()) == ErrorCode.NONE

    for seed in range(4):
        run(story, seed=seed, before=lose_it)


# Settings


def test_settings_changed_while_it_starts_are_heard() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", retention_ms="1000")
        await _alter(kit, "t", "retention.ms", "2000")
        await eventually(lambda: kit.partition().log.config.retention_ms == 2000)
        await kit.stop()
        starting = asyncio.ensure_future(kit.start())
        other = await kit.store.connect(10_000)
        await asyncio.sleep(0.0008)
        node = b'{"version":1,"config":{"retention.ms":"3000"}}'
        await other.set("/config/topics/t", node)
        await other.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequential=True)
        await starting
        await kit.leads("t")
        await eventually(lambda: kit.partition().log.config.retention_ms == 3000)
        await _alter(kit, "t", "retention.ms", "4000")
        await eventually(lambda: kit.partition().log.config.retention_ms == 4000)

    for seed in range(6):
        run(story, seed=seed)


def test_a_change_reaches_writes_and_logs() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce(batch([b"x" * 500]))) == ErrorCode.NONE
        await _alter(kit, "t", "max.message.bytes", "400")
        assert await code_of(kit.produce(batch([b"x" * 500]))) == ErrorCode.MESSAGE_TOO_LARGE
        await _alter(kit, "t", "cleanup.policy", "compact")
        assert await code_of(kit.produce(batch([b"x"]))) == ErrorCode.INVALID_RECORD
        await _alter(kit, "t", "segment.bytes", "1048576")
        for number in range(3):
            assert await code_of(kit.produce(batch([b"x"], keys=[b"%d" % number]))) == ErrorCode.NONE

    run(story)


async def _alter(kit: Kit, topic: str, name: str, value: str) -> None:
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=2,
        resource_name=topic,
        configs=[IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)],
    )
    answer = await kit.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer


# Disks


def test_a_full_disk() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce()) == ErrorCode.NONE
        disk = kit.host.disk
        disk.capacity_bytes = disk.used_bytes + 50
        assert await code_of(kit.produce(batch([b"x" * 1000]))) == ErrorCode.KAFKA_STORAGE_ERROR
        assert "last log directory is offline" in await asyncio.wait_for(asyncio.shield(kit.broker.failed), 1)
        assert await code_of(kit.produce()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await code_of(kit.fetch()) == ErrorCode.KAFKA_STORAGE_ERROR
        await kit.stop()
        disk.mend()
        await kit.start()
        await kit.leads("t")
        assert await kit.values() == [b"value"]

    run(story)


def test_with_two_directories_the_other_goes_on() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 4)
        directories = kit.broker.storage.directories
        assert [len(directory.logs) for directory in directories] == [2, 2]
        bad, good = directories
        kit.host.disk.fail_next("write", count=None, under=bad.path)
        for index in range(4):
            is_bad = TopicPartition("t", index) in bad.logs
            code = await code_of(kit.produce(index=index))
            assert code == (ErrorCode.KAFKA_STORAGE_ERROR if is_bad else ErrorCode.NONE)
        assert not kit.broker.failed.done()
        assert "offlinelogdirectorycount 1" in kit.broker.metrics.text()
        await kit.create_topic("new", 2)
        assert all(TopicPartition("new", index) in good.logs for index in range(2))
        await kit.stop()
        kit.host.disk.mend()
        await kit.start()
        await kit.leads("t", 4)
        for index in range(4):
            assert await code_of(kit.produce(index=index)) == ErrorCode.NONE

    run(story, log_dirs="/data/a,/data/b")


def test_a_directory_that_fails_while_the_broker_starts() -> None:
    async def before(kit: Kit) -> None:
        kit.host.disk.fail_next("sync", count=None, under="/data/a")

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        assert await code_of(kit.produce()) == ErrorCode.NONE
        assert [directory.path for directory in kit.broker.storage.directories] == ["/data/b"]

    run(story, before=before, log_dirs="/data/a,/data/b")


def test_lives_without_a_directory_are_not_joined_to_those_with_it() -> None:
    """What the broker had in those lives may be stale in the directory that comes back."""

    async def story(kit: Kit) -> None:
        first = kit.broker.epoch
        assert kit.broker.storage.continuity == (first, first)
        await kit.restart()
        assert kit.broker.storage.continuity == (first, kit.broker.epoch)
        await kit.stop()
        kit.host.disk.fail_next("read", count=None, under="/data/a/")
        await kit.start()
        assert kit.broker.storage.continuity == (kit.broker.epoch, kit.broker.epoch)
        await kit.stop()
        kit.host.disk.mend()
        await kit.start()
        assert kit.broker.storage.continuity == (kit.broker.epoch, kit.broker.epoch)

    run(story, log_dirs="/data/a,/data/b")


def test_a_directory_in_which_a_sync_failed_is_suspect_until_the_cluster_has_heard_of_the_broker() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        assert await code_of(kit.produce()) == ErrorCode.NONE
        kit.host.disk.fail_next("sync", under="/data/t-0")
        assert await code_of(kit.produce()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert kit.broker.failed.done()
        await kit.stop()
        assert kit.host.disk.exists("/data/.tidelog-suspect")
        await kit.start()
        (directory,) = kit.broker.storage.directories
        assert directory.was_suspect
        assert not directory.was_clean
        assert not kit.host.disk.exists("/data/.tidelog-suspect")
        await kit.leads("t")
        assert await code_of(kit.produce()) == ErrorCode.NONE
        await kit.restart()
        (directory,) = kit.broker.storage.directories
        assert directory.was_clean
        assert not directory.was_suspect

    run(story)


def test_without_any_directory_there_is_no_broker() -> None:
    async def story(kit: Kit) -> None:
        await kit.stop()
        kit.host.disk.fail_next("sync", count=None)
        with pytest.raises(StorageError, match=r"log\.dirs"):
            await kit.start()

    run(story)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_stop_at_any_moment_of_the_start(first: int) -> None:
    """As Ctrl-C does it. The next start finds all in order: no lock held, no name taken."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        await kit.stop()
        for steps in range(first, 300, 9):
            await kit.host.start(_start_and_stop(kit, steps))
            assert not kit.host.disk._locks
        await kit.start()
        await kit.leads("t")
        assert await kit.values() == [b"value"]

    run(story)


async def _start_and_stop(kit: Kit, steps: int) -> None:
    config = BrokerConfig.load({"broker.id": "1", **kit.settings})
    broker = Broker(config, kit.ports, kit.store)
    starting = asyncio.ensure_future(broker.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await broker.stop()
