"""A late duplicate of a controller's request changes nothing (edge case 42): each kind of request, as it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.brokerkit import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, Kit, run
from tests.kits.logkit import batch
from tidelog.controller.image import LEADER_DURING_DELETE
from tidelog.controller.sequence import NO_SEQUENCE, SEQUENCE_TAG, sequence_of, set_sequence
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire import decode, encode
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tidelog.wire.schema import Message

T0 = TopicPartition("t", 0)
ID, OTHER_ID = b"i" * 16, b"j" * 16
FULL = 2
_ID = 7
VERSION = {
    LeaderAndIsrRequest: LEADER_AND_ISR,
    StopReplicaRequest: STOP_REPLICA,
    UpdateMetadataRequest: UPDATE_METADATA,
}


class Hand:
    """Plays a controller that comes after the broker's own, and whose requests can be sent late or twice."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.epoch = kit.controller_epoch
        self._sequence = 0

    @classmethod
    async def of(cls, kit: Kit) -> Hand:
        hand = cls(kit)
        await hand.win()
        return hand

    async def win(self) -> None:
        """The next election, as the store has it."""
        self.epoch += 1
        await self.kit.elect(_ID, self.epoch)

    def number(self, request: Message, sequence: int | None = None) -> Message:
        """The next number, unless it is said."""
        self._sequence += 1
        set_sequence(request, self._sequence if sequence is None else sequence)
        return request

    async def send(self, request: Message) -> Any:
        return await self.kit.call(request, VERSION[type(request)])  # type: ignore[index]

    @property
    def _head(self) -> dict[str, int]:
        return {"controller_id": _ID, "controller_epoch": self.epoch, "broker_epoch": self.kit.broker.epoch}

    def lead(self, *, epoch: int, version: int, topic_id: bytes = ID, kind: int = 0, index: int = 0) -> Any:
        state = LeaderAndIsrPartitionState(
            partition_index=index,
            leader=self.kit.broker_id,
            leader_epoch=epoch,
            partition_epoch=version,
            isr=[self.kit.broker_id],
            replicas=[self.kit.broker_id],
            is_new=True,
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
        return LeaderAndIsrRequest(**self._head, type=kind, topic_states=[topic])

    def stop(self, leader_epoch: int = -2, *, delete: bool = True) -> Message:
        state = StopReplicaPartitionState(leader_epoch=leader_epoch, delete_partition=delete)
        topic = StopReplicaTopicState(topic_name="t", partition_states=[state])
        return StopReplicaRequest(**self._head, topic_states=[topic])

    def update(
        self,
        *,
        epoch: int,
        version: int,
        isr: tuple[int, ...],
        alive: tuple[int, ...] = (1,),
        topic_id: bytes = ID,
        leader: int = 1,
    ) -> Message:
        state = UpdateMetadataPartitionState(
            leader=leader, leader_epoch=epoch, zk_version=version, isr=list(isr), replicas=[1, 2, 3]
        )
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
        endpoint = UpdateMetadataEndpoint(host="h", port=1, listener="PLAINTEXT")
        brokers = [UpdateMetadataBroker(id=id, endpoints=[endpoint]) for id in alive]
        return UpdateMetadataRequest(**self._head, topic_states=[topic], live_brokers=brokers)

    def known_isr(self) -> tuple[int, ...]:
        known = self.kit.broker.metadata.partition("t", 0)
        assert known is not None
        return known.isr


def test_the_number_goes_over_the_wire_and_an_older_peer_skips_it() -> None:
    for kind, version in VERSION.items():
        request = kind(controller_id=1)
        assert sequence_of(request) == NO_SEQUENCE
        set_sequence(request, 2**40)
        read = decode(kind, encode(request, version), version)
        assert sequence_of(read) == 2**40
        assert [tag for tag, _ in read.unknown_tagged_fields] == [SEQUENCE_TAG]
        set_sequence(read, 3)
        assert sequence_of(read) == 3
        read.set_unknown_tagged_field(SEQUENCE_TAG, b"junk")
        assert sequence_of(read) == NO_SEQUENCE


def test_edge_42_a_late_update_metadata_brings_back_neither_isr_nor_brokers() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        late = hand.number(hand.update(epoch=0, version=0, isr=(1, 2, 3), alive=(1, 2, 3)))
        for request in (late, hand.number(hand.update(epoch=0, version=1, isr=(1,), alive=(1,)))):
            assert (await hand.send(request)).error_code == 0
        assert (await hand.send(late)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert (hand.known_isr(), list(kit.broker.metadata.brokers)) == ((1,), [1])

    run(story)


def test_edge_42_a_late_update_metadata_does_not_delete_a_topic_that_was_made_again() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        deletion = hand.update(epoch=-2, version=0, isr=(), leader=LEADER_DURING_DELETE)
        made_again = hand.update(epoch=0, version=0, isr=(1,), topic_id=OTHER_ID)
        for request in (hand.update(epoch=4, version=9, isr=(1,)), deletion, made_again, deletion):
            assert (await hand.send(request)).error_code == 0  # a Kafka controller sends them without numbers
        known = kit.broker.metadata.topic("t")
        assert known is not None
        assert (known.topic_id, list(known.partitions)) == (OTHER_ID, [0])

    run(story)


def test_edge_42_a_late_leader_and_isr_brings_back_no_replica_and_no_stray() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        lead, full = hand.number(hand.lead(epoch=0, version=0)), hand.number(hand.lead(epoch=0, version=0, kind=FULL))
        assert (await hand.send(lead)).error_code == 0
        assert (await hand.send(full)).error_code == 0
        assert (await hand.send(hand.number(hand.lead(epoch=0, version=0, index=1)))).error_code == 0
        for late in (full, lead):
            assert (await hand.send(late)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert sorted(kit.broker.replicas.partitions) == [T0, TopicPartition("t", 1)], "a full one knew nothing of t-1"
        assert (await hand.send(hand.number(hand.stop()))).error_code == 0
        assert (await hand.send(lead)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert sorted(kit.broker.replicas.partitions) == [TopicPartition("t", 1)]

    run(story)


def test_edge_42_a_late_stop_replica_does_not_delete_what_a_newer_request_made_again() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        stop = hand.number(hand.stop(), 2)
        assert (await hand.send(hand.number(hand.lead(epoch=0, version=0), 1))).error_code == 0
        assert (await hand.send(stop)).error_code == 0
        assert (await hand.send(hand.number(hand.lead(epoch=0, version=0, topic_id=OTHER_ID), 3))).error_code == 0
        assert (await kit.produce(batch([b"kept"]))).error_code == 0
        assert (await hand.send(stop)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert await kit.values() == [b"kept"]

    run(story)


def test_edge_42_a_request_whose_answer_was_lost_is_answered_again_partition_by_partition() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        assert (await hand.send(hand.number(hand.lead(epoch=3, version=5)))).error_code == 0
        mixed, more = hand.lead(epoch=2, version=4), hand.lead(epoch=0, version=0, index=1)
        mixed.topic_states[0].partition_states += more.topic_states[0].partition_states
        hand.number(mixed)
        expected = [(0, ErrorCode.STALE_CONTROLLER_EPOCH), (1, ErrorCode.NONE)]
        for _ in range(2):
            answer = await hand.send(mixed)
            assert answer.error_code == 0
            errors = answer.topics[0].partition_errors
            assert [(error.partition_index, error.error_code) for error in errors] == expected
        stop = hand.number(hand.stop())
        for _ in range(2):
            answer = await hand.send(stop)
            assert (answer.error_code, [error.error_code for error in answer.partition_errors]) == (0, [0])

    run(story)


def test_edge_42_the_next_controller_begins_anew() -> None:
    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        assert (await hand.send(hand.number(hand.update(epoch=0, version=0, isr=(1, 2, 3)), 1000))).error_code == 0
        old = hand.number(hand.update(epoch=0, version=0, isr=(1, 2, 3)), 1001)
        await hand.win()
        assert (await hand.send(hand.number(hand.update(epoch=0, version=1, isr=(1,)), 1))).error_code == 0
        assert (await hand.send(old)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert hand.known_isr() == (1,)

    run(story)


@pytest.mark.parametrize(("epoch", "version"), [(4, 9), (5, 6), (0, 0)])
def test_edge_42_without_numbers_epochs_tell_which_state_is_newer(epoch: int, version: int) -> None:
    """As a Kafka 3.9 controller sends it."""

    async def story(kit: Kit) -> None:
        hand = await Hand.of(kit)
        await hand.send(hand.update(epoch=5, version=7, isr=(1, 2)))
        await hand.send(hand.update(epoch=epoch, version=version, isr=(1, 2, 3)))
        assert hand.known_isr() == (1, 2)
        await hand.send(hand.update(epoch=5, version=8, isr=(1,)))
        assert hand.known_isr() == (1,)
        await hand.send(hand.update(epoch=epoch, version=version, isr=(3,), topic_id=OTHER_ID))
        assert hand.known_isr() == (3,), "another topic of that name begins anew"

    run(story)
