"""What the tests of the protocol share: values for any message in any version; the engines, compiled and plain."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from tidelog.wire import Message, all_messages, decoder, encoder, plan
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


PARTS = ("values", "structs", "run")
"""The compiled modules of a decoder or encoder, each built on those before it."""


@cache
def plain(name: str) -> ModuleType:
    """The decoder's or encoder's source, run as Python whether or not a compiled one is there."""
    package = f"tidelog.wire.{name}"
    folder = Path(plan.__file__).with_name(name)
    saved = {name: sys.modules[name] for name in (package, *(f"{package}.{part}" for part in PARTS))}
    try:
        parts = {part: _load_source(f"{package}.{part}", folder / f"{part}.py") for part in PARTS}
        engine = _load_source(package, folder / "__init__.py")
        vars(engine).update(parts)
        return engine
    finally:
        sys.modules.update(saved)


def _load_source(name: str, source: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that those loaded after it build on it
    spec.loader.exec_module(module)
    return module


class Engine:
    """A decoder and an encoder, and the plans they run."""

    def __init__(self, decoder: ModuleType, encoder: ModuleType) -> None:
        self.decoder = decoder
        self.encoder = encoder
        self._plan = cache(plan.compile_plan)

    def encode(self, message: Message, version: int) -> bytes:
        encoded: bytes = self.encoder.encode(self._plan(self.encoder, type(message), version), message)
        return encoded

    def decode(self, message: type[Message], data: bytes, version: int) -> Any:
        return self.decoder.decode_whole(self._plan(self.decoder, message, version), data)

    def decode_from(self, message: type[Message], data: bytes, version: int, position: int) -> Any:
        return self.decoder.decode(self._plan(self.decoder, message, version), data, position)

    def decode_in_steps(self, message: type[Message], data: bytes, version: int) -> Any:
        """An element at a time."""
        decoding = self.decoder.Decoding(self._plan(self.decoder, message, version), data, 0, 1 << 40)
        while (decoded := decoding.step(1, 1 << 40)) is None:
            pass
        return decoded

    def encode_in_steps(self, message: Message, version: int, header: Message) -> tuple[bytes, bytes]:
        """A frame as it is written an element at a time, and in one go."""
        plans = self._plan(self.encoder, type(header), 1), header, self._plan(self.encoder, type(message), version)
        encoding = self.encoder.Encoding(*plans, message)
        while (parts := encoding.step(1, 1 << 40)) is None:
            pass
        return b"".join(parts), b"".join(self.encoder.encode_frame(*plans, message))


ENGINES = {"installed": Engine(decoder, encoder), "plain": Engine(plain("decoder"), plain("encoder"))}
