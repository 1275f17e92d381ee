"""Bytes that are no message are refused with one error, by both engines alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kits.wire_cases import ENGINES, MESSAGES, values
from tidelog.errors import WireError
from tidelog.wire import Message

NAMES = {message.__name__: message for message in MESSAGES}

LENGTHS = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01",
]


@st.composite
def mutations(draw: st.DrawFn, encoded: bytes) -> bytes:
    """Cut off, changed, or with a length put in that promises much."""
    changed = bytearray(encoded)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(["cut", "flip", "length", "drop"])):
            case "cut":
                del changed[at:]
            case "flip" if at < len(changed):
                changed[at] = draw(st.integers(0, 255))
            case "length":
                length = draw(st.sampled_from(LENGTHS))
                changed[at : at + len(length)] = length
            case "drop":
                del changed[at : at + 1]
    return bytes(changed)


def outcome(which: str, message: type[Message], version: int, data: bytes) -> Any:
    engine = ENGINES[which]
    try:
        decoded = engine.decode(message, data, version)
    except WireError as error:
        return str(error)
    # It may be a message by chance. Then it is a whole one.
    return engine.encode(decoded, version)


def outcome_in_steps(which: str, message: type[Message], version: int, data: bytes) -> Any:
    """Of a message with other bytes behind it, as of requests: those are ignored."""
    engine = ENGINES[which]
    try:
        return engine.encode(engine.decode_in_steps(message, data, version), version)
    except WireError as error:
        return str(error)


def outcome_in_one_go(message: type[Message], version: int, data: bytes) -> Any:
    engine = ENGINES["installed"]
    try:
        return engine.encode(engine.decode_from(message, data, version, 0)[0], version)
    except WireError as error:
        return str(error)


def check(name: str, data: st.DataObject) -> None:
    message = NAMES[name]
    version = data.draw(st.sampled_from(list(message.__schema__.versions)))
    encoded = ENGINES["installed"].encode(data.draw(values(message, version)), version)
    broken = data.draw(mutations(encoded))
    assert outcome("installed", message, version, broken) == outcome("plain", message, version, broken)
    whole = outcome_in_one_go(message, version, broken)
    assert outcome_in_steps("installed", message, version, broken) == whole
    assert outcome_in_steps("plain", message, version, broken) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_malformed(name: str, data: st.DataObject) -> None:
    check(name, data)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_malformed_many_times(name: str, data: st.DataObject) -> None:
    check(name, data)


@pytest.mark.parametrize("name", NAMES)
def test_every_truncation(name: str) -> None:
    message = NAMES[name]
    for version in message.__schema__.versions:
        for engine in ENGINES.values():
            encoded = engine.encode(message(), version)
            for size in range(len(encoded)):
                with pytest.raises(WireError):
                    engine.decode(message, encoded[:size], version)
            with pytest.raises(WireError, match="behind the end"):
                engine.decode(message, encoded + b"\0", version)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(name=st.sampled_from(sorted(NAMES)), data=st.binary(max_size=40), which=st.sampled_from(sorted(ENGINES)))
def test_any_bytes(name: str, data: bytes, which: str) -> None:
    message = NAMES[name]
    outcome(which, message, message.__schema__.versions.last, data)
