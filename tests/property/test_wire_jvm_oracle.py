"""Every message in every version against Kafka's own generated classes, byte for byte, both ways.

Values are drawn from our declarations with a seed of the message's name. Their JSON, as Kafka's converters write it, is
made here from the declaration alone, so that the codec under test has no part in what is expected of it.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import pytest

from peers import home
from peers.oracle import KnownMessage, WireOracle
from tidelog.wire import all_messages, decode, encode
from tidelog.wire.schema import ArrayType, Field, FieldType, Message, Scalar, StructType
from tidelog.wire.uuids import uuid_text

pytestmark = pytest.mark.jvm

VALUES_PER_VERSION = 30
INTEGERS = {"int8": (8, True), "int16": (16, True), "uint16": (16, False), "int32": (32, True), "uint32": (32, False)}
INTEGERS["int64"] = (64, True)
CLASSES = {cls.__schema__.name: cls for cls in all_messages()}

RENAMED = {
    "ListClientMetricsResourcesRequest": "ListConfigResourcesRequest",
    "ListClientMetricsResourcesResponse": "ListConfigResourcesResponse",
    "VoteRequest": "VoteRequest",
}
"""Of 3.9.1, with the name that 4.1.0 gave them: the bytes stayed, the fields are called otherwise."""
REDEFINED = {"ReadShareGroupStateSummaryResponse", "ShareGroupMetadataValue"}
"""Of 3.9.1, where they were not yet released: 4.1.0 changed them without a new version, and has the last word."""
TAGS_ADDED = {
    "ConsumerGroupMetadataValue",
    "OffsetCommitValue",
    "RemoteLogSegmentMetadataRecord",
    "RemoteLogSegmentMetadataSnapshotRecord",
    "TransactionLogValue",
}
"""Of 3.9.1: later Kafkas have more tagged fields in the same version, which it carries along without knowing them."""
BYTES_ONLY = {*RENAMED, *TAGS_ADDED}


class Oracles:
    """The oracles of both Kafkas, started when first asked."""

    def __init__(self) -> None:
        self._oracles = {version: WireOracle(version) for version in home.VERSIONS}
        self.known = {version: {m.name: m for m in oracle.messages()} for version, oracle in self._oracles.items()}

    def __getitem__(self, version: str) -> WireOracle:
        return self._oracles[version]

    def close(self) -> None:
        for oracle in self._oracles.values():
            oracle.close()


@pytest.fixture(scope="module")
def oracles() -> Iterator[Oracles]:
    started = Oracles()
    yield started
    started.close()


class Draw:
    """Random values for fields; within a list no two structs agree in a scalar, for Kafka keeps some lists as sets."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def message(
        self, cls: type[Message], version: int, taken: dict[str, set[Any]] | None = None, depth: int = 0
    ) -> Any:
        values = {}
        for field in cls.__schema__.fields:
            if version in field.versions and self._random.random() > (0.4 if version in field.tagged else 0.0):
                values[field.name] = self._field(field, version, taken, depth)
        return cls(**values)

    def _field(self, field: Field, version: int, taken: dict[str, set[Any]] | None, depth: int) -> Any:
        if version in field.nullable and self._random.random() < 0.2:
            return None
        if taken is None or not isinstance(field.type, Scalar) or field.type.name in ("bool", "records"):
            return self._value(field.type, version, depth)
        used = taken.setdefault(field.name, set())
        while (value := self._value(field.type, version, depth)) in used:
            pass
        used.add(value)
        return value

    def _value(self, kind: FieldType, version: int, depth: int) -> Any:
        if isinstance(kind, StructType):
            return self.message(kind.message, version, None, depth)
        if isinstance(kind, Scalar):
            return self._scalar(kind.name)
        assert isinstance(kind, ArrayType)
        taken: dict[str, set[Any]] = {}
        count = self._random.randrange(0, 4 if depth < 2 else 3)
        if isinstance(kind.element, Scalar):
            return [self._scalar(kind.element.name) for _ in range(count)]
        return [self.message(kind.element.message, version, taken, depth + 1) for _ in range(count)]

    def _scalar(self, name: str) -> Any:
        if name in INTEGERS:
            return self._integer(*INTEGERS[name])
        if name == "bool":
            return self._random.random() < 0.5
        if name == "float64":
            return self._random.choice([0.0, -1.5, 1e300, 5e-324, self._random.uniform(-1e6, 1e6)])
        if name == "uuid":
            return self._random.randbytes(16)
        if name == "string":
            letters = 'abcdefghijklmnopqrstuvwxyz0123456789-_\x00"\\\néß中𝄞'
            return "".join(self._random.choices(letters, k=self._length()))
        assert name in ("bytes", "records")
        return self._random.randbytes(self._length())

    def _integer(self, bits: int, signed: bool) -> int:
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        small = self._random.randrange(max(low, -2), min(high, 300) + 1)
        return self._random.choice([low, high, small, self._random.randrange(low, high + 1)])

    def _length(self) -> int:
        """Mostly short; now and then past 127, where a length takes a second byte."""
        return self._random.randrange(120, 400) if self._random.random() < 0.05 else self._random.randrange(0, 12)


def json_of(message: Message, version: int, *, with_records: bool) -> dict[str, Any]:
    """What Kafka's converter writes: the fields that the version has, but for tagged ones that are as by default."""
    result = {}
    for field in message.__schema__.fields:
        value = getattr(message, field.name)
        if version in field.versions and not (version in field.tagged and value == field.default_value()):
            result[field.json_name] = json_value(field.type, value, version, with_records)
    return result


def json_value(kind: FieldType, value: Any, version: int, with_records: bool) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return [json_value(kind.element, item, version, with_records) for item in value]
    if isinstance(kind, StructType):
        return json_of(value, version, with_records=with_records)
    assert isinstance(kind, Scalar)
    if kind.name == "uuid":
        return uuid_text(value)
    if kind.name == "bytes":
        return base64.b64encode(value).decode()
    if kind.name == "records":
        return base64.b64encode(value).decode() if with_records else ""
    return value


def ours(kafka: str, known: KnownMessage, version: int) -> tuple[str, int]:
    """The class and version that stand for one of Kafka's: 3.9.1 has the type of a stored key as its version."""
    if kafka == home.KAFKA_ZOOKEEPER and known.name in RENAMED:
        return RENAMED[known.name], version
    if kafka == home.KAFKA_ZOOKEEPER and known.name.endswith("Key"):
        name = "LegacyOffsetCommitKey" if (known.name, version) == ("OffsetCommitKey", 0) else known.name
        return name, 0
    return known.name, version


def pairs(oracles: Oracles, name: str) -> list[tuple[str, KnownMessage, int, int]]:
    """Which Kafkas know the class of ours, under which name and version, and our version of it."""
    found = []
    for kafka in home.VERSIONS:
        for known in oracles.known[kafka].values():
            if kafka == home.KAFKA_ZOOKEEPER and known.name in REDEFINED:
                continue
            for version in range(known.lowest, known.highest + 1):
                our_name, our_version = ours(kafka, known, version)
                if our_name == name:
                    found.append((kafka, known, version, our_version))
    return found


def test_neither_side_knows_a_message_or_version_that_the_other_lacks(oracles: Oracles) -> None:
    known = {(name, version) for name in CLASSES for _, _, _, version in pairs(oracles, name)}
    declared = {(name, version) for name, cls in CLASSES.items() for version in cls.__schema__.versions}
    assert declared == known
    for kafka in home.VERSIONS:
        missing = {m.name for m in oracles.known[kafka].values() if ours(kafka, m, m.highest)[0] not in CLASSES}
        assert not missing, f"messages of Kafka {kafka}"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_bytes_and_values_agree_with_kafka(name: str, oracles: Oracles) -> None:
    cls = CLASSES[name]
    tried = pairs(oracles, name)
    assert tried
    for kafka, known, kafka_version, version in tried:
        draw = Draw(f"{name} {version}")
        for _ in range(VALUES_PER_VERSION):
            message = draw.message(cls, version)
            data = encode(message, version)
            where = f"{known.name} v{kafka_version} of Kafka {kafka}: {message}"
            read_json, written_again = oracles[kafka].decode(known.name, kafka_version, data)
            assert written_again == data, where
            if not (kafka == home.KAFKA_ZOOKEEPER and known.name in BYTES_ONLY):
                assert read_json == json_of(message, version, with_records=False), where
                given = json_of(message, version, with_records=True)
                assert oracles[kafka].encode(known.name, kafka_version, given) == data, where
            again = decode(cls, written_again, version)
            assert again == message, where
            assert encode(again, version) == data, where


def test_stored_keys_carry_the_type_that_kafka_391_calls_their_version(oracles: Oracles) -> None:
    keys = [m for m in oracles.known[home.KAFKA_ZOOKEEPER].values() if m.name.endswith("Key")]
    assert len(keys) >= 12
    for known in keys:
        for version in range(known.lowest, known.highest + 1):
            name, _ = ours(home.KAFKA_ZOOKEEPER, known, version)
            assert CLASSES[name].__schema__.api_key == version
