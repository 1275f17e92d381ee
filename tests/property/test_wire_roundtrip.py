"""Every message in every version comes back as it was, through the compiled engine and through the plain one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kits.wire_cases import ENGINES, MESSAGES, PARTS, structs_in, values
from tidelog.errors import UnsupportedVersionError
from tidelog.wire import Message, decode, encode, encode_parts
from tidelog.wire.messages.headers import ResponseHeader
from tidelog.wire.schema import ArrayType, Field, Scalar

NAMES = {message.__name__: message for message in MESSAGES}
QUICK = settings(
    max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(data=st.data())
def test_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    message = NAMES[name]
    for version in message.__schema__.versions:
        value = data.draw(values(message, version), label=f"version {version}")
        encoded = encode(value, version)
        assert b"".join(encode_parts(value, version)) == encoded
        for engine in ENGINES.values():
            assert engine.encode(value, version) == encoded
            assert engine.decode(message, encoded, version) == value
            embedded = b"xx" + encoded + b"yy"
            assert engine.decode_from(message, embedded, version, 2) == (value, len(encoded) + 2)
            assert engine.decode_in_steps(message, encoded, version) == value
            in_steps, whole = engine.encode_in_steps(value, version, ResponseHeader(correlation_id=7))
            assert in_steps == whole


def test_the_plain_engine_is_plain() -> None:
    for half in (ENGINES["plain"].decoder, ENGINES["plain"].encoder):
        assert [getattr(half, part).cython.compiled for part in PARTS] == [False] * len(PARTS)


def with_one_element(message: type[Message], version: int) -> Message:
    """A message with something in each of its arrays."""
    value = message()
    for field in message.__schema__.fields:
        if version in field.versions and isinstance(field.type, ArrayType):
            element = field.type.element
            one = element.default if isinstance(element, Scalar) else with_one_element(element.message, version)
            setattr(value, field.name, [one])
        elif str(field.type) == "records":
            setattr(value, field.name, b"")  # null by default, even where it must not be
    return value


def test_an_array_of_the_smallest_elements() -> None:
    """Counts are held against the bytes that are left: no element may be smaller than the engine believes."""
    for message in MESSAGES:
        for version in message.__schema__.versions:
            value = with_one_element(message, version)
            assert decode(message, encode(value, version), version) == value


def with_unknown_tags(encoded: bytes, tags: dict[int, bytes]) -> bytes:
    """The encoding of a message without tagged fields, with these put at its end."""
    assert encoded[-1] == 0
    assert all(tag < 128 and len(content) < 128 for tag, content in tags.items())
    return encoded[:-1] + bytes([len(tags)]) + b"".join(bytes([t, len(c)]) + c for t, c in sorted(tags.items()))


FLEXIBLE = {name: message for name, message in NAMES.items() if message.__schema__.flexible}


@pytest.mark.parametrize("name", FLEXIBLE)
@QUICK
@given(tags=st.dictionaries(st.integers(100, 120), st.binary(max_size=5), min_size=1, max_size=3))
def test_unknown_tags_are_kept(name: str, tags: dict[int, bytes]) -> None:
    message = FLEXIBLE[name]
    version = message.__schema__.versions.last
    encoded = with_unknown_tags(encode(message(), version), tags)
    for engine in ENGINES.values():
        decoded = engine.decode(message, encoded, version)
        assert decoded.unknown_tagged_fields == tuple(sorted(tags.items()))
        assert decoded != message()
        assert engine.encode(decoded, version) == encoded


def other_than_default(field: Field) -> Any:
    if field.default is None:
        if isinstance(field.type, ArrayType):
            return []
        if not isinstance(field.type, Scalar):
            return field.type.message()  # type: ignore[attr-defined]
        return {"string": "x", "bytes": b"x", "records": b"x"}[field.type.name]
    if isinstance(field.type, ArrayType):
        element = field.type.element
        return [element.default if isinstance(element, Scalar) else element.message()]
    if isinstance(field.type, Scalar):
        return {"string": "other", "bytes": b"other", "uuid": b"x" * 16, "bool": not field.default}.get(
            field.type.name, 17
        )
    return None


def misplaced_fields() -> list[tuple[type[Message], int, Field]]:
    """Fields of whole messages, each with the versions that lack it."""
    return [
        (message, version, field)
        for message in MESSAGES
        for field in message.__schema__.fields
        for version in message.__schema__.versions
        if version not in field.versions
    ]


def test_a_version_that_lacks_a_field() -> None:
    """Ignorable fields are dropped, others refused: as Kafka does it."""
    cases = misplaced_fields()
    assert len(cases) > 500
    for message, version, field in cases:
        value = message(**{field.name: other_than_default(field)})
        if field.ignorable:
            assert decode(message, encode(value, version), version) == message()
            continue
        for engine in ENGINES.values():
            with pytest.raises(UnsupportedVersionError, match=field.name):
                engine.encode(value, version)


def test_no_records_among_tagged_fields() -> None:
    """The engine sets records apart while it writes, which it could not inside a tagged field: its size comes first."""
    for message in MESSAGES:
        for struct in structs_in(message):
            for field in struct.__schema__.fields:
                inner = getattr(field.type, "message", None) or getattr(
                    getattr(field.type, "element", None), "message", None
                )
                if field.tagged and inner is not None:
                    kinds = {str(each.type) for part in structs_in(inner) for each in part.__schema__.fields}
                    assert "records" not in kinds
                assert not (field.tagged and str(field.type) == "records")
