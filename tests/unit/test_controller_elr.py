"""Eligible leader replicas on their way to brokers and clients (KIP-966)."""

from __future__ import annotations

from tests.kits.controlkit import T0, broker, brokers, controller, find, state, topic
from tidelog.broker.metadata import MetadataCache
from tidelog.controller.elr_tags import elr_of, last_known_elr_of, set_elr
from tidelog.controller.events import BrokersChanged
from tidelog.controller.requests import VERSIONS
from tidelog.host.clock import SystemClock
from tidelog.wire import decode, encode
from tidelog.wire.messages.controller import (
    AlterPartitionResponsePartitionData,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)

FACTS = {"t": topic((1, 2, 3), min_insync=2)}


def test_the_elr_is_told_to_the_leader_and_to_all_brokers() -> None:
    made, _ = controller(1, 2, 3, topics=FACTS, states={T0: state(1, (1, 2), life=13)})
    outcome = made.handle(BrokersChanged(brokers(1, 3)))
    request = find(outcome, 1, LeaderAndIsrRequest)
    version = VERSIONS[LeaderAndIsrRequest]
    (told,) = decode(LeaderAndIsrRequest, encode(request, version), version).topic_states[0].partition_states
    assert elr_of(told) == (2,)
    (shown,) = find(outcome, 3, UpdateMetadataRequest).topic_states[0].partition_states
    assert (elr_of(shown), last_known_elr_of(shown)) == ((2,), ())


def test_without_a_leader_all_that_may_lead_are_told_and_those_that_may_have_lost_records() -> None:
    made, _ = controller(1, 2, 3, topics=FACTS, states={T0: state(1, (1, 2), life=13)})
    made.handle(BrokersChanged(brokers(3)))
    outcome = made.handle(BrokersChanged({1: broker(1, 200), 3: broker(3)}))
    request = find(outcome, 3, UpdateMetadataRequest)
    version = VERSIONS[UpdateMetadataRequest]
    cache = MetadataCache(SystemClock())
    cache.apply(decode(UpdateMetadataRequest, encode(request, version), version))
    partition = cache.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.elr, partition.last_known_elr) == (-1, (2,), (1,))


def test_an_empty_elr_is_not_told() -> None:
    answer = AlterPartitionResponsePartitionData()
    set_elr(answer, ())
    assert answer.unknown_tagged_fields == ()
    assert elr_of(answer) == ()
