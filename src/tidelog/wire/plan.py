"""Compiles a declared message, in one version, into the plan that decodes it or the one that encodes it.

Plans are made when a version is first used, and kept with the class: importing declarations compiles nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tidelog.errors import UnsupportedVersionError
from tidelog.wire import decoder, encoder
from tidelog.wire.schema import EMPTY_LIST, EMPTY_STRUCT, ArrayType, Field, Message, Scalar, StructType, slot_descriptor

_INTEGERS = {
    "int8": (1, -(1 << 7), (1 << 7) - 1),
    "int16": (2, -(1 << 15), (1 << 15) - 1),
    "uint16": (2, 0, (1 << 16) - 1),
    "int32": (4, -(1 << 31), (1 << 31) - 1),
    "uint32": (4, 0, (1 << 32) - 1),
    "int64": (8, -(1 << 63), (1 << 63) - 1),
}
"""Width in bytes, lowest and highest value."""


def decoder_of(message: type[Message], version: int) -> decoder.Struct:
    """Reads the message in that version; UnsupportedVersionError if it has no such version."""
    plan: decoder.Struct | None = message.__decoders__.get(version)
    if plan is None:
        plan = message.__decoders__[version] = compile_plan(decoder, message, version)
    return plan


def encoder_of(message: type[Message], version: int) -> encoder.Struct:
    """Writes the message in that version; UnsupportedVersionError if it has no such version."""
    plan: encoder.Struct | None = message.__encoders__.get(version)
    if plan is None:
        plan = message.__encoders__[version] = compile_plan(encoder, message, version)
    return plan


def compile_plan(engine: ModuleType, message: type[Message], version: int) -> Any:
    """A plan for one of the two engines, which name their codecs alike."""
    schema = message.__schema__
    if version not in schema.versions:
        raise UnsupportedVersionError(f"{schema.name} has versions {schema.versions}, not {version}")
    return _Compiler(engine, version, version in schema.flexible).struct(message)


class _Compiler:
    """Makes the codecs of one message in one version; a struct that occurs twice gets one codec."""

    def __init__(self, engine: ModuleType, version: int, flexible: bool) -> None:
        self.engine = engine
        self.version = version
        self.flexible = flexible
        self.structs: dict[type[Message], Any] = {}

    def struct(self, message: type[Message]) -> Any:
        known = self.structs.get(message)
        if known is not None:
            return known
        codec = self.structs[message] = self.engine.Struct(message, self.version, self.flexible)
        present: list[Any] = []
        tags: list[Any] = []
        absent: list[Any] = []
        needed: list[Any] = []
        for field in sorted(message.__schema__.fields, key=self.tag):
            slot = self.slot(message, field)
            if self.version in field.versions:
                (tags if self.version in field.tagged else present).append(slot)
            else:
                absent.append(slot)
                if not field.ignorable:
                    needed.append(slot)
        codec.fill(present, tags, absent, needed)
        return codec

    def slot(self, message: type[Message], field: Field) -> Any:
        default = field.default
        if default is EMPTY_LIST:
            default = []
        elif default is EMPTY_STRUCT:
            assert isinstance(field.type, StructType)
            default = self.struct(field.type.message)
        codec = self.codec(field) if self.version in field.versions else None
        return self.engine.Slot(slot_descriptor(message, field.name), field.name, codec, self.tag(field), default)

    def tag(self, field: Field) -> int:
        return field.tag if self.version in field.tagged else -1

    def codec(self, field: Field) -> Any:
        compact = self.flexible if field.flexible is None else self.version in field.flexible
        nullable = self.version in field.nullable
        kind = field.type
        if isinstance(kind, StructType):
            struct = self.struct(kind.message)
            return self.engine.NullableStruct(struct) if nullable else struct
        if isinstance(kind, ArrayType):
            return self.array(kind, compact, nullable)
        assert isinstance(kind, Scalar)
        return self.scalar(kind, compact, nullable)

    def array(self, kind: ArrayType, compact: bool, nullable: bool) -> Any:
        if isinstance(kind.element, StructType):
            return self.engine.Array(compact, nullable, self.struct(kind.element.message))
        if kind.element.name == "int32":
            return self.engine.Int32Array(compact, nullable)
        return self.engine.Array(compact, nullable, self.scalar(kind.element, compact, False))

    def scalar(self, kind: Scalar, compact: bool, nullable: bool) -> Any:
        if kind.name in _INTEGERS:
            return self.engine.Int(*_INTEGERS[kind.name])
        match kind.name:
            case "bool":
                return self.engine.Bool()
            case "float64":
                return self.engine.Float64()
            case "uuid":
                return self.engine.Uuid()
            case "string":
                return self.engine.String(compact, nullable)
            case "bytes":
                return self.engine.Bytes(compact, nullable)
        assert kind.name == "records"
        return self.engine.Records(compact, nullable)
