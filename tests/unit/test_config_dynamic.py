"""What may change while a broker runs, and the change of single values."""

from __future__ import annotations

import pytest

from tidelog.config import settings
from tidelog.config.broker import BrokerConfig
from tidelog.config.dynamic import Change, Operation, apply_changes, validate_broker
from tidelog.config.errors import ConfigError

SET, DELETE, APPEND, SUBTRACT = Operation
BROKER = BrokerConfig.load({"broker.id": "1", "num.io.threads": "2"})


@pytest.mark.parametrize(
    ("stored", "change", "expected"),
    [
        ({}, Change("retention.ms", SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, Change("retention.ms", SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, Change("retention.ms", DELETE), {}),
        ({}, Change("retention.ms", DELETE), {}),
        ({}, Change("never.heard.of", DELETE), {}),
        ({}, Change("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        (
            {"cleanup.policy": "compact"},
            Change("cleanup.policy", APPEND, "delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        ({"cleanup.policy": "compact"}, Change("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        ({"cleanup.policy": ""}, Change("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        (
            {"cleanup.policy": "delete,compact"},
            Change("cleanup.policy", SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
        ({}, Change("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": ""}),
    ],
)
def test_single_changes(stored: dict[str, str], change: Change, expected: dict[str, str]) -> None:
    assert apply_changes(stored, [change], settings.TOPIC, {"cleanup.policy": "delete"}) == expected


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_grow_and_shrink(operation: Operation) -> None:
    with pytest.raises(ConfigError, match=r"is not allowed for config key: retention\.ms"):
        apply_changes({}, [Change("retention.ms", operation, "1")], settings.TOPIC, {})


@pytest.mark.parametrize(
    ("proposed", "own"),
    [
        ({"log.retention.ms": "5000"}, True),
        ({"log.retention.ms": "5000"}, False),
        ({"num.io.threads": "3"}, True),
        ({"num.io.threads": "4"}, True),
        ({"num.io.threads": "1"}, True),
        ({"leader.replication.throttled.rate": "1000"}, True),
        ({"listener.name.plaintext.max.connections": "55"}, True),
        ({"log.cleanup.policy": "delete,compact"}, False),
        ({"nobody.knows": "x"}, True),
    ],
)
def test_brokers_take(proposed: dict[str, str], own: bool) -> None:
    validate_broker(proposed, list(proposed), BROKER, own)


@pytest.mark.parametrize(
    ("proposed", "own", "words"),
    [
        ({"log.dirs": "/x"}, True, "Cannot update these configs dynamically: log.dirs"),
        ({"broker.id": "4", "node.id": "4"}, True, "Cannot update these configs dynamically: broker.id, node.id"),
        ({"log.retention.hours": "5"}, True, "Cannot update these configs dynamically"),
        ({"listeners": "PLAINTEXT://h:1"}, True, "Cannot update these configs dynamically: listeners"),
        ({"tidelog.metrics.port": "5"}, True, "Cannot update these configs dynamically"),
        ({"ssl.keystore.location": "/x"}, False, "at default cluster level, broker id must be specified"),
        ({"ssl.keystore.location": "/x"}, True, "does not start open"),
        ({"listener.name.plaintext.sasl.jaas.config": "x"}, True, "does not start open"),
        (
            {"log.segment.bytes": "1"},
            True,
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least",
        ),
        ({"message.max.bytes": ""}, True, "Not a number of type INT"),
        ({"max.connections": "-1"}, True, "Value must be at least 0"),
        ({"num.io.threads": "5"}, True, "should not be greater than double the current value 2"),
        ({"num.network.threads": "100"}, False, "should not be greater than double the current value 3"),
        ({"log.retention.ms": "0"}, True, "log.retention.ms"),
        ({"log.cleaner.dedupe.buffer.size": "5"}, True, "log.cleaner.dedupe.buffer.size"),
    ],
)
def test_brokers_refuse(proposed: dict[str, str], own: bool, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_broker(proposed, list(proposed), BROKER, own)
    assert words in str(caught.value)


def test_what_was_stored_before_does_not_stand_in_the_way() -> None:
    stored = {"log.dirs": "/stored/by/somebody", "message.max.bytes": "nonsense", "log.retention.ms": "5"}
    validate_broker(stored, ["log.retention.ms"], BROKER, own=True)
    validate_broker({}, ["message.max.bytes"], BROKER, own=True)
