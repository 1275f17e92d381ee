"""What the controller does not name is kept as a stray, and what cannot be served yet fails alone (edge case 35)."""

from __future__ import annotations

import logging

import pytest

from tests.kits.brokerkit import LEADER_AND_ISR, Kit, code_of, run
from tests.kits.logkit import batch
from tests.unit.test_broker_control import TWO, stop_replica
from tidelog.broker.dynamic_config import TOPICS
from tidelog.controller import nodes
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.meta import write_topic_id
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from tidelog.wire.messages.topics import DescribeLogDirsRequest

FULL = 2
T = TopicPartition("t", 0)


def on_disk(kit: Kit, topic: str = "t", under: str = "/data") -> list[str]:
    """The directories of the topic's partitions, without what makes the name of a stray unique."""
    found = [name for name in kit.host.disk.list(under) if name.startswith(f"{topic}-")]
    return [f"{name.partition('.')[0]}{'-stray' if name.endswith('-stray') else ''}" for name in found]


def topic_state(kit: Kit, topic_id: bytes, topic: str = "t", epoch: int = 9) -> LeaderAndIsrTopicState:
    state = LeaderAndIsrPartitionState(
        partition_index=0, leader=1, leader_epoch=epoch, isr=[1], replicas=[1], partition_epoch=epoch
    )
    return LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state])


async def tell_all(kit: Kit, *topics: LeaderAndIsrTopicState) -> dict[TopicPartition, ErrorCode]:
    """A full LeaderAndIsr, as at a take-over."""
    answer = await kit.call(
        LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=kit.controller_epoch,
            broker_epoch=kit.broker.epoch,
            type=FULL,
            topic_states=list(topics),
        ),
        LEADER_AND_ISR,
    )
    assert answer.error_code == 0
    names = {topic.topic_id: topic.topic_name for topic in topics}
    return {
        TopicPartition(names[topic.topic_id], error.partition_index): ErrorCode(error.error_code)
        for topic in answer.topics
        for error in topic.partition_errors
    }


def test_edge_35_a_full_request_that_names_nothing_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.produce(batch([b"precious"]))
        assert await tell_all(kit) == {}
        assert on_disk(kit) == ["t-0-stray"]
        assert T not in kit.broker.replicas.partitions
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        metrics = kit.broker.metrics.text()
        assert "tidelog_stray_log_count 1" in metrics
        answer = await kit.call(DescribeLogDirsRequest(topics=None), 4)
        (shown,) = answer.results[0].topics
        assert shown.name.startswith("t-0.")
        assert shown.name.endswith("-stray")
        assert shown.partitions[0].partition_size > 0
        assert f"tidelog_stray_log_bytes {shown.partitions[0].partition_size}" in metrics
        assert await tell_all(kit) == {}
        assert sum("is a stray" in record.message for record in caplog.records) == 1, "it is said once"
        assert await tell_all(kit, topic_state(kit, topic_id)) == {T: ErrorCode.NONE}
        assert on_disk(kit) == ["t-0"]
        assert await kit.values() == [b"precious"]
        assert "tidelog_stray_log_count 0" in kit.broker.metrics.text()

    with caplog.at_level(logging.WARNING):
        run(story)


def test_a_stray_comes_back_after_a_restart_too() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"precious"]))
        await tell_all(kit)
        await kit.restart()
        await kit.leads("t")
        assert await kit.values() == [b"precious"]
        assert on_disk(kit) == ["t-0"]

    run(story)


def test_another_topic_of_the_same_name_gets_a_log_of_its_own() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.produce(batch([b"old"]))
        assert await tell_all(kit, topic_state(kit, b"n" * 16)) == {T: ErrorCode.NONE}
        assert on_disk(kit) == ["t-0", "t-0-stray"]
        assert kit.partition().topic_id == b"n" * 16
        assert kit.partition().log.log_end_offset == 0
        assert await tell_all(kit, topic_state(kit, topic_id, epoch=10)) == {T: ErrorCode.NONE}
        assert await kit.values() == [b"old"]
        assert on_disk(kit) == ["t-0", "t-0-stray"], "now the other one is the stray"

    run(story)


def test_a_stray_goes_with_its_topic_and_not_with_a_move_of_the_partition() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(file_delete_delay_ms="0")
        await kit.produce(batch([b"old"]))
        await tell_all(kit)
        assert await stop_replica(kit, leader_epoch=5, topic_id=topic_id) == 0
        assert on_disk(kit) == ["t-0-stray"], "the partition lives elsewhere, its topic is not deleted"
        assert await stop_replica(kit, leader_epoch=-2, topic_id=topic_id) == 0
        assert kit.broker.storage.strays == []
        await eventually(lambda: on_disk(kit) == [], 120)

    run(story)


def test_the_deletion_of_a_topic_leaves_strays_of_another_topic_of_its_name() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"old"]))
        await tell_all(kit, topic_state(kit, b"n" * 16))
        assert await stop_replica(kit) == 0
        assert len(kit.broker.storage.strays) == 1

    run(story)


@pytest.mark.parametrize("topic_id", [b"n" * 16, ZERO_UUID])
def test_edge_35_a_deletion_that_is_told_again_leaves_strays_of_another_topic_of_its_name(topic_id: bytes) -> None:
    """The first answer was lost. The log that told which topic is meant is gone, and a Kafka controller tells no id."""

    async def story(kit: Kit) -> None:
        old_id = await kit.create_topic()
        await kit.produce(batch([b"old"]))
        await tell_all(kit, topic_state(kit, b"n" * 16))
        assert await stop_replica(kit, topic_id=topic_id) == 0
        assert await stop_replica(kit, topic_id=topic_id) == 0
        assert [stray.topic_id for stray in kit.broker.storage.strays] == [old_id]

    run(story)


def test_a_stray_is_found_in_the_directory_that_holds_it() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.produce(batch([b"precious"]))
        (holding,) = [one.path for one in kit.broker.storage.directories if T in one.logs]
        await tell_all(kit)
        for number in range(3):
            await kit.create_topic(f"other-{number}")
        assert await tell_all(kit, topic_state(kit, topic_id)) == {T: ErrorCode.NONE}
        assert [one.path for one in kit.broker.storage.directories if T in one.logs] == [holding]
        assert await kit.values() == [b"precious"]

    run(story, log_dirs=TWO)


def test_a_stray_does_not_stand_in_for_a_log_in_a_directory_that_is_offline() -> None:
    """The stray may be of long ago, and the broker in the ISR by what the other log has."""

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.produce(batch([b"old"]))
        await kit.create_topic("other")
        (other,) = [one for one in kit.broker.storage.directories if T not in one.logs]
        await tell_all(kit, topic_state(kit, kit.partition("other").topic_id, "other"))
        kit.host.disk.fail_next("write", count=None, under=other.path)
        assert await code_of(kit.produce(topic="other")) == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await tell_all(kit, topic_state(kit, topic_id)))[T] == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(kit.broker.storage.strays) == 1
        kit.host.disk.mend()
        kit.kill()
        await kit.start()
        await kit.leads("t")
        assert await kit.values() == [b"old"]

    run(story, log_dirs=TWO)


def copy_log(kit: Kit, source: str, target: str) -> None:
    disk = kit.host.disk
    disk.make_directory(target)
    for name in disk.list(source):
        disk.write_file(f"{target}/{name}", disk.read_file(f"{source}/{name}"))


async def in_the_second_directory(kit: Kit) -> tuple[bytes, str, str]:
    """The topic t with a record in it; its id, and where its log is and is not."""
    await kit.create_topic("other")
    topic_id = await kit.create_topic()
    await kit.produce(batch([b"old"]))
    other, holding = kit.broker.storage.directories
    assert T in holding.logs
    return topic_id, holding.path, other.path


def test_of_two_strays_in_two_directories_the_fuller_one_comes_back() -> None:
    async def story(kit: Kit) -> None:
        topic_id, holding, other = await in_the_second_directory(kit)
        await kit.stop()
        copy_log(kit, f"{holding}/t-0", f"{other}/t-0.{'0' * 32}-stray")
        await kit.start()
        await kit.leads("t")
        await kit.produce(batch([b"new"]))
        await tell_all(kit)
        assert len([stray for stray in kit.broker.storage.strays if stray.partition == T]) == 2
        assert await tell_all(kit, topic_state(kit, topic_id)) == {T: ErrorCode.NONE}
        assert await kit.values() == [b"old", b"new"]

    run(story, log_dirs=TWO)


def test_of_two_logs_of_one_name_the_controller_wants_that_of_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    """The directory with the log of the old topic was away while that topic was deleted and made anew."""

    async def story(kit: Kit) -> None:
        topic_id, holding, other = await in_the_second_directory(kit)
        await kit.stop()
        copy_log(kit, f"{holding}/t-0", f"{other}/t-0")
        write_topic_id(kit.host.disk, f"{other}/t-0", b"2" * 16)
        await kit.start()
        await kit.leads("t")
        assert (kit.partition("t").topic_id, kit.partition("t").log.directory) == (topic_id, f"{holding}/t-0")
        assert await kit.values() == [b"old"]
        (stray,) = kit.broker.storage.strays
        assert (stray.topic_id, stray.path.startswith(other)) == (b"2" * 16, True)

    run(story, log_dirs=TWO)
    assert "t-0 has a log in more than one log directory" in caplog.text


# Settings that cannot be read


def test_a_topic_whose_settings_cannot_be_read_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("known")
        bad = nodes.config_path(TOPICS, "bad")
        await kit.broker.session.create(bad, b"{not json")
        known, fresh = topic_state(kit, topic_id, "known"), topic_state(kit, b"b" * 16, "bad")
        other = topic_state(kit, b"o" * 16, "other")
        for _ in range(3):
            assert await tell_all(kit, known, fresh, other) == {
                TopicPartition("known", 0): ErrorCode.NONE,
                TopicPartition("bad", 0): ErrorCode.LEADER_NOT_AVAILABLE,
                TopicPartition("other", 0): ErrorCode.NONE,
            }
        assert TopicPartition("bad", 0) not in kit.broker.replicas.partitions
        complaints = [record.message for record in caplog.records if "is not served here yet" in record.message]
        assert len(complaints) == 1
        assert bad in complaints[0]
        await kit.broker.session.set(bad, nodes.encode_config({"retention.ms": "77"}))
        assert set((await tell_all(kit, known, fresh, other)).values()) == {ErrorCode.NONE}
        assert kit.partition("bad").log.config.retention_ms == 77

    with caplog.at_level(logging.WARNING):
        run(story)


def test_without_the_store_what_is_here_is_served_and_what_is_new_waits() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("known")
        known, fresh = topic_state(kit, topic_id, "known"), topic_state(kit, b"b" * 16, "fresh")
        kit.store.suspend(kit.broker.session.id)
        codes = await tell_all(kit, known, fresh)
        assert codes[TopicPartition("known", 0)] == ErrorCode.NONE
        assert codes[TopicPartition("fresh", 0)] == ErrorCode.LEADER_NOT_AVAILABLE
        kit.store.resume(kit.broker.session.id)
        assert set((await tell_all(kit, known, fresh)).values()) == {ErrorCode.NONE}

    run(story)
