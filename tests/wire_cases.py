"""What the protocol's property tests share: values for any message in any version, and the engine as plain Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from tidelog.wire import Message, all_messages, engine, plan
from tidelog.wire.schema import ArrayType, Field, FieldType, Scalar, StructType

MESSAGES = list(all_messages())

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits), (1 << bits) - 1) if signed else (0, (1 << bits) - 1)
    return st.sampled_from([0, 1, low, high, high // 3]) | st.integers(low, high)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{name: _integers(bits, True) for name, bits in _BITS.items()},
    "uint16": _integers(16, False),
    "uint32": _integers(32, False),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(max_size=6) | st.sampled_from(["", "orders", "ä" * 70, "x" * 200]),
    "bytes": st.binary(max_size=6) | st.just(bytes(300)),
    "uuid": st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    "records": st.binary(max_size=6) | st.just(bytes(range(256)) * 8),
}


@cache
def values(message: type[Message], version: int) -> st.SearchStrategy[Message]:
    """Messages whose fields, as far as the version has them, hold anything they can."""
    fields = {
        field.name: _field_values(field, version) for field in message.__schema__.fields if version in field.versions
    }
    return st.builds(message, **fields)


def _field_values(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = _type_values(field.type, version)
    if version in field.tagged:
        strategy = st.builds(field.default_value) | strategy
    return st.none() | strategy if version in field.nullable else strategy


def _type_values(kind: FieldType, version: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, Scalar):
        return SCALARS[kind.name]
    if isinstance(kind, StructType):
        return values(kind.message, version)
    assert isinstance(kind, ArrayType)
    return st.lists(_type_values(kind.element, version), max_size=2)


def structs_in(message: type[Message]) -> Iterator[type[Message]]:
    """The message and all that is declared inside it."""
    yield message
    for field in message.__schema__.fields:
        kind = field.type.element if isinstance(field.type, ArrayType) else field.type
        if isinstance(kind, StructType):
            yield from structs_in(kind.message)


@cache
def plain_engine() -> ModuleType:
    """The engine's source, run as Python whether or not a compiled one is there."""
    source = str(engine.__file__).rpartition("/")[0] + "/engine.py"
    spec = importlib.util.spec_from_file_location("tidelog.wire.plain_engine", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENGINES = {"installed": lambda: engine, "plain": plain_engine}


@cache
def plan_for(which: str, message: type[Message], version: int) -> Any:
    """A plan for one of the two engines."""
    installed = plan.engine
    plan.engine = ENGINES[which]()
    try:
        return plan.Compiler(version, version in message.__schema__.flexible).struct(message)
    finally:
        plan.engine = installed
