"""The data of coordination nodes, against the bytes that Kafka 3.9.1's own encoders gave."""

from __future__ import annotations

import pytest

from tidelog.controller import nodes
from tidelog.controller.image import Assignment, Endpoint, PartitionState
from tidelog.controller.nodes import BadNodeError, ProducerIdBlock, Registration
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID

PLAIN = Endpoint("PLAINTEXT", "h", 9092)
INTERNAL = Endpoint("INTERNAL", "h", 9093)
TOPIC_ID = bytes(7) + b"\x01" + bytes(7) + b"\x02"
T0 = TopicPartition("t", 0)


def test_the_controller_names_itself() -> None:
    data = nodes.encode_controller(1, 1700000000000)
    assert data == b'{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}'
    assert nodes.decode_controller(data) == 1
    assert nodes.decode_controller(b'{"version":1,"brokerid":7,"timestamp":"1"}') == 7


def test_the_controller_epoch_is_a_plain_number() -> None:
    assert nodes.encode_controller_epoch(12) == b"12"
    assert nodes.decode_controller_epoch(b"12") == 12


@pytest.mark.parametrize(
    ("registration", "data"),
    [
        (
            Registration((PLAIN,)),
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
            b'"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"17"}',
        ),
        (
            Registration((PLAIN, INTERNAL), rack="r1"),
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","INTERNAL":"PLAINTEXT"},'
            b'"endpoints":["PLAINTEXT://h:9092","INTERNAL://h:9093"],"rack":"r1","jmx_port":-1,"port":9092,"host":"h",'
            b'"version":5,"timestamp":"17"}',
        ),
        (
            Registration((Endpoint("X", "", 9092, "SSL"),)),
            b'{"features":{},"listener_security_protocol_map":{"X":"SSL"},"endpoints":["X://:9092"],"jmx_port":-1,'
            b'"port":-1,"host":null,"version":5,"timestamp":"17"}',
        ),
        (
            Registration((PLAIN,), intact_since=3, last_epoch=5, has_failed_directory=True),
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
            b'"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"17",'
            b'"intact_since":3,"last_epoch":5,"failed_log_dir":true}',
        ),
    ],
)
def test_a_broker_registers(registration: Registration, data: bytes) -> None:
    assert nodes.encode_broker(registration, 17) == data
    assert nodes.decode_broker(1, data) == registration
    failed = nodes.with_failed_directory(data)
    assert failed == nodes.encode_broker(registration._replace(has_failed_directory=True), 17)


def test_a_broker_may_be_at_an_ipv6_address_and_of_an_old_version() -> None:
    registration = Registration((Endpoint("PLAINTEXT", "::1", 9092),))
    assert b'"PLAINTEXT://[::1]:9092"' in nodes.encode_broker(registration, 1)
    assert nodes.decode_broker(1, nodes.encode_broker(registration, 1)) == registration
    old = b'{"version":2,"host":"h","port":9092,"jmx_port":9,"timestamp":"1","endpoints":["SSL://h:9"]}'
    assert nodes.decode_broker(1, old) == Registration((Endpoint("SSL", "h", 9, "SSL"),), jmx_port=9)


def test_a_topic_has_replicas() -> None:
    assignments = {index: Assignment((1, 2), adding=(2,)) for index in range(3)}
    data = nodes.encode_topic(TOPIC_ID, assignments)
    assert data == (
        b'{"partitions":{"0":[1,2],"1":[1,2],"2":[1,2]},"topic_id":"AAAAAAAAAAEAAAAAAAAAAg",'
        b'"adding_replicas":{"0":[2],"1":[2],"2":[2]},"removing_replicas":{},"version":3}'
    )
    assert nodes.decode_topic("t", data) == (TOPIC_ID, assignments)


def test_a_topic_may_be_older_than_topic_ids() -> None:
    assert nodes.decode_topic("t", b'{"version":1,"partitions":{"10":[3],"9":[1,2]}}') == (
        ZERO_UUID,
        {9: Assignment((1, 2)), 10: Assignment((3,))},
    )
    assert b"topic_id" not in nodes.encode_topic(ZERO_UUID, {})


def test_a_partition_has_a_state() -> None:
    state = PartitionState(1, 5, (1, 2), 7, version=3, lives={1: 40, 2: 30})
    data = nodes.encode_state(state)
    kafkas = b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":5,"isr":[1,2]'
    assert data == kafkas + b',"isr_epochs":[40,30]}'
    assert nodes.decode_state(T0, data, 3, 55) == state
    assert nodes.decode_state(T0, kafkas + b"}", 3, 50) == state._replace(lives={1: 50, 2: 50})
    recovering = state._replace(leader_recovery_state=1)
    assert nodes.decode_state(T0, nodes.encode_state(recovering), 3, 40) == recovering


def test_the_small_ones() -> None:
    assert nodes.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert nodes.decode_cluster_id(b'{"version":"1","id":"abc"}') == "abc"
    assert nodes.encode_config({"retention.ms": "1"}) == b'{"version":1,"config":{"retention.ms":"1"}}'
    assert nodes.decode_config("/config/topics/t", b'{"version":1,"config":{"a":"b"}}') == {"a": "b"}
    assert nodes.decode_config("/config/topics/t", b"") == {}
    assert nodes.encode_config_change("topics/t") == b'{"version":2,"entity_path":"topics/t"}'
    assert nodes.decode_config_change("/x", b'{"version":2,"entity_path":"topics/t"}') == "topics/t"
    isr = nodes.encode_isr_change([T0])
    assert isr == b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    assert nodes.decode_isr_change("/x", isr) == [T0]
    assert nodes.encode_log_dir_event(3) == b'{"version":1,"broker":3,"event":1}'
    assert nodes.decode_log_dir_event("/x", nodes.encode_log_dir_event(3)) == 3
    block = nodes.encode_producer_id_block(ProducerIdBlock(1, 0, 999))
    assert block == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    assert nodes.decode_producer_id_block(block) == (1, 0, 999)
    assert nodes.encode_feature({"group.version": 1}) == (
        b'{"features":{"group.version":{"max_version_level":1}},"version":2,"status":1}'
    )


def test_paths() -> None:
    assert nodes.broker_path(3) == "/brokers/ids/3"
    assert nodes.broker_epoch_path(3) == "/brokers/epochs/3"
    assert nodes.state_path(T0) == "/brokers/topics/t/partitions/0/state"
    assert nodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert nodes.config_path("topics", "t") == "/config/topics/t"
    assert {"/brokers/ids", "/brokers/topics", "/admin/delete_topics", "/config/topics"} <= {*nodes.PERSISTENT_PATHS}


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (nodes.decode_controller, b"{"),
        (nodes.decode_controller, b"[]"),
        (nodes.decode_controller, b'{"brokerid":"1"}'),
        (nodes.decode_controller_epoch, b"x"),
        (lambda data: nodes.decode_broker(1, data), b'{"endpoints":["nonsense"]}'),
        (lambda data: nodes.decode_broker(1, data), b"{}"),
        (lambda data: nodes.decode_topic("t", data), b'{"partitions":{"x":[1]}}'),
        (lambda data: nodes.decode_topic("t", data), b'{"partitions":{"0":[1]},"topic_id":"no"}'),
        (lambda data: nodes.decode_topic("t", data), b""),
        (lambda data: nodes.decode_state(T0, data, 0, 0), b'{"leader":1}'),
        (nodes.decode_producer_id_block, b"{}"),
    ],
)
def test_what_is_no_such_node_is_named(decode, data: bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadNodeError, match="/"):
        decode(data)
