"""LeaderAndIsr, StopReplica and UpdateMetadata: who may say what to whom (S12), and what it does."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import (
    FETCH_BY_NAME,
    LEADER_AND_ISR,
    PRODUCE_BY_NAME,
    STOP_REPLICA,
    UPDATE_METADATA,
    Kit,
    code_of,
    fetch_request,
    produce_request,
    run,
)
from tests.kits.logkit import batch
from tidelog.controller.stop_tags import set_topic_id
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.directory import LogDirectory
from tidelog.net.calling import ConnectionClosedError
from tidelog.records.header import headers
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataRequest,
)


async def stop_replica(
    kit: Kit,
    topic: str = "t",
    index: int = 0,
    *,
    leader_epoch: int = -2,
    delete: bool = True,
    topic_id: bytes = ZERO_UUID,
    **request: int,
) -> int:
    state = StopReplicaPartitionState(partition_index=index, leader_epoch=leader_epoch, delete_partition=delete)
    named = StopReplicaTopicState(topic_name=topic, partition_states=[state])
    set_topic_id(named, topic_id)
    answer = await kit.call(
        StopReplicaRequest(
            controller_id=1,
            controller_epoch=request.get("controller_epoch", kit.controller_epoch),
            broker_epoch=request.get("broker_epoch", kit.broker.epoch),
            topic_states=[named],
        ),
        STOP_REPLICA,
    )
    code: int = answer.error_code or answer.partition_errors[0].error_code
    return code


def test_controllers_that_were_replaced_are_not_heard() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        epoch = kit.controller_epoch
        await kit.elect(1, epoch + 5)
        assert await kit.lead_and_isr(controller_epoch=epoch + 5) == 0
        stale = {"controller_epoch": epoch + 4}
        assert await kit.lead_and_isr(leader=2, **stale) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert await stop_replica(kit, **stale) == ErrorCode.STALE_CONTROLLER_EPOCH
        update = UpdateMetadataRequest(controller_id=9, broker_epoch=kit.broker.epoch, **stale)
        answer = await kit.call(update, UPDATE_METADATA)
        assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert kit.broker.metadata.controller_id == 1
        assert kit.partition().leader is not None

    run(story)


def test_requests_for_an_earlier_life_are_void() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        old = kit.broker.epoch
        await kit.restart()
        await kit.leads("t")
        assert kit.broker.epoch > old
        stale = {"broker_epoch": old}
        assert await kit.lead_and_isr(leader=2, **stale) == ErrorCode.STALE_BROKER_EPOCH
        assert await stop_replica(kit, **stale) == ErrorCode.STALE_BROKER_EPOCH
        update = UpdateMetadataRequest(controller_id=9, controller_epoch=kit.controller_epoch, broker_epoch=old)
        assert (await kit.call(update, UPDATE_METADATA)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert kit.partition().leader is not None
        assert await kit.lead_and_isr(leader=2, broker_epoch=-1) == ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(ConnectionClosedError):
            await kit.lead_and_isr(leader=2, broker_epoch=kit.broker.epoch + 1)
        assert kit.partition().leader is not None

    run(story)


@pytest.mark.parametrize("version", [5, 6, LEADER_AND_ISR])
def test_every_version_of_leader_and_isr(version: int) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        state = LeaderAndIsrPartitionState(partition_index=0, leader=2, leader_epoch=4, isr=[2], replicas=[1, 2])
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
        request = LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=kit.controller_epoch,
            broker_epoch=kit.broker.epoch,
            topic_states=[topic],
        )
        state.partition_epoch = 100
        answer = await kit.call(request, version)
        assert answer.error_code == 0
        assert [(one.topic_id, one.partition_errors[0].error_code) for one in answer.topics] == [(topic_id, 0)]
        assert (kit.partition().leader_id, kit.partition().leader_epoch) == (2, 4)

    run(story)


def test_a_device_that_hangs_keeps_no_other_partition_from_its_role() -> None:
    """A new leader with a flush policy syncs its log first. More partitions are named than are begun together."""
    count = 100

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t", count)
        hangs = asyncio.Event()
        kit.partition("t", 0).log.flush_if_due = hangs.wait  # type: ignore[assignment, method-assign]
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index,
                controller_epoch=kit.controller_epoch,
                leader=1,
                leader_epoch=7,
                isr=[1],
                replicas=[1],
                partition_epoch=kit.partition("t", index).partition_epoch + 1,
            )
            for index in range(count)
        ]
        request = LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=kit.controller_epoch,
            broker_epoch=kit.broker.epoch,
            topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=states)],
        )
        told = asyncio.ensure_future(kit.call(request, LEADER_AND_ISR))

        def leading() -> int:
            partitions = [kit.partition("t", index) for index in range(count)]
            return sum(one.leader is not None and one.leader_epoch == 7 for one in partitions)

        await eventually(lambda: leading() == count - 1)
        assert not told.done()
        hangs.set()
        assert {one.error_code for one in (await told).topics[0].partition_errors} == {0}
        assert leading() == count

    run(story)


def test_errors_of_single_partitions() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(leader_epoch=7) == 0
        assert await kit.lead_and_isr(leader_epoch=6) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert await kit.lead_and_isr(topic_id=b"?" * 16) == ErrorCode.INCONSISTENT_TOPIC_ID
        assert await kit.lead_and_isr(replicas=[2, 3]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert kit.partition().leader_epoch == 7

    run(story)


def test_an_older_isr_of_the_same_term_changes_nothing() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, 2], leader_epoch=3) == 0
        partition = kit.partition()
        partition.partition_epoch = 50  # the leader has changed the ISR since
        partition.isr_changed([1])
        state = LeaderAndIsrPartitionState(
            partition_index=0, leader=1, leader_epoch=3, isr=[1, 2], replicas=[1, 2], partition_epoch=49
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=partition.topic_id, partition_states=[state])
        request = LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=kit.controller_epoch,
            broker_epoch=kit.broker.epoch,
            topic_states=[topic],
        )
        assert (await kit.call(request, LEADER_AND_ISR)).error_code == 0
        assert partition.leader is not None
        assert (partition.leader.isr, partition.partition_epoch) == ((1,), 50)

    run(story)


def test_edge_03_a_new_leader_notes_its_term_before_it_writes() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"]))
        assert await kit.lead_and_isr(leader_epoch=4) == 0
        assert [tuple(entry) for entry in kit.partition().log.epochs.entries] == [(0, 0), (4, 2)]

    run(story)


@pytest.mark.parametrize("seed", range(6))
def test_a_new_term_while_records_come_in(seed: int) -> None:
    """A batch of the old term must not slip in behind the start of the new one: followers would cut it off."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        over = False

        async def write() -> None:
            connection = await kit.connect()
            while not over:
                await connection.call(produce_request({("t", 0): batch()}, acks=1), PRODUCE_BY_NAME)

        writers = [asyncio.ensure_future(write()) for _ in range(3)]
        for term in range(1, 20):
            assert await kit.lead_and_isr(leader_epoch=term) == 0
            await asyncio.sleep(0.002)
        over = True
        await asyncio.gather(*writers)
        log = kit.partition().log
        assert log.log_end_offset > 20
        stored = await log.bytes_of(await log.read(0, 1 << 24))
        for _, header in headers(stored):
            assert log.epochs.epoch_for_offset(header.base_offset) == header.partition_leader_epoch
        starts = [entry.start_offset for entry in log.epochs.entries]
        assert tuple(log.epochs.entries[0]) == (0, 0), "no term may lose its start"
        assert starts == sorted(starts)

    run(story, seed=seed)


def test_a_follower_keeps_its_records_and_takes_none() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        assert await kit.lead_and_isr(leader=2, isr=[1, 2]) == 0
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code_of(kit.fetch()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert kit.partition().log.log_end_offset == 1
        assert await kit.lead_and_isr() == 0
        assert await kit.values() == [b"value"]

    run(story)


def test_stop_replica() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        assert await kit.lead_and_isr(leader_epoch=5) == 0
        assert await stop_replica(kit, leader_epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
        assert await stop_replica(kit, leader_epoch=5, delete=False) == 0
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert kit.partition().log.log_end_offset == 1
        text = "kafka_server_brokertopicmetrics_messagesin_total"
        assert f'{text}{{topic="t"}} 1' in kit.broker.metrics.text()
        assert await stop_replica(kit) == 0
        assert TopicPartition("t", 0) not in kit.broker.replicas.partitions
        assert f"{text}{{topic=" not in kit.broker.metrics.text(), "what is gone is not counted any more"
        assert await stop_replica(kit) == 0, "to be told twice does no harm"
        assert await stop_replica(kit, "nobody", 3) == 0

    run(story)


def test_a_deletion_that_fails_is_a_storage_error() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.host.disk.fail_next("sync", count=None)
        kit.host.disk.fail_next("write", count=None)
        assert await stop_replica(kit) == ErrorCode.KAFKA_STORAGE_ERROR

    run(story)


def test_reads_under_way_end_well_when_the_replica_goes() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(50):
            await kit.produce(batch([b"x" * 10_000]))
        connection = await kit.connect()
        reads = [connection.send(fetch_request({("t", 0): offset}), FETCH_BY_NAME) for offset in range(10)]
        assert await stop_replica(kit) == 0
        results = await asyncio.gather(*reads, return_exceptions=True)
        for result in results:
            if not isinstance(result, BaseException):
                code = result.responses[0].partitions[0].error_code
                assert code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)

    run(story, cold=True)


# Log directories


TWO = "/data/a,/data/b"


def _directory_of(kit: Kit, topic: str = "t") -> LogDirectory:
    return next(one for one in kit.broker.storage.directories if TopicPartition(topic, 0) in one.logs)


def test_a_failed_directory_is_told_to_the_controller() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", flush_messages="1")
        await kit.create_topic("other")
        assert _directory_of(kit) is not _directory_of(kit, "other")
        kit.host.disk.fail_next("sync", count=None, under=_directory_of(kit).path)
        assert await code_of(kit.produce()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await kit.lead_and_isr() == ErrorCode.KAFKA_STORAGE_ERROR
        same = kit.partition().leader_epoch
        assert await kit.lead_and_isr(leader_epoch=same) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await stop_replica(kit) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await kit.lead_and_isr() == ErrorCode.KAFKA_STORAGE_ERROR, "still: its records are not forgotten"
        assert await code_of(kit.produce(topic="other")) == ErrorCode.NONE
        assert not kit.broker.failed.done()

    run(story, log_dirs=TWO)


def test_a_directory_that_cannot_be_opened_does_not_make_its_partitions_empty() -> None:
    """The other directory must not get a new log in place of the one that cannot be read just now."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        path = _directory_of(kit).path
        await kit.stop()
        kit.host.disk.fail_next("sync", count=None, under=path)
        kit.host.disk.fail_next("write", count=None, under=path)
        await kit.start()
        assert await code_of(kit.produce()) in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
        await kit.create_topic("new")
        assert await code_of(kit.produce(topic="new")) == ErrorCode.NONE
        await kit.stop()
        kit.host.disk.mend()
        await kit.start()
        await kit.leads("t")
        assert await kit.values() == [b"value"]

    run(story, log_dirs=TWO)


def test_what_a_request_does_not_name_is_given_up_before_the_next_one_is_applied() -> None:
    """The next one, of the next controller maybe, may want it again; it must not go then."""

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        replicas, epoch = kit.broker.replicas, kit.partition().leader_epoch + 1
        state = LeaderAndIsrPartitionState(
            partition_index=0, leader=1, leader_epoch=epoch, isr=[1], replicas=[1], partition_epoch=100
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
        await asyncio.gather(replicas.apply([], names_all=True), replicas.apply([topic]))
        assert kit.partition().leader_epoch == epoch
        assert (await kit.produce()).error_code == 0

    run(story)
