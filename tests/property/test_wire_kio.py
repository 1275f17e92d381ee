"""kio, an independent implementation, writes and reads the same bytes, for every message and version it knows."""

from __future__ import annotations

import dataclasses
import datetime
import io
import types
import typing
import uuid
from typing import Any

import kio.index
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.kits.wire_cases import MESSAGES, values
from tidelog.wire import Message, decode, encode

KINDS = {
    "request": EntityType.request,
    "response": EntityType.response,
    "header": EntityType.header,
    "data": EntityType.data,
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ERROR_CODES = sorted(code.value for code in ErrorCode)
MOMENTS = 1 << 41
"""kio keeps times as datetime and timedelta, which hold fewer milliseconds than int64."""


def kio_name(message: type[Message]) -> str:
    name = message.__name__
    if message.__schema__.kind in ("request", "response"):
        name = name.removesuffix("Request").removesuffix("Response")
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


def known_versions(message: type[Message]) -> list[int]:
    kind = KINDS.get(message.__schema__.kind)
    by_version = schema_name_map.get(kio_name(message), {})
    ours = message.__schema__.versions  # kio already has versions of later releases
    return sorted(version for version, entities in by_version.items() if kind in entities and version in ours)


KNOWN = {message.__name__: (message, known_versions(message)) for message in MESSAGES if known_versions(message)}


def bare(name: str) -> str:
    return name.replace("_", "").removesuffix("ms")


def unwrapped(hint: Any) -> tuple[Any, bool]:
    """The type without its None, and whether it had one."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [each for each in typing.get_args(hint) if each is not type(None)]
        return inner[0], len(inner) < len(typing.get_args(hint))
    return hint, False


def to_kio(ours: Message, entity: Any, version: int) -> Any:
    """The same as kio's entity. What kio cannot hold is changed in ours: times out of its range, unknown errors."""
    theirs = {bare(field.name): field for field in dataclasses.fields(entity)}
    arguments = {}
    for field in ours.__schema__.fields:
        if version in field.versions:
            their = theirs.pop(bare(field.name))
            value, converted = convert(getattr(ours, field.name), their, version)
            setattr(ours, field.name, value)
            arguments[their.name] = converted
    assert not theirs, f"{entity} has {list(theirs)}, which we do not declare in version {version}"
    return entity(**arguments)


def convert(value: Any, their: Any, version: int) -> tuple[Any, Any]:
    hint, optional = unwrapped(their.type)
    kafka_type = their.metadata.get("kafka_type")
    if typing.get_origin(hint) is tuple:
        if value is None:
            return None, None
        element = typing.get_args(hint)[0]
        pairs = [one_value(each, element, kafka_type, False, version) for each in value]
        return [ours for ours, _ in pairs], tuple(theirs for _, theirs in pairs)
    return one_value(value, hint, kafka_type, optional, version)


def one_value(value: Any, hint: Any, kafka_type: str | None, optional: bool, version: int) -> tuple[Any, Any]:
    if isinstance(value, Message):
        return value, to_kio(value, hint, version)
    match kafka_type:
        case "error_code":
            code = ERROR_CODES[value % len(ERROR_CODES)]
            return code, ErrorCode(code)
        case "uuid":
            return value, None if value == bytes(16) else uuid.UUID(bytes=value)
        case "timedelta_i32":
            return value, datetime.timedelta(milliseconds=value)
        case "timedelta_i64":
            value %= MOMENTS
            return value, datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            if optional and value < 0:
                return -1, None
            value %= MOMENTS
            return value, EPOCH + datetime.timedelta(milliseconds=value)
    return value, value


def compare(ours: Message, version: int) -> None:
    message = type(ours)
    entity = kio.index.load_entity_schema(kio_name(message), version, KINDS[message.__schema__.kind])
    theirs = to_kio(ours, entity, version)
    buffer = io.BytesIO()
    entity_writer(entity)(buffer, theirs)
    encoded = encode(ours, version)
    assert encoded == buffer.getvalue()
    assert decode(message, encoded, version) == ours
    assert entity_reader(entity)(encoded, 0)[0] == theirs


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_same_bytes_in_every_version(name: str, data: st.DataObject) -> None:
    message, versions = KNOWN[name]
    for version in versions:
        compare(data.draw(values(message, version), label=f"version {version}"), version)


@pytest.mark.long
@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_same_bytes_in_every_version_many_times(name: str, data: st.DataObject) -> None:
    message, versions = KNOWN[name]
    for version in versions:
        compare(data.draw(values(message, version), label=f"version {version}"), version)


def test_kio_knows_most_messages() -> None:
    """The comparison above would be empty if names stopped matching."""
    assert len(KNOWN) >= 189
    assert sum(len(versions) for _, versions in KNOWN.values()) >= 600
